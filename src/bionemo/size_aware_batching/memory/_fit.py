"""Choosing the terms of a memory model and fitting them, by held-out relative error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bionemo.size_aware_batching.errors import NotIdentifiableError
from bionemo.size_aware_batching.memory._terms import TERMS, columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bionemo.size_aware_batching._types import FloatArray

__all__ = ["Fit", "fit_terms", "margin_for"]

# More terms than these fit noise: a training step's peak is fixed bytes, something padded, something squared.
_MOST_TERMS = 3
# A simpler model is preferred while its held-out error is at most this factor, or this much, above the best one.
_NO_BETTER, _NO_BETTER_ABSOLUTE = 1.1, 2e-4
# Columns of unit length whose smallest singular value is below this share of the largest say the same thing twice.
_COLLINEAR = 1e-3
# Below this ratio of padded to real sizes the measured batches cannot tell the two apart.
_TELLING_PADDING = 1.05
_FOLDS = 40


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted combination of terms.

    Attributes:
        fixed_bytes: what does not depend on the batch.
        coefficients: term -> bytes, all positive.
        held_out: (n,) for each measurement, its peak over the prediction by a model that did not see it.
    """

    fixed_bytes: float
    coefficients: dict[str, float]
    held_out: FloatArray


def fit_terms(table: FloatArray, peaks: FloatArray) -> Fit:
    """Fit peaks with the terms that predict held-out measurements best; the fewest of those that do about as well.

    Each candidate is fitted by non-negative least squares on relative errors (Lawson and Hanson, "Solving Least
    Squares Problems", 1974) and judged by leave-one-out, from 40 measurements on by 40 folds.

    Args:
        table: (n, 3) items, longest, total.
        peaks: (n,) bytes, positive.

    Raises:
        NotIdentifiableError: the shapes are too few or too alike; the text says what to measure in addition.
    """
    _check_variety(table)
    best: dict[tuple[str, ...], tuple[float, FloatArray]] = {}
    for names in _candidates(table):
        held_out = _held_out(columns(table, names), peaks)
        best[names] = float(np.abs(1 - 1 / held_out).mean()), held_out
    if not best:
        msg = (
            "the measured shapes are too much alike: measure in addition batches of few long and of many short "
            "elements, small and large ones"
        )
        raise NotIdentifiableError(msg)
    lowest = min(error for error, _ in best.values())
    enough = max(lowest * _NO_BETTER, lowest + _NO_BETTER_ABSOLUTE)
    names = min((n for n, (error, _) in best.items() if error <= enough), key=lambda n: (len(n), best[n][0]))
    weights = _nnls(columns(table, names), peaks)
    coefficients = {name: float(w) for name, w in zip(names, weights[1:], strict=True) if w > 0}
    if not coefficients:
        msg = "the measured peaks do not grow with the batch: measure larger batches, up to near the budget"
        raise NotIdentifiableError(msg)
    return Fit(float(weights[0]), coefficients, best[names][1])


def margin_for(held_out: FloatArray, parameters: int, coverage: float) -> float:
    """Return the factor on predictions that a new measurement stays below with the stated probability.

    With n measurements the k-th smallest held-out ratio, k = ceil((n + 1) coverage), is such a factor whatever
    the distribution (split conformal prediction: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random
    World", 2005). A few dozen measurements do not reach 0.999 that way; then it is the larger of the worst held-out
    ratio and the one-sided Student t limit of the held-out relative errors.
    """
    from scipy.stats import t  # noqa: PLC0415 - slow to import

    n = held_out.size
    rank = math.ceil((n + 1) * coverage)
    if rank <= n:
        return float(max(np.sort(held_out)[rank - 1], 1.0))
    spread = math.sqrt(float(np.square(held_out - 1).sum()) / max(n - parameters, 1))
    limit = 1 + float(t.ppf(coverage, max(n - parameters, 1))) * spread * math.sqrt(1 + 1 / n)
    return float(max(held_out.max(), limit, 1.0))


def _check_variety(table: FloatArray) -> None:
    if len(table) == 0:
        msg = "there is nothing to fit: no batch was measured, or all ran out of memory; measure smaller batches"
        raise NotIdentifiableError(msg)
    for column, name in ((0, "items"), (1, "longest")):
        if np.unique(table[:, column]).size < 2:
            msg = (
                f"all {len(table)} measured batches have {name} = {table[0, column]:g}, which cannot tell fixed bytes "
                f"from bytes per element: measure in addition batches with other values of {name}"
            )
            raise NotIdentifiableError(msg)
    shapes = len(np.unique(table, axis=0))
    if shapes < 4:
        msg = f"{shapes} different batch shapes are too few: measure at least 4, better 20, small and large ones"
        raise NotIdentifiableError(msg)


def _candidates(table: FloatArray) -> Iterator[tuple[str, ...]]:
    names = list(TERMS)
    padding = table[:, 0] * table[:, 1] / np.maximum(table[:, 2], 1e-300)
    if padding.max() < _TELLING_PADDING:
        # Without padding in the measurements "total" fits as well as "items*longest", but promises too little.
        names.remove("total")
    for count in range(1, _MOST_TERMS + 1):
        for subset in combinations(names, count):
            # Held-out fits need a measurement more than parameters.
            if len(table) >= count + 2 and _tells_apart(columns(table, subset)):
                yield subset


def _tells_apart(design: FloatArray) -> bool:
    norms = np.linalg.norm(design, axis=0)
    if (norms == 0).any():
        return False
    singular = np.linalg.svd(design / norms, compute_uv=False)
    return bool(singular[-1] > _COLLINEAR * singular[0])


def _nnls(design: FloatArray, peaks: FloatArray) -> FloatArray:
    from scipy.optimize import nnls  # noqa: PLC0415 - slow to import

    # Dividing each row by its peak makes errors relative; columns of unit length keep the solver well conditioned.
    rows = design / peaks[:, None]
    norms = np.linalg.norm(rows, axis=0)
    solution: FloatArray = nnls(rows / norms, np.ones(len(rows)))[0] / norms
    return solution


def _held_out(design: FloatArray, peaks: FloatArray) -> FloatArray:
    """Return peak over prediction, each predicted without the measurements of its own fold."""
    fold = np.arange(len(peaks)) % _FOLDS
    ratios = np.empty(len(peaks))
    for k in range(min(_FOLDS, len(peaks))):
        out = fold == k
        predicted = design[out] @ _nnls(design[~out], peaks[~out])
        ratios[out] = peaks[out] / np.maximum(predicted, 1.0)
    return ratios
