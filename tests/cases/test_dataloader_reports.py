"""What users reported about samplers in a DataLoader, one situation a test."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader

from bionemo.size_aware_batching import plan_batches
from bionemo.size_aware_batching.sampler import BucketBatchSampler, SizeAwareBatchSampler, size_aware_batching
from bionemo.size_aware_batching.utils import create_buckets

COUNT = 25
SIZES = torch.arange(COUNT, device="cpu")
BOUNDARIES = torch.tensor([0, 6, 15, 25], device="cpu")


class Strict:
    """A map-style data set that takes nothing but Python's own int for an index."""

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        assert int is type(index)
        return index


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def size_aware(sampler=range(COUNT), sizeof=SIZES):
    return SizeAwareBatchSampler(sampler, sizeof, 40)


def buckets_of_counts(generator=None, shuffle=True):
    return BucketBatchSampler(
        SIZES,
        BOUNDARIES,
        BatchSampler,
        {"drop_last": False},
        {"batch_size": [2, 3, 5]},
        shuffle=shuffle,
        generator=generator,
    )


def buckets_of_sizes(generator=None, shuffle=True):
    return BucketBatchSampler(
        SIZES,
        BOUNDARIES,
        SizeAwareBatchSampler,
        {"sizeof": SIZES, "max_total_size": 40},
        shuffle=shuffle,
        generator=generator,
    )


def seeded():
    return torch.Generator(device="cpu").manual_seed(0)


EVERY_SAMPLER = pytest.mark.parametrize(
    "make",
    [
        pytest.param(size_aware, id="size-aware"),
        pytest.param(lambda: buckets_of_counts(seeded()), id="buckets of counts"),
        pytest.param(lambda: buckets_of_sizes(seeded()), id="buckets of sizes"),
        pytest.param(lambda: buckets_of_sizes(shuffle=False), id="buckets in order"),
    ],
)


@pytest.fixture
def meta_default():
    """Make "meta" the default device for the time of a test."""
    torch.set_default_device("meta")
    yield
    torch.set_default_device(None)


@EVERY_SAMPLER
def test_f1_data_set_gets_plain_ints(make):
    """Numpy's integers reached the data set and broke those that look up files or rows by index."""
    loader = DataLoader(Strict(), batch_sampler=make(), collate_fn=list)
    assert list(make()) == list(loader)


@pytest.mark.parametrize(
    "order", [np.arange(COUNT), np.arange(COUNT, dtype=np.uint8), torch.arange(COUNT, device="cpu")]
)
@pytest.mark.parametrize(
    "sizeof",
    [SIZES, SIZES.numpy(), SIZES.tolist(), SIZES.tolist().__getitem__],
    ids=["tensor", "ndarray", "list", "call"],
)
def test_f1_data_set_gets_plain_ints_from_array_samplers(order, sizeof):
    """An array as the underlying sampler handed its scalars on to the data set."""
    loader = DataLoader(Strict(), batch_sampler=size_aware(order, sizeof), collate_fn=list)
    assert list(size_aware()) == list(loader)


def test_f1_plan_gives_plain_ints():
    """A plan keeps its indices in an array, and still its batches are lists of int."""
    loader = DataLoader(Strict(), batch_sampler=plan_batches(SIZES.numpy(), budget=40), collate_fn=list)
    assert list(size_aware()) == list(loader)


@EVERY_SAMPLER
def test_f1_loader_has_the_samplers_length(make):
    """A loader that cannot tell its length leaves progress bars and schedulers without one."""
    sampler = make()
    assert len(list(make())) == len(DataLoader(Strict(), batch_sampler=sampler))


@pytest.mark.usefixtures("meta_default")
def test_f2_size_aware_under_a_meta_default_device():
    """With a default device that holds no data, tensors made on the way had no values."""
    expected = [[0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12, 13, 14], [15, 16], [17, 18], [19, 20]]
    expected += [[21], [22], [23], [24]]
    assert expected == list(size_aware())
    assert len(expected) == len(size_aware())
    assert expected == list(size_aware(sizeof=SIZES.tolist()))
    assert expected == list(size_aware(torch.arange(COUNT, device="cpu"), SIZES.numpy()))
    assert expected == list(size_aware_batching(range(COUNT), SIZES, 40))


@pytest.mark.usefixtures("meta_default")
def test_f2_buckets_under_a_meta_default_device():
    """With a default device other than the CPU, a CPU generator was refused."""
    sampler = buckets_of_counts(seeded())
    assert [[24, 17, 16, 22, 19], [2, 5], [12, 10, 11], [3, 0]] == list(sampler)[:4]
    assert [[14, 9, 13], [23, 16, 20, 21, 15], [5, 0]] == list(sampler)[:3]
    assert [[24], [2, 5, 3, 0, 1, 4], [12, 10, 11, 7]] == list(buckets_of_sizes(seeded()))[:3]
    assert [[0, 1], [2, 3], [4, 5]] == list(buckets_of_counts(shuffle=False))[:3]
    assert [6, 9, 10] == sampler.bucket_sizes.tolist()


@pytest.mark.usefixtures("meta_default")
def test_f2_buckets_without_a_generator_under_a_meta_default_device():
    """The generator that a sampler makes for itself must be one that gives numbers."""
    assert list(range(COUNT)) == sorted(flat(buckets_of_counts()))


@pytest.mark.usefixtures("meta_default")
def test_f2_create_buckets_under_a_meta_default_device():
    """Boundaries that are computed under another default device have values all the same."""
    buckets = create_buckets(torch.arange(20, device="cpu"), max_width=10, min_bucket_count=5)
    assert [0, 5, 10, 15, 20] == buckets.bucket_boundaries.tolist()
    assert [5, 5, 5, 5] == buckets.bucket_sizes.tolist()


@pytest.mark.usefixtures("meta_default")
def test_f2_plan_under_a_meta_default_device():
    """A plan has nothing to do with the default device."""
    assert [[0, 1], [2]] == list(plan_batches([20, 20, 20], budget=40))
    plan = plan_batches(SIZES.numpy(), budget=40, strategy="by_size", shuffle=True, seed=1)
    assert list(range(COUNT)) == sorted(flat(plan))


@EVERY_SAMPLER
def test_f3_sampler_pickles_in_the_middle_of_training(make):
    """A sampler that holds a generator could not be sent to another process."""
    sampler = make()
    list(sampler)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    assert list(sampler) == list(copy)


def test_f3_sizes_that_move_to_shared_memory():
    """Spawning workers moved the length tensor to shared memory, and the sampler read freed memory."""
    lengths = torch.full((COUNT,), 10)
    sampler = SizeAwareBatchSampler(range(COUNT), lengths, 40)
    buckets = BucketBatchSampler(
        lengths,
        torch.tensor([0, 11]),
        SizeAwareBatchSampler,
        {"sizeof": lengths, "max_total_size": 40},
        shuffle=False,
    )
    expected = [list(range(start, min(start + 4, COUNT))) for start in range(0, COUNT, 4)]
    lengths.share_memory_()
    # Takes the place that the lengths had before.
    others = [torch.zeros(COUNT, dtype=torch.int64) for _ in range(50)]
    assert 50 == len(others)
    assert expected == list(sampler)
    assert expected == list(buckets)


def test_f3_spawned_workers_serve_in_order():
    """Two spawned workers load what the sampler in the main process deals out."""
    loader = DataLoader(
        range(COUNT),
        batch_sampler=buckets_of_sizes(seeded()),
        collate_fn=list,
        num_workers=2,
        multiprocessing_context="spawn",
    )
    assert list(buckets_of_sizes(seeded())) == list(loader)


def test_f3_samplers_travel_to_spawned_workers_and_back():
    """A data set that holds samplers with their generators could not be sent to spawned workers."""
    samplers = [size_aware(), buckets_of_counts(seeded()), buckets_of_sizes(seeded())]
    expected = [list(size_aware()), list(buckets_of_counts(seeded())), list(buckets_of_sizes(seeded()))]
    loader = DataLoader(samplers, batch_size=1, collate_fn=list, num_workers=2, multiprocessing_context="spawn")
    assert expected == [list(sampler) for sampler in flat(loader)]
