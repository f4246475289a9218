"""A pass over a sampler that knows how far it is."""

# ruff: noqa: SLF001 - a sampler and its passes are one
from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

    from bionemo.size_aware_batching.sampler._budget import BudgetBatchSampler

__all__ = ["Pass"]


class Pass:
    """The batches of an epoch, or what is left of it.

    Attributes:
        start: where the pass stands: a new one would begin there.
        length: how many batches the plan has, those already served included.
    """

    def __init__(self, sampler: BudgetBatchSampler) -> None:
        """Begin where the sampler says."""
        self._sampler = sampler
        self._begin()

    def _begin(self) -> None:
        plan, self.start = self._sampler._next()
        self.length = len(plan)
        self._turn = self._sampler._turn(self.start.world_size)
        self._batches = plan.iter_from(self.start.served // self._turn)

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> list[int]:
        """Return the next batch; at the end, the sampler moves on to the next epoch."""
        try:
            batch = next(self._batches)
        except StopIteration:
            self._sampler._end(self)
            raise
        self.start = self.start._replace(served=self.start.served + self._turn)
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the sampler with this pass."""
        return self._sampler._state_of(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state says."""
        self._sampler.load_state_dict(state)
        self._begin()
        self._sampler._pass = self
