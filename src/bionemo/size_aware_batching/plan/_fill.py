"""Filling batches: where to cut a sequence of elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray
    from bionemo.size_aware_batching.plan._cost import Cost

__all__ = ["cut_by_cost", "cut_by_sum"]


def cut_by_sum(sizes: AnyArray, limit: float, total: float) -> tuple[IntArray, Any]:
    """Cut a run of elements greedily where the running sum would pass the limit.

    Args:
        sizes: (n,) int64 or float64, each at most `limit`.
        limit: the largest sum; below 2^62 for integers.
        total: the sum of the batch that is open when the run begins.

    Returns:
        The positions at which a new batch begins, ascending, and the sum of the batch open at the end. Linear.
    """
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    starts = np.empty(sizes.size, np.int64)
    number = sizes.dtype.type
    count, total = _kernels.cut_by_sum(sizes, number(limit), number(total), starts)
    return starts[:count], total


def cut_by_cost(sizes: AnyArray, cost: Cost, budget: float, max_items: int) -> IntArray:
    """Cut a sequence of elements greedily: each batch takes all it can before its cost passes the budget.

    Args:
        sizes: (n,) int64 or float64; no element alone costs more than `budget`.
        cost: a cost that never falls when a batch grows.
        budget: the largest cost.
        max_items: the largest number of elements in a batch.

    Returns:
        (batches + 1,) ascending positions, from 0 to n. One call of `cost` or two for each batch.
    """
    ends, guess = [0], 64
    while ends[-1] < sizes.size:
        start = ends[-1]
        taken = _fitting(sizes[start : start + guess], cost, budget)
        while taken == guess < max_items and start + guess < sizes.size:
            guess *= 2
            taken = _fitting(sizes[start : start + guess], cost, budget)
        ends.append(start + min(taken, max_items))
        guess = min(max(2 * taken, 1), max_items)
    return np.array(ends, np.int64)


def _fitting(sizes: AnyArray, cost: Cost, budget: float) -> int:
    """Count how many of the first elements fit together; at least one, which the caller has checked."""
    items = np.arange(1, sizes.size + 1)
    costs = np.asarray(cost(items, np.maximum.accumulate(sizes), np.cumsum(sizes)))
    if costs.shape != items.shape:
        msg = f"`cost` must return one number per batch: got shape {costs.shape} for {items.size} batches"
        raise ValueError(msg)
    over = ~(costs <= budget)  # NaN is over
    return max(int(over.argmax()) if over.any() else sizes.size, 1)
