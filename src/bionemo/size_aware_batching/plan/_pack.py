"""Packing elements into batches by best-fit decreasing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bionemo.size_aware_batching.plan._order import index_type
from bionemo.size_aware_batching.plan._strata import Template

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["pack"]

# Residuals are looked up by value; finer ones than these would only cost memory.
_RESIDUALS = 2**20


def pack(slots: AnyArray, budget: float, max_items: int, strata: int) -> Template:
    """Pack slots of ascending size: from the largest on, each into the fullest batch that still takes it.

    Best-fit decreasing (Johnson, "Near-optimal bin packing algorithms", 1973) needs at most 11/9 of the fewest batches
    plus one, and hardly more than the fewest where elements are small. Sizes are rounded up to a millionth of the
    budget unless they and the budget are integers of that range. O(n) look-ups.

    Args:
        slots: (n,) ascending sizes, each at most `budget`.
        budget: the largest sum.
        max_items: the largest number of elements in a batch.
        strata: passed on to the template.
    """
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    if slots.dtype.kind == "i" and budget < _RESIDUALS:
        capacity, sizes = int(budget), slots.astype(np.int64)
    else:
        capacity = _RESIDUALS
        sizes = np.minimum(np.ceil(slots * (capacity / budget)), capacity).astype(np.int64)
    lengths = []
    bits = capacity + 1
    while bits > 1:
        bits = -(-bits // 32)
        lengths.append(bits)
    levels = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    slot_batch, slot_place = np.empty((2, slots.size), index_type(slots.size))
    count = _kernels.pack(sizes, capacity, max_items, levels, slot_batch, slot_place)
    return Template(strata, np.bincount(slot_batch, minlength=count).astype(np.int64), (slot_batch, slot_place))
