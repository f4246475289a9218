"""From sizes to batches, in numpy alone: no device, no process group, no random state but what is passed in."""

from __future__ import annotations

from bionemo.size_aware_batching.plan._buckets import bucket_boundaries, bucket_drawer, group_by_bucket
from bionemo.size_aware_batching.plan._cost import PaddedCost, SumCost
from bionemo.size_aware_batching.plan._cut import cut_by_sum
from bionemo.size_aware_batching.plan._plan import Plan
from bionemo.size_aware_batching.plan._planner import plan_batches, plan_rest
from bionemo.size_aware_batching.plan._summary import PlanSummary

__all__ = [
    "PaddedCost",
    "Plan",
    "PlanSummary",
    "SumCost",
    "bucket_boundaries",
    "bucket_drawer",
    "cut_by_sum",
    "group_by_bucket",
    "plan_batches",
    "plan_rest",
]
