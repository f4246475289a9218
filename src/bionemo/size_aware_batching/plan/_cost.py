"""What a batch costs, as a function of its shape that never falls when the batch grows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from bionemo.size_aware_batching._checks import check_int, kind_of

__all__ = ["Cost", "PaddedCost", "SumCost", "check_budget", "resolve_cost"]

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
        check_int("multiple_of", self.multiple_of, at_least=1)
        check_int("extra", self.extra, at_least=0)

    def __call__(self, items: Any, longest: Any, total: Any) -> Any:  # noqa: ARG002
        """Return the cost of batches of this shape."""
        padded = longest + self.extra
        if self.multiple_of > 1:
            padded = -(-padded // self.multiple_of) * self.multiple_of
        return items * padded


_NAMED: dict[str, Cost] = {"padded": PaddedCost(), "sum": SumCost()}


def resolve_cost(cost: Any) -> Cost:
    """Return the cost function that a user means.

    Raises:
        TypeError: neither a name nor callable.
        ValueError: an unknown name.
    """
    if isinstance(cost, str):
        if cost not in _NAMED:
            msg = f"`cost` must be one of {sorted(_NAMED)} or a function of (items, longest, total), got {cost!r:.40}"
            raise ValueError(msg)
        return _NAMED[cost]
    if not callable(cost):
        msg = f"`cost` must be a name or a function of (items, longest, total), got {kind_of(cost)}"
        raise TypeError(msg)
    resolved: Cost = cost
    return resolved


def check_budget(budget: Any) -> float:
    """Return the budget as a plain number.

    Raises:
        TypeError: not a real number.
        ValueError: NaN, infinite, zero or negative.
    """
    if isinstance(budget, np.generic):
        budget = budget.item()
    if isinstance(budget, bool) or not isinstance(budget, (int, float)):
        msg = f"`budget` must be a number, got {kind_of(budget)}"
        raise TypeError(msg)
    if not 0 < budget < math.inf:
        msg = f"`budget` must be positive and finite, got {budget}"
        raise ValueError(msg)
    return budget
