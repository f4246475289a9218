"""What users reported about buckets, one situation a test."""

import itertools

import pytest
import torch
from torch.utils.data import BatchSampler

from bionemo.size_aware_batching.errors import OutOfRangeWarning
from bionemo.size_aware_batching.sampler import BucketBatchSampler, SizeAwareBatchSampler

BASES = pytest.mark.parametrize(
    ("base", "arguments"),
    [
        pytest.param(BatchSampler, {"batch_size": 4, "drop_last": False}, id="BatchSampler"),
        pytest.param(SizeAwareBatchSampler, {"sizeof": [1] * 26, "max_total_size": 4}, id="SizeAwareBatchSampler"),
    ],
)


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def make(sizes, boundaries, base, arguments, shuffle):
    return BucketBatchSampler(
        torch.tensor(sizes),
        torch.tensor(boundaries),
        base,
        arguments,
        shuffle=shuffle,
        generator=torch.Generator().manual_seed(0),
    )


@BASES
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(
    ("boundaries", "counts"),
    [
        pytest.param([-25, 0, 25, 50], [0, 25, 0], id="both ends"),
        pytest.param([-25, 0, 25], [0, 25], id="first"),
        pytest.param([0, 25, 50], [25, 0], id="last"),
    ],
)
def test_k1_first_or_last_bucket_is_empty(base, arguments, shuffle, boundaries, counts):
    """Boundaries reach beyond the sizes on either side, and the empty buckets there broke the pass."""
    sampler = make(list(range(25)), boundaries, base, arguments, shuffle)
    for _ in range(2):
        batches = list(sampler)
        assert 7 == len(batches)
        assert list(range(25)) == sorted(flat(batches))
    assert counts == sampler.bucket_sizes.tolist()
    assert len(counts) == sampler.num_buckets


@BASES
@pytest.mark.parametrize("shuffle", [True, False])
def test_k2_more_buckets_than_elements(base, arguments, shuffle):
    """A small data set met ten buckets made for a large one."""
    sampler = make([5, 55, 52], list(range(0, 101, 10)), base, arguments, shuffle)
    for _ in range(2):
        assert [[0], [1, 2]] == sorted(sorted(batch) for batch in sampler)
    assert 10 == sampler.num_buckets
    assert [1, 0, 0, 0, 0, 2, 0, 0, 0, 0] == sampler.bucket_sizes.tolist()


@BASES
@pytest.mark.parametrize("shuffle", [True, False])
def test_k3_size_equal_to_the_last_boundary(base, arguments, shuffle):
    """The greatest size equals the last boundary, lies in no bucket, and was lost in silence."""
    with pytest.warns(OutOfRangeWarning, match=r"\b1\b") as caught:
        sampler = make(list(range(26)), [0, 6, 15, 25], base, arguments, shuffle)
    assert 1 == len(caught)
    assert 25 == sampler.num_samples
    assert list(range(25)) == sorted(flat(sampler))
