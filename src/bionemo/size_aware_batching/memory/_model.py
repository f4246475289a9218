"""`MemoryModel`: from the shape of a batch to the peak memory of its step."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._checks import check_sizes
from bionemo.size_aware_batching._files import read_document, write_document
from bionemo.size_aware_batching.errors import FileFormatError
from bionemo.size_aware_batching.memory._fit import fit_terms, margin_for
from bionemo.size_aware_batching.memory._profile import Profile
from bionemo.size_aware_batching.memory._shape import BatchShape, shape_table
from bionemo.size_aware_batching.memory._terms import TERMS, UNITS

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import numpy.typing as npt

    from bionemo.size_aware_batching._types import FloatArray

__all__ = ["MemoryModel"]

_KIND, _VERSION = "size-aware-batching memory model", 1


class MemoryModel:
    """Peak bytes of a step as fixed bytes plus non-negative multiples of a few terms of the batch's shape.

    The terms (items, total, items x longest, items x longest^2, longest^2) are chosen by held-out error. Where
    small batches were seen to need the same whatever their shape (the optimizer's update), that is a floor. No
    coefficient is negative, so a prediction never falls when a batch grows. As a cost, the model is its
    `upper_bound`: a plan made with it keeps even the bound within the budget.

    Args:
        coverage: the probability with which a new step should stay below `upper_bound`, in (0, 1).

    >>> shapes = [BatchShape(n, l, n * l) for n in (1, 4, 16) for l in (32, 128, 512)]
    >>> peaks = [1_000_000 + 2_000 * s.items * s.longest for s in shapes]
    >>> model = MemoryModel().fit(shapes, peaks)
    >>> print(round(model.predict(BatchShape(8, 256, 2048))))
    5096000
    """

    def __init__(self, *, coverage: float = 0.999) -> None:
        """Make a model that is not fitted yet.

        Raises:
            ValueError: `coverage` is not between 0 and 1.
        """
        if not isinstance(coverage, (int, float)) or not 0 < coverage < 1:
            msg = f"`coverage` must be between 0 and 1, got {coverage!r:.40}"
            raise ValueError(msg)
        self.coverage = float(coverage)
        self._fixed = math.nan
        self._floor = 0.0
        self._coefficients: dict[str, float] = {}
        self._margin = math.nan
        self._errors = (math.nan, math.nan)
        self._measurements = 0

    def fit(self, features: Profile | Sequence[Any] | FloatArray, peaks: Sequence[float] | None = None) -> MemoryModel:
        """Fit the model to measured peaks.

        Args:
            features: a `Profile`, whose elements without a peak are left out; or n batch shapes
                (items, longest, total).
            peaks: (n,) bytes; only with batch shapes.

        Returns:
            The model itself.

        Raises:
            NotIdentifiableError: the measurements are too few or too alike; the text says what else to measure.
            TypeError: `peaks` is missing, or given beside a `Profile`; features are not batch shapes.
            ValueError: different lengths; a value is NaN, infinite or negative.
        """
        if isinstance(features, Profile) == (peaks is not None):
            msg = "`fit` takes a Profile alone, or batch shapes and `peaks`"
            raise TypeError(msg)
        if isinstance(features, Profile):
            profile = features
            features, peaks = profile.features, profile.peak_bytes
        table = shape_table(features)
        try:
            y = np.asarray(peaks, np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            msg = f"`peaks` must be numbers: {error}"
            raise ValueError(msg) from error
        if y.shape != (len(table),):
            msg = f"`peaks` must be one number for each of the {len(table)} features, got shape {y.shape}"
            raise ValueError(msg)
        if not (np.isfinite(y) & (y > 0)).all():
            index = int(np.flatnonzero(~(np.isfinite(y) & (y > 0)))[0])
            msg = f"`peaks` must be finite and positive, got {y[index]} at index {index}"
            raise ValueError(msg)
        curve, held_out = fit_terms(table, y)
        weights = dict(zip(curve.names, curve.weights[1:].tolist(), strict=True))
        self._coefficients = {name: weight for name, weight in weights.items() if weight > 0}
        self._fixed, self._floor = float(curve.weights[0]), curve.floor
        self._margin = margin_for(held_out, 1 + len(self._coefficients), self.coverage)
        errors = np.abs(1 - 1 / held_out)
        self._errors = float(errors.mean()), float(errors.max())
        self._measurements = len(y)
        return self

    @property
    def coefficients(self) -> dict[str, float]:
        """Bytes per unit of each chosen term."""
        self._check_fitted()
        return dict(self._coefficients)

    @property
    def held_out_error(self) -> tuple[float, float]:
        """Mean and largest relative error on measurements that the prediction had not seen, as fractions."""
        self._check_fitted()
        return self._errors

    @property
    def margin_factor(self) -> float:
        """`upper_bound` over `predict`."""
        self._check_fitted()
        return self._margin

    @property
    def fixed_bytes(self) -> int:
        """Upper bound of the bytes that no batch can change: weights, optimizer state, workspaces."""
        self._check_fitted()
        return math.ceil(self._fixed * self._margin)

    def element_bytes(self, sizes: npt.ArrayLike) -> FloatArray:
        """Return each element's share of the upper bound in a batch of elements of its own size.

        With `fixed_bytes` this is what the documented sampler takes, best inside buckets of like sizes:
        `SizeAwareBatchSampler(sampler, model.element_bytes(sizes), budget - model.fixed_bytes)`.

        Args:
            sizes: (n,) sizes in the unit of the measured shapes.

        Returns:
            (n,) bytes.

        Raises:
            ValueError: `sizes` is not 1-D, or a size is NaN, infinite or negative.
        """
        self._check_fitted()
        values = np.asarray(sizes, np.float64)
        if values.ndim != 1:
            msg = f"`sizes` must be 1-D, got {values.ndim}-D"
            raise ValueError(msg)
        check_sizes("sizes", values)
        bound: FloatArray = self._margin * self._growth(np.ones_like(values), values, values)
        return bound

    def predict(self, features: Any) -> Any:
        """Predict the peak of steps.

        Args:
            features: n batch shapes (items, longest, total), or one `BatchShape`.

        Returns:
            (n,) bytes, or one number for one `BatchShape`.
        """
        self._check_fitted()
        table = shape_table(features)
        predicted = self._peak(*table.T)
        return float(predicted[0]) if isinstance(features, BatchShape) else predicted

    def upper_bound(self, features: Any) -> Any:
        """Bound the peak of steps: a new measurement stays below with probability `coverage`.

        The bound is `margin_factor` times the prediction; the factor is calibrated on held-out errors.

        Args:
            features: n batch shapes (items, longest, total), or one `BatchShape`.

        Returns:
            (n,) bytes, or one number for one `BatchShape`.
        """
        return self._margin * self.predict(features)

    def __call__(self, items: Any, longest: Any, total: Any) -> Any:
        """Return the upper bound as a cost: scalars or equal-length arrays in, the same out, in bytes."""
        self._check_fitted()
        # Products of integers would wrap.
        return self._margin * self._peak(*(np.asarray(value, np.float64)[()] for value in (items, longest, total)))

    def polynomial(self) -> tuple[float, float, dict[str, float]]:
        """Return the cost in parts, for a planner's compiled loop: the larger of a floor and a sum.

        Returns:
            The floor; the fixed part of the sum; and for each term of the shape its weight. All in bytes.
        """
        self._check_fitted()
        weights = {name: self._margin * value for name, value in self._coefficients.items()}
        return self._margin * self._floor, self._margin * self._fixed, weights

    def summary(self) -> str:
        """Describe the fit: what each term costs, and how well it predicts."""
        self._check_fitted()
        lines = [f"fixed: {format_bytes(self._fixed)}"]
        if self._floor:
            lines.append(f"at least, however small the batch: {format_bytes(self._floor)}")
        lines += [f"{name}: {value / 1024:.4g} KiB per {UNITS[name]}" for name, value in self._coefficients.items()]
        mean, worst = self._errors
        lines.append(f"held-out error over {self._measurements} measurements: mean {mean:.2%}, largest {worst:.2%}")
        lines.append(f"upper bound: {self._margin - 1:.2%} above the prediction (coverage {self.coverage:g})")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as JSON; the file is replaced whole or not at all."""
        self._check_fitted()
        body = {
            "coverage": self.coverage,
            "fixed_bytes": self._fixed,
            "floor_bytes": self._floor,
            "coefficients": self._coefficients,
            "margin_factor": self._margin,
            "held_out_error": list(self._errors),
            "measurements": self._measurements,
        }
        write_document(path, _KIND, _VERSION, body)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MemoryModel:
        """Read a model written by `save`.

        Raises:
            FileFormatError: the file is damaged, foreign or of a newer version.
        """
        body = read_document(path, _KIND, _VERSION)
        try:
            model = cls(coverage=body["coverage"])
            terms, (mean, worst) = dict(body["coefficients"]), body["held_out_error"]
            numbers = [
                body["fixed_bytes"],
                body["floor_bytes"],
                body["margin_factor"],
                mean,
                worst,
                body["measurements"],
            ]
            good = all(type(n) in (int, float) and 0 <= n < 2.0**1000 for n in (*numbers, *terms.values()))
            if not good or body["margin_factor"] < 1 or not terms or not terms.keys() <= TERMS.keys():
                raise ValueError(numbers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"{path} is a damaged {_KIND} file: {type(error).__name__}"
            raise FileFormatError(msg) from error
        model._fixed, model._floor, model._margin = map(float, numbers[:3])
        model._errors, model._measurements = (float(mean), float(worst)), int(numbers[5])
        model._coefficients = {name: float(value) for name, value in terms.items()}
        return model

    def __repr__(self) -> str:
        fitted = f", terms={list(self._coefficients)}" if self._coefficients else ""
        return f"MemoryModel(coverage={self.coverage:g}{fitted})"

    def _peak(self, items: Any, longest: Any, total: Any) -> Any:
        return np.maximum(self._fixed + self._growth(items, longest, total), self._floor)

    def _growth(self, items: Any, longest: Any, total: Any) -> Any:
        return sum(value * TERMS[name](items, longest, total) for name, value in self._coefficients.items())

    def _check_fitted(self) -> None:
        if not self._coefficients:
            msg = "this MemoryModel is not fitted: call fit(profile) first"
            raise ValueError(msg)
