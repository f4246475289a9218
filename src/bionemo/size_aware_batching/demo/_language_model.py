"""A small protein masked language model in plain torch, and one training step of it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from bionemo.size_aware_batching.memory import BatchShape

__all__ = ["LanguageModelStep"]

# Token 0 pads, letters A to Z are 1 to 26, 27 masks.
_PAD, _MASK, _TOKENS = 0, 27, 28
_MASKED_SHARE = 0.15


class _Block(nn.Module):
    """Attention and a two-layer perceptron, each on normalised input and added to it."""

    def __init__(self, width: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        hidden = expansion * width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        result: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return result


class _ProteinLanguageModel(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, expansion: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(_TOKENS, width, padding_idx=_PAD)
        self.blocks = nn.ModuleList(_Block(width, heads, expansion) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _TOKENS)
        # Sinusoidal positions (Vaswani et al., "Attention is all you need", 2017) serve any length.
        rates = 10_000 ** -(torch.arange(0, width, 2) / width)
        self.rates: torch.Tensor
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, tokens: torch.Tensor, *, padded: bool) -> torch.Tensor:
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.rates
        x = self.embed(tokens) + torch.cat([angles.sin(), angles.cos()], dim=1)
        # Attention is faster without a mask, and a batch of equal lengths needs none.
        mask = (tokens != _PAD)[:, None, None, :] if padded else None
        for block in self.blocks:
            x = block(x, mask)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class LanguageModelStep:
    """A training step on a batch of proteins: called with sequences, it returns the shape of their batch.

    Args:
        device: where it runs. On a CPU the model has 4 layers of width 64; elsewhere 12 layers of width 512, in
            bfloat16.
        seed: decides the weights and which residues are masked.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        """Make the model and its optimizer."""
        self.device = device
        small = device.type == "cpu"
        self._masking = torch.Generator(device="cpu").manual_seed(seed)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            # Two heads and a wide perceptron: much memory for little computing, so that a CPU is done soon.
            model = _ProteinLanguageModel(64, 4, 2, 8) if small else _ProteinLanguageModel(512, 12, 8, 4)
        self.model = model.to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3 if small else 2e-4)
        self._autocast = torch.autocast(device.type, torch.bfloat16, enabled=not small)
        self.loss = float("nan")

    def __call__(self, sequences: list[str]) -> BatchShape:
        """Train on one batch: forward, backward, optimizer."""
        tokens = _collate(sequences)
        hidden = (torch.rand(tokens.shape, generator=self._masking) < _MASKED_SHARE) & (tokens != _PAD)
        hidden[0, 0] = True  # a loss over nothing would be NaN
        padded = bool((tokens == _PAD).any())
        masked, wanted = tokens.masked_fill(hidden, _MASK).to(self.device), tokens[hidden].to(self.device)
        with self._autocast:
            logits = self.model(masked, padded=padded)[hidden.to(self.device)]
            loss = functional.cross_entropy(logits.float(), wanted)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss = loss.item()
        return BatchShape.of(map(len, sequences))


def _collate(sequences: list[str]) -> torch.Tensor:
    """Return (items, longest) int64 tokens, padded with 0."""
    rows = [torch.frombuffer(bytearray(sequence.encode()), dtype=torch.uint8) for sequence in sequences]
    return nn.utils.rnn.pad_sequence([row.long() - 64 for row in rows], batch_first=True, padding_value=_PAD)
