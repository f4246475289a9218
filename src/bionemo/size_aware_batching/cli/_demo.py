"""`size-aware-batching demo`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

from bionemo.size_aware_batching._files import replace_file
from bionemo.size_aware_batching.demo import Demo, as_document, run_demo
from bionemo.size_aware_batching.report import check_matplotlib, comparison_table, memory_figure

__all__ = ["demo"]


# typer reads these annotations; `X | None` there needs Python 3.10, which is the oldest supported.
def demo(
    device: Annotated[Optional[str], typer.Option(help="cpu, cuda, cuda:1 ...; default: a GPU if any.")] = None,  # noqa: UP045
    budget: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Limit on a step's peak memory: 2GiB, 30%. Default: 512MiB on a CPU, 10% of a GPU."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Batches to train of each way to batch.")] = 4,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides weights, order and masked residues.")] = 0,
    fasta: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Your own proteins, plain or gzipped; default: a bundled bacterial proteome."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Folder for profile.json, model.json, comparison.json and memory.png."),
    ] = None,
) -> None:
    """Measure, model, plan and train a small protein language model on real proteins."""
    if out is not None:
        check_matplotlib()
        out.mkdir(parents=True, exist_ok=True)
    found = run_demo(fasta=fasta, device=device, budget=budget, steps=steps, seed=seed, say=_say)
    console = Console(width=max(Console().width, 80))
    console.print(comparison_table(found.rows, "residues"))
    _say(
        "budget used: mean of the bounds on the peaks; predicted: the costliest batch's estimate,\n"
        f"about {_margin(found):.1%} below its bound; speed: against the first row"
    )
    failed = sum(row.out_of_memory for row in found.rows)
    _say(f"out-of-memory errors: {failed}")
    if out is not None:
        _write(found, out)
        _say(f"wrote profile.json, model.json, comparison.json and memory.png to {out}")


def _margin(found: Demo) -> float:
    """Return the bound over the prediction, less one, for the largest measured batch."""
    return found.model.margin_factor - 1 + found.model.margin_bytes / max(found.profile.peak_bytes)


def _say(text: str) -> None:
    typer.echo(text + "\n")


def _write(found: Demo, out: Path) -> None:
    found.profile.save(out / "profile.json")
    found.model.save(out / "model.json")
    with replace_file(out / "comparison.json") as file:
        file.write(json.dumps(as_document(found), indent=1).encode() + b"\n")
    shapes = {epoch.name: epoch.shapes for epoch in found.epochs}
    with replace_file(out / "memory.png") as file:
        file.write(memory_figure(found.profile, found.model, shapes, found.budget))
