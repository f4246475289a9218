"""`check_worst_batches`: trying the most dangerous batches of a plan before a training run meets them."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._checks import check_int, kind_of
from bionemo.size_aware_batching.measure._run import measure_peaks
from bionemo.size_aware_batching.memory import BatchShape, Profile

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["WorstBatches", "check_worst_batches"]

_WIDTH = 80
# Of a number in a line of the summary; five columns and the gaps between them fill 80 with it.
_CELL = 18
_NEEDED = ("cost", "budget", "items", "longest", "total")


class _Plan(Protocol):
    """What is used of a `Plan`, which this floor does not know."""

    @property
    def cost(self) -> AnyArray: ...
    @property
    def budget(self) -> AnyArray: ...
    @property
    def items(self) -> IntArray: ...
    @property
    def longest(self) -> AnyArray: ...
    @property
    def total(self) -> AnyArray: ...
    def __len__(self) -> int: ...
    def __getitem__(self, batch: int) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class WorstBatches:
    """The batches that were tried, the costliest first, and what came of each.

    Attributes:
        profile: a record for each; its features are the batch's shape in the sizes that were planned with.
        positions: where each is in the plan.
        indices: the elements of each.
        costs: what each costs by the plan: a number, or a tuple with one for each of several budgets.
        budget_bytes: what no peak should pass; None where only running out of memory counts.
        shapes: the shape of each, also of those that ran out of memory.
    """

    profile: Profile
    positions: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    costs: tuple[Any, ...]
    budget_bytes: int | None
    shapes: tuple[BatchShape, ...]

    @property
    def fits(self) -> bool:
        """Whether no batch ran out of memory, and no peak is above the budget in bytes where there is one."""
        return self._failed == 0 == self._over

    def summary(self) -> str:
        """Say whether the plan fits and why, then a line for each batch; at most 80 columns."""
        if not self.positions:
            return "fits: the plan has no batches, so there was nothing to try"
        rows = [("position", "items", "longest", "cost", "peak")]
        for position, shape, cost, record in zip(self.positions, self.shapes, self.costs, self.profile, strict=True):
            peak = "out of memory" if record.peak_bytes is None else format_bytes(record.peak_bytes)
            rows.append((str(position), str(shape.items), _shown(shape.longest), _shown(cost), peak))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([*textwrap.wrap(self._verdict(), _WIDTH), *table])

    @property
    def _failed(self) -> int:
        return len(self.profile) - len(self.profile.measured)

    @property
    def _over(self) -> int:
        budget = self.budget_bytes
        return 0 if budget is None else sum(peak > budget for peak in self.profile.peak_bytes)

    def _verdict(self) -> str:
        tried, peaks, budget = len(self.positions), self.profile.peak_bytes, self.budget_bytes
        reasons = [f"{self._failed} of {tried} ran out of memory"] if self._failed else []
        reasons += [f"{self._over} of {tried} peaked above the budget"] if self._over else []
        verdict = f"does not fit: {' and '.join(reasons)}"
        if self.fits:
            verdict = f"fits: the {f'{tried} worst batches' if tried > 1 else 'worst batch'} ran"
        if not peaks:
            return verdict
        share = f"{max(peaks) / budget:.1%} of {format_bytes(budget)}" if budget else format_bytes(max(peaks))
        return f"{verdict}; largest peak {share}"


def check_worst_batches(
    plan: _Plan,
    step: Callable[[list[int]], Any],
    device: torch.device | str,
    *,
    count: int = 10,
    budget: int | None = None,
    warmup: int = 2,
    cleanup: Callable[[], Any] | None = None,
    progress: bool = True,
) -> WorstBatches:
    """Run the most dangerous batches of a plan, to see before training whether all of it fits.

    They are picked by turns from rankings by cost (over its budget where there are several), number of elements, and
    longest and total in each measure: the largest of each, then the next that none has picked yet; of equals the
    first in the plan. The costliest of them runs first, in `measure_peaks`, after warm-up steps with it.

    The steps are real ones, and change weights and optimizer state: put them back afterwards, or use copies.

    Args:
        plan: as `plan_batches` makes it.
        step: does a training step (forward, backward, optimizer) on a batch, given as element indices. What it
            returns is not used.
        device: where the steps run: a CPU, CUDA or another accelerator whose module counts peaks.
        count: how many batches to run; all where the plan has no more.
        budget: bytes that no peak may pass; None asks only that nothing runs out of memory.
        warmup: how many steps to run first, on the first batch that does not run out of memory.
        cleanup: called after each step, also after an error, before memory is read.
        progress: show a progress bar on a terminal.

    Returns:
        Which batches were run and their peaks; `fits` says whether all is well. An empty plan fits.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: `count` or `budget` is below 1, or `warmup` negative; the device is absent or does not count peaks.
        Exception: what `step` or `cleanup` raises, unless it says that memory ran out.

    >>> import torch
    >>> from bionemo.size_aware_batching import plan_batches
    >>> lengths = [100, 10, 10, 10, 100]
    >>> plan = plan_batches(lengths, budget=150, cost="padded")
    >>> layer = torch.nn.Linear(64, 64)
    >>> def step(indices):
    ...     layer(torch.zeros(len(indices), max(lengths[i] for i in indices), 64)).sum().backward()
    >>> worst = check_worst_batches(plan, step, "cpu", budget=2**20)
    >>> print(worst.summary())
    fits: the 3 worst batches ran; largest peak ...% of 1 MiB
    position  items  longest  cost      peak
           0      1      100   100  ... KiB
           2      1      100   100  ... KiB
           1      3       10    30  ... KiB
    """
    count = check_int("count", count, at_least=1)
    budget = None if budget is None else int(check_int("budget", budget, at_least=1))
    if not callable(step):
        msg = f"`step` must be callable, got {kind_of(step)}"
        raise TypeError(msg)
    if isinstance(plan, type) or not all(hasattr(plan, name) for name in _NEEDED):
        msg = f"`plan` must be a Plan, as plan_batches makes it, got {kind_of(plan)}"
        raise TypeError(msg)
    positions = _worst(plan, count)
    indices = tuple(tuple(plan[position]) for position in positions)
    columns = plan.items, plan.longest, plan.total
    shapes = tuple(BatchShape(*(_plain(values[position]) for values in columns)) for position in positions)
    costs = tuple(_plain(plan.cost[position]) for position in positions)

    def work(number: int) -> BatchShape:
        step(list(indices[number]))
        return shapes[number]

    profile = measure_peaks(range(len(positions)), work, device, warmup=warmup, cleanup=cleanup, progress=progress)
    return WorstBatches(profile, positions, indices, costs, budget, shapes)


def _worst(plan: _Plan, count: int) -> tuple[int, ...]:
    """Return the positions of the batches to try, the costliest first."""
    # As floats, which do not wrap when negated.
    cost, items, longest, total = (np.asarray(a, np.float64) for a in (plan.cost, plan.items, plan.longest, plan.total))
    used = cost if cost.ndim == 1 else (cost / plan.budget).max(axis=1)
    by_shape = np.column_stack([items, longest, total]).T
    # A ranking is never asked for more than `count`: fewer are taken by the others.
    rankings = [np.argsort(-values, kind="stable")[:count].tolist() for values in (used, *by_shape)]
    picked: set[int] = set()
    while len(picked) < min(count, len(plan)):
        ranking = rankings[len(picked) % len(rankings)]
        picked.add(next(position for position in ranking if position not in picked))
    return tuple(sorted(picked, key=lambda position: (-used[position], position)))


def _plain(value: Any) -> Any:
    """Return a number of an array, or a row of it as a tuple."""
    plain = value.tolist()
    return tuple(plain) if isinstance(plain, list) else plain


def _shown(value: Any) -> str:
    numbers = value if isinstance(value, tuple) else (value,)
    text = "/".join(f"{number:.4g}" if abs(number) < 1000 else f"{number:.0f}" for number in numbers)
    return text if len(text) <= _CELL else f"{text[: _CELL - 3]}..."
