"""Reports about ranks, resuming and epochs: R1 to R9 and E1 to E10."""

import copy
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from bionemo.size_aware_batching import BudgetBatchSampler, plan_batches
from bionemo.size_aware_batching.errors import SkippedElementsWarning
from bionemo.size_aware_batching.sampler import BucketBatchSampler, SizeAwareBatchSampler

LENGTHS = np.random.default_rng(1).gamma(2, 40, 700).astype(int) + 1
WORKERS = pytest.mark.parametrize("workers", [0, 2])


def make(sizes=LENGTHS, **settings):
    defaults = {"budget": 800, "cost": "padded", "strategy": "by_size", "shuffle": True, "seed": 3}
    return BudgetBatchSampler(sizes, **{**defaults, **settings})


def ranks(world_size, **settings):
    return [make(rank=rank, world_size=world_size, **settings) for rank in range(world_size)]


def elements(batches):
    return sorted(index for batch in batches for index in batch)


def chain(shares):
    """Return the batches of all ranks in one list."""
    return [batch for share in shares for batch in share]


def served(sampler, count):
    """Serve some batches, as a training that is then stopped does."""
    batches = iter(sampler)
    return [next(batches) for _ in range(count)]


def test_r1_same_number_of_steps():
    """Elements strided over ranks gave them different numbers of batches, and training hung."""
    samplers = ranks(2, sizes=[10, 40] * 4, budget=40, cost="sum", strategy="in_order", shuffle=False)
    batches = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == [len(share) for share in batches]
    assert len(batches[0]) == len(batches[1])
    assert list(range(8)) == elements(chain(batches))


def test_r2_batches_that_do_not_divide():
    """Five batches on four ranks become eight, with every element once."""
    shares = [list(sampler) for sampler in ranks(4, sizes=[1] * 50, budget=10, cost="sum", strategy="in_order")]
    assert [2, 2, 2, 2] == [len(share) for share in shares]
    assert list(range(50)) == elements(chain(shares))


@pytest.mark.parametrize(("count", "world_size"), [(3, 7), (4, 9)])
def test_r3_fewer_elements_than_ranks(count, world_size):
    """It shows when the sampler is made, with both numbers; some may be repeated."""
    with pytest.raises(ValueError, match=rf"{count} elements .*world_size {world_size} "):
        make([5] * count, rank=0, world_size=world_size)
    shares = [list(sampler) for sampler in ranks(world_size, sizes=[5] * count, fill="repeat")]
    assert [1] * world_size == [len(share) for share in shares]
    assert set(range(count)) == set(elements(chain(shares)))


def test_r4_global_seeds_that_differ():
    """Ranks that seeded the global generators each for themselves plan the same."""
    shares = []
    for rank in range(3):
        torch.manual_seed(rank)
        np.random.seed(rank)  # noqa: NPY002 - the global state is what must not matter
        shares.append(list(make(rank=rank, world_size=3)))
    assert list(range(len(LENGTHS))) == elements(chain(shares))


def test_r6_torchrun_without_arguments(monkeypatch):
    """A sampler that was told nothing serves the share that torchrun's environment names, as soon as it does."""
    early = make()
    monkeypatch.setenv("WORLD_SIZE", "4")
    shares = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        shares.append(list(make()))
        early.set_epoch(0)
        assert shares[-1] == list(early)
    assert list(range(len(LENGTHS))) == elements(chain(shares))
    everyone = make(rank="all")
    assert [shares[b % 4][b // 4] for b in range(len(everyone))] == list(everyone)


@pytest.mark.parametrize(
    ("rank", "world_size"), [("0", ""), ("", "2"), ("0", "two"), ("x", "2"), ("2", "2"), ("-1", "2"), ("0", "0")]
)
def test_r6_half_an_environment(monkeypatch, rank, world_size):
    """An environment that names half a world, or none, is an error and not rank 0 of 1."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(ValueError, match=r"RANK|rank|world_size"):
        make()


@pytest.mark.parametrize("settings", [{"rank": 0}, {"world_size": 2}, {"rank": 2, "world_size": 2}, {"rank": "both"}])
def test_r6_half_an_argument(settings):
    """Rank and world size go together."""
    with pytest.raises(ValueError, match="rank"):
        make(**settings)


@pytest.mark.parametrize("policy", ["skip", "alone"])
def test_r7_no_empty_batch(policy):
    """An element over the budget leaves no rank with an empty batch."""
    with pytest.warns(SkippedElementsWarning):
        batches = [list(s) for s in ranks(2, sizes=[10, 1, 1], budget=5, cost="sum", oversized=policy, fill="repeat")]
    assert all(batch for share in batches for batch in share)
    assert len(batches[0]) == len(batches[1])


def test_r8_ties_are_stable():
    """Equal sizes keep their order."""
    plan = plan_batches([1000] * 6 + [0, 1000], budget=2000, strategy="by_size", cost="padded")
    assert [6, 0, 1, 2, 3, 4, 5, 7] == plan.indices.tolist()


def test_r9_buckets_are_shared_out_once(monkeypatch):
    """Buckets around a sampler that knows its rank serve what that sampler serves."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sampler = BucketBatchSampler(
        torch.tensor([1, 2, 3, 4]),
        torch.tensor([0, 10]),
        SizeAwareBatchSampler,
        {"sizeof": [1, 2, 3, 4], "max_total_size": 4},
        base_batch_sampler_individual_kwargs=None,
        shuffle=False,
    )
    assert [0, 1, 2, 3] == elements(list(sampler))


def test_e1_later_epochs_are_whole():
    """Only the epoch that was stopped is shorter."""
    sizes = [5] * 50
    stopped, resumed = (make(sizes, budget=50, shuffle=False) for _ in range(2))
    first = served(stopped, 2)
    resumed.load_state_dict(stopped.state_dict())
    rest, following = list(resumed), list(resumed)
    assert (5, 3, 5) == (len(resumed), len(rest), len(following))
    assert list(range(50)) == elements(first + rest)
    assert (list(range(50)), 2) == (elements(following), resumed.epoch)


def test_e2_looking_through_before_training():
    """A pass to look at does not count."""
    sampler = make()
    list(sampler)
    sampler.set_epoch(0)
    next(iter(sampler))
    served(sampler, 2)
    assert (0, 2) == (sampler.state_dict()["epoch"], sampler.state_dict()["position"])


@WORKERS
@pytest.mark.filterwarnings("ignore:'set_vital'")  # torchdata calls what torch 2.13 no longer has
def test_e3_position_within_a_stateful_loader(workers):
    """At every position, with batches fetched ahead, the next batch is the next one; at the end, the next epoch."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    sizes = LENGTHS[:100]
    ahead = {"num_workers": workers, "prefetch_factor": 2} if workers else {}

    def loader():
        return stateful(range(100), batch_sampler=make(sizes), collate_fn=list, **ahead)

    whole, following = list(make(sizes)), _epoch(make(sizes), 1)
    for position in range(len(whole) + 1):
        first, second = loader(), loader()
        batches = iter(first)
        seen = [next(batches) for _ in range(position)]
        state = first.state_dict()
        del batches
        second.load_state_dict(state)
        rest = list(second)
        if position < len(whole):
            assert (whole, following) == (seen + rest, list(second))
        else:
            assert rest in ([], following)
            assert following == (rest or list(second))


def _epoch(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


@pytest.mark.parametrize("ended", [False, True])
def test_e4_end_of_an_epoch(ended):
    """A state saved behind the last batch, before or after the pass knows it, is the beginning of the next epoch."""
    sampler, resumed = make(), make()
    batches = iter(sampler)
    for _ in range(len(sampler)):
        next(batches)
    if ended:
        assert [] == list(batches)
    state = sampler.state_dict()
    assert (1, 0) == (state["epoch"], state["position"])
    resumed.load_state_dict(state)
    assert _epoch(make(), 1) == list(resumed)


def test_e5_resumed_twice():
    """A second resume within an epoch counts from the epoch's beginning."""
    sampler = make(budget=400)
    whole, done = list(make(budget=400)), []
    for count in (30, 10):
        done += served(sampler, count)
        state = sampler.state_dict()
        sampler = make(budget=400)
        sampler.load_state_dict(state)
    assert 40 == state["position"]
    assert whole == done + list(sampler)


@pytest.mark.parametrize("worlds", [(4, 1), (4, 2), (1, 3), (2, 3, 5), (4, 2, 4)])
def test_e6_another_number_of_ranks(worlds):
    """What was not yet served is served once, however often the number of ranks changes."""
    done, state = [], None
    for world_size in worlds:
        samplers = ranks(world_size)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(copy.deepcopy(state))
            done += served(sampler, 3)
        states = [sampler.state_dict() for sampler in samplers]
        assert all(states[0] == other for other in states)
        state = json.loads(json.dumps(states[0]))
    samplers = ranks(worlds[-1])
    for sampler in samplers:
        sampler.load_state_dict(state)
        assert len(sampler.loss_weights()) > 0
    rest = [list(sampler) for sampler in samplers]
    assert 1 == len({len(share) for share in rest})
    assert list(range(len(LENGTHS))) == elements(done + chain(rest))
    assert [1] * worlds[-1] == [sampler.epoch for sampler in samplers]
    assert list(range(len(LENGTHS))) == elements(chain(samplers))


def test_e6_all_ranks_to_one():
    """The plan of all, stopped within a turn, is continued by ranks, and the other way round."""
    sampler = make(rank="all", world_size=4)
    done = served(sampler, 5)
    state = sampler.state_dict()
    rest = []
    for share in ranks(4):
        share.load_state_dict(state)
        rest += list(share)
    assert list(range(len(LENGTHS))) == elements(done + rest)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"sizes": LENGTHS[::-1]}, "sizes"),
        ({"sizes": LENGTHS[:-1]}, "elements .699 in the state, 700 here.|elements .700 in the state, 699 here."),
        ({"budget": 801}, r"budget \(\[800.0\] in the state, \[801.0\] here\)"),
        ({"cost": "sum"}, "cost"),
        ({"strategy": "in_order"}, "strategy .'by_size' in the state, 'in_order' here."),
        ({"shuffle": False}, "shuffle"),
        ({"seed": 4}, "seed .3 in the state, 4 here."),
        ({"max_items": 4}, "max_items"),
    ],
)
def test_e7_other_data_or_settings(change, named):
    """What differs is named, with both sides, and the sampler stays as it was."""
    state, sampler = make().state_dict(), make(**change)
    expected = list(make(**change))
    with pytest.raises(ValueError, match=named):
        sampler.load_state_dict(state)
    assert expected == list(sampler)


DAMAGED = [
    {"version": 2},
    {"version": None},
    {"fingerprint": None},
    {"before": 3},
    {"before": [[1, 2]]},
    {"before": [[0, 1, 1]]},
    {"before": [[1, 1, 10**6]]},
    {"epoch": -1},
    {"epoch": 0.5},
    {"position": -1},
    {"position": "2"},
    {"position": 10**9},
    {"world_size": 0},
]


@pytest.mark.parametrize("change", DAMAGED)
def test_e7_damaged_states(change):
    """A state that no sampler wrote is refused, and the sampler stays as it was."""
    sampler = make()
    with pytest.raises(ValueError, match="the state"):
        sampler.load_state_dict(sampler.state_dict() | change)
    with pytest.raises(TypeError, match="must be a dict"):
        sampler.load_state_dict([])
    assert list(make()) == list(sampler)


def test_e8_epochs_differ():
    """Companions change from epoch to epoch, and an epoch is always the same."""
    first, second, again = (
        {tuple(sorted(batch)) for batch in batches} for batches in (list(make()), _epoch(make(), 1), list(make()))
    )
    assert first == again
    assert len(first & second) < 0.2 * len(first)


def test_e9_set_epoch_after_loading():
    """A trainer that sets the restored epoch again keeps its position; another one begins anew."""
    sampler, resumed = make(), make()
    _epoch(sampler, 4)
    served(sampler, 3)
    state = sampler.state_dict()
    kept = copy.deepcopy(state)
    resumed.load_state_dict(state)
    resumed.set_epoch(state["epoch"])
    assert _epoch(make(), 5)[3:] == list(resumed)
    assert kept == state
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert list(make()) == list(resumed)


PLANNING = """
import json, sys
from bionemo.size_aware_batching import BudgetBatchSampler
lengths, settings = json.load(sys.stdin)
json.dump(list(BudgetBatchSampler(lengths, **settings)), sys.stdout)
"""


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_e10_other_processes(hash_seed):
    """Processes that share nothing, not even how they hash, plan the same."""
    settings = {"budget": 800, "cost": "padded", "strategy": "by_size", "shuffle": True, "seed": 3}
    done = subprocess.run(
        [sys.executable, "-c", PLANNING],
        input=json.dumps([LENGTHS.tolist(), settings]),
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert list(make(**settings)) == json.loads(done.stdout)


@pytest.mark.parametrize("position", [0, 1, 7])
def test_position_that_the_trainer_knows(position):
    """With workers that fetch ahead, the trainer says how many batches it has used."""
    sampler, resumed = make(), make()
    loader = iter(DataLoader(range(len(LENGTHS)), batch_sampler=sampler, collate_fn=list, num_workers=2))
    used = [next(loader) for _ in range(position)]
    resumed.load_state_dict(sampler.state_dict(position))
    assert list(make()) == used + list(resumed)
    with pytest.raises(ValueError, match="at most the"):
        sampler.state_dict(len(sampler) + 1)


def test_accumulation_is_a_property_of_the_run():
    """Another number of batches in a step resumes like another number of ranks."""
    sampler, resumed = make(accumulate=4), make(accumulate=3)
    done = served(sampler, 5)
    resumed.load_state_dict(sampler.state_dict())
    rest = list(resumed)
    assert 0 == len(rest) % 3
    assert list(range(len(LENGTHS))) == elements(done + rest)


WORKER = """
import json, sys
import torch.distributed as dist
from bionemo.size_aware_batching import BudgetBatchSampler
lengths = [7 + 13 * i % 97 for i in range(400)]
early = BudgetBatchSampler(lengths, budget=500, cost="padded", strategy="by_size", shuffle=True)
dist.init_process_group("gloo")
rank = dist.get_rank()
late = BudgetBatchSampler(lengths, budget=500, cost="padded", strategy="by_size", shuffle=True)
if rank == 0:  # a collective in any of these would hang
    len(late), repr(late), late.set_epoch(0), late.state_dict(), late.load_state_dict(late.state_dict())
    late.plan.summary(), late.loss_weights()
dist.barrier()
batches = list(late)
assert batches == list(early)
shares = [None] * dist.get_world_size()
dist.all_gather_object(shares, batches)
assert 1 == len({len(share) for share in shares})
assert list(range(400)) == sorted(i for share in shares for batch in share for i in batch)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("world_size", [2, 4])
def test_r5_no_collective_under_torchrun(world_size, tmp_path):
    """Under torchrun each rank serves its share, before and after the group is up, and nothing waits for others."""
    script = tmp_path / "train.py"
    script.write_text(WORKER)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={world_size}", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
