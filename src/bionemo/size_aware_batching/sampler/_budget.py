"""`BudgetBatchSampler`: a plan for each epoch, as the batch sampler of a DataLoader."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Sampler

from bionemo.size_aware_batching._checks import check_int
from bionemo.size_aware_batching.errors import SkippedElementsWarning, SuspiciousSizesWarning
from bionemo.size_aware_batching.plan import Plan, plan_batches
from bionemo.size_aware_batching.sampler._arrays import tensor_to_numpy

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BudgetBatchSampler"]


class BudgetBatchSampler(Sampler[list[int]]):
    """Serve the batches that `plan_batches` plans, a new plan for each epoch.

    Every element comes once an epoch, or is in `plan.skipped`; no batch is over budget. The number of batches is exact
    and the same in every epoch. With `shuffle`, batches and their companions change from epoch to epoch; the order is a
    function of (seed, epoch) alone. A pass serves the current epoch and, when it has come to its end, moves on to the
    next; trainers that call `set_epoch` decide themselves.

    Attributes:
        epoch: the epoch that the next pass serves.

    >>> from torch.utils.data import DataLoader
    >>> lengths = [7, 3, 12, 4, 8]
    >>> sampler = BudgetBatchSampler(lengths, budget=24, cost="padded", strategy="by_size")
    >>> len(sampler), list(sampler)
    (2, [[1, 3, 0], [4, 2]])
    >>> loader = DataLoader(lengths, batch_sampler=sampler)
    >>> [batch.tolist() for batch in loader]
    [[3, 4, 7], [8, 12]]
    """

    def __init__(
        self,
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
    ) -> None:
        """Plan the first epoch, so that wrong arguments show at once.

        Args:
            sizes: (n,) or (n, measures) finite numbers, none negative. A numpy array is kept as it is, a tensor is
                copied once; none becomes a list.
            budget: see `plan_batches`, as all others.
            cost: see there.
            strategy: see there.
            window: see there.
            uniform: see there.
            max_items: see there.
            items_multiple_of: see there.
            oversized: see there.
            shuffle: see there.
            seed: see there.

        Raises:
            OversizedError: (a `ValueError`) an element alone is over budget and `oversized` is "raise".
            TypeError: an argument is of the wrong kind.
            ValueError: an argument is wrong, see `plan_batches`.
        """
        # A tensor may move to shared memory, and a view of it would dangle.
        sizes = tensor_to_numpy("sizes", sizes).copy() if isinstance(sizes, torch.Tensor) else sizes
        self._settings: dict[str, Any] = {
            "budget": budget,
            "cost": cost,
            "strategy": strategy,
            "window": window,
            "uniform": uniform,
            "max_items": max_items,
            "items_multiple_of": items_multiple_of,
            "oversized": oversized,
            "shuffle": shuffle,
            "seed": seed,
        }
        self.epoch = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._plan, self._planned = plan_batches(sizes, **self._settings, epoch=0), 0
        for warning in caught:  # again, from the line that made the sampler
            warnings.warn(warning.message, stacklevel=2)
        self._sizes = np.asarray(sizes)

    @property
    def plan(self) -> Plan:
        """The plan of the current epoch."""
        if self._settings["shuffle"] and self._planned != self.epoch:
            with warnings.catch_warnings():
                # Said once, when the sampler was made.
                warnings.simplefilter("ignore", SkippedElementsWarning)
                warnings.simplefilter("ignore", SuspiciousSizesWarning)
                self._plan = plan_batches(self._sizes, **self._settings, epoch=self.epoch)
            self._planned = self.epoch
        return self._plan

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass serves.

        Raises:
            TypeError: `epoch` is not an integer.
            ValueError: `epoch` is negative.
        """
        self.epoch = check_int("epoch", epoch, at_least=0)

    def __iter__(self) -> Iterator[list[int]]:
        """Serve the current epoch; at its end the next one becomes current."""
        return self._serve(self.plan, self.epoch)

    def _serve(self, plan: Plan, epoch: int) -> Iterator[list[int]]:
        yield from plan
        if self.epoch == epoch:
            self.epoch += 1

    def __len__(self) -> int:
        """Return the number of batches, which is the same in every epoch."""
        return len(self._plan)

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({len(self._sizes)} sizes, {settings})"
