"""`Plan`: the batches of one epoch, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["Plan", "PlanSummary"]


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What a plan makes of its budget.

    Attributes:
        batches: number of batches.
        elements: number of elements in them.
        skipped: number of elements left out.
        padding_fraction: share of items x longest that is no element's.
        budget_used_mean: mean of cost over budget.
        budget_used_min: the smallest cost over budget.
        budget_used_max: the largest.
    """

    batches: int
    elements: int
    skipped: int
    padding_fraction: float
    budget_used_mean: float
    budget_used_min: float
    budget_used_max: float

    def __str__(self) -> str:
        return (
            f"{self.batches} batches of {self.elements} elements ({self.skipped} skipped), "
            f"padding {self.padding_fraction:.1%}, budget used {self.budget_used_mean:.1%} on average, "
            f"{self.budget_used_min:.1%} at least"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The batches of one epoch: every element once, or in `skipped`; none over budget, none empty.

    Iterating yields each batch as a list of plain ints, so a plan can be the `batch_sampler` of a DataLoader. The
    arrays are read-only.

    Attributes:
        indices: (elements,) element indices, batch after batch; int32 where they fit.
        offsets: (batches + 1,) int64; batch b is `indices[offsets[b]:offsets[b + 1]]`.
        cost: (batches,) what each batch costs.
        longest: (batches,) the largest size in each.
        total: (batches,) the sum of sizes in each.
        skipped: indices of the elements over budget that were left out.
        budget: the limit on cost.
    """

    indices: AnyArray
    offsets: IntArray
    cost: AnyArray
    longest: AnyArray
    total: AnyArray
    skipped: AnyArray
    budget: float

    def __post_init__(self) -> None:
        """Protect the arrays."""
        for array in (self.indices, self.offsets, self.cost, self.longest, self.total, self.skipped):
            array.flags.writeable = False

    @property
    def items(self) -> IntArray:
        """(batches,) number of elements in each batch."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __iter__(self) -> Iterator[list[int]]:
        for begin, end in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            yield self.indices[begin:end].tolist()

    def summary(self) -> PlanSummary:
        """Summarise the plan; of an empty one, all shares are 0."""
        padded = (self.items * self.longest).sum(dtype=np.float64)
        used = self.cost / self.budget if len(self) else np.zeros(1)
        return PlanSummary(
            batches=len(self),
            elements=self.indices.size,
            skipped=self.skipped.size,
            padding_fraction=float(1 - self.total.sum(dtype=np.float64) / padded) if padded else 0.0,
            budget_used_mean=float(used.mean()),
            budget_used_min=float(used.min()),
            budget_used_max=float(used.max()),
        )

    def __repr__(self) -> str:
        return f"Plan(batches={len(self)}, elements={self.indices.size}, skipped={self.skipped.size})"
