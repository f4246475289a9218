"""How much more than it hands out an allocator needs when steps of many shapes follow each other."""

from __future__ import annotations

import heapq
import itertools
import logging
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from bionemo.size_aware_batching.measure._meter import Meter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from bionemo.size_aware_batching.memory import PeakRecord

__all__ = ["CappedMeter", "Largest", "Rehearsal", "beyond_peaks", "rehearse_steps"]

_log = logging.getLogger(__name__)

# So many of the measured elements are kept for it, and so many of those take part.
_KEPT, _CAST = 24, 6
# Steps at this share of the largest peak leave room to find out how much is needed beyond it.
_SHARE = 0.7
# Each try runs the cast so often; the first gives this share of the peak beyond it, and each next one that much more.
# What a few dozen steps got through with, thousands of others may not: the answer is one such step above it.
_ROUNDS, _FIRST, _MORE = 6, 0.01, 1.5
# What a single step from an empty cache takes beyond its peak is read from steps of at least this share of the largest.
_LARGE = 0.8


class Rehearsal(NamedTuple):
    """What steps in a row need beyond what single ones do.

    Attributes:
        fragmentation_fraction: what the allocator takes from the device beyond a large peak, as a share of it.
        drift_bytes: by how much a peak was higher at most than that of the same step from an empty cache.
    """

    fragmentation_fraction: float
    drift_bytes: int


@runtime_checkable
class CappedMeter(Meter, Protocol):
    """A meter whose device can be made to have less memory for a while."""

    def most(self) -> int:
        """Return how many bytes the allocator may take from the device."""

    def capped(self, limit_bytes: int) -> AbstractContextManager[None]:
        """Return a context in which it may take that many."""

    def is_expandable(self) -> bool:
        """Tell whether the allocator's segments can grow, so that blocks of all sizes share them."""


class Largest:
    """Keeps the measured elements with the largest peaks."""

    def __init__(self) -> None:
        """Start with none."""
        self._heap: list[tuple[int, int, Any]] = []
        self._count = itertools.count()

    def add(self, peak_bytes: int | None, element: Any) -> None:
        """Take an element with its peak; None if it has none."""
        if peak_bytes is not None:
            heapq.heappush(self._heap, (peak_bytes, next(self._count), element))
            if len(self._heap) > _KEPT:
                heapq.heappop(self._heap)

    def cast(self) -> list[tuple[int, Any]]:
        """Return elements of about the same, large peak, each with it, largest first."""
        # Numbers are distinct: elements are never compared.
        ordered = [(peak, element) for peak, _, element in sorted(self._heap, reverse=True)]
        middle = [entry for entry in ordered if entry[0] <= _SHARE * ordered[0][0]]
        return (middle if len(middle) >= _CAST // 2 else ordered)[:_CAST]


def beyond_peaks(records: Sequence[PeakRecord]) -> float:
    """Return what single large steps took from the device beyond their peaks, as a share of them, at most."""
    known = [(r.peak_bytes, r.reserved_bytes) for r in records if r.peak_bytes and r.reserved_bytes is not None]
    largest = max((peak for peak, _ in known), default=0)
    return max((reserved / peak - 1 for peak, reserved in known if peak >= _LARGE * largest), default=0.0)


def rehearse_steps(largest: Largest, run: Callable[[Any], bool], meter: CappedMeter, single: float) -> Rehearsal:
    """Find what large steps need when steps of other shapes come before them and the cache is not emptied.

    Where the allocator's segments can grow, it may take only little more than the largest of the steps' peaks; when
    one runs out of memory, all begin anew with more. Where they cannot, blocks left over from other shapes fill any
    reserve: then there is no amount to be found, and what single steps need has to do.

    Args:
        largest: what was measured.
        run: runs a step on an element; returns whether it ran out of memory.
        meter: of the device.
        single: what single steps from an empty cache were seen to need, as a share of their peaks.
    """
    cast = largest.cast()
    if len(cast) < 2:
        return Rehearsal(single, 0)
    highest, most = cast[0][0], meter.most()
    if not meter.is_expandable():
        _, drift = _in_a_row(cast, run, meter, most)
        return Rehearsal(single, drift)
    beyond = _FIRST
    while highest * (1 + beyond) < most:
        failed, drift = _in_a_row(cast, run, meter, int(highest * (1 + beyond)))
        if not failed:
            return Rehearsal(max(beyond * _MORE, single), drift)
        _log.info("steps in a row ran out of memory with %.1f %% beyond the largest peak", 100 * beyond)
        beyond *= _MORE
    _, drift = _in_a_row(cast, run, meter, most)
    return Rehearsal(max(most / highest - 1, single), drift)


def _in_a_row(
    cast: list[tuple[int, Any]], run: Callable[[Any], bool], meter: CappedMeter, limit_bytes: int
) -> tuple[bool, int]:
    """Run the elements again and again, each time in another order; return whether one failed, and the drift."""
    drift = 0
    with meter.capped(limit_bytes):
        meter.release()
        for turn in range(_ROUNDS):
            turned = cast[turn:] + cast[:turn]
            for peak, element in turned if turn % 2 == 0 else turned[::-1]:
                meter.begin()
                if run(element):
                    return True, drift
                drift = max(drift, meter.read().peak_bytes - peak)
    return False, drift
