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
from bionemo.size_aware_batching.memory._fitted import Fitted
from bionemo.size_aware_batching.memory._profile import Profile
from bionemo.size_aware_batching.memory._shape import BatchShape, shape_table
from bionemo.size_aware_batching.memory._terms import measures_of, terms

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

    Sizes may have several measures (atoms and bonds of a molecule): measure shapes whose `longest` and `total` are
    tuples, and plan with (n, measures) sizes. A measure of your own is one more: with the squares of the lengths as
    a second, memory that grows with the total of squares is a term too.

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
        self._fitted: Fitted | None = None

    @property
    def measures(self) -> int:
        """How many numbers the size of an element is."""
        return self._fit().measures

    def fit(self, features: Profile | Sequence[Any] | FloatArray, peaks: Sequence[float] | None = None) -> MemoryModel:
        """Fit the model to measured peaks.

        Args:
            features: a `Profile`, whose elements without a peak are left out, and whose `drift_bytes` the upper bound
                has room for; or n batch shapes (items, longest, total), or a table of them: items, then longest, then
                total in each measure.
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
        drift = 0
        if isinstance(features, Profile):
            profile = features
            features, peaks, drift = profile.features, profile.peak_bytes, profile.drift_bytes
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
        coefficients = {name: weight for name, weight in weights.items() if weight > 0}
        # How far off, in units that grow with the prediction but not from zero: budgets are near the largest peak, and
        # the megabytes by which tiny steps are off must not become percents of it.
        predicted, offset = y / held_out, y.max()
        scores = (y - predicted) / (predicted + offset)
        factor = margin_for(1 + scores, 1 + len(coefficients), self.coverage)
        errors = np.abs(1 - 1 / held_out)
        self._fitted = Fitted(
            fixed_bytes=float(curve.weights[0]),
            floor_bytes=curve.floor,
            coefficients=coefficients,
            measures=measures_of(table),
            margin_factor=factor,
            margin_bytes=float((factor - 1) * offset) + drift,
            held_out_error=(float(errors.mean()), float(errors.max())),
            measurements=len(y),
            covered=int((1 + scores <= factor).sum()),
        )
        return self

    @property
    def coefficients(self) -> dict[str, float]:
        """Bytes per unit of each chosen term."""
        return dict(self._fit().coefficients)

    @property
    def held_out_error(self) -> tuple[float, float]:
        """Mean and largest relative error on measurements that the prediction had not seen, as fractions."""
        return self._fit().held_out_error

    @property
    def margin_factor(self) -> float:
        """`upper_bound` is this times the prediction, and `margin_bytes` more."""
        return self._fit().margin_factor

    @property
    def margin_bytes(self) -> float:
        """What `upper_bound` has beyond `margin_factor` times the prediction."""
        return self._fit().margin_bytes

    @property
    def fixed_bytes(self) -> int:
        """Upper bound of the bytes that no batch can change: weights, optimizer state, workspaces."""
        return math.ceil(float(self._fit().bound(self._fit().fixed_bytes)))

    def element_bytes(self, sizes: npt.ArrayLike) -> FloatArray:
        """Return each element's share of the upper bound in a batch of elements of its own size.

        With `fixed_bytes` this is what the documented sampler takes, best inside buckets of like sizes:
        `SizeAwareBatchSampler(sampler, model.element_bytes(sizes), budget - model.fixed_bytes)`.

        Args:
            sizes: (n,) sizes in the unit of the measured shapes, or (n, measures).

        Returns:
            (n,) bytes.

        Raises:
            ValueError: another number of measures, or a size is NaN, infinite or negative.
        """
        fitted = self._fit()
        values = np.asarray(sizes, np.float64)
        if values.ndim == 0 or values.shape[1:] != (() if fitted.measures == 1 else (fitted.measures,)):
            wanted = "(n,)" if fitted.measures == 1 else f"(n, {fitted.measures})"
            msg = f"`sizes` must be of shape {wanted}, got {values.shape}"
            raise ValueError(msg)
        check_sizes("sizes", values)
        bound: FloatArray = fitted.margin_factor * fitted.growth(np.ones(len(values)), values, values)
        return bound

    def predict(self, features: Any) -> Any:
        """Predict the peak of steps.

        Args:
            features: n batch shapes (items, longest, total), or one `BatchShape`.

        Returns:
            (n,) bytes, or one number for one `BatchShape`.
        """
        fitted, table = self._fit(), shape_table(features)
        if len(table) == 0:
            return np.empty(0)
        if measures_of(table) != fitted.measures:
            msg = f"`features` have {measures_of(table)} measures, the model was fitted to {fitted.measures}"
            raise ValueError(msg)
        items, longest, total = np.split(table, [1, 1 + measures_of(table)], axis=1)
        columns = (longest, total) if fitted.measures > 1 else (longest[:, 0], total[:, 0])
        predicted = fitted.peak(items[:, 0], *columns)
        return float(predicted[0]) if isinstance(features, BatchShape) else predicted

    def upper_bound(self, features: Any) -> Any:
        """Bound the peak of steps: a new measurement stays below with probability `coverage`.

        The bound is calibrated on held-out errors, in units of the prediction plus the largest measured peak: a small
        step may be off by some megabytes without widening the bound of a large one.

        Args:
            features: n batch shapes (items, longest, total), or one `BatchShape`.

        Returns:
            (n,) bytes, or one number for one `BatchShape`.
        """
        return self._fit().bound(self.predict(features))

    def __call__(self, items: Any, longest: Any, total: Any) -> Any:
        """Return the upper bound as a cost: scalars or equal-length arrays in, the same out, in bytes.

        With several measures, `longest` and `total` have a column for each.

        Raises:
            ValueError: another number of measures than the model was fitted to.
        """
        fitted = self._fit()
        # Products of integers would wrap.
        shape = [np.asarray(value, np.float64)[()] for value in (items, longest, total)]
        for value in shape[1:]:
            if fitted.measures > 1 and np.shape(value)[-1:] != (fitted.measures,):
                msg = f"longest and total must have {fitted.measures} measures, got an array of shape {np.shape(value)}"
                raise ValueError(msg)
        return fitted.bound(fitted.peak(*shape))

    def polynomial(self) -> tuple[float, float, dict[str, float]]:
        """Return the cost in parts, for a planner's compiled loop: the larger of a floor and a sum.

        Returns:
            The floor; the fixed part of the sum; and for each term of the shape its weight. All in bytes.
        """
        fitted = self._fit()
        weights = {name: fitted.margin_factor * value for name, value in fitted.coefficients.items()}
        return float(fitted.bound(fitted.floor_bytes)), float(fitted.bound(fitted.fixed_bytes)), weights

    def summary(self) -> str:
        """Describe the fit: what each term costs, and how well it predicts."""
        fitted = self._fit()
        lines = [f"fixed: {format_bytes(fitted.fixed_bytes)}"]
        if fitted.floor_bytes:
            lines.append(f"at least, however small the batch: {format_bytes(fitted.floor_bytes)}")
        known = terms(fitted.measures)
        lines += [f"{name}: {n / 1024:.4g} KiB per {known[name].unit}" for name, n in fitted.coefficients.items()]
        mean, worst = fitted.held_out_error
        lines.append(f"held-out error over {fitted.measurements} measurements: mean {mean:.2%}, largest {worst:.2%}")
        lines.append(
            f"upper bound: {fitted.margin_factor - 1:.2%} and {format_bytes(fitted.margin_bytes)} above the prediction "
            f"(coverage {self.coverage:g}); "
            f"{fitted.covered} of {fitted.measurements} held-out peaks below it"
        )
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model as JSON; the file is replaced whole or not at all."""
        write_document(path, _KIND, _VERSION, {"coverage": self.coverage, **self._fit().document()})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MemoryModel:
        """Read a model written by `save`.

        Raises:
            FileFormatError: the file is damaged, foreign or of a newer version.
        """
        body = read_document(path, _KIND, _VERSION)
        try:
            model = cls(coverage=body["coverage"])
            model._fitted = Fitted.of_document(body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"{path} is a damaged {_KIND} file: {type(error).__name__}"
            raise FileFormatError(msg) from error
        return model

    def __repr__(self) -> str:
        fitted = f", terms={list(self._fitted.coefficients)}" if self._fitted else ""
        return f"MemoryModel(coverage={self.coverage:g}{fitted})"

    def _fit(self) -> Fitted:
        if self._fitted is None:
            msg = "this MemoryModel is not fitted: call fit(profile) first"
            raise ValueError(msg)
        return self._fitted
