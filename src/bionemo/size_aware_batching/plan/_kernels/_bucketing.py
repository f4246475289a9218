"""Drawing buckets, and making them."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING

import numba

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import IntArray

__all__ = ["draw_bucket", "fill_buckets"]

_jit = numba.njit(cache=True, nogil=True)

# The multiplicative congruential generator of the bucket recipe: x -> MULTIPLIER * x mod (2^31 - 1).
# L'Ecuyer, "Tables of linear congruential generators of different sizes and good lattice structure" (1999).
_MULTIPLIER = 1132489760
_MODULUS = 2**31 - 1


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
