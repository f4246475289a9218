"""`Plan`: the batches of one epoch, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from bionemo.size_aware_batching.plan._npz import read_arrays, write_arrays
from bionemo.size_aware_batching.plan._summary import PlanSummary, summarise

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["Plan"]

_ARRAYS = ("indices", "offsets", "cost", "longest", "total", "skipped", "budget", "largest_cost")
# Batches whose bounds are turned into Python ints at a time: a pass begins at once, however long it is.
_CHUNK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The batches of one epoch: every element once, or in `skipped`; none over budget, none empty.

    Iterating yields each batch as a list of plain ints, so a plan can be the `batch_sampler` of a DataLoader. The
    arrays are read-only. With several measures (columns of sizes), `longest` and `total` have a column for each, and
    `cost` and `budget` where each has its own budget.

    Attributes:
        indices: (elements,) element indices, batch after batch; int32 where they fit.
        offsets: (batches + 1,) int64; batch b is `indices[offsets[b]:offsets[b + 1]]`.
        cost: (batches,) what each batch costs.
        longest: (batches,) the largest size in each.
        total: (batches,) the sum of sizes in each.
        skipped: indices of the elements over budget that were left out, ascending.
        budget: the limit on cost.
        largest_cost: what the largest element costs alone, over the budget.

    >>> from bionemo.size_aware_batching import plan_batches
    >>> plan = plan_batches([3, 3, 5, 9], budget=10, cost="padded", strategy="by_size")
    >>> list(plan), plan.cost.tolist(), plan.uniform.tolist()
    ([[0, 1], [2], [3]], [6, 5, 9], [True, True, True])
    """

    indices: AnyArray
    offsets: IntArray
    cost: AnyArray
    longest: AnyArray
    total: AnyArray
    skipped: AnyArray
    budget: AnyArray
    largest_cost: AnyArray

    def __post_init__(self) -> None:
        """Protect the arrays."""
        for name in _ARRAYS:
            getattr(self, name).flags.writeable = False

    def __reduce__(self) -> tuple[type[Plan], tuple[AnyArray, ...]]:
        """Pickle and copy by the arrays, so that those of the copy are protected too."""
        return Plan, tuple(getattr(self, name) for name in _ARRAYS)

    @property
    def items(self) -> IntArray:
        """(batches,) number of elements in each batch."""
        return np.diff(self.offsets)

    @property
    def uniform(self) -> AnyArray:
        """(batches,) whether all elements of a batch have the same size: no padding, so no mask is needed."""
        items = self.items if self.longest.ndim == 1 else self.items[:, None]
        # Sums of equal fractions are off by their rounding.
        tolerance = 1e-9 if self.total.dtype.kind == "f" else 0.0
        same: AnyArray = np.isclose(self.total, items * self.longest, rtol=tolerance, atol=0.0)
        every: AnyArray = same if same.ndim == 1 else np.all(same, axis=1)
        return every

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, batch: int) -> list[int]:
        """Return one batch; negative numbers count from the end.

        Raises:
            IndexError: there is no such batch.
        """
        number = range(len(self))[batch]
        indices: list[int] = self.indices[self.offsets[number] : self.offsets[number + 1]].tolist()
        return indices

    def __iter__(self) -> Iterator[list[int]]:
        for first in range(0, len(self), _CHUNK):
            bounds = self.offsets[first : first + _CHUNK + 1].tolist()
            for begin, end in pairwise(bounds):
                yield self.indices[begin:end].tolist()

    def summary(self) -> PlanSummary:
        """Say what the plan makes of its budget: waste, batch sizes, the worst batches. Print it to read it."""
        return summarise(
            items=self.items,
            longest=self.longest,
            total=self.total,
            used=self.cost / self.budget,
            uniform=self.uniform,
            skipped=self.skipped.size,
            largest=float(self.largest_cost),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as an uncompressed `.npz`; the file is replaced whole or not at all."""
        write_arrays(path, {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = False) -> Plan:
        """Read a plan written by `save`.

        Args:
            path: the file.
            mmap: leave the arrays in the file and read them as they are used; processes then share the memory.

        Raises:
            FileFormatError: the file is damaged, foreign or of a newer version.
        """
        return cls(**read_arrays(path, _ARRAYS, mmap=mmap))

    def __repr__(self) -> str:
        return f"Plan(batches={len(self)}, elements={self.indices.size}, skipped={self.skipped.size})"
