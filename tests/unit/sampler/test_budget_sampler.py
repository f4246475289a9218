"""`BudgetBatchSampler`: epochs, length, and its place in a DataLoader."""

import itertools
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Sampler

from bionemo.size_aware_batching import BudgetBatchSampler, MemoryModel, PaddedCost, plan_batches
from bionemo.size_aware_batching.errors import OversizedError, SkippedElementsWarning, SuspiciousSizesWarning

SIZES = np.random.default_rng(2).integers(1, 50, 300)
SHAPES = [(items, longest, items * longest) for items in (1, 5, 9) for longest in (1, 8, 40)]
MODEL = MemoryModel().fit(SHAPES, [items * longest + 9 for items, longest, _ in SHAPES])
SETTINGS = {"budget": 200, "cost": "padded", "strategy": "by_size", "shuffle": True, "seed": 4}


def planned(epoch):
    """Return the batches that a pass over an epoch has to serve."""
    return list(plan_batches(SIZES, **SETTINGS, epoch=epoch))


def make(**changes):
    return BudgetBatchSampler(SIZES, **(SETTINGS | changes))


def test_passes_serve_one_epoch_after_the_other():
    """Without set_epoch each whole pass serves the next epoch."""
    sampler = make()
    assert [planned(0), planned(1), planned(2)] == [list(sampler) for _ in range(3)]
    assert 3 == sampler.epoch


def test_set_epoch():
    """The next pass serves the epoch that was set, forwards, backwards and again."""
    sampler = make()
    for epoch in (5, 0, 0, 2**40, 5):
        sampler.set_epoch(epoch)
        assert epoch == sampler.epoch
        assert planned(epoch) == list(sampler.plan)
        assert planned(epoch) == list(sampler)
    assert 6 == sampler.epoch


def test_set_epoch_takes_integers_of_numpy():
    """An epoch may be any integer, and is kept as a plain one."""
    sampler = make()
    sampler.set_epoch(np.int64(3))
    assert (3, int) == (sampler.epoch, type(sampler.epoch))


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), (1.0, TypeError), (None, TypeError), (True, TypeError)])
def test_set_epoch_to_what_is_none(epoch, error):
    """A wrong epoch is an error that names it and changes nothing."""
    sampler = make()
    with pytest.raises(error, match="`epoch`"):
        sampler.set_epoch(epoch)
    assert 0 == sampler.epoch


def test_abandoned_pass_does_not_advance():
    """A pass that is given up leaves the epoch, so that the next begins it again."""
    sampler = make()
    begun = iter(sampler)
    assert planned(0)[:2] == [next(begun), next(begun)]
    del begun
    assert planned(0) == list(sampler)


def test_asking_for_an_iterator_changes_nothing():
    """Iterators of one epoch are independent and the epoch ends once."""
    sampler = make()
    passes = [iter(sampler), iter(sampler)]
    assert 0 == sampler.epoch
    assert [(batch, batch) for batch in planned(0)] == list(zip(*passes, strict=True))
    assert 1 == sampler.epoch
    assert planned(1) == list(sampler)


def test_set_epoch_in_the_middle_of_a_pass():
    """A pass that has begun is served to its end, and its end does not undo set_epoch."""
    sampler = make()
    begun = iter(sampler)
    first = next(begun)
    sampler.set_epoch(7)
    assert planned(0) == [first, *begun]
    assert 7 == sampler.epoch
    assert planned(7) == list(sampler)


@pytest.mark.parametrize("strategy", ["in_order", "by_size", "best_fit"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_length_is_exact_and_constant(strategy, shuffle):
    """`len` is the number of batches in every epoch, known before any."""
    sampler = make(strategy=strategy, cost="sum", shuffle=shuffle)
    lengths = [len(sampler)]
    for _ in range(5):
        served = list(sampler)
        assert list(range(300)) == sorted(itertools.chain.from_iterable(served))
        lengths += [len(served), len(sampler)]
    assert [lengths[0]] * 11 == lengths


def test_without_shuffle_every_epoch_is_the_same():
    """Without shuffle there is one plan, made once."""
    sampler = make(shuffle=False)
    plan = sampler.plan
    assert list(plan) == list(sampler)
    assert list(plan) == list(sampler)
    assert plan is sampler.plan
    assert 2 == sampler.epoch


def test_plan_of_the_current_epoch():
    """`plan` is that of the epoch that comes next, and kept until the epoch changes."""
    sampler = make()
    assert sampler.plan is sampler.plan
    assert planned(0) == list(sampler.plan)
    list(sampler)
    assert planned(1) == list(sampler.plan)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "in_order"},
        {"window": 40},
        {"uniform": True, "items_multiple_of": 2},
        {"max_items": 3, "seed": 9},
        {"cost": PaddedCost(8, 2), "budget": 300},
        {"cost": MODEL},
    ],
    ids="-".join,
)
def test_every_setting_reaches_the_plan(changes):
    """The sampler plans with the settings that it was given."""
    sampler = make(**changes)
    assert list(plan_batches(SIZES, **(SETTINGS | changes))) == list(sampler)
    assert list(plan_batches(SIZES, **(SETTINGS | changes), epoch=1)) == list(sampler)


def test_several_measures():
    """Sizes may have a column for each measure, with a budget each."""
    sizes = np.stack([SIZES, SIZES[::-1]], 1)
    sampler = BudgetBatchSampler(sizes, budget=[200, 150])
    assert list(plan_batches(sizes, budget=[200, 150])) == list(sampler)


@pytest.mark.parametrize(
    "sizes", [SIZES.tolist(), torch.from_numpy(SIZES), SIZES.astype(np.uint8), SIZES.astype(">f4")]
)
def test_kinds_of_sizes(sizes):
    """Lists, tensors and arrays of any type are planned alike."""
    assert planned(0) == list(BudgetBatchSampler(sizes, **SETTINGS))


def test_tensor_that_changes_later():
    """A tensor is copied: what becomes of it does not matter."""
    lengths = torch.from_numpy(SIZES.copy())
    sampler = BudgetBatchSampler(lengths, **SETTINGS)
    lengths.zero_()
    assert [planned(0), planned(1)] == [list(sampler), list(sampler)]


@pytest.mark.parametrize("tensor", [torch.ones(4, requires_grad=True), torch.ones(4, dtype=torch.bfloat16)])
def test_tensors_that_numpy_lacks(tensor):
    """Only a tensor's values count, not its gradient or a type that numpy lacks."""
    assert [[0, 1], [2, 3]] == list(BudgetBatchSampler(tensor, budget=2))


def test_pickle():
    """A sampler that was sent to another process goes on where the first stands."""
    sampler = make()
    list(sampler)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301
    assert (1, len(sampler), repr(sampler)) == (copy.epoch, len(copy), repr(copy))
    assert [planned(1), planned(2)] == [list(copy), list(copy)]
    assert 1 == sampler.epoch


def test_repr():
    """The repr shows how the sampler was made, without the sizes."""
    text = repr(make())
    assert text.startswith("BudgetBatchSampler(300 sizes, budget=200, cost='padded', strategy='by_size', ")
    assert text.endswith("shuffle=True, seed=4, accumulate=1, fill='raise')")


def test_is_a_batch_sampler_of_torch():
    """Frameworks recognise it as torch's."""
    assert isinstance(make(), Sampler)


def test_in_a_loader():
    """A loader serves an epoch a pass, and knows its length."""
    loader = DataLoader(range(300), batch_sampler=make(), collate_fn=list)
    assert len(planned(0)) == len(loader)
    assert [planned(0), planned(1)] == [list(loader), list(loader)]


def test_in_a_loader_with_workers():
    """With two spawned workers that live on, epochs are served as without."""
    loader = DataLoader(
        range(300),
        batch_sampler=make(),
        collate_fn=list,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    assert [planned(0), planned(1)] == [list(loader), list(loader)]


@pytest.mark.parametrize("policy", ["skip", "alone"])
def test_oversized_elements_are_told_of_once(policy):
    """One warning at construction, at the user's line; none in any epoch."""
    with pytest.warns(SkippedElementsWarning, match="1 of 4") as caught:
        sampler = BudgetBatchSampler([3, 30, 4, 5], budget=9, oversized=policy, shuffle=True)
    assert 1 == len(caught)
    assert [[1]] * (policy == "skip") == [[index] for index in sampler.plan.skipped]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passes = [list(sampler) for _ in range(4)]
    assert {len(sampler)} == {len(batches) for batches in passes}


def test_suspicious_sizes_are_told_of_once():
    """Sizes that are all 1 are pointed out at construction and not again."""
    with pytest.warns(SuspiciousSizesWarning, match="all 9 sizes are 1") as caught:
        sampler = BudgetBatchSampler([1] * 9, budget=3, strategy="by_size", shuffle=True)
    assert 1 == len(caught)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passes = [list(sampler) for _ in range(4)]
    assert [len(sampler)] * 4 == [len(batches) for batches in passes]


@pytest.mark.parametrize("call", [plan_batches, BudgetBatchSampler])
@pytest.mark.parametrize(
    ("sizes", "settings"), [([1] * 9, {"strategy": "by_size"}), ([3, 30], {"oversized": "skip"})], ids=["all 1", "over"]
)
def test_warnings_point_at_the_caller(call, sizes, settings):
    """A warning gives the line that made the plan or the sampler, not one of the library."""
    with pytest.warns(UserWarning, match="all 9|1 of 2") as caught:
        call(sizes, budget=9, **settings)
    assert [__file__] == [warning.filename for warning in caught]


def test_errors_come_at_construction():
    """What is wrong shows when the sampler is made, not in the first epoch."""
    with pytest.raises(OversizedError, match=r"index 1 of size 30 costs 30 alone, over the budget 9"):
        BudgetBatchSampler([3, 30], budget=9)
    with pytest.raises(ValueError, match="`strategy`"):
        make(strategy="random")
    with pytest.raises(TypeError, match="`shuffle`"):
        make(shuffle=1)
    with pytest.raises(ValueError, match="dense tensor"):
        BudgetBatchSampler(torch.ones(3, device="meta"), budget=9)


def test_nothing_to_serve():
    """No elements are no batches, epoch after epoch."""
    sampler = BudgetBatchSampler([], budget=9, shuffle=True)
    assert (0, [], []) == (len(sampler), list(sampler), list(sampler))
    assert 2 == sampler.epoch
