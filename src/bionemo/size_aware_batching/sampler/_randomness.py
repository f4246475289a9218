"""Counting a pass must not change the passes that follow, and must notice an order that will not come again."""

from __future__ import annotations

import pickle
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Sampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["draws_random_numbers"]

# Samplers that wrap samplers: deeper than this nobody nests them.
_DEPTH = 4


@contextmanager
def draws_random_numbers(sampler: object) -> Iterator[Callable[[], bool]]:
    """Run the block, then put back the random states it used.

    Watched are the global states of torch (CPU), numpy and `random`, and the generators that the sampler, or a sampler
    that it wraps, has as attributes.

    Yields:
        A function that says, after the block, whether random numbers were drawn in it.
    """
    sources = [
        _source(generator) for generator in (torch.default_generator, np.random, random, *_generators(sampler, 0))
    ]
    before = [get() for get, _ in sources]
    drew = False
    try:
        yield lambda: drew
    finally:
        after = [get() for get, _ in sources]
        drew = any(pickle.dumps(a) != pickle.dumps(b) for a, b in zip(before, after, strict=True))
        for (_, put), state in zip(sources, before, strict=True):
            put(state)


def _generators(sampler: object, depth: int) -> Iterator[Any]:
    for value in getattr(sampler, "__dict__", {}).values():
        if isinstance(value, (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
            yield value
        elif isinstance(value, Sampler) and depth < _DEPTH:
            yield from _generators(value, depth + 1)


def _source(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return how to read and how to write a generator's state."""
    if isinstance(generator, torch.Generator):
        return lambda: generator.get_state().numpy().tobytes(), lambda state: generator.set_state(_tensor(state))
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if isinstance(generator, np.random.RandomState) or generator is np.random:
        return lambda: generator.get_state(legacy=False), generator.set_state
    return generator.getstate, generator.setstate


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
