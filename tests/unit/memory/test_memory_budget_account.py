"""The arithmetic of a memory budget and the account it gives."""

import json
import pickle

import numpy as np
import pytest

from bionemo.size_aware_batching.memory import MemoryBudget

GIB = 2**30


def budget_of(limit, total=16 * GIB, outside=6 * GIB, **more):
    return MemoryBudget.of(limit, device="a card", total_bytes=total, outside_bytes=outside, **more)


@pytest.mark.parametrize(
    ("limit", "count"),
    [
        ("90%", 9 * GIB),
        ("50 %", 5 * GIB),
        (" 12.5% ", 5 * GIB // 4),
        ("100%", 10 * GIB),
        ("4GiB", 4 * GIB),
        ("10GiB", 10 * GIB),
        ("1 GB", 10**9),
        (1, 1),
        (10 * GIB, 10 * GIB),
        (np.int64(12345), 12345),
    ],
)
def test_budget_is_a_share_or_bytes(limit, count):
    """A share is one of what is left beside others' use; bytes are bytes, up to all that is left."""
    budget = budget_of(limit)
    assert count == budget
    assert (16 * GIB, 6 * GIB, "a card", limit) == (
        budget.total_bytes,
        budget.outside_bytes,
        budget.device,
        budget.limit,
    )


def test_share_is_rounded_down():
    """A share that is no whole number of bytes is rounded towards less."""
    assert 3 == budget_of("33%", total=10, outside=0)


def test_budget_is_an_int_everywhere_else():
    """A budget adds, compares, formats, hashes and is written as a plain number."""
    budget = budget_of("4GiB")
    assert (int, 4 * GIB + 1) == (type(budget + 1), budget + 1)
    assert {4 * GIB: "here"}[budget] == "here"
    assert str(4 * GIB) == json.dumps(budget) == str(budget)


def test_budget_survives_pickling():
    """Another process gets the number and its account."""
    budget = budget_of("90%", fragmentation_bytes=GIB)
    copy = pickle.loads(pickle.dumps(budget))  # noqa: S301 - written one line above
    assert (budget, budget.account()) == (copy, copy.account())
    assert vars(budget) == vars(copy)


def test_account_adds_up():
    """The account names the device, what others use, what is left and what stays free."""
    assert [
        "a card: 16 GiB in all",
        "- 6 GiB used outside this process's tensors",
        "= 10 GiB available",
        "- 1 GiB left free by the limit 90%",
        "= 9 GiB budget for peak allocated bytes",
    ] == budget_of("90%").account().splitlines()


def test_account_with_fragmentation_adds_up():
    """What the allocator needs beyond what it hands out has a line of its own, and a share is one of the rest."""
    budget = budget_of("75%", fragmentation_bytes=2 * GIB)
    assert (6 * GIB, 2 * GIB) == (budget, budget.fragmentation_bytes)
    assert [
        "a card: 16 GiB in all",
        "- 6 GiB used outside this process's tensors",
        "- 2 GiB for fragmentation, as measured",
        "= 8 GiB available",
        "- 2 GiB left free by the limit 75%",
        "= 6 GiB budget for peak allocated bytes",
    ] == budget.account().splitlines()


def test_account_without_fragmentation_has_no_line_for_it():
    """Where no fragmentation was measured none is mentioned."""
    without = budget_of("90%")
    assert 0 == without.fragmentation_bytes
    assert without.account() == budget_of("90%", fragmentation_bytes=0).account()
    assert "fragmentation" not in without.account()


@pytest.mark.parametrize("limit", ["8.1GiB", 8 * GIB + 1, 10 * GIB, "101%"])
def test_limit_beyond_what_fragmentation_leaves(limit):
    """Bytes that fit without fragmentation but not with it are refused, and the text has both."""
    text = r"has, 8 GiB \(16 GiB less 6 GiB used outside this process's tensors and 2 GiB for fragmentation\)"
    with pytest.raises(ValueError, match=text):
        budget_of(limit, fragmentation_bytes=2 * GIB)
    assert 8 * GIB == budget_of(8 * GIB, fragmentation_bytes=2 * GIB)


@pytest.mark.parametrize("limit", ["90%", "100%", 1])
@pytest.mark.parametrize("fragmentation", [10 * GIB, 11 * GIB, 2**70])
def test_fragmentation_takes_everything(limit, fragmentation):
    """Where fragmentation needs all that others leave, or more, there is no budget, and not a negative one."""
    with pytest.raises(ValueError, match=r"at most what a card has, 0 B \(16 GiB less 6 GiB used .* for fragmentation"):
        budget_of(limit, fragmentation_bytes=fragmentation)


@pytest.mark.parametrize("limit", ["0%", "100.1%", "11GiB", 10 * GIB + 1, 16 * GIB])
def test_limit_beyond_what_is_there(limit):
    """A limit of nothing or of more than is available is refused with what is available and why."""
    text = r"at most what a card has, 10 GiB \(16 GiB less 6 GiB used outside this process's tensors\)"
    with pytest.raises(ValueError, match=text):
        budget_of(limit)


@pytest.mark.parametrize("limit", ["90%", 1])
def test_nothing_is_available(limit):
    """Where others use everything there is no budget."""
    with pytest.raises(ValueError, match="at most what a card has, 0 B"):
        budget_of(limit, outside=16 * GIB)


@pytest.mark.parametrize("limit", ["", "%", "ten", "-5%", "1e3%", "nan%", "5%%", "90% of it", "-1GiB", "0", "0GiB"])
def test_limit_that_cannot_be_read(limit):
    """Text that is neither a share nor bytes is refused."""
    with pytest.raises(ValueError, match="number of bytes"):
        budget_of(limit)


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_that_is_not_positive(limit):
    """Bytes are at least one."""
    with pytest.raises(ValueError, match="`limit` must be at least 1"):
        budget_of(limit)


@pytest.mark.parametrize("limit", [None, 0.9, 1e9, True, b"90%", ["90%"]])
def test_limit_of_another_kind(limit):
    """A limit is text or an integer: 0.9 could mean a share or less than a byte."""
    with pytest.raises(TypeError, match=r"`limit` must be (an integer|text or whole bytes), got"):
        budget_of(limit)


@pytest.mark.parametrize("limit", ["9" * 400 + "%", "9" * 400, "9" * 400 + "GiB"])
def test_limit_beyond_all_numbers(limit):
    """Hundreds of digits are refused like any other limit that is too large."""
    with pytest.raises(ValueError, match=r"at most what a card has"):
        budget_of(limit)
