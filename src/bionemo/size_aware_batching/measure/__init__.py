"""Running the user's work on a device and reading what memory it took."""

from __future__ import annotations

from bionemo.size_aware_batching.measure._budget import memory_budget
from bionemo.size_aware_batching.measure._estimate import estimate_peaks
from bionemo.size_aware_batching.measure._meter import Meter, meter_for, present_device
from bionemo.size_aware_batching.measure._monitor import PeakMonitor
from bionemo.size_aware_batching.measure._oom import is_out_of_memory
from bionemo.size_aware_batching.measure._run import collect_cuda_peak_alloc, measure_peaks
from bionemo.size_aware_batching.measure._shapes import SuggestedShapes, suggest_shapes
from bionemo.size_aware_batching.measure._split import SplitOutcome, split_on_oom
from bionemo.size_aware_batching.measure._worst import WorstBatches, check_worst_batches

__all__ = [
    "Meter",
    "PeakMonitor",
    "SplitOutcome",
    "SuggestedShapes",
    "WorstBatches",
    "check_worst_batches",
    "collect_cuda_peak_alloc",
    "estimate_peaks",
    "is_out_of_memory",
    "measure_peaks",
    "memory_budget",
    "meter_for",
    "present_device",
    "split_on_oom",
    "suggest_shapes",
]
