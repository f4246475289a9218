"""The three ways to put elements together, each as templates over a sequence of elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bionemo.size_aware_batching.plan._cut import ItemRules, cut, uniform_reach
from bionemo.size_aware_batching.plan._order import index_type, seeds, sort_by_size
from bionemo.size_aware_batching.plan._pack import pack
from bionemo.size_aware_batching.plan._strata import Template, envelope, from_ends

if TYPE_CHECKING:
    from bionemo.size_aware_batching._types import AnyArray, IntArray
    from bionemo.size_aware_batching.plan._cost import Price

__all__ = ["Sequenced", "best_fit", "by_size", "in_order"]

_TIES, _PHASE = 1, 4
# Blocks of up to this many neighbours, as long as each copy of the template keeps that many batches: then a batch spans
# so little of all sizes that the mixing costs no padding to speak of.
_MOST_STRATA, _BATCHES_A_COPY = 16, 400
# A template with fewer batches keeps its last, unfilled one: cutting those elements by themselves would leave a good
# part of all elements without new companions.
_ENOUGH_BATCHES = 8
# Packing copies of a template loses less than a batch for each; this share of all batches goes unnoticed.
_PACKING_LOSS, _MOST_PACKED_STRATA = 1e-4, 64
_SAMPLE = 2**16


class Sequenced(NamedTuple):
    """Elements in a sequence, and the templates that cover it."""

    order: AnyArray
    matrix: AnyArray
    templates: list[Template]


def in_order(matrix: AnyArray, price: Price, rules: ItemRules, stream: tuple[int, ...] | None) -> Sequenced:
    """Keep the elements as they come."""
    ends = _ends(matrix, price, rules, stream, ascending=False)
    order = np.arange(len(matrix), dtype=index_type(len(matrix)))
    return Sequenced(order, matrix, [from_ends(1, ends)])


def by_size(
    matrix: AnyArray,
    price: Price,
    rules: ItemRules,
    stream: tuple[int, ...] | None,
    *,
    window: int | None,
    uniform: bool,
) -> Sequenced:
    """Put like sizes together."""
    order, runs = sort_by_size(matrix, price.alone, None if stream is None else (*stream, _TIES))
    ordered = _in_order_of(matrix, order, runs)
    templates, begin = [], 0
    if uniform:
        order, ordered, ends = _uniform(order, ordered, runs, price, rules)
        templates, begin = [from_ends(1, ends)], int(ends[-1])
    rest = ordered[begin:]
    strata = 1 if stream is None else _strata(rest, price, rules, window)
    if strata == 1:
        return Sequenced(order, ordered, [*templates, from_ends(1, _ends(rest, price, rules, stream, ascending=True))])
    ends = cut(envelope(rest, strata), price, rules, rules.max_items, ascending=True)
    if ends.size - 1 >= _ENOUGH_BATCHES:
        ends = ends[:-1]
    tail = cut(rest[ends[-1] * strata :], price, rules, rules.max_items, ascending=True)
    return Sequenced(order, ordered, [*templates, from_ends(strata, ends), from_ends(1, tail)])


def best_fit(matrix: AnyArray, price: Price, rules: ItemRules, stream: tuple[int, ...] | None) -> Sequenced:
    """Fill the gaps: pack by best-fit decreasing."""
    order, runs = sort_by_size(matrix, price.alone, None if stream is None else (*stream, _TIES))
    ordered = _in_order_of(matrix, order, runs)
    budget = price.limits[0].item()
    fewest = float(matrix.sum(dtype=np.float64)) / budget
    strata = min(max(int(fewest * _PACKING_LOSS), 1 if stream is None else 2), _MOST_PACKED_STRATA, max(order.size, 1))
    slots = envelope(ordered, strata)[:, 0]
    template = pack(slots, budget, rules.max_items, strata)
    if strata == 1:
        return Sequenced(order, ordered, [template])
    # The emptiest batch of the template and the elements of no whole block are packed by themselves.
    batch, place = template.places()
    stays = np.ones(slots.size, np.bool_)
    if template.items.size >= _ENOUGH_BATCHES:
        emptiest = int(np.bincount(batch, weights=slots).argmin())
        stays = np.asarray(batch != emptiest)
        renumbered = batch[stays] - (batch[stays] > emptiest)
        template = Template(strata, np.delete(template.items, emptiest), (renumbered, place[stays]))
    places = np.concatenate([np.flatnonzero(np.repeat(group, strata)) for group in (stays, ~stays)])
    places = np.concatenate([places, np.arange(slots.size * strata, order.size)])
    order, ordered = order[places], ordered[places]
    tail = ordered[int(stays.sum()) * strata :, 0]
    return Sequenced(order, ordered, [template, pack(tail, budget, rules.max_items, 1)])


def _in_order_of(matrix: AnyArray, order: AnyArray, runs: IntArray) -> AnyArray:
    """Return the rows in sorted order; one measure is written run by run, which needs no random access."""
    if matrix.shape[1] > 1:
        return matrix[order]
    items = np.diff(runs)
    some = items > 0
    return np.repeat(matrix[order[runs[:-1][some]], 0], items[some])[:, None]


def _strata(ordered: AnyArray, price: Price, rules: ItemRules, window: int | None) -> int:
    """Choose how many neighbours mix: as many as windows of that many elements ask for, or as many as are free."""
    n = len(ordered)
    stride = max(n // _SAMPLE, 1)
    batches = stride * (cut(ordered[stride - 1 :: stride], price, rules, rules.max_items, ascending=True).size - 1)
    if window is None:
        return min(max(batches // _BATCHES_A_COPY, 1), _MOST_STRATA)
    # A copy of too few batches would leave the last of them unfilled.
    return max(min(round(n / window), batches // _ENOUGH_BATCHES), 1)


def _ends(
    matrix: AnyArray, price: Price, rules: ItemRules, stream: tuple[int, ...] | None, *, ascending: bool
) -> IntArray:
    """Cut a whole sequence; for a random order begin with a part of a batch, so that companions change.

    That takes one batch more, in every epoch: where it happens to take none, one is split.
    """
    ends = cut(matrix, price, rules, rules.max_items, ascending=ascending)
    if stream is None or len(matrix) == 0:
        return ends
    first = int(ends[1])
    step = rules.multiple_of if first >= rules.multiple_of else 1
    choices = (first - 1) // step
    if choices == 0:
        return ends
    wanted = min(ends.size, len(matrix))
    shifted = cut(matrix, price, rules, step * (1 + seeds(*stream, _PHASE)[0] % choices), ascending=ascending)
    ends = shifted if shifted.size - 1 <= wanted else ends
    while ends.size - 1 < wanted:
        items = np.diff(ends)
        most = int(items.argmax())
        half = max(items[most] // 2 // step * step, 1)
        ends = np.insert(ends, most + 1, ends[most] + half)
    return ends


def _uniform(
    order: AnyArray, ordered: AnyArray, runs: IntArray, price: Price, rules: ItemRules
) -> tuple[AnyArray, AnyArray, IntArray]:
    """Move the elements that fill batches of one size to the front.

    Returns:
        The order and the sizes, rearranged, and where the uniform batches end, from 0 on.
    """
    runs = np.unique(runs)
    items = np.diff(runs)
    reach = uniform_reach(ordered[runs[:-1]], price, rules)
    full = items // reach
    taken = np.repeat(full * reach, items)
    front = np.arange(order.size) - np.repeat(runs[:-1], items) < taken
    ends = np.concatenate([[0], np.cumsum(np.repeat(reach, full))])
    return np.concatenate([order[front], order[~front]]), np.concatenate([ordered[front], ordered[~front]]), ends
