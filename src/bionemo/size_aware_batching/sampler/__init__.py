"""Samplers for a `torch.utils.data.DataLoader`."""

from __future__ import annotations

from bionemo.size_aware_batching.sampler._bucket import BucketBatchSampler
from bionemo.size_aware_batching.sampler._buckets import Buckets, create_buckets
from bionemo.size_aware_batching.sampler._budget import BudgetBatchSampler
from bionemo.size_aware_batching.sampler._size_aware import SizeAwareBatchSampler
from bionemo.size_aware_batching.sampler._stream import size_aware_batching

__all__ = [
    "BucketBatchSampler",
    "Buckets",
    "BudgetBatchSampler",
    "SizeAwareBatchSampler",
    "create_buckets",
    "size_aware_batching",
]
