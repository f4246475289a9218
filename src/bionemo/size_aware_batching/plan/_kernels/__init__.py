"""The compiled loops: each is also its own meaning in plain Python (`NUMBA_DISABLE_JIT=1` runs it so).

Sizes come in as int32, int64 or float64, so that each loop compiles for those alone; the machine code is cached
beside these files. Only `plan` imports this package, and only when it is about to call something here: importing numba
takes longer than importing the rest of the package.
"""

from __future__ import annotations

from bionemo.size_aware_batching.plan._kernels._bucketing import draw_bucket, fill_buckets
from bionemo.size_aware_batching.plan._kernels._cutting import cut_by_sum, cut_one, cut_several, fits, shapes
from bionemo.size_aware_batching.plan._kernels._dealing import copy_runs, emit, permute, sort_counted
from bionemo.size_aware_batching.plan._kernels._packing import pack, pack_exactly

__all__ = [
    "copy_runs",
    "cut_by_sum",
    "cut_one",
    "cut_several",
    "draw_bucket",
    "emit",
    "fill_buckets",
    "fits",
    "pack",
    "pack_exactly",
    "permute",
    "shapes",
    "sort_counted",
]
