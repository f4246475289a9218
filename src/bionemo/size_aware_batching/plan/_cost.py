"""What a batch costs, as a function of its shape that never falls when the batch grows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from bionemo.size_aware_batching._checks import check_int, kind_of

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["Cost", "PaddedCost", "Price", "SumCost"]

# No length is padded by more, and sums of it and of sizes below stay within 64 bits.
_MOST_PADDING = 2**40
# Integers from here on are taken as floats, which do not wrap when padding is added.
_LARGE = 2**61

# items, longest, total -> cost; scalars or arrays of equal length.
Cost: TypeAlias = Callable[[Any, Any, Any], Any]


@dataclass(frozen=True, slots=True)
class SumCost:
    """The sum of the sizes: what packed or ragged batches cost. As `cost`, "sum" means this.

    >>> SumCost()(items=3, longest=5, total=12)
    12
    """

    def __call__(self, items: Any, longest: Any, total: Any) -> Any:  # noqa: ARG002 - every cost has the three
        """Return the cost of batches of this shape."""
        return total


@dataclass(frozen=True, slots=True)
class PaddedCost:
    """Items times the padded length: what a padded tensor holds. As `cost`, "padded" means this.

    Attributes:
        multiple_of: the collator pads to a multiple of this, positive.
        extra: what the collator adds to each element (special tokens), not negative.

    >>> PaddedCost()(items=3, longest=5, total=12)
    15
    >>> PaddedCost(multiple_of=8, extra=2)(items=3, longest=7, total=12)
    48
    """

    multiple_of: int = 1
    extra: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, least in (("multiple_of", 1), ("extra", 0)):
            if check_int(name, getattr(self, name), at_least=least) > _MOST_PADDING:
                msg = f"`{name}` must be at most {_MOST_PADDING}, got {getattr(self, name)!s:.40}"
                raise ValueError(msg)

    def __call__(self, items: Any, longest: Any, total: Any) -> Any:  # noqa: ARG002
        """Return the cost of batches of this shape."""
        padded = longest + self.extra
        if self.multiple_of > 1:
            padded = -(-padded // self.multiple_of) * self.multiple_of
        return (items[:, None] if np.ndim(padded) == 2 else items) * padded


@dataclass(frozen=True, slots=True)
class _Predicted:
    """What a regressor predicts from (n, 1 + 2 measures) rows: items, then longest, then total in each measure."""

    regressor: Any

    def __call__(self, items: Any, longest: Any, total: Any) -> Any:
        return self.regressor.predict(np.column_stack([items, longest, total]))


_NAMED: dict[str, Cost] = {"padded": PaddedCost(), "sum": SumCost()}

# The terms of a polynomial cost, in the order in which the compiled loop takes their weights.
_TERMS = ("items", "total", "items*longest", "items*longest^2", "longest^2")
# The compiled loop adds the terms in its own order; a billionth of a part keeps its rounding below the budget.
_ROUNDING = 1e-12


class Price:
    """A cost and its budget, in the forms that cutting needs.

    Attributes:
        cost: the function of (items, longest, total).
        budgets: (measures,) or (1,) limits, inclusive.
        kind: "sum", "padded", "polynomial", or "function" where only the function itself can be asked.
        rounded: whether sizes are integers too large to be computed with exactly.
    """

    def __init__(self, cost: Any, budget: Any, measures: int) -> None:
        """Take what the user gave.

        Args:
            cost: a name or a function.
            budget: a number, or one per measure where the cost is "sum" or "padded".
            measures: columns of the sizes.

        Raises:
            TypeError: `cost` is neither a name nor callable, or `budget` is not a number or numbers.
            ValueError: an unknown name; a budget that is not positive and finite; a wrong number of budgets.
        """
        self.cost = _resolve(cost)
        self.multiple_of, self.extra = 1, 0
        self.weights = np.zeros(len(_TERMS) + 2)
        self.rounded = False
        self.kind = "function"
        if isinstance(self.cost, SumCost):
            self.kind = "sum"
        elif isinstance(self.cost, PaddedCost):
            self.kind, self.multiple_of, self.extra = "padded", int(self.cost.multiple_of), int(self.cost.extra)
        elif hasattr(self.cost, "polynomial") and measures == 1:
            self.kind = "polynomial"
            floor, fixed, terms = self.cost.polynomial()
            self.weights[:] = [floor, fixed, *(terms.get(name, 0.0) for name in _TERMS)]
        fitted_to = getattr(self.cost, "measures", measures)
        if fitted_to != measures:
            msg = f"`cost` is a model of sizes with {fitted_to} measures, the sizes have {measures}"
            raise ValueError(msg)
        separable = self.kind in ("sum", "padded")
        self.budgets = _budgets(budget, measures if separable else 1)

    @property
    def limits(self) -> AnyArray:
        """The budgets that shapes are held to: a little less where they are not computed exactly."""
        exact = not self.rounded and self.kind != "polynomial"
        return self.budgets if exact else self.budgets * (1 - _ROUNDING)

    def limits_for(self, costs: np.dtype[Any]) -> AnyArray:
        """Return the limits in a type that compares exactly with costs of a type.

        As floats, integers beyond 2^53 that are a little over a budget would equal it.
        """
        if costs.kind == "f" or self.limits.dtype.kind == "i":
            return self.limits
        return np.floor(np.minimum(self.limits, 2.0**62)).astype(np.int64)

    def of(self, items: Any, longest: AnyArray, total: AnyArray) -> AnyArray:
        """Return the cost of batches, given (batches,) items and (batches, measures) longest and total.

        Returns:
            (batches, budgets) costs.

        Raises:
            TypeError: the user's function returned no numbers.
            ValueError: it returned another number of them.
        """
        arguments = [items, _plain_integers(longest), _plain_integers(total)]
        if longest.shape[1] == 1:
            arguments[1:] = arguments[1][:, 0], arguments[2][:, 0]
        for argument in arguments:
            argument.flags.writeable = False  # what a user's function writes would be planned with
        found = self.cost(*arguments)
        try:
            costs = np.asarray(found)
        except (TypeError, ValueError, RuntimeError) as error:
            msg = f"`cost` must return numbers, got {kind_of(found)}: {error!s:.200}"
            raise TypeError(msg) from error
        if costs.dtype.kind not in "iuf":
            msg = f"`cost` must return numbers, got an array of {costs.dtype}"
            raise TypeError(msg)
        if costs.size != len(items) * self.budgets.size:
            msg = f"`cost` must return a number for each of {len(items)} batches, got an array of shape {costs.shape}"
            raise ValueError(msg)
        return costs.reshape(len(items), self.budgets.size)

    def alone(self, rows: AnyArray) -> AnyArray:
        """Return what each row of sizes costs in a batch alone, as a share of the budget that is used most."""
        shares: AnyArray = (self.of(np.ones(len(rows), np.int64), rows, rows) / self.budgets).max(axis=1)
        return shares

    def fits(self, items: Any, longest: AnyArray, total: AnyArray) -> AnyArray:
        """Tell which batches are within budget; NaN is not."""
        costs = self.of(items, longest, total)
        within: AnyArray = np.all(costs <= self.limits_for(costs.dtype), axis=1)
        return within


def _plain_integers(sizes: AnyArray) -> AnyArray:
    """Return a view that cannot be written to, of integers that do not wrap when a cost computes with them."""
    if sizes.dtype.kind == "i":
        large = sizes.size > 0 and int(sizes.max()) >= _LARGE
        sizes = sizes.astype(np.float64 if large else np.int64, copy=False)
    return sizes.view()


def _resolve(cost: Any) -> Cost:
    if isinstance(cost, str):
        if cost not in _NAMED:
            msg = f"`cost` must be one of {sorted(_NAMED)} or a function of (items, longest, total), got {cost!r:.40}"
            raise ValueError(msg)
        return _NAMED[cost]
    if hasattr(cost, "predict") and not callable(cost):
        return _Predicted(cost)
    if not callable(cost) or isinstance(cost, type):
        msg = f"`cost` must be a name or a function of (items, longest, total), got {kind_of(cost)}"
        raise TypeError(msg)
    resolved: Cost = cost
    return resolved


def _budgets(budget: Any, count: int) -> AnyArray:
    several = isinstance(budget, (list, tuple)) or (isinstance(budget, np.ndarray) and budget.ndim == 1)
    values = [_one_budget(value) for value in budget] if several else [_one_budget(budget)]
    if len(values) != count:
        msg = f"`budget` must be {count} number{'s, one per measure' if count > 1 else ''}, got {len(values)}"
        raise ValueError(msg)
    if all(isinstance(value, int) and value < 2**62 for value in values):
        return np.array(values, np.int64)
    # A float above the integer it stands for would let in what does not fit.
    return np.array([v if float(v) <= v else np.nextafter(float(v), 0) for v in values], np.float64)


def _one_budget(value: Any) -> int | float:
    if isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0 and value.dtype.kind in "iuf":
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        hint = "; memory_budget() makes bytes of text such as '90%'" if isinstance(value, str) else ""
        msg = f"`budget` must be a number, got {kind_of(value)}{hint}"
        raise TypeError(msg)
    if not 0 < value < math.inf or (isinstance(value, int) and value > 2**1000):
        msg = f"`budget` must be positive and finite, got {value!r:.40}"
        raise ValueError(msg)
    return int(value) if isinstance(value, int) else float(value)
