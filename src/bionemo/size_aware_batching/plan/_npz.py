"""Named arrays in an uncompressed `.npz` that can be mapped into memory."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from bionemo.size_aware_batching._files import replace_file
from bionemo.size_aware_batching.errors import FileFormatError

if TYPE_CHECKING:
    import os

    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["read_arrays", "write_arrays"]

_KIND, _VERSION = "size-aware-batching plan", 1
# A member's data begins this far behind its local header, after its name and its extra field (PKWARE, "APPNOTE.TXT").
_LOCAL_HEADER = 30


def write_arrays(path: str | os.PathLike[str], arrays: dict[str, AnyArray]) -> None:
    """Write arrays and what they are; the file is replaced whole or not at all."""
    with replace_file(path) as file:
        np.savez(file, kind=np.array(_KIND), version=np.array(_VERSION), **arrays)  # type: ignore[arg-type]


def read_arrays(path: str | os.PathLike[str], names: tuple[str, ...], *, mmap: bool) -> dict[str, AnyArray]:
    """Read what `write_arrays` wrote.

    Raises:
        FileFormatError: the file is damaged, foreign or of a newer version.
        OSError: it cannot be read.
    """
    with Path(path).open("rb"):
        pass  # a missing file is an OSError, not a format error
    try:
        with zipfile.ZipFile(path) as archive:
            if str(_member(archive, "kind")) != _KIND:
                msg = f"{path} is not a {_KIND} file"
                raise FileFormatError(msg)
            version = int(_member(archive, "version"))
            if not 1 <= version <= _VERSION:
                msg = f"{path} is a {_KIND} file of version {version}; this release reads versions up to {_VERSION}"
                raise FileFormatError(msg)
            arrays = {name: _mapped(path, archive, name) if mmap else _member(archive, name) for name in names}
    except FileFormatError:
        raise
    except Exception as error:
        msg = f"{path} is not a {_KIND} file, or is damaged: {error}"
        raise FileFormatError(msg) from error
    _check(path, arrays)
    return arrays


def _member(archive: zipfile.ZipFile, name: str) -> AnyArray:
    with archive.open(f"{name}.npy") as file:
        array: AnyArray = npy.read_array(file, allow_pickle=False)
    return array


def _mapped(path: str | os.PathLike[str], archive: zipfile.ZipFile, name: str) -> AnyArray:
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type != zipfile.ZIP_STORED:
        msg = "a compressed file cannot be mapped into memory"
        raise ValueError(msg)
    with Path(path).open("rb") as file:
        file.seek(member.header_offset)
        header = file.read(_LOCAL_HEADER)
        name_size, extra_size = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        file.seek(member.header_offset + _LOCAL_HEADER + name_size + extra_size)
        major, _ = npy.read_magic(file)
        read_header: Any = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            msg = "an array of objects"
            raise ValueError(msg)
        if 0 in shape:
            return np.empty(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def _check(path: str | os.PathLike[str], arrays: dict[str, AnyArray]) -> None:
    """Refuse arrays that no plan has: reading them must not fail later, or serve another batch than was planned."""
    offsets, indices, skipped = (arrays[name] for name in ("offsets", "indices", "skipped"))
    longest, total, cost, budget = (arrays[name] for name in ("longest", "total", "cost", "budget"))
    good = all(array.ndim == 1 and array.dtype.kind == "i" for array in (offsets, indices, skipped))
    good = good and all(array.dtype.kind in "if" for array in arrays.values()) and arrays["largest_cost"].ndim == 0
    good = good and offsets.size > 0 and offsets[0] == 0 and offsets[-1] == indices.size
    good = good and bool((np.diff(offsets) > 0).all()) and bool((indices >= 0).all())
    good = good and longest.ndim in (1, 2) and longest.shape == total.shape
    good = good and longest.shape[0] == offsets.size - 1 and cost.shape == (offsets.size - 1, *budget.shape)
    good = good and _steps_fit(arrays)
    if not good:
        msg = f"{path} is a damaged {_KIND} file: its arrays do not belong together"
        raise FileFormatError(msg)


def _steps_fit(arrays: dict[str, AnyArray]) -> bool:
    layout, items, total = (arrays[name] for name in ("layout", "step_items", "step_total"))
    if layout.shape != (3,) or layout.dtype.kind != "i":
        return False
    world_size, accumulate, rank = layout.tolist()
    if world_size < 1 or accumulate < 1 or not -1 <= rank < world_size:
        return False
    steps, left = divmod(arrays["offsets"].size - 1, accumulate * (world_size if rank < 0 else 1))
    return left == 0 and items.shape == (steps,) and total.shape == (steps, *arrays["longest"].shape[1:])
