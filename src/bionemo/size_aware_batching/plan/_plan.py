"""`Plan`: the batches of one epoch, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching._checks import check_int
from bionemo.size_aware_batching.plan._npz import read_arrays, write_arrays
from bionemo.size_aware_batching.plan._summary import PlanSummary, summarise

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["Plan", "step_sums"]

_ARRAYS = (
    "indices",
    "offsets",
    "cost",
    "longest",
    "total",
    "skipped",
    "budget",
    "largest_cost",
    "step_items",
    "step_total",
)
# Plain numbers; in a file they are one array, where no rank is -1.
_LAYOUT = ("world_size", "accumulate", "rank")
_MEANS = ("items", "total")
# Batches whose bounds are turned into Python ints at a time: a pass begins at once, however long it is.
_CHUNK = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """The batches of one epoch: every element once, or in `skipped`; none over budget, none empty.

    Iterating yields each batch as a list of plain ints, so a plan can be the `batch_sampler` of a DataLoader. The
    arrays are read-only. With several measures (columns of sizes), `longest` and `total` have a column for each, and
    `cost` and `budget` where each has its own budget.

    A plan for several ranks is in the order in which they take turns; `for_rank` takes out the share of one::

        world_size 2, accumulate 2         step 0          step 1
                                        b0 b1 b2 b3     b4 b5 b6 b7
        for_rank(0, 2)                  b0    b2        b4    b6
        for_rank(1, 2)                     b1    b3        b5    b7

    Attributes:
        indices: (elements,) element indices, batch after batch; int32 where they fit.
        offsets: (batches + 1,) int64; batch b is `indices[offsets[b]:offsets[b + 1]]`.
        cost: (batches,) what each batch costs.
        longest: (batches,) the largest size in each.
        total: (batches,) the sum of sizes in each.
        skipped: indices of the elements over budget that were left out, ascending.
        budget: the limit on cost.
        largest_cost: what the largest element costs alone, over the budget.
        step_items: (steps,) number of elements in each step of the optimizer, on all ranks together.
        step_total: (steps,) the sum of their sizes.
        world_size: number of ranks that share the plan.
        accumulate: number of batches on each rank in a step of the optimizer.
        rank: whose share of the plan this is; None for the plan of all.

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
    step_items: IntArray
    step_total: AnyArray
    world_size: int
    accumulate: int
    rank: int | None

    def __post_init__(self) -> None:
        """Protect the arrays."""
        for name in _ARRAYS:
            getattr(self, name).flags.writeable = False

    def __reduce__(self) -> tuple[type[Plan], tuple[Any, ...]]:
        """Pickle and copy by the arrays, so that those of the copy are protected too."""
        return Plan, tuple(getattr(self, name) for name in _ARRAYS + _LAYOUT)

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
        return self.iter_from(0)

    def iter_from(self, batch: int) -> Iterator[list[int]]:
        """Iterate from this batch on, at once, however many come before it."""
        for first in range(batch, len(self), _CHUNK):
            bounds = self.offsets[first : first + _CHUNK + 1].tolist()
            for begin, end in pairwise(bounds):
                yield self.indices[begin:end].tolist()

    def for_rank(self, rank: int, world_size: int) -> Plan:
        """Return the share of one rank: its batch of every turn, as a plan of its own.

        Shares are disjoint, equally long, and together the whole plan. Nothing is planned anew: another `world_size`
        than the plan was made for works where it divides the number of batches.

        Args:
            rank: 0 to `world_size` - 1.
            world_size: number of ranks.

        Raises:
            TypeError: an argument is not an integer.
            ValueError: there is no such rank; this is the share of a rank already; batches do not divide.
        """
        world_size = check_int("world_size", world_size, at_least=1)
        rank = check_int("rank", rank, at_least=0)
        if rank >= world_size:
            msg = f"`rank` must be below `world_size`, got rank {rank} of {world_size}"
            raise ValueError(msg)
        if self.rank is not None:
            msg = f"this plan is the share of rank {self.rank} of {self.world_size} already: share out the plan of all"
            raise ValueError(msg)
        per_step = world_size * self.accumulate
        if len(self) % per_step:
            msg = (
                f"{len(self)} batches do not divide by world_size {world_size} x accumulate {self.accumulate}: plan "
                f"with plan_batches(..., world_size={world_size})"
            )
            raise ValueError(msg)
        mine, items = slice(rank, None, world_size), self.items
        offsets = np.concatenate([[0], np.cumsum(items[mine])]).astype(np.int64)
        chosen = np.repeat(self.offsets[:-1][mine] - offsets[:-1], items[mine]) + np.arange(offsets[-1])
        return Plan(
            indices=self.indices[chosen],
            offsets=offsets,
            cost=self.cost[mine].copy(),
            longest=self.longest[mine].copy(),
            total=self.total[mine].copy(),
            skipped=self.skipped,
            budget=self.budget,
            largest_cost=self.largest_cost,
            step_items=step_sums(items, per_step),
            step_total=step_sums(self.total, per_step),
            world_size=world_size,
            accumulate=self.accumulate,
            rank=rank,
        )

    def loss_weights(self, per: str = "items") -> AnyArray:
        """Return what to multiply each batch's mean loss by, so that averaged gradients are those of the step's mean.

        Ranks whose batches differ in size must not count alike. With batch b's mean loss over its n_b elements, and N
        elements in the whole step, the weight is world_size n_b / N: `DistributedDataParallel` averages over ranks, and
        the batches that are accumulated add up. Where a trainer divides by `accumulate` itself, multiply by it.

        Args:
            per: what losses are means over: "items" for elements, "total" for the sum of sizes (tokens).

        Returns:
            (batches,) weights; of "total" with several measures, (batches, measures).

        Raises:
            ValueError: another `per`.

        >>> from bionemo.size_aware_batching import plan_batches
        >>> plan = plan_batches([5, 5, 5, 9], budget=10, world_size=2, strategy="by_size")
        >>> list(plan), plan.loss_weights().tolist(), plan.loss_weights("total").round(2).tolist()
        ([[0], [1], [2], [3]], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.71, 1.29])
        """
        if per not in _MEANS:
            msg = f"`per` must be one of {_MEANS}, got {per!r:.40}"
            raise ValueError(msg)
        mine, step = (self.items, self.step_items) if per == "items" else (self.total, self.step_total)
        batches_here = self.accumulate * (self.world_size if self.rank is None else 1)
        # A step of empty elements alone has no mean; any weight serves.
        weights: AnyArray = self.world_size * mine / np.repeat(np.where(step > 0, step, 1), batches_here, axis=0)
        return weights

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
            ranks=self.world_size if self.rank is None else 1,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan as an uncompressed `.npz`; the file is replaced whole or not at all."""
        layout = [self.world_size, self.accumulate, -1 if self.rank is None else self.rank]
        write_arrays(path, {name: getattr(self, name) for name in _ARRAYS} | {"layout": np.array(layout)})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, mmap: bool = False) -> Plan:
        """Read a plan written by `save`.

        Args:
            path: the file.
            mmap: leave the arrays in the file and read them as they are used; processes then share the memory.

        Raises:
            FileFormatError: the file is damaged, foreign or of a newer version.
        """
        arrays = read_arrays(path, (*_ARRAYS, "layout"), mmap=mmap)
        world_size, accumulate, rank = arrays.pop("layout").tolist()
        return cls(**arrays, world_size=world_size, accumulate=accumulate, rank=None if rank < 0 else rank)

    def __repr__(self) -> str:
        share = "" if self.world_size == 1 else f", world_size={self.world_size}"
        share += "" if self.rank is None else f", rank={self.rank}"
        return f"Plan(batches={len(self)}, elements={self.indices.size}, skipped={self.skipped.size}{share})"


def step_sums(values: AnyArray, batches: int) -> AnyArray:
    """Return the sums of (n,) or (n, measures) values over runs of as many batches as a step has."""
    if batches == 1:
        return values
    sums: AnyArray = values.reshape(-1, batches, *values.shape[1:]).sum(axis=1)
    return sums
