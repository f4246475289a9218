"""Reading peak memory: the allocator's counters on an accelerator, live storages on a CPU."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.measure._storages import StorageCounter

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Meter", "Reading", "StorageMeter", "device_name", "device_of", "meter_for", "present_device"]


class Reading(NamedTuple):
    """What a meter saw of one step, in bytes; None where the device has no such number."""

    peak_bytes: int
    reserved_bytes: int | None
    device_bytes: int | None
    baseline_bytes: int


class Meter(Protocol):
    """One device's peak memory, step by step."""

    def watching(self) -> AbstractContextManager[Any]:
        """Return the context that steps must run in."""

    def release(self) -> None:
        """Free what nobody refers to, and give the allocator's cached blocks back to the device."""

    def wait(self) -> None:
        """Wait for what the device still does. Counters do not need that, clocks do."""

    def begin(self) -> None:
        """Forget the last step's peak: a step begins."""

    def read(self) -> Reading:
        """Return what the step needed."""


class StorageMeter:
    """Counts live storages: for devices without counters of their own, and for none at all."""

    def __init__(self, counter: StorageCounter) -> None:
        """Read this counter."""
        self._counter = counter

    def watching(self) -> AbstractContextManager[Any]:
        return self._counter

    def release(self) -> None:
        gc.collect()

    def wait(self) -> None:
        pass

    def begin(self) -> None:
        self._counter.begin()

    def read(self) -> Reading:
        return Reading(self._counter.peak_bytes, None, None, self._counter.baseline_bytes)


class _AllocatorMeter:
    """Works with `torch.cuda` and every other device module that has its counters."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)
        self._baseline = 0

    def watching(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def release(self) -> None:
        gc.collect()
        self._module.synchronize(self._device)
        self._module.empty_cache()

    def wait(self) -> None:
        self._module.synchronize(self._device)

    def begin(self) -> None:
        self._module.reset_peak_memory_stats(self._device)
        self._baseline = int(self._module.memory_allocated(self._device))

    def read(self) -> Reading:
        free, total = self._module.mem_get_info(self._device)
        return Reading(
            int(self._module.max_memory_allocated(self._device)),
            int(self._module.max_memory_reserved(self._device)),
            int(total - free),
            self._baseline,
        )


class _CappedMeter(_AllocatorMeter):
    """Of a device whose module also tells and sets what share of the memory this process may take."""

    def most(self) -> int:
        share = float(self._module.get_per_process_memory_fraction(self._device))
        free, total = self._module.mem_get_info(self._device)
        return int(min(share * total, free + self._module.memory_reserved(self._device)))

    @contextmanager
    def capped(self, limit_bytes: int) -> Iterator[None]:
        before = self._module.get_per_process_memory_fraction(self._device)
        total = self._module.mem_get_info(self._device)[1]
        self._module.set_per_process_memory_fraction(min(limit_bytes / total, before), self._device)
        try:
            yield
        finally:
            self._module.set_per_process_memory_fraction(before, self._device)

    def is_expandable(self) -> bool:
        segments = self._module.memory_snapshot()
        return any(segment.get("is_expandable") for segment in segments)


def device_of(device: Any) -> torch.device:
    """Return `device` as a `torch.device`.

    Raises:
        TypeError: it is neither a device nor text.
        ValueError: torch knows no such device.
    """
    if not isinstance(device, (str, torch.device)):
        msg = f"`device` must be a torch.device or its name, got {kind_of(device)}"
        raise TypeError(msg)
    try:
        return torch.device(device)
    except RuntimeError as error:
        msg = f"`device` must be a device that torch knows, got {device!r:.60}"
        raise ValueError(msg) from error


def device_name(device: torch.device) -> str:
    """Return a device for people to read, with the name of the card."""
    if device.type == "cpu":
        return "cpu"
    return f"{device} ({torch.get_device_module(device).get_device_name(device)})"


def present_device(device: Any) -> torch.device:
    """Return a device that is here and whose peak memory can be read, with its index.

    Raises:
        TypeError: `device` is neither a device nor text.
        ValueError: torch knows no such device, it is absent here, or its module does not count peaks.
    """
    target = device_of(device)
    if target.type == "cpu":
        return torch.device("cpu")
    module = getattr(torch, target.type, None)
    if not all(hasattr(module, name) for name in ("max_memory_allocated", "mem_get_info", "empty_cache")):
        msg = f"`device` must be a CPU or an accelerator that counts its peak memory, got {target}"
        raise ValueError(msg)
    count = module.device_count() if module is not None and module.is_available() else 0
    if not 0 <= (target.index or 0) < count:
        msg = f"`device` {target} is not there: torch sees {count} {target.type} devices"
        raise ValueError(msg)
    return target if target.index is not None else torch.device(target.type, module.current_device())


def meter_for(device: torch.device) -> Meter:
    """Return the meter for a device that `present_device` returned."""
    if device.type == "cpu":
        return StorageMeter(StorageCounter())
    # Before torch 2.6 the share that a process may take could be set but not read.
    can_cap = hasattr(torch.get_device_module(device), "get_per_process_memory_fraction")
    return _CappedMeter(device) if can_cap else _AllocatorMeter(device)
