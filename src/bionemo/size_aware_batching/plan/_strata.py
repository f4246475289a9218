"""From a sorted sequence to the batches of an epoch: a template, its copies, and who goes where.

The sorted elements are taken in blocks of m neighbours. A template is cut (or packed) once, over slots that each have
the largest sizes of their block, so that whichever element of the block takes the slot, the batch stays within budget.
Every epoch then deals the m elements of each block at random to m copies of the template:

    blocks     3 3 | 4 5 | 6 6 | 7 9        m = 2
    template    3     5     6     9         cut: [3 5 6] [9]
    copies     [3 4 6] [7]  and  [3 5 6] [9],  or  [3 5 6] [7]  and  [3 4 6] [9], ...

So companions change from epoch to epoch while the number of batches does not. What remains (the last, unfilled batch of
the template and the elements of no whole block) is cut by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bionemo.size_aware_batching.plan._order import index_type, seeds, shuffled

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["Batches", "Template", "deal", "envelope", "from_ends"]

_DEAL, _BATCHES = 2, 3


class Template(NamedTuple):
    """Which slot goes into which batch, for `strata` copies over a run of the sorted sequence.

    Attributes:
        strata: number of copies, and of elements in a block.
        items: (batches,) slots in each batch.
        slots: two (slots,) arrays, the batch of each slot and its place there; None where batches take slots run
            after run.
    """

    strata: int
    items: IntArray
    slots: tuple[AnyArray, AnyArray] | None = None

    def places(self) -> tuple[AnyArray, AnyArray]:
        """Return, for each slot, its batch and its place there."""
        if self.slots is not None:
            return self.slots
        count = int(self.items.sum())
        kind = index_type(count)
        first = np.repeat((np.cumsum(self.items) - self.items).astype(kind), self.items)
        return np.repeat(np.arange(self.items.size, dtype=kind), self.items), np.arange(count, dtype=kind) - first


class Batches(NamedTuple):
    """Batches as flat arrays: indices, offsets, and (batches, measures) longest and total."""

    indices: AnyArray
    offsets: IntArray
    longest: AnyArray
    total: AnyArray


def envelope(matrix: AnyArray, strata: int) -> AnyArray:
    """Return the largest sizes of each whole block of `strata` rows; a single measure is ascending."""
    if matrix.shape[1] == 1:
        return matrix[strata - 1 :: strata]
    blocks = len(matrix) // strata
    largest: AnyArray = matrix[: blocks * strata].reshape(blocks, strata, -1).max(axis=1)
    return largest


def from_ends(strata: int, ends: IntArray) -> Template:
    """Make the template whose batches are runs of slots that end at these positions, from 0 on."""
    return Template(strata, np.diff(ends))


def deal(order: AnyArray, matrix: AnyArray, templates: list[Template], stream: tuple[int, ...] | None) -> Batches:
    """Deal the sorted elements to the copies of the templates, which take them run after run.

    Args:
        order: (n,) element indices, sorted; blocks are shuffled in place.
        matrix: (n, measures) their sizes; likewise, where there are blocks to shuffle.
        templates: cover all n elements.
        stream: names the random order of blocks and batches; None keeps their order.
    """
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    per_copy = [np.tile(template.items, template.strata) for template in templates]
    items = np.concatenate([np.empty(0, np.int64), *per_copy])
    count, measures = items.size, matrix.shape[1]
    # number[b]: the final number of batch b; without shuffling they keep their order.
    number = np.arange(count) if stream is None else shuffled(count, *stream, _BATCHES).astype(np.int64)
    final = np.empty(count, np.int64)
    final[number] = items
    offsets = np.concatenate([[0], np.cumsum(final)]).astype(np.int64)
    sums = np.float64 if matrix.dtype.kind == "f" else np.int64
    longest, total = np.zeros((count, measures), sums), np.zeros((count, measures), sums)
    if stream is None and all(template.slots is None and template.strata == 1 for template in templates):
        _kernels.shapes(matrix, offsets, longest, total)
        return Batches(order, offsets, longest, total)
    indices = np.empty(order.size, order.dtype)
    begin = first = 0
    for part, template in enumerate(templates):
        end, last = begin + int(per_copy[part].sum()), first + per_copy[part].size
        _kernels.emit(
            order[begin:end],
            matrix[begin:end] if matrix.flags.writeable else matrix[begin:end].copy(),
            template.strata,
            *template.places(),
            number[first:last],
            offsets,
            *(seeds(*stream, _DEAL, part) if stream is not None else (0, 0)),
            indices,
            longest,
            total,
        )
        begin, first = end, last
    return Batches(indices, offsets, longest, total)
