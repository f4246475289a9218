"""Peaks of a 12-layer transformer step on a GPU: `measure_peaks` against torch's own counters.

    python benchmarks/gpu_peaks.py [--out FOLDER]

Measures 20 batch shapes three times: by reading `torch.cuda.max_memory_allocated` by hand, with `measure_peaks`,
and with `measure_peaks` after putting a shape into the middle that cannot fit. All numbers must be the same.
"""

from __future__ import annotations

import argparse
import gc
import json
from pathlib import Path

import torch
from torch import nn

from bionemo.size_aware_batching import BatchShape, MemoryModel, collect_cuda_peak_alloc, measure_peaks

WIDTH, LAYERS, HEADS, TOKENS = 512, 12, 8, 32
SHAPES = [(n, length) for length in (64, 128, 256, 512, 1024) for n in (4, 16, 32, 64)]
TOO_LARGE = (100_000, 4_096)


class Encoder(nn.Module):
    """A transformer encoder with a token head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens)))


def training_step(device: torch.device):
    """Return a function that trains on random tokens of a shape."""
    torch.manual_seed(0)
    model = Encoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters())

    def work(shape: tuple[int, int]) -> BatchShape:
        tokens = torch.randint(TOKENS, shape, device=device)
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return BatchShape(shape[0], shape[1], shape[0] * shape[1])

    return work


def by_hand(work, device: torch.device) -> list[int]:
    """Read the allocator's counter around each step."""
    peaks = []
    for shape in SHAPES:
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        work(shape)
        torch.cuda.synchronize(device)
        peaks.append(torch.cuda.max_memory_allocated(device))
    return peaks


def main() -> None:
    """Run, print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    work = training_step(device)
    for _ in range(2):
        work(SHAPES[0])
    hand = by_hand(work, device)
    plain = measure_peaks(SHAPES, work, device)
    middle = len(SHAPES) // 2
    hostile_shapes = [*SHAPES[:middle], TOO_LARGE, *SHAPES[middle:]]
    hostile = measure_peaks(hostile_shapes, work, device)
    features, documented = collect_cuda_peak_alloc(SHAPES, work, device)
    model = MemoryModel().fit(plain)
    report = {
        "device": plain.device,
        "torch": torch.__version__,
        "shapes": SHAPES,
        "by_hand": hand,
        "measure_peaks": plain.peak_bytes,
        "with_out_of_memory_in_the_middle": hostile.peak_bytes,
        "collect_cuda_peak_alloc": documented,
        "reserved": [record.reserved_bytes for record in plain],
        "device_used": [record.device_bytes for record in plain],
        "out_of_memory_at": [record.index for record in hostile if record.status == "oom"],
        "all_equal": hand == plain.peak_bytes == hostile.peak_bytes == documented,
        "seconds": sum(record.seconds for record in plain),
    }
    print(plain.summary(), model.summary(), sep="\n")
    print(f"{'items':>6} {'longest':>8} {'by hand':>14} {'measured':>14} {'after oom':>14} {'reserved':>14}")
    rows = zip(SHAPES, hand, plain, hostile.peak_bytes, strict=True)
    for (items, longest), a, record, c in rows:
        print(f"{items:>6} {longest:>8} {a:>14,} {record.peak_bytes:>14,} {c:>14,} {record.reserved_bytes:>14,}")
    print(
        "all equal:", report["all_equal"], "; out of memory at", report["out_of_memory_at"], "; features", len(features)
    )
    if arguments.out is not None:
        (arguments.out / "gpu_peaks.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
