"""`create_buckets`: bucket boundaries for a tensor of sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch

from bionemo.size_aware_batching._checks import check_int, kind_of
from bionemo.size_aware_batching.plan import bucket_boundaries
from bionemo.size_aware_batching.sampler._arrays import tensor_to_numpy

__all__ = ["Buckets", "create_buckets"]


class Buckets(NamedTuple):
    """Half-open buckets and how many elements each holds.

    Attributes:
        bucket_boundaries: (buckets + 1,) int64, ascending; bucket k holds sizes from boundary k up to, and
            without, boundary k + 1.
        bucket_sizes: (buckets,) int64.
    """

    bucket_boundaries: torch.Tensor
    bucket_sizes: torch.Tensor


def create_buckets(sizes: torch.Tensor, max_width: int, min_bucket_count: int) -> Buckets:
    """Choose bucket boundaries from the sizes: as narrow as a minimum number of elements allows.

    From the smallest size upwards, a bucket is closed at the next occurring size once it holds
    `min_bucket_count` elements, and at `max_width` at the latest. So only buckets of full width and the last one
    can hold fewer elements, none included. The first boundary is the smallest size, the last is the largest
    size plus 1.

    Args:
        sizes: (n,) integer tensor, n >= 1.
        max_width: the largest width of a bucket, a positive integer in the unit of `sizes`.
        min_bucket_count: the number of elements that is enough for a bucket, a positive integer.

    Returns:
        `Buckets(bucket_boundaries, bucket_sizes)`, two int64 tensors. Takes about as long as sorting `sizes`.

    Raises:
        TypeError: `sizes` is not a tensor.
        ValueError: `sizes` is empty, not 1-D, or not of integers; `max_width` or `min_bucket_count` is not a
            positive integer; the sizes span 2^63 or would need more than 2^27 buckets.

    >>> import torch
    >>> sizes = torch.tensor([1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 22, 22, 22, 22])
    >>> buckets = create_buckets(sizes, max_width=5, min_bucket_count=10)
    >>> print(buckets.bucket_boundaries)
    tensor([ 1,  6, 11, 16, 21, 23])
    >>> print(buckets.bucket_sizes)
    tensor([12,  0,  0,  0,  4])

    >>> buckets = create_buckets(torch.arange(20), max_width=10, min_bucket_count=5)
    >>> print(buckets.bucket_boundaries)
    tensor([ 0,  5, 10, 15, 20])
    >>> print(buckets.bucket_sizes)
    tensor([5, 5, 5, 5])
    """
    if not isinstance(sizes, torch.Tensor):
        msg = f"`sizes` must be a torch.Tensor, got {kind_of(sizes)}"
        raise TypeError(msg)
    integers = not (sizes.is_floating_point() or sizes.is_complex() or sizes.dtype == torch.bool)
    if sizes.ndim != 1 or sizes.numel() == 0 or not integers:
        msg = f"`sizes` must be a 1-D tensor of at least one integer, got shape {tuple(sizes.shape)}, {sizes.dtype}"
        raise ValueError(msg)
    try:
        width = check_int("max_width", max_width, at_least=1)
        enough = check_int("min_bucket_count", min_bucket_count, at_least=1)
    except TypeError as error:  # documented as a ValueError
        raise ValueError(*error.args) from None
    boundaries, counts = bucket_boundaries(tensor_to_numpy("sizes", sizes), width, enough)
    return Buckets(torch.from_numpy(boundaries), torch.from_numpy(counts))
