"""`SizeAwareBatchSampler`: batches of indices from any sampler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Sampler, SequentialSampler

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.sampler._arrays import CHUNK, IndexSequence, tensor_to_numpy
from bionemo.size_aware_batching.sampler._greedy import GreedyPass
from bionemo.size_aware_batching.sampler._randomness import draws_random_numbers
from bionemo.size_aware_batching.sampler._sizeof import SizeLookup, check_limit, check_logger

if TYPE_CHECKING:
    from numbers import Real

    from bionemo.size_aware_batching._types import AnyArray, IntArray

__all__ = ["SizeAwareBatchSampler"]

# Unsigned 64-bit integers are left to Python's arithmetic: they may not fit an index.
_INTEGERS: set[Any] = {np.dtype(f"{kind}{bits}") for kind in "iu" for bits in (1, 2, 4, 8)} - {np.dtype(np.uint64)}
_INTEGERS |= {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}


class SizeAwareBatchSampler(Sampler[list[int]]):
    """Group the indices of a sampler, in their order, into batches of limited total size.

    The rule is that of `size_aware_batching`, here on indices: an index joins the open batch if the sum of sizes
    stays at or below `max_total_size`; otherwise it opens the next one. Indices come out as plain `int`. Every
    pass starts anew, and passes that run at the same time do not disturb each other.

    Give the sizes as an array or tensor where you can: together with a range, an array, a tensor or a
    `SequentialSampler` as `sampler`, a pass then costs little more than making Python ints of the indices.

    Attributes:
        sampler: where the indices come from.
        sizeof: as given.
        max_total_size: as given.

    >>> import torch
    >>> dataset = [torch.tensor([1, 2]), torch.tensor([3, 4]), torch.tensor([5, 6]),
    ...            torch.tensor([7, 8]), torch.tensor([9, 10])]
    >>> batch_sampler = SizeAwareBatchSampler(
    ...     sampler=torch.utils.data.SequentialSampler(dataset),
    ...     sizeof=lambda index: dataset[index].numel(),
    ...     max_total_size=4,
    ... )
    >>> print(list(batch_sampler))
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self,
        sampler: Sampler[Any] | Iterable[int],
        sizeof: Callable[[int], Any] | Mapping[int, Any] | Sequence[Any] | AnyArray | torch.Tensor,
        max_total_size: Real | float,
        info_logger: Callable[[str], None] | None = None,
        warn_logger: Callable[[str], None] | None = None,
    ) -> None:
        """Check the arguments; nothing is read yet.

        Args:
            sampler: yields indices; any iterable of int, array or tensor does.
            sizeof: the size of the element at an index: a function, mapping, sequence, array or tensor.
            max_total_size: the limit on a batch's sum of sizes, positive, inclusive, in the unit of `sizeof`.
            info_logger: called with a summary at the end of each pass.
            warn_logger: called for each skipped index, and with their number at the end of the pass. Without it,
                one `SkippedElementsWarning` is issued at the end of the pass.

        Raises:
            TypeError: `sampler` cannot be iterated or is a string; `sizeof` is none of the above.
            ValueError: `max_total_size` is not a positive number; `sizeof` or `sampler` is an array that is not
                1-D.
        """
        if not isinstance(sampler, (Sampler, Iterable)) or isinstance(sampler, (str, bytes)):
            msg = f"`sampler` must be a Sampler or an iterable of indices, got {kind_of(sampler)}"
            raise TypeError(msg)
        if isinstance(sampler, (np.ndarray, torch.Tensor)) and sampler.ndim != 1:
            msg = f"`sampler` must be 1-D, got {sampler.ndim}-D"
            raise ValueError(msg)
        check_logger("info_logger", info_logger)
        check_logger("warn_logger", warn_logger)
        self._limit = check_limit(max_total_size, zero_is_fine=False)
        self._size_of = SizeLookup(sizeof)
        self.sampler, self.sizeof, self.max_total_size = sampler, sizeof, max_total_size
        self._info_logger, self._warn_logger = info_logger, warn_logger
        self._used_up = False

    def set_epoch(self, epoch: int) -> None:
        """Tell the sampler that gives the indices which epoch begins, if it wants to know."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    @property
    def is_plain_arrays(self) -> bool:
        """Whether indices and sizes are both arrays, so that a pass runs none of the user's code."""
        return self._index_array() is not None and self._warn_logger is None and self._info_logger is None

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches of indices.

        Raises:
            RuntimeError: the sampler is an iterator that an earlier pass used up.
            SizeofError: `sizeof` raised.
            TypeError: a size cannot be compared with the limit.
            ValueError: a size is NaN, infinite or negative.
        """
        if isinstance(self.sampler, Iterator):
            if self._used_up:
                msg = "`sampler` is an iterator that an earlier pass used up: give a list, a range or a Sampler"
                raise RuntimeError(msg)
            self._used_up = True
        return self._batches(GreedyPass(self._size_of, self._limit, self._info_logger, self._warn_logger))

    def _batches(self, greedy: GreedyPass) -> Iterator[list[int]]:
        indices = self._index_array()
        if indices is None:
            yield from self._feed(greedy, self.sampler)
        else:
            yield from greedy.in_chunks(_chunks(indices))
            yield from greedy.finish(stacklevel=3)

    def _feed(self, greedy: GreedyPass, sampler: Iterable[Any]) -> Iterator[list[int]]:
        yield from greedy.one_by_one(map(_plain_index, sampler))
        yield from greedy.finish(stacklevel=4)

    def __len__(self) -> int:
        """Return the number of batches of a pass, counted without calling any logger.

        Raises:
            TypeError: it cannot be known: the sampler has no length, the sizes come from a function, or the
                sampler draws another order for each pass.
        """
        if not isinstance(self.sampler, Sized) or isinstance(self.sampler, Iterator):
            msg = (
                f"the number of batches is unknown: the sampler ({kind_of(self.sampler)}) is unsized or read only once"
            )
            raise TypeError(msg)
        if not self._size_of.is_container:
            msg = "the number of batches is unknown: sizes come from a function; give them as an array or a list"
            raise TypeError(msg)
        greedy = GreedyPass(self._size_of, self._limit, None, _ignore)
        indices = self._index_array()
        if indices is not None:
            return greedy.count(_chunks(indices))
        # A copy, since a sampler may count its passes; what it draws from is the original's and is put back.
        with draws_random_numbers(self.sampler) as drew:
            count = sum(1 for _ in self._feed(greedy, copy.copy(self.sampler)))
        if drew():
            msg = (
                f"the number of batches is unknown: the sampler ({kind_of(self.sampler)}) draws another order for "
                "each pass"
            )
            raise TypeError(msg)
        return count

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(sampler={kind_of(self.sampler)}, sizeof={kind_of(self.sizeof)}, "
            f"max_total_size={self.max_total_size!r})"
        )

    def _index_array(self) -> range | AnyArray | torch.Tensor | None:
        """Return the indices as a range or an array of integers where nobody can tell from reading one by one."""
        sampler: Any = self.sampler
        if self._size_of.array is None:
            return None
        if type(sampler) is SequentialSampler:
            return range(len(sampler.data_source))
        if isinstance(sampler, IndexSequence):
            return np.asarray(sampler)
        integers = isinstance(sampler, (np.ndarray, torch.Tensor)) and sampler.dtype in _INTEGERS
        return sampler if isinstance(sampler, range) or integers else None


def _chunks(indices: range | AnyArray | torch.Tensor) -> Iterator[IntArray]:
    for start in range(0, len(indices), CHUNK):
        part = indices[start : start + CHUNK]
        if isinstance(part, range):
            yield np.arange(part.start, part.stop, part.step, dtype=np.int64)
        elif isinstance(part, torch.Tensor):
            # A copy: a view of the user's tensor would dangle if it moved to shared memory meanwhile.
            yield tensor_to_numpy("sampler", part.to(torch.int64, copy=True))
        else:
            yield part.astype(np.int64, copy=False)


def _plain_index(index: Any) -> Any:
    """Datasets of many kinds break on numpy integers and tensors as indices."""
    if isinstance(index, np.integer):
        return int(index)
    if isinstance(index, (np.ndarray, torch.Tensor)) and index.shape in ((), (1,)):
        return index.item()
    return index


def _ignore(message: str) -> None:
    pass
