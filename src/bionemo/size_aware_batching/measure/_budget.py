"""`memory_budget`: what a device has to give."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.measure._meter import present_device
from bionemo.size_aware_batching.memory import MemoryBudget, Profile

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["memory_budget"]

_CGROUP = Path("/sys/fs/cgroup")


def memory_budget(limit: str | int, device: torch.device | str, *, profile: Profile | None = None) -> MemoryBudget:
    """Work out how many bytes a step's peak of allocated memory may take on a device.

    Available is what the device has, less what is used there outside this process's tensors (other processes, the
    device context, libraries), less what the allocator needs beyond what it hands out: that is read from a profile.
    Compare budgets with peaks of allocated (not reserved) bytes.

    Args:
        limit: a share of what is available, such as "95%", or bytes: "16GiB", 17179869184.
        device: a CPU (its memory, or its container's), CUDA, or another accelerator that counts its memory.
        profile: steps measured on the device, the largest near the budget. Without it nothing is set aside for
            fragmentation, and the share that `limit` leaves free has to do: then rather "90%".

    Returns:
        Bytes; an `int` whose `account()` says what was subtracted and why.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: `limit` cannot be read or is more than is available; the device is absent.

    >>> budget = memory_budget("1MiB", "cpu")
    >>> budget + 0
    1048576
    >>> print(budget.account())
    cpu: ... in all
    ...
    = 1 MiB budget for peak allocated bytes
    """
    target = present_device(device)
    total, outside = _host_memory() if target.type == "cpu" else _device_memory(target)
    if profile is not None and not isinstance(profile, Profile):
        msg = f"`profile` must be a Profile, got {kind_of(profile)}"
        raise TypeError(msg)
    beyond = 0.0 if profile is None else profile.fragmentation_fraction
    fragmentation = math.ceil((total - outside) * beyond / (1 + beyond))
    return MemoryBudget.of(
        limit, device=str(target), total_bytes=total, outside_bytes=outside, fragmentation_bytes=fragmentation
    )


def _device_memory(device: torch.device) -> tuple[int, int]:
    module = torch.get_device_module(device)
    free, total = module.mem_get_info(device)
    outside = total - free - module.memory_reserved(device)
    share = getattr(module, "get_per_process_memory_fraction", lambda _: 1.0)(device)
    # A process capped at a fraction may reserve that much and no more, whatever else is free.
    beyond_cap = total - int(share * total)
    return int(total), int(min(max(outside, beyond_cap, 0), total))


def _host_memory() -> tuple[int, int]:
    """Return the machine's or the container's memory and what is used of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available = _number(_lines(Path("/proc/meminfo")), "MemAvailable:", 1024)
    used = total - available if available is not None else 0
    for limit, usage in (
        (_CGROUP / "memory.max", _CGROUP / "memory.current"),
        (_CGROUP / "memory/memory.limit_in_bytes", _CGROUP / "memory/memory.usage_in_bytes"),
    ):
        capped, taken = _number(_lines(limit)), _number(_lines(usage))
        if capped is not None and taken is not None and capped < total:
            return capped, min(taken, capped)
    return total, used


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(lines: Iterable[str], name: str = "", unit: int = 1) -> int | None:
    for line in lines:
        words = line.removeprefix(name).split()
        if line.startswith(name) and words and words[0].isdigit():
            return int(words[0]) * unit
    return None
