"""What users reported about limits and budgets, one situation a test."""

import itertools

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching import plan_batches
from bionemo.size_aware_batching.errors import OversizedError, SkippedElementsWarning
from bionemo.size_aware_batching.sampler import SizeAwareBatchSampler, size_aware_batching

STRATEGIES = pytest.mark.parametrize("strategy", ["in_order", "by_size"])
COSTS = pytest.mark.parametrize("cost", ["sum", "padded"])
KINDS = {
    "callable": lambda sizes: sizes.__getitem__,
    "list": lambda sizes: sizes,
    "dict": lambda sizes: dict(enumerate(sizes)),
    "ndarray": np.array,
    "tensor": lambda sizes: torch.from_numpy(np.array(sizes)),
}
EVERY_KIND = pytest.mark.parametrize("kind", sorted(KINDS))


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def sampled(sizes, kind, limit, **loggers):
    """Return the sampler's batches of all elements in order."""
    return list(SizeAwareBatchSampler(range(len(sizes)), KINDS[kind](sizes), limit, **loggers))


@EVERY_KIND
def test_b4_sampler_takes_an_element_equal_to_the_limit(kind):
    """An element of exactly the limit was given no batch at all."""
    assert [[0]] == sampled([20], kind, 20)
    assert [[0], [1], [2]] == sampled([20, 20, 20], kind, 20)


def test_b4_generator_takes_an_element_equal_to_the_limit():
    """An element of exactly the limit was given no batch by the generator either."""
    assert [[20]] == list(size_aware_batching([20], int, 20))


@STRATEGIES
@COSTS
@pytest.mark.parametrize("oversized", ["raise", "skip", "alone"])
def test_b4_plan_takes_an_element_equal_to_the_budget(strategy, cost, oversized):
    """An element of exactly the budget is not oversized under any policy."""
    plan = plan_batches([20], budget=20, cost=cost, strategy=strategy, oversized=oversized)
    assert [[0]] == list(plan)
    assert [] == list(plan.skipped)
    assert [20] == plan.cost.tolist()


@EVERY_KIND
def test_b5_sampler_names_an_element_just_above_the_limit(kind):
    """An element one above the limit disappeared without a word that says which, how large and over what."""
    messages = []
    assert [[0], [2]] == sampled([17, 21, 18], kind, 20, warn_logger=messages.append)
    assert [True] * 3 == [word in messages[0] for word in ("1", "21", "20")]


@EVERY_KIND
def test_b5_sampler_counts_without_a_logger(kind):
    """An element one above the limit disappeared in silence where no logger was given."""
    with pytest.warns(SkippedElementsWarning, match=r"\b1\b"):
        assert [[0], [2]] == sampled([17, 21, 18], kind, 20)


@STRATEGIES
@COSTS
def test_b5_plan_raises_by_default(strategy, cost):
    """A plan refuses an element one above the budget and says which, how large and over what."""
    with pytest.raises(OversizedError, match=r"\b1\b.*\b21\b.*\b20\b"):
        plan_batches([17, 21, 18], budget=20, cost=cost, strategy=strategy)


@STRATEGIES
@COSTS
def test_b5_plan_skips_on_request(strategy, cost):
    """With "skip" the element is listed and counted in one warning, and no batch is empty."""
    with pytest.warns(SkippedElementsWarning, match=r"\b1\b") as caught:
        plan = plan_batches([17, 21, 18], budget=20, cost=cost, strategy=strategy, oversized="skip")
    assert 1 == len(caught)
    assert [1] == list(plan.skipped)
    assert [[0], [2]] == sorted(plan)


@STRATEGIES
@COSTS
def test_b5_plan_leaves_an_oversized_element_alone_on_request(strategy, cost):
    """With "alone" the element has a batch of its own and one warning tells of it."""
    with pytest.warns(UserWarning, match=r"\b1\b") as caught:
        plan = plan_batches([1, 21, 2], budget=20, cost=cost, strategy=strategy, oversized="alone")
    assert 1 == len(caught)
    assert [] == list(plan.skipped)
    assert [1] in list(plan)
    assert [0, 1, 2] == sorted(flat(plan))


@EVERY_KIND
@pytest.mark.parametrize("sentinel", [2**63 - 1, 2**63 - 2, 2**62])
def test_b6_sampler_meets_a_sentinel(kind, sentinel):
    """The largest 64-bit integer stood for "unknown", wrapped in the running sum and let everything fit."""
    messages = []
    assert [[0, 2]] == sampled([1, sentinel, 1], kind, 1e8, warn_logger=messages.append)
    assert str(sentinel) in messages[0]
    assert [[0, 1], [2]] == sampled([1, sentinel, sentinel], kind, sentinel + 1)


@STRATEGIES
@COSTS
@pytest.mark.parametrize("sizes", [[1, 2**63 - 1], np.array([1, 2**63 - 1])])
def test_b6_plan_meets_a_sentinel(strategy, cost, sizes):
    """A plan handles the largest 64-bit integer by its policy and nothing wraps."""
    with pytest.raises(OversizedError, match=r"\b1\b.*9223372036854775807"):
        plan_batches(sizes, budget=1e8, cost=cost, strategy=strategy)
    with pytest.warns(SkippedElementsWarning, match=r"\b1\b"):
        skipping = plan_batches(sizes, budget=1e8, cost=cost, strategy=strategy, oversized="skip")
    assert ([[0]], [1]) == (list(skipping), list(skipping.skipped))
    with pytest.warns(UserWarning, match=r"\b1\b"):
        alone = plan_batches(sizes, budget=1e8, cost=cost, strategy=strategy, oversized="alone")
    assert [[0], [1]] == sorted(alone)


@pytest.mark.parametrize(
    ("sizes", "limit", "batches"),
    [
        pytest.param(np.array([200, 100], dtype=np.uint8), 250, [[0], [1]], id="uint8 over"),
        pytest.param(np.array([200, 100], dtype=np.uint8), 300, [[0, 1]], id="uint8 equal"),
        pytest.param(np.array([2**30] * 3, dtype=np.int32), 2**31, [[0, 1], [2]], id="int32 over"),
        pytest.param(np.array([2**30] * 3, dtype=np.int32), 3 * 2**30, [[0, 1, 2]], id="int32 equal"),
        pytest.param(np.array([2**30] * 3, dtype=np.int32), 3 * 2**30 - 1, [[0, 1], [2]], id="int32 one less"),
    ],
)
def test_b10_small_integer_types_wrap(sizes, limit, batches):
    """Sums of sizes in a small integer type wrapped around and stayed below any limit."""
    everything = range(len(sizes))
    assert batches == list(SizeAwareBatchSampler(everything, sizes, limit))
    assert batches == list(SizeAwareBatchSampler(everything, torch.from_numpy(sizes), limit))
    assert batches == list(SizeAwareBatchSampler(everything, lambda index: sizes[index], limit))
    assert batches == list(size_aware_batching(everything, sizes, limit))
    plan = plan_batches(sizes, budget=limit)
    assert batches == list(plan)
    assert [sum(sizes.tolist()[index] for index in batch) for batch in batches] == plan.cost.tolist()
    by_size = plan_batches(sizes, budget=limit, cost="padded", strategy="by_size")
    assert list(everything) == sorted(flat(by_size))
    assert [max(sizes.tolist()[index] for index in batch) * len(batch) for batch in by_size] == by_size.cost.tolist()
    assert max(by_size.cost.tolist()) <= limit


FLOAT_SUMS = pytest.mark.parametrize(
    ("sizes", "limit", "batches"),
    [
        pytest.param([0.1, 0.2], 0.3, [[0], [1]], id="0.1 + 0.2 over 0.3"),
        pytest.param([1.1, 2.2], 3.3, [[0], [1]], id="1.1 + 2.2 over 3.3"),
        pytest.param([0.1, 0.2], 0.1 + 0.2, [[0, 1]], id="the sum itself"),
        pytest.param([0.25, 0.5], 0.75, [[0, 1]], id="exact"),
        pytest.param([0.1] * 10, 1.0, [list(range(10))], id="ten tenths"),
    ],
)


@EVERY_KIND
@FLOAT_SUMS
def test_b11_sampler_adds_floats(kind, sizes, limit, batches):
    """Sums of floats are off by a rounding; the running double precision sum is what is held to the limit."""
    assert batches == sampled(sizes, kind, limit)


@FLOAT_SUMS
def test_b11_plan_adds_floats(sizes, limit, batches):
    """A plan holds the same sums of floats to the budget as the sampler."""
    plan = plan_batches(sizes, budget=limit)
    assert batches == list(plan)
    assert max(plan.cost.tolist()) <= limit


@FLOAT_SUMS
def test_b11_ranks_agree_on_sums_of_floats(sizes, limit, batches):
    """Ranks that cut at different places by a rounding would wait for each other for ever."""
    plans = [plan_batches(kind(sizes), budget=limit) for kind in (list, np.array)]
    assert batches == list(plans[0])
    assert batches == list(plans[1])


BAD_SIZES = pytest.mark.parametrize(
    ("sizes", "index"),
    [
        pytest.param([1.0, float("nan"), 1.0], 1, id="nan"),
        pytest.param([-5, 3], 0, id="negative"),
        pytest.param([float("inf"), 1.0], 0, id="inf"),
        pytest.param([1.0, 2.0, 3.0, float("-inf")], 3, id="minus inf"),
    ],
)


@EVERY_KIND
@BAD_SIZES
def test_b12_sampler_refuses_what_is_no_size(kind, sizes, index):
    """NaN is never over a limit and a negative size lowers the sum; with either, batches grew for ever."""
    with pytest.raises(ValueError, match=rf"\b{index}\b"):
        sampled(sizes, kind, 100)


@STRATEGIES
@COSTS
@pytest.mark.parametrize("oversized", ["raise", "skip", "alone"])
@BAD_SIZES
def test_b12_plan_refuses_what_is_no_size(strategy, cost, oversized, sizes, index):
    """A plan names the element whose size is no size, under every policy."""
    with pytest.raises(ValueError, match=rf"\b{index}\b") as caught:
        plan_batches(sizes, budget=100, cost=cost, strategy=strategy, oversized=oversized)
    assert not isinstance(caught.value, OversizedError)


@EVERY_KIND
def test_b12_sampler_of_nothing(kind):
    """An empty data set gave one empty batch."""
    assert [] == sampled([], kind, 100)


@STRATEGIES
@COSTS
def test_b12_plan_of_nothing(strategy, cost):
    """An empty data set has a plan without batches."""
    plan = plan_batches([], budget=100, cost=cost, strategy=strategy)
    assert (0, [], []) == (len(plan), list(plan), list(plan.skipped))


@EVERY_KIND
def test_b12_sampler_of_zeros(kind):
    """Sizes of zero never reach the limit and share one batch."""
    assert [[0, 1, 2]] == sampled([0, 0, 0], kind, 100)


@COSTS
def test_b12_plan_of_zeros(cost):
    """Sizes of zero are bounded by the number of items alone."""
    assert [[0, 1, 2]] == list(plan_batches([0, 0, 0], budget=100, cost=cost))
    assert [[0, 1], [2]] == list(plan_batches([0, 0, 0], budget=100, cost=cost, max_items=2))
