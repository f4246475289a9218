"""A fitted memory model as predictor, bound, cost, and source of bytes for a sampler."""

import pickle
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bionemo.size_aware_batching import SizeAwareBatchSampler, plan_batches
from bionemo.size_aware_batching.errors import OversizedError
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, Profile

LAW = settings(deadline=None, max_examples=100)
WEIGHTS = {
    "items": (3_000_000, 0, 0, 0, 0),
    "padded": (0, 0, 20_000, 0, 0),
    "packed and squared": (0, 30_000, 0, 0, 900),
    "pairs": (0, 0, 0, 120, 0),
    "padded and pairs": (0, 0, 10_000, 120, 0),
    "items, padded, pairs": (1_000_000, 0, 10_000, 120, 0),
}
EVERY_MODEL = pytest.mark.parametrize("name", sorted(WEIGHTS))


@cache
def problem(name, floor=0):
    """Return a table of shapes, and peaks with an error of a hundredth."""
    rng = np.random.default_rng(7)
    items, longest = rng.integers(1, 40, 30), rng.integers(20, 600, 30)
    total = longest + (items - 1) * longest * rng.uniform(0.2, 1, 30)
    terms = np.column_stack([items, total, items * longest, items * longest**2, longest**2])
    peaks = np.maximum(20_000_000 + terms @ WEIGHTS[name], floor) * (1 + 0.01 * rng.uniform(-1, 1, 30))
    return np.column_stack([items, longest, total]).astype(float), peaks


@cache
def fitted(name, floor=0, coverage=0.999):
    """Return the model of a problem."""
    return MemoryModel(coverage=coverage).fit(*problem(name, floor))


def shape_of_sizes(sizes):
    return BatchShape(len(sizes), max(sizes), sum(sizes))


models = st.sampled_from([("items",), ("packed and squared",), ("padded and pairs",), ("padded", 60_000_000)])
numbers = st.integers(0, 10**5) | st.floats(0, 10**6)
triples = st.tuples(numbers, numbers, numbers)


@LAW
@given(models, triples, triples)
def test_predictions_never_fall_when_a_batch_grows(which, one, other):
    """A batch at least as large in every respect is predicted, bounded and costed at least as high."""
    model, small, large = fitted(*which), one, tuple(map(max, one, other))
    assert model.predict([small])[0] <= model.predict([large])[0]
    assert model.upper_bound([small])[0] <= model.upper_bound([large])[0]
    assert model(*small) <= model(*large)


@LAW
@given(models, st.lists(triples, min_size=1, max_size=6))
def test_cost_is_the_upper_bound(which, shapes):
    """The cost of arrays, of scalars, and the bound are one number, above the prediction by factor and bytes."""
    model, table = fitted(*which), np.array(shapes, np.float64)
    bound = model.upper_bound(table)
    assert bound.tolist() == model(*table.T).tolist()
    assert pytest.approx(bound) == [float(model(*shape)) for shape in table.tolist()]
    assert pytest.approx(model.predict(table) * model.margin_factor + model.margin_bytes) == bound
    assert (model.predict(table) < bound).all()


@EVERY_MODEL
def test_one_shape_gives_one_number(name):
    """One `BatchShape` gives a float, a list with it an array of one."""
    model, shape = fitted(name), BatchShape(3, 50, 120)
    assert float is type(model.predict(shape))
    assert [model.predict(shape)] == model.predict([shape]).tolist()
    assert [model.upper_bound(shape)] == model.upper_bound([tuple(shape)]).tolist()
    assert (0,) == model.predict([]).shape


@EVERY_MODEL
def test_bound_holds_what_was_fitted(name):
    """Every peak that the model was fitted to is below its bound, the largest by far fewer than ten percent."""
    (table, peaks), model = problem(name), fitted(name)
    bounds = model.upper_bound(table)
    assert (peaks <= bounds).all()
    assert 1 < model.margin_factor < 1.1
    assert bounds[peaks.argmax()] < 1.1 * peaks.max()


@EVERY_MODEL
def test_margin_bytes_are_the_margin_on_the_largest_peak(name):
    """Errors count beside the prediction and the largest measured peak: both are raised by the same share."""
    (_, peaks), model = problem(name), fitted(name)
    assert pytest.approx((model.margin_factor - 1) * peaks.max()) == model.margin_bytes
    assert model.margin_bytes > 0


@EVERY_MODEL
@pytest.mark.parametrize("floor", [0, 60_000_000])
def test_fixed_bytes_are_the_bound_of_what_no_batch_changes(name, floor):
    """Fixed bytes are a whole number, rounded up from the fixed part of the cost."""
    model = fitted(name, floor)
    _, fixed, _ = model.polynomial()
    assert int is type(model.fixed_bytes)
    assert fixed <= model.fixed_bytes < fixed + 1


@EVERY_MODEL
@pytest.mark.parametrize("size", [30, 211, 600])
def test_element_bytes_keep_batches_of_equal_sizes_under_the_budget(name, size):
    """The documented sampler, fed with bytes from the model, makes batches that the model bounds by the budget."""
    model, budget = fitted(name), 700_000_000
    sizes = np.full(9000, size)
    limit = budget - model.fixed_bytes
    batches = list(SizeAwareBatchSampler(range(9000), model.element_bytes(sizes), limit))
    assert list(range(9000)) == [index for batch in batches for index in batch]
    bounds = [model.upper_bound(shape_of_sizes(sizes[batch].tolist())) for batch in batches]
    assert max(bounds) <= budget
    one_more = model.fixed_bytes + (len(batches[0]) + 1) * model.element_bytes(sizes[:1])[0]
    assert budget < one_more


@EVERY_MODEL
def test_element_bytes_of_one_element(name):
    """One element's share and the fixed bytes are the bound on a batch of it alone."""
    model = fitted(name)
    shares = model.element_bytes([0, 17, 300.5])
    expected = [model(1, size, size) for size in (0, 17, 300.5)]
    assert pytest.approx(expected, abs=1.0) == (model.fixed_bytes + shares).tolist()
    assert (0,) == model.element_bytes([]).shape


def test_plan_with_a_model_keeps_the_bound_within_the_budget():
    """A plan whose cost is a model keeps the bound on every batch within the budget."""
    model, budget = fitted("padded and pairs"), 600_000_000
    sizes = np.random.default_rng(1).integers(20, 600, 300)
    plan = plan_batches(sizes, budget=budget, cost=model, strategy="by_size")
    bounds = [model.upper_bound(shape_of_sizes(sizes[batch].tolist())) for batch in plan]
    assert max(bounds) <= budget
    assert list(range(300)) == sorted(index for batch in plan for index in batch)


def test_floor_bounds_from_below():
    """However small the batch, it is predicted to need the floor, and the cost does too."""
    model = fitted("padded", 60_000_000)
    assert pytest.approx(60_000_000, rel=0.02) == model.predict(BatchShape(1, 1, 1))
    assert model.upper_bound(BatchShape(0, 0, 0)) == model(0, 0, 0)
    assert model.predict(BatchShape(0, 0, 0)) == model.predict(BatchShape(1, 1, 1))


@pytest.mark.parametrize(("items", "longest"), [(1, 2**32), (1, 2**63 - 1), (10**7, 10**6)])
def test_cost_of_integer_arrays_does_not_wrap(items, longest):
    """Squares of large sizes do not wrap around and make an enormous batch cheap."""
    model = fitted("pairs")
    total = min(items * longest, 2**63 - 1)
    cost = model(*(np.array([number], np.int64) for number in (items, longest, total)))
    assert pytest.approx([model.upper_bound(BatchShape(items, longest, total))]) == cost.tolist()


def test_cost_of_small_integer_arrays_does_not_wrap():
    """Products of shapes in a small integer type are as large as they are."""
    model = fitted("padded")
    cost = model(*(np.array([number], np.uint8) for number in (100, 200, 250)))
    assert pytest.approx([model.upper_bound(BatchShape(100, 200, 250))]) == cost.tolist()


@pytest.mark.parametrize("strategy", ["in_order", "by_size"])
def test_plan_with_a_model_refuses_an_enormous_element(strategy):
    """An element whose pairs alone are beyond every budget is refused."""
    with pytest.raises(OversizedError, match=r"\b1\b"):
        plan_batches([1, 2**32], budget=10**9, cost=fitted("pairs"), strategy=strategy)


@EVERY_MODEL
@pytest.mark.parametrize("floor", [0, 60_000_000])
def test_polynomial_is_the_cost_in_parts(name, floor):
    """The larger of the floor and the weighted sum of terms is the cost, to the last few bits."""
    model = fitted(name, floor)
    least, fixed, weights = model.polynomial()
    for items, longest, total in [(0, 0, 0), (1, 20, 20), (7, 300, 900), (40, 600, 24_000)]:
        terms = {
            "items": items,
            "total": total,
            "items*longest": items * longest,
            "items*longest^2": items * longest**2,
            "longest^2": longest**2,
        }
        cost = max(least, fixed + sum(weight * terms[term] for term, weight in weights.items()))
        assert pytest.approx(cost, rel=1e-12) == model(items, longest, total)
    assert list(model.coefficients) == list(weights)


def test_model_survives_pickling():
    """A worker process gets the same model."""
    model = fitted("padded and pairs")
    copy = pickle.loads(pickle.dumps(model))  # noqa: S301 - written one line above
    assert model.summary() == copy.summary()
    assert model(3, 40, 90) == copy(3, 40, 90)


def test_coefficients_are_a_copy():
    """Changing the returned coefficients does not change the model."""
    model = fitted("padded")
    before = model.predict(BatchShape(3, 40, 90))
    model.coefficients.clear()
    assert before == model.predict(BatchShape(3, 40, 90))


def test_repr_and_summary_say_what_was_fitted():
    """The representation names coverage and terms, the summary also bytes, errors and margin."""
    assert "MemoryModel(coverage=0.9)" == repr(MemoryModel(coverage=0.9))
    assert "MemoryModel(coverage=0.999, terms=['items*longest'])" == repr(fitted("padded"))
    lines = fitted("padded").summary().splitlines()
    assert ["fixed", "items*longest", "held-out error over 30 measurements", "upper bound"] == [
        line.split(":")[0] for line in lines
    ]
    assert lines[1].endswith("KiB per padded unit of size")
    assert lines[3].endswith("above the prediction (coverage 0.999); 30 of 30 held-out peaks below it")


def test_summary_says_by_how_much_the_bound_is_higher():
    """Both parts of the margin are in the summary, as a share and in bytes."""
    model = fitted("padded")
    share, more = f"{model.margin_factor - 1:.2%}", f"{model.margin_bytes / 2**20:.4g} MiB"
    assert f"upper bound: {share} and {more} above the prediction" in model.summary()


@pytest.mark.parametrize(
    "use",
    [
        lambda model: model.coefficients,
        lambda model: model.fixed_bytes,
        lambda model: model.margin_factor,
        lambda model: model.margin_bytes,
        lambda model: model.measures,
        lambda model: model.held_out_error,
        lambda model: model.element_bytes([1]),
        lambda model: model.predict(BatchShape(1, 1, 1)),
        lambda model: model.upper_bound(BatchShape(1, 1, 1)),
        lambda model: model(1, 1, 1),
        lambda model: model.polynomial(),
        lambda model: model.summary(),
        lambda model: model.save("never"),
    ],
)
def test_model_that_is_not_fitted(use):
    """A model that was never fitted says so, whatever is asked of it."""
    with pytest.raises(ValueError, match=r"not fitted: call fit"):
        use(MemoryModel())


@pytest.mark.parametrize("coverage", [0, 1, -0.5, 1.5, float("nan"), float("inf"), True, "0.9", None, [0.9]])
def test_coverage_that_is_no_probability(coverage):
    """Coverage is a number strictly between 0 and 1."""
    with pytest.raises(ValueError, match=r"`coverage` must be between 0 and 1"):
        MemoryModel(coverage=coverage)


SHAPES = [(n, longest, n * longest) for n in (1, 4, 16) for longest in (32, 128, 512)]
PEAKS = [1000.0 + 2 * total for _, _, total in SHAPES]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0, 0.0])
def test_peaks_that_are_no_bytes(bad):
    """A peak is finite and positive; the first that is not is named by its index."""
    with pytest.raises(ValueError, match=r"`peaks` must be finite and positive, got .* at index 2"):
        MemoryModel().fit(SHAPES, [*PEAKS[:2], bad, *PEAKS[3:]])


@pytest.mark.parametrize("peaks", [PEAKS[:-1], [*PEAKS, 1.0], [], 5.0, [PEAKS], [[peak] for peak in PEAKS]])
def test_peaks_of_another_number(peaks):
    """There is one peak for each shape."""
    with pytest.raises(ValueError, match=r"`peaks` must be one number for each of the 9 features, got shape"):
        MemoryModel().fit(SHAPES, peaks)


def test_peaks_that_are_text():
    """Text is not taken for a number."""
    with pytest.raises(ValueError, match="`peaks` must be numbers: could not convert string to float"):
        MemoryModel().fit(SHAPES, ["a lot"] * 9)


@pytest.mark.parametrize(
    "peaks", [iter(PEAKS), [10**400] * 9, [None, {}] * 4 + [None]], ids=["iterator", "huge", "none"]
)
def test_peaks_of_another_kind(peaks):
    """Peaks are a sequence of numbers."""
    with pytest.raises(ValueError, match="`peaks` must be "):
        MemoryModel().fit(SHAPES, peaks)


@pytest.mark.parametrize("arguments", [(SHAPES,), (Profile((), "cpu"), PEAKS), (Profile((), "cpu"), [])])
def test_fit_takes_a_profile_or_lists(arguments):
    """Peaks are missing, or given beside a profile that has its own."""
    with pytest.raises(TypeError, match="a Profile alone, or batch shapes and `peaks`"):
        MemoryModel().fit(*arguments)


@pytest.mark.parametrize("ask", ["predict", "upper_bound", "fit"])
@pytest.mark.parametrize(
    ("features", "error", "text"),
    [
        ([(1, float("nan"), 1)], ValueError, r"finite and not negative, got \[1.0, nan, 1.0\] at index 0"),
        ([(1, 1, 1), (1, float("inf"), 1)], ValueError, "at index 1"),
        ([(1, 1, 1), (1, 1, 1), (-1, 1, 1)], ValueError, "at index 2"),
        ([(1, 2)], ValueError, r"\(items, longest, total\), got an array of shape \(1, 2\)"),
        ([1, 2, 3], ValueError, r"got an array of shape \(3,\)"),
        ((1, 2, 3), ValueError, r"got an array of shape \(3,\)"),
        (np.ones((2, 3, 3)), ValueError, r"got an array of shape \(2, 3, 3\)"),
        (np.array(3.0), ValueError, r"got an array of shape \(\)"),
        ("abc", TypeError, r"\(items, longest, total\) in numbers: could not convert"),
        ([("a", "b", "c")], TypeError, "in numbers: could not convert"),
        ([{"items": 1}], TypeError, "in numbers: float"),
        ([(1, 2, 3), (1, 2)], TypeError, "in numbers: .*inhomogeneous"),
        (5, TypeError, "in numbers: 'int' object is not iterable"),
        (None, TypeError, "in numbers: 'NoneType' object is not iterable"),
        ([(10**400, 1, 1)], ValueError, "must be finite and not negative"),
    ],
)
def test_features_that_are_no_shapes(ask, features, error, text):
    """Features that are not three finite numbers each are refused by every method that takes some."""
    calls = {
        "predict": lambda: fitted("padded").predict(features),
        "upper_bound": lambda: fitted("padded").upper_bound(features),
        "fit": lambda: MemoryModel().fit(features, [1.0]),
    }
    with pytest.raises(error, match=text):
        calls[ask]()


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ([1, float("nan")], "`sizes` must be finite and not negative, got nan at index 1"),
        ([-1.0, 2.0], "got -1.0 at index 0"),
        ([1.0, 2.0, float("inf")], "got inf at index 2"),
        (3.0, r"`sizes` must be of shape \(n,\), got \(\)"),
        ([[1.0]], r"`sizes` must be of shape \(n,\), got \(1, 1\)"),
    ],
)
def test_element_bytes_of_what_is_no_size(sizes, text):
    """Sizes are a flat list of finite numbers, none below zero."""
    with pytest.raises(ValueError, match=text):
        fitted("padded").element_bytes(sizes)
