"""`SizeAwareBatchSampler`, held against its documented contract."""

import inspect
import itertools
import pickle
import time

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler

from bionemo.size_aware_batching.errors import SizeofError, SkippedElementsWarning
from bionemo.size_aware_batching.sampler import SizeAwareBatchSampler, size_aware_batching

PAIRS = [torch.tensor([first, first + 1]) for first in (1, 3, 5, 7, 9)]
SIZES = [3, 1, 2, 2, 5, 1]
WITHIN_FIVE = [[0, 1], [2, 3], [4], [5]]


class Endless(Sampler):
    """A sampler without an end that counts how far it was read."""

    def __init__(self):
        self.read = 0

    def __iter__(self):
        for index in itertools.count():
            self.read += 1
            yield index % len(SIZES)


class Unsized:
    """An iterable of indices that has no length."""

    def __iter__(self):
        return iter(range(len(SIZES)))


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def size_of(index):
    return SIZES[index]


def refuse(index):
    raise ZeroDivisionError("no size known")


def fastest(work, repeats=7):
    """Return the least time in seconds that `work` took."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def test_documented_example():
    """The documented five pairs come out as two full batches and a rest."""
    sampler = SizeAwareBatchSampler(
        sampler=SequentialSampler(PAIRS), sizeof=lambda index: PAIRS[index].numel(), max_total_size=4
    )
    assert "[[0, 1], [2, 3], [4]]" == str(list(sampler))


def test_signature():
    """Parameters have the documented names, order and defaults."""
    parameters = inspect.signature(SizeAwareBatchSampler).parameters
    expected = ["sampler", "sizeof", "max_total_size", "info_logger", "warn_logger"]
    assert expected == list(parameters)
    assert [None, None] == [parameters[name].default for name in expected[3:]]


def test_is_a_torch_sampler():
    """A DataLoader takes it for what it is: a Sampler."""
    assert isinstance(SizeAwareBatchSampler(range(6), SIZES, 5), Sampler)


@pytest.mark.parametrize(
    "sizeof",
    [
        pytest.param(size_of, id="callable"),
        pytest.param(dict(enumerate(SIZES)), id="dict"),
        pytest.param(SIZES, id="list"),
        pytest.param(tuple(SIZES), id="tuple"),
        pytest.param(np.array(SIZES), id="ndarray"),
        pytest.param(np.array(SIZES, dtype=np.float32), id="float32"),
        pytest.param(torch.tensor(SIZES), id="tensor"),
        pytest.param(torch.tensor(SIZES, dtype=torch.uint8), id="uint8 tensor"),
        pytest.param(torch.tensor(SIZES, dtype=torch.bfloat16), id="bfloat16 tensor"),
    ],
)
def test_kinds_of_sizeof(sizeof):
    """Sizes by index come from a call, a mapping or a sequence alike."""
    assert WITHIN_FIVE == list(SizeAwareBatchSampler(range(6), sizeof, 5))


@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param(SequentialSampler(SIZES), id="Sampler"),
        pytest.param(range(6), id="range"),
        pytest.param([0, 1, 2, 3, 4, 5], id="list"),
        pytest.param((0, 1, 2, 3, 4, 5), id="tuple"),
        pytest.param(np.arange(6), id="int64 array"),
        pytest.param(np.arange(6, dtype=np.uint8), id="uint8 array"),
        pytest.param(np.arange(12, dtype=np.int32)[::2] // 2, id="strided array"),
        pytest.param(torch.arange(6), id="tensor"),
        pytest.param(torch.arange(6, dtype=torch.int16), id="int16 tensor"),
        pytest.param(list(np.arange(6)), id="list of numpy ints"),
        pytest.param(list(torch.arange(6)), id="list of tensors"),
        pytest.param(Unsized(), id="iterable"),
        pytest.param(dict.fromkeys(range(6)), id="dict keys"),
    ],
)
@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_indices_are_plain_ints(sampler, sizeof):
    """Whatever the indices come from, batches are lists of Python's own int."""
    batches = list(SizeAwareBatchSampler(sampler, sizeof, 5))
    assert WITHIN_FIVE == batches
    assert {list} == {type(batch) for batch in batches}
    assert {int} == {type(index) for batch in batches for index in batch}


def test_callable_gets_the_index():
    """A callable is asked with the index that the sampler gave, each once and in order."""
    asked = []

    def sizeof(index):
        asked.append(index)
        return 1

    list(SizeAwareBatchSampler([7, 3, 5], sizeof, 2))
    assert [7, 3, 5] == asked


@pytest.mark.parametrize("order", [range(5, -1, -1), [5, 4, 3, 2, 1, 0], np.arange(6)[::-1]])
@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_order_of_the_sampler_is_kept(order, sizeof):
    """Indices are served in the order of the underlying sampler."""
    assert [[5], [4], [3, 2, 1], [0]] == list(SizeAwareBatchSampler(order, sizeof, 5))


def test_repeated_indices_are_served_as_often_as_they_come():
    """A sampler with replacement has every draw served."""
    assert [[4], [4], [0, 1, 1], [0]] == list(SizeAwareBatchSampler([4, 4, 0, 1, 1, 0], SIZES, 5))


@pytest.mark.parametrize("sizeof", [lambda index: SIZES[index], SIZES, np.array(SIZES)])
def test_reads_no_further_than_the_element_that_does_not_fit(sizeof):
    """An endless sampler is served lazily, one index ahead at most."""
    sampler = Endless()
    batches = iter(SizeAwareBatchSampler(sampler, sizeof, 5))
    assert [0, 1] == next(batches)
    assert 3 == sampler.read
    assert [2, 3] == next(batches)
    assert 5 == sampler.read


def test_agrees_with_the_generator():
    """Sampler and generator cut the same order at the same places."""
    expected = list(size_aware_batching(range(6), size_of, 6))
    assert expected == list(SizeAwareBatchSampler(range(6), size_of, 6))


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_each_pass_starts_anew(sizeof):
    """A pass that was left early does not shorten the next."""
    sampler = SizeAwareBatchSampler(range(6), sizeof, 5)
    next(iter(sampler))
    assert WITHIN_FIVE == list(sampler)
    assert WITHIN_FIVE == list(sampler)


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_two_iterators_do_not_disturb_each_other(sizeof):
    """Passes that run side by side each see everything."""
    sampler = SizeAwareBatchSampler(range(6), sizeof, 5)
    assert [(batch, batch) for batch in WITHIN_FIVE] == list(zip(sampler, sampler, strict=True))


def test_each_pass_asks_a_random_sampler_anew():
    """Epochs differ as the underlying sampler's epochs do."""
    sampler = SizeAwareBatchSampler(RandomSampler(range(50), generator=torch.Generator().manual_seed(1)), [1] * 50, 5)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert sorted(flat(first)) == sorted(flat(second))


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_one_shot_iterator_serves_one_pass_and_then_says_so(sizeof):
    """A second pass over an iterator that is used up is an error, not an empty epoch."""
    sampler = SizeAwareBatchSampler(iter(range(6)), sizeof, 5)
    assert WITHIN_FIVE == list(sampler)
    with pytest.raises(RuntimeError, match="iterator"):
        list(sampler)


@pytest.mark.parametrize("kind", ["callable", "list", "ndarray", "tensor"])
def test_skipped_elements_are_logged_one_by_one_and_counted(kind):
    """`warn_logger` hears of index, size and limit of each, and of the count at the end."""
    sizes = [3, 777, 2, 888, 3]
    sizeof = {
        "callable": sizes.__getitem__,
        "list": sizes,
        "ndarray": np.array(sizes),
        "tensor": torch.tensor(sizes),
    }
    messages = []
    sampler = SizeAwareBatchSampler(range(5), sizeof[kind], 5, warn_logger=messages.append)
    assert [[0, 2], [4]] == list(sampler)
    assert 3 == len(messages)
    assert [True] * 3 == [word in messages[0] for word in ("1", "777", "5")]
    assert [True] * 3 == [word in messages[1] for word in ("3", "888", "5")]
    assert "2" in messages[2]


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_skipped_elements_are_reported_without_a_logger(sizeof):
    """Every pass that skips ends with one warning that has the count."""
    sampler = SizeAwareBatchSampler(range(6), sizeof, 2)
    for _ in range(2):
        with pytest.warns(SkippedElementsWarning, match="2") as caught:
            assert [[1], [2], [3], [5]] == list(sampler)
        assert 1 == len(caught)


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_warn_logger_is_silent_when_all_fit(sizeof):
    """Without a skipped element there is nothing to warn of."""
    messages = []
    list(SizeAwareBatchSampler(range(6), sizeof, 5, warn_logger=messages.append))
    assert [] == messages


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_info_logger_gets_one_summary_a_pass(sizeof):
    """Each complete pass ends with one summary, which has the number of batches."""
    messages = []
    sampler = SizeAwareBatchSampler(range(6), sizeof, 5, info_logger=messages.append)
    batches = iter(sampler)
    assert WITHIN_FIVE == list(itertools.islice(batches, 4))
    assert [] == messages
    assert None is next(batches, None)
    assert 1 == len(messages)
    assert "4" in messages[0]
    list(sampler)
    assert 2 == len(messages)


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_everything_over_the_limit_gives_no_batch(sizeof):
    """A pass that skips everything has no batch, not an empty one."""
    messages = []
    assert [] == list(SizeAwareBatchSampler(range(6), sizeof, 0.5, warn_logger=messages.append))
    assert 7 == len(messages)


@pytest.mark.parametrize("sampler", [range(0), [], np.arange(0), torch.arange(0)])
@pytest.mark.parametrize("sizeof", [size_of, [], np.array([]), {}], ids=["callable", "list", "ndarray", "dict"])
def test_empty_sampler_gives_no_batch(sampler, sizeof):
    """No index means no batch."""
    assert [] == list(SizeAwareBatchSampler(sampler, sizeof, 5))


@pytest.mark.parametrize("limit", ["4", None, True, False, 4j, [4], float("nan"), 0, 0.0, -1, -0.5, -(2**70)])
@pytest.mark.parametrize("sizeof", [size_of, None, 3])
def test_bad_limit(limit, sizeof):
    """A limit that is not a positive real number is a ValueError, raised before `sizeof` is looked at."""
    with pytest.raises(ValueError, match="max_total_size"):
        SizeAwareBatchSampler(range(6), sizeof, limit)


@pytest.mark.parametrize("limit", [np.int16(5), np.float32(5), 5.9, np.uint8(5)])
@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
def test_real_limits(limit, sizeof):
    """Numpy's numbers and fractions of a size are limits like any other."""
    assert WITHIN_FIVE == list(SizeAwareBatchSampler(range(6), sizeof, limit))


@pytest.mark.parametrize("sizeof", [size_of, SIZES, np.array(SIZES)], ids=["callable", "list", "ndarray"])
@pytest.mark.parametrize("limit", [float("inf"), 2**100, 1e300])
def test_a_limit_beyond_all_sizes_gives_one_batch(sizeof, limit):
    """Infinity and numbers beyond 64 bits are limits too."""
    assert [[0, 1, 2, 3, 4, 5]] == list(SizeAwareBatchSampler(range(6), sizeof, limit))


@pytest.mark.parametrize("sizeof", [None, 3, "123456", b"123456", {1, 2}, 1.5, object(), iter([1])])
def test_sizeof_of_the_wrong_kind(sizeof):
    """What is neither callable nor mapping nor sequence is a TypeError."""
    with pytest.raises(TypeError, match=r"^sizeof must be a callable"):
        SizeAwareBatchSampler(range(6), sizeof, 5)


@pytest.mark.parametrize("sampler", [None, 5, 1.5, object(), "012345", len])
def test_sampler_of_the_wrong_kind(sampler):
    """What cannot be iterated is a TypeError, and so is text."""
    with pytest.raises(TypeError, match="sampler"):
        SizeAwareBatchSampler(sampler, size_of, 5)


def test_error_inside_sizeof_is_chained():
    """A failing `sizeof` gives a RuntimeError that shows the index and keeps the original as its cause."""
    with pytest.raises(RuntimeError, match=r"^sizeof raises error at data=3\b") as caught:
        list(SizeAwareBatchSampler([3, 4], refuse, 5))
    assert SizeofError is caught.type
    assert ZeroDivisionError is type(caught.value.__cause__)


def test_error_inside_sizeof_shortens_the_index():
    """A key with a very long repr does not flood the error."""
    with pytest.raises(RuntimeError, match=r"^sizeof raises error at data=") as caught:
        list(SizeAwareBatchSampler([10**3000], refuse, 5))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("sizeof", [dict(enumerate(SIZES)), SIZES, np.array(SIZES), torch.tensor(SIZES)])
def test_index_without_a_size(sizeof):
    """An index beyond the sizes is an error, never somebody else's size."""
    with pytest.raises((LookupError, RuntimeError), match=r"out of (range|bounds)|\b6\b"):
        list(SizeAwareBatchSampler(range(7), sizeof, 5))


@pytest.mark.parametrize("size", ["3", None, [3]])
def test_size_that_cannot_be_compared(size):
    """Python's own TypeError passes through when a size and the limit have no order."""
    with pytest.raises(TypeError, match="'>' not supported"):
        list(SizeAwareBatchSampler([0], lambda _: size, 4))


@pytest.mark.parametrize("kind", [list, tuple, lambda sizes: dict(enumerate(sizes))])
def test_size_in_a_container_that_cannot_be_compared(kind):
    """Text in a container of sizes gives the same TypeError as from a call."""
    with pytest.raises(TypeError, match="'>' not supported"):
        list(SizeAwareBatchSampler([0, 1], kind(["3", "4"]), 4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), -1, -0.25])
@pytest.mark.parametrize("limit", [100, float("inf")])
@pytest.mark.parametrize("kind", ["callable", "dict", "list", "ndarray", "float32", "tensor"])
def test_sizes_that_are_no_sizes(bad, limit, kind):
    """A NaN, infinite or negative size is a ValueError that names the index; it never defeats the limit."""
    sizes = [1.0, 2.0, bad, 1.0]
    sizeof = {
        "callable": sizes.__getitem__,
        "dict": dict(enumerate(sizes)),
        "list": sizes,
        "ndarray": np.array(sizes),
        "float32": np.array(sizes, dtype=np.float32),
        "tensor": torch.tensor(sizes),
    }
    with pytest.raises(ValueError, match=r"\b2\b"):
        list(SizeAwareBatchSampler(range(4), sizeof[kind], limit))


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_negative_integers_are_no_sizes(dtype):
    """A negative size in an integer array is a ValueError that names the index."""
    with pytest.raises(ValueError, match=r"\b3\b"):
        list(SizeAwareBatchSampler(range(4), np.array([1, 2, 0, -7], dtype=dtype), 100))


@pytest.mark.parametrize(
    ("sampler", "count"), [(range(6), 4), ([0, 1], 1), (np.arange(6), 4), (torch.arange(6), 4), ([], 0)]
)
@pytest.mark.parametrize("sizeof", [SIZES, tuple(SIZES), np.array(SIZES), torch.tensor(SIZES), dict(enumerate(SIZES))])
def test_length_is_exact_for_a_sized_sampler_and_container_sizes(sampler, count, sizeof):
    """`len` is the number of batches that a pass has."""
    batches = SizeAwareBatchSampler(sampler, sizeof, 5)
    assert count == len(batches)
    assert count == len(list(batches))


def test_length_counts_out_skipped_elements():
    """`len` knows what a pass will skip, and says nothing about it."""
    messages = []
    sampler = SizeAwareBatchSampler(
        SequentialSampler(SIZES), SIZES, 2, info_logger=messages.append, warn_logger=messages.append
    )
    assert 4 == len(sampler)
    assert [] == messages
    assert 4 == len(SizeAwareBatchSampler(SequentialSampler(SIZES), SIZES, 2))


def test_length_with_a_callable_says_why_not():
    """With a callable, counting would cost a pass of calls, so there is no length."""
    with pytest.raises(TypeError, match=r"sizeof|function"):
        len(SizeAwareBatchSampler(range(6), size_of, 5))


def test_length_without_the_samplers_length_says_why_not():
    """A sampler without a length gives none to its batches."""
    with pytest.raises(TypeError, match="sampler"):
        len(SizeAwareBatchSampler(Unsized(), SIZES, 5))


@pytest.mark.parametrize("random", [RandomSampler(SIZES), SubsetRandomSampler(range(6))])
def test_length_over_a_random_sampler_says_why_not(random):
    """Counting a random pass would draw another order than the pass does, so there is no length."""
    state = torch.random.get_rng_state()
    with pytest.raises(TypeError, match=r"random|another order"):
        len(SizeAwareBatchSampler(random, SIZES, 5))
    assert torch.equal(state, torch.random.get_rng_state())


def test_length_draws_nothing_from_the_samplers_generator():
    """Asking for the length in vain leaves the next pass as it would have been."""
    generator = torch.Generator().manual_seed(3)
    with pytest.raises(TypeError, match=r"random|another order"):
        len(SizeAwareBatchSampler(RandomSampler(SIZES, generator=generator), SIZES, 5))
    assert torch.equal(torch.Generator().manual_seed(3).get_state(), generator.get_state())


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_integer_types_do_not_wrap(dtype):
    """Two sizes near the type's maximum add up to more than it can hold."""
    top = int(np.iinfo(dtype).max)
    sizes = np.array([top, top, 1], dtype=dtype)
    assert [[0], [1], [2]] == list(SizeAwareBatchSampler(range(3), sizes, top))
    assert [[0], [1, 2]] == list(SizeAwareBatchSampler(range(3), sizes, top + 1))
    assert [[0, 1], [2]] == list(SizeAwareBatchSampler(range(3), sizes, 2 * top))
    assert [[0, 1, 2]] == list(SizeAwareBatchSampler(range(3), sizes, 2 * top + 1))
    assert [[0], [1], [2]] == list(SizeAwareBatchSampler(range(3), lambda index: sizes[index], top))


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor], ids=["list", "ndarray", "tensor"])
def test_large_integers_are_exact(kind):
    """One more than the largest exact float makes the difference."""
    sizes = kind([2**53, 1, 2**53 + 1])
    messages = []
    sampler = SizeAwareBatchSampler(range(3), sizes, 2**53, warn_logger=messages.append)
    assert [[0], [1]] == list(sampler)
    assert [[0], [1]] == list(SizeAwareBatchSampler(range(3), sizes, 2.0**53, warn_logger=messages.append))
    assert [[0, 1], [2]] == list(SizeAwareBatchSampler(range(3), sizes, 2**53 + 1))


@pytest.mark.parametrize("sizeof", [SIZES, np.array(SIZES), torch.tensor(SIZES)], ids=["list", "array", "tensor"])
def test_pickles(sizeof):
    """A copy through pickle serves the same batches."""
    sampler = SizeAwareBatchSampler(range(6), sizeof, 5)
    assert WITHIN_FIVE == list(pickle.loads(pickle.dumps(sampler)))  # noqa: S301


def test_repr_shows_the_constructor():
    """The repr names the class and the limit, and does not print the sizes."""
    text = repr(SizeAwareBatchSampler(range(100_000), np.arange(1, 100_001), 123_456))
    assert text.startswith("SizeAwareBatchSampler(")
    assert "123456" in text.replace("_", "")
    assert len(text) < 1000


def test_works_over_the_indices_that_another_batch_sampler_cut():
    """A batch of another batch sampler is a sampler like any other list."""
    outer = BatchSampler(SequentialSampler(range(6)), batch_size=4, drop_last=False)
    assert [[[0, 1], [2, 3]], [[4], [5]]] == [list(SizeAwareBatchSampler(part, SIZES, 5)) for part in outer]


@pytest.mark.parametrize("source", ["range", "ndarray", "tensor"])
def test_speed_of_a_pass_over_arrays(source):
    """A whole pass costs at most 2.5 times what turning the same indices into a list costs."""
    count = 1_000_000
    indices = torch.arange(count)
    sizes = np.random.default_rng(0).integers(20, 60, count)
    order = {"range": range(count), "ndarray": indices.numpy(), "tensor": indices}[source]
    sampler = SizeAwareBatchSampler(order, sizes, 1600)
    assert count == sum(map(len, sampler))
    assert fastest(lambda: [None for _ in sampler]) <= 2.5 * fastest(indices.tolist)
