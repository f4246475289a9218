"""The compiled loops: each is also its own meaning in plain Python (`NUMBA_DISABLE_JIT=1` runs it so).

Sizes come in as int32, int64 or float64, so that each loop compiles for those alone; the machine code is cached
beside this file. Only `plan` imports this module, and only when it is about to call something here: importing numba
takes longer than importing the rest of the package.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import numba
import numpy as np

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, FloatArray, IntArray

__all__ = [
    "cut_by_sum",
    "cut_one",
    "cut_several",
    "draw_bucket",
    "emit",
    "fill_buckets",
    "pack",
    "pack_exactly",
    "permute",
    "shapes",
    "sort_counted",
]

_jit = numba.njit(cache=True, nogil=True)

# The multiplicative congruential generator of the bucket recipe: x -> MULTIPLIER * x mod (2^31 - 1).
# L'Ecuyer, "Tables of linear congruential generators of different sizes and good lattice structure" (1999).
_MULTIPLIER = 1132489760
_MODULUS = 2**31 - 1

# Two congruential generators whose difference is the random number; no product leaves 64 bits, so that compiled and
# plain code agree on every machine. L'Ecuyer, "Efficient and portable combined random number generators" (1988).
_A1, _M1 = 40014, 2147483563
_A2, _M2 = 40692, 2147483399


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
def _fits(
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
        kind: see `_fits`, as the next three.
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
            if items > 0 and not _fits(kind, multiple_of, extra, weights, items + 1, long, total + size, limit):
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
        items, fits = 0, True
        while start + items < n and items < most_now:
            for c in range(measures):
                size = longest[c] * 0 + sizes[start + items, c]
                long, summed = max(longest[c], size), total[c] + size
                fits = fits and _fits(kind, multiple_of, extra, weights, items + 1, long, summed, limits[c])
            if items > 0 and not fits:
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
def sort_counted(sizes: AnyArray, lowest: int, counts: IntArray, order: AnyArray) -> None:
    """Write the stable order of small integers: a counting sort.

    Args:
        sizes: (n,).
        lowest: the smallest.
        counts: (range + 1,) zeros; receives where each value's run ends.
        order: (n,), receives the indices.
    """
    for i in range(sizes.size):
        counts[sizes[i] - lowest + 1] += 1
    for v in range(1, counts.size):
        counts[v] += counts[v - 1]
    for i in range(sizes.size):
        value = sizes[i] - lowest
        order[counts[value]] = i
        counts[value] += 1


@_jit
def permute(order: AnyArray, runs: IntArray, seed1: int, seed2: int) -> None:
    """Shuffle each run of an array in place (Fisher and Yates).

    Args:
        order: (n,).
        runs: (runs + 1,) ascending positions from 0 to n.
        seed1: 1 to 2147483562.
        seed2: 1 to 2147483398.
    """
    x1, x2 = seed1, seed2
    for r in range(runs.size - 1):
        begin = runs[r]
        for i in range(runs[r + 1] - 1, begin, -1):
            x1, x2 = (_A1 * x1) % _M1, (_A2 * x2) % _M2
            j = begin + ((((x1 - x2) % _M1) * (i - begin + 1)) // _M1)
            order[i], order[j] = order[j], order[i]


@_jit
def emit(
    order: AnyArray,
    sizes: AnyArray,
    strata: int,
    slot_batch: AnyArray,
    slot_place: AnyArray,
    batch_of: IntArray,
    offsets: IntArray,
    seed1: int,
    seed2: int,
    indices: AnyArray,
    longest: AnyArray,
    total: AnyArray,
) -> None:
    """Deal blocks of like elements to copies of a template: element q of a block goes to copy q, after a shuffle.

    Args:
        order: (slots * strata,) element indices, block after block; each block is shuffled in place.
        sizes: (slots * strata, measures), in that order.
        strata: the size of a block, which is the number of copies.
        slot_batch: (slots,) the template's batch that takes a block's elements.
        slot_place: (slots,) their place in that batch.
        batch_of: (strata * template batches,) the final number of each copy's batches.
        offsets: (batches + 1,) where each final batch begins.
        seed1: 1 to 2147483562, or 0 to keep the order.
        seed2: 1 to 2147483398.
        indices: receives the elements of the final batches.
        longest: (batches, measures), receives the largest sizes.
        total: (batches, measures), receives the sums of sizes.
    """
    x1, x2 = seed1, seed2
    batches = batch_of.size // strata
    for slot in range(slot_batch.size):
        begin = slot * strata
        k, place = slot_batch[slot], slot_place[slot]
        for q in range(strata - 1, -1, -1):
            i, j = begin + q, begin + q
            if seed1 > 0 and q > 0:
                x1, x2 = (_A1 * x1) % _M1, (_A2 * x2) % _M2
                j = begin + ((((x1 - x2) % _M1) * (q + 1)) // _M1)
                order[i], order[j] = order[j], order[i]
                for c in range(sizes.shape[1]):
                    sizes[i, c], sizes[j, c] = sizes[j, c], sizes[i, c]
            batch = batch_of[q * batches + k]
            indices[offsets[batch] + place] = order[i]
            for c in range(sizes.shape[1]):
                longest[batch, c] = max(longest[batch, c], sizes[i, c])
                total[batch, c] += sizes[i, c]


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
    `sampled`, only the first of a batch is the largest, and those between it and the last two are drawn from all
    sizes by a golden ratio sequence, so that to the end sizes of all kinds are left.

    Args:
        values: (v,) distinct sizes, ascending, each at most `capacity`.
        ends: (v + 1,) where the elements of each size begin and end in the order of slots; used up here.
        capacity: the largest sum.
        max_items: the largest number of elements in a batch.
        sampled: 1 or 0, see above.
        slot_batch: (n,), receives the batch of each element.
        slot_place: (n,), receives its place there.

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
            elif sampled == 1 and items > 0:
                point = (point + 2654435769) % 4294967296  # 2^32 over the golden ratio
                drawn = _available(last, _up_to(upper, (point * n) // 4294967296 - 1) + 1)
                if 0 < drawn < first:
                    first = drawn
            for i in (first, second):
                if i > 0:
                    ends[i] -= 1
                    slot_batch[ends[i]], slot_place[ends[i]] = batches, items
                    items += 1
                    room -= values[i - 1]
                    if ends[i] == begins[i - 1]:
                        last[i] = i - 1
        batches += 1
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
        slot_place: (n,), receives its place there.

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
        slot_batch[i], slot_place[i] = batch, items[batch]
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
    return batches


@_jit
def draw_bucket(word: int, counts: IntArray, total: int) -> int:
    """Draw a bucket with probability proportional to its count: the largest count over an exponential variate.

    Args:
        word: 32 random bits, the seed of the variates.
        counts: (buckets,) elements left in each; a bucket with none is never drawn.
        total: their sum, positive.
    """
    x = word % _MODULUS
    if x == 0:
        x = 1
    best, best_key, bar = -1, 0.0, 0.0
    for k in range(counts.size):
        # -ln(u) >= 1 - u bounds the key from above, which spares most of the logarithms and divisions.
        if counts[k] > bar * (_MODULUS - x):
            key = (counts[k] / total) / -log(x / _MODULUS)
            if key > best_key:
                best, best_key = k, key
                bar = 0.999999 * key * total / _MODULUS
        x = (_MULTIPLIER * x) % _MODULUS
    return best


@_jit
def fill_buckets(
    values: IntArray,
    counts: IntArray,
    max_width: int,
    min_count: int,
    boundaries: IntArray,
    filled: IntArray,
) -> int:
    """Walk the distinct values upwards and close a bucket when it is full enough or as wide as allowed.

    Args:
        values: (v,) distinct, ascending, the first is 0.
        counts: (v,) elements of each value.
        max_width: the largest width, at most the last value plus 1.
        min_count: a bucket with this many elements is full.
        boundaries: receives the upper boundary of each bucket; of length 0 to only count the buckets.
        filled: receives the number of elements of each bucket.

    Returns:
        The number of buckets.
    """
    bucket, start, i = 0, 0, 0
    end = values[-1] + 1
    while start < end:
        elements = 0
        while i < values.size and elements < min_count and values[i] - start < max_width:
            elements += counts[i]
            i += 1
        following = values[i] if i < values.size else end
        if elements == 0:
            # Nothing for a while: all these buckets are empty and of full width.
            empty = (following - start) // max_width
            if boundaries.size > 0:
                for j in range(empty):
                    boundaries[bucket + j] = start + (j + 1) * max_width
                    filled[bucket + j] = 0
            bucket += empty
            start += empty * max_width
            continue
        start += min(max_width, following - start)
        if boundaries.size > 0:
            boundaries[bucket] = start
            filled[bucket] = elements
        bucket += 1
    return bucket
