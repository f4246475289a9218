"""Laws of size-aware batches and of buckets, over generated sizes, limits and orders."""

import itertools
import operator
import warnings
from fractions import Fraction
from functools import reduce

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SubsetRandomSampler

from bionemo.size_aware_batching.errors import SkippedElementsWarning
from bionemo.size_aware_batching.plan import plan_batches
from bionemo.size_aware_batching.sampler import BucketBatchSampler, SizeAwareBatchSampler, size_aware_batching
from bionemo.size_aware_batching.utils import create_buckets

LAW = settings(deadline=None, max_examples=120)
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
FLOATS = {np.float16: 16, np.float32: 32, np.float64: 64}
SAMPLERS = {
    "range": None,
    "list": list,
    "tuple": tuple,
    "ndarray": lambda order: np.array(order, dtype=np.int64),
    "uint8 ndarray": lambda order: np.array(order, dtype=np.uint8),
    "reversed view": lambda order: np.array(order[::-1], dtype=np.int32)[::-1],
    "tensor": lambda order: torch.tensor(order, dtype=torch.int64),
    "int16 tensor": lambda order: torch.tensor(order, dtype=torch.int16),
}


@st.composite
def integer_arrays(draw):
    """Sizes in an array of any integer type: mostly small, some near the type's maximum."""
    dtype = draw(st.sampled_from(INTEGERS))
    top = int(np.iinfo(dtype).max)
    size = st.integers(0, min(top, 40)) | st.integers(max(top - 3, 0), top)
    return np.array(draw(st.lists(size, max_size=24)), dtype=dtype)


@st.composite
def float_arrays(draw):
    """Sizes in an array of any floating point type, with fractions that do not add up exactly."""
    dtype = draw(st.sampled_from(sorted(FLOATS, key=FLOATS.get)))
    tenths = st.integers(0, 60).map(lambda tenth: tenth / 10)
    size = tenths | st.floats(0, 1000, width=FLOATS[dtype])
    return np.array(draw(st.lists(size, max_size=24)), dtype=dtype)


def total(sizes):
    """Add numbers from left to right, as a running sum does."""
    return reduce(operator.add, sizes, 0)


@st.composite
def limits(draw, sizes):
    """A positive limit at, just below or just above the sum of some neighbouring sizes, or any other."""
    low = draw(st.integers(0, len(sizes)))
    high = draw(st.integers(low, len(sizes)))
    near = total(sizes[low:high]) + draw(st.sampled_from([0, 0, -1, 1, 0.5]))
    limit = draw(st.sampled_from([near, near, near, float(near), 10, 37.5, 2**64, float("inf")]))
    return limit if limit > 0 else 1


@st.composite
def orders(draw, count):
    """A sampler over `count` elements: its kind, and a sequence of it that may repeat or leave out some."""
    kind = draw(st.sampled_from(sorted(SAMPLERS)))
    every = range(count)
    anyhow = st.lists(st.sampled_from(every), max_size=30) if count else st.just([])
    order = every if kind == "range" else draw(st.permutations(every) | anyhow)
    return kind, order


@st.composite
def problems(draw, arrays):
    """Sizes in an array, a limit, a sampler and the indices it gives."""
    array = draw(arrays)
    limit = draw(limits(array.tolist()))
    kind, order = draw(orders(len(array)))
    sampler = order if kind == "range" else SAMPLERS[kind](list(order))
    return array, limit, sampler, list(order)


numeric_problems = problems(integer_arrays() | float_arrays())


def check_laws(order, sizes, limit, batches):
    """Check the laws that only greedy batches obey: what is served, that it fits, and that no more does."""
    assert [index for index in order if sizes[index] <= limit] == list(itertools.chain.from_iterable(batches))
    assert [] not in batches
    totals = [total(sizes[index] for index in batch) for batch in batches]
    assert [] == [batch for batch, sum_ in zip(batches, totals, strict=True) if sum_ > limit]
    with_next = [sum_ + sizes[after[0]] for sum_, after in zip(totals, batches[1:], strict=False)]
    assert [] == [sum_ for sum_ in with_next if not sum_ > limit]


def drain(sampler, sizeof, limit):
    """Return a pass's batches and the number of messages about skipped elements."""
    messages = []
    return list(SizeAwareBatchSampler(sampler, sizeof, limit, warn_logger=messages.append)), len(messages)


@LAW
@given(numeric_problems)
def test_batches_of_a_callable_obey_the_laws(problem):
    """Batches keep the order, fit, could not hold the next element, and leave out exactly what cannot fit."""
    array, limit, sampler, order = problem
    sizes = array.tolist()
    check_laws(order, sizes, limit, drain(sampler, sizes.__getitem__, limit)[0])


@LAW
@given(numeric_problems)
def test_batches_of_an_array_obey_the_laws(problem):
    """The same laws hold for sizes in an array of any numeric type."""
    array, limit, sampler, order = problem
    check_laws(order, array.tolist(), limit, drain(sampler, array, limit)[0])


@LAW
@given(numeric_problems)
def test_array_and_callable_agree(problem):
    """Sizes in an array, a tensor, a list, a tuple or a dict cut where the same sizes from a callable do."""
    array, limit, sampler, _ = problem
    sizes = array.tolist()
    expected = drain(sampler, sizes.__getitem__, limit)
    assert expected == drain(sampler, array, limit)
    assert expected == drain(sampler, torch.from_numpy(array), limit)
    assert expected == drain(sampler, sizes, limit)
    assert expected == drain(sampler, tuple(sizes), limit)
    assert expected == drain(sampler, dict(enumerate(sizes)), limit)
    assert expected == drain(sampler, np.repeat(array, 2)[::2], limit)


@LAW
@given(problems(integer_arrays()))
def test_callable_that_gives_numpy_integers_agrees(problem):
    """A callable that picks from an array of a small integer type gives the batches of exact integers."""
    array, limit, sampler, _ = problem
    expected = drain(sampler, array.tolist().__getitem__, limit)
    assert expected == drain(sampler, lambda index: array[index], limit)


@LAW
@given(numeric_problems)
def test_sampler_and_generator_agree(problem):
    """The generator over the same order and sizes yields the sampler's batches."""
    array, limit, sampler, order = problem
    messages = []
    batches = list(size_aware_batching(order, array.tolist().__getitem__, limit, warn_logger=messages.append))
    assert (batches, len(messages)) == drain(sampler, array, limit)


@LAW
@given(numeric_problems)
def test_length_is_exact(problem):
    """`len` over a container of sizes is the number of batches."""
    array, limit, sampler, _ = problem
    count = len(drain(sampler, array, limit)[0])
    assert count == len(SizeAwareBatchSampler(sampler, array, limit))
    assert count == len(SizeAwareBatchSampler(sampler, array.tolist(), limit))


@LAW
@given(numeric_problems)
def test_skipped_elements_are_counted_in_one_warning(problem):
    """Without a logger a pass warns once if it skipped, with the count, and not at all if it did not."""
    array, limit, sampler, order = problem
    skipped = sum(array.tolist()[index] > limit for index in order)
    expected = [str(skipped)] * bool(skipped)
    for sizeof in (array, array.tolist().__getitem__):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            list(SizeAwareBatchSampler(sampler, sizeof, limit))
        assert [SkippedElementsWarning] * len(expected) == [warning.category for warning in caught]
        texts = [str(warning.message) for warning in caught]
        assert [True] * len(expected) == [count in text for count, text in zip(expected, texts, strict=True)]


@LAW
@given(
    st.lists(st.integers(0, 2**70) | st.integers(0, 50) | st.floats(0, 100) | st.fractions(0, 50), max_size=20),
    st.data(),
)
def test_python_numbers_of_all_kinds(sizes, data):
    """Lists that mix ints of any length, floats and fractions are added as Python adds them."""
    limit = data.draw(limits(sizes))
    batches, messages = drain(range(len(sizes)), sizes, limit)
    assert (batches, messages) == drain(range(len(sizes)), sizes.__getitem__, limit)
    check_laws(range(len(sizes)), sizes, limit, batches)


@LAW
@given(st.lists(st.integers(0, 40), max_size=40), st.integers(40, 200), st.sampled_from(INTEGERS))
def test_plan_in_order_cuts_like_the_sampler(sizes, budget, dtype):
    """A plan in order for the summed cost has the sampler's batches."""
    plan = plan_batches(np.array(sizes, dtype=dtype), budget=budget)
    assert drain(range(len(sizes)), sizes, budget)[0] == list(plan)


@st.composite
def bucket_problems(draw):
    """Sizes, boundaries that hold all of them, a limit that may be below some, and a seed."""
    sizes = draw(st.lists(st.integers(0, 30), min_size=1, max_size=60))
    inner = draw(st.sets(st.integers(1, 30), max_size=6))
    limit = draw(st.integers(1, 80))
    dtype = draw(st.sampled_from([torch.uint8, torch.int16, torch.int64, torch.float32]))
    boundaries = draw(st.permutations(sorted({0, 31} | inner)))
    return torch.tensor(sizes, dtype=dtype), torch.tensor(boundaries), limit, draw(st.integers(0, 2**32 - 1))


def size_aware_buckets(sizes, boundaries, sizeof, limit, generator, shuffle=True):
    return BucketBatchSampler(
        sizes,
        boundaries,
        SizeAwareBatchSampler,
        {"sizeof": sizeof, "max_total_size": limit, "warn_logger": lambda message: None},
        shuffle=shuffle,
        generator=generator,
    )


@LAW
@given(bucket_problems())
def test_buckets_with_array_and_callable_agree(problem):
    """From one seed, container and callable give the same passes and the same end of the generator."""
    sizes, boundaries, limit, seed = problem
    ends, passes = [], []
    for sizeof in (sizes.tolist().__getitem__, sizes.tolist(), sizes.numpy(), sizes):
        generator = torch.Generator().manual_seed(seed)
        sampler = size_aware_buckets(sizes, boundaries, sizeof, limit, generator)
        passes.append([list(sampler), list(sampler)])
        ends.append(generator.get_state().tolist())
    assert [passes[0]] * 3 == passes[1:]
    assert [ends[0]] * 3 == ends[1:]


@LAW
@given(bucket_problems())
def test_buckets_in_order_are_batched_one_after_the_other(problem):
    """Unshuffled, the pass is each bucket's greedy batches in ascending order of buckets."""
    sizes, boundaries, limit, _ = problem
    values = sizes.tolist()
    expected = []
    for low, high in itertools.pairwise(sorted(boundaries.tolist())):
        members = [index for index, size in enumerate(values) if low <= size < high]
        expected += drain(members, values.__getitem__, limit)[0]
    for sizeof in (values.__getitem__, sizes.numpy()):
        sampler = size_aware_buckets(sizes, boundaries, sizeof, limit, None, shuffle=False)
        assert expected == list(sampler)
        assert len(expected) == len(list(sampler))


@LAW
@given(bucket_problems())
def test_shuffled_buckets_serve_each_element_once_and_never_mix(problem):
    """Every element that can fit is served once a pass, in a batch of its own bucket, within the limit."""
    sizes, boundaries, limit, seed = problem
    values, edges = sizes.tolist(), sorted(boundaries.tolist())
    sampler = size_aware_buckets(sizes, boundaries, sizes, limit, torch.Generator().manual_seed(seed))
    for _ in range(2):
        batches = list(sampler)
        served = sorted(itertools.chain.from_iterable(batches))
        assert [index for index, size in enumerate(values) if size <= limit] == served
        assert [1] * len(batches) == [
            len({int(np.searchsorted(edges, values[index], side="right")) for index in batch}) for batch in batches
        ]
        assert [] == [batch for batch in batches if sum(values[index] for index in batch) > limit]


@LAW
@given(bucket_problems(), st.booleans())
def test_length_of_buckets_is_that_of_the_next_pass(problem, shuffle):
    """Before each pass `len` is the number of batches that the pass then has, and asking draws nothing."""
    sizes, boundaries, limit, seed = problem
    generator, undisturbed = (torch.Generator().manual_seed(seed) for _ in range(2))
    sampler = size_aware_buckets(sizes, boundaries, sizes, limit, generator, shuffle)
    twin = size_aware_buckets(sizes, boundaries, sizes, limit, undisturbed, shuffle)
    for _ in range(3):
        expected = [batch for batch in twin]  # noqa: C416 - list() would ask for the length
        assert len(expected) == len(sampler)
        assert expected == list(sampler)
        assert torch.equal(undisturbed.get_state(), generator.get_state())


@LAW
@given(bucket_problems(), st.integers(1, 9), st.booleans(), st.booleans())
def test_buckets_of_fixed_batches(problem, batch_size, drop_last, shuffle):
    """Around torch's own BatchSampler `len` is exact and each bucket yields what it alone would yield."""
    sizes, boundaries, _, seed = problem
    sampler = BucketBatchSampler(
        sizes,
        boundaries,
        BatchSampler,
        {"batch_size": batch_size, "drop_last": drop_last},
        shuffle=shuffle,
        generator=torch.Generator().manual_seed(seed),
    )
    batches = list(sampler)
    assert len(batches) == len(sampler)
    lengths = sorted(
        len(batch)
        for members in sampler.bucket_element_indices
        for batch in BatchSampler(list(members), batch_size, drop_last)
    )
    assert lengths == sorted(map(len, batches))


@LAW
@given(bucket_problems())
def test_bucket_attributes_count_right(problem):
    """Members and counts of buckets are those of a histogram with the same edges."""
    sizes, boundaries, limit, _ = problem
    sampler = size_aware_buckets(sizes, boundaries, sizes, limit, None)
    edges = sorted(boundaries.tolist())
    # The histogram's last bin is closed; all sizes are below the last edge, so it makes no difference.
    assert np.histogram(sizes.numpy(), bins=edges)[0].tolist() == sampler.bucket_sizes.tolist()
    members = [
        [index for index, size in enumerate(sizes.tolist()) if low <= size < high]
        for low, high in itertools.pairwise(edges)
    ]
    assert members == [list(indices) for indices in sampler.bucket_element_indices]
    assert len(sizes) == sampler.num_samples


@LAW
@given(bucket_problems(), st.integers(0, 2**32 - 1))
def test_base_sampler_with_draws_of_its_own_is_left_alone(problem, other):
    """The shuffle of buckets does not touch the generator of a random sampler that is batched elsewhere."""
    sizes, boundaries, limit, seed = problem
    mine = torch.Generator().manual_seed(other)
    before = mine.get_state()
    random = SubsetRandomSampler(range(len(sizes)), generator=mine)
    list(size_aware_buckets(sizes, boundaries, sizes, limit, torch.Generator().manual_seed(seed)))
    assert torch.equal(before, mine.get_state())
    assert list(range(len(sizes))) == sorted(itertools.chain.from_iterable(SizeAwareBatchSampler(random, sizes, 31)))


@st.composite
def bucketable(draw):
    """Integer sizes, a width that does not make millions of buckets, and a minimum count."""
    start = draw(st.sampled_from([-1000, -3, 0, 1, 200, 2**40]))
    offsets = draw(st.lists(st.integers(0, 12) | st.integers(0, 300), min_size=1, max_size=80))
    sizes = [start + offset for offset in offsets]
    return torch.tensor(sizes), draw(st.integers(1, 30) | st.integers(1, 400)), draw(st.integers(1, 40))


@LAW
@given(bucketable())
def test_buckets_cover_the_sizes(problem):
    """Boundaries rise from the least size to one past the greatest, never further apart than the width."""
    sizes, max_width, min_count = problem
    edges = create_buckets(sizes, max_width, min_count).bucket_boundaries.tolist()
    assert (int(sizes.min()), int(sizes.max()) + 1) == (edges[0], edges[-1])
    assert [] == [low for low, high in itertools.pairwise(edges) if not 0 < high - low <= max_width]


@LAW
@given(bucketable())
def test_bucket_counts_are_those_of_a_histogram(problem):
    """Counts are numpy's histogram over the same edges, and add up to all sizes."""
    sizes, max_width, min_count = problem
    buckets = create_buckets(sizes, max_width, min_count)
    edges = buckets.bucket_boundaries.numpy()
    counts = buckets.bucket_sizes.tolist()
    assert np.histogram(sizes.numpy(), bins=edges)[0].tolist() == counts
    assert len(sizes) == sum(counts)


@LAW
@given(bucketable())
def test_only_wide_and_last_buckets_are_short(problem):
    """A bucket has the minimum count unless it is as wide as may be, or the last."""
    sizes, max_width, min_count = problem
    edges, counts = (part.tolist() for part in create_buckets(sizes, max_width, min_count))
    widths = [high - low for low, high in itertools.pairwise(edges)]
    full = [count >= min_count or width == max_width for count, width in zip(counts, widths, strict=True)]
    assert [True] * (len(counts) - 1) == full[:-1]


@LAW
@given(bucketable())
def test_buckets_end_at_the_first_size_at_which_they_are_full(problem):
    """A bucket ends at the first size within the width that finds it full, else at the width."""
    sizes, max_width, min_count = problem
    values = sizes.tolist()
    end = max(values) + 1
    edges = [min(values)]
    while edges[-1] < end:
        low = edges[-1]
        closing = [
            size
            for size in sorted(set(values))
            if low < size <= low + max_width and sum(low <= value < size for value in values) >= min_count
        ]
        edges.append(min([*closing, low + max_width, end]))
    assert edges == create_buckets(sizes, max_width, min_count).bucket_boundaries.tolist()


@LAW
@given(bucketable(), st.integers(0, 1000))
def test_buckets_do_not_depend_on_order_or_type(problem, seed):
    """Shuffled sizes, and sizes in a smaller integer type, give the same buckets."""
    sizes, max_width, min_count = problem
    shifted = sizes - sizes.min()
    expected = [part.tolist() for part in create_buckets(shifted, max_width, min_count)]
    shuffled = shifted[torch.from_numpy(np.random.default_rng(seed).permutation(len(sizes)))]
    assert expected == [part.tolist() for part in create_buckets(shuffled, max_width, min_count)]
    small = shuffled.to(torch.int16)
    assert expected == [part.tolist() for part in create_buckets(small, max_width, min_count)]


@LAW
@given(bucketable())
def test_created_buckets_fit_the_bucket_sampler(problem):
    """`BucketBatchSampler` finds the counts that `create_buckets` returned, with every size in range."""
    sizes, max_width, min_count = problem
    buckets = create_buckets(sizes, max_width, min_count)
    sampler = BucketBatchSampler(
        sizes, buckets.bucket_boundaries, BatchSampler, {"batch_size": 4, "drop_last": False}, shuffle=False
    )
    assert torch.equal(buckets.bucket_sizes, sampler.bucket_sizes)
    assert list(range(len(sizes))) == sorted(itertools.chain.from_iterable(sampler))


def test_running_sum_of_the_oracle():
    """The oracle adds from left to right, without the compensation that newer Pythons' `sum` has."""
    assert 0.1 + 0.2 + 0.3 == total([0.1, 0.2, 0.3])
    assert Fraction(1, 2) + 1 == total([Fraction(1, 2), 1])
