"""`plan_batches`: sizes, a cost and a budget in, the batches of an epoch out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching._checks import check_bool, check_int
from bionemo.size_aware_batching.errors import OversizedError, SkippedElementsWarning, SuspiciousSizesWarning
from bionemo.size_aware_batching.plan._cost import Price
from bionemo.size_aware_batching.plan._cut import ItemRules
from bionemo.size_aware_batching.plan._order import index_type
from bionemo.size_aware_batching.plan._plan import Plan, step_sums
from bionemo.size_aware_batching.plan._sizes import size_matrix
from bionemo.size_aware_batching.plan._steps import Steps, into_steps
from bionemo.size_aware_batching.plan._strata import Batches, deal, from_ends
from bionemo.size_aware_batching.plan._strategies import Sequenced, best_fit, by_size, in_order

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["plan_batches", "plan_rest"]

_STRATEGIES = ("best_fit", "by_size", "in_order")
_POLICIES = ("alone", "raise", "skip")
_FILLS = ("raise", "repeat")
# Elements whose cost alone is looked at together.
_CHUNK = 2**20


def plan_batches(
    sizes: Any,
    *,
    budget: Any,
    cost: Any = "sum",
    strategy: str = "in_order",
    window: int | None = None,
    uniform: bool = False,
    max_items: int | None = None,
    items_multiple_of: int = 1,
    oversized: str = "raise",
    shuffle: bool = False,
    seed: int = 0,
    epoch: int = 0,
    world_size: int = 1,
    accumulate: int = 1,
    fill: str = "raise",
) -> Plan:
    """Plan the batches of an epoch: every element once, no batch over budget, none empty.

    Costs see the shape of a batch as (items, longest, total). The strategies:

    - "in_order" keeps the order; a batch closes when the next element would pass the budget.
    - "by_size" puts like sizes together, so that batches hold hardly any padding. No cut of the sorted sizes into
      runs has fewer batches.
    - "best_fit" packs: each element, from the largest on, goes into the fullest batch that still takes it. For costs
      that add up ("sum").

        sizes 100 10 10 10 100, cost "padded", budget 150, in order   ->   100 | 10 10 10 | 100

    With `shuffle`, companions change from epoch to epoch, and batches come in random order. The number of batches is
    the same in every epoch, with "by_size" and "in_order" at most one more than unshuffled for small plans.
    The order is a function of (seed, epoch) alone, the same on every machine.

    The plan is for all ranks, each of which plans the same without a word to the others; `Plan.for_rank` takes out the
    share of one. With several ranks batches are split until their number divides by `world_size` x `accumulate`, and
    batches of near-equal cost run at the same time ("in_order" without `shuffle` keeps the order instead).

    Args:
        sizes: (n,) finite numbers, none negative: array (also memory-mapped), list or CPU tensor; or (n, measures),
            such as atoms and bonds.
        budget: the largest cost of a batch, inclusive, in the unit of `cost`. With several measures and the cost "sum"
            or "padded", one for each.
        cost: "sum" (sum of sizes), "padded" (items x longest), `SumCost`, `PaddedCost`, a fitted `MemoryModel` (its
            upper bound, in bytes), or a function of (items, longest, total) that takes equal-length arrays and
            never falls when one of them grows. With several measures, longest and total have a column for each.
        strategy: "in_order", "by_size" or "best_fit".
        window: with "by_size" and `shuffle`, how many elements are sorted together: a small window is more random, a
            large one pads less. By default as much is mixed as costs no padding to speak of.
        uniform: with "by_size", first fill batches with elements of exactly the same size, wherever there are enough.
        max_items: the largest number of elements in a batch; by default unlimited.
        items_multiple_of: round numbers of elements above this down to a multiple of it; not with "best_fit".
        oversized: what to do with an element that alone costs more than the budget: "raise", "skip" it with a
            warning, or give it a batch "alone", behind the others unless shuffled, with a warning.
        shuffle: random order, see above. "in_order" keeps runs of elements together and draws where they are cut.
        seed: with `epoch` decides the random order, alone: no global random state is read.
        epoch: see `seed`.
        world_size: number of ranks that share the plan.
        accumulate: number of batches on each rank that make one step of the optimizer.
        fill: what to do where there are fewer elements than batches in a step: "raise", or "repeat" some.

    Returns:
        The plan. Linear in the number of elements where sizes are integers of a moderate range, else O(n log n).

    Raises:
        OversizedError: (a `ValueError`) an element alone is over budget and `oversized` is "raise".
        TypeError: an argument is of the wrong kind.
        ValueError: sizes are not 1-D or 2-D, or one is NaN, infinite or negative; a budget is not positive and finite;
            an unknown strategy, cost or policy; arguments that do not go together; fewer elements than batches in a
            step.

    Warns:
        SkippedElementsWarning: elements were skipped, or are over budget in a batch alone.
        SuspiciousSizesWarning: all sizes are 0, or all are 1, and the strategy needs real ones; or a memory budget in
            bytes meets a cost that is not.

    >>> list(plan_batches([100, 10, 10, 10, 100], budget=150, cost="padded"))
    [[0], [1, 2, 3], [4]]
    >>> list(plan_batches([100, 10, 10, 10, 100], budget=200, cost="padded", strategy="by_size"))
    [[1, 2, 3], [0, 4]]
    >>> list(plan_batches([6, 3, 5, 4], budget=9, strategy="best_fit"))
    [[1, 0], [3, 2]]
    """
    matrix = size_matrix(sizes)
    price = Price(cost, budget, matrix.shape[1])
    choices = ("strategy", strategy, _STRATEGIES), ("oversized", oversized, _POLICIES), ("fill", fill, _FILLS)
    for name, value, known in choices:
        if not isinstance(value, str) or value not in known:
            msg = f"`{name}` must be one of {', '.join(map(repr, known))}, got {value!r:.40}"
            raise ValueError(msg)
    check_bool("shuffle", shuffle)
    check_bool("uniform", uniform)
    if max_items is not None:
        max_items = check_int("max_items", max_items, at_least=1)
    rules = ItemRules(
        min(max_items or len(matrix), max(len(matrix), 1)) or 1,
        min(check_int("items_multiple_of", items_multiple_of, at_least=1), len(matrix) + 1),
    )
    stream = check_int("seed", seed, at_least=0), check_int("epoch", epoch, at_least=0)
    steps = Steps(
        check_int("world_size", world_size, at_least=1), check_int("accumulate", accumulate, at_least=1), fill
    )
    if window is not None:
        window = check_int("window", window, at_least=1)
    _check_together(strategy, price, rules, window=window, uniform=uniform, shuffle=shuffle)

    over = _over_budget(matrix, price)
    if over.size:
        _report(sizes, matrix, price, over, oversized)
    kept = None
    work = matrix
    if over.size:
        kept = np.delete(np.arange(len(matrix), dtype=index_type(len(matrix))), over)
        work = matrix[kept]
    work = _exact(work, price)
    order = stream if shuffle else None
    if strategy == "in_order":
        sequenced = in_order(work, price, rules, order)
    elif strategy == "by_size":
        sequenced = by_size(work, price, rules, order, window=window, uniform=uniform)
    else:
        sequenced = best_fit(work, price, rules, order)
    alone = over if oversized == "alone" else np.empty(0, np.int64)
    batches = _deal(sequenced, matrix, kept, alone, order)
    keep_order = strategy == "in_order"
    batches = into_steps(
        batches, matrix, price, steps, multiple_of=rules.multiple_of, stream=order, in_order=keep_order
    )
    skipped = over if oversized == "skip" else np.empty(0, np.int64)
    skipped = skipped.astype(index_type(len(matrix)))
    repeats = -(-batches.indices.size // max(len(work) + alone.size, 1))
    plan = _finish(batches, skipped, price, steps, alone=alone.size * repeats, flat=np.ndim(sizes) != 2)
    _warn_of_odd_units(matrix, budget, price, strategy, len(plan))
    return plan


def plan_rest(
    plan: Plan,
    served: int,
    sizes: Any,
    *,
    budget: Any,
    cost: Any,
    items_multiple_of: int,
    keep_order: bool,
    stream: tuple[int, int] | None,
    world_size: int,
    accumulate: int,
    fill: str,
) -> Plan:
    """Plan what is left of an epoch for another number of ranks: the batches not yet served, split where needed.

    Args:
        plan: for all ranks.
        served: how many of its batches were served, on all ranks together.
        sizes: as the plan was made with, like all others.
        budget: see there.
        cost: see there.
        items_multiple_of: see there.
        keep_order: whether the batches keep their order whatever they cost.
        stream: seed and epoch, where the order is random.
        world_size: number of ranks from now on.
        accumulate: number of batches on each rank in a step of the optimizer from now on.
        fill: see `plan_batches`.

    Raises:
        ValueError: fewer elements are left than there are batches in a step.
    """
    matrix = size_matrix(sizes)
    price = Price(cost, budget, matrix.shape[1])
    steps = Steps(world_size, accumulate, fill)
    begin, measures = plan.offsets[served], (-1, matrix.shape[1])
    longest, total = (array[served:].reshape(measures) for array in (plan.longest, plan.total))
    rest = Batches(plan.indices[begin:], plan.offsets[served:] - begin, longest, total)
    rest = into_steps(rest, matrix, price, steps, multiple_of=items_multiple_of, stream=stream, in_order=keep_order)
    # Every batch was checked against the budget when the plan was made, and parts cost no more.
    return _finish(rest, plan.skipped, price, steps, alone=len(plan), flat=plan.longest.ndim == 1)


def _check_together(
    strategy: str, price: Price, rules: ItemRules, *, window: int | None, uniform: bool, shuffle: bool
) -> None:
    if strategy == "best_fit":
        if price.kind != "sum" or price.budgets.size != 1:
            msg = "strategy 'best_fit' packs sizes that add up: it needs one measure and the cost 'sum'"
            raise ValueError(msg)
        if rules.multiple_of > 1:
            msg = "`items_multiple_of` does not go with strategy 'best_fit': use 'by_size'"
            raise ValueError(msg)
    if strategy != "by_size" and (window is not None or uniform):
        msg = f"`{'uniform' if uniform else 'window'}` goes with strategy 'by_size', got {strategy!r}"
        raise ValueError(msg)
    if window is not None and not shuffle:
        msg = "`window` is how much a shuffle mixes: it needs shuffle=True"
        raise ValueError(msg)


def _over_budget(matrix: AnyArray, price: Price) -> IntArray:
    """Return the indices of the elements that alone cost too much, ascending."""
    if len(matrix) == 0:
        return np.empty(0, np.int64)
    # No cost falls when a size grows: if the largest of every measure fits in one element, each does.
    largest = matrix.max(axis=0, keepdims=True)
    if price.fits(np.ones(1, np.int64), largest, largest)[0]:
        return np.empty(0, np.int64)
    found = []
    for begin in range(0, len(matrix), _CHUNK):
        part = matrix[begin : begin + _CHUNK]
        part = part.astype(np.int64) if part.dtype == np.int32 else part
        found.append(begin + np.flatnonzero(~price.fits(np.ones(len(part), np.int64), part, part)))
    return np.concatenate(found)


def _report(sizes: Any, matrix: AnyArray, price: Price, over: IntArray, oversized: str) -> None:
    first = int(over[0])
    budget = price.budgets[0] if price.budgets.size == 1 else price.budgets.tolist()
    if oversized == "raise":
        costs = price.of(np.ones(1, np.int64), matrix[[first]], matrix[[first]])[0].tolist()
        shown = costs[0] if len(costs) == 1 else costs
        msg = (
            f"the element at index {first} of size {np.asarray(sizes)[first]} costs {shown} alone, over the budget "
            f"{budget}; {over.size} of {len(matrix)} elements do: raise it, or choose oversized='skip' or 'alone'"
        )
        raise OversizedError(msg)
    did = "left out" if oversized == "skip" else "given a batch alone"
    text = f"{over.size} of {len(matrix)} elements are over the budget {budget} by themselves and were {did}"
    warnings.warn(text, SkippedElementsWarning, stacklevel=3)


def _warn_of_odd_units(matrix: AnyArray, budget: Any, price: Price, strategy: str, batches: int) -> None:
    """Warn of sizes that are the length of the wrong thing, and of a budget in bytes for a cost that is not."""
    if len(matrix) < 2:
        return
    if strategy != "in_order" and matrix.max() == matrix.min() and matrix[0, 0] in (0, 1):
        text = f"all {len(matrix)} sizes are {matrix[0, 0]}: is this the length of the right thing?"
        warnings.warn(text, SuspiciousSizesWarning, stacklevel=3)
    if hasattr(budget, "account") and price.kind in ("sum", "padded") and batches == 1:
        text = "all elements fit one batch: a memory budget is in bytes, so the cost must be too; give a MemoryModel"
        warnings.warn(text, SuspiciousSizesWarning, stacklevel=3)


def _exact(matrix: AnyArray, price: Price) -> AnyArray:
    """Return the sizes as floats, and have the price round to the safe side, where the integer loops might overflow."""
    if matrix.dtype.kind == "f" or len(matrix) == 0:
        return matrix
    largest = int(matrix.max()) + price.extra + price.multiple_of
    price.rounded = largest * (len(matrix) + 1) >= 2**62
    return matrix.astype(np.float64) if price.rounded else matrix


def _deal(
    sequenced: Sequenced, matrix: AnyArray, kept: AnyArray | None, alone: IntArray, stream: tuple[int, ...] | None
) -> Batches:
    """Make the batches, in the numbering of all elements, with those that are alone among them."""
    order, ordered, templates = sequenced
    if kept is not None:
        order = kept[order]
    if alone.size:
        order = np.concatenate([order, alone.astype(order.dtype)])
        ordered = np.concatenate([ordered, matrix[alone].astype(ordered.dtype)])
        templates = [*templates, from_ends(1, np.arange(alone.size + 1))]
    return deal(order, ordered, templates, stream)


def _check_monotone(cost: AnyArray, price: Price, batches: Batches, items: IntArray, alone: int) -> None:
    """Refuse a user's cost that fell when a batch grew: then the search for the largest batch went wrong."""
    over = np.flatnonzero(~(cost <= price.limits_for(cost.dtype)).all(axis=1))
    if over.size > alone:
        worst = over[items[over].argmax()]
        msg = (
            f"`cost` must never fall when items, longest or total grow: a batch of {items[worst]} elements that fitted "
            f"by what it said before costs {cost[worst].tolist()} (longest {batches.longest[worst].tolist()}, "
            f"total {batches.total[worst].tolist()})"
        )
        raise ValueError(msg)


def _finish(batches: Batches, skipped: AnyArray, price: Price, steps: Steps, *, alone: int, flat: bool) -> Plan:
    items = np.diff(batches.offsets)
    single = price.budgets.size == 1
    cost, largest = np.zeros((0, price.budgets.size), np.int64), 0.0
    if items.size:
        cost = price.of(items, batches.longest, batches.total)
        largest = float(price.alone(batches.longest.max(axis=0, keepdims=True))[0])
        if price.kind == "function":
            _check_monotone(cost, price, batches, items, alone)
    longest, total = (array[:, 0].copy() if flat else array for array in (batches.longest, batches.total))
    return Plan(
        indices=batches.indices,
        offsets=batches.offsets,
        cost=np.array(cost[:, 0] if single else cost),
        longest=longest,
        total=total,
        skipped=skipped,
        budget=np.array(price.budgets[0] if single else price.budgets),
        largest_cost=np.array(largest),
        step_items=step_sums(items, steps.batches),
        step_total=step_sums(total, steps.batches),
        world_size=steps.world_size,
        accumulate=steps.accumulate,
        rank=None,
    )
