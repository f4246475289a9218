"""`BucketBatchSampler`: every batch from one bucket of like sizes."""

from __future__ import annotations

import warnings
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, Sampler

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.errors import ArgumentKindError, OutOfRangeWarning
from bionemo.size_aware_batching.plan import bucket_drawer, group_by_bucket
from bionemo.size_aware_batching.sampler._arrays import IndexSequence, real_vector
from bionemo.size_aware_batching.sampler._size_aware import SizeAwareBatchSampler
from bionemo.size_aware_batching.sampler._sizeof import SizeLookup
from bionemo.size_aware_batching.sampler._words import raw_words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["BucketBatchSampler"]

# Words looked up at a time where nothing but this sampler draws from the generator during a pass.
_WORD_BLOCK = 4096


class BucketBatchSampler(Sampler[list[int]]):
    """Group elements into buckets of like size and take every batch from one bucket.

    The padding in a batch is then smaller than its bucket is wide. Boundaries are sorted first; bucket k holds
    sizes from boundary k up to, and without, boundary k + 1:

        boundaries   0        6                 15                25
        bucket       |   0    |        1        |        2        |
        sizes        0 ... 5    6 ...        14   15 ...       24

    For each bucket a base batch sampler is built as `base_batch_sampler_class(indices, **shared, **individual)`.
    Without shuffling, buckets are served in ascending order and elements in index order. With shuffling, each pass
    permutes the elements inside the buckets (starting from the order of the pass before) and draws, for every
    batch, the bucket it comes from, in proportion to the elements left in each. The order is a function of the
    generator's state alone, the same on every machine.

    Attributes:
        sizes: as given.
        bucket_boundaries: (buckets + 1,) tensor, sorted.
        num_buckets: number of buckets.
        bucket_sizes: (num_buckets,) int64 tensor, elements in each bucket.
        num_samples: elements in all buckets.
        bucket_element_indices: for each bucket the element indices, in the order of the latest pass.
        shuffle: as given.
        generator: as given.
        base_batch_samplers: for each bucket the base batch sampler of the latest pass.

    >>> import torch
    >>> sizes = torch.arange(25)
    >>> bucket_boundaries = torch.tensor([0, 6, 15, 25])
    >>> batch_sampler = BucketBatchSampler(
    ...     sizes=sizes,
    ...     bucket_boundaries=bucket_boundaries,
    ...     base_batch_sampler_class=torch.utils.data.BatchSampler,
    ...     base_batch_sampler_shared_kwargs={"drop_last": False},
    ...     base_batch_sampler_individual_kwargs={"batch_size": [2, 3, 5]},
    ...     shuffle=False,
    ... )
    >>> print(list(batch_sampler))
    [[0, 1], [2, 3], [4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14], [15, 16, 17, 18, 19], [20, 21, 22, 23, 24]]

    Shuffled, two passes:

    >>> batch_sampler = BucketBatchSampler(
    ...     sizes=sizes,
    ...     bucket_boundaries=bucket_boundaries,
    ...     base_batch_sampler_class=torch.utils.data.BatchSampler,
    ...     base_batch_sampler_shared_kwargs={"drop_last": False},
    ...     base_batch_sampler_individual_kwargs={"batch_size": [2, 3, 5]},
    ...     shuffle=True,
    ...     generator=torch.Generator().manual_seed(0),
    ... )
    >>> print(list(batch_sampler))
    [[24, 17, 16, 22, 19], [2, 5], [12, 10, 11], [3, 0], [15, 18, 20, 21, 23], [7, 13, 6], [14, 9, 8], [1, 4]]
    >>> print(list(batch_sampler))
    [[14, 9, 13], [23, 16, 20, 21, 15], [5, 0], [8, 10, 11], [17, 24, 22, 18, 19], [12, 6, 7], [4, 2], [3, 1]]

    With a limit on the total size of each batch:

    >>> batch_sampler = BucketBatchSampler(
    ...     sizes=sizes,
    ...     bucket_boundaries=bucket_boundaries,
    ...     base_batch_sampler_class=SizeAwareBatchSampler,
    ...     base_batch_sampler_shared_kwargs={"sizeof": sizes, "max_total_size": 40},
    ...     base_batch_sampler_individual_kwargs={},
    ...     shuffle=True,
    ...     generator=torch.Generator().manual_seed(0),
    ... )
    >>> print(list(iter(batch_sampler)))
    [[24], [2, 5, 3, 0, 1, 4], [12, 10, 11, 7], [13, 6, 14], [17, 16], [22], [19, 15], [9, 8], [18, 20], [21], [23]]
    """

    def __init__(
        self,
        sizes: torch.Tensor,
        bucket_boundaries: torch.Tensor,
        base_batch_sampler_class: type[Sampler[Any]],
        base_batch_sampler_shared_kwargs: dict[str, Any] | None = None,
        base_batch_sampler_individual_kwargs: dict[str, Iterable[Any]] | None = None,
        shuffle: bool | None = True,
        generator: torch.Generator | None = None,
    ) -> None:
        """Sort the elements into buckets and build the base batch samplers.

        Args:
            sizes: (n,) real tensor, one size per element.
            bucket_boundaries: (buckets + 1,) real tensor, at least two values, no duplicates, in any order.
            base_batch_sampler_class: the `Sampler` class that makes batches inside each bucket.
            base_batch_sampler_shared_kwargs: keyword arguments for all base batch samplers.
            base_batch_sampler_individual_kwargs: keyword arguments with one value per bucket.
            shuffle: permute elements and draw buckets; by default yes.
            generator: a CPU generator. Without one, each pass seeds its own from torch's global state.

        Raises:
            TypeError: an argument is of the wrong kind (for `sizes`, `bucket_boundaries` and the two dicts the
                error is also a `ValueError`), or the base class refuses its arguments.
            ValueError: a tensor is not 1-D or not real, has NaN; fewer than two boundaries, or duplicates; not
                one value per bucket.
            RuntimeError: no element lies in any bucket.

        Warns:
            OutOfRangeWarning: some elements lie in no bucket; with their number.
        """
        values = real_vector("sizes", sizes)
        boundaries = np.sort(real_vector("bucket_boundaries", bucket_boundaries))
        if boundaries.size < 2:
            msg = f"`bucket_boundaries` must have at least 2 values, got {boundaries.size}"
            raise ValueError(msg)
        if (boundaries[1:] == boundaries[:-1]).any():
            repeated = boundaries[1:][boundaries[1:] == boundaries[:-1]][0]
            msg = f"`bucket_boundaries` must not have duplicates, got {repeated} more than once"
            raise ValueError(msg)
        if not isinstance(base_batch_sampler_class, type) or not issubclass(base_batch_sampler_class, Sampler):
            msg = f"`base_batch_sampler_class` must be a subclass of Sampler, got {base_batch_sampler_class!r:.60}"
            raise TypeError(msg)
        if not isinstance(shuffle, bool):
            msg = f"`shuffle` must be True or False, got {kind_of(shuffle)}"
            raise TypeError(msg)
        if generator is not None and not isinstance(generator, torch.Generator):
            msg = f"`generator` must be a torch.Generator or None, got {kind_of(generator)}"
            raise TypeError(msg)
        if generator is not None and generator.device.type != "cpu":
            msg = f"`generator` must be a CPU generator, got one on {generator.device}"
            raise ValueError(msg)

        self.sizes = sizes
        self.bucket_boundaries = torch.sort(bucket_boundaries.detach())[0]
        self.num_buckets = boundaries.size - 1
        self.shuffle = shuffle
        self.generator = generator
        self._base_class = base_batch_sampler_class
        shared = _keywords("base_batch_sampler_shared_kwargs", base_batch_sampler_shared_kwargs)
        if issubclass(base_batch_sampler_class, SizeAwareBatchSampler) and "sizeof" in shared:
            # Each of these would copy a tensor of sizes; once is enough for all buckets and passes.
            shared["sizeof"] = SizeLookup.table(shared["sizeof"])
        self._kwargs = self._kwargs_per_bucket(
            shared,
            _keywords("base_batch_sampler_individual_kwargs", base_batch_sampler_individual_kwargs),
        )
        self.bucket_element_indices = [IndexSequence(group) for group in group_by_bucket(values, boundaries)]
        counts = np.array([len(indices) for indices in self.bucket_element_indices], np.int64)
        self.bucket_sizes = torch.from_numpy(counts)
        self.num_samples = int(counts.sum())
        self._running = 0
        self._prepared: tuple[torch.Generator, list[IndexSequence], list[Sampler[list[int]]]] | None = None
        if self.num_samples == 0:
            msg = f"no element's size lies in [{boundaries[0]}, {boundaries[-1]}), the range of `bucket_boundaries`"
            raise RuntimeError(msg)
        if self.num_samples < values.size:
            text = (
                f"{values.size - self.num_samples} of {values.size} elements are outside "
                f"[{boundaries[0]}, {boundaries[-1]}) and are never served"
            )
            warnings.warn(text, OutOfRangeWarning, stacklevel=2)
        self.base_batch_samplers = self._build(self.bucket_element_indices)

    def __iter__(self) -> Iterator[list[int]]:
        """Start a pass; see the class for its order."""
        return self._shuffled_pass() if self.shuffle else self._plain_pass()

    def _plain_pass(self) -> Iterator[list[int]]:
        for sampler in self.base_batch_samplers:
            yield from sampler

    def _shuffled_pass(self) -> Iterator[list[int]]:
        generator, orders, samplers = self._prepared or self._prepare()
        self._prepared = None
        # The next pass goes on from these orders; a pass that is still running keeps its own.
        self.bucket_element_indices, self.base_batch_samplers = orders, samplers
        passes = [iter(sampler) for sampler in samplers]
        # The same counts twice: Python reads and writes the list faster, the compiled draw reads the array.
        remaining = [len(order) for order in orders]
        counts, left, draw = np.array(remaining, np.int64), sum(remaining), bucket_drawer()
        alone = all(_draws_nothing(sampler) for sampler in samplers)
        self._running += 1
        try:
            words = raw_words(generator, _WORD_BLOCK if alone else 1)
            with closing(words):
                while left > 0:
                    bucket = draw(next(words), counts, left)
                    batch = next(passes[bucket], None)
                    # A base sampler may serve more elements than it was given, or end before it served all.
                    had = remaining[bucket]
                    remaining[bucket] = counts[bucket] = 0 if batch is None else max(had - len(batch), 0)
                    left += remaining[bucket] - had
                    if batch is not None:
                        yield batch
            # Served in full, but not yet told so: lets base samplers report, and serve what they repeat.
            for rest in passes:
                yield from rest
        finally:
            self._running -= 1

    def __len__(self) -> int:
        """Return the number of batches: of the running pass, else of the next one.

        Where it depends on the order of elements, the order of the next pass is drawn now and kept for it.

        Raises:
            TypeError: the base batch samplers have no length.
        """
        samplers = self.base_batch_samplers
        count = len(samplers[0])  # type: ignore[arg-type]  # a TypeError comes before anything is drawn
        if self.shuffle and not self._running and self._base_class is not BatchSampler:
            self._prepared = self._prepared or self._prepare()
            samplers = self._prepared[2]
            count = len(samplers[0])  # type: ignore[arg-type]
        others: Iterable[int] = map(len, samplers[1:])  # type: ignore[arg-type]
        return count + sum(others)

    def _prepare(self) -> tuple[torch.Generator, list[IndexSequence], list[Sampler[list[int]]]]:
        """Draw the orders of the next pass and build its base samplers."""
        generator = self.generator or _seeded_by(torch.default_generator)
        orders = _permuted(self.bucket_element_indices, generator)
        return generator, orders, self._build(orders)

    def __getstate__(self) -> dict[str, Any]:
        """Send generators as their states: torch does not carry them to spawned workers."""
        state = self.__dict__ | {"_running": 0, "generator": _state_of(self.generator)}
        if self._prepared is not None:
            own = self._prepared[0] is not self.generator
            state["_prepared"] = (_state_of(self._prepared[0]) if own else None, *self._prepared[1:])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Rebuild the generators."""
        self.__dict__.update(state)
        self.generator = _from_state(state["generator"])
        if self._prepared is not None:
            generator = _from_state(state["_prepared"][0]) or self.generator
            self._prepared = (generator, *state["_prepared"][1:])

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(num_samples={self.num_samples}, num_buckets={self.num_buckets}, "
            f"base_batch_sampler_class={self._base_class.__name__}, shuffle={self.shuffle})"
        )

    def _kwargs_per_bucket(self, shared: dict[str, Any], individual: dict[str, Iterable[Any]]) -> list[dict[str, Any]]:
        columns = {}
        for key, values in individual.items():
            try:
                columns[key] = list(islice(values, self.num_buckets + 1))
            except TypeError:
                msg = f"`base_batch_sampler_individual_kwargs[{key!r}]` must be iterable, got {kind_of(values)}"
                raise ArgumentKindError(msg) from None
            if len(columns[key]) != self.num_buckets:
                msg = (
                    f"`base_batch_sampler_individual_kwargs[{key!r}]` must have one value for each of the "
                    f"{self.num_buckets} buckets, got {_count(columns[key], self.num_buckets)}"
                )
                raise ValueError(msg)
        return [shared | {key: column[k] for key, column in columns.items()} for k in range(self.num_buckets)]

    def _build(self, orders: list[IndexSequence]) -> list[Sampler[list[int]]]:
        return [
            self._base_class(order, **kwargs)  # type: ignore[call-arg]
            for order, kwargs in zip(orders, self._kwargs, strict=True)
        ]


def _keywords(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        msg = f"`{name}` must be a dict with string keys, got {kind_of(value)}"
        raise ArgumentKindError(msg)
    return dict(value)


def _permuted(orders: list[IndexSequence], generator: torch.Generator) -> list[IndexSequence]:
    permuted = []
    for order in orders:
        p = torch.randperm(len(order), generator=generator, device="cpu")
        permuted.append(IndexSequence(np.asarray(order)[p.numpy()]))
    return permuted


def _seeded_by(generator: torch.Generator) -> torch.Generator:
    seed = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=generator).item()
    return torch.Generator(device="cpu").manual_seed(int(seed))


def _state_of(generator: torch.Generator | None) -> AnyArray | None:
    return None if generator is None else generator.get_state().numpy().copy()


def _from_state(state: AnyArray | None) -> torch.Generator | None:
    if state is None:
        return None
    generator = torch.Generator(device="cpu")
    generator.set_state(torch.from_numpy(state))
    return generator


def _count(values: list[Any], most: int) -> str:
    return str(len(values)) if len(values) <= most else f"more than {most}"


def _draws_nothing(sampler: Sampler[Any]) -> bool:
    """Tell whether a pass over a base sampler surely leaves the generator alone."""
    if type(sampler) is BatchSampler:
        return isinstance(sampler.sampler, IndexSequence)
    return type(sampler) is SizeAwareBatchSampler and sampler.is_plain_arrays
