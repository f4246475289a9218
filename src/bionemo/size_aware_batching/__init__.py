"""Batches of elements of very different size that fill a memory budget and never run out of memory.

Measure the peak memory of real steps, model it, plan batches within a budget, sample them into a DataLoader,
report what was promised and what happened.
"""

from __future__ import annotations

from bionemo.size_aware_batching.measure import (
    PeakMonitor,
    check_worst_batches,
    collect_cuda_peak_alloc,
    estimate_peaks,
    measure_peaks,
    memory_budget,
    split_on_oom,
    suggest_shapes,
)
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, Profile
from bionemo.size_aware_batching.plan import PaddedCost, Plan, SumCost, plan_batches
from bionemo.size_aware_batching.sampler import (
    BucketBatchSampler,
    BudgetBatchSampler,
    SizeAwareBatchSampler,
    create_buckets,
    size_aware_batching,
)

__all__ = [
    "BatchShape",
    "BucketBatchSampler",
    "BudgetBatchSampler",
    "MemoryModel",
    "PaddedCost",
    "PeakMonitor",
    "Plan",
    "Profile",
    "SizeAwareBatchSampler",
    "SumCost",
    "check_worst_batches",
    "collect_cuda_peak_alloc",
    "create_buckets",
    "estimate_peaks",
    "measure_peaks",
    "memory_budget",
    "plan_batches",
    "size_aware_batching",
    "split_on_oom",
    "suggest_shapes",
]
