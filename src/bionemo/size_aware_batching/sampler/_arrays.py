"""Tensors and numpy arrays as one kind of thing: numpy arrays of a dtype that the planner's loops take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.errors import ArgumentKindError

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["CHUNK", "IndexSequence", "real_vector", "tensor_to_numpy"]

# Elements converted to Python ints at a time: enough to make the conversion's overhead vanish, small enough
# that a pass over a hundred million elements neither pauses nor holds them all.
CHUNK = 2**15


def tensor_to_numpy(name: str, tensor: torch.Tensor) -> AnyArray:
    """View a tensor as a numpy array; copy only from another device or from a dtype that numpy lacks.

    Raises:
        ValueError: the tensor has no values (meta device) or is not dense.
    """
    if tensor.device.type == "meta" or tensor.layout != torch.strided:
        msg = f"`{name}` must be a dense tensor with values, got {tensor.layout} on {tensor.device}"
        raise ValueError(msg)
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        tensor = tensor.to(torch.float64)
    array: AnyArray = tensor.resolve_neg().resolve_conj().numpy()
    return array


def real_vector(name: str, tensor: Any) -> AnyArray:
    """View a tensor of real numbers as a numpy vector.

    Raises:
        ArgumentKindError: not a tensor.
        ValueError: not 1-D, not real, or with NaN.
    """
    if not isinstance(tensor, torch.Tensor):
        msg = f"`{name}` must be a torch.Tensor, got {kind_of(tensor)}"
        raise ArgumentKindError(msg)
    if tensor.ndim != 1 or tensor.is_complex() or tensor.dtype == torch.bool:
        msg = f"`{name}` must be a 1-D tensor of real numbers, got shape {tuple(tensor.shape)}, {tensor.dtype}"
        raise ValueError(msg)
    array = tensor_to_numpy(name, tensor)
    if array.dtype == np.uint64:
        if array.size and int(array.max()) >= 2**63:
            msg = f"`{name}` must be below 2^63, got {array.max()} at index {int(array.argmax())}"
            raise ValueError(msg)
        array = array.astype(np.int64)
    if array.dtype.kind == "f" and np.isnan(array).any():
        msg = f"`{name}` must not be NaN, got NaN at index {int(np.flatnonzero(np.isnan(array))[0])}"
        raise ValueError(msg)
    return array


class IndexSequence(Sequence[int]):
    """A read-only sequence of plain ints, kept as an int64 array: 8 bytes an element."""

    __slots__ = ("_array",)

    def __init__(self, array: IntArray) -> None:
        """Wrap a 1-D int64 array."""
        self._array = array

    def __len__(self) -> int:
        return self._array.size

    @overload
    def __getitem__(self, position: int) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> IndexSequence: ...
    def __getitem__(self, position: int | slice) -> int | IndexSequence:
        if isinstance(position, slice):
            return IndexSequence(self._array[position])
        return int(self._array[position])

    def __iter__(self) -> Iterator[int]:
        starts = range(0, self._array.size, CHUNK)
        return chain.from_iterable(self._array[start : start + CHUNK].tolist() for start in starts)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        """Give numpy the indices: a read-only view unless a copy or another dtype is asked for."""
        if copy or (dtype is not None and np.dtype(dtype) != self._array.dtype):
            return self._array.astype(dtype or self._array.dtype)
        view = self._array.view()
        view.flags.writeable = False
        return view

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Sequence) and not isinstance(other, (str, bytes)):
            return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # compares equal to lists, which have none either

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self._array[:6].tolist()))
        return f"IndexSequence([{shown}{', ...' if len(self) > 6 else ''}], len={len(self)})"
