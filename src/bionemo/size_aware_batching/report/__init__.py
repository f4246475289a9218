"""From records to text and figures."""

from __future__ import annotations

from bionemo.size_aware_batching.report._figure import check_matplotlib, memory_figure
from bionemo.size_aware_batching.report._table import Row, comparison_table

__all__ = ["Row", "check_matplotlib", "comparison_table", "memory_figure"]
