"""The one rule behind size-aware batching: add the next element if the sum stays within the limit, else cut."""

from __future__ import annotations

import math
import reprlib
import sys
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bionemo.size_aware_batching.errors import SkippedElementsWarning
from bionemo.size_aware_batching.sampler._sizeof import refuse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bionemo.size_aware_batching._types import AnyArray, IntArray
    from bionemo.size_aware_batching.sampler._sizeof import SizeLookup

__all__ = ["GreedyPass", "compiled_limit"]


def compiled_limit(sizes: AnyArray | None, limit: Any) -> tuple[type[Any], Any] | None:
    """Choose the number type in which the compiled loop gives exactly what Python's own arithmetic gives.

    Returns:
        The dtype to work in and the limit in it; None where only Python's arithmetic is exact.
    """
    if sizes is None or not isinstance(limit, (int, float)):
        return None
    if sizes.dtype.kind == "f":
        as_float = float(limit) if abs(limit) < 2**1000 else math.inf
        return (np.float64, as_float) if as_float == limit and sizes.dtype.itemsize <= 8 else None
    # Below 2^62 a sum that just passed the limit still fits an int64, and so does every size that is not skipped.
    return (np.int64, math.floor(limit)) if limit < 2**62 else None


class GreedyPass:
    """One pass: the open batch, what was skipped, and the report at the end."""

    def __init__(
        self,
        size_of: SizeLookup,
        limit: Any,
        info: Callable[[str], None] | None,
        warn: Callable[[str], None] | None,
    ) -> None:
        """Begin a pass with an empty batch."""
        self._size_of, self._limit, self._info, self._warn = size_of, limit, info, warn
        self._compiled = compiled_limit(size_of.array, limit)
        self._batch: list[Any] = []
        self._total: Any = 0
        self._served = self._skipped = self._batches = 0

    def one_by_one(self, elements: Iterable[Any]) -> Iterator[list[Any]]:
        """Feed elements, reading no further than the one that does not fit; yield each batch that is full."""
        size_of, limit = self._size_of, self._limit
        for element in elements:
            size = size_of(element)
            oversized = size > limit
            if not 0 <= size < math.inf:
                refuse_size(size, element)
            if oversized:
                self._skip(element, size)
                continue
            if not self._batch:
                self._total = size
            else:
                total = self._total + size
                if total > limit:
                    yield self._close()
                    total = size
                self._total = total
            self._batch.append(element)

    def in_chunks(self, chunks: Iterable[IntArray]) -> Iterator[list[int]]:
        """Feed arrays of indices; the same batches as one by one, for a fraction of the time."""
        for chunk in chunks:
            starts = self.cut(chunk)
            if starts is None:
                yield from self.one_by_one(chunk.tolist())
                continue
            ends = starts.tolist()
            if not ends:
                self._batch.extend(chunk.tolist())
                continue
            self._batch.extend(chunk[: ends[0]].tolist())
            yield self._close()
            self._batches += len(ends) - 1
            self._served += ends[-1] - ends[0]
            # Batch by batch: Python ints of a whole chunk would not stay in the processor's cache.
            for start, end in pairwise(ends):
                yield chunk[start:end].tolist()
            self._batch = chunk[ends[-1] :].tolist()

    def count(self, chunks: Iterable[IntArray]) -> int:
        """Count the batches of a whole pass without making them."""
        batches, is_open = 0, False
        for chunk in chunks:
            starts = self.cut(chunk)
            if starts is None:
                self._batch = [None] if is_open else []
                batches += sum(1 for _ in self.one_by_one(chunk.tolist()))
                is_open = bool(self._batch)
            else:
                batches += starts.size
                is_open = True
        return batches + is_open

    def cut(self, chunk: IntArray) -> IntArray | None:
        """Find where new batches begin in a chunk and carry the open sum on.

        Returns:
            The positions; None, and nothing is changed, where an element of the chunk is skipped or wrong, or
            only Python's arithmetic is exact: then the slow way treats it.
        """
        from bionemo.size_aware_batching.plan import cut_by_sum  # noqa: PLC0415

        if self._compiled is None or self._size_of.array is None or chunk.size == 0:
            return None
        dtype, limit = self._compiled
        try:
            sizes = self._size_of.array[chunk]
        except IndexError:
            return None
        # Plain numbers: numpy would round the limit to float32 to compare it. NaN fails both comparisons.
        if not (sizes.min().item() >= 0 and sizes.max().item() <= min(limit, sys.float_info.max)):
            return None
        starts, self._total = cut_by_sum(sizes.astype(dtype, copy=False), limit, self._total)
        return starts

    def finish(self, stacklevel: int) -> Iterator[list[Any]]:
        """Yield the open batch, then report."""
        if self._batch:
            yield self._close()
        if self._skipped:
            text = f"skipped {self._skipped} of {self._served + self._skipped} elements larger than {self._limit}"
            if self._warn is not None:
                self._warn(text)
            else:
                warnings.warn(text, SkippedElementsWarning, stacklevel=stacklevel)
        if self._info is not None:
            self._info(
                f"made {self._batches} batches of {self._served} elements, skipped {self._skipped}, limit {self._limit}"
            )

    def _close(self) -> list[Any]:
        batch, self._batch = self._batch, []
        self._served += len(batch)
        self._batches += 1
        return batch

    def _skip(self, element: object, size: object) -> None:
        self._skipped += 1
        if self._warn is not None:
            self._warn(f"skipped element {reprlib.repr(element)}: its size {size} is over the limit {self._limit}")
