"""`check_worst_batches`: which batches of a plan are tried, what is made of their peaks, and how it reads."""

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching.measure._worst import WorstBatches, check_worst_batches
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, PeakRecord, Profile
from bionemo.size_aware_batching.plan import Plan, plan_batches

pytestmark = pytest.mark.usefixtures("small_heap")

KIB = 1024
RNG = np.random.default_rng(5)
LENGTHS = RNG.integers(1, 200, 120)
PAIRS = RNG.integers(1, 60, (80, 2))
PLANS = {
    "sum": plan_batches(LENGTHS, budget=500),
    "padded": plan_batches(LENGTHS, budget=600, cost="padded", strategy="by_size"),
    "packed": plan_batches(LENGTHS, budget=300, strategy="best_fit"),
    "several budgets": plan_batches(PAIRS, budget=[150, 300]),
    "several padded": plan_batches(PAIRS, budget=[150, 500], cost="padded", strategy="by_size"),
    "one column": plan_batches(LENGTHS[:, None], budget=500),
    "fractions": plan_batches(LENGTHS / 7, budget=80, cost="padded"),
    "function": plan_batches(PAIRS, budget=2e4, cost=lambda items, longest, total: items * longest.prod(axis=-1)),
}
EVERY_PLAN = pytest.mark.parametrize("name", sorted(PLANS))


def check(plan, step=lambda _: None, **settings):
    return check_worst_batches(plan, step, "cpu", **{"warmup": 0, "progress": False} | settings)


def allocating(plan, unit=KIB):
    """Return a step that needs a KiB for each unit of a batch's cost, and the costs by batch."""
    costs = {tuple(plan[position]): int(plan.cost[position]) for position in range(len(plan))}

    def step(indices):
        return torch.zeros(unit * costs[tuple(indices)], dtype=torch.uint8)

    return step


def by_hand(plan, count):
    """Pick batches by turns, the slow way."""
    matrix = [np.asarray(values, float).reshape(len(plan), -1).T for values in (plan.items, plan.longest, plan.total)]
    shares = np.asarray(plan.cost, float).reshape(len(plan), -1) / np.atleast_1d(plan.budget)
    rankings = [shares.max(axis=1), *np.concatenate(matrix)]
    left, picked = set(range(len(plan))), []
    while left and len(picked) < count:
        ranking = rankings[len(picked) % len(rankings)]
        picked.append(min(left, key=lambda position: (-ranking[position], position)))
        left.remove(picked[-1])
    return tuple(sorted(picked, key=lambda position: (-rankings[0][position], position)))


@EVERY_PLAN
@pytest.mark.parametrize("count", [1, 2, 7, 10, 10**6])
def test_most_dangerous_batches_are_tried(name, count):
    """By turns the costliest, the most items, the longest and the largest total are picked, each batch once."""
    plan = PLANS[name]
    worst = check(plan, count=count)
    assert by_hand(plan, count) == worst.positions
    assert min(count, len(plan)) == len(set(worst.positions))


@EVERY_PLAN
def test_extremes_are_among_them(name):
    """The costliest batch, and those with the most elements and the largest size and sum in any measure, are tried."""
    plan = PLANS[name]
    worst = check(plan)
    for values in (plan.items, plan.longest, plan.total):
        columns = np.asarray(values).reshape(len(plan), -1)
        assert columns.max(axis=0).tolist() == columns[list(worst.positions)].max(axis=0).tolist()


@EVERY_PLAN
def test_steps_are_given_the_batches(name):
    """Each step gets its batch as a fresh list of plain ints, the costliest first."""
    plan, seen = PLANS[name], []

    def step(indices):
        seen.append(list(indices))
        indices.clear()

    worst = check(plan, step)
    assert [plan[position] for position in worst.positions] == seen
    assert tuple(map(tuple, seen)) == worst.indices
    assert {int} == {type(index) for batch in seen for index in batch}
    shares = (plan.cost / plan.budget).reshape(len(plan), -1).max(axis=1)
    assert sorted(shares[list(worst.positions)].tolist(), reverse=True) == shares[list(worst.positions)].tolist()


@pytest.mark.parametrize("name", ["sum", "several padded", "one column"])
def test_profile_has_shapes(name):
    """The features are the batches' shapes in the sizes of the plan, as `BatchShape.of` makes them."""
    plan = PLANS[name]
    sizes = {"sum": LENGTHS, "several padded": PAIRS, "one column": LENGTHS[:, None]}[name].tolist()
    worst = check(plan)
    expected = [
        BatchShape.of([size if name == "sum" else tuple(size) for size in map(sizes.__getitem__, batch)])
        for batch in worst.indices
    ]
    assert expected == worst.profile.features == list(worst.shapes)


def test_costs_are_those_of_the_plan():
    """A cost is a plain number, with several budgets a tuple of them."""
    one, several = check(PLANS["sum"]), check(PLANS["several budgets"])
    assert tuple(PLANS["sum"].cost[list(one.positions)].tolist()) == one.costs
    assert tuple(map(tuple, PLANS["several budgets"].cost[list(several.positions)].tolist())) == several.costs


def test_equals_are_taken_in_order():
    """Of batches that are alike the first in the plan are tried, and in that order."""
    assert (0, 1, 2) == check(plan_batches([5] * 40, budget=10), count=3).positions


def test_ten_are_tried():
    """Without a word ten batches are tried, after two warm-up steps with the costliest."""
    seen = []
    worst = check_worst_batches(PLANS["sum"], seen.append, "cpu", progress=False)
    assert 10 == len(worst.positions)
    assert [list(worst.indices[0])] * 3 == seen[:3]
    assert (12, 2) == (len(seen), worst.profile.warmup)


def test_cleanup_follows_every_step():
    """`cleanup` runs after each step."""
    seen = []
    check(PLANS["sum"], lambda _: seen.append("step"), count=2, cleanup=lambda: seen.append("cleanup"))
    assert ["step", "cleanup"] * 2 == seen


def test_training_fits():
    """Real training steps on the worst batches of a plan have peaks that a model of them bounds."""
    network = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters())

    def step(indices):
        longest = max(int(LENGTHS[index]) for index in indices)
        loss = network(torch.zeros(len(indices), longest, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    worst = check(PLANS["padded"], step, count=20, warmup=2)
    model = MemoryModel().fit(worst.profile)
    budget = int(model.upper_bound(worst.shapes).max()) + KIB
    plan = plan_batches(LENGTHS, budget=budget, cost=model, strategy="by_size")
    assert check(plan, step, warmup=2, budget=budget).fits


@pytest.mark.parametrize("budget", [None, 600 * KIB, np.int64(10**9)])
def test_fits(budget):
    """A plan fits when nothing ran out of memory and no peak is above the budget, where there is one; at it is fine."""
    plan = PLANS["padded"]
    worst = check(plan, allocating(plan), budget=budget)
    assert worst.fits is True
    assert budget == worst.budget_bytes
    assert [KIB * cost for cost in worst.costs] == worst.profile.peak_bytes


def test_one_peak_above_the_budget_does_not_fit():
    """A byte less than the largest peak is too little."""
    plan = PLANS["padded"]
    assert not check(plan, allocating(plan), budget=KIB * int(plan.cost.max()) - 1).fits


@pytest.mark.parametrize("budget", [None, 10**9])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_batch_that_runs_out_of_memory_does_not_fit(error, budget):
    """One batch that runs out of memory is a plan that does not fit, and the others are tried all the same."""
    plan = PLANS["sum"]
    third = by_hand(plan, 10)[2]

    def step(indices):
        if indices == plan[third]:
            raise error

    worst = check(plan, step, budget=budget)
    assert worst.fits is False
    assert ["ok", "ok", "oom"] + ["ok"] * 7 == [record.status for record in worst.profile]
    assert int(plan.items[third]) == worst.shapes[2].items


def test_other_errors_pass():
    """What is not about memory reaches the caller."""
    with pytest.raises(ZeroDivisionError, match="zero"):
        check(PLANS["sum"], lambda _: 1 // 0)


def test_empty_plan():
    """A plan without batches fits, runs nothing, and says so."""
    for plan in (plan_batches([], budget=5), plan_batches(np.zeros((0, 2), int), budget=[5, 5])):
        worst = check(plan, lambda _: pytest.fail("ran a step"), warmup=2, budget=1)
        assert ((), (), (), ()) == (worst.positions, worst.indices, worst.costs, worst.shapes)
        assert worst.fits
        assert "fits: the plan has no batches, so there was nothing to try" == worst.summary()


def result(peaks, budget, longest=7, cost=12.5):
    """Return the result of batches with these peaks; None for one that ran out of memory."""
    records = tuple(
        PeakRecord(i, None, peak, None, None, 0, "oom" if peak is None else "ok", 0.1) for i, peak in enumerate(peaks)
    )
    count = len(peaks)
    shapes = (BatchShape(3, longest, longest),) * count
    return WorstBatches(
        Profile(records, "cpu"), tuple(range(count)), ((1, 2, 3),) * count, (cost,) * count, budget, shapes
    )


VERDICTS = {
    "fits": ([500, 250], 1000, "fits: the 2 worst batches ran; largest peak 50.0% of 1000 B"),
    "one fits": ([KIB], KIB, "fits: the worst batch ran; largest peak 100.0% of 1 KiB"),
    "no budget": ([500, 2 * KIB], None, "fits: the 2 worst batches ran; largest peak 2 KiB"),
    "over": ([500, 1500], 1000, "does not fit: 1 of 2 peaked above the budget; largest peak 150.0% of 1000 B"),
    "failed": ([None, 500], None, "does not fit: 1 of 2 ran out of memory; largest peak 500 B"),
    "failed in budget": ([None, 5], 10, "does not fit: 1 of 2 ran out of memory; largest peak 50.0% of 10 B"),
    "all failed": ([None, None], 1000, "does not fit: 2 of 2 ran out of memory"),
    "both": (
        [None, 15, 11],
        10,
        "does not fit: 1 of 3 ran out of memory and 2 of 3 peaked above the budget;\nlargest peak 150.0% of 10 B",
    ),
}


@pytest.mark.parametrize("case", sorted(VERDICTS))
def test_verdict(case):
    """The summary begins with the verdict, its reason, and the largest peak against the budget."""
    peaks, budget, verdict = VERDICTS[case]
    assert verdict == result(peaks, budget).summary().partition("\nposition")[0]


def test_lines_of_batches():
    """Each batch has a line: position, elements, longest, cost, and its peak or that it had none."""
    expected = [
        "position  items  longest  cost           peak",
        "       0      3     7/30  12.5  out of memory",
        "       1      3     7/30  12.5        1.5 KiB",
    ]
    assert expected == result([None, 1536], None, longest=(7, 30)).summary().splitlines()[1:]


@pytest.mark.parametrize(
    ("cost", "shown"),
    [(0, "0"), (12, "12"), (0.123456, "0.1235"), (12345678.9, "12345679"), ((5, 1234.5), "5/1234")],
)
def test_numbers_are_readable(cost, shown):
    """Small numbers have four digits, large ones no fraction and no exponent; several are side by side."""
    assert shown == result([10], None, cost=cost).summary().splitlines()[2].split()[3]


def test_summary_is_of_80_columns():
    """However many digits and measures, no line is longer than 80 columns."""
    many = tuple(range(10**6, 10**6 + 64))
    records = (PeakRecord(0, None, None, None, None, 0, "oom", 0.1), PeakRecord(1, None, 2**40, None, None, 0, "ok", 1))
    shapes = (BatchShape(10**9, many, many),) * 2
    worst = WorstBatches(Profile(records, "cpu"), (10**9, 10**9 + 1), ((1,),) * 2, (many,) * 2, 2**40 - 1, shapes)
    lines = worst.summary().splitlines()
    assert 80 >= max(map(len, lines))
    assert "1000000/1000001..." in lines[-1]


@EVERY_PLAN
def test_summary_of_a_run(name):
    """The summary has a line a batch, all of 80 columns at most."""
    plan = PLANS[name]
    lines = check(plan, budget=10**6).summary().splitlines()
    assert 12 == len(lines)
    assert 80 >= max(map(len, lines))
    assert str(by_hand(plan, 10)[0]) == lines[2].split()[0]


def test_result_is_a_value():
    """A result is frozen, pickles, and equals what has the same in it."""
    worst = check(PLANS["sum"], count=2, budget=np.int64(10))
    assert worst == pickle.loads(pickle.dumps(worst))  # noqa: S301
    assert int is type(worst.budget_bytes)
    with pytest.raises(FrozenInstanceError, match="positions"):
        worst.positions = ()


BAD_ARGUMENTS = {
    "plan is a list": ({"plan": [[0, 1]]}, TypeError, "`plan` must be a Plan, as plan_batches makes it, got list"),
    "plan is a class": ({"plan": Plan}, TypeError, "`plan` must be a Plan, as plan_batches makes it, got type"),
    "step is no function": ({"step": 5}, TypeError, "`step` must be callable, got int"),
    "device is a number": ({"device": 0}, TypeError, "`device` must be a torch.device or its name, got int"),
    "device is absent": ({"device": "cuda:97"}, ValueError, "`device` cuda:97 is not there"),
    "count is zero": ({"count": 0}, ValueError, "`count` must be at least 1, got 0"),
    "count is a bool": ({"count": True}, TypeError, "`count` must be an integer, got bool"),
    "count is a fraction": ({"count": 2.5}, TypeError, "`count` must be an integer, got float"),
    "budget is zero": ({"budget": 0}, ValueError, "`budget` must be at least 1, got 0"),
    "budget is a fraction": ({"budget": 1e9}, TypeError, "`budget` must be an integer, got float"),
    "budget is text": ({"budget": "1GiB"}, TypeError, "`budget` must be an integer, got str"),
    "budget is a bool": ({"budget": True}, TypeError, "`budget` must be an integer, got bool"),
    "warmup is negative": ({"warmup": -1}, ValueError, "`warmup` must be at least 0, got -1"),
    "cleanup is no function": ({"cleanup": "now"}, TypeError, "`cleanup` must be callable, got str"),
    "progress is a number": ({"progress": 1}, TypeError, "`progress` must be True or False, got int"),
}


@pytest.mark.parametrize("case", sorted(BAD_ARGUMENTS))
def test_arguments_are_checked(case):
    """A wrong argument is an error that names it, before a step is run."""
    change, error, text = BAD_ARGUMENTS[case]
    arguments = {"plan": PLANS["sum"], "step": lambda _: pytest.fail("ran a step"), "device": "cpu"}
    with pytest.raises(error, match=text):
        check_worst_batches(**arguments | change)
