"""Laws of plans over generated sizes, costs and settings, each against an oracle in plain Python."""

import itertools
import math
import operator
import random
import warnings
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bionemo.size_aware_batching import BatchShape, MemoryModel, PaddedCost, SumCost, plan_batches
from bionemo.size_aware_batching.errors import OversizedError, SkippedElementsWarning, SuspiciousSizesWarning
from bionemo.size_aware_batching.sampler import SizeAwareBatchSampler

LAW = settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
INTEGERS = [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
ARRAYS = ("indices", "offsets", "cost", "longest", "total", "skipped", "budget", "largest_cost")
STRATEGIES = ["in_order", "by_size", "best_fit"]
# Any number of squares of the largest is still a 64-bit integer; beyond, a user's function would wrap by itself.
LARGEST = 2**29

SHAPES = [BatchShape(n, long, n * long) for n in (1, 2, 5, 16, 40) for long in (4, 16, 64, 200)]


def fitted(bytes_of):
    """Fit a memory model to a function of the shape."""
    return MemoryModel().fit(SHAPES, [bytes_of(*shape) for shape in SHAPES])


MODELS = {
    "model of areas": fitted(lambda items, longest, total: 900 + 7 * items * longest),
    "model of squares": fitted(lambda items, longest, total: 5000 + 3 * items * longest**2),
    "model with a floor": fitted(lambda items, longest, total: max(500 + 11 * items * longest, 9000)),
    "model of the longest": fitted(lambda items, longest, total: 400 + 3 * longest**2 + 5 * items * longest),
}


def padded(multiple_of, extra):
    """Return a padded cost in plain Python."""

    def cost(items, longest, total):
        length = longest + extra
        return items * (math.ceil(length / multiple_of) * multiple_of if multiple_of > 1 else length)

    return cost


# What the library gets, and the same in plain Python.
SEPARABLE = {
    "sum": ("sum", lambda items, longest, total: total),
    "SumCost": (SumCost(), lambda items, longest, total: total),
    "padded": ("padded", padded(1, 0)),
    "padded to 8": (PaddedCost(multiple_of=8), padded(8, 0)),
    "padded with 2": (PaddedCost(extra=2), padded(1, 2)),
    "padded to 5 with 3": (PaddedCost(multiple_of=5, extra=3), padded(5, 3)),
}
FUNCTIONS = {
    "all three": (lambda items, longest, total: 5 * items + 2 * longest + total,) * 2,
    "items x longest^2": (lambda items, longest, total: items * longest**2,) * 2,
    "longest^2": (lambda items, longest, total: longest**2,) * 2,
    "items": (lambda items, longest, total: items + 0 * total,) * 2,
}
SEVERAL = {
    "rows": (
        lambda items, longest, total: items * longest.sum(axis=1) + total[:, 0],
        lambda items, longest, total: items * sum(longest) + total[0],
    )
}
COSTS = SEPARABLE | FUNCTIONS | {name: (model, model) for name, model in MODELS.items()}


def added(sizes):
    """Add from left to right, as a running sum does."""
    return reduce(operator.add, sizes, 0)


class Problem(NamedTuple):
    """What is planned, and how to compute its costs without the library."""

    sizes: Any
    rows: list
    budgets: list
    arguments: dict
    price: Any

    def costs(self, batch):
        """Return the costs of a batch, one for each budget."""
        return self.price([self.rows[index] for index in batch])

    def fits(self, batch):
        """Tell whether a batch is within every budget."""
        return all(cost <= budget for cost, budget in zip(self.costs(batch), self.budgets, strict=True))

    @property
    def over(self):
        """Indices of the elements that are over budget alone."""
        return [index for index in range(len(self.rows)) if not self.fits([index])]

    @property
    def is_exact(self):
        """Whether costs are integers, computed without rounding."""
        return self.sizes.dtype.kind in "iu" and not isinstance(self.arguments["cost"], MemoryModel)

    def plan(self, **changes):
        """Plan, without warnings of what the test knows."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkippedElementsWarning)
            warnings.simplefilter("ignore", SuspiciousSizesWarning)
            return plan_batches(self.sizes, **(self.arguments | changes))


def price_of(function, kind):
    """Return the function from the rows of a batch to its costs."""

    def price(rows):
        columns = list(zip(*rows, strict=True))
        items, longest, total = len(rows), [max(column) for column in columns], [added(column) for column in columns]
        if kind == "several":
            return [function(items, longest, total)]
        return [function(items, long, summed) for long, summed in zip(longest, total, strict=True)]

    return price


@st.composite
def size_arrays(draw, dtypes, measures, most=24, distinct=False):
    """Sizes of any dtype: zeros, ties, fractions and a few as large as the type allows."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    if dtype.kind == "f":
        size = st.integers(0, 60).map(lambda tenths: tenths / 10) | st.floats(0, 1000, width=dtype.itemsize * 8)
    else:
        top = min(int(np.iinfo(dtype).max), LARGEST)
        size = st.integers(0, min(top, 60)) | st.integers(0, 6) | st.integers(top - 3, top)
    if measures == 1 and draw(st.booleans()):
        return np.array(draw(st.lists(size, max_size=most, unique=distinct)), dtype)
    rows = draw(st.lists(st.tuples(*[size] * measures), max_size=most))
    array = np.array(rows, dtype).reshape(len(rows), measures)
    return array[:, 0] if distinct else array


@st.composite
def problems(draw, strategies=STRATEGIES, costs=COSTS, measures=(1, 1, 2), dtypes=(*INTEGERS, np.float32, np.float64),
             policies=("raise", "skip", "alone"), most=24):  # fmt: skip
    """Sizes, a cost, budgets near those of some batches, and every other setting that goes with them."""
    strategy = draw(st.sampled_from(strategies))
    count = 1 if strategy == "best_fit" else draw(st.sampled_from(measures))
    if strategy == "best_fit":
        costs = {name: cost for name, cost in costs.items() if name in ("sum", "SumCost")}
    elif count > 1:
        costs = {name: cost for name, cost in costs.items() if name in SEPARABLE} | SEVERAL
    sizes = draw(size_arrays(dtypes, count, most))
    rows = [tuple(row) for row in sizes.reshape(len(sizes), count).tolist()]
    name = draw(st.sampled_from(sorted(costs)))
    cost, function = costs[name]
    price = price_of(function, "several" if name in SEVERAL else "one")
    near = rows[: draw(st.integers(1, 6))] if draw(st.booleans()) else sorted(rows)[-draw(st.integers(1, 6)) :]
    bases = price(near) if rows else [10] * len(price([(1,) * count]))
    policy = draw(st.sampled_from(policies))
    if policy == "raise" and rows:
        alone = [price([row]) for row in rows]
        bases = [max(base, *column) for base, column in zip(bases, zip(*alone, strict=True), strict=True)]
    room = draw(st.sampled_from([0, 0, 1, 0.5, 30]))
    budgets = [(base * 1.0001 if isinstance(cost, MemoryModel) else base) + room for base in bases]
    # Adding a half may round a large integer down.
    budgets = [max(budget, base) if budget > 0 else 1 for budget, base in zip(budgets, bases, strict=True)]
    shuffle = draw(st.booleans())
    by_size = strategy == "by_size"
    arguments = {
        "budget": budgets if len(budgets) > 1 else budgets[0],
        "cost": cost,
        "strategy": strategy,
        "max_items": draw(st.none() | st.integers(1, 9)),
        "items_multiple_of": 1 if strategy == "best_fit" else draw(st.sampled_from([1, 1, 2, 3, 4])),
        "oversized": policy,
        "shuffle": shuffle,
        "seed": draw(st.integers(0, 3) | st.integers(0, 2**64)),
        "epoch": draw(st.integers(0, 5)),
        "uniform": by_size and draw(st.booleans()),
        "window": draw(st.none() | st.integers(1, 30)) if by_size and shuffle else None,
    }
    return Problem(sizes, rows, budgets, arguments, price)


def same_plan(one, other):
    """Return the names of the arrays in which plans differ."""
    return [name for name in ARRAYS if getattr(one, name).tobytes() != getattr(other, name).tobytes()]


def companions(plan):
    """Return who is together, whatever the order."""
    return frozenset(frozenset(batch) for batch in plan)


@LAW
@given(problems())
def test_every_element_once_or_skipped(problem):
    """Each element is in exactly one batch, or is listed as skipped; no batch is empty."""
    plan = problem.plan()
    batches = list(plan)
    assert list(range(len(problem.rows))) == sorted([*itertools.chain.from_iterable(batches), *plan.skipped.tolist()])
    assert (problem.over if problem.arguments["oversized"] == "skip" else []) == plan.skipped.tolist()
    assert [] not in batches


@LAW
@given(problems())
def test_no_batch_over_budget(problem):
    """The cost of every batch, added up again from its elements, is within budget; oversized ones are alone."""
    expected = [[index] for index in problem.over if problem.arguments["oversized"] == "alone"]
    assert expected == sorted(batch for batch in problem.plan() if not problem.fits(batch))


@LAW
@given(problems())
def test_arrays_describe_the_batches(problem):
    """Cost, longest, total, items and uniform are those of the elements of each batch."""
    plan = problem.plan()
    batches = list(plan)
    rows = [[problem.rows[index] for index in batch] for batch in batches]
    rounding = 0 if problem.is_exact else 1e-12
    assert [len(batch) for batch in batches] == plan.items.tolist()
    assert [len(set(row)) == 1 for row in rows] == plan.uniform.tolist()
    longest = [max(column) for row in rows for column in zip(*row, strict=True)]
    assert longest == plan.longest.ravel().tolist()
    totals = [added(column) for row in rows for column in zip(*row, strict=True)]
    assert pytest.approx(totals, rel=rounding, abs=0) == plan.total.ravel().tolist()
    costs = [cost for batch in batches for cost in problem.costs(batch)]
    assert pytest.approx(costs, rel=rounding, abs=0) == plan.cost.ravel().tolist()
    assert problem.budgets == plan.budget.ravel().tolist()


@LAW
@given(problems())
def test_limits_on_items(problem):
    """No batch has more than `max_items` elements, and numbers above the multiple are multiples of it."""
    items = problem.plan().items.tolist()
    multiple = problem.arguments["items_multiple_of"]
    assert [] == [count for count in items if count > (problem.arguments["max_items"] or len(problem.rows))]
    assert [] == [count for count in items if count > multiple and count % multiple]


@LAW
@given(problems())
def test_number_of_batches_is_constant(problem):
    """Every epoch has the same number of batches and skips the same elements."""
    plans = [problem.plan(epoch=epoch) for epoch in (0, 1, 2, 3, 11, 2**40)]
    assert {len(plans[0])} == {len(plan) for plan in plans}
    assert {tuple(plans[0].skipped)} == {tuple(plan.skipped) for plan in plans}


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
@pytest.mark.parametrize("count", range(5, 30))
def test_number_of_batches_is_constant_for_equal_sizes(strategy, count):
    """Wherever the first batch is cut short, and whatever that takes, every epoch has as many batches."""
    plans = [plan_batches([3] * count, budget=12, strategy=strategy, shuffle=True, epoch=epoch) for epoch in range(12)]
    assert 1 == len({len(plan) for plan in plans})
    assert 12 >= max(plan.cost.max() for plan in plans)


@LAW
@given(problems())
def test_same_seed_and_epoch_same_plan(problem):
    """A plan is a function of its arguments: made again it is the same, whatever came between."""
    plan = problem.plan()
    problem.plan(epoch=77)
    assert [] == same_plan(plan, problem.plan())


@LAW
@given(problems(dtypes=[np.int16, np.int32, np.int64]))
def test_plan_depends_on_values_not_on_containers(problem):
    """Lists, Fortran order, other byte order and tensors of the same numbers give the same plan."""
    plan = problem.plan()
    sizes = problem.sizes
    swapped = sizes.astype(sizes.dtype.newbyteorder())
    for other in (sizes.tolist() or sizes, np.asfortranarray(sizes), swapped, torch.from_numpy(sizes)):
        again = Problem(other, *problem[1:]).plan()
        assert (list(plan), plan.cost.tolist()) == (list(again), again.cost.tolist())


@LAW
@given(problems())
def test_arrays_are_read_only_and_small(problem):
    """No array of a plan can be written, indices take 32 bits, and the sizes given are as before."""
    before = problem.sizes.copy()
    plan = problem.plan()
    assert [] == [name for name in ARRAYS if getattr(plan, name).flags.writeable]
    assert (np.dtype(np.int32), np.dtype(np.int32)) == (plan.indices.dtype, plan.skipped.dtype)
    assert np.array_equal(before, problem.sizes)
    assert [] == [name for name in ARRAYS if np.shares_memory(getattr(plan, name), problem.sizes)]


@LAW
@given(problems(), st.integers(0, 2**32 - 1))
def test_global_random_states_are_left_alone(problem, seed):
    """Neither torch's, numpy's nor Python's global random state is written or has a say."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global state is what the test is about
    torch.manual_seed(seed)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    plan = problem.plan()
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    assert before == after
    random.seed(seed + 1)
    np.random.seed(seed // 2)  # noqa: NPY002
    torch.manual_seed(seed + 1)
    assert [] == same_plan(plan, problem.plan())


def greedy(problem, order):
    """Cut an order as soon as the next element does not fit."""
    most, multiple = problem.arguments["max_items"] or len(order), problem.arguments["items_multiple_of"]
    batches, rest = [], list(order)
    while rest:
        count = 1
        while count < min(most, len(rest)) and problem.fits(rest[: count + 1]):
            count += 1
        count -= count % multiple if count > multiple else 0
        batches.append(rest[:count])
        rest = rest[count:]
    return batches


@LAW
@given(problems(["in_order"], policies=["raise", "skip"]))
def test_in_order_is_greedy(problem):
    """In order, a batch takes the next element exactly when it fits, whatever the cost."""
    over = set(problem.over)
    order = [index for index in range(len(problem.rows)) if index not in over]
    assert greedy(problem, order) == list(problem.plan(shuffle=False))


@LAW
@given(problems(["in_order"], policies=["raise", "skip"]))
def test_in_order_with_shuffle_keeps_runs_together(problem):
    """Shuffled in order, batches are runs of neighbours, and of them at most one more than without."""
    plan = problem.plan(shuffle=True)
    over = set(problem.over)
    kept = [index for index in range(len(problem.rows)) if index not in over]
    runs = sorted(plan)
    assert kept == list(itertools.chain.from_iterable(runs))
    assert len(runs) - len(problem.plan(shuffle=False)) in (0, 1)


@LAW
@given(problems(["in_order"], costs={"sum": SEPARABLE["sum"]}, measures=[1], policies=["raise", "skip"]))
def test_in_order_sum_is_the_documented_sampler(problem):
    """For sums in order, a plan has the batches of `SizeAwareBatchSampler`."""
    sizes = problem.sizes.ravel()
    budget = problem.budgets[0]
    sampler = SizeAwareBatchSampler(range(len(sizes)), sizes, budget, warn_logger=lambda text: None)
    assert list(sampler) == list(problem.plan(shuffle=False, max_items=None, items_multiple_of=1))


def fewest_runs(problem, order):
    """Return the smallest number of runs within budget that an order can be cut into, by dynamic programming."""
    most = problem.arguments["max_items"] or len(order)
    fewest = [0]
    for end in range(1, len(order) + 1):
        begins = [begin for begin in range(max(end - most, 0), end) if problem.fits(order[begin:end])]
        fewest.append(1 + min(fewest[begin] for begin in begins))
    return fewest[-1]


@LAW
@given(problems(["by_size"], measures=[1], policies=["raise", "skip"], most=12))
def test_by_size_cuts_into_the_fewest_runs(problem):
    """Without shuffle, no cut of the sorted sizes into runs within budget has fewer batches."""
    over = set(problem.over)
    order = sorted((i for i in range(len(problem.rows)) if i not in over), key=lambda i: problem.rows[i])
    plan = problem.plan(shuffle=False, window=None, uniform=False, items_multiple_of=1)
    assert order == list(itertools.chain.from_iterable(plan))
    assert fewest_runs(problem, order) == len(plan)


@LAW
@given(problems(["in_order"], policies=["raise"]), st.sampled_from([1, 1.5, 2, 10]), st.integers(0, 40))
def test_larger_budget_never_needs_more_batches(problem, factor, more):
    """In order, a larger budget gives as many batches or fewer."""
    larger = [budget * factor + more for budget in problem.budgets]
    arguments = {"shuffle": False, "items_multiple_of": 1}
    few = problem.plan(budget=larger if len(larger) > 1 else larger[0], **arguments)
    assert len(few) <= len(problem.plan(**arguments))


def most_of_one_size(problem, index):
    """Return how many elements like this one fill a batch."""
    most = min(problem.arguments["max_items"] or len(problem.rows), len(problem.rows))
    reach = max(number for number in range(1, most + 1) if number == 1 or problem.fits([index] * number))
    multiple = problem.arguments["items_multiple_of"]
    return reach - (reach % multiple if reach > multiple else 0)


@LAW
@given(problems(["by_size"], policies=["raise", "skip"], dtypes=[np.uint8, np.int32, np.int64]))
def test_uniform_fills_batches_of_one_size(problem):
    """With `uniform`, each size has as many full batches of its own as its elements fill."""
    plan = problem.plan(uniform=True)
    over = set(problem.over)
    groups = {}
    for index, row in enumerate(problem.rows):
        groups.setdefault(row, []).extend([index] if index not in over else [])
    reaches = {row: most_of_one_size(problem, group[0]) for row, group in groups.items() if group}
    full = {row: len(groups[row]) // reach for row, reach in reaches.items()}
    found = dict.fromkeys(reaches, 0)
    for batch in plan:
        row = problem.rows[batch[0]]
        found[row] += {problem.rows[index] for index in batch} == {row} and len(batch) == reaches[row]
    assert [] == [row for row in reaches if found[row] < full[row]]


@LAW
@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.integers(0, 5))
def test_uniform_of_decimal_fractions(tenths, epoch):
    """Batches of one size are flagged so and within budget also where the sum of fractions is rounded."""
    sizes = [tenth / 10 for tenth in tenths]
    plan = plan_batches(sizes, budget=1.8, strategy="by_size", uniform=True, shuffle=True, epoch=epoch)
    assert [len({sizes[index] for index in batch}) == 1 for batch in plan] == plan.uniform.tolist()
    assert [] == [batch for batch in plan if added(sizes[index] for index in batch) > 1.8]
    assert max(plan.cost.tolist()) <= 1.8


@pytest.mark.parametrize("size", [0.1, 0.7, 1.1])
def test_uniform_of_many_equal_fractions(size):
    """Ten elements of one size are uniform, though their sum is not ten times the size."""
    assert [True] == plan_batches([size] * 10, budget=20).uniform.tolist()
    plan = plan_batches([size] * 10, budget=10 * size, cost="padded", strategy="by_size", uniform=True)
    assert [True] == plan.uniform.tolist()


def test_uniform_within_budget_where_sums_are_rounded_up():
    """A batch of one size is held to the budget by its running sum, as every other."""
    over = [
        (tenth, count)
        for tenth in range(1, 40)
        for count in range(2, 30)
        if added([tenth / 10] * count) > tenth / 10 * count
    ]
    excess = []
    for tenth, count in over:
        sizes, budget = [tenth / 10] * count, tenth / 10 * count
        plan = plan_batches(sizes, budget=budget, strategy="by_size", uniform=True)
        excess.extend((tenth, count) for cost in plan.cost.tolist() if cost > budget)
    assert [] == excess


def test_uniform_with_several_measures_keeps_the_budget():
    """Elements that share only their largest measure are not of one size."""
    sizes = [(5, 1), (5, 1), (5, 5), (5, 5), (5, 5), (5, 1)]
    plan = plan_batches(
        sizes,
        budget=12,
        cost=lambda items, longest, total: items * longest.sum(axis=1),
        strategy="by_size",
        uniform=True,
    )
    costs = [len(batch) * sum(max(sizes[index][c] for index in batch) for c in (0, 1)) for batch in plan]
    assert costs == plan.cost.tolist()
    assert max(costs) <= 12


def fewest_batches(sizes, budget, most):
    """Return the fewest batches that hold the sizes, by trying every packing."""
    order = sorted(sizes, reverse=True)

    def search(position, loads, best):
        if len(loads) >= best or position == len(order):
            return min(len(loads), best)
        tried = set()
        for batch, (load, count) in enumerate(loads):
            if load + order[position] <= budget and count < most and (load, count) not in tried:
                tried.add((load, count))
                grown = [*loads[:batch], (load + order[position], count + 1), *loads[batch + 1 :]]
                best = search(position + 1, grown, best)
        return search(position + 1, [*loads, (order[position], 1)], best)

    return search(0, [], len(order) + 1 if order else 0)


@LAW
@given(st.lists(st.integers(0, 30), max_size=9), st.integers(30, 60), st.sampled_from([1, 2, 3, 9]), st.booleans())
def test_best_fit_is_near_the_fewest(sizes, budget, most, shuffle):
    """Best fit takes at most 11/9 of the fewest batches plus one, on whatever can be tried out."""
    fewest = fewest_batches(sizes, budget, 9)
    plan = Problem(np.array(sizes, np.int64), [], [], {"budget": budget, "strategy": "best_fit"}, None).plan()
    assert fewest <= len(plan) <= math.ceil(11 / 9 * fewest) + 1
    limited = Problem(np.array(sizes, np.int64), [], [], {"budget": budget, "strategy": "best_fit"}, None)
    assert fewest_batches(sizes, budget, most) <= len(limited.plan(max_items=most, shuffle=shuffle))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_best_fit_of_many_small_elements_is_tight(shuffle, dtype):
    """Of 20,000 log-normal sizes up to half the budget, best fit loses a batch or a thousandth."""
    budget = 4096
    sizes = np.random.default_rng(7).lognormal(5.5, 0.7, 20_000).clip(1, budget // 2).astype(dtype)
    plan = plan_batches(sizes, budget=budget, strategy="best_fit", shuffle=shuffle)
    fewest = math.ceil(sizes.sum(dtype=np.float64) / budget)
    assert fewest <= len(plan) <= fewest + max(1, fewest / 1000)


@st.composite
def distinct_problems(draw):
    """Distinct sizes that make more than a handful of batches of several elements."""
    order = np.random.default_rng(draw(st.integers(0, 99))).permutation(draw(st.integers(60, 120)))
    sizes = (order * draw(st.integers(1, 5)) + 1).tolist()
    strategy = draw(st.sampled_from(STRATEGIES))
    cost = "sum" if strategy == "best_fit" else draw(st.sampled_from(["sum", "padded", MODELS["model of areas"]]))
    budget = 6 * max(sizes) * (8 if isinstance(cost, MemoryModel) else 1)
    return sizes, {"budget": budget, "cost": cost, "strategy": strategy, "seed": draw(st.integers(0, 2**64))}


@settings(LAW, max_examples=30)
@given(distinct_problems())
def test_other_epochs_give_other_companions(problem):
    """With shuffle, who is together changes from epoch to epoch, and from seed to seed."""
    sizes, arguments = problem
    plans = [plan_batches(sizes, **arguments, shuffle=True, epoch=epoch) for epoch in range(24)]
    assert len({companions(plan) for plan in plans}) > 2
    assert 24 == len({plan.indices.tobytes() for plan in plans})
    other = plan_batches(sizes, **(arguments | {"seed": arguments["seed"] + 1}), shuffle=True)
    assert plans[0].indices.tolist() != other.indices.tolist()


@pytest.mark.parametrize(
    ("strategy", "cost", "share"), [("by_size", "padded", 0.3), ("by_size", "sum", 0.3), ("best_fit", "sum", 0.6)]
)
def test_most_companions_are_new_in_large_sets(strategy, cost, share):
    """Of 20,000 distinct sizes, few pairs of companions meet again in the next epoch."""
    sizes = np.random.default_rng(3).permutation(20_000) + 1
    pairs = []
    for epoch in (0, 1):
        plan = plan_batches(sizes, budget=100_000, cost=cost, strategy=strategy, shuffle=True, epoch=epoch)
        pairs.append({pair for batch in plan for pair in itertools.combinations(sorted(batch), 2)})
    assert len(pairs[0] & pairs[1]) < share * len(pairs[0])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shuffled_batches_come_in_another_order(strategy):
    """Sizes do not rise or fall in the course of a shuffled epoch."""
    sizes = np.arange(1, 5001)
    plan = plan_batches(sizes, budget=20_000, strategy=strategy, shuffle=True)
    trend = np.corrcoef(np.arange(len(plan)), plan.longest)[0, 1]
    assert abs(trend) < 0.2


@pytest.mark.parametrize("window", [2000, 400])
def test_smaller_windows_mix_more(window):
    """A window bounds how many elements are sorted together: companions differ in size by its share of all."""
    sizes = np.random.default_rng(5).permutation(4000) + 1
    spreads = []
    for width in (window, max(window // 4, 1)):
        plan = plan_batches(
            sizes, budget=40_000, cost="padded", strategy="by_size", shuffle=True, window=width, max_items=8
        )
        spreads.append(np.mean([np.ptp(sizes[batch]) for batch in plan]))
    assert spreads[0] < spreads[1]


@pytest.mark.parametrize("window", [1, 10, 100])
def test_windows_leave_batches_full(window):
    """A small window costs padding, not the number of elements in batches whose cost does not know padding."""
    sizes = np.arange(1000) % 10 + 1
    fewest = math.ceil(sizes.sum() / 1000)
    plan = plan_batches(sizes, budget=1000, strategy="by_size", shuffle=True, window=window)
    assert len(plan) <= 2 * fewest + 1


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64])
@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
@pytest.mark.parametrize("policy", ["skip", "alone"])
def test_costs_of_narrow_integers_do_not_wrap(dtype, strategy, policy):
    """A function that squares the longest sees numbers wide enough for it, whatever the dtype of the sizes."""
    sizes = np.array([60_000, 3, 50_000, 40_000, 7], dtype)
    with pytest.warns(SkippedElementsWarning, match="1 of 5"):
        plan = plan_batches(
            sizes, budget=3e9, cost=lambda items, longest, total: longest**2, strategy=strategy, oversized=policy
        )
    assert [60_000**2] * (policy == "alone") == [cost for cost in plan.cost.tolist() if cost > 3e9]


def test_multiple_of_items_holds_where_a_batch_is_split():
    """The batch that is split for a constant number of batches is split at the multiple."""
    plan = plan_batches([100] + [1] * 12, budget=100, items_multiple_of=4, shuffle=True)
    assert [] == [count for count in plan.items.tolist() if count > 4 and count % 4]


HUGE = [
    pytest.param([2**59 + 1] * 2, 2**60, "best_fit", "sum", id="best fit"),
    pytest.param([2**60 + 1] * 3, 2**61 + 1, "in_order", "sum", id="in order"),
    pytest.param([2**60 + 1] * 3, 2**61 + 1, "by_size", "padded", id="by size"),
]


@pytest.mark.parametrize(("sizes", "budget", "strategy", "cost"), HUGE)
def test_huge_integers_stay_within_budget(sizes, budget, strategy, cost):
    """Integers beyond the 53 bits of a double are not rounded down into the budget."""
    plan = plan_batches(sizes, budget=budget, strategy=strategy, cost=cost)
    assert [] == [batch for batch in plan if sum(sizes[index] for index in batch) > budget]


@pytest.mark.parametrize(
    ("rows", "budgets"), [([(3, 9), (3, 1), (5, 2), (1, 1)] * 400, [12, 12]), ([(7, 7), (1, 2)] * 300, [15, 9])]
)
def test_strata_of_several_measures(rows, budgets):
    """Where neighbours of several measures mix, each batch is within every budget in every epoch."""
    arguments = {"budget": budgets, "strategy": "by_size", "shuffle": True, "window": 100}
    plans = [plan_batches(rows, **arguments, epoch=epoch) for epoch in range(4)]
    assert 1 == len({len(plan) for plan in plans})
    assert [list(range(len(rows)))] * 4 == [sorted(plan.indices.tolist()) for plan in plans]
    totals = [np.sum([rows[index] for index in batch], axis=0) for plan in plans for batch in plan]
    assert (np.max(totals, axis=0) <= budgets).all()
    assert len({companions(plan) for plan in plans}) > 1


@pytest.mark.parametrize("budget", [1.0, 0.3, 2.0**20, 5 * 2**30, 10**7 + 1])
@pytest.mark.parametrize("shuffle", [False, True])
def test_best_fit_of_fine_sizes(budget, shuffle):
    """Sizes finer than a millionth of the budget, or fractions, are packed as tightly and never over budget."""
    kind = np.float64 if isinstance(budget, float) else np.int64
    sizes = (np.random.default_rng(9).random(3000) * budget / 4).astype(kind)
    plan = plan_batches(sizes, budget=budget, strategy="best_fit", shuffle=shuffle)
    values = sizes.tolist()
    assert [] == [batch for batch in plan if added(values[index] for index in batch) > budget]
    fewest = math.ceil(float(sizes.sum()) / budget)
    assert fewest <= len(plan) <= fewest * 1.02 + 2
    halves = plan_batches(np.full(40, budget / 2, kind), budget=budget, strategy="best_fit")
    assert 20 == len(halves)


@pytest.mark.parametrize("step", [1, 36])
@pytest.mark.parametrize("multiple", [2, 2.5, 3, 4])
def test_best_fit_of_coarse_sizes(step, multiple):
    """Few, coarse sizes to a batch are packed within a batch or a thousandth of the bound."""
    sizes = np.random.default_rng(3).normal(4500, 1400, 12_000).clip(1100, 10_836).astype(np.int64) // step * step
    budget = int(multiple * sizes.max())
    plan = plan_batches(sizes, budget=budget, strategy="best_fit")
    fewest = -(-int(sizes.sum()) // budget)
    assert fewest <= len(plan) <= fewest + max(1, fewest // 1000)
    assert list(range(12_000)) == sorted(plan.indices.tolist())
    assert max(sizes[batch].sum() for batch in plan) <= budget


def test_whole_costs_beyond_floats():
    """A whole cost that is over a fractional budget by less than floats can tell is over it."""
    size, budget = 536870909, 2.8823037293048627e17
    assert budget < size**2
    assert budget == float(size**2)
    with pytest.raises(OversizedError):
        plan_batches([size], budget=budget, cost=lambda items, longest, _: items * longest**2, strategy="by_size")
