"""What a fit found, as a value: evaluated by the model, written to its file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bionemo.size_aware_batching.memory._terms import terms

__all__ = ["Fitted"]

# No number of bytes, no ratio and no count is larger; products of such stay finite.
_LARGEST = 2.0**100
_MOST_MEASURES = 64


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted memory model.

    Attributes:
        fixed_bytes: what no batch changes.
        floor_bytes: what every step takes at least; 0 where none was seen.
        coefficients: bytes per unit of each term, positive.
        measures: how many numbers the size of an element is.
        margin_factor: of the upper bound, which is this times the prediction, at least 1,
        margin_bytes: and this more.
        held_out_error: mean and largest relative error on measurements that the prediction had not seen.
        measurements: how many peaks it was fitted to.
        covered: how many of them the bound covers when they are held out.
    """

    fixed_bytes: float
    floor_bytes: float
    coefficients: dict[str, float]
    measures: int
    margin_factor: float
    margin_bytes: float
    held_out_error: tuple[float, float]
    measurements: int
    covered: int

    def peak(self, items: Any, longest: Any, total: Any) -> Any:
        """Predict bytes; with several measures, `longest` and `total` have one in each place of their last axis."""
        return np.maximum(self.fixed_bytes + self.growth(items, longest, total), self.floor_bytes)

    def bound(self, predicted: Any) -> Any:
        """Return the upper bound of steps of which this was predicted."""
        return self.margin_factor * predicted + self.margin_bytes

    def growth(self, items: Any, longest: Any, total: Any) -> Any:
        """Predict the bytes that the batch adds to the fixed ones."""
        known = terms(self.measures)
        growth: Any = 0.0
        for name, weight in self.coefficients.items():
            value, _, k = known[name]
            if self.measures > 1:
                growth = growth + weight * value(items, longest[..., k], total[..., k])
            else:
                growth = growth + weight * value(items, longest, total)
        return growth

    def document(self) -> dict[str, Any]:
        """Return plain values for a JSON file."""
        return asdict(self)

    @classmethod
    def of_document(cls, body: dict[str, Any]) -> Fitted:
        """Rebuild what `document` returned.

        Raises:
            KeyError: something is missing.
            TypeError: a value is of the wrong kind.
            ValueError: a value cannot come from a fit.
        """
        coefficients, (mean, worst) = body["coefficients"], body["held_out_error"]
        amounts = [body[name] for name in ("fixed_bytes", "floor_bytes", "margin_factor", "margin_bytes")]
        amounts += [mean, worst]
        counts = measures, measurements, covered = body["measures"], body["measurements"], body["covered"]
        good = (
            isinstance(coefficients, dict)
            and all(type(n) in (int, float) and 0 <= n < _LARGEST for n in (*amounts, *coefficients.values()))
            and all(type(n) is int for n in counts)
            and 1 <= measures <= _MOST_MEASURES
            and 0 <= covered <= measurements > 0
            and amounts[2] >= 1
            and mean <= worst
            and coefficients.keys() <= terms(measures).keys()
            and min(coefficients.values(), default=0) > 0
        )
        if not good:
            raise ValueError(amounts)
        fixed, floor, factor, more, mean, worst = map(float, amounts)
        weights = {name: float(value) for name, value in coefficients.items()}
        return cls(fixed, floor, weights, measures, factor, more, (mean, worst), measurements, covered)
