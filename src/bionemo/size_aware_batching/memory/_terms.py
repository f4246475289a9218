"""The terms a memory model may be made of: each a function of the batch's shape that never falls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bionemo.size_aware_batching._types import FloatArray

__all__ = ["Term", "columns", "measures_of", "terms"]


class Term(NamedTuple):
    """One term.

    Attributes:
        value: what bytes are proportional to, of items, and of longest and total in one measure.
        unit: what it counts.
        measure: which measure it looks at.
    """

    value: Callable[[Any, Any, Any], Any]
    unit: str
    measure: int


_TERMS: dict[str, tuple[Callable[[Any, Any, Any], Any], str]] = {
    # one vector per element
    "items": (lambda items, longest, total: items, "element"),
    # packed or ragged activations
    "total": (lambda items, longest, total: total, "unit of size"),
    # padded activations
    "items*longest": (lambda items, longest, total: items * longest, "padded unit of size"),
    # attention maps, pair features
    "items*longest^2": (lambda items, longest, total: items * longest**2, "pair of padded units"),
    # one mask or bias for all elements
    "longest^2": (lambda items, longest, total: longest**2, "pair of units of the longest"),
}


def terms(measures: int) -> dict[str, Term]:
    """Return all terms by name; with several measures the names say which: "items*longest[1]"."""
    named = {"items": Term(*_TERMS["items"], 0)}
    for measure in range(measures):
        mark = f"[{measure}]" if measures > 1 else ""
        for name, (value, unit) in _TERMS.items():
            if name != "items":
                full = name.replace("longest", f"longest{mark}").replace("total", f"total{mark}")
                named[full] = Term(value, unit + mark, measure)
    return named


def measures_of(table: FloatArray) -> int:
    """Return how many measures a table of shapes has."""
    return int(table.shape[1] - 1) // 2


def columns(table: FloatArray, names: Iterable[str]) -> FloatArray:
    """Return the design matrix: a column of ones, then one for each term.

    Args:
        table: (n, 1 + 2 measures) items, then longest and then total in each measure.
        names: the terms.

    Returns:
        (n, 1 + terms) array.
    """
    measures = measures_of(table)
    known = terms(measures)
    found = [np.ones(len(table))]
    for name in names:
        value, _, k = known[name]
        found.append(value(table[:, 0], table[:, 1 + k], table[:, 1 + measures + k]))
    return np.column_stack(found)
