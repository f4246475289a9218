"""`create_buckets`, held against its documented contract."""

import inspect
import time

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching.utils import create_buckets

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def fastest(work, repeats=5):
    """Return the least time in seconds that `work` took."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def repeated(**counts):
    """Return sizes with so many elements each: `_3=5` gives five elements of size 3."""
    return torch.tensor([int(size[1:]) for size, count in counts.items() for _ in range(count)])


def test_signature():
    """Parameters have the documented names and order."""
    assert ["sizes", "max_width", "min_bucket_count"] == list(inspect.signature(create_buckets).parameters)


def test_documented_example_with_a_gap():
    """Wide empty ranges are cut at the maximum width, as documented."""
    sizes = torch.tensor([1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 22, 22, 22, 22])
    buckets = create_buckets(sizes, max_width=5, min_bucket_count=10)
    assert "tensor([ 1,  6, 11, 16, 21, 23])" == str(buckets.bucket_boundaries)
    assert "tensor([12,  0,  0,  0,  4])" == str(buckets.bucket_sizes)


def test_documented_example_with_a_minimum_count():
    """The minimum count makes buckets narrower than the maximum width, as documented."""
    buckets = create_buckets(torch.arange(20), max_width=10, min_bucket_count=5)
    assert "tensor([ 0,  5, 10, 15, 20])" == str(buckets.bucket_boundaries)
    assert "tensor([5, 5, 5, 5])" == str(buckets.bucket_sizes)


@pytest.mark.parametrize(
    ("sizes", "max_width", "min_count", "boundaries", "counts"),
    [
        pytest.param(torch.arange(10), 4, 10, [0, 4, 8, 10], [4, 4, 2], id="width before count"),
        pytest.param(repeated(_1=3, _2=4, _3=5), 1, 5, [1, 2, 3, 4], [3, 4, 5], id="width of one"),
        pytest.param(
            repeated(_1=3, _2=4, _3=5, _22=4, _31=1),
            5,
            10,
            [1, 6, 11, 16, 21, 26, 31, 32],
            [12, 0, 0, 0, 4, 0, 1],
            id="gaps",
        ),
        pytest.param(repeated(_1=3, _2=4, _3=5, _11=5), 20, 10, [1, 11, 12], [12, 5], id="count within width"),
        pytest.param(torch.tensor([7]), 3, 1, [7, 8], [1], id="one element"),
        pytest.param(torch.full((9,), 7), 3, 2, [7, 8], [9], id="one size"),
        pytest.param(torch.tensor([-3, -3, -1, 2]), 3, 2, [-3, -1, 2, 3], [2, 1, 1], id="negative sizes"),
        pytest.param(torch.tensor([0, 4]), 4, 9, [0, 4, 5], [1, 1], id="maximum on a boundary"),
        pytest.param(torch.tensor([0, 3]), 4, 9, [0, 4], [2], id="maximum under a boundary"),
    ],
)
def test_edges(sizes, max_width, min_count, boundaries, counts):
    """A bucket closes at the first existing size at which it is full, else at its maximum width."""
    buckets = create_buckets(sizes, max_width, min_count)
    assert boundaries == buckets.bucket_boundaries.tolist()
    assert counts == buckets.bucket_sizes.tolist()


def test_result_is_a_named_tuple():
    """Boundaries and counts come in a named tuple, in this order."""
    buckets = create_buckets(torch.arange(20), 10, 5)
    assert isinstance(buckets, tuple)
    assert ("bucket_boundaries", "bucket_sizes") == buckets._fields
    boundaries, counts = buckets
    assert boundaries is buckets.bucket_boundaries
    assert counts is buckets.bucket_sizes


def test_order_of_sizes_does_not_matter():
    """Shuffled sizes give the same buckets, and are left as they were."""
    sizes = torch.from_numpy(np.random.default_rng(0).permutation(20))
    before = sizes.clone()
    assert [0, 5, 10, 15, 20] == create_buckets(sizes, 10, 5).bucket_boundaries.tolist()
    assert torch.equal(before, sizes)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_boundaries_and_counts_are_int64(dtype):
    """Whatever the integer type of the sizes, the result is in int64."""
    buckets = create_buckets(torch.arange(20, dtype=dtype), 10, 5)
    assert (torch.int64, torch.int64) == (buckets.bucket_boundaries.dtype, buckets.bucket_sizes.dtype)
    assert [0, 5, 10, 15, 20] == buckets.bucket_boundaries.tolist()
    assert [5, 5, 5, 5] == buckets.bucket_sizes.tolist()


@pytest.mark.parametrize("dtype", INTEGERS[:-1])
def test_extremes_of_small_types_do_not_overflow(dtype):
    """The last boundary is one more than the type's maximum."""
    limits = torch.iinfo(dtype)
    sizes = torch.tensor([limits.min, limits.max, limits.max], dtype=dtype)
    buckets = create_buckets(sizes, 2**40, 5)
    assert [limits.min, limits.max + 1] == buckets.bucket_boundaries.tolist()
    assert [3] == buckets.bucket_sizes.tolist()


def test_counts_of_small_types_do_not_overflow():
    """A bucket of 300 elements of type uint8 has 300 elements."""
    buckets = create_buckets(torch.full((300,), 255, dtype=torch.uint8), 2, 1000)
    assert [255, 256] == buckets.bucket_boundaries.tolist()
    assert [300] == buckets.bucket_sizes.tolist()


@pytest.mark.parametrize("max_width", [2**62, 2**63 - 1, 2**63, 2**70])
def test_width_near_the_end_of_int64_does_not_overflow(max_width):
    """Adding a huge width to a boundary does not wrap around."""
    sizes = torch.tensor([2**62 + 5, 2**63 - 2])
    buckets = create_buckets(sizes, max_width, 5)
    assert [2**62 + 5, 2**63 - 1] == buckets.bucket_boundaries.tolist()
    assert [2] == buckets.bucket_sizes.tolist()


@pytest.mark.parametrize("sizes", [[1, 2, 3], np.arange(3), (1, 2), 5, None, "123"])
def test_no_tensor(sizes):
    """Sizes that are no tensor are a TypeError."""
    with pytest.raises(TypeError, match="sizes"):
        create_buckets(sizes, 5, 10)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param(torch.tensor([], dtype=torch.int64), id="empty"),
        pytest.param(torch.tensor([1.0, 2.0]), id="float"),
        pytest.param(torch.tensor([1.0, 2.0], dtype=torch.float16), id="half"),
        pytest.param(torch.tensor([1, 2], dtype=torch.complex64), id="complex"),
        pytest.param(torch.tensor([True, False]), id="bool"),
        pytest.param(torch.tensor([[1, 2], [3, 4]]), id="2-D"),
        pytest.param(torch.tensor(3), id="0-D"),
    ],
)
def test_sizes_that_are_no_list_of_integers(sizes):
    """Empty, fractional, complex, boolean and many-dimensional sizes are a ValueError."""
    with pytest.raises(ValueError, match="sizes"):
        create_buckets(sizes, 5, 10)


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, True, False, None, "3", float("nan")])
def test_width_must_be_a_positive_integer(value):
    """Zero, negative, fractional and boolean widths are a ValueError."""
    with pytest.raises(ValueError, match="max_width"):
        create_buckets(torch.arange(10), value, 5)


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, True, False, None, "3", float("nan")])
def test_minimum_count_must_be_a_positive_integer(value):
    """Zero, negative, fractional and boolean minimum counts are a ValueError."""
    with pytest.raises(ValueError, match="min_bucket_count"):
        create_buckets(torch.arange(10), 5, value)


@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_numpy_integers_as_width_and_count(kind):
    """Numpy's integers are integers."""
    assert [0, 5, 10, 15, 20] == create_buckets(torch.arange(20), kind(10), kind(5)).bucket_boundaries.tolist()


@pytest.mark.parametrize(("max_width", "min_count"), [(10, 5), (2**40, 2)])
def test_million_distinct_values_cost_about_a_sort(max_width, min_count):
    """A million distinct values take about as long as sorting them."""
    sizes = torch.from_numpy(np.random.default_rng(0).permutation(1_000_000))
    assert 1_000_000 == int(create_buckets(sizes, max_width, min_count).bucket_sizes.sum())
    slowest = 3 * fastest(lambda: torch.sort(sizes)) + 0.02
    assert fastest(lambda: create_buckets(sizes, max_width, min_count)) <= slowest
