"""`plan_batches`: sizes, a cost and a budget in, the batches of an epoch out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching._checks import check_bool, check_int, check_sizes, kind_of
from bionemo.size_aware_batching.errors import OversizedError, SkippedElementsWarning
from bionemo.size_aware_batching.plan._cost import check_budget, resolve_cost
from bionemo.size_aware_batching.plan._fill import cut_by_cost
from bionemo.size_aware_batching.plan._order import random_keys, sort_by_size
from bionemo.size_aware_batching.plan._plan import Plan

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray
    from bionemo.size_aware_batching.plan._cost import Cost

__all__ = ["plan_batches"]

_STRATEGIES = ("by_size", "in_order")
_POLICIES = ("alone", "raise", "skip")
# Names of random streams, so that one purpose's numbers are not another's.
_TIES, _BATCHES = 1, 2


def plan_batches(
    sizes: Any,
    *,
    budget: float,
    cost: Any = "sum",
    strategy: str = "in_order",
    max_items: int | None = None,
    oversized: str = "raise",
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
) -> Plan:
    """Plan the batches of an epoch: every element once, no batch over budget, none empty.

    Costs see the shape of a batch as (items, longest, total). With "in_order" a batch takes the elements as they
    come and closes when the next one would pass the budget:

        sizes 100 10 10 10 100, cost "padded", budget 150   ->   100 | 10 10 10 | 100

    With "by_size" the elements are sorted first, so that a batch holds like sizes and hardly any padding.

    Args:
        sizes: (n,) finite numbers, none negative: list, array or CPU tensor.
        budget: the largest cost of a batch, inclusive, in the unit of `cost`.
        cost: "sum" (sum of sizes), "padded" (items x longest), `SumCost`, `PaddedCost`, a fitted `MemoryModel` (its
            upper bound, in bytes), or a function of (items, longest, total) that takes equal-length arrays and
            never falls when one of them grows.
        strategy: "in_order" or "by_size".
        max_items: the largest number of elements in a batch; by default unlimited.
        oversized: what to do with an element that alone costs more than the budget: "raise", "skip" it with a
            warning, or give it a batch "alone" with a warning.
        shuffle: put the batches into random order; with "by_size", also elements of equal size.
        seed: with `epoch` decides the random order, alone: no global random state is read.
        epoch: see `seed`.

    Returns:
        The plan. Takes O(n log n) with "by_size", else O(n).

    Raises:
        OversizedError: (a `ValueError`) an element alone is over budget and `oversized` is "raise".
        TypeError: an argument is of the wrong kind.
        ValueError: sizes are not 1-D, or one is NaN, infinite or negative; `budget` is not positive and finite;
            an unknown strategy, cost or policy.

    Warns:
        SkippedElementsWarning: elements were skipped, or batches are over budget because of "alone".

    >>> list(plan_batches([100, 10, 10, 10, 100], budget=150, cost="padded"))
    [[0], [1, 2, 3], [4]]
    >>> list(plan_batches([100, 10, 10, 10, 100], budget=200, cost="padded", strategy="by_size"))
    [[1, 2, 3], [0, 4]]
    """
    values = _size_array(sizes)
    limit, price = check_budget(budget), resolve_cost(cost)
    for name, value, known in (("strategy", strategy, _STRATEGIES), ("oversized", oversized, _POLICIES)):
        if value not in known:
            msg = f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r:.40}"
            raise ValueError(msg)
    most = values.size if max_items is None else check_int("max_items", max_items, at_least=1)
    check_bool("shuffle", shuffle)
    stream = check_int("seed", seed, at_least=0), check_int("epoch", epoch, at_least=0)

    over = _over_budget(values, price, limit)
    if over.size and oversized == "raise":
        first = int(over[0])
        alone = np.asarray(price(1, values[first], values[first]))
        msg = (
            f"the element at index {first} of size {np.asarray(sizes)[first]} costs {alone:.15g} alone, over the "
            f"budget {limit}; "
            f"{over.size} of {values.size} elements are; raise the budget, or choose oversized='skip' or 'alone'"
        )
        raise OversizedError(msg)
    if over.size:
        did = "left out" if oversized == "skip" else "given a batch alone"
        text = f"{over.size} of {values.size} elements are over the budget {limit} by themselves and were {did}"
        warnings.warn(text, SkippedElementsWarning, stacklevel=2)

    order = np.arange(values.size)
    if strategy == "by_size":
        order = sort_by_size(values, random_keys(values.size, *stream, _TIES) if shuffle else None)
    if over.size:
        order = order[~np.isin(order, over)]
    offsets = cut_by_cost(values[order], price, limit, max(most, 1))
    if oversized == "alone" and over.size:
        order = np.concatenate([order, over])
        offsets = np.concatenate([offsets, offsets[-1] + np.arange(1, over.size + 1)])
    if shuffle:
        order, offsets = _shuffle_batches(order, offsets, random_keys(offsets.size - 1, *stream, _BATCHES))
    skipped = over if oversized == "skip" else np.empty(0, np.int64)
    return _describe(values, order, offsets, skipped, price, limit)


def _size_array(sizes: Any) -> AnyArray:
    """Return sizes as int64 where they are integers whose sums fit, else as float64."""
    try:
        array = np.asarray(sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"`sizes` must be an array of numbers, got {kind_of(sizes)}: {error}"
        raise TypeError(msg) from error
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.dtype.kind == "O" and all(isinstance(size, int) for size in array.flat):
        # Integers beyond int64: no budget in sight holds them, and as floats they compare as they should.
        array = array.astype(np.float64)
    if array.dtype.kind not in "iuf":
        msg = f"`sizes` must be integers or floats, got {array.dtype}"
        raise TypeError(msg)
    if array.ndim != 1:
        msg = f"`sizes` must be 1-D, got shape {array.shape}"
        raise ValueError(msg)
    check_sizes("sizes", array)
    fits = array.dtype.kind != "f" and int(array.max()) * array.size < 2**62
    return array.astype(np.int64 if fits else np.float64, copy=False)


def _over_budget(values: AnyArray, cost: Cost, budget: float) -> IntArray:
    """Return the indices of the elements that alone cost too much, ascending."""
    alone = np.asarray(cost(np.ones(values.size, np.int64), values, values))
    if alone.shape != values.shape:
        msg = f"`cost` must return one number per batch: got shape {alone.shape} for {values.size} batches"
        raise ValueError(msg)
    return np.flatnonzero(~(alone <= budget))  # NaN is over


def _shuffle_batches(order: IntArray, offsets: IntArray, keys: AnyArray) -> tuple[IntArray, IntArray]:
    shuffled = np.argsort(keys, kind="stable")
    items = np.diff(offsets)[shuffled]
    ends = np.cumsum(items)
    # Element j of the new order: its batch's old start, plus its place within the batch.
    source = np.repeat(offsets[:-1][shuffled] - (ends - items), items) + np.arange(order.size)
    return order[source], np.concatenate([[0], ends])


def _describe(
    values: AnyArray, order: IntArray, offsets: IntArray, skipped: IntArray, cost: Cost, budget: float
) -> Plan:
    fits = values.size <= np.iinfo(np.int32).max
    index_type = np.int32 if fits else np.int64
    sizes, items = values[order], np.diff(offsets)
    if items.size:
        longest, total = np.maximum.reduceat(sizes, offsets[:-1]), np.add.reduceat(sizes, offsets[:-1])
    else:
        longest = total = sizes
    return Plan(
        indices=order.astype(index_type),
        offsets=offsets.astype(np.int64),
        cost=np.array(cost(items, longest, total)),
        longest=longest,
        total=total.copy(),
        skipped=skipped.astype(index_type),
        budget=budget,
    )
