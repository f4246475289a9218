"""Sizes as the compiled loops take them: (n, measures) arrays of int32, int64 or float64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching._checks import check_sizes, kind_of

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["size_matrix"]


def size_matrix(sizes: Any) -> AnyArray:
    """Return sizes as an (n, measures) matrix, as a view wherever the dtype allows.

    Args:
        sizes: (n,) or (n, measures) array, list or CPU tensor of finite numbers, none negative.

    Raises:
        TypeError: not numbers.
        ValueError: another number of dimensions, no measures, or a size that is NaN, infinite or negative.
    """
    sizes = sizes.detach() if hasattr(sizes, "detach") else sizes  # a tensor may require gradients
    try:
        array = np.asarray(sizes)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"`sizes` must be an array of numbers, got {kind_of(sizes)}: {error}"
        raise TypeError(msg) from error
    if isinstance(sizes, np.ma.MaskedArray):
        msg = "`sizes` must be an array without a mask: fill it first"
        raise ValueError(msg)
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64) if array.dtype.kind in "fiu" else array
    if array.dtype.kind == "O":
        array = _from_objects(array)
    if array.dtype.kind not in "iuf":
        msg = f"`sizes` must be integers or floats, such as [len(x) for x in data], got {array.dtype}"
        raise TypeError(msg)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        msg = f"`sizes` must be 1-D, or 2-D with a column per measure, got shape {array.shape}"
        raise ValueError(msg)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # what is beyond float64 becomes infinite, and is refused below
            array = array.astype(np.float64)
    matrix = array.reshape(len(array), -1) if array.size else array.reshape(0, max(array.shape[1:], default=1))
    for column in range(matrix.shape[1]):
        name = "sizes" if array.ndim == 1 else f"sizes[:, {column}]"
        check_sizes(name, matrix[:, column])
    # Compiled loops are made for contiguous arrays alone; another layout would be compiled for again.
    return np.ascontiguousarray(matrix, _working_type(matrix))


def _from_objects(array: AnyArray) -> AnyArray:
    """Take Python numbers that numpy found no common dtype for, such as integers beyond 64 bits."""
    if array.ndim == 1 and all(isinstance(size, (int, float)) and not isinstance(size, bool) for size in array):
        try:
            return array.astype(np.float64)
        except OverflowError:
            msg = "`sizes` must be finite and not negative, got an integer beyond every float"
            raise ValueError(msg) from None
    msg = "`sizes` must be an array of numbers of one shape, got an array of objects"
    raise TypeError(msg)


def _working_type(matrix: AnyArray) -> type[np.int32 | np.int64 | np.float64]:
    if matrix.dtype.kind == "f":
        return np.float64
    if matrix.dtype.itemsize < 4 or (matrix.dtype.kind == "i" and matrix.dtype.itemsize == 4):
        return np.int32
    if matrix.dtype.kind == "u" and matrix.size and int(matrix.max()) >= 2**63:
        return np.float64
    return np.int64
