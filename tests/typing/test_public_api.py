"""What type checkers see of the public names; run by mypy, and by pytest like any other test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset

from bionemo.size_aware_batching import (
    BatchShape,
    BucketBatchSampler,
    BudgetBatchSampler,
    MemoryModel,
    PaddedCost,
    PeakMonitor,
    Plan,
    Profile,
    SizeAwareBatchSampler,
    check_worst_batches,
    create_buckets,
    estimate_peaks,
    measure_peaks,
    memory_budget,
    plan_batches,
    size_aware_batching,
    split_on_oom,
    suggest_shapes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_documented_names_have_types() -> None:
    """The documented names take and give what their annotations say."""
    words: Iterator[list[str]] = size_aware_batching(["a", "bb"], len, 2)
    joined: Iterator[str] = size_aware_batching(["a", "bb"], len, 2, collate_fn="".join)
    sampler = SizeAwareBatchSampler(SequentialSampler([0, 0]), np.array([1, 2]), 2)
    batches: list[list[int]] = list(sampler)
    boundaries: torch.Tensor = create_buckets(torch.tensor([1, 2]), 5, 1).bucket_boundaries
    buckets = BucketBatchSampler(
        torch.tensor([1, 2]), boundaries, SizeAwareBatchSampler, {"sizeof": [1, 2], "max_total_size": 2}, shuffle=False
    )
    assert ([["a"], ["bb"]], ["a", "bb"]) == (list(words), list(joined))
    assert batches == list(buckets) == [[0], [1]]


def test_names_beyond_have_types() -> None:
    """So do the names beyond them."""
    plan: Plan = plan_batches([1, 2, 3], budget=4, cost=PaddedCost(), strategy="by_size")
    sampler = BudgetBatchSampler(np.array([1, 2, 3]), budget=4, shuffle=True)
    loader: DataLoader[tuple[torch.Tensor, ...]] = DataLoader(TensorDataset(torch.arange(3)), batch_sampler=sampler)
    shapes = [BatchShape(n, length, n * length) for n in (1, 2, 4) for length in (8, 16)]
    model: MemoryModel = MemoryModel().fit(shapes, [100.0 + s.items * s.longest for s in shapes])
    profile: Profile = measure_peaks([1], lambda _: shapes[0], "cpu", progress=False)
    assert int(memory_budget("1MiB", "cpu")) == 2**20
    assert (len(plan), len(loader), len(profile)) == (2, len(sampler), 1)
    assert model.predict(shapes[0]) > 0


def test_names_around_memory_have_types() -> None:
    """And those that suggest, estimate, watch, check and split."""
    batches: list[list[int]] = [next(suggest_shapes([3, 5, 9], 2**20, max_items=2))]
    estimated: Profile = estimate_peaks(batches, lambda: len, warmup=0, progress=False)
    monitor = PeakMonitor("cpu")
    with monitor, monitor.step(BatchShape.of([3, 5])):
        torch.ones(4)
    found = check_worst_batches(plan_batches([1, 2], budget=3), len, "cpu", progress=False)
    verdict: bool = found.fits
    outcome = split_on_oom([1, 2], lambda part, weight: weight * len(part), torch.nn.Linear(1, 1))
    parts: int = outcome.parts
    assert (1, 1, 1, True) == (len(estimated), len(monitor.profile), parts, verdict)
