"""Which batches to measure: small first, from short to long elements, with little and with much padding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bionemo.size_aware_batching.measure import measure_peaks
from bionemo.size_aware_batching.memory import Profile

if TYPE_CHECKING:
    import torch

    from bionemo.size_aware_batching._types import IntArray
    from bionemo.size_aware_batching.demo._language_model import LanguageModelStep

__all__ = ["measure_grid"]

# Two tiny ones, to see whether the optimizer's update sets a floor.
_PROBE_ITEMS = (1, 2, 8, 24)
_QUANTILES = (0.1, 0.5, 0.9, 0.99)
_FRACTIONS = (0.1, 0.3, 0.75)


def measure_grid(proteins: list[str], step: LanguageModelStep, device: torch.device, budget: int, seed: int) -> Profile:
    """Measure a few small batches, then, knowing about what a token takes, a grid of shapes up to the budget.

    Raises:
        ValueError: not even the small batches leave room in the budget.
    """
    lengths = np.array([len(protein) for protein in proteins])
    by_length = np.argsort(lengths, kind="stable")

    def batch(indices: IntArray) -> list[str]:
        return [proteins[i] for i in indices]

    middle = by_length[[int(0.5 * (lengths.size - 1))]]
    probes = [batch(np.resize(middle, items)) for items in _PROBE_ITEMS]
    first = measure_peaks(probes, step, device)
    tokens = np.array([shape.items * shape.longest for shape in first.features], np.float64)
    if tokens.size < len(_PROBE_ITEMS):
        msg = f"the device ran out of memory on {_PROBE_ITEMS[-1]} proteins of median length; nothing can be planned"
        raise ValueError(msg)
    token_bytes, fixed_bytes = np.polyfit(tokens, first.peak_bytes, 1)
    room = (budget - fixed_bytes) / token_bytes
    if room < 2 * lengths.min():
        msg = f"a budget of {budget} bytes leaves no room beside the {fixed_bytes:.0f} bytes that every step takes"
        raise ValueError(msg)
    grid = [batch(indices) for indices in _grid(lengths, by_length, room, seed)]
    rest = measure_peaks(grid, step, device, warmup=0)
    moved = tuple(replace(record, index=record.index + len(first)) for record in rest)
    return Profile(first.records + moved, first.device, first.warmup)


def _grid(lengths: IntArray, by_length: IntArray, room: float, seed: int) -> list[IntArray]:
    """Return batches in ascending order of the tokens they are padded to."""
    rng = np.random.default_rng(seed)
    batches = []
    for fraction in _FRACTIONS:
        for quantile in _QUANTILES:
            end = int(quantile * (lengths.size - 1)) + 1
            items = max(int(fraction * room / lengths[by_length[end - 1]]), 1)
            # The like-sized below it; where there are too few of them, some twice.
            batches.append(np.resize(by_length[max(end - items, 0) : end][::-1], items))
        # Random companions pad much.
        drawn = rng.permutation(lengths.size)
        padded = np.arange(1, drawn.size + 1) * np.maximum.accumulate(lengths[drawn])
        batches.append(drawn[: max(int((padded <= fraction * room).sum()), 1)])
    tokens = [batch.size * lengths[batch].max() for batch in batches]
    return [batches[i] for i in np.argsort(tokens, kind="stable") if tokens[i] <= room]
