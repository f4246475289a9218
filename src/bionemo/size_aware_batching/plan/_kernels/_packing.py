"""Packing elements where they fill the room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["pack", "pack_exactly"]

_jit = numba.njit(cache=True, nogil=True)


@_jit
def _available(last: IntArray, i: int) -> int:
    """Return the largest value number up to `i` of which elements are left, 0 if none; shortens the path to it."""
    while last[i] != i:
        last[i] = last[last[i]]
        i = last[i]
    return i


@_jit
def _up_to(values: IntArray, size: int) -> int:
    """Return how many of the ascending values are at most `size`."""
    low, high = 0, values.size
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= size:
            low = middle + 1
        else:
            high = middle
    return low


@_jit
def _number_places(slot_batch: AnyArray, batches: int, slot_place: AnyArray) -> None:
    """Number the elements of each batch in the order of the slots."""
    items = np.zeros(batches, np.int64)
    for i in range(slot_batch.size):
        slot_place[i] = items[slot_batch[i]]
        items[slot_batch[i]] += 1


@_jit
def pack_exactly(
    values: IntArray,
    ends: IntArray,
    capacity: int,
    max_items: int,
    sampled: int,
    slot_batch: AnyArray,
    slot_place: AnyArray,
) -> int:
    """Pack batch after batch: the largest that fits, and for the last two the pair that leaves the least room.

    Taking the largest again and again leaves elements of one size for the last batches, which seldom fill them. With
    `sampled`, all but the last two, and a first one larger than half a batch, are drawn from all
    sizes by a golden ratio sequence, so that to the end sizes of all kinds are left.

    Args:
        values: (v,) distinct sizes, ascending, each at most `capacity`.
        ends: (v + 1,) where the elements of each size begin and end in the order of slots; used up here.
        capacity: the largest sum.
        max_items: the largest number of elements in a batch.
        sampled: 1 or 0, see above.
        slot_batch: (n,), receives the batch of each element.
        slot_place: (n,), receives its place there, in the order of the slots.

    Returns:
        The number of batches.
    """
    # Value numbers from 1; last[i] leads to the largest one up to i that is not used up.
    last = np.arange(values.size + 1)
    begins = ends[:-1].copy()
    upper, n, point = ends[1:].copy() - 1, ends[-1], 0
    batches = 0
    while _available(last, values.size) > 0:
        room, items = capacity, 0
        while items < max_items:
            first = _available(last, min(_up_to(values, room), values.size))
            if first == 0:
                break
            second = 0
            if items + 1 < max_items and values[first - 1] * 2 >= room:
                # At most two of this size fit: look for the pair that fills the room best.
                least, i = room - values[first - 1], first
                while i > 0 and least > 0:
                    rest = room - values[i - 1]
                    j = _available(last, _up_to(values, rest))
                    if j == i and ends[i] - begins[i - 1] < 2:
                        j = _available(last, i - 1)
                    if j > 0 and rest - values[j - 1] < least:
                        least, first, second = rest - values[j - 1], i, j
                    if values[i - 1] * 2 < room:
                        break
                    i = _available(last, i - 1)
            elif sampled == 1 and (items > 0 or values[first - 1] * 2 <= capacity):
                point = (point + 2654435769) % 4294967296  # 2^32 over the golden ratio
                drawn = _available(last, _up_to(upper, (point * n) // 4294967296 - 1) + 1)
                if 0 < drawn < first:
                    first = drawn
            for i in (first, second):
                if i > 0:
                    ends[i] -= 1
                    slot_batch[ends[i]] = batches
                    items += 1
                    room -= values[i - 1]
                    if ends[i] == begins[i - 1]:
                        last[i] = i - 1
        batches += 1
    _number_places(slot_batch, batches, slot_place)
    return batches


@_jit
def pack(
    sizes: IntArray, capacity: int, max_items: int, levels: IntArray, slot_batch: AnyArray, slot_place: AnyArray
) -> int:
    """Pack by best-fit decreasing: each element into the fullest batch that still takes it, else a new one.

    Args:
        sizes: (n,) ascending, each at most `capacity`; packed from the last to the first.
        capacity: the largest sum.
        max_items: the largest number of elements in a batch.
        levels: (6,) where each level of the index of residuals begins in its array, and the array's size; level 0 has
            a bit for each residual, each higher level a bit for each word of the level below, 32 bits a word.
        slot_batch: (n,), receives the batch of each element.
        slot_place: (n,), receives its place there, in the order of the slots.

    Returns:
        The number of batches.
    """
    n = sizes.size
    words = np.zeros(levels[-1], np.int64)
    # For each residual the batches that have it, as a linked list.
    head, following = np.full(capacity + 1, -1, np.int64), np.full(n, -1, np.int64)
    residual, items = np.zeros(n, np.int64), np.zeros(n, np.int64)
    batches = 0
    for i in range(n - 1, -1, -1):
        size = sizes[i]
        # The smallest residual that is at least the size: climb until a word has a bit at or after, then descend.
        found, position, level = -1, size, 0
        while level < levels.size - 1:
            at = levels[level] + (position >> 5)
            if at >= levels[level + 1]:
                break
            rest = words[at] >> (position & 31)
            if rest != 0:
                while rest & 1 == 0:
                    rest >>= 1
                    position += 1
                while level > 0:
                    level -= 1
                    word, position = words[levels[level] + position], position << 5
                    while word & 1 == 0:
                        word >>= 1
                        position += 1
                found = position
                break
            position = (position >> 5) + 1
            level += 1
        if found < 0:
            batch, found = batches, capacity
            batches += 1
        else:
            batch = head[found]
            head[found] = following[batch]
            position, level = found, 0
            while head[found] < 0 and level < levels.size - 1:
                at = levels[level] + (position >> 5)
                words[at] &= ~(1 << (position & 31))
                if words[at] != 0:
                    break
                position >>= 5
                level += 1
        slot_batch[i] = batch
        items[batch] += 1
        left = found - size
        residual[batch] = left
        if items[batch] < max_items:
            following[batch] = head[left]
            head[left] = batch
            position = left
            for level in range(levels.size - 1):
                words[levels[level] + (position >> 5)] |= 1 << (position & 31)
                position >>= 5
    _number_places(slot_batch, batches, slot_place)
    return batches
