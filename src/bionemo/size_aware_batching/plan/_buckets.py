"""Bucket boundaries from the sizes themselves, and which bucket a size belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["MAX_BUCKETS", "bucket_boundaries", "bucket_drawer", "group_by_bucket"]

# Past this the boundaries alone would take gigabytes: surely a width in the wrong unit.
MAX_BUCKETS = 2**27


def bucket_boundaries(sizes: AnyArray, max_width: int, min_bucket_count: int) -> tuple[IntArray, IntArray]:
    """Choose boundaries so that buckets are as narrow as `min_bucket_count` allows.

    Args:
        sizes: (n,) integers, n >= 1, below 2^63 - 1.
        max_width: no bucket is wider.
        min_bucket_count: a bucket with this many elements is closed at the next size.

    Returns:
        (buckets + 1,) ascending boundaries, the last is the largest size plus 1; (buckets,) element counts.
        Takes as long as sorting the sizes.

    Raises:
        ValueError: the sizes span 2^63 or more, or more than `MAX_BUCKETS` buckets would be needed.
    """
    from bionemo.size_aware_batching.plan._kernels import fill_buckets  # noqa: PLC0415

    values, counts = np.unique(sizes, return_counts=True)
    lowest, span = int(values[0]), int(values[-1]) - int(values[0])
    if int(values[-1]) >= 2**63 - 1 or span >= 2**63 - 1:
        msg = f"`sizes` must span less than 2^63, got {lowest} to {int(values[-1])}"
        raise ValueError(msg)
    offsets = values.astype(np.int64) - lowest
    # Neither changes the result: there is nothing beyond the last value, and no more elements than all.
    width, enough = min(max_width, span + 1), min(min_bucket_count, int(sizes.size))
    arguments = (offsets, counts.astype(np.int64), width, enough)
    nothing = np.empty(0, np.int64)
    buckets = fill_buckets(*arguments, nothing, nothing)
    if buckets > MAX_BUCKETS:
        msg = f"`max_width` {max_width} would make {buckets} buckets between {lowest} and {lowest + span}"
        raise ValueError(msg)
    upper, filled = np.empty(buckets, np.int64), np.empty(buckets, np.int64)
    fill_buckets(*arguments, upper, filled)
    return np.concatenate([[0], upper]) + lowest, filled


def group_by_bucket(sizes: AnyArray, boundaries: AnyArray) -> list[IntArray]:
    """Sort element indices into buckets, half-open to the right; what lies in none is left out.

    Args:
        sizes: (n,) numbers.
        boundaries: (buckets + 1,) ascending.

    Returns:
        For each bucket the indices of its elements, ascending.
    """
    if sizes.dtype.kind in "iu" and boundaries.dtype.kind == "f":
        # size >= b exactly when size >= ceil(b), and integers stay exact beyond 2^53.
        boundaries = np.clip(np.ceil(boundaries.astype(np.float64)), -(2.0**63), 2.0**63)
        boundaries = np.array([min(max(int(b), -(2**63)), 2**63 - 1) for b in boundaries], np.int64)
    buckets = boundaries.size - 1
    bucket_of = np.searchsorted(boundaries, sizes, side="right") - 1
    # A stable sort of 16-bit keys is a radix sort.
    keys = bucket_of.astype(np.int16) if buckets < 2**15 - 1 else bucket_of
    order = np.argsort(keys, kind="stable")
    ends = np.searchsorted(keys[order], np.arange(buckets + 1), side="left")
    return [order[ends[k] : ends[k + 1]] for k in range(buckets)]


def bucket_drawer() -> Callable[[int, IntArray, int], int]:
    """Return the function that draws a bucket in proportion to its count, in the same way on every machine.

    Called with 32 random bits, the elements left in each bucket (not all 0) and their sum, it gives bucket k with
    count c_k out of C the exponential variate q_k = -ln(x_k / (2^31 - 1)), where x_0 is the bits modulo 2^31 - 1
    (0 becomes 1) and x_{k+1} = 1132489760 x_k mod (2^31 - 1), and returns the k with the largest (c_k / C) / q_k.
    """
    from bionemo.size_aware_batching.plan._kernels import draw_bucket  # noqa: PLC0415

    drawer: Callable[[int, IntArray, int], int] = draw_bucket
    return drawer
