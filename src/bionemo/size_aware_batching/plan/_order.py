"""Orders as a function of integers alone: the same on every processor, operating system and library version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["index_type", "seeds", "shuffled", "sort_by_size"]

# A counting sort needs a counter for each value between the smallest and the largest size.
_MOST_COUNTERS = 2**22


def index_type(count: int) -> type[np.int32 | np.int64]:
    """Return the narrowest type that indexes `count` elements."""
    return np.int32 if count <= np.iinfo(np.int32).max else np.int64


def seeds(*stream: int) -> tuple[int, int]:
    """Return the two seeds of a random stream, a function of the integers that name it (seed, epoch, purpose).

    They are mixed by SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
    """
    z, mask = 0, 2**64 - 1
    for part in stream:
        z = ((z ^ part) + 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        z ^= z >> 31
    return (z >> 32) % 2147483562 + 1, (z & 0xFFFFFFFF) % 2147483398 + 1


def shuffled(count: int, *stream: int) -> AnyArray:
    """Return a random permutation of `count`, a function of `stream` alone. Linear."""
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    order = np.arange(count, dtype=index_type(count))
    _kernels.permute(order, np.array([0, count], np.int64), *seeds(*stream))
    return order


def sort_by_size(
    matrix: AnyArray, alone: Callable[[AnyArray], AnyArray], stream: tuple[int, ...] | None
) -> tuple[AnyArray, AnyArray]:
    """Sort elements by ascending size, with several measures by what they cost alone.

    Args:
        matrix: (n, measures) sizes.
        alone: returns the cost of each row alone; asked where there are several measures.
        stream: names the random order of equal sizes; None keeps their order.

    Returns:
        (n,) element indices, and the positions where runs of equal sizes begin and end, from 0 to n. Linear where
        sizes are integers of a moderate range, else O(n log n).
    """
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    n = len(matrix)
    flat = matrix[:, 0]
    low, high = (flat.min().item(), flat.max().item()) if n else (0, 0)
    if matrix.shape[1] == 1 and matrix.dtype.kind == "i" and high - low < min(_MOST_COUNTERS, 64 * n + 64):
        counts = np.zeros(high - low + 2, np.int64)
        order = np.empty(n, index_type(n))
        _kernels.sort_counted(flat, low, counts, order)
        runs = np.concatenate([[0], counts[:-1]])  # each counter stands at the end of its run now
    else:
        # By cost, and elements of the same size in every measure side by side.
        keys = flat if matrix.shape[1] == 1 else np.vstack([matrix.T[::-1], alone(matrix)])
        order = (np.argsort(keys, kind="stable") if keys.ndim == 1 else np.lexsort(keys)).astype(index_type(n))
        ordered = matrix[order]
        runs = np.concatenate([[0], np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1, [n]])
    runs = runs.astype(np.int64)
    if stream is not None:
        _kernels.permute(order, runs, *seeds(*stream))
    return order, runs
