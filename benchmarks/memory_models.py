"""Three training workloads to measure memory and throughput with, at the sizes of real data.

    python benchmarks/memory_models.py

runs two tiny steps of each on the CPU, with real and with fake tensors, to see that they work.

- `transformer`: masked language modelling; memory goes with padded tokens.
- `pairs`: a representation of residue pairs as in AlphaFold; memory goes with items x longest^2.
- `molecules`: message passing on concatenated graphs; memory goes with the sum of bonds, nothing is padded.

A step makes its batch on the device from the sizes alone, so neither a data set nor a loader is in what it takes.
It never looks at a tensor's value: with fake tensors (`FakeTensorMode(allow_non_fake_inputs=True)`, the model built
inside, on "cpu") it allocates what it would on a device and computes nothing. Autocast on a CPU and on a GPU keep
different operations in float32; where that would make tensors of different size, the dtype is written out.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

# The vocabulary of ESM-2 (Lin et al. 2023): 33 tokens, the 20 amino acids from 4 on.
VOCABULARY, PAD, FIRST, RESIDUES, MASK = 33, 1, 4, 20, 32
MASKED_SHARE, IGNORED = 0.15, -100
# AlphaFold clips relative positions at 32 (Jumper et al. 2021, supplement, algorithm 4) and trains on crops of 384.
REACH, CROP, SHORTEST = 32, 384, 16
BINS, BOND_FEATURES, ELEMENTS = 32, 8, 100
# By default recent versions prefer cuDNN on some GPUs, which makes a plan for every new shape: here, all of them.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Workload(NamedTuple):
    """A model and the sizes of the elements it trains on.

    Attributes:
        name: which it is.
        sizes: (n,) lengths, or (n, 2) atoms and bonds.
        build: makes the model and its optimizer on a device; returns the step, which takes indices of elements.
    """

    name: str
    sizes: np.ndarray
    build: Callable[[torch.device | str], Callable[[Sequence[int]], None]]


def build(model, draw, sizes: np.ndarray, device: torch.device | str) -> Callable[[Sequence[int]], None]:
    """Make a module, which returns its loss, and its optimizer; return the step that trains it on batches it draws."""
    device = torch.device(device)
    torch.manual_seed(0)
    with device:
        network = model()
    # One kernel, without temporaries, where there is one for it; else the plainest.
    options: dict[str, Any] = {"fused": True} if device.type == "cuda" else {"foreach": False}
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, **options)

    def step(indices: Sequence[int]) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = network(*draw(sizes[np.asarray(indices)], device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def on_device(sizes: np.ndarray, device: torch.device) -> torch.Tensor:
    """Send the sizes of a batch without waiting for what the device still does."""
    return torch.tensor(sizes, dtype=torch.int64).to(device, non_blocking=True)


def valid_positions(lengths: np.ndarray, device: torch.device, *, always_mask: bool) -> torch.Tensor | None:
    """Return (items, longest), true where an element has a position; None if all have all and no mask is needed."""
    if lengths.min() == lengths.max() and not always_mask:
        return None
    return torch.arange(int(lengths.max()), device=device) < on_device(lengths, device)[:, None]


def mean_cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over targets that are not ignored; 0 if all are."""
    logits, targets = logits.float().flatten(0, -2), targets.flatten()
    total = functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    return total / (targets != IGNORED).sum().clamp(min=1)


class EncoderLayer(nn.Module):
    """Self-attention and a perceptron, each normalised first (Xiong et al. 2020)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        items, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(items, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(items, length, width)))
        return x + self.dropout(self.mlp(self.norm_mlp(x)))


class Transformer(nn.Module):
    """A transformer encoder that predicts masked tokens."""

    def __init__(self, layers: int, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)
        # Sinusoidal positions (Vaswani et al. 2017) serve any length.
        self.register_buffer("rates", 10_000 ** -(torch.arange(0, width, 2) / width))

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor, valid: torch.Tensor | None) -> torch.Tensor:
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.rates
        x = self.embed(tokens) + torch.cat([angles.sin(), angles.cos()], dim=1)
        mask = None if valid is None else valid[:, None, None, :]
        with sdpa_kernel(ATTENTION):
            for layer in self.layers:
                x = layer(x, mask)
        return mean_cross_entropy(self.head(self.norm(x)), targets)


def draw_sequences(lengths: np.ndarray, device: torch.device, *, always_mask: bool):
    """Return masked tokens, the tokens wanted in their place, and which positions are valid."""
    shape = (len(lengths), int(lengths.max()))
    tokens = torch.randint(FIRST, FIRST + RESIDUES, shape, device=device)
    hidden = torch.rand(shape, device=device) < MASKED_SHARE
    valid = valid_positions(lengths, device, always_mask=always_mask)
    masked = tokens.masked_fill(hidden, MASK)
    if valid is not None:
        masked, hidden = masked.masked_fill(~valid, PAD), hidden & valid
    return masked, tokens.masked_fill(~hidden, IGNORED), valid


def transformer(lengths, *, layers=12, width=768, heads=12, dropout=0.0, always_mask=False) -> Workload:
    """Masked language modelling on sequences of these lengths, with an encoder as large as BERT base.

    Dropout is not inside attention, which on a CPU would then not be fused. Attention has a mask if the sequences of a
    batch differ in length, or always.
    """
    model = partial(Transformer, layers, width, heads, dropout)
    draw = partial(draw_sequences, always_mask=always_mask)
    return Workload("transformer", lengths, partial(build, model, draw, lengths))


class TriangleProduct(nn.Module):
    """Update of pair ij by products over k, of ik and jk or of ki and kj (Jumper et al. 2021, algorithms 11, 12)."""

    def __init__(self, channels: int, *, outgoing: bool) -> None:
        super().__init__()
        self.outgoing = outgoing
        self.norm, self.norm_product = nn.LayerNorm(channels), nn.LayerNorm(channels)
        # Both factors, their gates, and the gate of the result, from one copy of the input in bfloat16.
        self.split = [4 * channels, channels]
        self.factors, self.out = nn.Linear(channels, sum(self.split)), nn.Linear(channels, channels)

    def forward(self, z: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        factors, gate = self.factors(self.norm(z)).split(self.split, dim=-1)
        factors = functional.glu(factors)
        if mask is not None:
            factors = factors * mask
        a, b = factors.permute(0, 3, 1, 2).chunk(2, dim=1)
        product = a @ b.transpose(2, 3) if self.outgoing else a.transpose(2, 3) @ b
        # In float32, as autocast does on a GPU but not on a CPU.
        product = self.norm_product(product.permute(0, 2, 3, 1).float())
        return z + gate.sigmoid() * self.out(product)


class PairBlock(nn.Module):
    """Both triangle products and a perceptron."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.outgoing = TriangleProduct(channels, outgoing=True)
        self.incoming = TriangleProduct(channels, outgoing=False)
        wider, back = nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, channels)
        self.transition = nn.Sequential(nn.LayerNorm(channels), wider, nn.ReLU(), back)

    def forward(self, z: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        z = self.incoming(self.outgoing(z, mask), mask)
        return z + self.transition(z)


class Pairs(nn.Module):
    """A small pair representation that predicts binned distances."""

    def __init__(self, blocks: int, channels: int) -> None:
        super().__init__()
        width = 4 * channels
        self.single = nn.Sequential(nn.Embedding(VOCABULARY, width), nn.Linear(width, width), nn.ReLU())
        self.left_right = nn.Linear(width, 2 * channels)
        self.relative = nn.Embedding(2 * REACH + 1, channels)
        self.blocks = nn.ModuleList(PairBlock(channels) for _ in range(blocks))
        self.head = nn.Linear(channels, BINS)

    def forward(self, tokens: torch.Tensor, bins: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        left, right = self.left_right(self.single(tokens)).chunk(2, dim=-1)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        relative = self.relative((place[:, None] - place).clamp(-REACH, REACH) + REACH)
        z = (left[:, :, None] + right[:, None]) + relative
        for block in self.blocks:
            z = block(z, mask)
        logits = self.head(z)
        return mean_cross_entropy(logits + logits.transpose(1, 2), bins)


def draw_pairs(lengths: np.ndarray, device: torch.device, *, always_mask: bool):
    """Return tokens, a distance bin for each pair, and the mask of pairs."""
    items, longest = len(lengths), int(lengths.max())
    tokens = torch.randint(FIRST, FIRST + RESIDUES, (items, longest), device=device)
    bins = torch.randint(BINS, (items, longest, longest), device=device)
    valid = valid_positions(lengths, device, always_mask=always_mask)
    if valid is None:
        return tokens, bins, None
    both = valid[:, :, None] & valid[:, None]
    return tokens.masked_fill(~valid, PAD), bins.masked_fill(~both, IGNORED), both[..., None].bfloat16()


def pairs(lengths, *, blocks=4, channels=32, always_mask=False) -> Workload:
    """Distance prediction for all pairs of residues in proteins of these lengths.

    With 32 channels about 1.5 million pairs fit into 14 GiB. Pairs are masked if the proteins of a batch differ in
    length, or always.
    """
    model, draw = partial(Pairs, blocks, channels), partial(draw_pairs, always_mask=always_mask)
    return Workload("pairs", lengths, partial(build, model, draw, lengths))


class MessageLayer(nn.Module):
    """Messages through a matrix that a network makes for each edge (Gilmore et al. 2017), and a residual update."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.edge = nn.Sequential(nn.Linear(BOND_FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, hidden**2))
        self.update = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden))

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, bonds: torch.Tensor) -> torch.Tensor:
        state = self.norm(x)
        matrices = self.edge(bonds).view(len(bonds), x.shape[1], x.shape[1])
        messages = (matrices @ state.index_select(0, source)[:, :, None])[:, :, 0].float()
        received = torch.zeros_like(x).index_add(0, target, messages)
        return x + self.update(torch.cat([state, received], dim=1))


class Molecules(nn.Module):
    """Message passing that predicts a number for each molecule."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(ELEMENTS, hidden)
        self.layers = nn.ModuleList(MessageLayer(hidden) for _ in range(layers))
        self.head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, elements, owner, source, target, bonds, wanted) -> torch.Tensor:
        x = self.embed(elements)
        for layer in self.layers:
            x = layer(x, source, target, bonds)
        pooled = x.new_zeros(len(wanted), x.shape[1]).index_add(0, owner, x)
        return functional.mse_loss(self.head(pooled)[:, 0].float(), wanted)


def draw_molecules(sizes: np.ndarray, device: torch.device):
    """Return atoms, the molecule each is of, both ends of all bonds in both directions, bond features and targets."""
    items, (total_atoms, total_bonds) = len(sizes), sizes.sum(axis=0, dtype=np.int64).tolist()
    atoms, bonds = on_device(sizes, device).unbind(dim=1)
    molecules = torch.arange(items, device=device)
    owner = torch.repeat_interleave(molecules, atoms, output_size=total_atoms)
    bonded = torch.repeat_interleave(molecules, bonds, output_size=total_bonds)
    first = (atoms.cumsum(0) - atoms)[bonded]
    ends = first + torch.randint(2**31, (2, total_bonds), device=device) % atoms[bonded]
    features = torch.randn(total_bonds, BOND_FEATURES, device=device).repeat(2, 1)
    elements = torch.randint(ELEMENTS, (total_atoms,), device=device)
    wanted = torch.randn(items, device=device)
    return elements, owner, ends.flatten(), ends.flip(0).flatten(), features, wanted


def molecules(sizes, *, layers=6, hidden=128) -> Workload:
    """Regression on molecules of these numbers of atoms and bonds, concatenated, not padded.

    Each of a bond's directions takes hidden^2 numbers in every layer.
    """
    return Workload("molecules", sizes, partial(build, partial(Molecules, layers, hidden), draw_molecules, sizes))


WORKLOADS = {"transformer": transformer, "pairs": pairs, "molecules": molecules}


def load(name: str, path: str | Path, limit: int | None = None, **settings: Any) -> Workload:
    """Return a workload on sizes from a file.

    Args:
        name: "transformer" or "pairs" take the first column as lengths, "molecules" the first two as atoms and bonds.
            Pairs are cropped to 384 and those under 16 are left out; so are molecules without a bond.
        path: an .npy file, one row an element.
        limit: keep that many, chosen at random and always the same, in the order of the file; by default all.
        **settings: of the workload.
    """
    sizes = np.load(path).astype(np.int64)
    sizes = sizes[sizes[:, 1] > 0, :2] if name == "molecules" else sizes.reshape(len(sizes), -1)[:, 0]
    if name == "pairs":
        sizes = np.minimum(sizes[sizes >= SHORTEST], CROP)
    if limit is not None and limit < len(sizes):
        sizes = sizes[np.sort(np.random.default_rng(0).choice(len(sizes), limit, replace=False))]
    return WORKLOADS[name](np.ascontiguousarray(sizes), **settings)


def main() -> None:
    """Run two tiny steps of each workload, of unequal and of equal sizes, with real and with fake tensors."""
    lengths, graphs = np.array([17, 40, 40, 23]), np.array([[5, 6], [9, 9], [9, 9], [2, 1]])
    small = [
        transformer(lengths, layers=2, width=32, heads=2, dropout=0.1),
        pairs(lengths, blocks=1, channels=8),
        molecules(graphs, layers=2, hidden=8),
    ]
    for workload in small:
        for mode in (torch.enable_grad(), FakeTensorMode(allow_non_fake_inputs=True)):
            with mode:
                step = workload.build("cpu")
                for indices in ([0, 1, 3], [1, 2]):
                    step(indices)
        print(workload.name, "ok")


if __name__ == "__main__":
    main()
