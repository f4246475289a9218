"""From the batches of an epoch to its steps: one batch on every rank at the same time.

All ranks take the same number of steps, since the number of batches is made a multiple of the batches in a step: the
cheapest batches are split, none is dropped or repeated. Batches of like cost are put into the same step, so that no
rank waits long for another:

    costs     9 8 8 3 2       world size 2
    split     9 8 8 3 1 1     the cheapest in two
    steps     9 8 | 8 3 | 1 1
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bionemo.size_aware_batching.plan._order import seeds, shuffled
from bionemo.size_aware_batching.plan._strata import Batches

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray
    from bionemo.size_aware_batching.plan._cost import Price

__all__ = ["Steps", "into_steps"]

_WITHIN, _STEPS = 4, 5


class Steps(NamedTuple):
    """How many batches make a step.

    Attributes:
        world_size: ranks.
        accumulate: batches on each rank between two steps of the optimizer.
        fill: "raise" or "repeat" where there are fewer elements than batches in a step.
    """

    world_size: int
    accumulate: int
    fill: str

    @property
    def batches(self) -> int:
        """Batches in a step of the optimizer, on all ranks."""
        return self.world_size * self.accumulate


def into_steps(
    batches: Batches,
    matrix: AnyArray,
    price: Price,
    steps: Steps,
    *,
    multiple_of: int,
    stream: tuple[int, ...] | None,
    in_order: bool,
) -> Batches:
    """Split and order batches so that each run of `world_size` is one batch on every rank, near-equal in cost.

    Args:
        batches: of the epoch.
        matrix: (n, measures) the sizes of all elements.
        price: cost and budget.
        steps: how many batches make a step.
        multiple_of: numbers of elements above this stay multiples of it.
        stream: names the random order of steps, and of batches within; None keeps the order as far as it can.
        in_order: without a random order, keep that of the batches whatever they cost.

    Raises:
        ValueError: there are fewer elements than batches in a step.
    """
    count = batches.offsets.size - 1
    if steps.batches == 1 or count == 0:
        return batches
    if batches.indices.size < steps.batches and steps.fill == "raise":
        msg = (
            f"{batches.indices.size} elements are too few for steps of {steps.batches} batches (world_size "
            f"{steps.world_size} x accumulate {steps.accumulate}): use fewer, or fill='repeat' to serve some twice"
        )
        raise ValueError(msg)
    share = _share(batches, price)
    missing = -count % steps.batches
    if missing:
        parts = _parts(np.diff(batches.offsets), share, missing, missing_from=count % steps.batches)
        batches = _split(batches, matrix, parts, multiple_of)
        batches = _repeated(batches, -(batches.offsets.size - 1) % steps.batches)
        share = _share(batches, price)
    if stream is None and in_order:
        return batches
    return _ordered(batches, _order(share, steps.world_size, stream))


def _share(batches: Batches, price: Price) -> AnyArray:
    """Return each batch's share of the budget, of the one it uses most."""
    cost = price.of(np.diff(batches.offsets), batches.longest, batches.total)
    share: AnyArray = (cost / price.budgets).max(axis=1)
    return share


def _parts(items: IntArray, share: AnyArray, missing: int, *, missing_from: int) -> IntArray:
    """Return into how many parts to split each batch: `missing` more in all, if there are elements enough.

    The cheapest batches, as many as are left over when steps are filled, are split: whichever is costliest by its
    parts so far, into one part more.
    """
    parts = np.ones(items.size, np.int64)
    cheapest = np.argsort(share, kind="stable")
    able = np.cumsum(items[cheapest] - 1)
    enough = int(np.searchsorted(able, missing)) + 1
    window = cheapest[: max(missing_from, enough)].tolist()
    heap = [(-float(share[b]), b) for b in window if items[b] > 1]
    heapq.heapify(heap)
    for _ in range(missing):
        if not heap:
            break
        _, b = heap[0]
        parts[b] += 1
        if parts[b] < items[b]:
            heapq.heapreplace(heap, (-float(share[b]) / int(parts[b]), b))
        else:
            heapq.heappop(heap)
    return parts


def _split(batches: Batches, matrix: AnyArray, parts: IntArray, multiple_of: int) -> Batches:
    """Split batches into contiguous parts of near-equal numbers of elements; parts come where the batch was."""
    items = np.diff(batches.offsets)
    source = np.repeat(np.arange(items.size), parts)
    part = np.arange(source.size) - np.repeat(np.cumsum(parts) - parts, parts)
    whole, number = items[source], parts[source]
    unit = np.where(whole >= number * multiple_of, multiple_of, 1)
    units = whole // unit
    begin = batches.offsets[source] + unit * (units // number * part + np.minimum(part, units % number))
    offsets = np.concatenate([begin, [batches.indices.size]])
    longest, total = batches.longest[source], batches.total[source]
    for b in np.flatnonzero(number > 1).tolist():
        rows = matrix[batches.indices[offsets[b] : offsets[b + 1]]]
        longest[b], total[b] = rows.max(axis=0), rows.sum(axis=0, dtype=total.dtype)
    return Batches(batches.indices, offsets, longest, total)


def _repeated(batches: Batches, missing: int) -> Batches:
    """Serve the first batches again, in their order, until `missing` more are there."""
    count = batches.offsets.size - 1
    return batches if missing == 0 else _ordered(batches, np.arange(count + missing) % count)


def _order(share: AnyArray, world_size: int, stream: tuple[int, ...] | None) -> IntArray:
    """Return the order of batches in which each run of `world_size` has near-equal costs."""
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    order = np.argsort(share, kind="stable")
    if stream is None:
        rows = np.sort(order.reshape(-1, world_size), axis=1)
        return rows[np.argsort(rows[:, 0], kind="stable")].ravel()
    _kernels.permute(order, np.arange(0, order.size + 1, world_size), *seeds(*stream, _WITHIN))
    rows = order.reshape(-1, world_size)
    return rows[shuffled(len(rows), *stream, _STEPS)].ravel()


def _ordered(batches: Batches, order: IntArray) -> Batches:
    """Return batches in another order; one may come more than once."""
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    begins = batches.offsets[:-1][order]
    offsets = np.concatenate([[0], np.cumsum(np.diff(batches.offsets)[order])]).astype(np.int64)
    indices = np.empty(int(offsets[-1]), batches.indices.dtype)
    _kernels.copy_runs(batches.indices, begins, offsets, indices)
    return Batches(indices, offsets, batches.longest[order], batches.total[order])
