"""The comparison of ways to batch, as a table that fits 80 columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table

from bionemo.size_aware_batching._bytes import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Row", "comparison_table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One way to batch, and what came of it.

    Attributes:
        strategy: its name.
        batches: batches in an epoch.
        padding_fraction: share of the padded tokens that are padding.
        budget_used_mean: mean over the batches of the bound on their peak, over the budget.
        predicted_peak_bytes: of the costliest batch.
        measured_peak_bytes: the highest seen in training.
        real_units_per_second: non-padding residues (tokens, atoms) trained per second.
        steps: trained steps.
        out_of_memory: steps that ran out of memory.
    """

    strategy: str
    batches: int
    padding_fraction: float
    budget_used_mean: float
    predicted_peak_bytes: int
    measured_peak_bytes: int
    real_units_per_second: float
    steps: int
    out_of_memory: int


def comparison_table(rows: Sequence[Row], unit: str) -> Table:
    """Lay out rows side by side; the last column compares speed with the first row.

    Args:
        rows: at least one.
        unit: what is counted per second, for the heading.
    """
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    table.add_column("", no_wrap=True)
    for heading in (
        "batches",
        "padding",
        "budget\nused",
        "predicted\npeak",
        "measured\npeak",
        f"real\n{unit}/s",
        "speed",
    ):
        table.add_column(heading, justify="right")
    base = rows[0].real_units_per_second
    for row in rows:
        table.add_row(
            row.strategy,
            f"{row.batches:,}",
            f"{row.padding_fraction:.1%}",
            f"{row.budget_used_mean:.1%}",
            format_bytes(row.predicted_peak_bytes),
            format_bytes(row.measured_peak_bytes),
            f"{row.real_units_per_second:,.0f}",
            f"{row.real_units_per_second / base:.2f}x" if base else "-",
        )
    return table
