"""Memory models of elements whose sizes are several numbers each."""

import re
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bionemo.size_aware_batching import SizeAwareBatchSampler, plan_batches
from bionemo.size_aware_batching.errors import NotIdentifiableError
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, PeakRecord, Profile
from bionemo.size_aware_batching.memory._fitted import Fitted
from bionemo.size_aware_batching.memory._terms import columns, terms

LAW = settings(deadline=None, max_examples=100)
FIXED = 50_000_000
# Bytes per unit that make a term matter beside the fixed ones.
BYTES = {"items": 4e6, "total": 4e4, "items*longest": 3e4, "items*longest^2": 300.0, "longest^2": 4e3}
SINGLE = list(terms(2))
SEVERAL = [
    ("items", "total[1]"),
    ("total[0]", "total[1]"),
    ("items*longest[0]", "items*longest[1]"),
    ("items*longest[1]^2", "total[0]"),
    ("longest[0]^2", "items*longest[1]"),
    ("items", "total[0]", "items*longest[1]^2"),
]


def evaluate(name, shape):
    """Read a term's name as the formula that it is."""
    return eval(name.replace("^", "**"), {}, shape._asdict())  # noqa: S307 - names of these tests


def batches(measures=2, most=40, seed=0):
    """Return sizes of few and many, small and large elements, padded differently in each measure."""
    rng = np.random.default_rng(seed)
    return [rng.integers(1, largest, (n, measures)) for n in (1, 3, 8, most) for largest in (20, 90, 400)]


def true_peak(names, shape, floor=0.0):
    growth = sum(BYTES[re.sub(r"\[\d\]", "", name)] * evaluate(name, shape) for name in names)
    return max(FIXED + growth, floor)


@cache
def fitted(names, measures=2, floor=0.0):
    """Return shapes, and the model of their exact peaks."""
    shapes = [BatchShape.of(batch) for batch in batches(measures)]
    return shapes, MemoryModel().fit(shapes, [true_peak(names, shape, floor) for shape in shapes])


@pytest.mark.parametrize("names", [*((name,) for name in SINGLE), *SEVERAL], ids="+".join)
def test_terms_of_two_measures_are_recovered(names):
    """Peaks made of terms of either measure give back these with their bytes, and predict shapes never seen."""
    _, model = fitted(names)
    expected = {name: pytest.approx(BYTES[re.sub(r"\[\d\]", "", name)], rel=1e-3) for name in names}
    assert expected == model.coefficients
    assert 2 == model.measures
    unseen = [BatchShape.of(batch) for batch in batches(most=200, seed=1)]
    assert pytest.approx([true_peak(names, shape) for shape in unseen], rel=1e-3) == model.predict(unseen).tolist()


def test_terms_of_three_measures_are_recovered():
    """Terms of the first and of the last of three measures are found, each with its own bytes."""
    names = ("items*longest[0]", "total[2]")
    _, model = fitted(names, 3)
    assert {"items*longest[0]": pytest.approx(3e4), "total[2]": pytest.approx(4e4)} == model.coefficients
    assert 3 == model.measures
    unseen = [BatchShape.of(batch) for batch in batches(3, seed=1)]
    assert pytest.approx([true_peak(names, shape) for shape in unseen]) == model.predict(unseen).tolist()
    for batch in batches(3, seed=2):
        equal = np.repeat(batch[:1], 7, axis=0)
        share = model.element_bytes(equal)
        assert pytest.approx(model.upper_bound(BatchShape.of(equal)), abs=2) == model.fixed_bytes + share.sum()


def test_floor_of_two_measures_is_recovered():
    """Small batches that all need the same lie on a floor, however different their measures are."""
    names, floor = ("total[0]", "items*longest[1]"), 80_000_000.0
    shapes, model = fitted(names, floor=floor)
    peaks = [true_peak(names, shape, floor) for shape in shapes]
    assert 4 <= peaks.count(floor) <= 8
    assert list(names) == list(model.coefficients)
    assert pytest.approx(peaks, rel=1e-3) == model.predict(shapes).tolist()
    assert pytest.approx(floor) == model.predict(BatchShape(1, (1, 1), (1, 1)))


def test_measures_may_be_of_very_different_scale():
    """A measure in millions beside one below ten is told apart from it as well as two alike."""
    rng = np.random.default_rng(3)
    shapes = [BatchShape.of(np.column_stack([rng.random(n), 1e7 * rng.random(n)])) for n in (1, 2, 5, 9, 20, 40) * 3]
    model = MemoryModel().fit(shapes, [1e6 + 5e6 * s.total[0] + 0.25 * s.total[1] for s in shapes])
    assert {"total[0]": pytest.approx(5e6), "total[1]": pytest.approx(0.25)} == model.coefficients


def test_padding_that_was_not_measured_in_one_measure_is_assumed_to_cost_there():
    """Where only the first measure was padded, the total of the other is no term, and that of the first is one."""
    rng = np.random.default_rng(4)
    rows = [
        np.column_stack([rng.integers(1, 90, n), np.full(n, bonds)]) for n in (1, 3, 8, 20) for bonds in (4, 30, 99)
    ]
    shapes = [BatchShape.of(row) for row in rows]
    model = MemoryModel().fit(shapes, [1e6 + 3000 * s.total[0] + 7000 * s.total[1] for s in shapes])
    assert ["total[0]", "items*longest[1]"] == list(model.coefficients)
    assert pytest.approx(1e6 + 3000 * 50 + 7000 * 2 * 9) == model.predict(BatchShape(2, (40, 9), (50, 10)))


def test_total_of_squares_is_a_term_of_a_measure_of_squares():
    """With the squares of lengths as a second measure, bytes per squared unit of every element are a term."""
    lengths = [batch[:, 0] for batch in batches()]
    peaks = [FIXED + 300.0 * (values**2).sum() for values in lengths]
    squared = MemoryModel().fit([BatchShape.of([(n, n * n) for n in values.tolist()]) for values in lengths], peaks)
    assert {"total[1]": pytest.approx(300)} == squared.coefficients
    assert squared.held_out_error[1] < 1e-9
    assert pytest.approx(FIXED + 300 * (9 + 16)) == squared.predict(BatchShape.of([(3, 9), (4, 16)]))
    plain = MemoryModel().fit([BatchShape.of(values) for values in lengths], peaks)
    assert plain.held_out_error[1] > 0.05


@pytest.mark.parametrize("measures", [1, 2, 3])
def test_columns_are_what_the_names_say(measures):
    """The column of each term is its formula, of items and of longest and total in its own measure."""
    shapes = [BatchShape.of(batch if measures > 1 else batch[:, 0]) for batch in batches(measures)]
    table = np.array([np.hstack(shape) for shape in shapes], np.float64)
    expected = [[1.0, *(float(evaluate(name, shape)) for name in terms(measures))] for shape in shapes]
    assert expected == columns(table, terms(measures)).tolist()


@st.composite
def models(draw, counts=(1, 2, 3)):
    """Return a model with some terms, and perhaps a floor and margins, of one to three measures."""
    measures = draw(st.sampled_from(counts))
    names = draw(st.lists(st.sampled_from(list(terms(measures))), min_size=1, max_size=4, unique=True))
    amounts = st.floats(0, 1e9)
    weights = {name: draw(st.floats(1e-3, 1e6)) for name in names}
    model = MemoryModel()
    model._fitted = Fitted(
        fixed_bytes=draw(amounts),
        floor_bytes=draw(st.just(0.0) | amounts),
        coefficients=weights,
        measures=measures,
        margin_factor=draw(st.just(1.0) | st.floats(1, 2)),
        margin_bytes=draw(st.just(0.0) | amounts),
        held_out_error=(0.0, 0.0),
        measurements=9,
        covered=9,
    )
    return model


numbers = st.integers(0, 10**5) | st.floats(0, 10**6)


def shapes_of(measures):
    row = numbers if measures == 1 else st.tuples(*[numbers] * measures)
    return st.builds(BatchShape, st.integers(0, 1000), row, row)


def arguments(shapes):
    """Return items, longest and total of shapes as arrays, with a column for each measure where there are several."""
    return [np.array(values, np.float64) for values in zip(*shapes, strict=True)]


@LAW
@given(models(), st.data())
def test_prediction_is_the_formula(model, data):
    """A prediction is the larger of the floor and fixed bytes plus terms; the bound adds the margins."""
    shapes = data.draw(st.lists(shapes_of(model.measures), min_size=1, max_size=5))
    parts, weights = model._fitted, model.coefficients
    grown = [parts.fixed_bytes + sum(w * evaluate(name, s) for name, w in weights.items()) for s in shapes]
    expected = [max(value, parts.floor_bytes) for value in grown]
    assert pytest.approx(expected, rel=1e-12) == model.predict(shapes).tolist()
    bounds = [parts.margin_factor * value + parts.margin_bytes for value in expected]
    assert pytest.approx(bounds, rel=1e-12) == model.upper_bound(shapes).tolist()


@LAW
@given(models(), st.data())
def test_every_way_to_ask_gives_the_same_bound(model, data):
    """Lists and tables of shapes, single ones, and the cost of scalars, tuples, lists and arrays agree."""
    shapes = data.draw(st.lists(shapes_of(model.measures), min_size=1, max_size=5))
    bounds = model.upper_bound(shapes).tolist()
    assert bounds == model.upper_bound(np.array([np.hstack(shape) for shape in shapes])).tolist()
    assert bounds == model(*arguments(shapes)).tolist()
    assert bounds == model(*map(list, zip(*shapes, strict=True))).tolist()
    approximately = pytest.approx(bounds, rel=1e-12)
    assert approximately == [model.upper_bound(shape) for shape in shapes]
    assert approximately == [model(*shape) for shape in shapes]
    assert approximately == [model(*arguments([shape])).item() for shape in shapes]
    assert [float] * len(shapes) == [type(model.upper_bound(shape)) for shape in shapes]
    assert [()] * len(shapes) == [np.shape(model(*shape)) for shape in shapes]


@LAW
@given(models(), st.data())
def test_nothing_falls_when_a_shape_grows_in_any_measure(model, data):
    """Prediction, bound and cost of a shape at least as large in every number are at least as high."""
    small, other = (np.hstack(data.draw(shapes_of(model.measures))) for _ in "ab")
    for column in range(len(small)):
        grown = small.astype(np.float64)
        grown[column] = max(grown[column], other[column])
        before, after = small[None].astype(np.float64), grown[None]
        assert model.predict(before)[0] <= model.predict(after)[0]
        assert model.upper_bound(before)[0] <= model.upper_bound(after)[0]


@LAW
@given(st.sampled_from([("items",), *SEVERAL[1:4]]), st.data())
def test_nothing_falls_with_fitted_models_of_two_measures(names, data):
    """Models that were fitted never promise less for a larger shape, as a cost either."""
    _, model = fitted(names)
    one, other = (data.draw(shapes_of(2)) for _ in "ab")
    larger = BatchShape(*(np.maximum(a, b) for a, b in zip(one, other, strict=True)))
    assert model.predict(one) <= model.predict(larger)
    assert model.upper_bound(one) <= model.upper_bound(larger)
    assert model(*one) <= model(*larger)


@LAW
@given(models(), st.integers(1, 50), st.data())
def test_shares_of_equal_elements_reach_the_bound(model, count, data):
    """Fixed bytes and the shares of a batch of equal elements are at least its bound, unless it is on the floor."""
    sizes = st.floats(0, 1e4) | st.integers(0, 10**4)
    size = data.draw(sizes if model.measures == 1 else st.tuples(*[sizes] * model.measures))
    shape = BatchShape.of([size] * count)
    assume(model.predict(shape) > model._fitted.floor_bytes)
    share = model.element_bytes([size] * count)
    assert (count,) == share.shape
    assert model.upper_bound(shape) <= (model.fixed_bytes + share.sum()) * (1 + 1e-12)


@LAW
@given(models(), st.data())
def test_share_of_an_element_is_what_it_adds_alone(model, data):
    """An element's share is the growth of a batch of it alone, raised by the factor; margin bytes are fixed ones."""
    size = data.draw(numbers if model.measures == 1 else st.tuples(*[numbers] * model.measures))
    shape = BatchShape.of([size])
    growth = sum(weight * evaluate(name, shape) for name, weight in model.coefficients.items())
    share = model.element_bytes(np.array([size], np.float64))
    assert pytest.approx([model.margin_factor * growth], rel=1e-12) == share.tolist()
    fixed = model.margin_factor * model._fitted.fixed_bytes + model.margin_bytes
    assert fixed <= model.fixed_bytes <= fixed + 1


@LAW
@given(models(), st.data())
def test_polynomial_is_the_cost(model, data):
    """The larger of the floor and the weighted sum of terms is the cost, in any number of measures."""
    shape = data.draw(shapes_of(model.measures))
    least, fixed, weights = model.polynomial()
    assert list(model.coefficients) == list(weights)
    cost = max(least, fixed + sum(weight * evaluate(name, shape) for name, weight in weights.items()))
    assert pytest.approx(cost, rel=1e-12) == model(*shape)


@pytest.mark.parametrize(
    "convert", [list, tuple, np.array, torch.tensor, lambda rows: np.array(rows, np.uint8)], ids=range(5)
)
def test_element_bytes_of_rows(convert):
    """Sizes with a column for each measure give one number for each row."""
    shapes, model = fitted(("total[0]", "total[1]"))
    rows = [(3, 200), (0, 0), (40, 7)]
    expected = [(model.margin_factor * 4e4) * (a + b) for a, b in rows]
    assert pytest.approx(expected, rel=1e-6) == model.element_bytes(convert(rows)).tolist()
    assert (0,) == model.element_bytes(np.empty((0, 2))).shape
    assert len(shapes) == len(model.predict(shapes))


def test_sampler_with_element_bytes_of_rows_keeps_to_the_budget():
    """The documented sampler, fed with rows of two measures, makes batches that the model bounds by the budget."""
    _, model = fitted(("items*longest[0]", "items*longest[1]"))
    rows = np.tile([(300, 120)], (500, 1))
    budget = 700_000_000
    found = list(SizeAwareBatchSampler(range(500), model.element_bytes(rows), budget - model.fixed_bytes))
    assert list(range(500)) == [index for batch in found for index in batch]
    assert max(model.upper_bound(BatchShape.of(rows[batch])) for batch in found) <= budget
    assert model.upper_bound(BatchShape.of(rows[: len(found[0]) + 1])) > budget - 2


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
def test_plan_with_a_model_of_two_measures_keeps_the_bound_within_the_budget(strategy):
    """A plan of rows whose cost is a model keeps the bound on every batch within the budget."""
    _, model = fitted(("items*longest[0]", "items*longest[1]"))
    rows, budget = np.random.default_rng(1).integers(1, 400, (300, 2)), 300_000_000
    plan = plan_batches(rows, budget=budget, cost=model, strategy=strategy)
    bounds = [model.upper_bound(BatchShape.of(rows[batch])) for batch in plan]
    assert max(bounds) <= budget
    assert list(range(300)) == sorted(index for batch in plan for index in batch)
    assert len(bounds) < 100


def test_cost_of_integer_rows_does_not_wrap():
    """Products of rows in narrow or wide integer types are as large as they are."""
    _, model = fitted(("items*longest[0]", "items*longest[1]"))
    narrow = [np.array(values, np.uint8) for values in ([100], [(200, 250)], [(250, 250)])]
    assert pytest.approx([model.upper_bound(BatchShape(100, (200, 250), (250, 250)))]) == model(*narrow).tolist()
    wide = [np.array(values, np.int64) for values in ([2**40], [(2**40, 1)], [(2**62, 1)])]
    assert pytest.approx([model.upper_bound(BatchShape(2**40, (2**40, 1), (2**62, 1)))]) == model(*wide).tolist()


def test_shapes_of_a_profile_are_fitted_in_several_measures():
    """A profile whose work returned tuples is a model of as many measures as these have."""
    shapes, from_lists = fitted(("total[0]", "total[1]"))
    peaks = [round(true_peak(("total[0]", "total[1]"), shape)) for shape in shapes]
    records = [PeakRecord(i, s, peaks[i], None, None, 0, "ok", 0.1) for i, s in enumerate(shapes)]
    records.insert(3, PeakRecord(99, None, None, None, None, 0, "oom", 0.1))
    model = MemoryModel().fit(Profile(tuple(records), "cpu"))
    assert (2, from_lists.coefficients) == (model.measures, pytest.approx(model.coefficients))


def test_tables_are_fitted_like_shapes():
    """A table of items, then longest, then total in each measure gives the model of the shapes in it."""
    names = ("items", "total[1]")
    shapes, model = fitted(names)
    table = np.array([np.hstack(shape) for shape in shapes])
    again = MemoryModel().fit(table, [true_peak(names, shape) for shape in shapes])
    assert (model.coefficients, model.margin_bytes) == (again.coefficients, again.margin_bytes)


def test_measures_in_tuples_of_one_are_one_measure():
    """Tuples of one number are fitted and predicted like the number."""
    shapes = [BatchShape.of([(n,) for n in batch[:, 0].tolist()]) for batch in batches()]
    peaks = [FIXED + 4e4 * shape.total[0] for shape in shapes]
    model = MemoryModel().fit(shapes, peaks)
    assert (1, ["total"]) == (model.measures, list(model.coefficients))
    assert peaks[5] == pytest.approx(model.predict(shapes[5]))
    assert model.predict(BatchShape(3, 5, 12)) == model.predict(BatchShape(3, (5,), (12,)))


MIXTURES = [
    [BatchShape(2, 5, 8), BatchShape(2, (5, 9), (8, 11))],
    [BatchShape(2, (5, 9), (8, 11)), BatchShape(2, 5, 8)],
    [BatchShape(2, (5, 9), (8, 11)), BatchShape(2, (5, 9, 1), (8, 11, 2))],
]


@pytest.mark.parametrize("mixture", MIXTURES, ids=["one, two", "two, one", "two, three"])
@pytest.mark.parametrize("ask", ["fit", "fit a profile", "predict", "upper_bound"])
def test_mixtures_of_measures_are_refused(mixture, ask):
    """Shapes of one call have the same number of measures."""
    _, model = fitted(("items",))
    records = tuple(PeakRecord(i, shape, 10, None, None, 0, "ok", 0.1) for i, shape in enumerate(mixture))
    calls = {
        "fit": lambda: MemoryModel().fit(mixture, [1.0, 2.0]),
        "fit a profile": lambda: MemoryModel().fit(Profile(records, "cpu")),
        "predict": lambda: model.predict(mixture),
        "upper_bound": lambda: model.upper_bound(mixture),
    }
    with pytest.raises(TypeError, match=r"`features` must be batch shapes .* in numbers: .*inhomogeneous"):
        calls[ask]()


@pytest.mark.parametrize(
    ("measures", "shape", "text"),
    [
        (2, BatchShape(3, 5, 12), "have 1 measures, the model was fitted to 2"),
        (2, BatchShape(3, (5,), (12,)), "have 1 measures, the model was fitted to 2"),
        (2, BatchShape(3, (5, 6, 7), (12, 13, 14)), "have 3 measures, the model was fitted to 2"),
        (1, BatchShape(3, (5, 6), (12, 13)), "have 2 measures, the model was fitted to 1"),
    ],
)
@pytest.mark.parametrize("ask", ["predict", "upper_bound"])
def test_shapes_of_other_measures_are_refused(measures, shape, text, ask):
    """A model answers for shapes with as many measures as it was fitted to, alone or in lists and tables."""
    names = {1: ("items",), 2: ("items", "total[1]")}[measures]
    model = one_measure() if measures == 1 else fitted(names)[1]
    for features in (shape, [shape, shape], [tuple(np.hstack(shape).tolist())], np.hstack(shape)[None]):
        with pytest.raises(ValueError, match=f"`features` {text}"):
            getattr(model, ask)(features)


@cache
def one_measure():
    shapes = [BatchShape.of(batch[:, 0]) for batch in batches()]
    return MemoryModel().fit(shapes, [true_peak(("items",), shape) for shape in shapes])


@pytest.mark.parametrize(
    ("measures", "sizes", "text"),
    [
        (2, [1, 2], r"\(n, 2\), got \(2,\)"),
        (2, 3.0, r"\(n, 2\), got \(\)"),
        (2, [[1], [2]], r"\(n, 2\), got \(2, 1\)"),
        (2, [[1, 2, 3]], r"\(n, 2\), got \(1, 3\)"),
        (2, np.ones((4, 2, 2)), r"\(n, 2\), got \(4, 2, 2\)"),
        (2, np.ones((0, 3)), r"\(n, 2\), got \(0, 3\)"),
        (1, [[1, 2]], r"\(n,\), got \(1, 2\)"),
        (1, [[1], [2]], r"\(n,\), got \(2, 1\)"),
    ],
)
def test_element_bytes_of_other_measures(measures, sizes, text):
    """Sizes have a column for each measure, or none where there is one measure."""
    model = one_measure() if measures == 1 else fitted(("total[0]", "total[1]"))[1]
    with pytest.raises(ValueError, match=f"`sizes` must be of shape {text}"):
        model.element_bytes(sizes)


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 1), (2, 0), (2, 1)])
def test_element_bytes_of_rows_that_are_no_sizes(bad, row, column):
    """A size that is negative or not finite is refused wherever it is in the rows, with the index of its row."""
    rows = np.ones((4, 2))
    rows[3] = -7.0  # the first counts
    rows[row, column] = bad
    with pytest.raises(ValueError, match=rf"`sizes.* must be finite and not negative, got .*{bad:g}.* at index {row}$"):
        fitted(("total[0]", "total[1]"))[1].element_bytes(rows)


@pytest.mark.parametrize("features", [[], np.empty((0, 3)), np.empty((0, 5)), iter(())], ids=range(4))
def test_nothing_is_predicted_for_no_shapes(features):
    """No shapes give no predictions, whatever the number of measures."""
    assert (0,) == fitted(("total[0]", "total[1]"))[1].predict(features).shape


@pytest.mark.parametrize(
    ("longest", "total"),
    [(1, 2), ((1,), (2,)), ((1, 2, 3), (4, 5, 6)), ((1, 2), (4,)), ((1, 2), 4), (1, (2, 3)), (np.ones((5, 3)),) * 2],
    ids=["scalars", "one", "three", "two and one", "two and a scalar", "a scalar and two", "arrays of three"],
)
def test_cost_of_other_measures(longest, total):
    """As a cost, too, a model takes as many measures as it was fitted to."""
    with pytest.raises(ValueError, match=r"longest and total must have 2 measures, got an array of shape \(.*\)"):
        fitted(("total[0]", "total[1]"))[1](3, longest, total)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (
            [(n, (atoms, 7), (n * atoms, 7 * n)) for n in (1, 2, 5) for atoms in (3, 8)],
            r"all have longest\[1\] = 7, .* other values of longest\[1\], about",
        ),
        (
            [(n, (6, bonds), (n * 6, bonds * n)) for n in (1, 2, 5) for bonds in (3, 8)],
            r"all have longest\[0\] = 6, .* other values of longest\[0\], about",
        ),
        (
            [(4, (6, 7), (20, bonds)) for bonds in range(7, 15)],
            r"all have items = 4 and longest\[0\] = 6 and longest\[1\] = 7, .* other values of items and longest\[0\]",
        ),
        ([(n, (n, n + 1), (n, n + 1)) for n in (1, 2, 3)], "3 different batch shapes are too few"),
    ],
)
def test_measures_that_were_not_varied(rows, text):
    """A measure that was the same in all measurements is named."""
    shapes = [BatchShape(*row) for row in rows]
    with pytest.raises(NotIdentifiableError, match=text):
        MemoryModel().fit(shapes, [1e6 + 100.0 * i for i in range(len(shapes))])


ONE_TOTAL = [BatchShape(n, longest, 0) for n in (1, 4, 16) for longest in (32, 128, 512)] + [BatchShape(8, 64, 300)]


@pytest.mark.parametrize(
    ("shapes", "name"),
    [
        (ONE_TOTAL, "items*longest"),
        ([BatchShape(n, (m, total), (n * m, total)) for n, m, total in ONE_TOTAL], "items*longest[0]"),
    ],
    ids=["one measure", "two measures"],
)
def test_term_that_is_zero_but_for_one_shape(shapes, name):
    """A term that a single measurement has is judged without it, like every other."""
    model = MemoryModel().fit(shapes, [1e6 + 2000 * items * longest for items, longest, _ in ONE_TOTAL])
    assert {name: pytest.approx(2000)} == model.coefficients
    assert model.held_out_error[1] < 1e-9


def test_summary_names_the_measure_of_each_term():
    """Terms and their units say which measure they are of."""
    lines = fitted(("total[0]", "items*longest[1]^2"))[1].summary().splitlines()
    assert "total[0]: 39.06 KiB per unit of size[0]" == lines[1]
    assert "items*longest[1]^2: 0.293 KiB per pair of padded units[1]" == lines[2]
    assert "MemoryModel(coverage=0.999, terms=['items', 'total[1]'])" == repr(fitted(("items", "total[1]"))[1])
