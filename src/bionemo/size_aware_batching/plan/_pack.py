"""Packing elements into batches by best-fit decreasing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bionemo.size_aware_batching.plan._order import index_type
from bionemo.size_aware_batching.plan._strata import Template

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["pack"]

# Residuals are looked up by value; finer ones than these would only cost memory.
_RESIDUALS = 2**20
# Batches with more than this many times the mean room are packed anew, at most so many times.
_ROOMY, _ROUNDS = 2, 8


class _Packed(NamedTuple):
    """How many batches, and for each slot its batch and its place there."""

    batches: int
    batch: AnyArray
    place: AnyArray


def pack(slots: AnyArray, budget: float, max_items: int, strata: int) -> Template:
    """Pack slots of ascending size into few batches.

    Batch after batch takes the largest that fits, and as its last two the pair that leaves the least room. Where that
    needs more than a batch or a thousandth above the sum divided by the budget, the same is tried with elements of all
    sizes in each batch; then the batches with most room are packed anew, mixed with others; and then best-fit
    decreasing, which never needs more than 11/9 of the fewest batches plus one (Johnson, "Near-optimal bin packing
    algorithms", 1973). The best of them is taken.

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
    """Pack ascending integers in up to four ways, until one is near the bound; return the best."""
    fewest = max(-(-int(sizes.sum()) // capacity), -(-sizes.size // max_items))
    # Copies multiply what is too much, and their leftovers need room too.
    enough = fewest + (max(1, fewest // 1000) if strata == 1 else fewest // 2000)
    best = _exactly(sizes, capacity, max_items, sampled=0)
    if best.batches > enough:
        best = min(best, _exactly(sizes, capacity, max_items, sampled=1), key=lambda packed: packed.batches)
        for _ in range(_ROUNDS):
            if best.batches > enough:
                best = _mended(best, sizes, capacity, max_items)
    if best.batches > enough:
        best = min(best, _decreasing(sizes, capacity, max_items), key=lambda packed: packed.batches)
    items = np.bincount(best.batch, minlength=best.batches).astype(np.int64)
    return Template(strata, items, (best.batch, best.place))


def _exactly(sizes: IntArray, capacity: int, max_items: int, *, sampled: int) -> _Packed:
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    values, counts = np.unique(sizes, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(counts)])
    batch, place = np.empty((2, sizes.size), index_type(sizes.size))
    return _Packed(_kernels.pack_exactly(values, ends, capacity, max_items, sampled, batch, place), batch, place)


def _decreasing(sizes: IntArray, capacity: int, max_items: int) -> _Packed:
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    batch, place = np.empty((2, sizes.size), index_type(sizes.size))
    return _Packed(_kernels.pack(sizes, capacity, max_items, _levels(capacity), batch, place), batch, place)


def _mended(packed: _Packed, sizes: IntArray, capacity: int, max_items: int) -> _Packed:
    """Pack the roomiest batches anew, mixed with as many others; keep that unless it takes more batches.

    The last batches of a packing have sizes that do not go together; among those of full batches they find company.
    """
    room = capacity - np.bincount(packed.batch, weights=sizes, minlength=packed.batches)
    opened = np.asarray(room > _ROOMY * room.mean())
    fuller = np.flatnonzero(~opened)
    opened[fuller[:: max(fuller.size // max(int(opened.sum()), 1), 1)]] = True
    slots = np.flatnonzero(opened[packed.batch])
    anew = _exactly(sizes[slots], capacity, max_items, sampled=1)
    closed = packed.batches - int(opened.sum())
    if closed + anew.batches > packed.batches:
        return packed
    batch, place = (np.cumsum(~opened) - 1).astype(packed.batch.dtype)[packed.batch], packed.place.copy()
    batch[slots], place[slots] = closed + anew.batch, anew.place
    return _Packed(closed + anew.batches, batch, place)


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
