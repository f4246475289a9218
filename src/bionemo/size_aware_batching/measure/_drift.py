"""Tells when a model no longer predicts the peaks that are observed."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.memory import BatchShape

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Drift"]

# So many peaks above the bound come about by chance less often than this.
_UNLIKELY = 1e-3
# A small drift does no harm; and peaks move by a percent with what the allocator happens to hold.
_SMALLEST_TOLERANCE = 0.02


class Drift:
    """Compares peaks with a model's predictions, and says when it no longer holds."""

    def __init__(self, model: Any, window: int, tolerance: float | None) -> None:
        if isinstance(model, type) or not callable(getattr(model, "predict", None)):
            msg = f"`model` must be None or have a method `predict`, as a fitted MemoryModel has, got {kind_of(model)}"
            raise TypeError(msg)
        _, largest = getattr(model, "held_out_error", (0.0, 0.0))  # a MemoryModel that is not fitted says so here
        self._model, self._window, self._ratios = model, window, deque[float](maxlen=window)
        self._bounds = _Bounds(model, window) if hasattr(model, "upper_bound") and hasattr(model, "coverage") else None
        self._tolerance = max(3 * largest, _SMALLEST_TOLERANCE) if tolerance is None else tolerance
        self._warned = False
        self._compared, self._error_sum, self._largest_error = 0, 0.0, 0.0

    def check(self, step: int, shape: Any, peak: int) -> list[str]:
        """Take a step's peak; return what there is to warn of."""
        # A row, as regressors take it in a plan's cost too.
        features = np.hstack(shape).astype(np.float64)[None] if isinstance(shape, BatchShape) else [shape]
        predicted = _one(self._model.predict(features))
        # An empty step has no ratio, and a prediction of nothing (by a model that is not ours) none either.
        if peak == 0 or not predicted > 0:
            return []
        error = abs(1 - predicted / peak)
        self._compared, self._error_sum = self._compared + 1, self._error_sum + error
        self._largest_error = max(self._largest_error, error)
        where = f"step {step} of shape {shape!r:.100} took {format_bytes(peak)}, predicted {format_bytes(predicted)}"
        found = [self._shift(peak / predicted)]
        if self._bounds:
            bound = _one(self._model.upper_bound(features))
            where += f", bound {format_bytes(bound)}"
            found.append(self._bounds.check(peak, predicted, bound))
        return [f"{where}: {text}; refit the model with refit(), and plan with it anew" for text in found if text]

    def summary(self) -> Iterator[str]:
        if self._compared:
            mean = self._error_sum / self._compared
            yield f"error of {self._compared} predictions: mean {mean:.2%}, largest {self._largest_error:.2%}"
        if self._bounds:
            yield self._bounds.describe(self._bounds.all_above, self._bounds.all_steps)

    def _shift(self, ratio: float) -> str:
        self._ratios.append(ratio)
        if len(self._ratios) < self._window:
            return ""
        shift, before = median(self._ratios) - 1, self._warned
        # Half: a median that trembles at the tolerance would warn at every turn.
        self._warned = abs(shift) > (self._tolerance / 2 if before else self._tolerance)
        if before or not self._warned:
            return ""
        return (
            f"the last {self._window} peaks are {abs(shift):.1%} {'above' if shift > 0 else 'below'} their "
            f"predictions at the median, more than the tolerance {self._tolerance:.1%}"
        )


class _Bounds:
    """Counts peaks above the bound, and finds when they are too many for the coverage."""

    def __init__(self, model: Any, window: int) -> None:
        self._coverage = model.coverage
        if not isinstance(self._coverage, (int, float)) or not 0 < self._coverage < 1:
            msg = f"the coverage of `model` must be between 0 and 1, got {self._coverage!r:.40}"
            raise ValueError(msg)
        self._quiet, self._warned = max(window, round(1 / (1 - self._coverage))), False
        self.all_steps = self.all_above = self._steps = self._above = self._below_since = 0

    def check(self, peak: int, predicted: float, bound: float) -> str:
        # Half a byte: the bound of a model without errors is off its own peaks by a rounding.
        above, far = peak > bound + 0.5, peak > bound * bound / predicted + 0.5
        self._steps, self._above = self._steps + 1, self._above + above
        self.all_steps, self.all_above = self.all_steps + 1, self.all_above + above
        self._below_since = 0 if above else self._below_since + 1
        if self._warned and self._below_since >= self._quiet:
            self._steps, self._above, self._warned = 0, 0, False
        if self._warned or not above:
            return ""
        self._warned = far or self._is_unlikely()
        if far:
            return "the peak is further above the bound than the bound above the prediction"
        return self.describe(self._above, self._steps) if self._warned else ""

    def describe(self, above: int, steps: int) -> str:
        allowed = (1 - self._coverage) * steps
        return f"{above} of {steps} peaks above the bound, where coverage {self._coverage:g} allows {allowed:.2g}"

    def _is_unlikely(self) -> bool:
        from scipy.special import bdtrc  # noqa: PLC0415 - slow to import

        # The chance of so many or more in so many steps.
        return bool(bdtrc(self._above - 1, self._steps, 1 - self._coverage) < _UNLIKELY)


def _one(values: Any) -> float:
    return float(np.asarray(values, np.float64).reshape(-1)[0])
