"""Figures of predicted against measured peaks, and of batches against their budget."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bionemo.size_aware_batching._types import FloatArray
    from bionemo.size_aware_batching.memory import MemoryModel, Profile

__all__ = ["check_matplotlib", "memory_figure"]

# Distinct in grey and to colour-blind eyes (Okabe and Ito, "Color universal design", 2008).
_COLOURS = ("#999999", "#E69F00", "#0072B2", "#009E73", "#CC79A7")
_UNITS = {"MiB": 2**20, "GiB": 2**30}


def check_matplotlib() -> None:
    """Say early that figures need the extra.

    Raises:
        ValueError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415
    except ImportError as error:
        msg = "figures need matplotlib: pip install 'bionemo-size-aware-batching[plot]'"
        raise ValueError(msg) from error


def memory_figure(profile: Profile, model: MemoryModel, shapes: Mapping[str, FloatArray], budget: int) -> bytes:
    """Draw predicted against measured peaks, and each epoch's batches against the budget.

    Args:
        profile: the measurements.
        model: fitted to them.
        shapes: name of an epoch -> (batches, 3) items, longest, total.
        budget: bytes.

    Returns:
        A PNG file's bytes.

    Raises:
        ValueError: matplotlib is not installed.
    """
    check_matplotlib()
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    unit = "GiB" if budget >= 4 * _UNITS["GiB"] else "MiB"
    _draw_peaks(left, profile, model, unit)
    _draw_batches(right, model, shapes, budget, unit)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=150)
    return file.getvalue()


def _draw_peaks(axes: Any, profile: Profile, model: MemoryModel, unit: str) -> None:
    predicted = model.predict(profile.features) / _UNITS[unit]
    measured = np.array(profile.peak_bytes) / _UNITS[unit]
    ends = np.array([0, predicted.max() * 1.05])
    axes.plot(
        ends,
        ends * model.margin_factor + model.margin_bytes / _UNITS[unit],
        "--",
        color=_COLOURS[1],
        label=f"bound ({model.coverage:.1%})",
    )
    axes.plot(ends, ends, color=_COLOURS[0], label="prediction")
    axes.plot(predicted, measured, "o", color=_COLOURS[2], label="measured", markersize=5)
    axes.set(xlabel=f"predicted peak, {unit}", ylabel=f"measured peak, {unit}", title="Predicted and measured peaks")
    axes.set(xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False)


def _draw_batches(axes: Any, model: MemoryModel, shapes: Mapping[str, FloatArray], budget: int, unit: str) -> None:
    for (name, table), colour in zip(shapes.items(), _COLOURS * len(shapes), strict=False):
        bound = np.sort(model.upper_bound(table))[::-1] / _UNITS[unit]
        position = (np.arange(bound.size) + 0.5) / bound.size
        axes.plot(position, bound, ".-", color=colour, label=f"{name}: {bound.size:,} batches", markersize=3)
    axes.axhline(budget / _UNITS[unit], color="black", linewidth=1, label="budget")
    axes.set(xlabel="batches of an epoch, costliest first", ylabel=f"bound on the peak, {unit}")
    axes.set(title="Batches against the budget", xlim=(0, 1), ylim=(0, None), xticks=[])
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
