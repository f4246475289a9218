"""Reading peak memory: the allocator's counters on an accelerator, live storages on a CPU."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import torch

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.measure._storages import StorageCounter

__all__ = ["Meter", "Reading", "device_of", "meter_for", "present_device"]


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

    def begin(self) -> None:
        """Forget the last step's peak: a step begins."""

    def read(self) -> Reading:
        """Wait for the device and return what the step needed."""


class _StorageMeter:
    def __init__(self) -> None:
        self._counter = StorageCounter()

    def watching(self) -> AbstractContextManager[Any]:
        return self._counter

    def release(self) -> None:
        gc.collect()

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

    def begin(self) -> None:
        self._module.synchronize(self._device)
        self._module.reset_peak_memory_stats(self._device)
        self._baseline = int(self._module.memory_allocated(self._device))

    def read(self) -> Reading:
        self._module.synchronize(self._device)
        free, total = self._module.mem_get_info(self._device)
        return Reading(
            int(self._module.max_memory_allocated(self._device)),
            int(self._module.max_memory_reserved(self._device)),
            int(total - free),
            self._baseline,
        )


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
    return _StorageMeter() if device.type == "cpu" else _AllocatorMeter(device)
