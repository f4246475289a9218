"""Bad input to plans: an error that names the argument; legitimate input of an unusual kind: the right plan."""

import contextlib
import datetime as dt
import decimal
import fractions
import itertools

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching import BatchShape, BudgetBatchSampler, MemoryModel, PaddedCost, SumCost, plan_batches
from bionemo.size_aware_batching.errors import OversizedError

SIZES = [3, 1, 2, 5, 4]
EXPECTED = [[0, 1, 2], [3], [4]]


class Failing:
    """Refuses to become an array."""

    def __array__(self, dtype=None, copy=None):
        message = "no array today"
        raise ValueError(message)


def masked_objects():
    array = np.empty(2, object)
    array[:] = [[1], {2: 3}]
    return array


def structured():
    return np.array([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")])


BAD_SIZES = {
    "None": lambda: None,
    "an int": lambda: 5,
    "a float": lambda: 5.0,
    "a bool": lambda: True,
    "a string": lambda: "123",
    "bytes": lambda: b"123",
    "a dict": lambda: {0: 1, 1: 2},
    "a set": lambda: {1, 2, 3},
    "a generator": lambda: (size for size in SIZES),
    "an iterator": lambda: iter(SIZES),
    "a function": lambda: len,
    "a type": lambda: int,
    "an object": object,
    "refuses": Failing,
    "list of None": lambda: [None, 1],
    "list of strings": lambda: ["1", "2"],
    "list of bytes": lambda: [b"1"],
    "list of bools": lambda: [True, False],
    "list of dicts": lambda: [{}, {}],
    "list of sets": lambda: [{1}, {2}],
    "list of complex": lambda: [1j, 2],
    "list of dates": lambda: [dt.date(2024, 1, 1)],
    "list of decimals": lambda: [decimal.Decimal(1)],
    "list of fractions": lambda: [fractions.Fraction(1, 2)],
    "ragged": lambda: [[1], [2, 3]],
    "ragged deep": lambda: [1, [2, 3]],
    "numbers and strings": lambda: [1, "2"],
    "0-d array": lambda: np.array(5),
    "0-d float": lambda: np.float64(5),
    "0-d tensor": lambda: torch.tensor(5),
    "3-D": lambda: np.ones((2, 2, 2)),
    "3-D list": lambda: [[[1]]],
    "3-D empty": lambda: np.ones((0, 2, 2)),
    "4-D tensor": lambda: torch.ones(1, 1, 1, 1),
    "no columns": lambda: np.ones((3, 0)),
    "no rows or columns": lambda: np.ones((0, 0)),
    "list of nothing": lambda: [[], []],
    "bools": lambda: np.array([True, False]),
    "bool tensor": lambda: torch.tensor([True, False]),
    "complex": lambda: np.array([1 + 0j]),
    "complex tensor": lambda: torch.ones(2, dtype=torch.complex64),
    "strings": lambda: np.array(["1", "2"]),
    "empty strings": lambda: np.array([], "U1"),
    "dates": lambda: np.array(["2024-01-01"], "M8[D]"),
    "times": lambda: np.array([1, 2], "m8[s]"),
    "structured": structured,
    "void": lambda: np.zeros(2, "V8"),
    "objects": masked_objects,
    "objects 2-D": lambda: np.array([[1, 2], [3, 4]], object),
    "objects with bool": lambda: np.array([1, True], object),
    "NaN": lambda: [1.0, float("nan")],
    "NaN float32": lambda: np.array([1, np.nan], np.float32),
    "NaN float16": lambda: np.array([1, np.nan], np.float16),
    "NaN object": lambda: np.array([1, float("nan")], object),
    "NaN 2-D": lambda: np.array([[1, 2], [3, np.nan]]),
    "NaN tensor": lambda: torch.tensor([1, float("nan")]),
    "NaN among many": lambda: np.where(np.arange(10_000) == 9_999, np.nan, 1.0),
    "inf": lambda: [1.0, float("inf")],
    "minus inf": lambda: [-float("inf"), 1.0],
    "inf float32": lambda: np.array([np.inf], np.float32),
    "negative": lambda: [1, -1],
    "negative int8": lambda: np.array([1, -1], np.int8),
    "negative big-endian": lambda: np.array([1, -1], ">i4"),
    "negative float": lambda: [1.0, -1e-300],
    "negative column": lambda: [[1, 1], [1, -1]],
    "negative reversed": lambda: np.array([-1, 1, 2])[::-1],
    "smallest int64": lambda: np.array([-(2**63)]),
    "beyond double": lambda: [10**400, 1],
    "negative beyond double": lambda: [-(10**400), 1],
    "beyond double long": lambda: np.array([np.longdouble("1e400"), 1]),
    "masked array": lambda: np.ma.masked_array([1, 2], [True, False]),
    "meta tensor": lambda: torch.ones(3, device="meta"),
    "sparse tensor": lambda: torch.ones(3).to_sparse(),
}
BOTH = pytest.mark.parametrize("call", [plan_batches, BudgetBatchSampler])


@BOTH
@pytest.mark.parametrize("kind", sorted(BAD_SIZES))
def test_bad_sizes(call, kind):
    """Sizes of a wrong kind, shape or value end in an error that names them."""
    with pytest.raises((TypeError, ValueError), match="`sizes") as caught:
        call(BAD_SIZES[kind](), budget=10**9)
    assert not isinstance(caught.value, OversizedError)


@pytest.mark.parametrize("strategy", ["by_size", "best_fit"])
@pytest.mark.parametrize("kind", ["NaN", "negative", "3-D", "None", "strings", "inf", "beyond double"])
def test_bad_sizes_under_every_strategy(strategy, kind):
    """Sizes are looked at before anything is planned, whatever the strategy."""
    with pytest.raises((TypeError, ValueError), match="`sizes"):
        plan_batches(BAD_SIZES[kind](), budget=10**9, strategy=strategy)


def test_tensor_that_numpy_has_no_type_for():
    """A bfloat16 tensor is refused by the plan, and its values are what the sampler takes."""
    sizes = torch.ones(2, dtype=torch.bfloat16)
    with pytest.raises(TypeError, match="`sizes`"):
        plan_batches(sizes, budget=2)
    assert [[0, 1]] == list(BudgetBatchSampler(sizes, budget=2))


NOT_NUMBERS = {
    "None": None,
    "string": "10",
    "bytes": b"10",
    "bool": True,
    "numpy bool": np.True_,
    "complex": 10j,
    "numpy complex": np.complex128(10),
    "dict": {"a": 10},
    "set": {10},
    "generator": (budget for budget in [10]),
    "function": len,
    "tensor": torch.tensor([10.0, 3.0]),
    "decimal": decimal.Decimal(10),
    "date": dt.date(2024, 1, 1),
    "numpy date": np.datetime64("2024-01-01"),
    "duration": np.timedelta64(10, "ns"),
    "list of None": [None],
    "list of strings": ["10"],
    "array of strings": np.array(["10"]),
    "array of bools": np.array([True]),
    "nested": [[10]],
    "2-D array": np.array([[10]]),
    "object array": np.array([None]),
}
NOT_BUDGETS = NOT_NUMBERS | {
    "zero": 0,
    "negative": -1,
    "minus zero": -0.0,
    "NaN": float("nan"),
    "inf": float("inf"),
    "minus inf": -float("inf"),
    "numpy NaN": np.float32("nan"),
    "beyond double": 10**400,
    "several": [10, 10],
    "none": [],
    "empty array": np.array([]),
}


@BOTH
@pytest.mark.parametrize("kind", sorted(NOT_BUDGETS))
def test_bad_budgets(call, kind):
    """A budget that is no positive finite number ends in an error that names it."""
    with pytest.raises((TypeError, ValueError), match="`budget`"):
        call(SIZES, budget=NOT_BUDGETS[kind])


@pytest.mark.parametrize(
    "budget", [10, [10], [10, 10, 10], [10, 0], [10, None], [10, float("nan")], (10, "10"), [10, True]]
)
@pytest.mark.parametrize("cost", ["sum", "padded"])
def test_bad_budgets_of_several_measures(budget, cost):
    """Of two measures each has a budget, and each is a positive number."""
    with pytest.raises((TypeError, ValueError), match="`budget`"):
        plan_batches([(1, 2), (3, 4)], budget=budget, cost=cost)


NOT_INTS = NOT_NUMBERS | {"float": 2.0, "NaN": float("nan"), "inf": float("inf"), "fraction": fractions.Fraction(2)}
LIMITS = pytest.mark.parametrize("name", ["max_items", "window", "items_multiple_of", "seed", "epoch"])
TOGETHER = {"strategy": "by_size", "shuffle": True, "budget": 10}


@LIMITS
@pytest.mark.parametrize("kind", sorted(set(NOT_INTS) - {"None", "list of None"}))
def test_bad_integers(name, kind):
    """Settings that are integers are refused by name when they are anything else."""
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        plan_batches(SIZES, **TOGETHER, **{name: NOT_INTS[kind]})


@LIMITS
@pytest.mark.parametrize("value", [-1, -(10**30), np.int64(-1)])
def test_integers_too_small(name, value):
    """Negative numbers of items, seeds and epochs are refused by name."""
    with pytest.raises(ValueError, match=f"`{name}`"):
        plan_batches(SIZES, **TOGETHER, **{name: value})


@pytest.mark.parametrize("name", ["max_items", "window", "items_multiple_of"])
def test_zero_items(name):
    """Limits on the number of elements are at least 1."""
    with pytest.raises(ValueError, match=f"`{name}`"):
        plan_batches(SIZES, **TOGETHER, **{name: 0})


@pytest.mark.parametrize("name", ["items_multiple_of", "seed", "epoch"])
def test_integers_that_are_none(name):
    """None is a value only where it has a meaning."""
    with pytest.raises(TypeError, match=f"`{name}`"):
        plan_batches(SIZES, **TOGETHER, **{name: None})


@LIMITS
@pytest.mark.parametrize("value", [2**31, 2**63 - 1, 2**63, 2**64 + 5, 10**400], ids=["31", "63-", "63", "64", "400"])
@pytest.mark.parametrize("cost", ["padded", lambda items, longest, total: items * longest], ids=["named", "function"])
def test_huge_integers(name, value, cost):
    """Integers of any length are taken: a limit beyond the number of elements is none."""
    plan = plan_batches(SIZES, **TOGETHER, cost=cost, **{name: value})
    assert [0, 1, 2, 3, 4] == sorted(plan.indices.tolist())


@BOTH
@pytest.mark.parametrize("name", ["strategy", "oversized"])
@pytest.mark.parametrize(
    "value", ["", "IN_ORDER", "best fit", "Raise", b"skip", None, 1, True, [], ["in_order"], {}, len]
)
def test_bad_names(call, name, value):
    """An unknown strategy or policy is refused by name."""
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        call(SIZES, budget=10, **{name: value})


@BOTH
@pytest.mark.parametrize("name", ["shuffle", "uniform"])
@pytest.mark.parametrize("value", [None, 0, 1, 1.0, "True", np.True_, [], torch.tensor(True)])
def test_bad_switches(call, name, value):
    """A switch is True or False and nothing that only looks like it."""
    with pytest.raises(TypeError, match=f"`{name}`"):
        call(SIZES, budget=10, strategy="by_size", **{name: value})


@BOTH
@pytest.mark.parametrize(
    "cost", ["", "SUM", "area", b"sum", None, 1, 1.0, True, [], {}, SumCost, PaddedCost, int, ["sum"], {"sum"}]
)
def test_bad_costs(call, cost):
    """A cost is a known name or a function."""
    with pytest.raises((TypeError, ValueError), match="`cost`"):
        call(SIZES, budget=10, cost=cost)


BAD_RESULTS = {
    "a scalar": lambda n: 1,
    "a float": lambda n: 1.0,
    "None": lambda n: None,
    "a string": lambda n: "1",
    "strings": lambda n: np.array(["1"] * n),
    "bools": lambda n: np.ones(n, np.bool_),
    "complex": lambda n: np.ones(n, np.complex128),
    "objects": lambda n: np.array([None] * n),
    "dates": lambda n: np.zeros(n, "M8[s]"),
    "a dict": lambda n: {0: 1},
    "a set": lambda n: {1},
    "a generator": lambda n: (1 for _ in range(n)),
    "nothing": lambda n: [],
    "too few": lambda n: np.ones(n - 1),
    "too many": lambda n: np.ones(n + 1),
    "two columns": lambda n: np.ones((n, 2)),
    "ragged": lambda n: [[1], [2, 3]],
    "needs a gradient": lambda n: torch.ones(n, requires_grad=True),
    "meta": lambda n: torch.ones(n, device="meta"),
    "NaN": lambda n: np.full(n, np.nan),
}


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
@pytest.mark.parametrize("kind", sorted(BAD_RESULTS))
def test_costs_that_return_anything_else(strategy, kind):
    """A cost that does not return a number for each batch is told so by name."""
    with pytest.raises((TypeError, ValueError), match="cost"):
        plan_batches(
            SIZES, budget=10, cost=lambda items, longest, total: BAD_RESULTS[kind](len(items)), strategy=strategy
        )


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyError, RuntimeError, ValueError, OSError])
def test_costs_that_raise(error):
    """What a user's cost raises comes out as it is."""

    def cost(items, longest, total):
        raise error("of my own")

    with pytest.raises(error, match="of my own"):
        plan_batches(SIZES, budget=10, cost=cost)


def test_costs_that_write_into_what_they_get():
    """A cost that adds to its arguments in place changes neither the user's sizes nor the plan's."""
    sizes = np.array(SIZES)

    def cost(items, longest, total):
        longest += 1
        return items * longest

    with contextlib.suppress(ValueError):  # numpy's refusal to write is as good as a copy
        plan = plan_batches(sizes, budget=12, cost=cost)
        assert [max(SIZES[index] for index in batch) for batch in plan] == plan.longest.tolist()
    assert SIZES == sizes.tolist()


@pytest.mark.parametrize("name", ["multiple_of", "extra"])
@pytest.mark.parametrize("value", [None, "8", 8.0, -1, True, [8], np.float64(8), 8j])
def test_bad_padding(name, value):
    """Padding is described by whole numbers, none negative."""
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        PaddedCost(**{name: value})


@pytest.mark.parametrize("cost", [PaddedCost(extra=2**40), PaddedCost(multiple_of=2**40)])
def test_huge_padding_is_over_budget(cost):
    """Padding far beyond the budget does not wrap around into it."""
    with pytest.raises(OversizedError, match="index 0"):
        plan_batches(SIZES, budget=1000, cost=cost)


@pytest.mark.parametrize("name", ["multiple_of", "extra"])
@pytest.mark.parametrize("value", [2**62, 2**63, 2**70, 10**400])
def test_padding_beyond_64_bits(name, value):
    """Padding that leaves no room for sizes in 64 bits is an error that names it."""
    with pytest.raises(ValueError, match=f"`{name}`"):
        plan_batches(SIZES, budget=1000, cost=PaddedCost(**{name: value}))


TOGETHER_BAD = [
    pytest.param({"strategy": "best_fit", "cost": "padded"}, "'best_fit'", id="best fit, padded"),
    pytest.param({"strategy": "best_fit", "cost": lambda items, longest, total: total}, "'best_fit'", id="best fit, f"),
    pytest.param({"strategy": "best_fit", "items_multiple_of": 2}, "`items_multiple_of`", id="best fit, multiple"),
    pytest.param({"strategy": "best_fit", "uniform": True}, "`uniform`", id="best fit, uniform"),
    pytest.param({"strategy": "best_fit", "shuffle": True, "window": 2}, "`window`", id="best fit, window"),
    pytest.param({"uniform": True}, "`uniform`", id="in order, uniform"),
    pytest.param({"window": 2, "shuffle": True}, "`window`", id="in order, window"),
    pytest.param({"window": 2, "strategy": "by_size"}, "`window`", id="window without shuffle"),
]


@BOTH
@pytest.mark.parametrize(("settings", "named"), TOGETHER_BAD)
def test_settings_that_do_not_go_together(call, settings, named):
    """A setting without effect under the strategy is an error, not ignored."""
    with pytest.raises(ValueError, match=named):
        call(SIZES, budget=10, **settings)


def test_best_fit_of_several_measures():
    """Best fit packs one measure."""
    with pytest.raises(ValueError, match="'best_fit'"):
        plan_batches([(1, 2)], budget=[10, 10], strategy="best_fit")


@BOTH
@pytest.mark.parametrize("value", [None, "1", 1.5, -1, True, [1]])
def test_bad_seeds_and_epochs(call, value):
    """Seed and epoch are refused at once, by the sampler as by the plan."""
    with pytest.raises((TypeError, ValueError), match="`seed`"):
        call(SIZES, budget=10, seed=value)
    with pytest.raises((TypeError, ValueError), match="`epoch`"):
        BudgetBatchSampler(SIZES, budget=10).set_epoch(value)


def mapped(path, dtype):
    np.array(SIZES, dtype).tofile(path)
    return np.memmap(path, dtype, "r")


def read_only():
    array = np.array(SIZES)
    array.flags.writeable = False
    return array


LEGITIMATE = {
    "tuple": lambda: tuple(SIZES),
    "range": lambda: [*range(3, 4), *range(1, 3), 5, 4],
    "strided": lambda: np.repeat(SIZES, 3)[::3],
    "reversed": lambda: np.array(SIZES[::-1])[::-1],
    "column": lambda: np.array([SIZES, SIZES]).T[:, 1],
    "Fortran": lambda: np.asfortranarray(np.array(SIZES)[:, None])[:, 0],
    "read-only": read_only,
    "broadcast": lambda: np.broadcast_to(np.array(SIZES), (2, 5))[0],
    "unaligned": lambda: np.frombuffer(b"x" + np.array(SIZES, "<i8").tobytes(), "<i8", offset=1),
    "objects": lambda: np.array(SIZES, object),
    "object floats": lambda: np.array([float(size) for size in SIZES], object),
    "float16": lambda: np.array(SIZES, np.float16),
    "long double": lambda: np.array(SIZES, np.longdouble),
    "big-endian": lambda: np.array(SIZES, ">i8"),
    "big-endian 16": lambda: np.array(SIZES, ">u2"),
    "big-endian unsigned": lambda: np.array(SIZES, ">u8"),
    "big-endian float": lambda: np.array(SIZES, ">f4"),
    "uint64": lambda: np.array(SIZES, np.uint64),
    "matrix of one column": lambda: np.array(SIZES)[:, None],
    "tensor": lambda: torch.tensor(SIZES, device="cpu"),
    "uint8 tensor": lambda: torch.tensor(SIZES, dtype=torch.uint8),
    "strided tensor": lambda: torch.tensor(SIZES).repeat_interleave(2)[::2],
    "expanded tensor": lambda: torch.tensor(SIZES).expand(3, 5)[1],
    "gradient tensor": lambda: torch.tensor([float(size) for size in SIZES], requires_grad=True),
    "half tensor": lambda: torch.tensor(SIZES, dtype=torch.float16),
}


@BOTH
@pytest.mark.parametrize("kind", sorted(LEGITIMATE))
def test_legitimate_sizes(call, kind):
    """Layouts, byte orders and containers make no difference."""
    sizes = LEGITIMATE[kind]()
    assert EXPECTED == list(call(sizes, budget=6))
    by_size = list(call(sizes, budget=6, cost="padded", strategy="by_size"))
    assert [[1, 2], [0], [4], [3]] == by_size
    assert [0, 1, 2, 3, 4] == sorted(
        itertools.chain.from_iterable(call(sizes, budget=6, strategy="by_size", shuffle=True))
    )


@BOTH
@pytest.mark.parametrize("dtype", ["<i4", "<i8", ">i8", "<f8", "u1"])
def test_memory_mapped_sizes(call, dtype, tmp_path):
    """Sizes in a file that was opened for reading are planned like any others."""
    assert EXPECTED == list(call(mapped(tmp_path / "sizes", dtype), budget=6))


@pytest.mark.parametrize("dtype", ["u8", ">u8"])
def test_unsigned_sizes_beyond_int64(dtype):
    """Sizes that only an unsigned integer holds are over the budget, whatever their byte order."""
    with pytest.raises(OversizedError, match="index 1"):
        plan_batches(np.array([1, 2**63 + 5], dtype), budget=100)


@pytest.mark.parametrize("strategy", ["in_order", "by_size", "best_fit"])
@pytest.mark.parametrize("shape", [(0,), (0, 1)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_nothing_to_plan(strategy, shape, shuffle):
    """No elements are no batches, under every strategy."""
    assert [] == list(plan_batches(np.ones(shape), budget=1, strategy=strategy, shuffle=shuffle))


@pytest.mark.parametrize(
    "budget", [6, 6.0, np.int8(6), np.float32(6), np.array(6), [6], (6.5,), np.array([6]), np.uint64(6), 2**62, 10**300]
)
def test_legitimate_budgets(budget):
    """Numbers of every kind are budgets, alone or as one of one."""
    plan = plan_batches(SIZES, budget=budget)
    assert [0, 1, 2, 3, 4] == plan.indices.tolist()
    assert plan.cost.max() <= np.max(budget)


@pytest.mark.parametrize("value", [np.int8(2), np.uint64(2), np.array(2), torch.tensor(2)])
def test_legitimate_integers(value):
    """Integers of numpy and torch are integers."""
    expected = plan_batches(SIZES, budget=10, max_items=2, seed=2, epoch=2, shuffle=True)
    assert list(expected) == list(
        plan_batches(SIZES, budget=10, max_items=value, seed=value, epoch=value, shuffle=True)
    )


@pytest.mark.parametrize(
    "sizes", [[1, 2**63 - 1], np.array([1, 2**62]), np.array([1, 2**31 - 1], np.int32)], ids=["int64", "2^62", "int32"]
)
@pytest.mark.parametrize("cost", [PaddedCost(extra=2), PaddedCost(multiple_of=64), PaddedCost(8, 3)])
def test_padding_does_not_wrap_a_sentinel(sizes, cost):
    """The largest integer plus what the collator adds is over budget, not negative."""
    with pytest.raises(OversizedError, match="index 1"):
        plan_batches(sizes, budget=1e8, cost=cost)


def test_cost_that_falls():
    """A cost that falls when a batch grows is refused as soon as a batch is over budget by it."""
    with pytest.raises(ValueError, match="`cost` must never fall when items, longest or total grow: a batch of 1 "):
        plan_batches([1, 5], budget=10, cost=lambda items, longest, _: 12 * items - longest)


class Regressor:
    """Stands for one of scikit-learn's."""

    def predict(self, rows):
        return 100 + 2 * rows[:, 0] * rows[:, 1:-1:2].sum(axis=1) + rows[:, -1]


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
def test_regressor_as_cost(strategy):
    """An object that predicts from rows of items, longest, total is a cost."""
    sizes = np.random.default_rng(0).integers(1, 50, 200)
    by_rows = plan_batches(sizes, budget=1000, cost=Regressor(), strategy=strategy)
    by_shape = plan_batches(
        sizes, budget=1000, cost=lambda items, longest, total: 100 + 2 * items * longest + total, strategy=strategy
    )
    assert list(by_shape) == list(by_rows)


def test_model_of_other_measures():
    """A memory model of two measures is no cost of sizes with one."""
    rng = np.random.default_rng(1)
    shapes = [BatchShape.of(rng.integers(1, 30, (n, 2))) for n in (1, 2, 4, 8, 16, 32) for _ in range(3)]
    model = MemoryModel().fit(shapes, [10_000 + 300 * shape.total[1] for shape in shapes])
    with pytest.raises(ValueError, match="`cost` is a model of sizes with 2 measures, the sizes have 1"):
        plan_batches([1, 2, 3], budget=10**6, cost=model)
    sizes = rng.integers(1, 30, (500, 2))
    plan = plan_batches(sizes, budget=10**5, cost=model, strategy="by_size", shuffle=True)
    assert list(range(500)) == sorted(plan.indices.tolist())
    assert (plan.cost <= 10**5).all()
    assert max(model.upper_bound([BatchShape.of(sizes[batch]) for batch in plan])) <= 10**5
