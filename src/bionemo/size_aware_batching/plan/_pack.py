"""Packing elements into batches by best-fit decreasing."""

from __future__ import annotations

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

    Sizes are rounded up to a millionth of the budget unless they and the budget are integers of that range, or are
    multiples of that part and add up without rounding. O(n log n).

    Args:
        slots: (n,) ascending sizes, each at most `budget`.
        budget: the largest sum.
        max_items: the largest number of elements in a batch.
        strata: passed on to the template.
    """
    if slots.dtype.kind == "i" and budget < _RESIDUALS:
        return _fewest(slots.astype(np.int64), max(int(budget), 1), max_items, strata)
    for cautious in (False, True):
        template = _fewest(_rounded_up(slots, budget, cautious=cautious), _RESIDUALS, max_items, strata)
        # Sums as they will be added up, from the smallest on; those of the copies are no larger.
        if (np.bincount(template.places()[0], weights=slots) <= budget).all():
            break
    return template


def _fewest(sizes: IntArray, capacity: int, max_items: int, strata: int) -> Template:
    """Pack integers in up to three ways, until one is near the bound; return the best."""
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    values, counts = np.unique(sizes, return_counts=True)
    fewest = max(-(-int(sizes.sum()) // capacity), -(-sizes.size // max_items))
    count, found = sizes.size + 1, np.empty((2, 0), index_type(sizes.size))
    for attempt in range(3):
        tried = np.empty((2, sizes.size), found.dtype)
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


def _rounded_up(slots: AnyArray, budget: float, *, cautious: bool) -> IntArray:
    """Express sizes in units of the budget's 2^-20; a cautious answer leaves room for rounding of their sums."""
    unit = budget / _RESIDUALS
    units = slots / unit
    whole = np.rint(units)
    exact = (whole * unit == slots) & (slots < 2**53) & (not cautious)
    return np.where(exact, whole, np.minimum(np.ceil(units + 1e-6), _RESIDUALS)).astype(np.int64)
