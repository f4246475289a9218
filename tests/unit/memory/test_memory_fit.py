"""What a memory model finds in peaks that are known by construction."""

import itertools
import math

import numpy as np
import pytest

from bionemo.size_aware_batching.errors import NotIdentifiableError
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, PeakRecord, Profile
from bionemo.size_aware_batching.memory._fit import fit_terms, margin_for
from bionemo.size_aware_batching.memory._terms import terms

FIXED = 50_000_000
# What each term means, and bytes per unit that make it matter beside the fixed bytes on the shapes below.
MEANING = {
    "items": (lambda items, longest, total: items, 4_000_000),
    "total": (lambda items, longest, total: total, 40_000),
    "items*longest": (lambda items, longest, total: items * longest, 30_000),
    "items*longest^2": (lambda items, longest, total: items * longest * longest, 150),
    "longest^2": (lambda items, longest, total: longest * longest, 2_000),
}
COMBINATIONS = [names for count in (1, 2, 3) for names in itertools.combinations(MEANING, count)]


def padded_shapes(seed=0):
    """Return shapes from few short elements to many long ones, padded by up to two thirds."""
    rng = np.random.default_rng(seed)
    pairs = itertools.product((1, 2, 7, 24), (17, 64, 190, 511))
    return [BatchShape(n, longest, longest + int((n - 1) * longest * rng.uniform(0.2, 1))) for n, longest in pairs]


def true_peak(shape, names, fixed=FIXED, floor=0):
    growth = sum(MEANING[name][0](*shape) * MEANING[name][1] for name in names)
    return max(fixed + growth, floor)


def noisy_problem(names, count, seed, spread=0.01):
    """Return random shapes, and their peaks with a relative normal error."""
    rng = np.random.default_rng(seed)
    items, longest = rng.integers(1, 40, count), rng.integers(20, 600, count)
    total = longest + (items - 1) * longest * rng.uniform(0.2, 1, count)
    shapes = np.column_stack([items, longest, total]).astype(np.float64)
    exact = np.array([true_peak(shape, names) for shape in shapes])
    return shapes, exact * (1 + spread * rng.standard_normal(count))


@pytest.mark.parametrize("names", COMBINATIONS, ids="+".join)
def test_terms_are_recovered(names):
    """Peaks made of some terms give back these terms with their bytes, and predict shapes never seen."""
    shapes = padded_shapes()
    model = MemoryModel().fit(shapes, [true_peak(shape, names) for shape in shapes])
    assert {name: pytest.approx(MEANING[name][1], rel=1e-3) for name in names} == model.coefficients
    unseen = [*padded_shapes(seed=1), BatchShape(100, 1000, 70_000)]
    expected = [true_peak(shape, names) for shape in unseen]
    assert pytest.approx(expected, rel=1e-3) == model.predict(unseen).tolist()


@pytest.mark.parametrize("names", [("items",), ("items*longest",), ("items*longest", "items*longest^2")], ids="+".join)
def test_floor_is_recovered(names):
    """Small batches that all need the same lie on a floor, beside which the terms are found as without one."""
    shapes, floor = padded_shapes(), 70_000_000
    peaks = [true_peak(shape, names, floor=floor) for shape in shapes]
    assert 4 <= peaks.count(floor) <= 10
    model = MemoryModel().fit(shapes, peaks)
    assert {name: pytest.approx(MEANING[name][1], rel=1e-3) for name in names} == model.coefficients
    assert pytest.approx(peaks, rel=1e-3) == model.predict(shapes).tolist()
    assert pytest.approx(floor) == model.predict(BatchShape(1, 1, 1))
    assert pytest.approx(FIXED * model.margin_factor + model.margin_bytes, rel=1e-3) == model.fixed_bytes
    assert "at least, however small the batch: 66.76 MiB" in model.summary()


@pytest.mark.parametrize("names", [("items",), ("items*longest",)], ids="+".join)
def test_floor_of_uneven_peaks_is_recovered(names):
    """Where peaks on the floor differ by 5 %, the floor is the highest, and the terms are those of the other peaks."""
    rng, floor = np.random.default_rng(1), 70_000_000
    shapes = padded_shapes()
    exact = [true_peak(shape, names) for shape in shapes]
    peaks = [peak if peak > 1.05 * floor else floor * rng.uniform(1, 1.05) for peak in exact]
    model = MemoryModel().fit(shapes, peaks)
    assert {name: pytest.approx(MEANING[name][1]) for name in names} == model.coefficients
    assert max(peak for peak in peaks if peak <= 1.05 * floor) == model.predict(BatchShape(1, 1, 1))


@pytest.mark.parametrize(
    "large", [[(12, 100), (30, 200), (25, 300)], [(8, 40), (10, 50), (12, 60)], [(16, 300), (30, 200), (25, 500)]]
)
def test_three_measurements_above_a_floor(large):
    """Three measurements above a floor tell one term, though each is also held out, which leaves too few of them."""
    pairs = [*itertools.product((1, 2, 3, 4), (3, 9, 20, 30)), *large]
    shapes = [BatchShape(n, longest, n * longest) for n, longest in pairs]
    model = MemoryModel().fit(shapes, [max(1e6 + 2500 * shape.total, 1.3e6) for shape in shapes])
    assert {"items*longest": pytest.approx(2500)} == model.coefficients
    assert pytest.approx(1.3e6) == model.predict(BatchShape(1, 1, 1))


def test_no_floor_without_need():
    """Peaks that grow from the first batch on have no floor."""
    shapes = padded_shapes()
    model = MemoryModel().fit(shapes, [true_peak(shape, ["items*longest"]) for shape in shapes])
    assert pytest.approx(FIXED, rel=1e-3) == model.predict(BatchShape(0, 0, 0))
    assert "however small" not in model.summary()


@pytest.mark.parametrize("names", [("items*longest",), ("total",), ("items", "items*longest^2")], ids="+".join)
def test_terms_are_recovered_from_noisy_peaks(names):
    """A relative error of 1 % of each peak leaves predictions for other shapes within 2 %."""
    model = MemoryModel().fit(*noisy_problem(names, 60, seed=3))
    unseen, _ = noisy_problem(names, 200, seed=4)
    expected = [true_peak(shape, names) for shape in unseen]
    assert pytest.approx(expected, rel=0.02) == model.predict(unseen).tolist()
    mean, worst = model.held_out_error
    assert 0.005 < mean < 0.012
    assert mean < worst < 0.05


@pytest.mark.parametrize("count", [12, 39, 40, 41, 100])
def test_held_out_peaks_were_not_seen(count):
    """Each peak is judged by a fit without it, from 40 measurements on without every fortieth."""
    table, peaks = noisy_problem(("items*longest",), count, seed=6)
    curve, held_out = fit_terms(table, peaks)
    assert (("items*longest",), 0.0) == (curve.names, curve.floor)
    design = np.column_stack([np.ones(count), table[:, 0] * table[:, 1]])
    predicted = []
    for i in range(count):
        others = np.array([j for j in range(count) if j != i and (j - i) % 40 != 0])
        weights = np.linalg.lstsq(design[others] / peaks[others, None], np.ones(len(others)), rcond=None)[0]
        predicted.append(float(design[i] @ weights))
    assert pytest.approx(peaks / predicted) == held_out
    mean, worst = MemoryModel().fit(table, peaks).held_out_error
    errors = np.abs(np.array(predicted) / peaks - 1)
    assert (pytest.approx(errors.mean()), pytest.approx(errors.max())) == (mean, worst)


def test_relative_errors_count():
    """A hundredth off is as bad for a small batch as for a large one, so that small ones are predicted well too."""
    shapes, peaks = noisy_problem(("items*longest^2",), 60, seed=5)
    small = peaks < np.quantile(peaks, 0.2)
    predicted = MemoryModel().fit(shapes, peaks).predict(shapes)
    assert np.abs(predicted[small] / peaks[small] - 1).max() < 0.05


def test_no_coefficient_is_negative():
    """Peaks that fall with the longest element are fitted by terms that grow, and by nothing below zero."""
    shapes = padded_shapes()
    peaks = [FIXED + 4_000_000 * shape.items - 10_000 * shape.longest for shape in shapes]
    model = MemoryModel().fit(shapes, peaks)
    assert min(model.coefficients.values()) > 0
    assert model.fixed_bytes >= 0


def test_padding_that_was_not_measured_is_assumed_to_cost():
    """Without padding in the measurements a padded batch is predicted as padded: to promise less would be rash."""
    shapes = [BatchShape(n, longest, n * longest) for n in (1, 4, 9, 20) for longest in (16, 60, 250)]
    model = MemoryModel().fit(shapes, [true_peak(shape, ["total"]) for shape in shapes])
    assert ["items*longest"] == list(model.coefficients)
    assert pytest.approx(FIXED + 40_000 * 8 * 100) == model.predict(BatchShape(8, 100, 300))


def test_profile_and_lists_give_the_same_model():
    """A profile is fitted by its measured records, whatever ran out of memory between them."""
    shapes = padded_shapes()
    peaks = [true_peak(shape, ["items*longest"]) for shape in shapes]
    records = [
        PeakRecord(i, s, p, None, None, 0, "ok", 0.1) for i, (s, p) in enumerate(zip(shapes, peaks, strict=True))
    ]
    records.insert(3, PeakRecord(99, None, None, None, None, 0, "oom", 0.1))
    from_profile, from_lists = MemoryModel().fit(Profile(tuple(records), "cpu")), MemoryModel().fit(shapes, peaks)
    assert from_lists.coefficients == from_profile.coefficients
    assert from_lists.fixed_bytes == from_profile.fixed_bytes
    assert f"over {len(shapes)} measurements" in from_profile.summary()


@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_bound_covers_new_measurements(coverage):
    """With enough measurements about the promised share of new ones stays below the bound, and not all of them."""
    shares = []
    for seed in range(3):
        model = MemoryModel(coverage=coverage).fit(*noisy_problem(("items*longest",), 50, seed=seed))
        unseen, peaks = noisy_problem(("items*longest",), 1500, seed=100 + seed)
        shares.append((peaks <= model.upper_bound(unseen)).mean())
    assert coverage - 0.1 <= np.mean(shares) < coverage + 0.099


def test_bound_covers_with_few_measurements():
    """Two dozen measurements bound 99.9 % of new ones by a limit that stays near the prediction."""
    shares = []
    for seed in range(3):
        shapes, measured = noisy_problem(("items*longest",), 24, seed=seed)
        model = MemoryModel().fit(shapes, measured)
        unseen, peaks = noisy_problem(("items*longest",), 1500, seed=100 + seed)
        shares.append((peaks <= model.upper_bound(unseen)).mean())
        largest = shapes[[measured.argmax()]]
        assert 1.01 < (model.upper_bound(largest) / model.predict(largest)).item() < 1.08
        assert 1.005 < model.margin_factor < 1.08
    assert np.mean(shares) >= 0.995


def test_margin_is_the_conformal_quantile():
    """Of nine held-out ratios the fifth smallest is the bound for a half, and the ninth for nine tenths."""
    ratios = np.array([1.09, 1.01, 1.08, 1.02, 1.07, 1.03, 1.06, 1.04, 1.05])
    assert 1.05 == margin_for(ratios, 2, 0.5)
    assert 1.09 == margin_for(ratios, 2, 0.9)


def test_margin_is_never_below_one():
    """Where predictions were all too high the bound is still the prediction."""
    assert 1.0 == margin_for(np.full(9, 0.7), 2, 0.5)


def test_margin_of_few_measurements_is_a_t_limit():
    """Beyond what four ratios can tell, the limit is Student's, with the table's 6.314 for one degree of freedom."""
    ratios = np.array([1.01, 0.99, 1.01, 0.99])
    spread = math.sqrt(4 * 0.01**2 / 1)
    assert pytest.approx(1 + 6.3138 * spread * math.sqrt(1.25), rel=1e-4) == margin_for(ratios, 3, 0.95)
    two = math.sqrt(4 * 0.01**2 / 2)
    assert pytest.approx(1 + 2.9200 * two * math.sqrt(1.25), rel=1e-4) == margin_for(ratios, 2, 0.95)


def test_margin_of_few_measurements_reaches_the_worst():
    """The t limit never undercuts a ratio that was seen."""
    ratios = np.array([1.5] + [1.0] * 17)
    assert 1.5 == margin_for(ratios, 1, 0.96)


def test_margin_with_as_many_parameters_as_measurements():
    """No degree of freedom left counts as one: the limit is wide, and there is no division by zero."""
    ratios = np.array([1.01, 0.99])
    spread = math.sqrt(2 * 0.01**2)
    assert pytest.approx(1 + 6.3138 * spread * math.sqrt(1.5), rel=1e-4) == margin_for(ratios, 2, 0.95)


NOT_ENOUGH = {
    "nothing": ([], [], "nothing to fit.*smaller batches"),
    "one items": ([(4, n, 4 * n) for n in (1, 2, 3, 4, 5)], range(1, 6), "items = 4.*other values of items"),
    "one longest": ([(n, 7, 7 * n) for n in (1, 2, 3, 4, 5)], range(1, 6), "longest = 7.*other values of longest"),
    "three shapes": ([(1, 1, 1), (2, 3, 5), (3, 2, 5)] * 4, range(1, 13), "3 different batch shapes are too few"),
    "alike": (
        [(10**6 + a, 10**6 + b, 10**12) for a in (0, 1) for b in (0, 1)],
        range(1, 5),
        "too much alike.*few long and of many short",
    ),
    "constant": ([(n, m, n * m) for n in (1, 2, 3) for m in (1, 2, 3)], [5] * 9, "do not grow.*larger batches"),
    "falling": (
        [(n, m, n * m) for n in (1, 2, 3) for m in (1, 2, 3)],
        [100 - 10 * n * m for n in (1, 2, 3) for m in (1, 2, 3)],
        "do not grow.*larger batches",
    ),
}


@pytest.mark.parametrize("case", sorted(NOT_ENOUGH))
def test_measurements_that_do_not_suffice(case):
    """Too few measurements, too much alike, or without growth are refused with what to measure in addition."""
    shapes, peaks, text = NOT_ENOUGH[case]
    with pytest.raises(NotIdentifiableError, match=text):
        MemoryModel().fit(shapes, list(peaks))


def test_failed_fit_leaves_the_model_as_it_was():
    """A model that was fitted keeps its fit when another one fails."""
    shapes = padded_shapes()
    model = MemoryModel().fit(shapes, [true_peak(shape, ["items"]) for shape in shapes])
    before = model.summary()
    with pytest.raises(NotIdentifiableError, match="nothing to fit"):
        model.fit([], [])
    assert before == model.summary()


def test_totals_of_zero_leave_their_term_out():
    """A term that is zero on every measured shape is not among the candidates."""
    shapes = [(n, longest, 0) for n in (1, 3, 8) for longest in (5, 40, 90)]
    model = MemoryModel().fit(shapes, [1000 + 3 * n * longest for n, longest, _ in shapes])
    assert ["items*longest"] == list(model.coefficients)


def test_as_few_measurements_as_can_be():
    """Four shapes fit one or two terms; three would need one more to be judged by."""
    table = np.array([(1, 10, 10), (2, 10, 20), (1, 40, 40), (4, 40, 160)], np.float64)
    curve, held_out = fit_terms(table, 1000 + 7 * table[:, 0] * table[:, 1])
    assert ("items*longest",) == curve.names
    assert [pytest.approx(1000), pytest.approx(7)] == curve.weights.tolist()
    assert pytest.approx(np.ones(4)) == held_out


def test_peaks_that_leave_too_few_above_a_floor():
    """Where nearly all peaks lie together a floor explains nothing, and the fit goes on without one."""
    shapes = [(n, longest, n * longest) for n in (1, 2, 3) for longest in (10, 20)]
    peaks = [1000.0, 1001.0, 1002.0, 1003.0, 1004.0, 1300.0]
    model = MemoryModel().fit(shapes, peaks)
    assert model.predict(BatchShape(3, 20, 60)) > model.predict(BatchShape(1, 10, 10)) > 0


def test_every_term_never_falls_and_has_a_unit():
    """Each term is worth at least as much for a shape that is larger in any respect."""
    assert list(MEANING) == list(terms(1))
    values = [term.value for term in terms(1).values()]
    steps = list(itertools.product((0.0, 1.0, 3.5, 100.0), repeat=3))
    for small, large in itertools.product(steps, steps):
        grown = np.maximum(small, large)
        assert [True] * len(values) == [bool(value(*small) <= value(*grown)) for value in values]


@pytest.mark.parametrize("name", sorted(MEANING))
def test_terms_mean_what_they_say(name):
    """A term's name is its formula."""
    assert MEANING[name][0](3.0, 5.0, 11.0) == terms(1)[name].value(3.0, 5.0, 11.0)


def test_terms_of_several_measures():
    """Every term but the first is there for each measure, and its name says which."""
    named = terms(2)
    assert ["items", "total[0]", "items*longest[0]", "items*longest[0]^2", "longest[0]^2"] == list(named)[:5]
    assert ["total[1]", "items*longest[1]", "items*longest[1]^2", "longest[1]^2"] == list(named)[5:]
    assert [0] * 5 + [1] * 4 == [term.measure for term in named.values()]
    assert 9 == len({term.unit for term in named.values()})


@pytest.mark.parametrize(
    ("weights", "names"),
    [
        pytest.param((0, 3000, 7000), ["total[0]", "total[1]"], id="graphs side by side"),
        pytest.param((50_000, 0, 9000), ["items", "total[1]"], id="elements and bonds"),
    ],
)
def test_two_measures(weights, names):
    """The terms of a model of atoms and bonds are recovered, and predict, bound and cost agree on them."""
    rng = np.random.default_rng(5)
    batches = [rng.integers(1, 60, (n, 2)) for n in (1, 2, 5, 9, 17, 30, 60, 90) for _ in range(3)]
    shapes = [BatchShape.of(batch) for batch in batches]
    peaks = [1e6 + weights[0] * len(b) + weights[1] * b[:, 0].sum() + weights[2] * b[:, 1].sum() for b in batches]
    model = MemoryModel().fit(shapes, peaks)
    assert (names, 2) == (list(model.coefficients), model.measures)
    assert peaks == pytest.approx(model.predict(shapes).tolist())
    bounds = model.upper_bound(shapes)
    longest, total = (np.array([getattr(shape, name) for shape in shapes]) for name in ("longest", "total"))
    assert bounds.tolist() == model([shape.items for shape in shapes], longest, total).tolist()
    assert bounds[3] == model.upper_bound(shapes[3]) == model(*shapes[3])
    share = model.element_bytes(batches[-1])
    assert bounds[-1] == pytest.approx(model.fixed_bytes + share.sum(), rel=1e-6)
