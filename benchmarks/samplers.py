"""Cost of a whole pass over the samplers, as a ratio to `tensor.tolist()` of the same indices in the same run.

python benchmarks/samplers.py [--elements 1000000] [--repeat 5]
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bionemo.size_aware_batching.sampler import BucketBatchSampler, SizeAwareBatchSampler, create_buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def exhaust(iterable: Iterable[Any]) -> None:
    """Run an iterator to its end and keep nothing."""
    deque(iterable, maxlen=0)


def best_seconds(call: Callable[[], Any], repeat: int) -> float:
    """Return the fastest of `repeat` runs after one that warms up."""
    call()
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    n = arguments.elements
    rng = np.random.default_rng(0)
    sizes = np.clip(rng.lognormal(5.6, 0.75, n), 16, 10_000).astype(np.int64)
    limit = int(40 * sizes.mean())
    indices = torch.from_numpy(rng.permutation(n))
    tensor_sizes = torch.from_numpy(sizes)
    cost = tensor_sizes.tolist()

    def buckets(number: int, sizeof: Any) -> BucketBatchSampler:
        boundaries = torch.from_numpy(np.unique(np.quantile(sizes, np.linspace(0, 1, number + 1)).astype(np.int64)))
        boundaries[-1] += 1
        return BucketBatchSampler(
            tensor_sizes,
            boundaries,
            SizeAwareBatchSampler,
            {"sizeof": sizeof, "max_total_size": limit},
            generator=torch.Generator().manual_seed(0),
        )

    distinct = torch.from_numpy(rng.permutation(n))
    hundred, many = buckets(100, tensor_sizes), buckets(1000, tensor_sizes)
    by_range = SizeAwareBatchSampler(range(n), tensor_sizes, limit)
    by_tensor = SizeAwareBatchSampler(indices, tensor_sizes, limit)
    by_function = SizeAwareBatchSampler(range(n), cost.__getitem__, limit)
    rows: list[tuple[str, Callable[[], Any], Callable[[], Any], str]] = [
        ("SizeAware, arrays, range", lambda: exhaust(by_range), indices.tolist, "2.5"),
        ("SizeAware, arrays, tensor", lambda: exhaust(by_tensor), indices.tolist, "2.5"),
        ("SizeAware, function, range", lambda: exhaust(by_function), indices.tolist, "-"),
        (f"Bucket, {hundred.num_buckets} buckets", lambda: exhaust(hundred), indices.tolist, "4"),
        (f"Bucket, {many.num_buckets} buckets", lambda: exhaust(many), indices.tolist, "15"),
        (
            "create_buckets, distinct",
            lambda: create_buckets(distinct, 50, 10),
            lambda: torch.sort(distinct),
            "~1",
        ),
    ]
    print(f"{n} elements; ratio to tensor.tolist() (create_buckets: to torch.sort) in the same run")
    print(f"{'case':30} {'ms':>8} {'ratio':>6} {'target':>7}")
    for name, call, reference, target in rows:
        seconds, unit = best_seconds(call, arguments.repeat), best_seconds(reference, arguments.repeat)
        print(f"{name:30} {seconds * 1e3:8.1f} {seconds / unit:6.2f} {target:>7}")


if __name__ == "__main__":
    main()
