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
    Plan,
    Profile,
    SizeAwareBatchSampler,
    create_buckets,
    measure_peaks,
    memory_budget,
    plan_batches,
    size_aware_batching,
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
