"""Draws the figures of docs/memory.md from the profiles in docs/benchmarks/data.

python docs/plots/memory.py
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np

from bionemo.size_aware_batching import MemoryModel, Profile

mpl.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).parents[1]
GIB = 2**30
# What each model's memory goes with: name, and its value for items, longest, total.
DRIVERS = {
    "transformer": ("padded tokens (items x longest)", lambda s: s.items * s.longest),
    "pairs": ("pairs (items x longest^2)", lambda s: s.items * s.longest**2),
    "molecules": ("bonds (total)", lambda s: s.total[1]),
}
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # distinct for colour-blind eyes too


def main() -> None:
    """Draw, and write the image."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, rows = plt.subplots(2, 3, figsize=(10, 5.6), layout="constrained")
    for name, (above, below) in zip(DRIVERS, rows.T, strict=True):
        profile = Profile.load(DOCS / "benchmarks" / "data" / f"{name}_profile.json")
        model = MemoryModel().fit(profile)
        label, value = DRIVERS[name]
        driver = np.array([value(shape) for shape in profile.features], float)
        peaks = np.array(profile.peak_bytes) / GIB
        predicted, bound = (f(profile.features) / GIB for f in (model.predict, model.upper_bound))
        order = np.argsort(driver)
        above.plot(driver[order], predicted[order], color=BLUE, label="prediction")
        above.plot(driver, peaks, "o", color=ORANGE, markersize=4, label="measured")
        above.set(title=name, xlabel=label, ylabel="peak, GiB", ylim=(0, None))
        above.ticklabel_format(axis="x", style="sci", scilimits=(0, 4))
        order = np.argsort(peaks)
        below.axhline(0, color=BLUE)
        below.plot(peaks[order], 1024 * (bound - predicted)[order], "--", color=GREEN, label="upper bound")
        below.plot(peaks, 1024 * (peaks - predicted), "o", color=ORANGE, markersize=4, label="measured")
        below.set(xlabel="peak, GiB", ylabel="above the prediction, MiB")
    rows[0, 0].legend(frameon=False)
    rows[1, 0].legend(frameon=False)
    (DOCS / "images").mkdir(exist_ok=True)
    figure.savefig(DOCS / "images" / "memory_models.png", dpi=130)


if __name__ == "__main__":
    main()
