"""The main job: measure, model, plan and train on real proteins, and compare with what people do otherwise."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bionemo.size_aware_batching.demo._fasta import bundled_proteome, read_fasta
from bionemo.size_aware_batching.demo._language_model import LanguageModelStep
from bionemo.size_aware_batching.demo._recipes import Epoch, epochs
from bionemo.size_aware_batching.demo._train import train
from bionemo.size_aware_batching.measure import measure_peaks, memory_budget, present_device, suggest_shapes
from bionemo.size_aware_batching.memory import MemoryBudget, MemoryModel, Profile
from bionemo.size_aware_batching.report import Row

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

__all__ = ["DEFAULT_BUDGET", "Demo", "run_demo"]

# On an accelerator a tenth: the bundled proteome is small, and a larger share would leave too few batches to compare.
DEFAULT_BUDGET = {"cpu": "512MiB", "other": "10%"}


@dataclass(frozen=True, slots=True)
class Demo:
    """All that a run of the demo found.

    Attributes:
        budget: the limit on peak bytes.
        profile: measured peaks of the grid.
        model: the memory model fitted to them.
        epochs: the ways to batch that were compared.
        rows: the comparison, one row for each.
        settings: the arguments, for the record.
    """

    budget: MemoryBudget
    profile: Profile
    model: MemoryModel
    epochs: list[Epoch]
    rows: list[Row]
    settings: dict[str, Any]


def run_demo(
    *,
    fasta: str | os.PathLike[str] | None = None,
    device: str | None = None,
    budget: str | None = None,
    steps: int = 4,
    seed: int = 0,
    say: Callable[[str], Any] = lambda _: None,
) -> Demo:
    """Run the measure, model, plan, train workflow.

    Args:
        fasta: the proteins; by default a bundled bacterial proteome.
        device: by default the GPU if there is one, else the CPU.
        budget: limit on a step's peak memory, a share of the device ("10%") or bytes ("512MiB").
        steps: how many batches to train of each epoch.
        seed: decides weights, order and masked residues.
        say: receives what is found, line by line, as it is found.

    Raises:
        FileFormatError: `fasta` is not a FASTA file.
        OSError: `fasta` cannot be read.
        ValueError: an option is wrong, or the budget is too small for the longest protein.
    """
    target = present_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    proteins = bundled_proteome() if fasta is None else read_fasta(fasta)
    lengths = np.array([len(protein) for protein in proteins])
    say(f"{lengths.size:,} proteins of {lengths.min()} to {lengths.max():,} residues, median {np.median(lengths):g}")
    default = DEFAULT_BUDGET.get(target.type, DEFAULT_BUDGET["other"])
    limit = memory_budget(budget or default, target)
    say(limit.account())

    step = LanguageModelStep(target, seed)
    shapes = suggest_shapes(lengths, limit)
    profile = measure_peaks(shapes, lambda indices: step([proteins[i] for i in indices]), target)
    say(profile.summary())
    model = MemoryModel().fit(profile)
    say(model.summary())
    compared = epochs(lengths, model, limit, seed)
    trained = train(proteins, compared, step, target, model, steps)
    rows = [
        Row(
            strategy=epoch.name,
            batches=len(epoch.batches),
            padding_fraction=epoch.padding_fraction,
            budget_used_mean=float(model.upper_bound(epoch.shapes).mean() / limit),
            predicted_peak_bytes=int(model.predict(epoch.shapes).max()),
            measured_peak_bytes=record.peak_bytes,
            real_units_per_second=record.residues / record.seconds if record.seconds else 0.0,
            steps=record.steps,
            out_of_memory=record.out_of_memory,
        )
        for epoch, record in zip(compared, trained, strict=True)
    ]
    settings = {
        "proteins": lengths.size,
        "device": profile.device,
        "budget_bytes": int(limit),
        "steps": steps,
        "seed": seed,
        "torch": torch.__version__,
        "held_out_error_mean": model.held_out_error[0],
        "held_out_error_max": model.held_out_error[1],
    }
    return Demo(limit, profile, model, compared, rows, settings)


def as_document(demo: Demo) -> dict[str, Any]:
    """Return the comparison as a JSON-ready dict."""
    return {**demo.settings, "rows": [asdict(row) for row in demo.rows]}
