"""`size_aware_batching`: batches from any iterable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.sampler._greedy import GreedyPass
from bionemo.size_aware_batching.sampler._sizeof import SizeLookup, check_limit, check_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from numbers import Real

__all__ = ["size_aware_batching"]

Data = TypeVar("Data")
Collated = TypeVar("Collated")


@overload
def size_aware_batching(
    dataset: Iterable[Data],
    sizeof: Callable[[Data], Any] | Mapping[Data, Any] | Sequence[Any],
    max_total_size: Real | float,
    collate_fn: None = None,
    info_logger: Callable[[str], None] | None = None,
    warn_logger: Callable[[str], None] | None = None,
) -> Iterator[list[Data]]: ...
@overload
def size_aware_batching(
    dataset: Iterable[Data],
    sizeof: Callable[[Data], Any] | Mapping[Data, Any] | Sequence[Any],
    max_total_size: Real | float,
    collate_fn: Callable[[list[Data]], Collated],
    info_logger: Callable[[str], None] | None = None,
    warn_logger: Callable[[str], None] | None = None,
) -> Iterator[Collated]: ...
def size_aware_batching(
    dataset: Iterable[Any],
    sizeof: Callable[[Any], Any] | Mapping[Any, Any] | Sequence[Any],
    max_total_size: Real | float,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    info_logger: Callable[[str], None] | None = None,
    warn_logger: Callable[[str], None] | None = None,
) -> Iterator[Any]:
    """Group the elements of an iterable, in their order, into batches of limited total size.

    An element joins the open batch if the sum of sizes stays at or below `max_total_size`; otherwise the batch is
    complete and the element opens the next one. Works on data that can only be iterated, holds one batch at a
    time, and reads no further than the element that does not fit. An element larger than the limit by itself is
    skipped and reported.

        sizes   3  4  2 | 7  1 | 5  4      max_total_size = 9

    Args:
        dataset: the elements; iterated once.
        sizeof: the size of an element: a function of the element, or a mapping or sequence indexed by it.
        max_total_size: the limit on a batch's sum of sizes, inclusive, in the unit of `sizeof`; 0 skips everything
            that is larger. Sizes are added left to right in Python's numbers, so integers are exact and floats
            follow IEEE double precision: 0.1 + 0.2 is over 0.3.
        collate_fn: turns each list of elements into what is yielded; by default the list itself.
        info_logger: called with a summary when the dataset is exhausted.
        warn_logger: called for each skipped element, and with their number at the end. Without it, one
            `SkippedElementsWarning` is issued at the end.

    Returns:
        An iterator over the batches. Linear in the number of elements.

    Raises:
        ValueError: `max_total_size` is not a number or is negative; while iterating, a size is NaN, infinite or
            negative.
        TypeError: `sizeof`, `dataset` or `collate_fn` is of the wrong kind; while iterating, a size cannot be
            compared with the limit.
        SizeofError: (a `RuntimeError`) while iterating, `sizeof` raised.

    >>> import torch
    >>> from torch.utils.data import default_collate
    >>> dataset = [torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([5, 6]),
    ...            torch.tensor([7, 8]), torch.tensor([9, 10])]
    >>> gen = size_aware_batching(dataset, lambda x: x.numel(), 4, collate_fn=default_collate)
    >>> print(list(gen))
    [tensor([[1, 2],
        [3, 4]]), tensor([[5, 6],
        [7, 8]]), tensor([[ 9, 10]])]
    """
    limit = check_limit(max_total_size, zero_is_fine=True)
    lookup = SizeLookup(sizeof)
    check_logger("info_logger", info_logger)
    check_logger("warn_logger", warn_logger)
    try:
        elements = iter(dataset)
    except TypeError as error:
        msg = f"`dataset` must be iterable, got {kind_of(dataset)}"
        raise TypeError(msg) from error
    if collate_fn is not None and not callable(collate_fn):
        msg = f"`collate_fn` must be callable or None, got {kind_of(collate_fn)}"
        raise TypeError(msg)
    batches = _batches(elements, GreedyPass(lookup, limit, info_logger, warn_logger))
    return batches if collate_fn is None else _collated(batches, collate_fn)


def _batches(elements: Iterator[Any], greedy: GreedyPass) -> Iterator[list[Any]]:
    yield from greedy.one_by_one(elements)
    # From finish() up through this generator to whoever asked for the batch.
    yield from greedy.finish(stacklevel=3)


def _collated(batches: Iterator[list[Any]], collate_fn: Callable[[list[Any]], Any]) -> Iterator[Any]:
    for batch in batches:
        yield collate_fn(batch)
