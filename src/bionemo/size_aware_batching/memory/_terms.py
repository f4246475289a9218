"""The terms a memory model may be made of: each a function of the batch's shape that never falls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bionemo.size_aware_batching._types import FloatArray

__all__ = ["TERMS", "UNITS", "columns"]

# Name -> bytes are proportional to this, for items, longest, total.
TERMS: dict[str, Callable[[FloatArray, FloatArray, FloatArray], FloatArray]] = {
    "items": lambda items, longest, total: items,  # one vector per element
    "total": lambda items, longest, total: total,  # packed or ragged activations
    "items*longest": lambda items, longest, total: items * longest,  # padded activations
    "items*longest^2": lambda items, longest, total: items * longest**2,  # attention maps, pair features
    "longest^2": lambda items, longest, total: longest**2,  # one mask or bias for all elements
}

UNITS = {
    "items": "element",
    "total": "unit of size",
    "items*longest": "padded unit of size",
    "items*longest^2": "pair of padded units",
    "longest^2": "pair of units of the longest",
}


def columns(table: FloatArray, names: Iterable[str]) -> FloatArray:
    """Return the design matrix: a column of ones, then one for each term.

    Args:
        table: (n, 3) items, longest, total.
        names: the terms.

    Returns:
        (n, 1 + terms) array.
    """
    items, longest, total = table.T
    return np.column_stack([np.ones(len(table))] + [TERMS[name](items, longest, total) for name in names])
