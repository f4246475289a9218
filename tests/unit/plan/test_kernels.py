"""The compiled loops mean what they say in plain Python."""

import hashlib
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from bionemo.size_aware_batching.plan import _kernels
from bionemo.size_aware_batching.plan._order import seeds

RANDOM = np.random.default_rng(11)
RULES = [(50, 50, 1), (3, 9, 1), (9, 9, 4), (1, 50, 3)]


def both(name, *arguments):
    """Run a loop compiled and as plain Python, each on its own copies; return results and arrays of both."""
    kernel = getattr(_kernels, name)
    outcomes = []
    for function in (kernel, getattr(kernel, "py_func", kernel)):
        copies = [value.copy() if isinstance(value, np.ndarray) else value for value in arguments]
        returned = function(*copies)
        arrays = [(value.dtype, value.tolist()) for value in copies if isinstance(value, np.ndarray)]
        outcomes.append((returned, arrays))
    return outcomes


def sizes_of(dtype, shape=60):
    sizes = RANDOM.integers(0, 40, shape)
    return (sizes / 8 if np.dtype(dtype).kind == "f" else sizes).astype(dtype)


DTYPES = pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float64])


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("total", [0, 30])
def test_cut_by_sum(dtype, total):
    """Running sums are cut at the same places."""
    number = np.dtype(dtype).type
    compiled, plain = both("cut_by_sum", sizes_of(dtype), number(50), number(total), np.zeros(60, np.int64))
    assert plain == compiled


COSTS = [(0, 1, 0), (1, 1, 0), (1, 8, 0), (1, 5, 2), (2, 1, 0)]
WEIGHTS = np.array([70.0, 3.0, 2.0, 1.0, 0.5, 0.01, 0.02])


@DTYPES
@pytest.mark.parametrize(("kind", "multiple_of", "extra"), COSTS)
@pytest.mark.parametrize("rules", RULES)
def test_cut_one(dtype, kind, multiple_of, extra, rules):
    """Each kind of cost cuts one measure at the same places."""
    limit = np.float64(120) if kind == 2 or dtype is np.float64 else np.int64(120)
    arguments = (limit, kind, multiple_of, extra, WEIGHTS, rules, np.zeros(60, np.int64))
    compiled, plain = both("cut_one", sizes_of(dtype), *arguments)
    assert plain == compiled


@DTYPES
@pytest.mark.parametrize(("kind", "multiple_of", "extra"), COSTS[:4])
@pytest.mark.parametrize("rules", RULES)
def test_cut_several(dtype, kind, multiple_of, extra, rules):
    """Each kind of cost cuts several measures at the same places."""
    limits = np.array([120, 90, 200], np.float64 if dtype is np.float64 else np.int64)
    arguments = (limits, kind, multiple_of, extra, WEIGHTS, rules, np.zeros(60, np.int64))
    compiled, plain = both("cut_several", sizes_of(dtype, (60, 3)), *arguments)
    assert plain == compiled


@pytest.mark.parametrize(("kind", "multiple_of", "extra"), COSTS)
def test_fits(kind, multiple_of, extra):
    """A shape is within the limit or not, in both."""
    shapes = itertools.product((1, 3, 8), (0, 5, 13), (0, 20, 60), (20, 60, 104, 120))
    for items, longest, total, limit in shapes:
        compiled, plain = both("fits", kind, multiple_of, extra, WEIGHTS, items, longest, total, limit)
        assert plain == compiled


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_sort_counted(dtype):
    """The counting sort is numpy's stable sort, in both."""
    sizes = sizes_of(dtype) + dtype(7)
    lowest = int(sizes.min())
    counts = np.zeros(int(sizes.max()) - lowest + 2, np.int64)
    compiled, plain = both("sort_counted", sizes, lowest, counts, np.zeros(60, np.int32))
    assert plain == compiled
    assert np.argsort(sizes, kind="stable").tolist() == compiled[1][2][1]


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_permute(dtype):
    """Runs are shuffled alike and stay what they are."""
    runs = np.array([0, 0, 1, 20, 22, 60])
    compiled, plain = both("permute", np.arange(60, dtype=dtype), runs, *seeds(3, 4))
    assert plain == compiled
    order = compiled[1][0][1]
    expected = [list(range(low, high)) for low, high in itertools.pairwise(runs.tolist())]
    assert expected == [sorted(order[low:high]) for low, high in itertools.pairwise(runs.tolist())]
    assert list(range(60)) != order


@DTYPES
@pytest.mark.parametrize("first", [seeds(5, 6), (0, 0)])
@pytest.mark.parametrize("measures", [1, 2])
def test_emit(dtype, first, measures):
    """Blocks are dealt alike, shuffled or not."""
    offsets = np.arange(0, 61, 5)
    shapes = np.zeros((2, 12, measures), np.float64 if dtype is np.float64 else np.int64)
    compiled, plain = both(
        "emit",
        np.arange(60, dtype=np.int32),
        sizes_of(dtype, (60, measures)),
        4,
        np.repeat(np.arange(3, dtype=np.int32), 5),
        np.tile(np.arange(5, dtype=np.int32), 3),
        RANDOM.permutation(12),
        offsets,
        *first,
        np.zeros(60, np.int32),
        *shapes,
    )
    assert plain == compiled
    assert list(range(60)) == sorted(compiled[1][6][1])


@DTYPES
@pytest.mark.parametrize("measures", [1, 2])
def test_shapes(dtype, measures):
    """Longest and total of runs are the same."""
    shapes = np.zeros((2, 5, measures), np.float64 if dtype is np.float64 else np.int64)
    compiled, plain = both("shapes", sizes_of(dtype, (60, measures)), np.array([0, 1, 20, 21, 40, 60]), *shapes)
    assert plain == compiled


def levels_of(capacity):
    """Return where the levels of the index of residuals begin."""
    lengths, bits = [], capacity + 1
    while bits > 1:
        bits = -(-bits // 32)
        lengths.append(bits)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def packed_naively(sizes, capacity, max_items):
    """Pack by best-fit decreasing, looking at every open batch; return the sorted sums."""
    batches = []
    for size in sorted(sizes, reverse=True):
        fitting = [b for b in batches if sum(b) + size <= capacity and len(b) < max_items]
        best = max(fitting, key=sum, default=None)
        batches.extend([[]] if best is None else [])
        (batches[-1] if best is None else best).append(size)
    return sorted(map(sum, batches))


@pytest.mark.parametrize("capacity", [1, 31, 32, 40, 1023, 1024, 40_000, 2**20])
@pytest.mark.parametrize("max_items", [1, 3, 200])
def test_pack(capacity, max_items):
    """Elements go into the same batches, which are those of best fit by looking at each batch."""
    sizes = np.sort(RANDOM.integers(0, capacity // RANDOM.integers(1, 5) + 1, 150))
    slots = np.zeros((2, 150), np.int32)
    compiled, plain = both("pack", sizes, capacity, max_items, levels_of(capacity), *slots)
    assert plain == compiled
    batch = np.array(compiled[1][2][1])
    sums = np.bincount(batch, weights=sizes).astype(int).tolist()
    assert packed_naively(sizes.tolist(), capacity, max_items) == sorted(sums)


@pytest.mark.parametrize("capacity", [1, 40, 1000, 2**20])
@pytest.mark.parametrize("max_items", [1, 2, 3, 200])
@pytest.mark.parametrize("sampled", [0, 1])
def test_pack_exactly(capacity, max_items, sampled):
    """Batch after batch is filled alike: each element once, none over the limits, no two that fit into one."""
    sizes = np.sort(RANDOM.integers(0, capacity // RANDOM.integers(1, 5) + 1, 150))
    values, counts = np.unique(sizes, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(counts)])
    compiled, plain = both("pack_exactly", values, ends, capacity, max_items, sampled, *np.full((2, 150), -1, np.int32))
    assert plain == compiled
    batch, place = np.array(compiled[1][2][1]), np.array(compiled[1][3][1])
    items = np.bincount(batch)
    sums = np.bincount(batch, weights=sizes)
    assert (compiled[0], True, True) == (items.size, items.max() <= max_items, sums.max() <= capacity)
    assert {(b, i) for b in range(items.size) for i in range(items[b])} == set(zip(batch, place, strict=True))
    smallest = np.array([sizes[batch == b].min() for b in range(items.size)])
    follows = np.minimum.accumulate(smallest[::-1])[::-1]
    room = (items[:-1] < max_items) & (sums[:-1] + follows[1:] <= capacity)
    assert [] == np.flatnonzero(room).tolist()


@pytest.mark.parametrize(
    ("sizes", "capacity", "batches"),
    [
        pytest.param([2, 5, 6], 7, [0, 0, 1], id="the smaller two fill the room"),
        pytest.param([3, 4, 5, 6, 7], 10, [0, 1, 2, 1, 0], id="the first of equal pairs"),
        pytest.param([1, 2, 4, 4, 7], 8, [0, 2, 1, 1, 0], id="two of one size"),
    ],
)
def test_pack_exactly_takes_the_pair_that_leaves_the_least_room(sizes, capacity, batches):
    """Of the pairs that can end a batch, the one that leaves the least room is taken, largest first among equals."""
    values, counts = np.unique(sizes, return_counts=True)
    ends = np.concatenate([[0], np.cumsum(counts)])
    for _, arrays in both("pack_exactly", values, ends, capacity, 9, 0, *np.zeros((2, len(sizes)), np.int32)):
        assert batches == arrays[2][1]


@pytest.mark.parametrize("word", [0, 1, 2**31 - 1, 2**32 - 1, 123456789])
def test_draw_bucket(word):
    """The same bucket is drawn."""
    counts = np.array([3, 0, 17, 1, 0, 400])
    compiled, plain = both("draw_bucket", word, counts, 421)
    assert plain == compiled
    alike = np.full(40, 7)
    compiled, plain = both("draw_bucket", word, alike, 280)
    assert plain == compiled


@pytest.mark.parametrize(("max_width", "min_count"), [(1, 1), (5, 10), (7, 1000), (200, 3)])
def test_fill_buckets(max_width, min_count):
    """Buckets close at the same values."""
    values = np.array([0, 1, 2, 5, 6, 30, 31, 100, 101])
    counts = np.array([4, 1, 1, 9, 2, 2, 30, 1, 1])
    nothing = np.zeros(0, np.int64)
    compiled, plain = both("fill_buckets", values, counts, max_width, min_count, nothing, nothing)
    assert plain == compiled
    upper = np.zeros((2, compiled[0]), np.int64)
    compiled, plain = both("fill_buckets", values, counts, max_width, min_count, *upper)
    assert plain == compiled


SCRIPT = """
import hashlib, itertools
import numpy as np
from bionemo.size_aware_batching import MemoryModel, PaddedCost, plan_batches

random = np.random.default_rng(1)
whole = random.integers(1, 60, 400)
shapes = [(n, long, n * long) for n in (1, 4, 16) for long in (8, 32, 128)]
model = MemoryModel().fit(shapes, [1000 + 20 * n * long for n, long, _ in shapes])
several = np.stack([whole, random.integers(0, 90, 400)], 1)
digest = hashlib.sha256()
plans = []
for dtype, shuffle in itertools.product((np.uint8, np.int32, np.int64, np.float32, np.float64), (False, True)):
    sizes = whole.astype(dtype) / (4 if np.dtype(dtype).kind == "f" else 1)
    same = {"shuffle": shuffle, "seed": 2, "epoch": 3}
    plans += [
        plan_batches(sizes, budget=150, strategy=strategy, max_items=most, **same)
        for strategy in ("in_order", "by_size", "best_fit")
        for most in (None, 3)
    ]
    plans += [
        plan_batches(sizes, budget=30_000 if cost is model else 900, cost=cost, strategy=strategy, **same)
        for strategy in ("in_order", "by_size")
        for cost in ("padded", PaddedCost(8, 2), model, lambda items, longest, total: items * longest)
    ]
    plans += [
        plan_batches(several.astype(dtype), budget=[200, 150], cost=cost, strategy=strategy, **same)
        for strategy in ("in_order", "by_size")
        for cost in ("sum", "padded", PaddedCost(multiple_of=4))
    ]
    plans.append(plan_batches(sizes, budget=150, strategy="by_size", uniform=True, items_multiple_of=2, **same))
    plans.append(plan_batches(sizes, budget=70, strategy="best_fit", **same))
plans.append(plan_batches(whole, budget=150, strategy="by_size", shuffle=True, window=40))
for plan in plans:
    for name in ("indices", "offsets", "cost", "longest", "total", "skipped", "largest_cost"):
        digest.update(getattr(plan, name).tobytes())
print(len(plans), digest.hexdigest())
"""


def run(script, **environment):
    """Run a script in a fresh interpreter and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_plans_without_compilation():
    """With compilation disabled every array of every plan is the same, bit for bit."""
    count, digest = run(SCRIPT, NUMBA_DISABLE_JIT="1").split()
    assert ["221", digest] == run(SCRIPT, NUMBA_DISABLE_JIT="0").split()
    assert ("221", hashlib.sha256().digest_size * 2) == (count, len(digest))
