"""Running the user's work on a device and reading what memory it took."""

from __future__ import annotations

from bionemo.size_aware_batching.measure._budget import memory_budget
from bionemo.size_aware_batching.measure._meter import Meter, meter_for, present_device
from bionemo.size_aware_batching.measure._oom import is_out_of_memory
from bionemo.size_aware_batching.measure._run import collect_cuda_peak_alloc, measure_peaks

__all__ = [
    "Meter",
    "collect_cuda_peak_alloc",
    "is_out_of_memory",
    "measure_peaks",
    "memory_budget",
    "meter_for",
    "present_device",
]
