"""The documented address of `create_buckets` and `collect_cuda_peak_alloc`."""

from __future__ import annotations

from bionemo.size_aware_batching.measure import collect_cuda_peak_alloc
from bionemo.size_aware_batching.sampler import create_buckets

__all__ = ["collect_cuda_peak_alloc", "create_buckets"]
