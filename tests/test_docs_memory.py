"""The page on memory, run from top to bottom as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

PAGE = Path(__file__).parents[1] / "docs" / "memory.md"


def test_page_runs_as_written(tmp_path, monkeypatch):
    """With a user's own model and data, every block of the page runs after those before it, and says what it says."""
    monkeypatch.chdir(tmp_path)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 200, (300,), generator=generator).tolist()
    dataset = [torch.randint(1, 20, (length,), generator=generator) for length in lengths]

    def make_model():
        return torch.nn.Sequential(torch.nn.Embedding(20, 32), torch.nn.Linear(32, 32), torch.nn.ReLU())

    model = make_model()
    scope = {
        "torch": torch,
        "model": model,
        "make_model": make_model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "device": "cpu",
        "dataset": dataset,
        "lengths": lengths,
        "collate": lambda elements: pad_sequence(elements, batch_first=True),
    }
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(re.sub('"9[07]%"', '"2MiB"', "\n".join(blocks)), scope)  # noqa: S102 - our own documentation
    assert len(scope["estimate"]) >= 8
    assert scope["found"].fits
    assert len(scope["sampler"]) == scope["monitor"].steps
    assert 1 == scope["outcome"].parts
    assert (tmp_path / "peaks.json").exists()
