"""Packing elements into batches by best-fit decreasing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from bionemo.size_aware_batching.plan._order import index_type
from bionemo.size_aware_batching.plan._strata import Template

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["pack"]

# Residuals are looked up by value; finer ones than these would only cost memory.
_RESIDUALS = 2**20


def pack(slots: AnyArray, budget: float, max_items: int, strata: int) -> Template:
    """Pack slots of ascending size into few batches.

    Batch after batch takes the largest that fits, and as its last two the pair that leaves the least room. Where that
    needs a batch and a thousandth more than the sum divided by the budget, the same is tried with elements of all
    sizes in each batch, and then best-fit decreasing, which never needs more than 11/9 of the fewest batches plus one
    (Johnson, "Near-optimal bin packing algorithms", 1973); the best of them is taken.

    Sizes are rounded up to a millionth of the budget unless they and the budget are integers of that range, or
    multiples of that part. O(n log n).

    Args:
        slots: (n,) ascending sizes, each at most `budget`.
        budget: the largest sum.
        max_items: the largest number of elements in a batch.
        strata: passed on to the template.
    """
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    if slots.dtype.kind == "i" and budget < _RESIDUALS:
        capacity, sizes = max(int(budget), 1), slots.astype(np.int64)
    else:
        capacity, sizes = _RESIDUALS, _rounded_up(slots, budget)
    values, counts = np.unique(sizes, return_counts=True)
    fewest = max(-(-int(sizes.sum()) // capacity), -(-sizes.size // max_items))
    count, found = slots.size + 1, np.empty((2, 0), index_type(slots.size))
    for attempt in range(3):
        tried = np.empty((2, slots.size), found.dtype)
        if attempt < 2:
            ends = np.concatenate([[0], np.cumsum(counts)])
            needed = _kernels.pack_exactly(values, ends, capacity, max_items, attempt, *tried)
        else:
            needed = _kernels.pack(sizes, capacity, max_items, _levels(capacity), *tried)
        if needed < count:
            count, found = needed, tried
        if count <= fewest + max(1, fewest // 1000):
            break
    return Template(strata, np.bincount(found[0], minlength=count).astype(np.int64), (found[0], found[1]))


def _levels(capacity: int) -> IntArray:
    """Return where each level of the index of residuals begins: a bit a residual, then a bit for 32 below."""
    lengths, bits = [], capacity + 1
    while bits > 1:
        bits = -(-bits // 32)
        lengths.append(bits)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _rounded_up(slots: AnyArray, budget: float) -> AnyArray:
    """Express sizes in units of the budget's 2^-20, so that what fits in units fits in floating point too."""
    unit = budget / _RESIDUALS
    units = slots / unit
    whole = np.rint(units)
    # Multiples of a unit of few bits add up without rounding; others get room for the rounding of their sums.
    few_bits = (math.frexp(budget)[0] * 2**33).is_integer() and float(budget) == budget
    few_bits = few_bits and slots.max(initial=0) < 2**53
    exact = (whole * unit == slots) & few_bits
    return np.where(exact, whole, np.minimum(np.ceil(units + 1e-6), _RESIDUALS)).astype(np.int64)
