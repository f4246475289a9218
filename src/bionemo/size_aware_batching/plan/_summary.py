"""What a plan makes of its budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["PlanSummary", "WorstBatch", "summarise"]

_WORST = 5
_PERCENTILES = (0, 25, 50, 75, 100)


@dataclass(frozen=True, slots=True)
class WorstBatch:
    """A costly batch: its number, its cost over its budget, and its shape."""

    batch: int
    budget_used: float
    items: int
    longest: float | tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The figures of a plan; printed, a few lines. Of an empty plan all shares are 0.

    Attributes:
        batches: number of batches.
        elements: number of elements in them.
        skipped: number of elements left out.
        uniform: number of batches whose elements are all of one size.
        padding_fraction: share of items x longest that is no element's; of the first measure.
        slack_fraction: unused budget over all budgets.
        budget_used_mean: mean of cost over budget; with several budgets of the one that is used most.
        budget_used_min: the smallest.
        budget_used_max: the largest.
        items_percentiles: number of elements in a batch: minimum, quartiles, maximum.
        largest_element_fraction: what the largest element costs alone, over the budget.
        ranks: number of ranks that take a batch each at the same time.
        step_imbalance: by how much the costliest batches of those turns are above the mean ones, over all turns: about
            the time that ranks wait for one another.
        worst: the costliest batches, the costliest first.
    """

    batches: int
    elements: int
    skipped: int
    uniform: int
    padding_fraction: float
    slack_fraction: float
    budget_used_mean: float
    budget_used_min: float
    budget_used_max: float
    items_percentiles: tuple[float, ...]
    largest_element_fraction: float
    ranks: int
    step_imbalance: float
    worst: tuple[WorstBatch, ...]

    def __str__(self) -> str:
        low, *_, high = self.items_percentiles
        return (
            f"{self.batches} batches of {self.elements} elements ({self.skipped} skipped), {self.uniform} uniform\n"
            f"budget used {self.budget_used_mean:.1%} on average, {self.budget_used_min:.1%} at least; "
            f"padding {self.padding_fraction:.1%}\n"
            f"{low:.0f} to {high:.0f} elements a batch, median {self.items_percentiles[2]:g}; "
            f"largest element {self.largest_element_fraction:.1%} of the budget"
            + (
                f"\n{self.ranks} ranks take {self.batches // self.ranks} batches each; the costliest of a turn is "
                f"{self.step_imbalance:.1%} above the mean"
                if self.ranks > 1
                else ""
            )
        )


def summarise(
    *,
    items: IntArray,
    longest: AnyArray,
    total: AnyArray,
    used: AnyArray,
    uniform: AnyArray,
    skipped: int,
    largest: float,
    ranks: int,
) -> PlanSummary:
    """Compute the figures of a plan.

    Args:
        items: (batches,) numbers of elements.
        longest: (batches,) or (batches, measures) largest sizes.
        total: likewise, sums of sizes.
        used: (batches,) or (batches, budgets) costs over budgets.
        uniform: (batches,) whether all elements have one size.
        skipped: number of elements left out.
        largest: what the largest element costs alone, over the budget.
        ranks: number of ranks that take a batch each at the same time.
    """
    first, real = (array if array.ndim == 1 else array[:, 0] for array in (longest, total))
    whole, filled = float((items * first).sum(dtype=np.float64)), float(real.sum(dtype=np.float64))
    used = used if used.ndim == 1 else used.max(axis=1)
    some = used if used.size else np.zeros(1)
    costliest = np.argsort(-used, kind="stable")[:_WORST]
    return PlanSummary(
        batches=items.size,
        elements=int(items.sum()),
        skipped=skipped,
        uniform=int(uniform.sum()),
        padding_fraction=(whole - filled) / whole if whole else 0.0,
        slack_fraction=float(np.maximum(1 - some, 0).mean()) if used.size else 0.0,
        budget_used_mean=float(some.mean()),
        budget_used_min=float(some.min()),
        budget_used_max=float(some.max()),
        items_percentiles=tuple(np.percentile(items if items.size else [0], _PERCENTILES).tolist()),
        largest_element_fraction=largest,
        ranks=ranks,
        step_imbalance=_imbalance(used.reshape(-1, ranks)),
        worst=tuple(
            WorstBatch(b, float(used[b]), int(items[b]), _plain(longest[b].tolist())) for b in costliest.tolist()
        ),
    )


def _plain(longest: float | list[float]) -> float | tuple[float, ...]:
    return tuple(longest) if isinstance(longest, list) else longest


def _imbalance(used: AnyArray) -> float:
    mean = float(used.mean(axis=1).sum())
    return float(used.max(axis=1).sum()) / mean - 1 if mean else 0.0
