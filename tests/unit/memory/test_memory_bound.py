"""How many new peaks are above the upper bound, with errors that are known by construction."""

from functools import cache

import numpy as np
import pytest

from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, PeakRecord, Profile
from bionemo.size_aware_batching.memory._fit import fit_terms

MIB = 2**20
SEEDS = (0, 1, 2)
MEASURED, NEW = 300, 20_000
# Steps below this many padded units are the tiny ones.
TINY = 2000
ERRORS = {
    "relative": lambda rng, exact, padded: 0.02 * exact * rng.standard_normal(exact.size),
    "absolute": lambda rng, exact, padded: 4 * MIB * rng.standard_normal(exact.size),
    "skewed": lambda rng, exact, padded: 0.01 * exact * rng.exponential(1, exact.size),
    "bump of tiny shapes": lambda rng, exact, padded: (
        (padded < TINY) * rng.uniform(0, 12 * MIB, exact.size) + 0.002 * exact * rng.standard_normal(exact.size)
    ),
}
EVERY_ERROR = pytest.mark.parametrize("kind", sorted(ERRORS))


def draw(kind, count, seed):
    """Return shapes of 1 to 63 elements of sizes below 512, and peaks of 40 MiB and more with an error."""
    rng = np.random.default_rng(seed)
    items, longest = rng.integers(1, 64, count), rng.integers(8, 512, count)
    total = longest + (items - 1) * longest * rng.uniform(0.3, 1, count)
    exact = 40 * MIB + 30_000.0 * items * longest
    table = np.column_stack([items, longest, total]).astype(np.float64)
    return table, exact + ERRORS[kind](rng, exact, items * longest)


@cache
def fitted(kind, coverage, seed, measured=MEASURED):
    return MemoryModel(coverage=coverage).fit(*draw(kind, measured, seed))


@EVERY_ERROR
@pytest.mark.parametrize("coverage", [0.9, 0.99])
def test_few_new_peaks_are_above_the_bound(kind, coverage):
    """Of many new peaks about the promised share is below the bound: hardly fewer, and not all of them."""
    above = []
    for seed in SEEDS:
        shapes, peaks = draw(kind, NEW, seed=100 + seed)
        above.append((peaks > fitted(kind, coverage, seed).upper_bound(shapes)).mean())
    share = 1 - coverage
    # The share above a quantile of n measurements is off by its binomial error, here of all fits together.
    spread = (share * coverage / (MEASURED * len(SEEDS))) ** 0.5
    assert share / 4 < np.mean(above) < share + 3 * spread


def test_few_new_peaks_of_two_measures_are_above_the_bound():
    """The bound of a model of two measures covers as much as it promises."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(1, rng.integers(2, 200, 2), (n, 2)) for n in rng.integers(1, 40, 3000).tolist()]
    table = np.array([np.hstack(BatchShape.of(row)) for row in rows], np.float64)
    exact = 40 * MIB + 9000 * table[:, 3] + 25_000 * table[:, 0] * table[:, 2]
    peaks = exact * (1 + 0.02 * rng.standard_normal(exact.size))
    model = MemoryModel(coverage=0.9).fit(table[:250], peaks[:250])
    assert ["total[0]", "items*longest[1]"] == list(model.coefficients)
    assert 0.05 < (peaks[250:] > model.upper_bound(table[250:])).mean() < 0.1 + 3 * (0.09 / 250) ** 0.5


@EVERY_ERROR
def test_bound_of_few_measurements(kind):
    """Two dozen measurements bound all but a few of many new peaks at the default coverage."""
    above = []
    for seed in SEEDS:
        shapes, peaks = draw(kind, NEW, seed=100 + seed)
        above.append((peaks > fitted(kind, 0.999, seed, 24).upper_bound(shapes)).mean())
    assert np.mean(above) < 0.02


def test_errors_of_tiny_shapes_do_not_widen_the_bound_of_large_ones():
    """Tiny steps that need up to a tenth more than predicted leave the bound of a large one near its prediction."""
    shapes, peaks = draw("bump of tiny shapes", MEASURED, seed=0)
    model = fitted("bump of tiny shapes", 0.99, 0)
    relative = peaks / model.predict(shapes)
    tiny = shapes[:, 0] * shapes[:, 1] < TINY
    assert relative[tiny].max() > 1.1
    assert (peaks[tiny] <= model.upper_bound(shapes[tiny])).mean() > 0.8
    largest = shapes[[peaks.argmax()]]
    assert (model.upper_bound(largest) / model.predict(largest)).item() < 1.02


def test_bound_is_calibrated_on_errors_over_prediction_plus_largest_peak():
    """With nine errors held out, the bound for nine tenths is the one that the worst of them just reaches."""
    shapes = [(n, longest, n * longest) for n in (1, 4, 16) for longest in (32, 128, 512)]
    signs = np.array([1, -1, 2, 1, -2, 1, -1, 1, -1])
    peaks = np.array([1e6 + 2000 * total for _, _, total in shapes]) * (1 + 0.01 * signs)
    _, held_out = fit_terms(np.array(shapes, np.float64), peaks)
    model = MemoryModel(coverage=0.9).fit(shapes, peaks)
    predicted = peaks / held_out
    margin = max((peaks - predicted) / (predicted + peaks.max()))
    assert margin > 0.001
    assert pytest.approx(1 + margin) == model.margin_factor
    assert pytest.approx(margin * peaks.max()) == model.margin_bytes
    bounds = model.margin_factor * predicted + model.margin_bytes
    assert 1 == np.isclose(bounds, peaks, rtol=1e-9).sum()
    assert (peaks <= bounds * (1 + 1e-9)).all()
    assert "9 of 9 held-out peaks below it" in model.summary()


def test_bound_of_few_measurements_is_a_t_limit_of_such_errors():
    """Nine errors cannot tell 99.9 %: the limit is Student's, 5.2076 for nine measurements and three parameters."""
    shapes = [(n, longest, n * longest) for n in (1, 4, 16) for longest in (32, 128, 512)]
    signs = np.array([1, -1, 2, 1, -2, 1, -1, 1, -1])
    peaks = np.array([1e6 + 2000 * total for _, _, total in shapes]) * (1 + 0.01 * signs)
    _, held_out = fit_terms(np.array(shapes, np.float64), peaks)
    model = MemoryModel(coverage=0.999).fit(shapes, peaks)
    assert 2 == len(model.coefficients)
    predicted = peaks / held_out
    scores = (peaks - predicted) / (predicted + peaks.max())
    spread = np.sqrt((scores**2).sum() / 6)
    assert pytest.approx(5.2076 * spread * np.sqrt(1 + 1 / 9), rel=1e-4) == model.margin_factor - 1


@pytest.mark.parametrize("coverage", [0.6, 0.9])
@pytest.mark.parametrize("kind", ["relative", "absolute"])
def test_share_of_held_out_peaks_below_the_bound(kind, coverage):
    """The summary counts the held-out peaks below the bound, about the promised share of all."""
    counted = fitted(kind, coverage, 0).summary().splitlines()[-1].split("; ")[1].split()
    assert ["of", str(MEASURED), "held-out", "peaks", "below", "it"] == counted[1:]
    assert np.ceil((MEASURED + 1) * coverage) == int(counted[0])


def test_peak_that_makes_the_bound_is_below_it():
    """Of thirty held-out peaks the sixteenth makes the bound for a half, and counts as below it."""
    rng = np.random.default_rng(3)
    items, longest = rng.integers(1, 40, 30), rng.integers(20, 600, 30)
    peaks = (5e7 + 3e4 * items * longest) * (1 + 0.01 * rng.standard_normal(30))
    model = MemoryModel(coverage=0.5).fit(np.column_stack([items, longest, items * longest]), peaks)
    assert model.margin_factor > 1
    assert "16 of 30 held-out peaks below it" in model.summary()


def test_bound_of_peaks_without_errors_is_the_prediction():
    """Peaks that a model explains entirely leave nothing to add."""
    shapes = [BatchShape(n, longest, n * longest) for n in (1, 4, 16) for longest in (32, 128, 512)]
    model = MemoryModel().fit(shapes, [1e6 + 2000 * shape.total for shape in shapes])
    assert pytest.approx(1.0, abs=1e-12) == model.margin_factor
    assert pytest.approx(0.0, abs=1e-3) == model.margin_bytes
    assert pytest.approx(model.predict(shapes)) == model.upper_bound(shapes)


def test_predictions_that_were_too_high_do_not_lower_the_bound():
    """A bound is never below the prediction, however little coverage is asked for."""
    shapes, peaks = draw("relative", 60, seed=0)
    model = MemoryModel(coverage=0.01).fit(shapes, peaks)
    assert (1.0, 0.0) == (model.margin_factor, model.margin_bytes)
    assert model.predict(shapes).tolist() == model.upper_bound(shapes).tolist()


@pytest.mark.parametrize("fragmentation", [0.0, 0.25])
def test_drift_of_a_profile_is_in_the_bound(fragmentation):
    """What peaks may be higher after other steps is in every bound, in fixed bytes, and in no prediction or share."""
    table, peaks = draw("relative", 40, seed=0)
    drift = 123_456_789
    shapes = [BatchShape(*row) for row in table.tolist()]
    records = tuple(
        PeakRecord(i, shape, int(peak), None, None, 0, "ok", 0.1)
        for i, (shape, peak) in enumerate(zip(shapes, peaks, strict=True))
    )
    without = MemoryModel().fit(Profile(records, "a card"))
    model = MemoryModel().fit(Profile(records, "a card", 0, fragmentation, drift))
    assert without.predict(shapes).tolist() == model.predict(shapes).tolist()
    assert without.element_bytes([1, 20, 300]).tolist() == model.element_bytes([1, 20, 300]).tolist()
    for name in ("margin_factor", "coefficients", "held_out_error"):
        assert getattr(without, name) == getattr(model, name)
    assert pytest.approx(without.margin_bytes + drift) == model.margin_bytes
    assert pytest.approx(without.upper_bound(shapes) + drift) == model.upper_bound(shapes)
    assert pytest.approx(without(3, 40, 100) + drift) == model(3, 40, 100)
    assert pytest.approx(without.fixed_bytes + drift, abs=1) == model.fixed_bytes
    (least, fixed, weights), (_, fixed_without, same) = model.polynomial(), without.polynomial()
    assert (pytest.approx(model.margin_bytes), pytest.approx(fixed_without + drift), same) == (least, fixed, weights)
    # Drift is beyond what was measured: it covers no held-out peak.
    assert without.summary().splitlines()[-1].split("; ")[1] == model.summary().splitlines()[-1].split("; ")[1]


def test_drift_of_another_profile_is_forgotten():
    """A model that is fitted anew, to shapes and peaks, has no drift left from the profile before."""
    table, peaks = draw("absolute", 40, seed=0)
    records = tuple(
        PeakRecord(i, BatchShape(*row), int(peak), None, None, 0, "ok", 0.1)
        for i, (row, peak) in enumerate(zip(table.tolist(), peaks, strict=True))
    )
    model = MemoryModel().fit(Profile(records, "a card", drift_bytes=10**9))
    assert model.margin_bytes > 10**9
    assert 10**9 > model.fit(table, peaks).margin_bytes == MemoryModel().fit(table, peaks).margin_bytes
