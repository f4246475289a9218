"""Memory measured, modelled and filled on a GPU, and what that is worth in tokens per second.

    python benchmarks/memory.py transformer LENGTHS.npy --out FOLDER          # profile, fit, whole epochs
    python benchmarks/memory.py transformer LENGTHS.npy --out FOLDER --compare 100
    python benchmarks/memory.py pairs LENGTHS.npy --out FOLDER
    python benchmarks/memory.py molecules ATOMS_BONDS.npy --out FOLDER

The process is capped (`--cap`, in GiB). A profile of at most 24 suggested batches is measured and a model fitted; then
`--epochs` whole epochs run under a `BudgetBatchSampler` with that model, and every step's peak is compared with what
was predicted and bounded. `--compare BATCHES` instead runs several ways of making batches by turns, about that many
of each one's epoch, under the same cap. Results are printed and written to FOLDER as JSON. What expandable segments
change shows with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from memory_models import WORKLOADS, load

from bionemo.size_aware_batching import (
    BatchShape,
    BucketBatchSampler,
    BudgetBatchSampler,
    MemoryModel,
    PeakMonitor,
    SizeAwareBatchSampler,
    create_buckets,
    measure_peaks,
    memory_budget,
    plan_batches,
    suggest_shapes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIB = 2**30
# A plan's last batches hold what is left; a batch is full if its bound is within this share of the budget.
FULL = 0.95
TURNS = 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(WORKLOADS))
    parser.add_argument("sizes", help="an .npy file of sizes, one row an element")
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--limit", type=int, help="take that many elements")
    parser.add_argument("--cap", type=float, default=16, help="GiB that this process may reserve")
    parser.add_argument("--shapes", type=int, default=24)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batches", type=int, help="stop after that many")
    parser.add_argument("--empty-cache", action="store_true", help="give cached blocks back before each step")
    parser.add_argument("--compare", type=int, metavar="BATCHES")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    torch.backends.cuda.matmul.allow_tf32 = True
    device = torch.device("cuda", torch.cuda.current_device())
    card = torch.cuda.get_device_properties(device)
    torch.cuda.set_per_process_memory_fraction(arguments.cap * GIB / card.total_memory, device)
    workload = load(arguments.model, arguments.sizes, arguments.limit)
    sizes, step = workload.sizes, workload.build(device)

    def work(indices: list[int]) -> BatchShape:
        step(indices)
        return BatchShape.of(sizes[indices])

    begin = time.perf_counter()
    batches = suggest_shapes(sizes, memory_budget("98%", device), count=arguments.shapes)
    profile = measure_peaks(batches, work, device, progress=False)
    model = MemoryModel().fit(profile)
    seconds = time.perf_counter() - begin
    budget = memory_budget("100%", device, profile=profile)
    arguments.out.mkdir(parents=True, exist_ok=True)
    profile.save(arguments.out / f"{arguments.model}_profile.json")
    expandable = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    result = {
        "model": arguments.model,
        "elements": len(sizes),
        "card": card.name,
        "torch": torch.__version__,
        "expandable_segments": expandable,
        "measured_shapes": len(profile),
        "profile_seconds": round(seconds, 1),
        "held_out_error": model.held_out_error,
        "margin": model.margin_factor - 1,
        "budget_bytes": int(budget),
    }
    print(f"{arguments.model}: {len(sizes):,} elements, {card.name}, torch {torch.__version__}", end="")
    print(f", expandable segments {'on' if expandable else 'off'}")
    print(f"profile: {len(profile)} batches in {seconds:.1f} s\n{profile.summary()}\n{model.summary()}")
    print(budget.account())
    uniform = arguments.model == "transformer"
    if arguments.compare:
        result["compared"] = compare(sizes, step, model, budget, uniform=uniform, count=arguments.compare)
    else:
        result["epochs"] = train(sizes, step, model, budget, uniform=uniform, arguments=arguments)
    name = f"{arguments.model}{'_compare' if arguments.compare else ''}{'_expandable' if expandable else ''}"
    (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def train(sizes, step, model, budget, *, uniform: bool, arguments: argparse.Namespace) -> dict:
    """Run whole epochs and compare each peak with its prediction and its bound."""
    sampler = BudgetBatchSampler(
        sizes, budget=budget, cost=model, strategy="by_size", uniform=uniform, shuffle=True, seed=0
    )
    monitor = PeakMonitor("cuda", model, keep=10**6)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()
    begin, units, failed = time.perf_counter(), 0, 0
    every = itertools.chain.from_iterable(iter(sampler) for _ in range(arguments.epochs))
    reserved = 0
    with monitor:
        for indices in itertools.islice(every, arguments.batches):
            if arguments.empty_cache:
                torch.cuda.empty_cache()
            try:
                with monitor.step(BatchShape.of(sizes[indices])):
                    step(indices)
            except torch.OutOfMemoryError:
                failed += 1
            units += int(sizes[indices].sum(axis=0).flat[-1])
            reserved = max(reserved, torch.cuda.max_memory_reserved())
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    after = torch.cuda.memory_stats()
    features, peaks = monitor.profile.features, np.array(monitor.profile.peak_bytes, np.float64)
    predicted, bound = model.predict(features), model.upper_bound(features)
    error, full = np.abs(peaks / predicted - 1), bound >= FULL * budget
    found = {
        "batches": len(peaks) + failed,
        "out_of_memory": failed,
        "allocator_retries": after["num_alloc_retries"] - before["num_alloc_retries"],
        "above_bound": int((peaks > bound).sum()),
        "largest_peak_over_bound": float((peaks / bound).max()),
        "error_mean": float(error.mean()),
        "error_max": float(error.max()),
        "full_batches": int(full.sum()),
        "peak_over_budget_full": float((peaks[full] / budget).mean()),
        "peak_over_budget_all": float((peaks / budget).mean()),
        "reserved_bytes": int(reserved),
        "seconds": round(seconds, 1),
        "units_per_second": round(units / seconds),
    }
    print(json.dumps(found, indent=1))
    return found


def fixed_size(sizes: np.ndarray, model: MemoryModel, budget: int) -> int:
    """Return how many of the longest elements fit: what a fixed batch size has to be."""
    longest = sizes[sizes.reshape(len(sizes), -1).sum(axis=1).argmax()]
    count = 1
    while model.upper_bound(BatchShape.of([longest] * (count + 1))) <= budget:
        count += 1
    return count


def tuned_tokens(sizes: np.ndarray, length: np.ndarray, model: MemoryModel, budget: int, fixed: int) -> tuple:
    """Return the largest padded units of which no batch of this data is too large, and the batches: found by trying."""
    best, tokens = None, int(0.9 * fixed * length.max())
    while True:
        plan = plan_batches(length, budget=tokens, cost="padded", strategy="by_size")
        if model.upper_bound([BatchShape.of(sizes[batch]) for batch in plan]).max() > budget:
            return best
        best, tokens = (tokens, plan), int(1.02 * tokens)


def ways(sizes: np.ndarray, model: MemoryModel, budget: int, *, uniform: bool) -> dict[str, Callable]:
    """Return what makes an epoch's batches, for each way of making them, all safe by the same model."""
    rng = np.random.default_rng(0)
    fixed = fixed_size(sizes, model, budget)
    flat = sizes.reshape(len(sizes), -1)
    length = np.ascontiguousarray(flat[:, -1])

    def chunks(order: np.ndarray, count: int) -> Iterator[list[int]]:
        starts = rng.permutation(np.arange(0, len(order), count))
        return (order[start : start + count].tolist() for start in starts)

    def in_windows() -> Iterator[list[int]]:
        order = rng.permutation(len(sizes))
        window = 50 * fixed
        parts = [order[i : i + window] for i in range(0, len(order), window)]
        return chunks(np.concatenate([part[np.argsort(length[part], kind="stable")] for part in parts]), fixed)

    edges = create_buckets(torch.from_numpy(length), max_width=32, min_bucket_count=100).bucket_boundaries
    # As heavy as the longest of the bucket, to which each may be padded.
    last = np.maximum.reduceat(length[order := np.argsort(length, kind="stable")], starts := np.flatnonzero(
        np.diff(np.searchsorted(edges.numpy(), length[order], side="right"), prepend=-1)))  # fmt: skip
    longest_in_bucket = np.empty_like(length)
    longest_in_bucket[order] = np.repeat(last, np.diff([*starts, len(length)]))
    weights = model.element_bytes(longest_in_bucket if sizes.ndim == 1 else sizes)

    def buckets() -> Iterator[list[int]]:
        sampler = BucketBatchSampler(
            torch.from_numpy(length),
            edges,
            SizeAwareBatchSampler,
            {"sizeof": weights, "max_total_size": budget - model.fixed_bytes},
            shuffle=True,
            generator=torch.Generator().manual_seed(int(rng.integers(2**31))),
        )
        return iter(sampler)

    tokens, plan = tuned_tokens(sizes, length, model, budget, fixed)

    def plain() -> Iterator[list[int]]:
        return (plan[i] for i in rng.permutation(len(plan)).tolist())

    def ours() -> Iterator[list[int]]:
        seed = int(rng.integers(2**31))
        return iter(plan_batches(
            sizes, budget=budget, cost=model, strategy="by_size", uniform=uniform, shuffle=True, seed=seed
        ))  # fmt: skip

    return {
        f"fixed batch of {fixed}": lambda: chunks(rng.permutation(len(sizes)), fixed),
        f"fixed batch of {fixed}, sorted in windows": in_windows,
        "buckets and SizeAwareBatchSampler": buckets,
        f"sorted, {tokens:,} padded units": plain,
        "BudgetBatchSampler": ours,
    }


def compare(sizes, step, model, budget, *, uniform: bool, count: int) -> list[dict]:
    """Run an evenly spaced part of each way's epoch, by turns, and count real and padded units per second.

    Evenly spaced over the batches in the order of their longest element: some ways serve short ones first, and a few
    batches of long ones take a good part of an epoch's time.
    """
    flat = sizes.reshape(len(sizes), -1)[:, -1]
    rng = np.random.default_rng(1)
    turns, rows = [], {}
    for name, make in ways(sizes, model, budget, uniform=uniform).items():
        epoch = sorted(make(), key=lambda indices: int(flat[indices].max()))
        # Small batches are many and quick.
        share = max(len(epoch) // count, 1)
        chosen = [epoch[i] for i in rng.permutation(np.arange(share // 2, len(epoch), share)).tolist()]
        parts = [chosen[i::TURNS] for i in range(TURNS)]
        turns.append([(name, part) for part in parts])
        rows[name] = {"way": name, "batches_an_epoch": len(epoch), "batches": 0, "seconds": 0.0, "real": 0, "padded": 0}
        rows[name] |= {"out_of_memory": 0}
        for indices in chosen[:2]:  # libraries choose their algorithms
            attempt(step, indices)
    for name, part in itertools.chain.from_iterable(zip(*turns, strict=True)):
        torch.cuda.synchronize()
        begin, row = time.perf_counter(), rows[name]
        for done, indices in enumerate(part, 1):
            row["out_of_memory"] += not attempt(step, indices)
            row["real"] += int(flat[indices].sum())
            row["padded"] += int(flat[indices].max()) * len(indices)
            if done % 4 == 0:  # do not run ahead of the device by more than a few steps
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        row["seconds"] += time.perf_counter() - begin
        row["batches"] += len(part)
    ours = list(rows.values())[-1]
    for row in rows.values():
        row["real_per_second"] = round(row["real"] / row["seconds"])
        row["ours_over_this"] = round(ours["real"] / ours["seconds"] / row["real"] * row["seconds"], 3)
        row["seconds"] = round(row["seconds"], 2)
        print(row)
    return list(rows.values())


def attempt(step, indices: list[int]) -> bool:
    try:
        step(indices)
    except torch.OutOfMemoryError:
        return False
    return True


if __name__ == "__main__":
    main()
