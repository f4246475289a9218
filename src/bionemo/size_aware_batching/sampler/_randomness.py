"""Counting a pass must not change the passes that follow, and must notice an order that will not come again."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["draws_random_numbers"]


@contextmanager
def draws_random_numbers(sampler: object) -> Iterator[Callable[[], bool]]:
    """Run the block, then put back the random states it used.

    Watched are the global states of torch (CPU), numpy and `random`, and the `generator` of the sampler.

    Yields:
        A function that says, after the block, whether random numbers were drawn in it.
    """
    generator = getattr(sampler, "generator", None)
    generator = generator if isinstance(generator, torch.Generator) else torch.default_generator
    before = _states(generator)
    drew = False
    try:
        yield lambda: drew
    finally:
        after = _states(generator)
        drew = any(not np.array_equal(a, b) for a, b in zip(before[2:], after[2:], strict=True))
        drew = drew or before[0] != after[0] or not _same_numpy(before[1], after[1])
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002 - the global state is what samplers may use
        torch.default_generator.set_state(before[2])
        generator.set_state(before[3])


def _states(generator: torch.Generator) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    numpy_state = np.random.get_state()  # noqa: NPY002
    return random.getstate(), numpy_state, torch.default_generator.get_state(), generator.get_state()


def _same_numpy(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a[1], b[1])) and a[2:] == b[2:]
