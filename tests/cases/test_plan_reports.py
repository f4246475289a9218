"""What users reported about plans: limits, order, memory and pauses, one situation a test."""

import itertools
import json
import os
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from bionemo.size_aware_batching import BudgetBatchSampler, PaddedCost, plan_batches
from bionemo.size_aware_batching.errors import OversizedError, SkippedElementsWarning, SuspiciousSizesWarning

STRATEGIES = pytest.mark.parametrize("strategy", ["in_order", "by_size", "best_fit"])
SHUFFLE = pytest.mark.parametrize("shuffle", [False, True])
MANY = 10_000_000


def flat(batches):
    return list(itertools.chain.from_iterable(batches))


def run(script, **environment):
    """Run a script in a fresh interpreter and return what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_b1_padded_tensor_does_not_fit_where_the_sum_does():
    """The sum of the sizes was within budget, and the padded tensor was not."""
    sizes = [100, 10, 10, 10, 100]
    assert [[0], [1, 2, 3], [4]] == list(plan_batches(sizes, budget=150, cost="padded"))
    assert [[0, 1, 2, 3], [4]] == list(plan_batches(sizes, budget=150))


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
def test_b2_one_longer_element_pads_all_others(strategy):
    """Of 35 elements whose sum fits, one is longer, and with it all take more than the budget."""
    sizes = [8.45] * 34 + [11.4]
    plan = plan_batches(sizes, budget=300, cost="padded", strategy=strategy)
    assert [list(range(34)), [34]] == list(plan)
    assert pytest.approx([34 * 8.45, 11.4]) == plan.cost.tolist()
    assert [list(range(35))] == list(plan_batches(sizes, budget=300))


@STRATEGIES
@SHUFFLE
@pytest.mark.parametrize("seed", range(8))
def test_b3_batches_do_not_exceed_the_limit(strategy, shuffle, seed):
    """An element was appended before the limit was tested, so that every batch was over it."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 100, 500)
    plan = plan_batches(sizes, budget=100 + seed, strategy=strategy, shuffle=shuffle, seed=seed)
    assert list(range(500)) == sorted(flat(plan))
    assert [] == [batch for batch in plan if sizes[batch].sum() > 100 + seed]


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
@SHUFFLE
@pytest.mark.parametrize("seed", range(4))
def test_b3_padded_batches_do_not_exceed_the_limit(strategy, shuffle, seed):
    """A batch is within budget also by what it is padded to."""
    sizes = np.random.default_rng(seed).integers(1, 100, 500)
    plan = plan_batches(sizes, budget=700, cost="padded", strategy=strategy, shuffle=shuffle, seed=seed)
    assert list(range(500)) == sorted(flat(plan))
    assert [] == [batch for batch in plan if sizes[batch].max() * len(batch) > 700]


@SHUFFLE
@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
def test_b7_lengths_are_rounded_up_for_the_kernels(strategy, shuffle):
    """The collator rounded lengths up to 64 after the batches had been made for shorter ones."""
    sizes = np.random.default_rng(3).integers(1, 500, 300)
    plan = plan_batches(sizes, budget=2048, cost=PaddedCost(multiple_of=64), strategy=strategy, shuffle=shuffle)
    rounded = [len(batch) * (-(-int(sizes[batch].max()) // 64) * 64) for batch in plan]
    assert rounded == plan.cost.tolist()
    assert max(rounded) <= 2048
    assert list(range(300)) == sorted(flat(plan))


def test_b7_rounding_and_special_tokens_decide():
    """Two elements of 63 fit as they are, not with two tokens more and rounded to 64."""
    assert [[0, 1]] == list(plan_batches([63, 63], budget=128, cost=PaddedCost(multiple_of=64)))
    assert [[0], [1]] == list(plan_batches([63, 63], budget=128, cost=PaddedCost(multiple_of=64, extra=2)))
    with pytest.raises(OversizedError, match="index 0 of size 127 costs 192 alone"):
        plan_batches([127], budget=128, cost=PaddedCost(multiple_of=64, extra=2))


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
@pytest.mark.parametrize("cost", ["sum", "padded"])
@SHUFFLE
def test_b8_two_limits(strategy, cost, shuffle):
    """Nodes were within their limit, and edges were not."""
    sizes = [(3, 9), (3, 1), (3, 1)]
    plan = plan_batches(sizes, budget=(9, 10), cost=cost, strategy=strategy, shuffle=shuffle)
    assert [0, 1, 2] == sorted(flat(plan))
    totals = [np.sum([sizes[index] for index in batch], axis=0).tolist() for batch in plan]
    assert [] == [total for total in totals if total[0] > 9 or total[1] > 10]
    assert [] == [costs for costs in plan.cost.tolist() if costs[0] > 9 or costs[1] > 10]


def test_b8_two_limits_in_order():
    """The batch closes when either limit would be passed."""
    assert [[0, 1], [2]] == list(plan_batches([(3, 9), (3, 1), (3, 1)], budget=(9, 10)))
    assert [[0], [1, 2]] == list(plan_batches([(3, 9), (3, 1), (3, 1)], budget=(9, 10), cost="padded"))


@STRATEGIES
@SHUFFLE
def test_b9_budget_of_items(strategy, shuffle):
    """Batches of many small elements had more of them than the model takes."""
    sizes = [1] * 50 + [2] * 50
    plan = plan_batches(sizes, budget=1000, strategy=strategy, max_items=4, shuffle=shuffle)
    assert 4 == plan.items.max()
    assert list(range(100)) == sorted(flat(plan))


@SHUFFLE
def test_b13_sevens_in_bins_of_eight(shuffle):
    """Eight elements of 7 need eight batches of 8, however they are packed."""
    plan = plan_batches([7] * 8, budget=8, strategy="best_fit", shuffle=shuffle)
    assert [[index] for index in range(8)] == sorted(plan)


@pytest.mark.parametrize("strategy", ["by_size", "best_fit"])
@pytest.mark.parametrize("size", [0, 1])
def test_b14_sizes_of_the_wrong_thing(strategy, size):
    """The length of a dict's keys was taken for the element's, and sorting did nothing."""
    with pytest.warns(SuspiciousSizesWarning, match=f"all 20 sizes are {size}") as caught:
        plan = plan_batches([size] * 20, budget=5, strategy=strategy)
    assert 1 == len(caught)
    assert list(range(20)) == sorted(flat(plan))


@pytest.mark.parametrize("sizes", [[2] * 20, [0, 1] * 10, [1], []])
def test_b14_sizes_that_may_be_right(sizes):
    """Equal sizes other than 0 and 1, and a single element, say nothing."""
    assert list(range(len(sizes))) == sorted(flat(plan_batches(sizes, budget=5, strategy="by_size")))


def test_b14_in_order_needs_no_sizes():
    """In order, elements that all count 1 are a fixed batch size, which is meant."""
    assert [[0, 1, 2], [3, 4]] == list(plan_batches([1] * 5, budget=3))


@STRATEGIES
@SHUFFLE
@pytest.mark.parametrize(("policy", "skipped", "batches"), [("skip", [0], [[1]]), ("alone", [], [[0], [1]])])
def test_r7_oversized_element_leaves_no_empty_batch(strategy, shuffle, policy, skipped, batches):
    """An element over budget left an empty batch behind, and a rank waited for ever."""
    with pytest.warns(SkippedElementsWarning, match="1 of 2"):
        plan = plan_batches([10, 1], budget=5, oversized=policy, strategy=strategy, shuffle=shuffle)
    assert (skipped, batches) == (plan.skipped.tolist(), sorted(plan))


@STRATEGIES
@SHUFFLE
def test_r7_oversized_element_raises(strategy, shuffle):
    """By default an element over budget is an error that says which."""
    with pytest.raises(OversizedError, match="index 0 of size 10 costs 10 alone, over the budget 5"):
        plan_batches([10, 1], budget=5, strategy=strategy, shuffle=shuffle)


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.float32, np.float64])
def test_r8_ties_keep_their_order(dtype):
    """Equal sizes came in an order that depended on the processor."""
    sizes = np.array([1000] * 6 + [0, 1000], dtype)
    order = plan_batches(sizes, budget=8000, strategy="by_size").indices.tolist()
    assert [6, 0, 1, 2, 3, 4, 5, 7] == order
    twice = np.stack([sizes, sizes], 1)
    assert order == plan_batches(twice, budget=[8000, 9000], strategy="by_size").indices.tolist()


@STRATEGIES
def test_e8_epochs_differ(strategy):
    """Only the order of the batches changed from epoch to epoch, or nothing at all."""
    sizes = np.random.default_rng(0).permutation(2000) + 1
    plans = [plan_batches(sizes, budget=20_000, strategy=strategy, shuffle=True, epoch=epoch) for epoch in (0, 1, 0)]
    together = [{frozenset(batch) for batch in plan} for plan in plans]
    assert len(together[0] & together[1]) < len(together[0]) // 2
    assert plans[0].indices.tolist() == plans[2].indices.tolist()
    assert plans[0].offsets.tolist() == plans[2].offsets.tolist()


ORDERS = """
import hashlib, json, random, sys
import numpy as np, torch
from bionemo.size_aware_batching import BudgetBatchSampler, plan_batches

def digests():
    sizes = np.random.default_rng(0).integers(1, 500, 5000)
    found = []
    for strategy in ("in_order", "by_size", "best_fit"):
        sampler = BudgetBatchSampler(sizes, budget=4000, strategy=strategy, shuffle=True, seed=3)
        passes = [list(sampler) for _ in range(3)]
        found.append(hashlib.sha256(json.dumps(passes).encode()).hexdigest())
    return found
"""


def test_e10_order_between_runs():
    """The same seed gave another order in another process."""
    script = ORDERS + "\nimport os; torch.manual_seed(os.getpid()); np.random.seed(1); random.seed(2)"
    script += "\ntorch.set_num_threads(1); json.dump(digests(), sys.stdout)"
    names = {}
    exec(ORDERS, names)  # noqa: S102 - the same text here and in the other process
    here = names["digests"]()
    assert here == run(script, PYTHONHASHSEED="1", NUMBA_NUM_THREADS="1")
    assert 3 == len(set(here))


WORKER = f"""
import json, multiprocessing, sys
import numpy as np
from bionemo.size_aware_batching import BudgetBatchSampler

def private_bytes():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_")) * 1024

def walk(sampler, results):
    before = private_bytes()
    served = sum(len(batch) for batch in sampler)
    results.put((served, private_bytes() - before))

sizes = np.random.default_rng(0).integers(1, 60, {MANY}, dtype=np.uint8)
sampler = BudgetBatchSampler(sizes, budget=4000)
context = multiprocessing.get_context("fork")
results = context.SimpleQueue()
worker = context.Process(target=walk, args=(sampler, results))
worker.start()
json.dump(results.get(), sys.stdout)
worker.join()
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="needs Linux")  # noqa: PTH110
def test_f8_workers_do_not_copy():
    """Every worker of a loader came to hold a copy of all indices, as it counted references to them."""
    served, grown = run(WORKER)
    assert MANY == served
    assert grown < 16 * 2**20


@pytest.fixture(scope="module")
def large():
    """A sampler of ten million elements in five million batches, and the bytes it keeps beside the sizes."""
    sizes = np.full(MANY, 2, np.uint8)
    tracemalloc.start()
    sampler = BudgetBatchSampler(sizes, budget=4)
    kept, _ = tracemalloc.get_traced_memory()
    yield sampler, kept
    tracemalloc.stop()


def test_f8_no_list_of_ints_is_kept(large):
    """Ten million sizes as a list of ints take 80 MB for the list alone, and as much for each copy."""
    sampler, kept = large
    # An index in 4 bytes for each element; where it begins, cost, longest, total, items of its step in 8 a batch.
    assert kept < 1.05 * (4 * MANY + 5 * 8 * len(sampler))
    assert MANY // 2 == len(sampler)


def test_f9_a_pass_begins_at_once(large):
    """Before the first batch every bound was made a Python int, a pause in proportion to the data."""
    sampler, kept = large
    tracemalloc.reset_peak()
    batches = iter(sampler)
    assert [0, 1] == next(batches)
    _, peak = tracemalloc.get_traced_memory()
    assert peak - kept < 2**20


def test_f9_a_pass_takes_no_memory(large):
    """A pass converts batch by batch and keeps none."""
    sampler, kept = large
    tracemalloc.reset_peak()
    served = sum(len(batch) for batch in itertools.islice(sampler, 100_000))
    _, peak = tracemalloc.get_traced_memory()
    assert 200_000 == served
    assert peak - kept < 2**20
