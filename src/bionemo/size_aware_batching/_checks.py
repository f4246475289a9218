"""Argument checks at the public boundary: one sentence an error, naming the argument, the rule and what came."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["check_bool", "check_int", "check_sizes", "kind_of"]


def kind_of(value: object) -> str:
    """Describe a value by its type alone: an element's contents do not belong into an error."""
    return type(value).__name__


def check_int(name: str, value: Any, *, at_least: int) -> int:
    """Return `value` as a plain int.

    Raises:
        TypeError: `value` is not an integer (`bool` and floats are not).
        ValueError: `value` is below `at_least`.
    """
    if isinstance(value, (bool, np.bool_)):
        msg = f"`{name}` must be an integer, got bool"
        raise TypeError(msg)
    try:
        number = operator.index(value)
    except TypeError:
        msg = f"`{name}` must be an integer, got {kind_of(value)}"
        raise TypeError(msg) from None
    if number < at_least:
        msg = f"`{name}` must be at least {at_least}, got {number}"
        raise ValueError(msg)
    return number


def check_bool(name: str, value: Any) -> bool:
    """Return `value` if it is a bool.

    Raises:
        TypeError: it is anything else.
    """
    if not isinstance(value, bool):
        msg = f"`{name}` must be True or False, got {kind_of(value)}"
        raise TypeError(msg)
    return value


def check_sizes(name: str, sizes: AnyArray) -> None:
    """Check that every size is a finite number and none is negative.

    Args:
        name: the argument's name, for the error.
        sizes: numeric array, a size or a row of sizes for each element.

    Raises:
        ValueError: a size is NaN, infinite or negative; the text gives the first one's index.
    """
    if sizes.size == 0 or sizes.dtype.kind in "bu":
        return
    # One pass without temporaries tells almost always: NaN fails both comparisons.
    if sizes.min() >= 0 and sizes.max() < np.inf:
        return
    bad = sizes < 0
    if sizes.dtype.kind == "f":
        bad |= ~np.isfinite(sizes)
    first = tuple(int(i) for i in np.argwhere(bad)[0])
    msg = f"`{name}` must be finite and not negative, got {sizes[first]} at index {first[0]}"
    raise ValueError(msg)
