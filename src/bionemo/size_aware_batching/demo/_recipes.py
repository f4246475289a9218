"""Three ways to batch the same proteins, each safe for the longest of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from bionemo.size_aware_batching.plan import plan_batches
from bionemo.size_aware_batching.sampler import BucketBatchSampler, SizeAwareBatchSampler, create_buckets

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import FloatArray, IntArray
    from bionemo.size_aware_batching.memory import MemoryModel

__all__ = ["Epoch", "epochs"]

# Residues a bucket may span, and proteins that are enough to close it earlier.
_BUCKET_WIDTH, _BUCKET_COUNT = 64, 100


@dataclass(frozen=True, slots=True)
class Epoch:
    """All batches of one epoch, made in one way.

    Attributes:
        name: the way.
        batches: index lists.
        shapes: (batches, 3) items, longest, total.
    """

    name: str
    batches: list[list[int]]
    shapes: FloatArray

    @property
    def padding_fraction(self) -> float:
        """Share of the padded tokens that are no residue."""
        items, longest, total = self.shapes.T
        return float(1 - total.sum() / (items * longest).sum())


def epochs(lengths: IntArray, model: MemoryModel, budget: int, seed: int) -> list[Epoch]:
    """Batch the same elements with a fixed batch size, with buckets, and as planned.

    Raises:
        OversizedError: the longest element alone is over the budget.
    """
    planned = list(plan_batches(lengths, budget=budget, cost=model, strategy="by_size", shuffle=True, seed=seed))
    ways = {
        "fixed batch size": _fixed(lengths, model, budget, seed),
        "bucket + size-aware": _bucketed(lengths, model, budget, seed),
        "planned by size": planned,
    }
    return [Epoch(name, batches, _shapes(lengths, batches)) for name, batches in ways.items()]


def _fixed(lengths: IntArray, model: MemoryModel, budget: int, seed: int) -> list[list[int]]:
    longest = int(lengths.max())
    items = np.arange(1, lengths.size + 1)
    bound = model(items, np.full(items.size, longest), items * longest)
    size = int((bound <= budget).sum())
    order = np.random.default_rng(seed).permutation(lengths.size)
    return [order[start : start + size].tolist() for start in range(0, order.size, size)]


def _bucketed(lengths: IntArray, model: MemoryModel, budget: int, seed: int) -> list[list[int]]:
    sizes = torch.from_numpy(lengths)
    boundaries = create_buckets(sizes, _BUCKET_WIDTH, _BUCKET_COUNT).bucket_boundaries
    # An element counts as if it were as long as its bucket allows: it may be padded to that.
    padded = boundaries[torch.bucketize(sizes, boundaries, right=True)] - 1
    sampler = BucketBatchSampler(
        sizes,
        boundaries,
        SizeAwareBatchSampler,
        {
            "sizeof": model.element_bytes(np.minimum(padded.numpy(), lengths.max())),
            "max_total_size": budget - model.fixed_bytes,
        },
        generator=torch.Generator(device="cpu").manual_seed(seed),
    )
    return list(sampler)


def _shapes(lengths: IntArray, batches: list[list[int]]) -> FloatArray:
    rows = [(len(batch), lengths[batch].max(), lengths[batch].sum()) for batch in batches]
    return np.array(rows, np.float64)
