"""Argument checks: what passes, and what each refusal says."""

import enum

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching._checks import check_bool, check_int, check_sizes, kind_of


class Level(enum.IntEnum):
    """An integer by another name."""

    TWO = 2


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3),
        (0, 0),
        (np.int8(3), 3),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (torch.tensor(3), 3),
        (Level.TWO, 2),
        (10**30, 10**30),
    ],
)
def test_integers_of_every_kind(value, number):
    """Whatever counts as an integer is returned as Python's own."""
    assert number == check_int("count", value, at_least=0)
    assert type(check_int("count", value, at_least=0)) in (int, Level)


@pytest.mark.parametrize("value", [True, False, np.True_, 1.0, np.float64(1), "1", None, [1], torch.tensor(1.0), 1j])
def test_what_is_no_integer(value):
    """Bools, floats, text and lists are no integers; the text names the argument and the kind, not the value."""
    kind = "bool" if isinstance(value, (bool, np.bool_)) else type(value).__name__
    with pytest.raises(TypeError, match=rf"^`count` must be an integer, got {kind}$"):
        check_int("count", value, at_least=0)


@pytest.mark.parametrize(("value", "least"), [(-1, 0), (0, 1), (np.int64(4), 5), (-(10**30), 0)])
def test_integer_below_the_least(value, least):
    """An integer below the least is refused with both."""
    with pytest.raises(ValueError, match=rf"^`count` must be at least {least}, got {value}$"):
        check_int("count", value, at_least=least)


@pytest.mark.parametrize("value", [True, False])
def test_bools(value):
    """True and False are returned as they are."""
    assert value is check_bool("flag", value)


@pytest.mark.parametrize("value", [1, 0, None, "yes", np.True_, [], torch.tensor(True)])
def test_what_is_no_bool(value):
    """Whatever else is true or false is refused with its kind."""
    with pytest.raises(TypeError, match=rf"^`flag` must be True or False, got {type(value).__name__}$"):
        check_bool("flag", value)


@pytest.mark.parametrize(
    "sizes",
    [
        np.array([]),
        np.array([0, 1, 2]),
        np.array([0.0, 1e308]),
        np.array([0.5], np.float16),
        np.array([2**64 - 1], np.uint64),
        np.array([2**63 - 1]),
        np.array([True, False]),
        np.array([], np.int8),
    ],
)
def test_sizes_that_pass(sizes):
    """Finite sizes from zero on pass in every type, and so does nothing."""
    assert check_sizes("sizes", sizes) is None


@pytest.mark.parametrize(
    ("sizes", "value", "index"),
    [
        (np.array([1, -5, -6]), "-5", 1),
        (np.array([-1], np.int8), "-1", 0),
        (np.array([1.0, 2.0, np.nan]), "nan", 2),
        (np.array([np.nan, -1.0]), "nan", 0),
        (np.array([0.0, np.inf]), "inf", 1),
        (np.array([3, -np.inf, np.nan], np.float16), "-inf", 1),
        (np.array([3, -0.5], np.float32), "-0.5", 1),
    ],
)
def test_sizes_that_do_not(sizes, value, index):
    """The first size that is negative, infinite or no number is named with its index."""
    with pytest.raises(ValueError, match=rf"^`sizes` must be finite and not negative, got {value} at index {index}$"):
        check_sizes("sizes", sizes)


@pytest.mark.parametrize(("value", "kind"), [("secret", "str"), (3, "int"), (None, "NoneType"), ([], "list")])
def test_kind_is_the_type_alone(value, kind):
    """A value is described by its type and never by what is in it."""
    assert kind == kind_of(value)
