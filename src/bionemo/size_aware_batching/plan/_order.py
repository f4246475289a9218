"""Orders as a function of integers alone: the same on every processor, operating system and library version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["random_keys", "sort_by_size"]


def random_keys(count: int, *stream: int) -> AnyArray:
    """Return `count` random uint64 numbers, a function of `stream` alone.

    The generator is SplitMix64, a counter through a mixing function (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014). numpy's own streams may change from one release to the next.

    Args:
        count: how many.
        stream: integers that name the stream: seed, epoch, purpose.
    """
    state = np.zeros(1, np.uint64)
    for part in stream:
        state = _mix(state ^ np.uint64(part % 2**64))
    counter = np.arange(1, count + 1, dtype=np.uint64)
    keys: AnyArray = _mix(state + counter * np.uint64(0x9E3779B97F4A7C15))
    return keys


def _mix(z: AnyArray) -> AnyArray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: AnyArray = z ^ (z >> np.uint64(31))
    return mixed


def sort_by_size(sizes: AnyArray, keys: AnyArray | None) -> IntArray:
    """Return element indices by ascending size; ties by key, or in order where there are none. O(n log n)."""
    if keys is None:
        return np.argsort(sizes, kind="stable")
    shuffled = np.argsort(keys, kind="stable")
    return shuffled[np.argsort(sizes[shuffled], kind="stable")]
