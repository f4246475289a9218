"""The raw 32-bit words of a torch CPU generator, which no public function returns one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["raw_words"]


def raw_words(generator: torch.Generator, block: int) -> Generator[int, None, None]:
    """Draw the generator's next Mersenne twister words.

    Words are looked up on a copy, `block` at a time, and the generator itself is moved past those that were taken
    when a block is used up or the iterator is closed. With a block of 1 the generator stands after each word
    where it should, whoever else draws from it in between.

    Args:
        generator: a CPU generator.
        block: words to look up at a time, positive.

    Yields:
        Integers in [0, 2^32).
    """
    copy = torch.Generator(device="cpu")
    # Filling int64 over its whole range takes two words a number, the high half first.
    pairs = torch.empty((block + 1) // 2, dtype=torch.int64, device="cpu")
    while True:
        state = generator.get_state()
        copy.set_state(state)
        pairs.random_(-(2**63), None, generator=copy)
        words = [word for pair in pairs.tolist() for word in ((pair >> 32) & 0xFFFFFFFF, pair & 0xFFFFFFFF)]
        taken = 0
        try:
            for word in words[:block]:
                taken += 1
                if taken == block:
                    _skip(generator, taken, state)
                    taken = 0
                yield word
        finally:
            _skip(generator, taken, state)


def _skip(generator: torch.Generator, words: int, state: torch.Tensor) -> None:
    """Move the generator on, unless somebody else has moved it: filling int32 takes one word a number."""
    if words and torch.equal(generator.get_state(), state):
        torch.empty(words, dtype=torch.int32, device="cpu").random_(generator=generator)
