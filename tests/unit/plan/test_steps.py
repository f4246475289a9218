"""Plans for several ranks: equal steps by splitting, near-equal costs in a step, shares, and loss weights."""

import numpy as np
import pytest

from bionemo.size_aware_batching import PaddedCost, Plan, plan_batches
from bionemo.size_aware_batching.errors import SkippedElementsWarning

LENGTHS = np.random.default_rng(0).gamma(2, 150, 3000).astype(int) + 1
BY_SIZE = {"cost": "padded", "strategy": "by_size"}


def shares(plan, world_size):
    return [plan.for_rank(rank, world_size) for rank in range(world_size)]


def test_batches_take_turns():
    """Batch by batch the ranks are dealt to, and their shares are the whole plan."""
    plan = plan_batches(LENGTHS, budget=5000, world_size=4, shuffle=True, **BY_SIZE)
    dealt = shares(plan, 4)
    assert list(plan) == [dealt[b % 4][b // 4] for b in range(len(plan))]
    for rank, share in enumerate(dealt):
        assert (rank, 4, 1) == (share.rank, share.world_size, share.accumulate)
        for name in ("cost", "longest", "total", "items", "uniform"):
            assert getattr(plan, name)[rank::4].tolist() == getattr(share, name).tolist()
        assert plan.step_items.tolist() == share.step_items.tolist()
        assert plan.step_total.tolist() == share.step_total.tolist()


@pytest.mark.parametrize("strategy", ["in_order", "by_size", "best_fit"])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("world_size", "accumulate"), [(3, 1), (1, 5), (7, 4), (64, 3)])
def test_whole_steps(strategy, shuffle, world_size, accumulate):
    """Every element comes once, in whole steps, and splitting adds fewer batches than a step has."""
    settings = {"budget": 5000, "cost": "sum", "strategy": strategy, "shuffle": shuffle}
    alone = plan_batches(LENGTHS, **settings)
    plan = plan_batches(LENGTHS, **settings, world_size=world_size, accumulate=accumulate)
    assert list(range(len(LENGTHS))) == sorted(plan.indices.tolist())
    assert 0 == len(plan) % (world_size * accumulate)
    assert 0 <= len(plan) - len(alone) < world_size * accumulate
    assert plan.cost.max() <= 5000
    assert plan.items.min() > 0
    assert plan.cost.tolist() == [LENGTHS[batch].sum() for batch in plan]
    assert plan.longest.tolist() == [LENGTHS[batch].max() for batch in plan]


@pytest.mark.parametrize("shuffle", [False, True])
def test_near_equal_costs_in_a_turn(shuffle):
    """By size, the costliest batch of a turn is within 2 % of the mean, over all turns."""
    summary = plan_batches(LENGTHS, budget=5000, world_size=8, shuffle=shuffle, **BY_SIZE).summary()
    assert 0 <= summary.step_imbalance <= 0.02
    assert f"8 ranks take {summary.batches // 8} batches each; the costliest of a turn is" in str(summary)


def test_imbalance_is_what_ranks_wait():
    """The largest cost of each turn, over the mean."""
    plan = plan_batches([4, 2, 3, 3], budget=4, world_size=2)
    assert [[0], [1], [2], [3]] == list(plan)
    assert pytest.approx((4 + 3) / (3 + 3) - 1) == plan.summary().step_imbalance


def test_share_has_no_turns_of_its_own():
    """A share's figures are of its own batches, and it does not speak of turns."""
    share = plan_batches(LENGTHS, budget=5000, world_size=8, **BY_SIZE).for_rank(3, 8)
    assert 1 == share.summary().ranks
    assert "ranks" not in str(share.summary())
    assert f"Plan(batches={len(share)}, elements={share.indices.size}, skipped=0, world_size=8, rank=3)" == repr(share)


def test_in_order_stays_in_order():
    """Without shuffling, elements in order stay so, and the cheapest batches are split where they are."""
    plan = plan_batches([5, 5, 2, 2, 2, 9], budget=10, world_size=2)
    assert [[0, 1], [2, 3], [4], [5]] == list(plan)


def test_multiple_of_items_stays():
    """Parts of a batch keep to the multiple of items, as long as it has that many."""
    plan = plan_batches(np.full(100, 2), budget=80, items_multiple_of=8, world_size=4, **BY_SIZE)
    assert 0 == len(plan) % 4
    assert all(items <= 8 or items % 8 == 0 for items in plan.items.tolist())


@pytest.mark.parametrize("items", [1, 7, 8, 9, 24, 40])
@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_multiple_of_items_in_small_plans(items, world_size):
    """However few there are, no number of items above the multiple is not one."""
    if items < world_size:
        return
    plan = plan_batches([1] * items + [3], budget=1000, items_multiple_of=8, world_size=world_size, max_items=40)
    assert all(n <= 8 or n % 8 == 0 for n in plan.items.tolist())
    assert list(range(items + 1)) == sorted(plan.indices.tolist())


@pytest.mark.parametrize(("elements", "world_size"), [(3, 7), (4, 9), (1, 2)])
def test_fewer_elements_than_ranks(elements, world_size):
    """It is refused with both numbers, or some are served twice so that every rank has a batch."""
    with pytest.raises(ValueError, match=rf"^{elements} elements are too few for steps of {world_size} batches"):
        plan_batches([1] * elements, budget=5, world_size=world_size)
    plan = plan_batches([1] * elements, budget=5, world_size=world_size, fill="repeat")
    assert [[b % elements] for b in range(world_size)] == list(plan)
    assert [world_size] == plan.step_items.tolist()


@pytest.mark.parametrize("shuffle", [False, True])
def test_repeat_by_size(shuffle):
    """Repeated batches are ordered like others; each element comes at least once."""
    plan = plan_batches([1, 2, 3], budget=5, world_size=4, accumulate=2, fill="repeat", shuffle=shuffle, **BY_SIZE)
    assert 8 == len(plan)
    assert {0, 1, 2} == set(plan.indices.tolist())


def test_repeat_where_an_element_is_alone():
    """An element over a user's cost comes alone as often as it has to."""
    with pytest.warns(SkippedElementsWarning, match="given a batch alone"):
        plan = plan_batches(
            [9, 1], budget=5, cost=lambda items, longest, total: total, oversized="alone", world_size=5, fill="repeat"
        )
    assert 5 == len(plan)


def test_nothing_to_share():
    """No element means no batch, on every rank."""
    plan = plan_batches([], budget=5, world_size=3)
    assert [0, 0, 0] == [len(share) for share in shares(plan, 3)]
    assert 0 == plan.loss_weights().size


def test_all_ranks_plan_the_same():
    """With or without shuffling, the plan is a function of its arguments, and epochs differ in it."""
    settings = {"budget": 3000, "world_size": 4, "shuffle": True, **BY_SIZE}
    first, again, next_one = (list(plan_batches(LENGTHS, **settings, seed=1, epoch=epoch)) for epoch in (0, 0, 1))
    assert first == again
    assert first != next_one
    assert len(first) == len(next_one)


def test_no_rank_is_always_the_costliest():
    """Shuffled, the batches of a turn go to random ranks."""
    plan = plan_batches(LENGTHS, budget=1500, world_size=4, shuffle=True, **BY_SIZE)
    costs = [share.cost.sum() for share in shares(plan, 4)]
    assert max(costs) < 1.01 * min(costs)
    costliest = plan.cost.reshape(-1, 4).argmax(axis=1)
    assert {0, 1, 2, 3} == set(costliest.tolist())


@pytest.mark.parametrize("per", ["items", "total"])
@pytest.mark.parametrize(("world_size", "accumulate"), [(1, 1), (4, 1), (2, 3)])
def test_weights_make_averages_exact(per, world_size, accumulate):
    """Means of batches, weighted and averaged over ranks, are the mean over the step."""
    plan = plan_batches(LENGTHS, budget=5000, world_size=world_size, accumulate=accumulate, shuffle=True, **BY_SIZE)
    values, counts = np.sqrt(LENGTHS), np.ones(len(LENGTHS)) if per == "items" else LENGTHS
    means = [(values[b] * counts[b]).sum() / counts[b].sum() for b in plan]
    weighted = (np.array(means) * plan.loss_weights(per)).reshape(-1, world_size * accumulate).sum(axis=1) / world_size
    steps = [
        np.concatenate([plan[b] for b in range(first, first + world_size * accumulate)])
        for first in range(0, len(plan), world_size * accumulate)
    ]
    np.testing.assert_allclose(weighted, [np.average(values[step], weights=counts[step]) for step in steps])
    for rank, share in enumerate(shares(plan, world_size)):
        assert plan.loss_weights(per)[rank::world_size].tolist() == share.loss_weights(per).tolist()


def test_weights_of_several_measures():
    """Each measure has its own weight; a step without any of it has weights too."""
    plan = plan_batches([(1, 0), (3, 0)], budget=[3, 3], world_size=2)
    assert [[0.5, 0], [1.5, 0]] == plan.loss_weights("total").tolist()
    with pytest.raises(ValueError, match="`per` must be one of"):
        plan.loss_weights("tokens")


@pytest.mark.parametrize(
    ("rank", "world_size", "error"),
    [(2, 2, "below"), (-1, 2, "at least 0"), (0, 0, "at least 1"), (0, 3, "do not divide by world_size 3")],
)
def test_no_such_share(rank, world_size, error):
    """Ranks that are not there are refused."""
    with pytest.raises(ValueError, match=error):
        plan_batches([1, 2, 3, 4], budget=5, max_items=1).for_rank(rank, world_size)
    with pytest.raises(TypeError, match="must be an integer"):
        plan_batches([1], budget=5).for_rank(0.0, 1)


def test_share_of_a_share():
    """Sharding twice is refused, whatever the world size."""
    share = plan_batches([1, 2, 3, 4], budget=5, max_items=1, world_size=2).for_rank(1, 2)
    with pytest.raises(ValueError, match="is the share of rank 1 of 2 already"):
        share.for_rank(0, 1)


def test_another_world_size():
    """A plan can be dealt to another number of ranks that divides it; steps then are those of that number."""
    plan = plan_batches([1, 2, 3, 4], budget=5, max_items=1, world_size=4)
    half = plan.for_rank(1, 2)
    assert ([[1], [3]], [2, 2], [3, 7]) == (list(half), half.step_items.tolist(), half.step_total.tolist())


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"world_size": 0}, "`world_size` must be at least 1"),
        ({"accumulate": 0}, "`accumulate` must be at least 1"),
        ({"fill": "drop"}, "`fill` must be one of 'raise', 'repeat'"),
    ],
)
def test_settings_that_are_none(settings, error):
    """Wrong numbers of ranks and unknown policies are refused."""
    with pytest.raises(ValueError, match=error):
        plan_batches([1], budget=1, **settings)


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("rank", [None, 2])
def test_round_trip(rank, mmap, tmp_path):
    """A file keeps who shares the plan, and whose share it is."""
    plan = plan_batches(LENGTHS, budget=5000, world_size=3, accumulate=2, cost=PaddedCost(8), strategy="by_size")
    plan = plan if rank is None else plan.for_rank(rank, 3)
    plan.save(tmp_path / "plan.npz")
    loaded = Plan.load(tmp_path / "plan.npz", mmap=mmap)
    assert (3, 2, rank) == (loaded.world_size, loaded.accumulate, loaded.rank)
    assert list(plan) == list(loaded)
    assert plan.loss_weights("total").tolist() == loaded.loss_weights("total").tolist()
