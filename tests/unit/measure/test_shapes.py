"""`suggest_shapes`: batches to measure, against simulated steps whose memory is known."""

import itertools
import time

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching.measure import SuggestedShapes, measure_peaks, suggest_shapes
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel

pytestmark = pytest.mark.usefixtures("small_heap")

GIB = 2**30
MIB = 2**20
RNG = np.random.default_rng(0)
PROTEINS = np.clip(RNG.lognormal(5.5, 0.6, 5000), 20, 2000).astype(np.int64)
READS = RNG.integers(50, 500, 2000)
TWO_KINDS = np.where(RNG.random(500) < 0.5, 100, 1000)
LONG_TAIL = np.clip(RNG.pareto(1.5, 5000) * 50 + 20, 20, 4000).astype(np.int64)
ATOMS = RNG.integers(5, 80, 3000)
MOLECULES = np.stack([ATOMS, ATOMS + RNG.integers(0, 40, 3000)], axis=1)
NOISE = 0.003


def padded(per):
    return lambda shape: per * shape.items * shape.longest


def squared(per):
    return lambda shape: per * shape.items * shape.longest**2


def total(per):
    return lambda shape: per * shape.total


def one_mask(per):
    return lambda shape: per * shape.longest**2 + 2000 * shape.items * shape.longest


def bonds(per):
    return lambda shape: per * shape.total[1]


def padded_atoms(per):
    return lambda shape: per * shape.items * shape.longest[0]


class Step:
    """A step that needs fixed bytes and some for its batch, but not less than a floor; and a little noise."""

    def __init__(self, grows, fixed, floor=0.0, budget=GIB, seed=0, holds=None):
        self.grows, self.fixed, self.floor = grows, int(fixed * budget), floor * budget
        self.holds = float("inf") if holds is None else holds * budget
        self._rng = np.random.default_rng(seed)

    def exact(self, shape):
        """Return what a step of this shape needs, without noise."""
        return max(self.fixed + self.grows(shape), self.floor)

    def __call__(self, shape):
        """Return its peak, or None if the device does not hold that much."""
        peak = int(self.exact(shape) * (1 + NOISE * self._rng.uniform(-1, 1)))
        return peak if peak <= self.holds else None


def run(batches, sizes, step):
    """Measure all that is suggested; return the batches, their shapes and their peaks."""
    found, sizes = [], np.asarray(sizes)
    for indices in batches:
        shape = BatchShape.of(sizes[indices])
        peak = step(shape)
        batches.observe(peak, step.fixed)
        found.append((indices, shape, peak))
    return tuple(zip(*found, strict=True))


def model_of(shapes, peaks):
    """Fit a model to what did not run out of memory."""
    pairs = [(shape, peak) for shape, peak in zip(shapes, peaks, strict=True) if peak is not None]
    return MemoryModel().fit([shape for shape, _ in pairs], [peak for _, peak in pairs])


STEPS = {
    "padded": (PROTEINS, padded(3000), {"fixed": 0.05}),
    "padded, large fixed part": (READS, padded(3000), {"fixed": 0.5}),
    "squared": (PROTEINS, squared(40), {"fixed": 0.05}),
    "squared, large fixed part": (READS, squared(40), {"fixed": 0.5}),
    "squared, two kinds": (TWO_KINDS, squared(40), {"fixed": 0.05}),
    "total": (PROTEINS, total(5000), {"fixed": 0.05}),
    "total, large fixed part": (PROTEINS, total(5000), {"fixed": 0.5}),
    "long tail": (LONG_TAIL, padded(3000), {"fixed": 0.05}),
    "long tail, total": (LONG_TAIL, total(5000), {"fixed": 0.05}),
    "long tail, squared": (LONG_TAIL, squared(40), {"fixed": 0.05}),
    "one mask": (PROTEINS, one_mask(100), {"fixed": 0.05}),
    "bonds": (MOLECULES, bonds(20_000), {"fixed": 0.05}),
    "padded atoms": (MOLECULES, padded_atoms(20_000), {"fixed": 0.05}),
    "low floor": (PROTEINS, padded(3000), {"fixed": 0.05, "floor": 0.1}),
    "floor": (PROTEINS, padded(3000), {"fixed": 0.05, "floor": 0.25}),
    "floor, squared": (PROTEINS, squared(40), {"fixed": 0.05, "floor": 0.25}),
    "floor, total": (PROTEINS, total(5000), {"fixed": 0.05, "floor": 0.25}),
    "floor above a large fixed part": (READS, padded(3000), {"fixed": 0.5, "floor": 0.55}),
    "floor, long tail": (LONG_TAIL, padded(3000), {"fixed": 0.05, "floor": 0.1}),
    "floor, bonds": (MOLECULES, bonds(20_000), {"fixed": 0.05, "floor": 0.1}),
}
# Of each the seeds of the noise: more than one would make these tests slow.
EVERY_STEP = pytest.mark.parametrize("name", STEPS)
_RUNS = {}


def simulated(name):
    """Return a step, the sizes it was measured with, and what came of it; each is run once."""
    if name not in _RUNS:
        sizes, grows, settings = STEPS[name]
        step = Step(grows, **settings)
        _RUNS[name] = step, sizes, run(suggest_shapes(sizes, GIB), sizes, step)
    return _RUNS[name]


@EVERY_STEP
def test_no_batch_is_above_the_budget(name):
    """Whatever the memory grows with, no suggested batch needs more than the budget."""
    step, _, (_, shapes, _) = simulated(name)
    assert [] == [shape for shape in shapes if step.exact(shape) > GIB]


@EVERY_STEP
def test_largest_batch_is_near_the_budget(name):
    """Plans fill the budget, so the measurements reach near it; a floor hides for long how memory grows."""
    step, _, (_, shapes, _) = simulated(name)
    assert (0.7 if step.floor else 0.85) * GIB <= max(map(step.exact, shapes))


@EVERY_STEP
def test_batches_are_few_and_different(name):
    """There are at most 20 batches by default, and no two have the same shape."""
    _, _, (batches, shapes, _) = simulated(name)
    assert 8 <= len(batches) <= 20
    assert len(batches) == len(set(shapes))


@EVERY_STEP
def test_batches_are_made_of_elements(name):
    """A batch is a list of plain indices, none of them twice."""
    _, sizes, (batches, _, _) = simulated(name)
    assert {list} == {type(indices) for indices in batches}
    assert {int} == {type(index) for indices in batches for index in indices}
    assert [len(indices) for indices in batches] == [len(set(indices)) for indices in batches]
    assert set(itertools.chain.from_iterable(batches)) <= set(range(len(sizes)))


@EVERY_STEP
def test_model_of_what_was_suggested_predicts_the_rest(name):
    """A model fitted to the suggested batches is right for other batches that the budget allows."""
    step, sizes, (_, shapes, peaks) = simulated(name)
    model, rng = model_of(shapes, peaks), np.random.default_rng(1)
    unseen = [
        BatchShape.of(sizes[rng.choice(len(sizes), min(int(np.exp(rng.uniform(0, 7))), len(sizes)), replace=False)])
        for _ in range(60)
    ]
    allowed = [shape for shape in unseen if step.exact(shape) <= GIB]
    assert 10 <= len(allowed)
    assert pytest.approx(model.predict(allowed), rel=0.03) == [step.exact(shape) for shape in allowed]


@pytest.mark.parametrize("count", [4, 7, 40])
def test_number_of_batches(count):
    """`count` is how many batches there are at most."""
    batches, _, _ = run(suggest_shapes(PROTEINS, GIB, count=count), PROTEINS, Step(padded(3000), 0.05))
    assert count == len(batches)


@pytest.mark.parametrize("most", [1, 3, 64])
def test_number_of_elements_in_a_batch(most):
    """`max_items` is how many elements a batch has at most, and batches of that many are suggested."""
    batches, _, _ = run(suggest_shapes(PROTEINS, GIB, max_items=most), PROTEINS, Step(padded(3000), 0.05))
    assert most == max(map(len, batches))


def test_suggestions_are_the_same_again():
    """Nothing is drawn at random: the same peaks lead to the same batches."""
    first, second = (run(suggest_shapes(PROTEINS, GIB), PROTEINS, Step(squared(40), 0.05)) for _ in range(2))
    assert first == second


def test_batches_start_small():
    """The first batches are single elements, of median size first."""
    batches, _, _ = run(suggest_shapes(READS, GIB), READS, Step(padded(3000), 0.05))
    assert [1, 1] == [len(indices) for indices in batches[:2]]
    assert np.sort(READS)[len(READS) // 2 - 1] == READS[batches[0][0]]
    assert READS[batches[1][0]] < np.quantile(READS, 0.1)


def test_long_short_and_mixed_batches_are_there():
    """Some batches hold the longest elements, some only short ones, and some tell padding from totals."""
    _, shapes, _ = run(suggest_shapes(PROTEINS, GIB), PROTEINS, Step(padded(3000), 0.05))
    large = [shape for shape in shapes if shape.items > 1]
    assert PROTEINS.max() in {shape.longest for shape in large}
    assert min(shape.longest for shape in large) < np.quantile(PROTEINS, 0.2)
    assert any(1.5 < shape.items * shape.longest / shape.total for shape in large)
    assert any(shape.items * shape.longest / shape.total < 1.1 for shape in large)


def test_batches_are_listed_from_the_longest_element_on():
    """The first element of a batch is its longest, as in a plan by size."""
    batches, shapes, _ = run(suggest_shapes(READS, GIB), READS, Step(padded(3000), 0.05))
    assert [shape.longest for shape in shapes] == [READS[indices[0]] for indices in batches]


@pytest.mark.parametrize("holds", [0.3, 0.5, 0.8])
def test_nothing_larger_follows_an_out_of_memory(holds):
    """A batch that runs out of memory tells that the device holds less, and none as large comes after it."""
    step = Step(padded(3000), 0.05, holds=holds)
    _, shapes, peaks = run(suggest_shapes(PROTEINS, GIB), PROTEINS, step)
    failed = [step.exact(shape) for shape, peak in zip(shapes, peaks, strict=True) if peak is None]
    first = peaks.index(None)
    assert max(map(step.exact, shapes[first + 1 :])) < failed[0]
    assert sorted(failed, reverse=True) == failed
    assert len(failed) <= 4
    assert 8 <= len(peaks) - len(failed)


def test_every_larger_batch_runs_out_of_memory():
    """A device that holds only the smallest batches ends the suggestions, not the program."""
    step = Step(padded(3000), 0.05, holds=0.0535)
    _, shapes, peaks = run(suggest_shapes(READS, GIB), READS, step)
    assert peaks[0] is not None
    assert max(map(step.exact, shapes)) <= 0.4 * GIB


def test_first_element_runs_out_of_memory():
    """Where not even one element fits, there is nothing to suggest, and the error says so."""
    batches = suggest_shapes(READS, GIB)
    assert 1 == len(next(batches))
    batches.observe(None)
    with pytest.raises(ValueError, match="one element of median size runs out of memory: the budget 1 GiB leaves no"):
        next(batches)
    assert [] == list(batches)


@pytest.mark.parametrize(("peak", "text"), [(GIB, "peaks at 1 GiB"), (3 * GIB, "peaks at 3 GiB")])
def test_budget_that_one_element_takes(peak, text):
    """A budget that the smallest step takes whole leaves no room, and the error says so."""
    batches = suggest_shapes(READS, GIB)
    next(batches)
    batches.observe(peak)
    with pytest.raises(ValueError, match=f"one element of median size {text}: the budget 1 GiB leaves no room"):
        next(batches)


def test_peak_below_the_baseline():
    """A baseline above the peaks, as a careless meter may report, breaks nothing."""
    batches = suggest_shapes(READS, GIB)
    for indices in batches:
        batches.observe(10**6 + 3000 * len(indices) * int(READS[indices[0]]), GIB // 2)
    assert [] == list(batches)


def test_peaks_that_do_not_grow():
    """Where every batch needs the same, there are batches all the same, up to the largest there is."""
    batches, _, peaks = run(suggest_shapes(READS[:300], GIB), READS, lambda_step(GIB // 2))
    assert {GIB // 2} == set(peaks)
    assert 6 <= len(batches) <= 20


def lambda_step(peak):
    """Return a step that always needs the same."""
    step = Step(padded(0), 0)
    step.exact = lambda shape: peak
    step._rng = np.random.default_rng(0)
    return _Constant(peak)


class _Constant:
    fixed = 0

    def __init__(self, peak):
        self.peak = peak

    def __call__(self, shape):
        return self.peak


@pytest.mark.parametrize(
    "sizes",
    [
        [5],
        [5, 9],
        [9, 9],
        [1, 2, 3, 4, 5],
        [7] * 100,
        [0] * 10,
        [0, 0, 0, 5, 7, 9, 0],
        [[3, 4], [1, 0], [0, 0]],
        [0.0, 0.25, 1.5],
    ],
    ids=str,
)
def test_small_and_strange_data(sizes):
    """Few elements, elements all alike and elements of no size give the batches there are, and then an end."""
    batches, shapes, _ = run(suggest_shapes(sizes, GIB), sizes, Step(lambda shape: 1e6 * shape.items, 0.01))
    assert 1 <= len(batches) <= 20
    assert len(shapes) == len(set(shapes))
    assert max(map(len, batches)) <= len(sizes)


def test_all_sizes_equal_reach_the_budget():
    """Elements all alike differ in number alone, and fill the budget."""
    sizes = [70] * 3000
    step = Step(padded(10_000), 0.05)
    _, shapes, _ = run(suggest_shapes(sizes, GIB), sizes, step)
    assert 0.85 * GIB <= max(map(step.exact, shapes)) <= GIB


@pytest.mark.parametrize(
    "convert",
    [
        np.ndarray.tolist,
        tuple,
        torch.tensor,
        lambda sizes: sizes.astype(np.uint16),
        lambda sizes: sizes.astype(np.float32),
        lambda sizes: sizes[:, None],
        lambda sizes: torch.tensor(sizes)[:, None],
    ],
    ids=["list", "tuple", "tensor", "uint16", "float32", "column", "tensor column"],
)
def test_sizes_of_every_kind(convert):
    """Lists, arrays and tensors of any number type, also with one measure in a column, mean the same."""

    def suggested(sizes):
        batches, found = suggest_shapes(sizes, GIB, count=8), []
        for indices in batches:
            found.append(indices)
            batches.observe(50 * MIB + 3000 * len(indices) * int(READS[indices].max()), 50 * MIB)
        return found

    assert suggested(READS) == suggested(convert(READS))


def test_narrow_integers_do_not_wrap():
    """Sizes of one byte are summed and multiplied as they are."""
    sizes = np.full(5000, 255, dtype=np.uint8)
    step = Step(padded(1000), 0.05)
    _, shapes, _ = run(suggest_shapes(sizes, GIB), sizes.astype(np.int64), step)
    assert 0.85 * GIB <= max(map(step.exact, shapes)) <= GIB


def test_suggesting_leaves_the_sizes_alone():
    """The caller's sizes are neither sorted nor changed."""
    sizes = READS.copy()
    run(suggest_shapes(sizes, GIB, count=6), sizes, Step(padded(3000), 0.05))
    assert READS.tolist() == sizes.tolist()


def test_three_million_elements():
    """Of very many elements a part is looked at, which takes no longer than a few steps would."""
    sizes = np.random.default_rng(0).integers(50, 500, 3_000_000)
    batches, begin = suggest_shapes(sizes, 80 * GIB), time.process_time()
    for indices in batches:
        batches.observe(GIB + 3000 * len(indices) * int(sizes[indices].max()), GIB)
        assert max(indices) < 3_000_000
    # Ten times what it takes here.
    assert time.process_time() - begin < 30


def test_two_measures_are_shapes_with_two():
    """Sizes in two measures lead to batches whose measures both vary."""
    _, shapes, _ = run(suggest_shapes(MOLECULES, GIB), MOLECULES, Step(bonds(20_000), 0.05))
    assert 4 < len({shape.longest[0] for shape in shapes})
    assert 4 < len({shape.longest[1] for shape in shapes})


BAD_ARGUMENTS = {
    "sizes are None": ({"sizes": None}, ValueError, r"numbers, got an array of object of shape \(\)"),
    "sizes are text": ({"sizes": ["a"]}, ValueError, r"numbers, got an array of <U1 of shape \(1,\)"),
    "sizes are bools": ({"sizes": [True, False]}, ValueError, r"got an array of bool of shape \(2,\)"),
    "sizes are complex": ({"sizes": [1j]}, ValueError, r"got an array of complex128 of shape \(1,\)"),
    "sizes are one number": ({"sizes": 5}, ValueError, r"got an array of int64 of shape \(\)"),
    "sizes are empty": ({"sizes": []}, ValueError, r"got an array of float64 of shape \(0,\)"),
    "sizes have no measure": ({"sizes": np.ones((3, 0))}, ValueError, r"float64 of shape \(3, 0\)"),
    "sizes have three dimensions": ({"sizes": np.ones((1, 2, 3))}, ValueError, r"float64 of shape \(1, 2, 3\)"),
    "sizes are ragged": ({"sizes": [[1], [1, 2]]}, TypeError, "`sizes` must be numbers: setting an array element"),
    "sizes need a gradient": ({"sizes": torch.ones(3, requires_grad=True)}, TypeError, "numbers: .* requires grad"),
    "a size is negative": ({"sizes": [1, -1]}, ValueError, "finite and not negative, got -1 at index 1"),
    "a size is NaN": ({"sizes": [1, 2, np.nan]}, ValueError, "finite and not negative, got nan at index 2"),
    "a size in a column is infinite": ({"sizes": [[1, 1], [1, np.inf]]}, ValueError, "got inf at index 1"),
    "budget is zero": ({"budget": 0}, ValueError, "`budget` must be at least 1, got 0"),
    "budget is a share": ({"budget": 0.9}, TypeError, "`budget` must be an integer, got float"),
    "budget is text": ({"budget": "1GiB"}, TypeError, "`budget` must be an integer, got str"),
    "count is too small": ({"count": 3}, ValueError, "`count` must be at least 4, got 3"),
    "count is a fraction": ({"count": 20.0}, TypeError, "`count` must be an integer, got float"),
    "max_items is zero": ({"max_items": 0}, ValueError, "`max_items` must be at least 1, got 0"),
    "max_items is a bool": ({"max_items": True}, TypeError, "`max_items` must be an integer, got bool"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_wrong_arguments(case):
    """A wrong argument is refused at once, by an error that names it."""
    change, error, text = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=text):
        suggest_shapes(**{"sizes": [1, 2], "budget": GIB} | change)


def test_iterating_without_observing():
    """The next batch depends on the last one's peak: without it there is none."""
    batches = suggest_shapes(READS, GIB)
    assert 1 == len(next(batches))
    with pytest.raises(RuntimeError, match="needs to know each batch's peak: hand it to measure_peaks"):
        next(batches)
    batches.observe(MIB)
    assert 1 == len(next(batches))


def test_list_of_suggestions():
    """They cannot be listed beforehand."""
    with pytest.raises(RuntimeError, match="needs to know each batch's peak"):
        list(suggest_shapes(READS, GIB))


def test_observing_what_was_not_suggested():
    """A peak belongs to a batch: before the first one, and twice for the same one, it is refused."""
    batches = suggest_shapes(READS, GIB)
    with pytest.raises(RuntimeError, match="no batch whose peak could be observed"):
        batches.observe(MIB)
    next(batches)
    batches.observe(MIB)
    with pytest.raises(RuntimeError, match="no batch whose peak could be observed"):
        batches.observe(MIB)


def test_suggestions_are_consumed_once():
    """They are an iterator: it is its own, and at its end it stays there."""
    batches = suggest_shapes([5, 9], GIB)
    assert isinstance(batches, SuggestedShapes)
    assert batches is iter(batches)
    run(batches, [5, 9], Step(padded(1), 0.1))
    assert [] == list(batches)


def real_step(sizes):
    """Return a step on padded rows, which describes its batch."""
    layer = torch.nn.Linear(64, 64)

    def work(indices):
        shape = BatchShape.of(sizes[indices])
        layer(torch.ones(shape.items, shape.longest, 64)).relu().sum().backward()
        layer.zero_grad(set_to_none=True)
        return shape

    return work


def test_measuring_what_is_suggested():
    """`measure_peaks` tells the peaks, so that the batches fill the budget and a model of them is right."""
    work, budget = real_step(READS), 20 * MIB
    profile = measure_peaks(suggest_shapes(READS, budget), work, "cpu", progress=False)
    assert 12 <= len(profile) <= 20
    assert 0.85 * budget <= max(profile.peak_bytes) <= budget
    model = MemoryModel().fit(profile)
    unseen = measure_peaks([[3, 14, 15], list(range(40))], work, "cpu", progress=False)
    assert pytest.approx(unseen.peak_bytes, rel=0.02) == list(model.predict(unseen.features))


def test_measuring_what_runs_out_of_memory():
    """A suggested batch that runs out of memory is recorded, and smaller ones follow."""
    step, budget = real_step(READS), 20 * MIB

    def work(indices):
        if len(indices) * READS[indices].max() > 4000:
            raise MemoryError("more does not fit here")
        return step(indices)

    profile = measure_peaks(suggest_shapes(READS, budget, count=12), work, "cpu", progress=False)
    assert 1 <= [record.status for record in profile].count("oom") <= 4
    assert 6 <= len(profile.measured)


def test_suggestions_inside_another_iterable():
    """Hidden in a generator they cannot be told the peaks, which the error says."""
    batches = suggest_shapes(READS, GIB)
    with pytest.raises(RuntimeError, match="hand it to measure_peaks"):
        measure_peaks((indices for indices in batches), real_step(READS), "cpu", progress=False)


def test_step_that_allocates_nothing():
    """A step that never touches a tensor has peaks of nothing, and the measuring goes on to its end."""
    profile = measure_peaks(suggest_shapes(READS[:50], GIB), len, "cpu", progress=False)
    assert {0} == set(profile.peak_bytes)
