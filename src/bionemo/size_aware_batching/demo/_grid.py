"""Which batches to measure: small first, from short to long elements, with little and with much padding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching.measure import measure_peaks
from bionemo.size_aware_batching.memory import PeakRecord, Profile

if TYPE_CHECKING:
    import torch

    from bionemo.size_aware_batching._types import IntArray
    from bionemo.size_aware_batching.demo._language_model import LanguageModelStep

__all__ = ["measure_grid"]

# Tokens of the first batches: two tiny ones, to see whether the optimizer's update sets a floor, then growing ones
# until one takes this share of the budget.
_PROBES, _PROBED_SHARE = (128, 256, 1024, 4096, 16384), 0.2
_QUANTILES = (0.1, 0.5, 0.95)
_FRACTIONS = (0.1, 0.3, 0.6)
_FEWEST_LENGTHS = 4


def measure_grid(proteins: list[str], step: LanguageModelStep, device: torch.device, budget: int, seed: int) -> Profile:
    """Measure a few small batches, then, knowing about what a token takes, a grid of shapes up to the budget.

    Raises:
        ValueError: the proteins are all of one length, or not even the small batches leave room in the budget.
    """
    lengths = np.array([len(protein) for protein in proteins])
    by_length = np.argsort(lengths, kind="stable")
    if np.unique(lengths).size < _FEWEST_LENGTHS:
        msg = f"{lengths.size} proteins are too few: a memory model needs at least {_FEWEST_LENGTHS} different lengths"
        raise ValueError(msg)

    def batch(indices: IntArray) -> list[str]:
        return [proteins[i] for i in indices]

    middle = by_length[[(lengths.size - 1) // 2]]
    probes: list[PeakRecord] = []
    for tokens in _PROBES:
        proteins_of_median_length = batch(np.resize(middle, max(tokens // int(lengths[middle[0]]), 1)))
        measured = measure_peaks([proteins_of_median_length], step, device, warmup=0 if probes else 2, progress=False)
        if measured[0].peak_bytes is None:
            break
        probes += measured
        if len(probes) > 1 and measured[0].peak_bytes > _PROBED_SHARE * budget:
            break
    room = _room(probes, budget)
    if room < 2 * lengths.min():
        msg = f"a budget of {format_bytes(budget)} leaves no room beside what every step takes"
        raise ValueError(msg)
    grid = [batch(indices) for indices in _grid(lengths, by_length, room, seed)]
    rest = measure_peaks(grid, step, device, warmup=0)
    records = (replace(record, index=index) for index, record in enumerate((*probes, *rest)))
    return Profile(tuple(records), rest.device, 2)


def _room(probes: list[PeakRecord], budget: int) -> float:
    """Estimate how many tokens the budget holds, from the two largest probes."""
    if len(probes) < 2:
        return 0.0
    small, large = probes[-2:]
    tokens = [record.features.items * record.features.longest for record in (small, large)]
    token_bytes = ((large.peak_bytes or 0) - (small.peak_bytes or 0)) / max(tokens[1] - tokens[0], 1)
    return tokens[1] + (budget - (large.peak_bytes or 0)) / token_bytes if token_bytes > 0 else 0.0


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
