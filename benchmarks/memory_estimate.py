"""What `estimate_peaks` says without a GPU, beside what was measured on one.

    python benchmarks/memory_estimate.py transformer LENGTHS.npy transformer_profile.json

The profile is one that `benchmarks/memory.py` wrote. Both are taken at its shapes; the estimate, which is exact where
it was made, by a model fitted to about as many shapes of its own.
"""

from __future__ import annotations

import argparse

import numpy as np
from memory_models import WORKLOADS, load

from bionemo.size_aware_batching import BatchShape, MemoryModel, Profile, estimate_peaks, suggest_shapes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(WORKLOADS))
    parser.add_argument("sizes", help="an .npy file of sizes, one row an element")
    parser.add_argument("profile", help="measured on a GPU")
    parser.add_argument("--limit", type=int, help="take that many elements")
    arguments = parser.parse_args()
    workload, measured = load(arguments.model, arguments.sizes, arguments.limit), Profile.load(arguments.profile)

    def build():
        step = workload.build("cpu")

        def work(indices: list[int]) -> BatchShape:
            step(indices)
            return BatchShape.of(workload.sizes[indices])

        return work

    shapes = suggest_shapes(workload.sizes, max(measured.peak_bytes), count=len(measured))
    model = MemoryModel().fit(estimate_peaks(shapes, build))
    peaks, estimates = np.array(measured.peak_bytes) / 2**20, model.predict(measured.features) / 2**20
    # At the largest shapes percents matter, at the smallest what libraries hold.
    constant = float(np.median((peaks - estimates)[peaks < 2 * peaks.min()]))
    print(
        f"{arguments.model}: {measured.device}; constant {constant:.0f} MiB (median difference of the smallest steps)"
    )
    print("items  longest        measured MiB  estimated MiB  with constant")
    for shape, peak, estimate in zip(measured.features, peaks, estimates, strict=True):
        off, still = estimate / peak - 1, (estimate + constant) / peak - 1
        print(f"{shape.items:5}  {shape.longest!s:12}  {peak:12,.0f} {estimate:8,.0f} {off:+6.1%} {still:+14.1%}")


if __name__ == "__main__":
    main()
