"""Choosing the terms of a memory model and fitting them, by held-out relative error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from bionemo.size_aware_batching.errors import NotIdentifiableError
from bionemo.size_aware_batching.memory._terms import columns, measures_of, terms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bionemo.size_aware_batching._types import FloatArray

__all__ = ["Curve", "fit_terms", "margin_for"]

# More terms than these fit noise: a training step's peak is fixed bytes, something padded, something squared.
_MOST_TERMS = 3
# A simpler model is preferred while its held-out error is at most this factor, or this much, above the best one.
_NO_BETTER, _NO_BETTER_ABSOLUTE = 1.1, 2e-4
# Columns of unit length whose smallest singular value is below this share of the largest say the same thing twice.
_COLLINEAR = 1e-3
# Below this ratio of padded to real sizes the measured batches cannot tell the two apart.
_TELLING_PADDING = 1.05
_FOLDS = 40
# To begin with, measurements within 2 % of the lowest are taken to lie on the floor; few turns settle which do.
_FLAT, _TURNS = 1.02, 8


@dataclass(frozen=True, slots=True)
class Curve:
    """Peak bytes as the larger of a floor and a non-negative combination of terms.

    Attributes:
        names: the terms.
        weights: (1 + terms,) fixed bytes, then bytes per unit of each term.
        floor: what every step takes, however small its batch; 0 where none was seen.
    """

    names: tuple[str, ...]
    weights: FloatArray
    floor: float


def fit_terms(table: FloatArray, peaks: FloatArray) -> tuple[Curve, FloatArray]:
    """Fit peaks with the terms that predict held-out measurements best; the fewest of those that do about as well.

    Each candidate is fitted by non-negative least squares on relative errors (Lawson and Hanson, "Solving Least
    Squares Problems", 1974), with and without a floor, and judged by leave-one-out, from 40 measurements on by 40
    folds. A floor appears where the optimizer's update, which no batch size changes, needs more than a small
    batch's activations.

    Args:
        table: (n, 1 + 2 measures) items, then longest and then total in each measure.
        peaks: (n,) bytes, positive.

    Returns:
        The curve; and for each measurement its peak over the prediction by a curve that did not see it.

    Raises:
        NotIdentifiableError: the shapes are too few or too alike; the text says what to measure in addition.
    """
    _check_variety(table)
    tried: list[tuple[float, int, tuple[str, ...], bool, FloatArray]] = []
    for names, design in _candidates(table):
        for floored in (False, True):
            held_out = _held_out(design, peaks, floored=floored)
            error = float(np.abs(1 - 1 / held_out).mean())
            tried.append((error, len(names) + floored, names, floored, held_out))
    if not tried:
        msg = (
            "the measured shapes are too much alike: measure in addition batches of few long and of many short "
            "elements, small and large ones"
        )
        raise NotIdentifiableError(msg)
    lowest = min(error for error, *_ in tried)
    enough = max(lowest * _NO_BETTER, lowest + _NO_BETTER_ABSOLUTE)
    _, _, names, floored, held_out = min((c for c in tried if c[0] <= enough), key=lambda c: (c[1], c[0]))
    curve = Curve(names, *_fit_one(columns(table, names), peaks, floored=floored))
    if not (curve.weights[1:] > 0).any():
        msg = "the measured peaks do not grow with the batch: measure larger batches, up to near the budget"
        raise NotIdentifiableError(msg)
    return curve, held_out


def margin_for(held_out: FloatArray, parameters: int, coverage: float) -> float:
    """Return the factor on predictions that a new measurement stays below with the stated probability.

    With n measurements the k-th smallest held-out ratio, k = ceil((n + 1) coverage), is such a factor whatever
    the distribution (split conformal prediction: Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random
    World", 2005). A few dozen measurements do not reach 0.999 that way; then it is the larger of the worst held-out
    ratio and the one-sided Student t limit of the held-out relative errors.
    """
    from scipy.special import stdtrit  # noqa: PLC0415 - slow to import

    n = held_out.size
    rank = math.ceil((n + 1) * coverage)
    if rank <= n:
        return float(max(np.sort(held_out)[rank - 1], 1.0))
    spread = math.sqrt(float(np.square(held_out - 1).sum()) / max(n - parameters, 1))
    limit = 1 + float(stdtrit(max(n - parameters, 1), coverage)) * spread * math.sqrt(1 + 1 / n)
    return float(max(held_out.max(), limit, 1.0))


def _check_variety(table: FloatArray) -> None:
    if len(table) == 0:
        msg = "there is nothing to fit: no batch was measured, or all ran out of memory; measure smaller batches"
        raise NotIdentifiableError(msg)
    measures = measures_of(table)
    longest = ["longest"] if measures == 1 else [f"longest[{k}]" for k in range(measures)]
    named = dict(enumerate(["items", *longest]))
    same = {column: name for column, name in named.items() if np.unique(table[:, column]).size < 2}
    if same:
        values = " and ".join(f"{name} = {table[0, column]:g}" for column, name in same.items())
        msg = (
            f"the measured batches ({len(table)}) all have {values}, which cannot tell fixed bytes from bytes per "
            f"element: measure in addition batches with other values of {' and '.join(same.values())}, about 20 in all"
        )
        raise NotIdentifiableError(msg)
    shapes = len(np.unique(table, axis=0))
    if shapes < 4:
        msg = f"{shapes} different batch shapes are too few: measure at least 4, better 20, small and large ones"
        raise NotIdentifiableError(msg)


def _candidates(table: FloatArray) -> Iterator[tuple[tuple[str, ...], FloatArray]]:
    """Yield the combinations of terms that the shapes can tell apart, each with its design matrix."""
    measures = measures_of(table)
    names = list(terms(measures))
    for k in range(measures):
        padding = table[:, 0] * table[:, 1 + k] / np.maximum(table[:, 1 + measures + k], 1e-300)
        if padding.max() < _TELLING_PADDING:
            # Without padding in the measurements "total" fits as well as "items*longest", but promises too little.
            names.remove("total" if measures == 1 else f"total[{k}]")
    for count in range(1, _MOST_TERMS + 1):
        for subset in combinations(names, count):
            # Held-out fits need a measurement more than parameters.
            if len(table) >= count + 2 and _tells_apart(design := columns(table, subset)):
                yield subset, design


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
    # A term that only a held-out measurement has is zero here, and gets no weight.
    norms = np.maximum(np.linalg.norm(rows, axis=0), 1e-300)
    solution: FloatArray = nnls(rows / norms, np.ones(len(rows)))[0] / norms
    return solution


def _fit_one(design: FloatArray, peaks: FloatArray, *, floored: bool) -> tuple[FloatArray, float]:
    """Fit one candidate; with a floor, by turns assign measurements to it and fit both parts to their own.

    Returns:
        The weights, and the floor, 0 for none.
    """
    if not floored:
        return _nnls(design, peaks), 0.0
    flat = peaks <= _FLAT * peaks.min()
    weights, floor = np.zeros(design.shape[1]), 0.0
    for _ in range(_TURNS):
        if (~flat).sum() <= design.shape[1]:
            break
        weights, floor = _nnls(design[~flat], peaks[~flat]), float(peaks[flat].max()) if flat.any() else 0.0
        below = design @ weights < floor
        if (below == flat).all():
            break
        flat = below
    return (weights, floor) if weights.any() else (_nnls(design, peaks), 0.0)


def _held_out(design: FloatArray, peaks: FloatArray, *, floored: bool) -> FloatArray:
    """Return peak over prediction, each predicted without the measurements of its own fold."""
    fold = np.arange(len(peaks)) % _FOLDS
    ratios = np.empty(len(peaks))
    for k in range(min(_FOLDS, len(peaks))):
        out = fold == k
        weights, floor = _fit_one(design[~out], peaks[~out], floored=floored)
        ratios[out] = peaks[out] / np.maximum(design[out] @ weights, max(floor, 1.0))
    return ratios
