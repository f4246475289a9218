"""Sorting, shuffling, and dealing elements to batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["copy_runs", "emit", "permute", "sort_counted"]

_jit = numba.njit(cache=True, nogil=True)

# Two congruential generators whose difference is the random number; no product leaves 64 bits, so that compiled and
# plain code agree on every machine. L'Ecuyer, "Efficient and portable combined random number generators" (1988).
_A1, _M1 = 40014, 2147483563
_A2, _M2 = 40692, 2147483399


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
def copy_runs(source: AnyArray, begins: IntArray, offsets: IntArray, target: AnyArray) -> None:
    """Copy runs of an array one behind the other.

    Args:
        source: the array.
        begins: (runs,) where each run begins in it.
        offsets: (runs + 1,) where each goes.
        target: receives them.
    """
    for r in range(begins.size):
        shift = begins[r] - offsets[r]
        for i in range(offsets[r], offsets[r + 1]):
            target[i] = source[i + shift]
