"""What plans cost and how good they are.

    python benchmarks/planner.py                            # 1 and 10 million made-up lengths
    python benchmarks/planner.py --elements 100000000       # how it scales, with peak memory
    python benchmarks/planner.py --sizes FILE.npy [--column 0] [--budget N]

Times are nanoseconds an element, the fastest of some runs after one that compiles, and their ratio to
`numpy.argsort(sizes.astype(int64), kind="stable")` in the same run. The lower bound on the number of batches is
ceil(sum of sizes / budget), which no padded cost can reach; "same" is the share of batches of equal sizes.
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching import BatchShape, MemoryModel, PaddedCost, plan_batches

if TYPE_CHECKING:
    from collections.abc import Callable


def best_seconds(call: Callable[[], Any], repeat: int) -> tuple[float, Any]:
    """Return the fastest of `repeat` runs after one that warms up, and the last result."""
    result = call()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        result = call()
        times.append(time.perf_counter() - begin)
    return min(times), result


def memory_model(budget: float) -> MemoryModel:
    """Fit a model that costs about what padded sizes cost."""
    shapes = [BatchShape(n, length, n * length) for n in (1, 4, 16, 64) for length in (32, 128, 512)]
    peaks = [budget / 100 + shape.items * shape.longest for shape in shapes]
    return MemoryModel().fit(shapes, peaks)


def users_function(items: Any, longest: Any, total: Any) -> Any:
    """Cost what a user might write."""
    return items * longest + 0.1 * total


def report(name: str, sizes: np.ndarray, budget: int, repeat: int) -> None:
    """Print the table for one array of sizes."""
    n = sizes.size
    argsort, _ = best_seconds(lambda: np.argsort(sizes.astype(np.int64), kind="stable"), repeat)
    print(f"\n{name}: {n:,} sizes, median {np.median(sizes):g}, largest {sizes.max():,}; budget {budget:,}")
    print(f"argsort {argsort / n * 1e9:.1f} ns an element")
    bound = math.ceil(sizes.sum(dtype=np.float64) / budget)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("in_order, sum", {}),
        ("in_order, padded", {"cost": "padded"}),
        ("by_size, padded", {"cost": "padded", "strategy": "by_size"}),
        ("by_size, padded, shuffle", {"cost": "padded", "strategy": "by_size", "shuffle": True}),
        ("by_size, padded to 64", {"cost": PaddedCost(64, 2), "strategy": "by_size", "shuffle": True}),
        ("by_size, uniform", {"cost": "padded", "strategy": "by_size", "shuffle": True, "uniform": True}),
        ("by_size, memory model", {"cost": memory_model(budget), "strategy": "by_size", "shuffle": True}),
        ("by_size, user's function", {"cost": users_function, "strategy": "by_size", "shuffle": True}),
        ("same, not shuffled", {"cost": users_function, "strategy": "by_size"}),
        ("best_fit, sum", {"strategy": "best_fit"}),
        ("best_fit, sum, shuffle", {"strategy": "best_fit", "shuffle": True}),
    ]
    print(
        f"{'strategy':26} {'ns/el':>7} {'ratio':>6} {'batches':>9} {'bound':>9} {'padding':>8} {'used':>6} {'same':>7}"
    )
    for label, options in cases:
        seconds, plan = best_seconds(partial(plan_batches, sizes, budget=budget, **options, oversized="alone"), repeat)
        found = plan.summary()
        print(
            f"{label:26} {seconds / n * 1e9:7.1f} {seconds / argsort:6.2f} {found.batches:9,} {bound:9,} "
            f"{found.padding_fraction:8.2%} {found.budget_used_mean:6.1%} {found.uniform / max(found.batches, 1):7.1%}"
        )


def made_up(n: int) -> np.ndarray:
    """Lengths like those of proteins: log-normal, median about 270, int32."""
    rng = np.random.default_rng(0)
    return np.clip(rng.lognormal(5.6, 0.75, n), 16, 10_000).astype(np.int32)


def scale(n: int) -> None:
    """Plan very many elements once and print the time and memory."""
    plan_batches(made_up(1000), budget=16_384, cost="padded", strategy="by_size", shuffle=True)
    sizes = np.concatenate([made_up(min(n, 10_000_000))] * max(n // 10_000_000, 1))[:n]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    begin = time.perf_counter()
    plan = plan_batches(sizes, budget=16_384, cost="padded", strategy="by_size", shuffle=True)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    held = sum(getattr(plan, name).nbytes for name in ("indices", "offsets", "cost", "longest", "total"))
    begin = time.perf_counter()
    batches = iter(plan)
    first = next(batches)
    started = time.perf_counter() - begin
    print(f"{sizes.size:,} elements: planned in {seconds:.1f} s, {plan!r}")
    print(f"memory an element: at most {(peak - before) / n:.1f} bytes more while planning, {held / n:.1f} held")
    print(f"first batch of {len(first)} after {started * 1e3:.2f} ms")


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", help="an .npy file of sizes, one row an element")
    parser.add_argument("--column", type=int, default=0)
    parser.add_argument("--budget", type=int, default=None)
    parser.add_argument("--elements", type=int, default=None)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--name", default="sizes from a file")
    arguments = parser.parse_args()
    if arguments.sizes:
        sizes = np.load(arguments.sizes, mmap_mode="r")
        sizes = np.ascontiguousarray(sizes if sizes.ndim == 1 else sizes[:, arguments.column])
        budget = arguments.budget or 4 * int(sizes.max())
        report(arguments.name, sizes, budget, arguments.repeat)
    elif arguments.elements:
        scale(arguments.elements)
    else:
        for n in (1_000_000, 10_000_000):
            report("made up", made_up(n), 16_384, arguments.repeat)


if __name__ == "__main__":
    main()
