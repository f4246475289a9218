"""Where a sequence of elements is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, FloatArray, IntArray

__all__ = ["cut_by_sum", "cut_one", "cut_several", "fits", "shapes"]

_jit = numba.njit(cache=True, nogil=True)


@_jit
def cut_by_sum(sizes: AnyArray, limit: float, total: float, starts: IntArray) -> tuple[int, float]:
    """Cut a run of elements greedily where the running sum would pass the limit.

    Args:
        sizes: (n,), each at most `limit`.
        limit: the largest sum, of the dtype of `sizes`.
        total: the sum of the batch that is open when the run begins.
        starts: (n,), receives the positions at which a new batch begins.

    Returns:
        How many positions were written, and the sum of the batch that is open at the end.
    """
    count = 0
    for i in range(sizes.size):
        size = sizes[i]
        if total + size > limit:
            starts[count] = i
            count += 1
            total = size
        else:
            total += size
    return count, total


@_jit
def fits(
    kind: int, multiple_of: int, extra: int, weights: FloatArray, items: int, longest: float, total: float, limit: float
) -> bool:
    """Tell whether a batch of this shape is within the limit, in the number type of the limit.

    Args:
        kind: 0 sum, 1 padded, 2 polynomial.
        multiple_of: padded lengths are rounded up to it.
        extra: added to each length before.
        weights: (7,) of a polynomial: floor, fixed, items, total, items*longest, items*longest^2, longest^2.
        items: number of elements.
        longest: the largest size.
        total: the sum of sizes.
        limit: inclusive.
    """
    if kind == 0:
        return bool(total <= limit)
    if kind == 1:
        padded = longest + extra
        if multiple_of > 1:
            padded = -(-padded // multiple_of) * multiple_of
        return bool(items * padded <= limit)
    cost = weights[1] + weights[2] * items + weights[3] * total + weights[4] * items * longest
    cost += weights[5] * items * longest * longest + weights[6] * longest * longest
    return bool(max(cost, weights[0]) <= limit)


@_jit
def cut_one(
    sizes: AnyArray,
    limit: float,
    kind: int,
    multiple_of: int,
    extra: int,
    weights: FloatArray,
    rules: tuple[int, int, int],
    ends: IntArray,
) -> int:
    """Cut a sequence greedily: each batch takes all it can before its cost passes the limit.

    Args:
        sizes: (n,); no element alone is over the limit.
        limit: inclusive.
        kind: see `fits`, as the next three.
        multiple_of: for padding.
        extra: for padding.
        weights: of a polynomial.
        rules: the largest number of elements in the first batch and in any other; numbers above the third are rounded
            down to a multiple of it.
        ends: (n,), receives the position after each batch.

    Returns:
        The number of batches.
    """
    first, most, step = rules
    # Sums and products in the number type of the limit, which holds them; sizes may be narrower.
    zero = limit * 0
    batches, start, most_now = 0, 0, first
    while start < sizes.size:
        items, longest, total = 0, zero, zero
        while start + items < sizes.size and items < most_now:
            size = zero + sizes[start + items]
            long = max(longest, size)
            if items > 0 and not fits(kind, multiple_of, extra, weights, items + 1, long, total + size, limit):
                break
            longest, total = long, total + size
            items += 1
        if items > step:
            items -= items % step
        start += items
        ends[batches] = start
        batches += 1
        most_now = most
    return batches


@_jit
def cut_several(
    sizes: AnyArray,
    limits: AnyArray,
    kind: int,
    multiple_of: int,
    extra: int,
    weights: FloatArray,
    rules: tuple[int, int, int],
    ends: IntArray,
) -> int:
    """Cut as `cut_one` does, where every one of several measures has to stay within its own limit.

    Args:
        sizes: (n, measures).
        limits: (measures,).
        kind: see `cut_one`, as all others.
        multiple_of: see there.
        extra: see there.
        weights: see there.
        rules: see there.
        ends: see there.
    """
    n, measures = sizes.shape
    first, most, step = rules
    longest, total = np.zeros(measures, limits.dtype), np.zeros(measures, limits.dtype)
    batches, start, most_now = 0, 0, first
    while start < n:
        longest[:] = 0
        total[:] = 0
        items, within = 0, True
        while start + items < n and items < most_now:
            for c in range(measures):
                size = longest[c] * 0 + sizes[start + items, c]
                long, summed = max(longest[c], size), total[c] + size
                within = within and fits(kind, multiple_of, extra, weights, items + 1, long, summed, limits[c])
            if items > 0 and not within:
                break
            for c in range(measures):
                longest[c] = max(longest[c], sizes[start + items, c])
                total[c] += sizes[start + items, c]
            items += 1
        if items > step:
            items -= items % step
        start += items
        ends[batches] = start
        batches += 1
        most_now = most
    return batches


@_jit
def shapes(sizes: AnyArray, offsets: IntArray, longest: AnyArray, total: AnyArray) -> None:
    """Write the largest size and the sum of each run of rows, in every column; both outputs begin with zeros."""
    for c in range(sizes.shape[1]):
        for b in range(offsets.size - 1):
            long, summed = longest[b, c], total[b, c]
            for i in range(offsets[b], offsets[b + 1]):
                long = max(long, sizes[i, c])
                summed += sizes[i, c]
            longest[b, c], total[b, c] = long, summed
