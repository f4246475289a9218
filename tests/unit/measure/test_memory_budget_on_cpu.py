"""`memory_budget`: what a machine, a container or a card has to give."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bionemo.size_aware_batching.measure import _budget, memory_budget

GIB = 2**30
V1 = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")
V2 = ("memory.max", "memory.current")


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Pretend a machine of 64 GiB, 48 of them available, in no container; return its folder of cgroups."""
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GIB // 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    (tmp_path / "meminfo").write_text(
        f"MemTotal:       {64 * 2**20} kB\nMemFree:        1024 kB\nMemAvailable:   {48 * 2**20} kB\nBuffers: 5 kB\n"
    )
    monkeypatch.setattr(_budget, "Path", lambda name: {"/proc/meminfo": tmp_path / "meminfo"}[name])
    monkeypatch.setattr(_budget, "_CGROUP", tmp_path / "cgroup")
    (tmp_path / "cgroup" / "memory").mkdir(parents=True)
    return tmp_path / "cgroup"


def test_budget_of_this_machine():
    """The machine that runs the tests has some memory, and the budget accounts for it."""
    budget = memory_budget("1MiB", "cpu")
    assert 2**20 == budget
    assert budget.outside_bytes < budget.total_bytes
    assert budget.account().startswith("cpu: ")


def test_share_of_a_machine(machine):
    """Without a container, available is what the system says."""
    budget = memory_budget("50%", "cpu")
    assert (24 * GIB, 64 * GIB, 16 * GIB) == (budget, budget.total_bytes, budget.outside_bytes)
    assert ("cpu", "50%") == (budget.device, budget.limit)


@pytest.mark.parametrize(
    "text", ["", "MemTotal: 5 kB\n", "MemAvailable:\n", "MemAvailable: lots\n", "MemAvailableX: 5 kB\n"]
)
def test_system_that_does_not_say_what_is_available(machine, text):
    """Where the system names no available memory, all of it counts as available."""
    (machine.parent / "meminfo").write_text(text)
    assert (64 * GIB, 0) == (memory_budget("100%", "cpu"), memory_budget("100%", "cpu").outside_bytes)


def test_system_without_such_a_file(machine):
    """Where there is no such file at all, all memory counts as available."""
    (machine.parent / "meminfo").unlink()
    assert 64 * GIB == memory_budget("100%", "cpu")


@pytest.mark.parametrize("names", [V1, V2], ids=["v1", "v2"])
def test_container_with_a_limit(machine, names):
    """In a container available is its limit less what is used in it, in both versions of cgroups."""
    for name, count in zip(names, (8 * GIB, 3 * GIB), strict=True):
        (machine / name).write_text(f"{count}\n")
    budget = memory_budget("100%", "cpu")
    assert (5 * GIB, 8 * GIB, 3 * GIB) == (budget, budget.total_bytes, budget.outside_bytes)


@pytest.mark.parametrize("names", [V1, V2], ids=["v1", "v2"])
@pytest.mark.parametrize(
    ("limit", "usage"),
    [
        ("max\n", f"{GIB}\n"),
        (f"{2**63 - 4096}\n", f"{GIB}\n"),
        (f"{64 * GIB}\n", f"{GIB}\n"),
        ("", f"{GIB}\n"),
        ("-1\n", f"{GIB}\n"),
        (f"{8 * GIB}\n", ""),
    ],
)
def test_container_without_a_limit(machine, names, limit, usage):
    """A container that may have everything, or whose files say nothing, is the machine."""
    (machine / names[0]).write_text(limit)
    (machine / names[1]).write_text(usage)
    assert (48 * GIB, 64 * GIB) == (memory_budget("100%", "cpu"), memory_budget("100%", "cpu").total_bytes)


def test_container_over_its_limit(machine):
    """A container that uses more than it may has nothing left, and the error says so."""
    (machine / "memory.max").write_text(f"{8 * GIB}\n")
    (machine / "memory.current").write_text(f"{9 * GIB}\n")
    with pytest.raises(ValueError, match="at most what cpu has, 0 B"):
        memory_budget(1, "cpu")


@pytest.mark.parametrize(
    ("limit", "error", "text"),
    [
        ("49GiB", ValueError, "`limit` 49GiB must be positive and at most what cpu has, 48 GiB"),
        (48 * GIB + 1, ValueError, "at most what cpu has, 48 GiB"),
        ("0%", ValueError, "must be positive"),
        ("some", ValueError, "not a number of bytes: 'some'"),
        (0, ValueError, "`limit` must be at least 1, got 0"),
        (0.9, TypeError, "`limit` must be text or whole bytes, got the float"),
        (True, TypeError, "`limit` must be an integer, got bool"),
        (None, TypeError, "`limit` must be an integer, got NoneType"),
    ],
)
def test_limits_that_cannot_be(machine, limit, error, text):
    """A limit that cannot be read or is beyond what is available is refused."""
    with pytest.raises(error, match=text):
        memory_budget(limit, "cpu")


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        ("nowhere", ValueError, "a device that torch knows"),
        ("meta", ValueError, "counts its peak memory, got meta"),
        ("cuda:97", ValueError, "cuda:97 is not there"),
        (0, TypeError, "a torch.device or its name, got int"),
    ],
)
def test_devices_that_cannot_be(device, error, text):
    """A device that is absent or has no memory to count is refused."""
    with pytest.raises(error, match=text):
        memory_budget("90%", device)


def card(monkeypatch, *, free, reserved, total=80 * GIB, share=None):
    """Pretend a card that torch knows as its second CUDA device."""
    module = SimpleNamespace(mem_get_info=lambda _: (free, total), memory_reserved=lambda _: reserved)
    if share is not None:
        module.get_per_process_memory_fraction = lambda _: share
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize("share", [None, 1.0])
def test_card_with_neighbours(monkeypatch, share):
    """On a card the allocator's own reserve is available, what else is not free is used outside."""
    card(monkeypatch, free=50 * GIB, reserved=20 * GIB, share=share)
    budget = memory_budget("50%", "cuda:1")
    assert (35 * GIB, 80 * GIB, 10 * GIB) == (budget, budget.total_bytes, budget.outside_bytes)
    assert "cuda:1" == budget.device


def test_card_with_a_capped_process(monkeypatch):
    """A process that may reserve a quarter has no budget beyond it, whatever else is free."""
    card(monkeypatch, free=70 * GIB, reserved=5 * GIB, share=0.25)
    assert 20 * GIB == memory_budget("100%", "cuda:1")


def test_capped_process_on_a_full_card(monkeypatch):
    """A cap above what is left changes nothing."""
    card(monkeypatch, free=10 * GIB, reserved=5 * GIB, share=0.5)
    assert 15 * GIB == memory_budget("100%", "cuda:1")


def test_card_that_counts_more_than_it_has(monkeypatch):
    """Counters that were read one after the other may disagree, and nothing gets negative."""
    card(monkeypatch, free=70 * GIB, reserved=20 * GIB)
    assert 80 * GIB == memory_budget("100%", "cuda:1")


def test_lines_of_a_file_that_is_not_there(tmp_path):
    """A file that cannot be read has no lines."""
    assert [] == _budget._lines(Path(tmp_path) / "nowhere")
