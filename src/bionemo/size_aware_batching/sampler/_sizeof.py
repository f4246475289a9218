"""`sizeof` in all its kinds: a callable, a mapping, a sequence, or an array of sizes."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.errors import SizeofError
from bionemo.size_aware_batching.sampler._arrays import tensor_to_numpy

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["SizeLookup", "check_limit", "check_logger", "plain", "refuse_size"]


_PYTHON_NUMBERS = (int, float)


def plain(value: Any) -> Any:
    """Turn numpy and torch scalars into Python numbers, which neither wrap nor round; leave the rest alone."""
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        return value.item()
    return value


def check_limit(limit: Any, *, zero_is_fine: bool) -> Any:
    """Return `max_total_size` as a plain number.

    Raises:
        ValueError: it is not a number, is NaN, or is not positive.
    """
    try:
        limit = plain(limit)
        wrong = isinstance(limit, (bool, str, bytes)) or not (limit >= 0 if zero_is_fine else limit > 0)
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        wrong = True
    if wrong:
        shown = f"{limit!r:.40}" if isinstance(limit, (int, float)) else kind_of(limit)
        msg = f"`max_total_size` must be a {'number >= 0' if zero_is_fine else 'positive number'}, got {shown}"
        raise ValueError(msg)
    return limit


def check_logger(name: str, logger: Any) -> None:
    """Check that a logger can be called.

    Raises:
        TypeError: it cannot, and is not None.
    """
    if logger is not None and not callable(logger):
        msg = f"`{name}` must be callable or None, got {kind_of(logger)}"
        raise TypeError(msg)


def refuse_size(size: Any, element: object) -> None:
    """Refuse a size that would defeat the limit: NaN compares false with everything, -1 makes room.

    Raises:
        ValueError: always.
    """
    msg = f"a size must be finite and not negative, got {size} at index {reprlib.repr(element)}"
    raise ValueError(msg)


class SizeLookup:
    """The size of an element, whatever `sizeof` is.

    Attributes:
        array: the sizes as a 1-D array of integers or floats where `sizeof` is an array or a tensor, else None.
    """

    def __init__(self, sizeof: Any) -> None:
        """Take a callable, mapping, sequence, numpy array or tensor.

        Raises:
            TypeError: `sizeof` is none of these.
            ValueError: `sizeof` is an array that is not 1-D and real.
        """
        self._sizeof = sizeof
        self.array: AnyArray | None = None
        self._get: Callable[[Any], Any]
        sizeof = self.table(sizeof)
        if isinstance(sizeof, np.ndarray):
            if isinstance(sizeof, np.ma.MaskedArray):
                msg = "`sizeof` must be an array without a mask: fill it first"
                raise ValueError(msg)
            if sizeof.ndim != 1 or sizeof.dtype.kind not in "iufb":
                msg = f"`sizeof` must be a 1-D array of real numbers, got {sizeof.ndim}-D {sizeof.dtype}"
                raise ValueError(msg)
            self.array = sizeof.view(np.uint8) if sizeof.dtype.kind == "b" else sizeof
            self._get = self.array.item
        elif callable(sizeof):
            self._get = sizeof
        elif isinstance(sizeof, (Mapping, Sequence)) and not isinstance(sizeof, (str, bytes)):
            self._get = sizeof.__getitem__
        else:
            msg = (
                "sizeof must be a callable, a mapping, or a sequence (list, tuple, array, tensor), "
                f"got {kind_of(sizeof)}"
            )
            raise TypeError(msg)
        self.is_container = not callable(sizeof)

    def __reduce__(self) -> tuple[type[SizeLookup], tuple[Any]]:
        """Copy and pickle what was given: bound methods of the copy's own sizes are made anew."""
        return SizeLookup, (self._sizeof,)

    @staticmethod
    def table(sizeof: Any) -> Any:
        """Return a tensor as a numpy array of its own, anything else as it is.

        A copy: torch may move a tensor to shared memory (a DataLoader does), and a view of it would dangle.
        """
        return tensor_to_numpy("sizeof", sizeof).copy() if isinstance(sizeof, torch.Tensor) else sizeof

    def __call__(self, element: Any) -> Any:
        """Return the element's size as a plain number.

        Raises:
            SizeofError: the callable or the container raised.
        """
        try:
            size = self._get(element)
            # Numpy and torch scalars would wrap or round when they are added.
            return size if type(size) in _PYTHON_NUMBERS else plain(size)
        except Exception as error:
            msg = f"sizeof raises error at data={reprlib.repr(element)}: {_shortened(error)}"
            raise SizeofError(msg) from error


def _shortened(error: Exception) -> str:
    try:
        return f"{error!s:.200}"
    except Exception:  # noqa: BLE001 - whatever a user's error does when it is printed
        return type(error).__name__
