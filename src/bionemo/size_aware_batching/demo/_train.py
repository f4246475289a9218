"""Training for some steps on each epoch's batches, and what it took."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from tqdm.auto import tqdm

from bionemo.size_aware_batching.measure import is_out_of_memory, meter_for

if TYPE_CHECKING:
    import torch

    from bionemo.size_aware_batching.demo._language_model import LanguageModelStep
    from bionemo.size_aware_batching.demo._recipes import Epoch
    from bionemo.size_aware_batching.memory import MemoryModel

__all__ = ["Trained", "train"]


@dataclass(slots=True)
class Trained:
    """What the trained steps of one epoch took.

    Attributes:
        steps: how many were timed.
        out_of_memory: how many ran out of memory, timed or not.
        seconds: duration of the timed ones.
        residues: real, non-padding residues in them.
        peak_bytes: the highest measured peak, of all.
    """

    steps: int = 0
    out_of_memory: int = 0
    seconds: float = 0.0
    residues: int = 0
    peak_bytes: int = 0


def train(
    proteins: list[str],
    epochs: list[Epoch],
    step: LanguageModelStep,
    device: torch.device,
    model: MemoryModel,
    steps: int,
) -> list[Trained]:
    """Train `steps` batches of each epoch in turns, spread evenly over its short and long ones.

    The costliest batch of each epoch runs too, for its peak; it is not in the times, which it would bias.
    """
    meter = meter_for(device)
    trained = [Trained() for _ in epochs]
    queues = [_spread(epoch, model, steps) for epoch in epochs]
    # On an accelerator a first round lets the allocator's cache grow, which is not what an epoch is made of.
    rounds = 1 if device.type == "cpu" else 2
    bar = tqdm(total=rounds * sum(map(len, queues)), desc="training", unit="step", disable=None)
    with meter.watching(), bar:
        for last in [False] * (rounds - 1) + [True]:
            for turn in range(max(map(len, queues))):
                for epoch, queue, record in zip(epochs, queues, trained, strict=True):
                    if turn < len(queue):
                        meter.begin()
                        _one(
                            step,
                            [proteins[i] for i in epoch.batches[queue[turn]]],
                            record,
                            timed=last and turn > 0,
                        )
                        record.peak_bytes = max(record.peak_bytes, meter.read().peak_bytes)
                        bar.set_postfix(loss=f"{step.loss:.3f}", refresh=False)
                        bar.update()
    return trained


def _spread(epoch: Epoch, model: MemoryModel, steps: int) -> list[int]:
    """Return the costliest batch, then one from the middle of each of `steps` equal parts by length."""
    by_length = np.argsort(epoch.shapes[:, 1], kind="stable")
    steps = min(steps, by_length.size)
    middles = (np.arange(steps) + 0.5) / steps * by_length.size
    return [
        int(model.predict(epoch.shapes).argmax()),
        *by_length[np.unique(middles.astype(np.int64))].tolist(),
    ]


def _one(step: LanguageModelStep, batch: list[str], record: Trained, *, timed: bool) -> None:
    begin = time.perf_counter()
    try:
        shape = step(batch)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        record.out_of_memory += 1
        return
    if timed:
        record.steps += 1
        record.residues += int(shape.total)
        record.seconds += time.perf_counter() - begin
