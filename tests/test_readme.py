"""The README's workflow, run as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence

README = Path(__file__).parents[1] / "README.md"


def test_workflow_runs_as_written():
    """With a user's own model, data and collate function, the workflow measures, models, plans and serves an epoch."""
    block = re.search(r"## The workflow\n\n```python\n(.*?)```", README.read_text(), re.DOTALL)[1]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(5, 200, (300,), generator=generator).tolist()
    dataset = [torch.randint(1, 20, (length,), generator=generator) for length in lengths]
    model = torch.nn.Sequential(torch.nn.Embedding(20, 32), torch.nn.Linear(32, 32), torch.nn.ReLU())

    def collate(elements):
        return pad_sequence(elements, batch_first=True)

    scope = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "device": "cpu",
        "dataset": dataset,
        "lengths": lengths,
        "collate": collate,
    }
    exec(re.sub('"9[07]%"', '"2MiB"', block), scope)  # noqa: S102 - our own documentation
    sampler, loader = scope["sampler"], scope["loader"]
    served = [int((batch != 0).sum()) for batch in loader]
    assert sum(lengths) == sum(served)
    assert len(loader) == len(served) > 1
    assert sampler.plan.cost.max() <= scope["budget"]
