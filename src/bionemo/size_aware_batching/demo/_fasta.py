"""Proteins from a FASTA file, plain or gzipped."""

from __future__ import annotations

import gzip
import zlib
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from bionemo.size_aware_batching.errors import FileFormatError

if TYPE_CHECKING:
    import os

__all__ = ["bundled_proteome", "read_fasta"]


def bundled_proteome() -> list[str]:
    """Return the 2,100 proteins of the bacterial proteome that comes with this package."""
    data = files("bionemo.size_aware_batching.demo").joinpath("data/bacterial_proteome.faa.gz").read_bytes()
    return _parse(gzip.decompress(data), "the bundled proteome")


def read_fasta(path: str | os.PathLike[str]) -> list[str]:
    """Read protein sequences in capital letters; stop marks (`*`) and gaps (`-`) are left out.

    Args:
        path: a FASTA file; gzip is recognised by its first bytes.

    Raises:
        FileFormatError: not FASTA, damaged, or without a sequence; with the line.
        OSError: the file cannot be read.
    """
    data = Path(path).read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            msg = f"{path} is a damaged gzip file: {error}"
            raise FileFormatError(msg) from error
    return _parse(data, str(path))


def _parse(data: bytes, name: str) -> list[str]:
    sequences: list[list[str]] = []
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        line = raw.strip()
        if not line:
            continue
        if line.startswith(b">"):
            _refuse_empty(sequences, name, number)
            sequences.append([])
            continue
        letters = line.replace(b"*", b"").replace(b"-", b"")
        if not sequences or (letters and not (letters.isalpha() and letters.isascii())):
            msg = f"{name} is not a FASTA file: line {number} is neither a header (>...) nor a sequence of letters"
            raise FileFormatError(msg)
        sequences[-1].append(letters.decode().upper())
    if not sequences:
        msg = f"{name} holds no sequence"
        raise FileFormatError(msg)
    _refuse_empty(sequences, name, data.count(b"\n") + 1)
    return ["".join(parts) for parts in sequences]


def _refuse_empty(sequences: list[list[str]], name: str, number: int) -> None:
    if sequences and not any(sequences[-1]):
        msg = f"{name}: sequence {len(sequences)}, which ends before line {number}, is empty"
        raise FileFormatError(msg)
