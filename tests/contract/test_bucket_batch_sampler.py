"""`BucketBatchSampler`, held against its documented contract and an independent oracle of its shuffling.

The oracle takes its random words from numpy's Mersenne twister: its legacy seeding gives the words that a
torch generator of the same seed gives.
"""

import inspect
import itertools
import math
import pickle
import time
import tracemalloc

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, Sampler

from bionemo.size_aware_batching.errors import OutOfRangeWarning
from bionemo.size_aware_batching.sampler import BucketBatchSampler, SizeAwareBatchSampler

SIZES = torch.arange(25)
BOUNDARIES = torch.tensor([0, 6, 15, 25])
MEMBERS = [list(range(6)), list(range(6, 15)), list(range(15, 25))]
BY_COUNT = {
    "base_batch_sampler_class": BatchSampler,
    "base_batch_sampler_shared_kwargs": {"drop_last": False},
    "base_batch_sampler_individual_kwargs": {"batch_size": [2, 3, 5]},
}
ASCENDING = [
    [0, 1],
    [2, 3],
    [4, 5],
    [6, 7, 8],
    [9, 10, 11],
    [12, 13, 14],
    [15, 16, 17, 18, 19],
    [20, 21, 22, 23, 24],
]
FIRST_PASS = [
    [24, 17, 16, 22, 19],
    [2, 5],
    [12, 10, 11],
    [3, 0],
    [15, 18, 20, 21, 23],
    [7, 13, 6],
    [14, 9, 8],
    [1, 4],
]
SECOND_PASS = [
    [14, 9, 13],
    [23, 16, 20, 21, 15],
    [5, 0],
    [8, 10, 11],
    [17, 24, 22, 18, 19],
    [12, 6, 7],
    [4, 2],
    [3, 1],
]
COMBINED = [
    [24],
    [2, 5, 3, 0, 1, 4],
    [12, 10, 11, 7],
    [13, 6, 14],
    [17, 16],
    [22],
    [19, 15],
    [9, 8],
    [18, 20],
    [21],
    [23],
]
MODULUS = 2**31 - 1
MULTIPLIER = 1132489760


class Words:
    """The 32-bit words of a generator with this seed, and how many of them were used."""

    def __init__(self, seed):
        self.twister = np.random.MT19937()
        self.twister._legacy_seeding(seed)
        self.used = 0

    def draw(self):
        self.used += 1
        return int(self.twister.random_raw())

    def permutation(self, count):
        """Return what `torch.randperm(count)` returns: a Fisher-Yates shuffle from the front."""
        order = list(range(count))
        for low in range(count - 1):
            high = low + self.draw() % (count - low)
            order[low], order[high] = order[high], order[low]
        return order


def choose(word, counts):
    """Return the bucket with the greatest (c_k / C) / q_k for one raw word."""
    x = word % MODULUS or 1
    scores = []
    for count in counts:
        scores.append(count / sum(counts) / -math.log(x / MODULUS))
        x = x * MULTIPLIER % MODULUS
    return scores.index(max(scores))


def shuffled_pass(words, orders, cut):
    """Return a pass's batches; reorders `orders` in place.

    Args:
        words: the source of random words.
        orders: one list of elements a bucket, in the order that the last pass left.
        cut: (bucket, its order) -> its batches.
    """
    for order in orders:
        order[:] = [order[place] for place in words.permutation(len(order))]
    pending = [iter(cut(bucket, order)) for bucket, order in enumerate(orders)]
    counts = [len(order) for order in orders]
    batches = []
    while any(counts):
        bucket = choose(words.draw(), counts)
        batch = next(pending[bucket], None)
        if batch is None:
            counts[bucket] = 0
        else:
            batches.append(batch)
            counts[bucket] -= len(batch)
    return batches


def cut_by_count(batch_sizes, drop_last=False):
    """Return a cut into batches of a fixed number of elements, one number a bucket."""

    def cut(bucket, order):
        width = batch_sizes[bucket]
        stop = len(order) // width * width if drop_last else len(order)
        return [order[start : start + width] for start in range(0, stop, width)]

    return cut


def cut_by_size(sizes, limit):
    """Return a greedy cut into batches within the limit, which leaves out what is over it alone."""

    def cut(bucket, order):
        batch = []
        for element in (element for element in order if sizes[element] <= limit):
            if sum(sizes[other] for other in batch) + sizes[element] > limit:
                yield batch
                batch = []
            batch.append(element)
        yield from [batch] if batch else []

    return cut


def state_after(seed, words_used):
    """Return the state of a generator after so many words, drawn by one shuffle that needs that many."""
    twin = torch.Generator().manual_seed(seed)
    torch.randperm(words_used + 1, generator=twin)
    return twin.get_state()


def with_a_word_of_zero():
    """Return a generator whose next word is 0, by way of the layout of its state.

    The state is the seed (8 bytes), two ints of 4 bytes, the position (8 bytes), 624 words of 8 bytes each;
    a word that is stored as 0 comes out as 0.
    """
    generator = torch.Generator().manual_seed(0)
    torch.randperm(2, generator=generator)
    state = generator.get_state()
    fields = state.numpy()[: 24 + 624 * 8].view(np.uint64)
    fields[3 + int(fields[2])] = 0
    return generator.set_state(state)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def by_count(**changes):
    """Return the documented sampler over fixed batch sizes, with some arguments changed."""
    arguments = {"sizes": SIZES, "bucket_boundaries": BOUNDARIES, **BY_COUNT, "shuffle": False, **changes}
    return BucketBatchSampler(**arguments)


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


class Copying(Sampler):
    """A base sampler that takes a copy of its data source when it is made, as a list."""

    def __init__(self, data_source, batch_size):
        self.elements = list(data_source)
        self.batch_size = batch_size

    def __iter__(self):
        for start in range(0, len(self.elements), self.batch_size):
            yield self.elements[start : start + self.batch_size]


class CopyingToArray(Copying):
    """A base sampler that copies its data source into a numpy array."""

    def __init__(self, data_source, batch_size):
        super().__init__(np.array(data_source).tolist(), batch_size)


class Unsized(Sampler):
    """A base sampler that has no length."""

    def __init__(self, data_source):
        self.data_source = data_source

    def __iter__(self):
        for element in self.data_source:
            yield [element]


class Drawing(Sampler):
    """A base sampler that draws the two elements of each batch from a generator."""

    def __init__(self, data_source, generator):
        self.data_source = data_source
        self.generator = generator

    def __iter__(self):
        order = list(self.data_source)
        while order:
            order = [order[place] for place in torch.randperm(len(order), generator=self.generator).tolist()]
            yield order[:2]
            order = order[2:]


def test_signature():
    """Parameters have the documented names, order and defaults."""
    parameters = inspect.signature(BucketBatchSampler).parameters
    expected = [
        "sizes",
        "bucket_boundaries",
        "base_batch_sampler_class",
        "base_batch_sampler_shared_kwargs",
        "base_batch_sampler_individual_kwargs",
        "shuffle",
        "generator",
    ]
    assert expected == list(parameters)
    assert [None, None, True, None] == [parameters[name].default for name in expected[3:]]


def test_documented_example_in_order():
    """Unshuffled, buckets come in ascending order and their elements in index order."""
    sampler = by_count()
    assert ASCENDING == list(sampler)
    assert ASCENDING == list(sampler)


def test_documented_example_shuffled():
    """With seed 0 the first and the second pass are the documented ones."""
    sampler = by_count(shuffle=True, generator=seeded(0))
    assert FIRST_PASS == list(sampler)
    assert SECOND_PASS == list(sampler)


def test_documented_example_combined():
    """With seed 0 around size-aware batches of at most 40 the pass is the documented one."""
    costs = SIZES.tolist()
    sampler = BucketBatchSampler(
        sizes=SIZES,
        bucket_boundaries=BOUNDARIES,
        base_batch_sampler_class=SizeAwareBatchSampler,
        base_batch_sampler_shared_kwargs={"sizeof": costs.__getitem__, "max_total_size": 40},
        base_batch_sampler_individual_kwargs={},
        shuffle=True,
        generator=seeded(0),
    )
    assert COMBINED == list(iter(sampler))


@pytest.mark.parametrize("sizeof", [SIZES.tolist(), SIZES.numpy(), SIZES], ids=["list", "ndarray", "tensor"])
def test_documented_combination_with_sizes_in_a_container(sizeof):
    """The documented combination comes out the same when the costs are in a container."""
    sampler = BucketBatchSampler(
        SIZES,
        BOUNDARIES,
        SizeAwareBatchSampler,
        {"sizeof": sizeof, "max_total_size": 40},
        generator=seeded(0),
    )
    assert COMBINED == list(sampler)


def test_oracle_gives_the_documented_passes():
    """The oracle of this file reproduces all three documented passes."""
    words, orders = Words(0), [order[:] for order in MEMBERS]
    assert FIRST_PASS == shuffled_pass(words, orders, cut_by_count([2, 3, 5]))
    assert SECOND_PASS == shuffled_pass(words, orders, cut_by_count([2, 3, 5]))
    assert COMBINED == shuffled_pass(Words(0), [order[:] for order in MEMBERS], cut_by_size(range(25), 40))


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**31 - 1, 2**32 - 1])
def test_oracle_draws_what_torch_draws(seed):
    """The oracle's shuffle and its count of words agree with torch's own."""
    generator, words = seeded(seed), Words(seed)
    assert torch.randperm(100, generator=generator).tolist() == words.permutation(100)
    assert torch.equal(state_after(seed, words.used), generator.get_state())


@pytest.mark.parametrize("seed", range(20))
def test_shuffling_with_fixed_batch_sizes(seed):
    """Three passes, and where they leave the generator, follow the recipe for any seed."""
    generator = seeded(seed)
    sampler = by_count(shuffle=True, generator=generator)
    words, orders = Words(seed), [order[:] for order in MEMBERS]
    for _ in range(3):
        assert shuffled_pass(words, orders, cut_by_count([2, 3, 5])) == list(sampler)
        assert torch.equal(state_after(seed, words.used), generator.get_state())


@pytest.mark.parametrize("seed", range(20))
def test_shuffling_draws_again_after_an_exhausted_bucket(seed):
    """A bucket whose base sampler drops the rest costs a draw when it turns out to be exhausted."""
    generator = seeded(seed)
    sampler = by_count(
        base_batch_sampler_shared_kwargs={"drop_last": True},
        base_batch_sampler_individual_kwargs={"batch_size": [4, 4, 4]},
        shuffle=True,
        generator=generator,
    )
    words, orders = Words(seed), [order[:] for order in MEMBERS]
    for _ in range(2):
        assert shuffled_pass(words, orders, cut_by_count([4, 4, 4], drop_last=True)) == list(sampler)
        assert torch.equal(state_after(seed, words.used), generator.get_state())


@pytest.mark.parametrize("kind", ["callable", "list", "ndarray", "tensor"])
@pytest.mark.parametrize("seed", range(8))
def test_shuffling_around_size_aware_batches(seed, kind):
    """The recipe holds around size-aware batches, elements over the limit and empty buckets included."""
    sizes = np.random.default_rng(seed).integers(0, 60, 80)
    edges = [0, 5, 20, 40, 60, 70, 80]
    sizeof = {
        "callable": sizes.tolist().__getitem__,
        "list": sizes.tolist(),
        "ndarray": sizes,
        "tensor": torch.from_numpy(sizes),
    }[kind]
    generator, messages = seeded(seed), []
    sampler = BucketBatchSampler(
        torch.from_numpy(sizes),
        torch.tensor(edges),
        SizeAwareBatchSampler,
        {"sizeof": sizeof, "max_total_size": 50, "warn_logger": messages.append},
        generator=generator,
    )
    words = Words(seed)
    orders = [np.flatnonzero((sizes >= low) & (sizes < high)).tolist() for low, high in itertools.pairwise(edges)]
    for _ in range(2):
        assert shuffled_pass(words, orders, cut_by_size(sizes.tolist(), 50)) == list(sampler)
        assert torch.equal(state_after(seed, words.used), generator.get_state())


def test_shuffling_of_many_buckets():
    """The recipe holds for hundreds of buckets of very different counts."""
    sizes = (np.random.default_rng(5).pareto(1.0, 3000) * 20).astype(np.int64).clip(0, 399)
    generator = seeded(9)
    sampler = BucketBatchSampler(
        torch.from_numpy(sizes),
        torch.arange(401),
        BatchSampler,
        {"batch_size": 7, "drop_last": False},
        generator=generator,
    )
    words, orders = Words(9), [np.flatnonzero(sizes == size).tolist() for size in range(400)]
    assert shuffled_pass(words, orders, cut_by_count([7] * 400)) == list(sampler)
    assert torch.equal(state_after(9, words.used), generator.get_state())


def test_shuffling_of_thousands_of_batches():
    """The recipe holds for passes that draw thousands of words."""
    generator, words = seeded(7), Words(7)
    sampler = BucketBatchSampler(
        torch.arange(9001),
        torch.tensor([0, 100, 5000, 9001]),
        BatchSampler,
        {"batch_size": 2, "drop_last": False},
        generator=generator,
    )
    orders = [list(range(100)), list(range(100, 5000)), list(range(5000, 9001))]
    for _ in range(2):
        assert shuffled_pass(words, orders, cut_by_count([2, 2, 2])) == list(sampler)
        assert torch.equal(state_after(7, words.used), generator.get_state())


@pytest.mark.parametrize("seed", range(5))
def test_base_sampler_may_draw_from_the_same_generator(seed):
    """What a base sampler draws for a batch comes between the draws of buckets, in that order."""
    generator, words = seeded(seed), Words(seed)
    sampler = by_count(
        base_batch_sampler_class=Drawing,
        base_batch_sampler_shared_kwargs={"generator": generator},
        base_batch_sampler_individual_kwargs={},
        shuffle=True,
        generator=generator,
    )

    def cut(bucket, order):
        while order:
            order = [order[place] for place in words.permutation(len(order))]
            yield order[:2]
            order = order[2:]

    orders = [order[:] for order in MEMBERS]
    for _ in range(2):
        assert shuffled_pass(words, orders, cut) == list(sampler)
        assert torch.equal(state_after(seed, words.used), generator.get_state())


@pytest.mark.parametrize("buckets", [2, 3, 8, 50])
def test_word_of_zero(buckets):
    """A raw word of 0 counts as 1."""
    sampler = BucketBatchSampler(
        torch.arange(buckets),
        torch.arange(buckets + 1),
        BatchSampler,
        {"batch_size": 1, "drop_last": False},
        generator=with_a_word_of_zero(),
    )
    assert [choose(0, [1] * buckets)] == next(iter(sampler))


def test_generator_is_taken_where_it_stands():
    """A generator that was used before goes on from there."""
    generator, words = seeded(3), Words(3)
    torch.randperm(6, generator=generator)
    words.permutation(6)
    expected = shuffled_pass(words, [order[:] for order in MEMBERS], cut_by_count([2, 3, 5]))
    assert expected == list(by_count(shuffle=True, generator=generator))


def test_shuffling_reads_no_global_generator():
    """A pass with a generator of its own leaves torch's global generator alone."""
    state = torch.random.get_rng_state()
    list(by_count(shuffle=True, generator=seeded(0)))
    assert torch.equal(state, torch.random.get_rng_state())


def test_generator_is_untouched_without_shuffling():
    """Without shuffling nothing is drawn."""
    generator = seeded(4)
    list(by_count(generator=generator))
    assert torch.equal(seeded(4).get_state(), generator.get_state())


def test_default_is_to_shuffle_without_a_generator():
    """Left to itself the sampler shuffles, and two passes serve the same elements in different batches."""
    sampler = BucketBatchSampler(
        torch.arange(1000), torch.tensor([0, 500, 1000]), BatchSampler, {"batch_size": 7, "drop_last": False}
    )
    first, second = list(sampler), list(sampler)
    assert first != second
    assert list(range(1000)) == sorted(flat(first))
    assert list(range(1000)) == sorted(flat(second))


def test_attributes():
    """What the constructor derived can be read from the documented attributes."""
    generator = seeded(0)
    sampler = by_count(
        bucket_boundaries=torch.tensor([15, 0, 25, 6]), shuffle=True, generator=generator, sizes=SIZES.flip(0)
    )
    assert torch.equal(SIZES.flip(0), sampler.sizes)
    assert [0, 6, 15, 25] == sampler.bucket_boundaries.tolist()
    assert 3 == sampler.num_buckets
    assert isinstance(sampler.bucket_sizes, torch.Tensor)
    assert [6, 9, 10] == sampler.bucket_sizes.tolist()
    assert 25 == sampler.num_samples
    assert True is sampler.shuffle
    assert generator is sampler.generator
    assert [BatchSampler] * 3 == [type(base) for base in sampler.base_batch_samplers]
    assert [2, 3, 5] == [base.batch_size for base in sampler.base_batch_samplers]


def test_bucket_element_indices_are_sequences_of_int():
    """Each bucket's elements read like a list of ints in index order."""
    indices = by_count().bucket_element_indices
    assert 3 == len(indices)
    for expected, actual in zip(MEMBERS, indices, strict=True):
        assert expected == actual
        assert actual == expected
        assert expected == list(actual)
        assert len(expected) == len(actual)
        assert (expected[0], expected[-1], expected[1:3]) == (actual[0], actual[-1], list(actual[1:3]))
        assert {int} == {type(element) for element in actual}


def test_boundaries_are_sorted_and_the_argument_left_alone():
    """Boundaries may come in any order, and the caller's tensors are not changed."""
    sizes, boundaries = SIZES.clone(), torch.tensor([15, 25, 0, 6])
    assert ASCENDING == list(by_count(sizes=sizes, bucket_boundaries=boundaries))
    assert [15, 25, 0, 6] == boundaries.tolist()
    assert list(range(25)) == sizes.tolist()


def test_buckets_are_closed_below_and_open_above():
    """A size that equals a boundary belongs to the bucket that starts there."""
    sampler = by_count(
        sizes=torch.tensor([15, 6, 5, 14, 0, 24]),
        base_batch_sampler_individual_kwargs={"batch_size": [9] * 3},
    )
    assert [[2, 4], [1, 3], [0, 5]] == list(sampler)


@pytest.mark.parametrize(
    "sizes_type", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float64]
)
@pytest.mark.parametrize("boundaries_type", [torch.int8, torch.int64, torch.float32, torch.float64])
def test_real_types_of_sizes_and_boundaries(sizes_type, boundaries_type):
    """Integer and floating point tensors mix freely."""
    sampler = by_count(sizes=SIZES.to(sizes_type), bucket_boundaries=BOUNDARIES.to(boundaries_type))
    assert ASCENDING == list(sampler)


def test_fractional_sizes_and_boundaries():
    """Fractions are compared as such."""
    sampler = BucketBatchSampler(
        torch.tensor([0.5, 1.5, 1.25, 0.25]),
        torch.tensor([0.25, 1.25, 1.75]),
        BatchSampler,
        {"batch_size": 2, "drop_last": False},
        shuffle=False,
    )
    assert [[0, 3], [1, 2]] == list(sampler)


def test_base_samplers_get_shared_and_individual_arguments():
    """Each base sampler is made from its bucket's elements, the shared arguments and its own."""
    made = []

    class Recording(Sampler):
        def __init__(self, data_source, **arguments):
            made.append((list(data_source), arguments))
            self.data_source = data_source

        def __iter__(self):
            yield list(self.data_source)

    by_count(
        base_batch_sampler_class=Recording,
        base_batch_sampler_shared_kwargs={"shared": "s"},
        base_batch_sampler_individual_kwargs={"own": "abc", "other": (1, 2, 3)},
    )
    expected = [
        (members, {"shared": "s", "own": own, "other": other})
        for members, own, other in zip(MEMBERS, "abc", (1, 2, 3), strict=True)
    ]
    assert expected == made


def test_keyword_arguments_default_to_none():
    """A base sampler that needs nothing but its elements gets nothing else."""
    sampler = BucketBatchSampler(SIZES, BOUNDARIES, Unsized, shuffle=False)
    assert [[index] for index in range(25)] == list(sampler)


def test_callers_keyword_dictionaries_are_left_alone():
    """The dictionaries that are passed in are not changed."""
    shared, individual = {"drop_last": False}, {"batch_size": [2, 3, 5]}
    list(by_count(base_batch_sampler_shared_kwargs=shared, base_batch_sampler_individual_kwargs=individual))
    assert ({"drop_last": False}, {"batch_size": [2, 3, 5]}) == (shared, individual)


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda: iter([2, 3, 5]), id="iterator"),
        pytest.param(lambda: (size for size in (2, 3, 5)), id="generator"),
        pytest.param(lambda: (2, 3, 5), id="tuple"),
        pytest.param({2: 0, 3: 0, 5: 0}.keys, id="keys"),
    ],
)
def test_per_bucket_values_from_any_iterable(values):
    """Per-bucket values may come from an iterator that can be read only once."""
    sampler = by_count(base_batch_sampler_individual_kwargs={"batch_size": values()})
    assert ASCENDING == list(sampler)
    assert ASCENDING == list(sampler)


@pytest.mark.parametrize("base", [Copying, CopyingToArray])
def test_base_sampler_that_copies_its_elements_is_shuffled(base):
    """Also a base sampler that copied its elements when it was made serves the shuffled order."""
    sampler = by_count(
        base_batch_sampler_class=base,
        base_batch_sampler_shared_kwargs={},
        shuffle=True,
        generator=seeded(0),
    )
    assert FIRST_PASS == list(sampler)
    assert SECOND_PASS == list(sampler)


def test_empty_buckets_in_the_middle():
    """A bucket without elements has no batch, shuffled or not."""
    arguments = {
        "sizes": torch.tensor([1, 21, 2, 22]),
        "bucket_boundaries": torch.tensor([0, 10, 20, 30]),
        "base_batch_sampler_individual_kwargs": {"batch_size": [2, 2, 2]},
    }
    assert [[0, 2], [1, 3]] == list(by_count(**arguments))
    shuffled = list(by_count(**arguments, shuffle=True, generator=seeded(1)))
    assert [[0, 2], [1, 3]] == sorted(sorted(batch) for batch in shuffled)
    assert [2, 0, 2] == by_count(**arguments).bucket_sizes.tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_are_lists_of_plain_ints(shuffle):
    """Batches are lists of Python's own int, whatever the base sampler."""
    for arguments in (
        BY_COUNT,
        {
            "base_batch_sampler_class": SizeAwareBatchSampler,
            "base_batch_sampler_shared_kwargs": {"sizeof": SIZES.numpy(), "max_total_size": 40},
            "base_batch_sampler_individual_kwargs": {},
        },
    ):
        batches = list(by_count(**arguments, shuffle=shuffle, generator=seeded(0)))
        assert {list} == {type(batch) for batch in batches}
        assert {int} == {type(index) for index in flat(batches)}


def test_batches_are_cut_lazily():
    """The first batch of a pass does not cost the sizes of all elements."""
    asked = []

    def sizeof(index):
        asked.append(index)
        return 1

    sampler = by_count(
        base_batch_sampler_class=SizeAwareBatchSampler,
        base_batch_sampler_shared_kwargs={"sizeof": sizeof, "max_total_size": 2},
        base_batch_sampler_individual_kwargs={},
        shuffle=True,
        generator=seeded(0),
    )
    next(iter(sampler))
    assert len(asked) <= 3


@pytest.mark.parametrize("shuffle", [True, False])
def test_length_is_the_sum_over_buckets(shuffle):
    """`len` is the number of batches of a pass."""
    sampler = by_count(shuffle=shuffle, generator=seeded(0))
    assert 8 == len(sampler)
    assert 8 == len(list(sampler))


def test_length_with_dropped_rests():
    """`len` takes the base samplers' word for what they drop."""
    sampler = by_count(
        base_batch_sampler_shared_kwargs={"drop_last": True},
        base_batch_sampler_individual_kwargs={"batch_size": [4, 4, 4]},
    )
    assert 5 == len(sampler)
    assert 5 == len(list(sampler))


def test_no_length_without_the_base_samplers_length():
    """A base sampler that has no length leaves none to the whole."""
    with pytest.raises(TypeError, match=r"len|sized"):
        len(BucketBatchSampler(SIZES, BOUNDARIES, Unsized))


@pytest.mark.parametrize("name", ["sizes", "bucket_boundaries"])
@pytest.mark.parametrize("value", [[0, 6, 25], np.array([0, 6, 25]), 5, None, "abc"])
def test_no_tensor(name, value):
    """Sizes and boundaries that are no tensors are of the wrong kind."""
    with pytest.raises(TypeError, match=name) as caught:
        by_count(**{name: value})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["sizes", "bucket_boundaries"])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(torch.tensor([[0, 6, 15, 25]]), id="2-D"),
        pytest.param(torch.tensor(5), id="0-D"),
        pytest.param(torch.tensor([0, 6, 15, 25], dtype=torch.complex64), id="complex"),
        pytest.param(torch.tensor([True, False]), id="bool"),
    ],
)
def test_wrong_dimension_or_type(name, value):
    """Sizes and boundaries must be one-dimensional and real, and bool is no number."""
    with pytest.raises(ValueError, match=name):
        by_count(**{name: value})


@pytest.mark.parametrize("boundaries", [[], [0], [0, 6, 6, 25], [25, 6, 0, 25], [0.5, 0.5]])
def test_boundaries_that_make_no_buckets(boundaries):
    """Fewer than two boundaries or equal ones make no buckets."""
    with pytest.raises(ValueError, match="bucket_boundaries"):
        by_count(bucket_boundaries=torch.tensor(boundaries))


@pytest.mark.parametrize("shuffle", [None, 0, 1, "yes", np.True_, torch.tensor(True)])
def test_shuffle_must_be_bool(shuffle):
    """Only True and False say whether to shuffle."""
    with pytest.raises(TypeError, match="shuffle"):
        by_count(shuffle=shuffle)


@pytest.mark.parametrize("base", [None, list, int, BatchSampler(range(3), 1, False), "BatchSampler", len])
def test_base_must_be_a_sampler_class(base):
    """The base must be a class of samplers; an instance is none."""
    with pytest.raises(TypeError, match="base_batch_sampler_class"):
        by_count(base_batch_sampler_class=base)


@pytest.mark.parametrize("name", ["base_batch_sampler_shared_kwargs", "base_batch_sampler_individual_kwargs"])
@pytest.mark.parametrize("value", [[("batch_size", 2)], "drop_last", 3, {1: [2, 3, 5]}, {None: 1}, {"a", "b"}])
def test_keyword_arguments_must_be_a_dict_with_string_keys(name, value):
    """Keyword arguments come in a dictionary whose keys are strings."""
    with pytest.raises(TypeError, match=name) as caught:
        by_count(**{name: value})
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("values", [[2, 3], [2, 3, 5, 7], [], iter([2, 3])])
def test_per_bucket_values_of_the_wrong_length(values):
    """There must be one value for each bucket."""
    with pytest.raises(ValueError, match="batch_size"):
        by_count(base_batch_sampler_individual_kwargs={"batch_size": values})


def test_per_bucket_value_that_is_no_iterable():
    """One number cannot be dealt to the buckets."""
    with pytest.raises((TypeError, ValueError), match="batch_size"):
        by_count(base_batch_sampler_individual_kwargs={"batch_size": 2})


@pytest.mark.parametrize(
    ("shared", "individual", "match"),
    [
        ({}, {}, "batch_size"),
        ({"drop_last": False}, {}, "batch_size"),
        ({"drop_last": False, "colour": 1}, {"batch_size": [2, 3, 5]}, "colour"),
    ],
)
def test_arguments_that_the_base_sampler_refuses(shared, individual, match):
    """Missing and unknown arguments give the base sampler's own TypeError."""
    with pytest.raises(TypeError, match=match):
        by_count(base_batch_sampler_shared_kwargs=shared, base_batch_sampler_individual_kwargs=individual)


@pytest.mark.parametrize("boundaries", [[25, 30], [-5, 0], [100, 200, 300]])
def test_nothing_in_range(boundaries):
    """If no element lies in a bucket there is nothing to serve."""
    with pytest.raises(RuntimeError, match="bucket_boundaries"):
        by_count(
            bucket_boundaries=torch.tensor(boundaries),
            base_batch_sampler_shared_kwargs={"drop_last": False, "batch_size": 2},
            base_batch_sampler_individual_kwargs={},
        )


def test_no_element_at_all():
    """An empty data set has nothing in range."""
    with pytest.raises(RuntimeError, match="bucket_boundaries"):
        by_count(sizes=torch.tensor([], dtype=torch.int64))


def test_some_out_of_range():
    """Elements in no bucket are counted in one warning and never served."""
    with pytest.warns(OutOfRangeWarning, match=r"\b7\b") as caught:
        sampler = BucketBatchSampler(
            SIZES,
            torch.tensor([3, 10, 21]),
            BatchSampler,
            {"batch_size": 100, "drop_last": False},
            shuffle=False,
        )
    assert 1 == len(caught)
    assert issubclass(OutOfRangeWarning, UserWarning)
    assert 18 == sampler.num_samples
    assert [list(range(3, 10)), list(range(10, 21))] == list(sampler)


def test_pickles():
    """A copy through pickle goes on exactly where the original stands."""
    sampler = by_count(shuffle=True, generator=seeded(0))
    assert FIRST_PASS == list(sampler)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    assert SECOND_PASS == list(copy)
    assert SECOND_PASS == list(sampler)


def fastest(work, repeats=5):
    """Return the least time in seconds that `work` took."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def million(buckets):
    """Return a sampler over a million sizes in so many buckets, about 40 elements a batch."""
    sizes = np.random.default_rng(0).integers(0, 1000, 1_000_000)
    return BucketBatchSampler(
        torch.from_numpy(sizes),
        torch.linspace(0, 1000, buckets + 1),
        SizeAwareBatchSampler,
        {"sizeof": np.full(1_000_000, 50), "max_total_size": 2000},
        generator=seeded(0),
    )


@pytest.mark.parametrize(("buckets", "factor"), [(100, 4), (1000, 15)])
def test_speed_of_a_pass(buckets, factor):
    """A pass over a million elements costs a small multiple of turning their indices into a list."""
    sampler, indices = million(buckets), torch.arange(1_000_000)
    assert 1_000_000 == sum(map(len, sampler))
    assert fastest(lambda: [None for _ in sampler]) <= factor * fastest(indices.tolist)


def test_memory_of_bucket_indices():
    """Between passes an element's index takes eight bytes at most, not a Python int."""
    count = 200_000
    sizes = torch.from_numpy(np.random.default_rng(0).integers(0, 100, count))
    tracemalloc.start()
    try:
        sampler = BucketBatchSampler(
            sizes,
            torch.arange(101),
            BatchSampler,
            {"batch_size": 50, "drop_last": False},
            generator=seeded(0),
        )
        made = tracemalloc.get_traced_memory()[0]
        served = sum(map(len, sampler))
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert count == served
    assert made <= 8 * count + 400_000
    assert kept <= 8 * count + 400_000
