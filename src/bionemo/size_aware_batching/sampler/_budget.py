"""`BudgetBatchSampler`: a plan for each epoch, as the batch sampler of a DataLoader."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Sampler

from bionemo.size_aware_batching._checks import check_int
from bionemo.size_aware_batching.errors import SkippedElementsWarning, SuspiciousSizesWarning
from bionemo.size_aware_batching.plan import Plan, plan_batches, plan_rest
from bionemo.size_aware_batching.sampler._arrays import tensor_to_numpy
from bionemo.size_aware_batching.sampler._pass import Pass
from bionemo.size_aware_batching.sampler._ranks import resolve_rank
from bionemo.size_aware_batching.sampler._state import Start, decode_state, encode_state, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["BudgetBatchSampler"]


class BudgetBatchSampler(Sampler[list[int]]):
    """Serve the batches that `plan_batches` plans, a new plan for each epoch.

    Every element comes once an epoch, or is in `plan.skipped`; no batch is over budget. The number of batches is exact
    and the same in every epoch. With `shuffle`, batches and their companions change from epoch to epoch; the order is a
    function of (seed, epoch) alone. A pass serves the current epoch and, when it has come to its end, moves on to the
    next; trainers that call `set_epoch` decide themselves.

    Every rank serves its own share, with the same number of batches on all of them, and needs no word from the others.
    Who it is comes from the arguments, else from `torch.distributed`, else from torchrun's environment, and is looked
    up whenever it is needed: the process group may be made after the sampler.

    `state_dict` says where a pass stands, in a few plain values; a sampler that loads it serves what is left of the
    epoch, also with another number of ranks.

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
    >>> sampler.set_epoch(5)
    >>> next(iter(sampler))  # and then the run is stopped
    [1, 3, 0]
    >>> resumed = BudgetBatchSampler(lengths, budget=24, cost="padded", strategy="by_size")
    >>> resumed.load_state_dict(sampler.state_dict())
    >>> resumed.epoch, list(resumed)
    (5, [[4, 2]])
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
        rank: int | str | None = None,
        world_size: int | None = None,
        accumulate: int = 1,
        fill: str = "raise",
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
            rank: whose share to serve, 0 to `world_size` - 1; None to find out, see above; "all" to serve the batches
                of all ranks in the order in which they take turns, for trainers that deal whole batches themselves.
            world_size: number of ranks; together with `rank`. With "all" it may be left to be found out.
            accumulate: see `plan_batches`.
            fill: see there.

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
            "accumulate": accumulate,
            "fill": fill,
        }
        self._rank, self._world_size = rank, world_size
        self.epoch = 0
        self._start: Start | None = None
        self._pass: Pass | None = None
        self._prints: dict[str, Any] | None = None
        mine = self._whoami()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            plan = plan_batches(sizes, **self._settings, epoch=0, world_size=mine[1])
        self._plan, self._planned = self._share(plan, mine), (0, *mine)
        for warning in caught:  # again, from the line that made the sampler
            warnings.warn(warning.message, stacklevel=2)
        self._sizes = np.asarray(sizes)

    def _whoami(self) -> tuple[int | None, int]:
        """Return rank, None for all of them, and world size."""
        if not isinstance(self._rank, str):
            return resolve_rank(self._rank, self._world_size)
        if self._rank != "all":
            msg = f"`rank` must be an integer, None or 'all', got {self._rank!r:.40}"
            raise ValueError(msg)
        return None, resolve_rank(None if self._world_size is None else 0, self._world_size)[1]

    @staticmethod
    def _share(plan: Plan, mine: tuple[int | None, int]) -> Plan:
        rank, world_size = mine
        return plan if rank is None or world_size == 1 else plan.for_rank(rank, world_size)

    def _whole(self, epoch: int, world_size: int, accumulate: int) -> Plan:
        """Plan an epoch for all ranks."""
        settings = self._settings | {"accumulate": accumulate}
        with warnings.catch_warnings():
            # Said once, when the sampler was made.
            warnings.simplefilter("ignore", SkippedElementsWarning)
            warnings.simplefilter("ignore", SuspiciousSizesWarning)
            return plan_batches(self._sizes, **settings, epoch=epoch, world_size=world_size)

    @property
    def plan(self) -> Plan:
        """The plan of the current epoch: this rank's share, or that of all with rank "all"."""
        mine = self._whoami()
        key = (self.epoch if self._settings["shuffle"] else 0, *mine)
        if self._planned != key:
            self._plan = self._share(self._whole(self.epoch, mine[1], self._settings["accumulate"]), mine)
            self._planned = key
        return self._plan

    @property
    def sampler(self) -> Self:
        """This sampler itself: trainers call `set_epoch` on the `sampler` of a batch sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next pass serves; the one that is set already keeps its position.

        Raises:
            TypeError: `epoch` is not an integer.
            ValueError: `epoch` is negative.
        """
        epoch = check_int("epoch", epoch, at_least=0)
        if epoch != self.epoch:
            self._start = self._pass = None
        self.epoch = epoch

    def loss_weights(self, per: str = "items") -> AnyArray:
        """Return the weight of each batch that the next pass serves, see `Plan.loss_weights`.

        Args:
            per: "items" where losses are means over elements, "total" where they are means over their sizes.

        Raises:
            ValueError: another `per`.
        """
        plan, start = self._next()
        return plan.loss_weights(per)[self._mine(start.served, start.world_size) :]

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Return where the current pass stands, as a new dict of plain values; after its last batch, the next epoch.

        Args:
            position: how many batches of this epoch the trainer has used on this rank, those before a restart included
                (after one with another number of ranks: since then). By default as many as were served, which is
                more where workers of a DataLoader fetch ahead; torchdata's StatefulDataLoader takes care of that.

        Raises:
            TypeError: `position` is not an integer.
            ValueError: `position` is negative, or there are not that many batches.
        """
        under_way = self._pass is not None and self._pass.start.epoch == self.epoch
        return self._state_of(self._pass if self._pass is not None and under_way else Pass(self), position)

    def _state_of(self, current: Pass, position: int | None = None) -> dict[str, Any]:
        now, length = current.start, current.length
        if position is not None:
            if check_int("position", position, at_least=0) > length:
                msg = f"`position` must be at most the {length} batches of the epoch, got {position}"
                raise ValueError(msg)
            now = now._replace(served=position * self._turn(now.world_size))
        if length and self._mine(now.served, now.world_size) == length:
            now = Start(now.epoch + 1, 0, now.world_size, self._settings["accumulate"], ())
        return encode_state(now, self._fingerprint())

    def _end(self, current: Pass) -> None:
        """The pass served its last batch."""
        if self._pass is current:
            self._pass = None
        if self.epoch == current.start.epoch:
            self.epoch, self._start = self.epoch + 1, None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state says, with the next pass; the state is left as it is.

        With another number of ranks or `accumulate`, the batches not yet served are shared out anew.

        Raises:
            TypeError: `state` is not a dict.
            ValueError: it is none of this kind, or was made with other sizes or settings; the text names which.
        """
        start, before = decode_state(state, self._fingerprint()), (self.epoch, self._start, self._pass)
        self.epoch, self._start, self._pass = start.epoch, start, None
        try:
            self._next()
        except ValueError:
            self.epoch, self._start, self._pass = before
            raise

    def _fingerprint(self) -> dict[str, Any]:
        if self._prints is None:
            self._prints = fingerprint(self._sizes, self._settings)
        return self._prints

    def _turn(self, world_size: int) -> int:
        """Return how many batches all ranks serve while this sampler serves one."""
        return 1 if self._whoami()[0] is None else world_size

    def _mine(self, served: int, world_size: int) -> int:
        return served // self._turn(world_size)

    def _next(self) -> tuple[Plan, Start]:
        """Return the plan that the next pass serves, and where in it."""
        mine, accumulate = self._whoami(), self._settings["accumulate"]
        start = self._start
        if start is None or start.epoch != self.epoch:
            return self.plan, Start(self.epoch, 0, mine[1], accumulate, ())
        parts = [*start.before]
        same = (start.world_size, start.accumulate) == (mine[1], accumulate)
        if not same or start.served % self._turn(mine[1]):
            # Other ranks than those that served the first part, or they stopped within a turn.
            parts.append((start.world_size, start.accumulate, start.served))
            start = Start(self.epoch, 0, mine[1], accumulate, tuple(parts))
        if not parts:
            plan = self.plan
            _check_served(self._mine(start.served, mine[1]), len(plan))
            return plan, start
        whole = self._whole(self.epoch, parts[0][0], parts[0][1])
        for (_, _, served), (ranks, per_step) in zip(
            parts, [part[:2] for part in parts[1:]] + [(mine[1], accumulate)], strict=True
        ):
            _check_served(served, len(whole))
            whole = plan_rest(
                whole,
                served,
                self._sizes,
                budget=self._settings["budget"],
                cost=self._settings["cost"],
                items_multiple_of=self._settings["items_multiple_of"],
                keep_order=self._settings["strategy"] == "in_order",
                stream=(self._settings["seed"], self.epoch) if self._settings["shuffle"] else None,
                world_size=ranks,
                accumulate=per_step,
                fill=self._settings["fill"],
            )
        plan = self._share(whole, mine)
        _check_served(self._mine(start.served, mine[1]), len(plan))
        return plan, start

    def __iter__(self) -> Iterator[list[int]]:
        """Serve the current epoch, or what a loaded state leaves of it; at its end the next one becomes current."""
        self._pass = Pass(self)
        return self._pass

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, which is the same in every epoch."""
        return len(self._plan) if self._planned[1:] == self._whoami() else len(self.plan)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle and copy without the pass that is under way."""
        return self.__dict__ | {"_pass": None}

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({len(self._sizes)} sizes, {settings})"


def _check_served(served: int, batches: int) -> None:
    if served > batches:
        msg = f"the state is damaged: it says that {served} batches of {batches} were served"
        raise ValueError(msg)
