"""Byte counts as people write and read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bionemo.size_aware_batching._bytes import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("4096", 4096),
        ("4096B", 4096),
        ("4096 b", 4096),
        ("1K", 2**10),
        ("1KB", 10**3),
        ("1KiB", 2**10),
        ("1Ki", 2**10),
        ("512MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("3M", 3 * 2**20),
        ("3 MB", 3 * 10**6),
        ("16GiB", 16 * 2**30),
        ("16G", 16 * 2**30),
        ("1.5 GB", 1_500_000_000),
        ("1.5GiB", 3 * 2**29),
        ("2TiB", 2**41),
        ("2TB", 2 * 10**12),
        ("  7 MiB  ", 7 * 2**20),
        ("1.9", 1),
        ("007", 7),
    ],
)
def test_text_is_read(text, count):
    """A unit with B alone is decimal, every other one binary, and fractions of a byte are dropped."""
    assert count == parse_bytes(text)
    assert int is type(parse_bytes(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "B",
        "GiB",
        "-1",
        "+1",
        "1,5GB",
        "1.GB",
        ".5GB",
        "1e9",
        "0x10",
        "nan",
        "inf",
        "16 GiB free",
        "16XB",
        "1 0",
    ],
)
def test_text_that_is_no_number_of_bytes(text):
    """Signs, exponents, other separators and unknown units are refused with what to write."""
    with pytest.raises(ValueError, match=r"not a number of bytes: .*write for example 512MiB, 16GiB or 4096"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.0", "0.9", "0.0001K"])
def test_nothing_is_no_number_of_bytes(text):
    """What comes to less than a byte is refused."""
    with pytest.raises(ValueError, match=r"must be positive, got '"):
        parse_bytes(text)


def test_long_numbers_are_read():
    """A number that a float would round is read exactly, and one beyond all floats is no error."""
    assert 2**53 + 1 == parse_bytes(str(2**53 + 1))
    assert 10**399 < parse_bytes("9" * 400 + ".5")


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (12, "12 B"),
        (999, "999 B"),
        (1000, "1000 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (-1536, "-1.5 KiB"),
        (123_456, "120.6 KiB"),
        (1023 * 1024, "1023 KiB"),
        (512 * 2**20, "512 MiB"),
        (16 * 2**30, "16 GiB"),
        (3 * 2**40, "3 TiB"),
        (5000 * 2**40, "5000 TiB"),
        (0.5, "0.5 B"),
    ],
)
def test_count_is_written(count, text):
    """A count has the largest unit of which there is one, and four digits."""
    assert text == format_bytes(count)


@given(st.integers(1, 2**53))
def test_what_is_written_is_read_back(count):
    """Reading a written count gives it back within its four digits, and the byte that rounding down costs."""
    assert math.isclose(count, parse_bytes(format_bytes(count)), rel_tol=6e-4, abs_tol=1)
