"""Which batches to measure: few, of real elements, each larger than what is known already allows for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._checks import check_int, check_sizes
from bionemo.size_aware_batching.errors import NotIdentifiableError
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel

if TYPE_CHECKING:
    from typing_extensions import Self

    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["SuggestedShapes", "suggest_shapes"]

_log = logging.getLogger(__name__)

# The ramp multiplies elements of median size by at most this until a batch takes that share of the room; it aims at no
# more than the third.
_RAMP, _RAMPED_SHARE, _RAMP_TARGET = 4, 0.1, 0.3
# Then, at each of these shares of the room, batches around these quantiles of the sizes, and one of all sizes.
_SHARES = (0.3, 0.6, 0.95)
_QUANTILES = (0.05, 0.5, 0.95, 1.0)
_MIXED = -1.0
# No batch is predicted to take more than so many times what the largest so far took beyond the smallest: no model is
# trusted further, and none at all before so many peaks are that much above the smallest, which may all lie on a floor.
_STEP, _ABOVE, _RAISED = 4.0, 3, 1.05
# Nor is any batch padded to so many times more than was seen: until then totals may explain as much.
_PADDED_STEP = 2.5
# A prediction is raised by what the model was off where it could be checked, and at least by this.
_LEAST_MARGIN = 0.02
_FEWEST_TO_FIT = 6
# Beyond the baseline a step is taken to need this share of its peak more than it did: counters tremble.
_LEAST_GROWTH = 0.005
# More elements than these are looked at through an evenly spaced part of them.
_MOST_ELEMENTS = 2**20


class SuggestedShapes(Iterator["list[int]"]):
    """Batches to measure, chosen one by one by what the last ones took; made by `suggest_shapes`."""

    def __init__(self, matrix: AnyArray, budget: int, count: int, max_items: int) -> None:
        """Take checked arguments: (n, measures) sizes, bytes, and numbers of batches and of elements."""
        self._budget, self._count, self._max_items = budget, count, max_items
        self._matrix = matrix
        self._sums = np.float64 if matrix.dtype.kind == "f" else np.int64
        part = np.arange(len(matrix)) if len(matrix) <= _MOST_ELEMENTS else _spread(len(matrix), _MOST_ELEMENTS)
        # Sorted by size, with several measures by their sum in units of their means.
        rows = matrix[part]
        weight = (rows / np.maximum(rows.mean(axis=0), 1e-300)).sum(axis=1)
        self._order = part[np.argsort(weight, kind="stable")]
        self._seen: set[BatchShape] = set()
        self._shapes: list[BatchShape] = []
        self._peaks: list[int] = []
        self._baseline = 0
        self._asked: BatchShape | None = None
        self._model: MemoryModel | None = None
        self._ceiling = float(budget)
        self._batches = self._choose()

    def __iter__(self) -> Self:
        """Return itself: what is suggested depends on what was observed."""
        return self

    def __next__(self) -> list[int]:
        """Return the elements of the next batch.

        Raises:
            RuntimeError: the last batch's peak was not observed.
            ValueError: the budget leaves no room beside what every step takes.
        """
        if self._asked is not None:
            msg = "`suggest_shapes` needs to know each batch's peak: hand it to measure_peaks, or call observe()"
            raise RuntimeError(msg)
        if len(self._seen) >= self._count:
            raise StopIteration
        indices = next(self._batches)
        self._asked = self._shape(indices)
        return [int(i) for i in indices]

    def observe(self, peak_bytes: int | None, baseline_bytes: int = 0) -> None:
        """Take what the batch that was suggested last needed.

        Args:
            peak_bytes: its peak; None if it ran out of memory.
            baseline_bytes: what was allocated when its step began.

        Raises:
            RuntimeError: no batch was suggested since the last call.
        """
        if self._asked is None:
            msg = "there is no batch whose peak could be observed"
            raise RuntimeError(msg)
        shape, self._asked = self._asked, None
        if peak_bytes is None:
            # Whatever the reason, the device holds less than the budget says.
            self._ceiling = min(self._ceiling, max(0.9 * self._predict(shape), *self._peaks, 1))
            _log.info("a suggested batch ran out of memory; from here on none above %s", format_bytes(self._ceiling))
            return
        off = abs(self._predict(shape) / max(peak_bytes, 1) - 1) if self._model is not None else 1.0
        self._shapes.append(shape)
        self._peaks.append(int(peak_bytes))
        self._baseline = int(baseline_bytes)
        if off > 2 * self._margin():
            self._model = self._fit()

    def _choose(self) -> Iterator[IntArray]:
        """Yield batches; what follows a yield may count on its peak."""
        yield from self._fresh(0.5, 1)
        if not self._peaks or self._peaks[0] >= self._budget:
            took = f"peaks at {format_bytes(self._peaks[0])}" if self._peaks else "runs out of memory"
            msg = f"one element of median size {took}: the budget {format_bytes(self._budget)} leaves no room"
            raise ValueError(msg)
        # A second one as small: whether there is a floor shows only where two lie on it.
        yield from self._fresh(_QUANTILES[0], 1)
        items = 1
        while self._room_taken() < _RAMPED_SHARE and len(self._peaks) < self._count // 2:
            # What is known of batches on a floor is too much rather than too little.
            share = _RAMP_TARGET if self._raised() else _SHARES[-1]
            grown = self._most(0.5, share, min(items * _RAMP, self._max_items))
            if grown <= items:
                break
            yield from self._fresh(0.5, grown)
            items = grown
        for share in _SHARES:
            for quantile in (*_QUANTILES, _MIXED):
                yield from self._fresh(quantile, self._most(quantile, share, self._max_items))
        # What is left of the count goes where plans will be: near the budget.
        for quantile in np.linspace(0.1, 0.9, self._count):
            yield from self._fresh(float(quantile), self._most(float(quantile), _SHARES[-1], self._max_items))

    def _fresh(self, quantile: float, items: int) -> Iterator[IntArray]:
        """Yield a batch unless there is none or one of its shape was there before."""
        if items > 0:
            indices = self._indices(quantile, items)
            shape = self._shape(indices)
            if shape not in self._seen:
                self._seen.add(shape)
                yield indices

    def _indices(self, quantile: float, items: int) -> IntArray:
        """Return neighbours in size, the largest of them at the quantile; or elements of all sizes."""
        n = self._order.size
        if quantile == _MIXED:
            # The longest few would alone decide what such a batch is padded to.
            top = max(int(_QUANTILES[2] * n), 1)
            return self._order[_spread(top, min(items, top))[::-1]]
        end = max(int(quantile * (n - 1)) + 1, min(items, n))
        return self._order[max(end - items, 0) : end][::-1]

    def _shape(self, indices: IntArray) -> BatchShape:
        rows = self._matrix[indices]
        longest, total = rows.max(axis=0).tolist(), rows.sum(axis=0, dtype=self._sums).tolist()
        if rows.shape[1] == 1:
            return BatchShape(len(rows), longest[0], total[0])
        return BatchShape(len(rows), tuple(longest), tuple(total))

    def _most(self, quantile: float, share: float, at_most: int) -> int:
        """Return how many elements are predicted to stay below a share of the room; 0 if not even one does."""
        base = min(self._peaks)
        limit = min(base + share * (self._budget - base), self._ceiling)
        if self._model is not None:
            limit = min(limit, base + _STEP * (max(self._peaks) - base))
        low, high = 0, min(at_most, self._order.size)
        while low < high:
            middle = (low + high + 1) // 2
            shape = self._shape(self._indices(quantile, middle))
            if self._predict(shape) <= limit and self._pads_as_seen(shape):
                low = middle
            else:
                high = middle - 1
        return low

    def _predict(self, shape: BatchShape) -> float:
        """Predict bytes, on the high side."""
        if self._model is not None:
            return float(self._model.predict(shape)) * (1 + self._margin())
        # What a smaller batch took beyond the baseline, in proportion, is too much, since a part of it does not grow.
        growth = (
            (max(peak - self._baseline, 0) + _LEAST_GROWTH * peak) * _times_larger(shape, known)
            for known, peak in zip(self._shapes, self._peaks, strict=True)
        )
        return self._baseline + min(growth, default=float(self._budget))

    def _pads_as_seen(self, shape: BatchShape) -> bool:
        """Tell whether a model may be asked: padding that was not seen may be what memory goes with."""
        if self._model is None:
            return True
        seen = np.max([known.items * np.atleast_1d(known.longest) for known in self._shapes], axis=0)
        return bool((shape.items * np.atleast_1d(shape.longest) <= _PADDED_STEP * seen).all())

    def _margin(self) -> float:
        return max(self._model.held_out_error[1], _LEAST_MARGIN) if self._model is not None else 0.0

    def _fit(self) -> MemoryModel | None:
        if len(self._peaks) < _FEWEST_TO_FIT or self._raised() < _ABOVE or min(self._peaks) <= 0:
            return None
        try:
            return MemoryModel().fit(self._shapes, [float(peak) for peak in self._peaks])
        except NotIdentifiableError:
            return None

    def _raised(self) -> int:
        """Return how many peaks are clearly above the smallest."""
        return sum(peak > _RAISED * min(self._peaks) for peak in self._peaks)

    def _room_taken(self) -> float:
        base = min(self._peaks)
        return (max(self._peaks) - base) / max(self._budget - base, 1)


def suggest_shapes(sizes: Any, budget: int, *, count: int = 20, max_items: int | None = None) -> SuggestedShapes:
    """Suggest the few batches whose peaks tell most about a step's memory, from small to near the budget.

    They are made of real elements: neighbours in size around several quantiles, up to the longest, as a plan by size
    has them, and mixtures of all sizes, which tell padding from totals. Each is chosen when the last one's peak is
    known, so that it fills a share of the budget and is predicted not to pass it; `measure_peaks` and
    `estimate_peaks` tell the peaks.

    Args:
        sizes: (n,) or (n, measures) sizes.
        budget: bytes that no batch should need more of; see `memory_budget`.
        count: how many batches at most; there are fewer if the elements allow no more different ones.
        max_items: the largest number of elements in a batch; None for no limit.

    Returns:
        An iterator of lists of indices, to be consumed once.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: no sizes, or a size is NaN, infinite or negative; the budget is not positive, `count` below 4.

    >>> lengths = np.random.default_rng(0).integers(50, 500, 1000)
    >>> batches = suggest_shapes(lengths, budget=2**20, count=8)
    >>> for indices in batches:  # measure_peaks does this with what it measures
    ...     batches.observe(2**16 + 10 * len(indices) * int(lengths[indices].max()))
    """
    try:
        matrix = np.asarray(sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"`sizes` must be numbers: {error!s:.200}"
        raise TypeError(msg) from error
    if matrix.dtype.kind not in "iuf" or matrix.ndim not in (1, 2) or matrix.size == 0:
        msg = f"`sizes` must be (n,) or (n, measures) numbers, got an array of {matrix.dtype} of shape {matrix.shape}"
        raise ValueError(msg)
    matrix = matrix[:, None] if matrix.ndim == 1 else matrix
    for column in matrix.T:
        check_sizes("sizes", column)
    budget, count = check_int("budget", budget, at_least=1), check_int("count", count, at_least=4)
    most = len(matrix) if max_items is None else check_int("max_items", max_items, at_least=1)
    return SuggestedShapes(matrix, budget, count, most)


def _times_larger(shape: BatchShape, known: BatchShape) -> float:
    """Return by how much memory may grow from one shape to another: with the items and the square of the longest."""
    ratios = np.atleast_1d(shape.longest) / np.maximum(np.atleast_1d(known.longest), 1e-9)
    return max(shape.items / known.items, 1.0) * float(max(ratios.max(), 1.0)) ** 2


def _spread(n: int, count: int) -> IntArray:
    """Return `count` of n positions, evenly spaced, the last one among them."""
    return (np.arange(1, count + 1) * n) // count - 1
