"""Byte counts as people write and read them."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["format_bytes", "parse_bytes"]

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?)B?|B)?\s*", re.IGNORECASE | re.ASCII)
_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_bytes(text: str) -> int:
    """Read a number of bytes.

    Args:
        text: digits with an optional unit: `512MiB`, `16GiB`, `1.5 GB` (10^9), `4096`. A unit without B is
            binary: `16G` is 16 GiB.

    Returns:
        Bytes, rounded down.

    Raises:
        ValueError: the text is not of that form, or is zero.

    >>> parse_bytes("512MiB"), parse_bytes("1.5 GB"), parse_bytes("4096")
    (536870912, 1500000000, 4096)
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        msg = f"not a number of bytes: {text!r:.40}; write for example 512MiB, 16GiB or 4096, or a share such as 90%"
        raise ValueError(msg)
    number, unit, binary = match[1], (match[2] or "").upper(), match[3]
    decimal = unit and not binary and text.strip().upper().endswith("B")
    count = int(Fraction(number) * (_DECIMAL if decimal else _UNITS)[unit])
    if count <= 0:
        msg = f"a number of bytes must be positive, got {text!r:.40}"
        raise ValueError(msg)
    return count


def format_bytes(count: float) -> str:
    """Write a number of bytes with a binary unit.

    >>> format_bytes(512 * 2**20), format_bytes(-1536), format_bytes(12)
    ('512 MiB', '-1.5 KiB', '12 B')
    """
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    for unit in units:
        if abs(value) < 1024 or unit == units[-1]:
            break
        value /= 1024
    return f"{value:.4g} {unit}" if abs(value) < 1000 else f"{value:.0f} {unit}"
