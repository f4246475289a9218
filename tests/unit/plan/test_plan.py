"""`Plan`: batches as a sequence, a summary, and a file that is refused when it is not what it should be."""

import itertools
import pickle
import struct
import zipfile

import numpy as np
import pytest

from bionemo.size_aware_batching import PaddedCost, Plan, plan_batches
from bionemo.size_aware_batching.errors import FileFormatError, SkippedElementsWarning
from bionemo.size_aware_batching.plan import PlanSummary

ARRAYS = ("indices", "offsets", "cost", "longest", "total", "skipped", "budget", "largest_cost")
SIZES = [4, 4, 9, 1, 2, 2, 7]


def example():
    """Batches [0, 1], [2], [3, 4, 5], [6] of cost 8, 9, 6, 7."""
    return plan_batches(SIZES, budget=10, cost="padded")


def skipping():
    with pytest.warns(SkippedElementsWarning, match="1 of 7"):
        return plan_batches(SIZES, budget=8, oversized="skip")


PLANS = {
    "in order": example,
    "skipping": skipping,
    "two measures": lambda: plan_batches([(1, 2), (3, 4), (5, 6)], budget=[6, 9.5]),
    "one column": lambda: plan_batches(np.ones((3, 1)), budget=2),
    "fractions": lambda: plan_batches([0.5, 1.5], budget=1.5),
    "empty": lambda: plan_batches([], budget=3),
    "empty, two measures": lambda: plan_batches(np.ones((0, 2)), budget=[1, 2]),
    "shuffled": lambda: plan_batches(range(500), budget=2000, strategy="by_size", shuffle=True),
}
EVERY_PLAN = pytest.mark.parametrize("kind", sorted(PLANS))
READ = pytest.mark.parametrize("mmap", [False, True])


def members(path):
    """Read the arrays of a file without the library."""
    with np.load(path) as archive:
        return dict(archive)


def written(path, **changes):
    """Write the example's file with other arrays in it; None leaves one out."""
    example().save(path)
    arrays = members(path) | changes
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


@EVERY_PLAN
@READ
def test_round_trip(kind, mmap, tmp_path):
    """A plan read back has the same arrays, read-only, and so the same batches and figures."""
    plan = PLANS[kind]()
    plan.save(tmp_path / "plan.npz")
    loaded = Plan.load(str(tmp_path / "plan.npz"), mmap=mmap)
    for name in ARRAYS:
        ours, theirs = getattr(plan, name), getattr(loaded, name)
        assert (ours.dtype, ours.shape, ours.tolist()) == (theirs.dtype, theirs.shape, theirs.tolist())
        assert not theirs.flags.writeable
    assert (list(plan), plan.summary(), plan.uniform.tolist()) == (
        list(loaded),
        loaded.summary(),
        loaded.uniform.tolist(),
    )
    assert repr(plan) == repr(loaded)


def test_mapped_arrays_stay_in_the_file(tmp_path):
    """With `mmap` the arrays are mapped from the file and not read into memory."""
    example().save(tmp_path / "plan.npz")
    loaded = Plan.load(tmp_path / "plan.npz", mmap=True)
    kinds = {name: type(getattr(loaded, name)) for name in ("indices", "offsets", "cost", "longest", "total")}
    assert dict.fromkeys(kinds, np.memmap) == kinds
    plain = Plan.load(tmp_path / "plan.npz")
    assert [] == [name for name in ARRAYS if isinstance(getattr(plain, name), np.memmap)]


def test_file_that_is_not_there(tmp_path):
    """A missing file is an error of the operating system, not of the format."""
    with pytest.raises(FileNotFoundError):
        Plan.load(tmp_path / "none.npz")
    with pytest.raises(OSError, match="directory"):
        Plan.load(tmp_path)


@READ
@pytest.mark.parametrize("content", [b"", b"PK", b"not a plan", b"\x93NUMPY\x01\x00", bytes(1000), b'{"kind": "plan"}'])
def test_foreign_file(mmap, content, tmp_path):
    """A file that is no archive is refused."""
    (tmp_path / "plan.npz").write_bytes(content)
    with pytest.raises(FileFormatError, match=r"plan\.npz is not a size-aware-batching plan file"):
        Plan.load(tmp_path / "plan.npz", mmap=mmap)


@READ
def test_foreign_archive(mmap, tmp_path):
    """An archive of something else is refused, also when it names arrays alike."""
    np.savez(tmp_path / "plan.npz", indices=np.arange(3), offsets=np.array([0, 3]))
    with pytest.raises(FileFormatError, match=r"plan\.npz is not a size-aware-batching plan file"):
        Plan.load(tmp_path / "plan.npz", mmap=mmap)
    with pytest.raises(FileFormatError, match="is not a size-aware-batching plan file"):
        Plan.load(written(tmp_path / "plan.npz", kind=np.array("shopping list")), mmap=mmap)


@READ
def test_truncated_file(mmap, tmp_path):
    """A file that ends early, wherever, is refused."""
    path = tmp_path / "plan.npz"
    example().save(path)
    content = path.read_bytes()
    for length in range(0, len(content), 37):
        path.write_bytes(content[:length])
        with pytest.raises(FileFormatError, match="damaged"):
            Plan.load(path, mmap=mmap)


@READ
@pytest.mark.parametrize("version", [0, 2, 10**6])
def test_newer_file(mmap, version, tmp_path):
    """A file of a version that this release does not know is refused and the version told."""
    with pytest.raises(FileFormatError, match=rf"version {version}; this release reads versions up to 1"):
        Plan.load(written(tmp_path / "plan.npz", version=np.array(version)), mmap=mmap)


@READ
@pytest.mark.parametrize(
    "version", [np.array("new"), np.array(float("nan")), np.array([1, 1]), np.array(1j), np.array([]), None]
)
def test_version_that_is_none(mmap, version, tmp_path):
    """A version that is no number is refused."""
    with pytest.raises(FileFormatError, match="plan"):
        Plan.load(written(tmp_path / "plan.npz", version=version), mmap=mmap)


@READ
@pytest.mark.parametrize("name", ["kind", *ARRAYS])
def test_array_that_is_missing(mmap, name, tmp_path):
    """A file without one of the arrays is refused."""
    with pytest.raises(FileFormatError, match="damaged"):
        Plan.load(written(tmp_path / "plan.npz", **{name: None}), mmap=mmap)


DAMAGED = [
    pytest.param({"offsets": np.array([0, 2, 3, 6])}, id="offsets too few"),
    pytest.param({"offsets": np.array([0, 2, 3, 6, 8])}, id="offsets beyond the end"),
    pytest.param({"offsets": np.array([1, 2, 3, 6, 7])}, id="offsets begin late"),
    pytest.param({"offsets": np.array([0, 3, 2, 6, 7])}, id="offsets fall"),
    pytest.param({"offsets": np.array([0, 3, 3, 6, 7])}, id="an empty batch"),
    pytest.param({"offsets": np.array([], np.int64)}, id="no offsets"),
    pytest.param({"offsets": np.array([0.0, 2, 3, 6, 7])}, id="offsets of floats"),
    pytest.param({"offsets": np.array([[0, 2, 3, 6, 7]])}, id="offsets 2-D"),
    pytest.param({"offsets": np.array(0)}, id="offsets 0-D"),
    pytest.param({"indices": np.arange(6)}, id="indices too few"),
    pytest.param({"indices": np.arange(7) - 1}, id="indices negative"),
    pytest.param({"indices": np.arange(7.0)}, id="indices of floats"),
    pytest.param({"indices": np.arange(7).astype("U2")}, id="indices of strings"),
    pytest.param({"indices": np.arange(7).reshape(7, 1)}, id="indices 2-D"),
    pytest.param({"indices": np.arange(7) == 0}, id="indices of bools"),
    pytest.param({"skipped": np.array([[1]])}, id="skipped 2-D"),
    pytest.param({"skipped": np.array(["1"])}, id="skipped of strings"),
    pytest.param({"cost": np.arange(3)}, id="cost too short"),
    pytest.param({"cost": np.array(3)}, id="cost 0-D"),
    pytest.param({"cost": np.array(["a"] * 4)}, id="cost of strings"),
    pytest.param({"longest": np.arange(5)}, id="longest too long"),
    pytest.param({"longest": np.array(5)}, id="longest 0-D"),
    pytest.param({"total": np.arange(0)}, id="total empty"),
    pytest.param({"total": np.ones(4, np.complex64)}, id="total complex"),
    pytest.param({"longest": np.ones((4, 2)), "total": np.ones(4)}, id="measures differ"),
    pytest.param({"cost": np.ones((4, 2))}, id="costs and budgets differ"),
    pytest.param({"budget": np.array("much")}, id="budget of strings"),
    pytest.param({"budget": np.ones(3)}, id="budgets and costs differ"),
    pytest.param({"largest_cost": np.array("much")}, id="largest cost of strings"),
    pytest.param({"largest_cost": np.ones(2)}, id="several largest costs"),
    pytest.param({"layout": np.array([1, 1])}, id="no rank"),
    pytest.param({"layout": np.array([1.0, 1, -1])}, id="ranks of floats"),
    pytest.param({"layout": np.array([0, 1, -1])}, id="a world of none"),
    pytest.param({"layout": np.array([1, 0, -1])}, id="steps of no batches"),
    pytest.param({"layout": np.array([2, 1, 2])}, id="a rank that is not there"),
    pytest.param({"layout": np.array([3, 1, -1])}, id="batches in no whole steps"),
    pytest.param({"layout": np.array([2, 1, -1])}, id="more sums than steps"),
    pytest.param({"step_total": np.ones((4, 2))}, id="sums of other measures"),
]


@READ
@pytest.mark.parametrize("changes", DAMAGED)
def test_arrays_that_do_not_belong_together(mmap, changes, tmp_path):
    """Arrays that are no plan's are refused when they are read, not when a batch is asked for."""
    with pytest.raises(FileFormatError, match="damaged"):
        Plan.load(written(tmp_path / "plan.npz", **changes), mmap=mmap)


@READ
@pytest.mark.parametrize("name", ["indices", "offsets", "kind", "version", "budget"])
def test_pickled_arrays_are_not_unpickled(mmap, name, tmp_path):
    """An array of objects is refused, and what it would run when unpickled does not run."""
    witness = tmp_path / "witness"

    class Runs:
        def __reduce__(self):
            return witness.touch, ()

    objects = np.empty(7, object)
    objects[:] = [Runs() for _ in range(7)]
    path = written(tmp_path / "plan.npz", **{name: objects})
    with pytest.raises(FileFormatError, match="plan"):
        Plan.load(path, mmap=mmap)
    assert not witness.exists()


@READ
def test_pickle_file(mmap, tmp_path):
    """A pickled plan is not a file that `load` reads."""
    (tmp_path / "plan.npz").write_bytes(pickle.dumps(example()))
    with pytest.raises(FileFormatError, match="not a size-aware-batching plan"):
        Plan.load(tmp_path / "plan.npz", mmap=mmap)


def compressed(path):
    example().save(path)
    np.savez_compressed(path, **members(path))
    return path


def test_compressed_file_is_not_mapped(tmp_path):
    """A compressed file cannot be mapped; the error says so."""
    with pytest.raises(FileFormatError, match="compressed"):
        Plan.load(compressed(tmp_path / "plan.npz"), mmap=True)


@READ
@pytest.mark.parametrize("make", [compressed, written])
def test_damaged_bytes(mmap, make, tmp_path):
    """A byte that is wrong, wherever, gives an error of the format or leaves a plan that can be served."""
    path = make(tmp_path / "plan.npz")
    content = path.read_bytes()
    unexpected = []
    for position, flip in itertools.product(range(0, len(content), 7), (0xFF, 0x10)):
        path.write_bytes(content[:position] + bytes([content[position] ^ flip]) + content[position + 1 :])
        try:
            list(Plan.load(path, mmap=mmap))
        except FileFormatError:
            pass
        except Exception as error:  # noqa: BLE001 - which others there are is the question
            unexpected.append(repr(error)[:80])
    assert [] == sorted(set(unexpected))


@READ
def test_encrypted_member(mmap, tmp_path):
    """An archive that wants a password is refused."""
    path = written(tmp_path / "plan.npz")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        entries = len(archive.namelist())
        position = archive.start_dir
    for _ in range(entries):
        content[position + 8] |= 1
        position += 46 + sum(struct.unpack_from("<3H", content, position + 28))
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="damaged"):
        Plan.load(path, mmap=mmap)


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_failed_save_leaves_the_old_file(error, tmp_path, monkeypatch):
    """A save that fails half-way leaves the file as it was and nothing beside it."""
    path = tmp_path / "plan.npz"
    example().save(path)
    before = path.read_bytes()

    def fail(file, **arrays):
        file.write(b"half of it")
        raise error("no space left")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(error, match="no space left"):
        skipping().save(path)
    assert before == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_save_replaces(tmp_path):
    """A second save takes the place of the first, and a plan that is mapped keeps its own arrays."""
    path = tmp_path / "plan.npz"
    example().save(path)
    loaded = Plan.load(path, mmap=True)
    skipping().save(path)
    assert list(example()) == list(loaded)
    assert [2] == Plan.load(path).skipped.tolist()


def test_save_into_no_directory(tmp_path):
    """Where there is no directory there is an error of the operating system."""
    with pytest.raises(FileNotFoundError):
        example().save(tmp_path / "none" / "plan.npz")


def test_batches_by_number():
    """A batch is a list of plain ints; negative numbers count from the end."""
    plan = example()
    assert [[0, 1], [2], [3, 4, 5], [6]] == [plan[number] for number in range(4)]
    assert [[6], [3, 4, 5], [2], [0, 1]] == [plan[number] for number in (-1, -2, -3, -4)]
    assert [3, 4, 5] == plan[np.int64(2)]
    assert {int} == {type(index) for index in plan[2]}


@pytest.mark.parametrize("number", [4, -5, 10**30, -(10**30)])
def test_number_of_no_batch(number):
    """A number beyond the batches is an IndexError, which ends a loop over a sequence."""
    with pytest.raises(IndexError):
        example()[number]


@pytest.mark.parametrize("number", ["0", 0.0, None, slice(0, 2), [0], (0, 1)])
def test_what_numbers_no_batch(number):
    """Batches are asked for by whole numbers, one at a time."""
    with pytest.raises(TypeError, match=r"range|integer|operand"):
        example()[number]


def test_many_batches():
    """Iterating agrees with asking one by one, over more batches than are converted at a time."""
    plan = plan_batches(np.ones(10_000, np.uint8), budget=1)
    assert [[index] for index in range(10_000)] == list(plan)
    assert 10_000 == len(plan)
    passes = iter(plan), iter(plan)
    assert [([0], [0]), ([1], [1])] == list(itertools.islice(zip(*passes, strict=True), 2))


def test_arrays_of_a_plan():
    """The arrays of a small plan, computed by hand."""
    plan = example()
    assert [0, 1, 2, 3, 4, 5, 6] == plan.indices.tolist()
    assert [0, 2, 3, 6, 7] == plan.offsets.tolist()
    assert [8, 9, 6, 7] == plan.cost.tolist()
    assert [4, 9, 2, 7] == plan.longest.tolist()
    assert [8, 9, 5, 7] == plan.total.tolist()
    assert [2, 1, 3, 1] == plan.items.tolist()
    assert [True, True, False, True] == plan.uniform.tolist()
    assert (10, 0.9) == (plan.budget.item(), plan.largest_cost.item())


def test_arrays_of_several_measures():
    """Longest, total and cost have a column for each measure that has a budget."""
    plan = plan_batches([(1, 2), (3, 4), (3, 4), (5, 5)], budget=[6, 9], cost="padded")
    assert [[0, 1], [2], [3]] == list(plan)
    assert [[6, 8], [3, 4], [5, 5]] == plan.cost.tolist()
    assert [[3, 4], [3, 4], [5, 5]] == plan.longest.tolist()
    assert [[4, 6], [3, 4], [5, 5]] == plan.total.tolist()
    assert [False, True, True] == plan.uniform.tolist()
    assert [6, 9] == plan.budget.tolist()
    assert 5 / 6 == plan.largest_cost.item()
    one = plan_batches([[2], [3]], budget=5)
    assert ([5], [[3]], [[5]]) == (one.cost.tolist(), one.longest.tolist(), one.total.tolist())


def test_arrays_are_read_only():
    """No array can be written, nor an attribute set."""
    plan = example()
    for name in ARRAYS:
        with pytest.raises(ValueError, match="read-only"):
            getattr(plan, name)[...] = 0
    with pytest.raises(AttributeError, match="indices"):
        plan.indices = None


def test_pickled_plan_is_read_only_too():
    """A plan that was sent to another process is as protected as the first."""
    copy = pickle.loads(pickle.dumps(example()))  # noqa: S301
    assert list(example()) == list(copy)
    assert [] == [name for name in ARRAYS if getattr(copy, name).flags.writeable]


def test_summary():
    """Every figure of a small plan, computed by hand."""
    summary = example().summary()
    assert (4, 7, 0, 3) == (summary.batches, summary.elements, summary.skipped, summary.uniform)
    assert pytest.approx(1 / 30) == summary.padding_fraction
    assert pytest.approx(0.25) == summary.slack_fraction
    assert pytest.approx((0.75, 0.6, 0.9)) == (
        summary.budget_used_mean,
        summary.budget_used_min,
        summary.budget_used_max,
    )
    assert (1.0, 1.0, 1.5, 2.25, 3.0) == summary.items_percentiles
    assert 0.9 == summary.largest_element_fraction
    assert [(1, 0.9, 1, 9), (0, 0.8, 2, 4), (3, 0.7, 1, 7), (2, 0.6, 3, 2)] == [
        (worst.batch, worst.budget_used, worst.items, worst.longest) for worst in summary.worst
    ]


def test_summary_of_several_budgets():
    """Of several budgets the one that is used most counts; padding is that of the first measure."""
    summary = plan_batches([(1, 8), (3, 1), (5, 5)], budget=[10, 10], cost="padded").summary()
    assert 2 == summary.batches
    assert pytest.approx((0.9, 0.8, 1.0)) == (
        summary.budget_used_mean,
        summary.budget_used_min,
        summary.budget_used_max,
    )
    assert pytest.approx(2 / 11) == summary.padding_fraction
    assert 0.8 == summary.largest_element_fraction
    assert {tuple} == {type(worst.longest) for worst in summary.worst}


def test_summary_of_oversized_elements():
    """A batch over budget leaves no budget unused, and is the worst."""
    with pytest.warns(SkippedElementsWarning, match="1 of 3"):
        summary = plan_batches([20, 3, 5], budget=10, oversized="alone").summary()
    assert (2.0, 2.0) == (summary.budget_used_max, summary.largest_element_fraction)
    assert pytest.approx(0.1) == summary.slack_fraction
    assert (2.0, 1) == (summary.worst[0].budget_used, summary.worst[0].items)


def test_summary_keeps_the_five_worst():
    """The five costliest batches are listed, the first of equals first."""
    summary = plan_batches([1, 5, 2, 5, 3, 4], budget=10, max_items=1).summary()
    assert [1, 3, 5, 4, 2] == [worst.batch for worst in summary.worst]


def test_summary_counts_what_the_collator_adds():
    """Used budget includes rounding and extra tokens, padding is that of the sizes alone."""
    summary = plan_batches([7, 3], budget=40, cost=PaddedCost(multiple_of=8, extra=2)).summary()
    assert (0.8, 4 / 14) == (summary.budget_used_max, summary.padding_fraction)


@pytest.mark.parametrize("kind", ["empty", "empty, two measures"])
def test_summary_of_nothing(kind):
    """Of an empty plan every share is 0 and nothing is divided by it."""
    expected = PlanSummary(0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, (0.0,) * 5, 0.0, 1, 0.0, ())
    assert expected == PLANS[kind]().summary()


def test_summary_of_zeros():
    """Sizes of zero have no padding."""
    assert 0.0 == plan_batches([0, 0, 0], budget=1, cost="padded").summary().padding_fraction


def test_summary_in_words():
    """Printed, the figures are rounded to what one reads."""
    expected = (
        "4 batches of 7 elements (0 skipped), 3 uniform\n"
        "budget used 75.0% on average, 60.0% at least; padding 3.3%\n"
        "1 to 3 elements a batch, median 1.5; largest element 90.0% of the budget"
    )
    assert expected == str(example().summary())
    assert str(PLANS["empty"]().summary()).startswith("0 batches of 0 elements (0 skipped), 0 uniform\n")


def test_repr():
    """A plan says how much it holds, not what."""
    assert "Plan(batches=4, elements=7, skipped=0)" == repr(example())
    assert "Plan(batches=3, elements=6, skipped=1)" == repr(skipping())


@pytest.mark.parametrize("kind", ["empty", "empty, two measures"])
def test_empty_plan(kind):
    """Without elements a plan has no batches, and still all its arrays."""
    plan = PLANS[kind]()
    assert (0, [], []) == (len(plan), list(plan), plan.uniform.tolist())
    assert ([0], [], []) == (plan.offsets.tolist(), plan.indices.tolist(), plan.items.tolist())
    with pytest.raises(IndexError):
        plan[0]


def test_plan_of_nothing_but_skipped_elements():
    """Where every element is over budget all are skipped and no batch is left."""
    with pytest.warns(SkippedElementsWarning, match="3 of 3"):
        plan = plan_batches([5, 6, 7], budget=1, oversized="skip", strategy="by_size", shuffle=True)
    assert ([], [0, 1, 2]) == (list(plan), plan.skipped.tolist())
    assert 3 == plan.summary().skipped
