"""`PeakMonitor`: records of training steps, drift both ways, recovery, logs, refits."""

import gc
import json
import linecache
import logging
import math
import warnings
import weakref
from contextlib import nullcontext, suppress
from fractions import Fraction

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching.errors import MemoryDriftWarning, NotIdentifiableError
from bionemo.size_aware_batching.measure import measure_peaks
from bionemo.size_aware_batching.measure._meter import Reading
from bionemo.size_aware_batching.measure._monitor import PeakMonitor
from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, PeakRecord, Profile

NEVER = 10**6
KIB = 1024
SHAPES = [(items, longest) for items in (2, 5, 9, 16) for longest in (30, 70, 110)]


class Dial:
    """A meter that shows what it is set to."""

    def __init__(self):
        self.peak = 0

    def watching(self):
        return nullcontext()

    def begin(self):
        self.peak = 0

    def read(self):
        return Reading(self.peak, None, None, 0)


class Guess:
    """A regressor that predicts the longest size in bytes, and bounds nothing."""

    def predict(self, features):
        return features[:, 1]


class Bounded(Guess):
    """A model that predicts the longest size, and bounds it with a margin."""

    def __init__(self, coverage=0.8, margin=1.25):
        self.coverage, self.margin = coverage, margin

    def upper_bound(self, features):
        return self.margin * self.predict(features)


class Known(Guess):
    """A model that knows its error."""

    def __init__(self, largest):
        self.held_out_error = largest / 2, largest


def allocate(count):
    """Have that many bytes for a moment."""
    return torch.zeros(count, dtype=torch.uint8).numel()


def shape_of(predicted):
    """Return a shape for which the models here predict a number of bytes."""
    return BatchShape(1, predicted, predicted)


def dialled(model=None, **settings):
    """Return a monitor whose steps take what its dial is set to."""
    monitor = PeakMonitor("cpu", model, **settings)
    monitor._meter = Dial()
    return monitor


def watching_bounds(window=1, **model):
    """Return such a monitor that warns of peaks above the bound alone."""
    return dialled(Bounded(**model), window=window, tolerance=NEVER)


def take_steps(monitor, peaks, predicted=1000):
    """Take steps of these peaks; return the number of each step that warned, and what the warnings say."""
    numbers, texts = [], []
    with monitor:
        for peak in peaks:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with monitor.step(shape_of(predicted)):
                    monitor._meter.peak = peak
            numbers += [monitor.steps - 1] * len(caught)
            texts += [str(warning.message) for warning in caught]
    return numbers, texts


def take_steps_of(monitor, *shapes):
    """Take a step of each shape."""
    for shape in shapes:
        with monitor.step(shape):
            monitor._meter.peak = 1000


def warning_steps(monitor, peaks):
    return take_steps(monitor, peaks)[0]


def fail(monitor, error, shape=None):
    """Take a step that raises an error."""
    with monitor.step(shape):
        allocate(KIB)
        raise error


def train_until(monitor, error, shape):
    """Take a step, then one that raises an error."""
    with monitor:
        take_steps_of(monitor, shape)
        fail(monitor, error)


def train(monitor, width, shapes):
    """Train a small network on batches of these shapes."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    optimizer = torch.optim.Adam(network.parameters())
    with monitor:
        for items, longest in shapes:
            with monitor.step(BatchShape.of([longest] * items)):
                network(torch.zeros(items, longest, 8)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()


def fitted_model(coverage=0.99):
    shapes = [BatchShape.of([longest] * items) for items, longest in SHAPES]
    peaks = [1_000_000 + 2_000 * shape.items * shape.longest for shape in shapes]
    return MemoryModel(coverage=coverage).fit(shapes, peaks)


def test_records_of_steps():
    """Each step has a record: its number, shape, peak, time; a CPU has no reserved bytes."""
    monitor, weights = PeakMonitor("cpu"), torch.zeros(KIB, dtype=torch.uint8)
    with monitor:
        for count in (3, 1):
            with monitor.step(shape_of(count)):
                torch.zeros(count * KIB, dtype=torch.uint8)
                weights.sum()
    found = monitor.profile
    expected = [
        PeakRecord(i, shape_of(n), (n + 1) * KIB, None, None, KIB, "ok", found[i].seconds) for i, n in enumerate([3, 1])
    ]
    assert Profile(tuple(expected), "cpu") == found
    assert all(0 < record.seconds < 60 for record in found)


def test_callbacks_are_a_step():
    """`begin_step` and `end_step`, for frameworks that own the loop, record what `step` does, and no more."""
    monitor = PeakMonitor("cpu")
    with monitor:
        for count in (3, 1):
            monitor.begin_step()
            allocate(count * KIB)
            monitor.end_step(shape_of(count))
            allocate(10 * KIB)
    assert [(0, 3, 3 * KIB), (1, 1, KIB)] == [(r.index, r.features.longest, r.peak_bytes) for r in monitor.profile]


def test_profile_is_like_a_measured_one():
    """The same steps have the same peaks as in `measure_peaks`."""
    monitor = PeakMonitor("cpu")
    with monitor:
        for count in (100, 7000):
            with monitor.step(None):
                allocate(count)
    measured = measure_peaks([100, 7000], allocate, "cpu", warmup=0, progress=False)
    assert measured.peak_bytes == monitor.profile.peak_bytes


def test_monitor_is_entered_anew():
    """A second `with` block goes on where the first ended."""
    monitor = dialled()
    take_steps(monitor, [10, 20])
    take_steps(monitor, [30])
    assert [(0, 10), (1, 20), (2, 30)] == [(record.index, record.peak_bytes) for record in monitor.profile]
    assert 3 == monitor.steps


def test_nothing_is_watched_outside():
    """Operations are counted inside the `with` block alone."""
    with PeakMonitor("cpu"):
        assert 1 == torch._C._len_torch_dispatch_stack()
    assert 0 == torch._C._len_torch_dispatch_stack()


def test_last_steps_are_kept():
    """Of more steps than `keep` the last are kept, with their numbers; the summary counts all."""
    monitor = dialled(keep=3)
    take_steps(monitor, [5000, 1, 2, 3, 4, 5])
    assert [(3, 3), (4, 4), (5, 5)] == [(record.index, record.peak_bytes) for record in monitor.profile]
    assert "6 steps on cpu\npeaks: 1 B to 4.883 KiB" == monitor.summary()


def test_ten_thousand_steps_are_kept():
    """Without a word the last 10,000 steps are kept."""
    assert 10_000 == PeakMonitor("cpu")._records.maxlen


def test_step_outside():
    """A step outside of `with monitor` is an error that says where to put it, and does not run."""
    monitor = dialled()
    with pytest.raises(RuntimeError, match="inside `with monitor`, which watches the device"):
        monitor.begin_step()
    with pytest.raises(RuntimeError, match="put it around the loop"), monitor.step(shape_of(1)):
        pytest.fail("ran the step")
    take_steps(monitor, [1])
    with pytest.raises(RuntimeError, match="inside `with monitor`"):
        monitor.begin_step()


def test_entering_twice():
    """A monitor is entered once at a time, and the first `with` goes on."""
    monitor = PeakMonitor("cpu")
    with monitor:
        with pytest.raises(RuntimeError, match="this PeakMonitor is entered already"), monitor:
            pytest.fail("entered twice")
        with monitor.step(None):
            allocate(KIB)
    assert [KIB] == monitor.profile.peak_bytes


def test_end_without_begin():
    """A step that ends has begun, in this `with` block."""
    monitor = PeakMonitor("cpu")
    with monitor:
        with pytest.raises(RuntimeError, match=r"call begin_step\(\) before end_step\(shape\)"):
            monitor.end_step(None)
        monitor.begin_step()
    with monitor, pytest.raises(RuntimeError, match="no step was begun"):
        monitor.end_step(None)
    assert 0 == monitor.steps


def test_begin_forgets_what_did_not_end():
    """A framework whose step failed begins the next one; the failed one leaves nothing."""
    monitor = PeakMonitor("cpu")
    with monitor:
        monitor.begin_step()
        allocate(5 * KIB)
        monitor.begin_step()
        allocate(KIB)
        monitor.end_step(None)
    assert [KIB] == monitor.profile.peak_bytes


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, RuntimeError])
def test_running_out_of_memory(caplog, error):
    """A step that runs out of memory is recorded so, logged with its shape as text, and its error goes on."""
    monitor = PeakMonitor("cpu", Bounded())
    with monitor, pytest.raises(error, match="out of memory"):
        fail(monitor, error("CUDA out of memory"), shape_of(7))
    record = monitor.profile[0]
    assert PeakRecord(0, None, None, None, None, 0, "oom", record.seconds) == record
    assert (
        "step 0 of shape BatchShape(items=1, longest=7, total=7) ran out of memory: CUDA out of memory" in caplog.text
    )
    assert [str] == [type(part) for part in caplog.records[0].args[2:]]
    assert caplog.records[0].exc_info is None


def test_steps_go_on_after_running_out_of_memory():
    """Who handles the error goes on, and so do the numbers of steps."""
    monitor = PeakMonitor("cpu")
    with monitor:
        for count in (KIB, 2**50, 2 * KIB):
            with suppress(RuntimeError), monitor.step(shape_of(count)):
                allocate(count)
    assert [(0, "ok"), (1, "oom"), (2, "ok")] == [(record.index, record.status) for record in monitor.profile]
    assert "3 steps on cpu, 1 out of memory\npeaks: 1 KiB to 2 KiB" == monitor.summary()


def test_summary_where_every_step_ran_out_of_memory():
    """Without a peak there is no range of peaks."""
    monitor = PeakMonitor("cpu")
    with monitor, suppress(MemoryError):
        fail(monitor, MemoryError())
    assert "1 steps on cpu, 1 out of memory" == monitor.summary()


def test_step_within_a_step_runs_out_of_memory():
    """One lack of memory is one record, however many steps are around it."""
    monitor = PeakMonitor("cpu")
    with monitor, pytest.raises(MemoryError, match="gone"), monitor.step(1):
        fail(monitor, MemoryError("gone"))
    assert ["oom"] == [record.status for record in monitor.profile]


def test_tensors_of_a_failed_step_are_let_go():
    """The monitor and its log keep nothing of a step that ran out of memory."""
    monitor, seen = PeakMonitor("cpu"), []

    def work():
        tensor = torch.zeros(10)
        seen.append(weakref.ref(tensor))
        raise MemoryError(tensor.sum().item())

    with monitor, suppress(MemoryError), monitor.step(1):
        work()
    gc.collect()
    assert [None] == [reference() for reference in seen]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, RuntimeError])
def test_other_errors_leave_no_record(error):
    """Another error goes on; its step is in no record, and the next one takes its number."""
    monitor = PeakMonitor("cpu")
    with monitor:
        with pytest.raises(error, match="the shapes do not match"):
            fail(monitor, error("the shapes do not match"))
        with pytest.raises(RuntimeError, match="no step was begun"):
            monitor.end_step(1)
        with monitor.step(2):
            allocate(KIB)
    assert [(0, 2)] == [(record.index, record.features) for record in monitor.profile]


def tail(above, count, beyond):
    """Return the probability of so many or more, by its definition."""
    return sum(math.comb(count, k) * beyond**k * (1 - beyond) ** (count - k) for k in range(above, count + 1))


@pytest.mark.parametrize("good", [0, 1, 5, 20, 60])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_too_many_peaks_above_the_bound(good, coverage):
    """The warning comes with the first peak that makes so many above the bound less likely than 0.001."""
    monitor, beyond = watching_bounds(coverage=coverage), 1 - Fraction(str(coverage))
    first = next(k for k in range(1, 999) if tail(k, good + k, beyond) < Fraction(1, 1000))
    numbers, texts = take_steps(monitor, [1000] * good + [1300] * (first + 3))
    assert [good + first - 1] == numbers
    allowed = f"{float(beyond) * (good + first):.2g}"
    assert f"{first} of {good + first} peaks above the bound, where coverage {coverage} allows {allowed}" in texts[0]


def test_as_many_above_the_bound_as_coverage_allows():
    """Peaks above the bound in the share that coverage leaves are nothing to warn of."""
    monitor = watching_bounds(coverage=0.8)
    assert [] == warning_steps(monitor, [1000, 1300, 1000, 1000, 1000] * 40)
    assert "40 of 200 peaks above the bound, where coverage 0.8 allows 40" in monitor.summary()


def test_peaks_at_the_bound_are_not_above_it():
    """The bound is inclusive."""
    monitor = watching_bounds(coverage=0.999)
    assert [] == warning_steps(monitor, [1250] * 99)
    assert "0 of 99 peaks above the bound, where coverage 0.999 allows 0.099" in monitor.summary()


@pytest.mark.parametrize(("peak", "expected"), [(1251, []), (1562, []), (1564, [0])])
def test_peak_above_the_bound_by_another_margin(peak, expected):
    """One peak above the bound warns only if it is so by more than another whole margin, and then at once."""
    assert expected == warning_steps(watching_bounds(), [peak])


def test_bound_that_is_off_by_a_rounding():
    """A bound that its own measurements exceed by less than a byte holds for them."""
    monitor = watching_bounds(margin=1 - 1e-12)
    assert [] == warning_steps(monitor, [1000] * 9)
    assert "0 of 9 peaks above the bound" in monitor.summary()
    assert [9] == warning_steps(monitor, [1001])


def test_bound_warns_again_after_it_held():
    """A warning is not repeated before as many steps in a row were below as coverage allows one above in."""
    monitor = watching_bounds(coverage=0.8)
    assert [0] == warning_steps(monitor, [2000] * 9)
    assert [] == warning_steps(monitor, [1000] * 4 + [2000])
    assert [] == warning_steps(monitor, [1000] * 5)
    assert [20] == warning_steps(monitor, [1300, 2000, 2000, 2000, 2000])


def test_bound_recovers_no_sooner_than_the_window():
    """Where coverage is low, the window says how long the bound must have held."""
    monitor = watching_bounds(coverage=0.5, window=8)
    assert [0] == warning_steps(monitor, [2000] + [1000] * 7 + [2000])
    assert [17] == warning_steps(monitor, [1000] * 8 + [2000])


def test_recovered_bound_is_counted_anew():
    """After recovery, peaks above the bound before it are no evidence any more; the summary has them all."""
    monitor = watching_bounds(coverage=0.8)
    assert [4] == warning_steps(monitor, [1300] * 30)
    assert [] == warning_steps(monitor, [1000] * 5)
    assert [] == warning_steps(monitor, [1300] * 4)
    assert [39] == warning_steps(monitor, [1300])
    assert "35 of 40 peaks above the bound" in monitor.summary()


def test_warning_of_a_bound_says_it_all():
    """The text names step, shape, bytes observed, predicted and bounded, and what to do."""
    expected = (
        "step 0 of shape BatchShape(items=1, longest=2048, total=2048) took 6 KiB, predicted 2 KiB, bound 2.5 KiB: "
        "the peak is further above the bound than the bound above the prediction; refit the model with refit(), and "
        "plan with it anew"
    )
    assert ([0], [expected]) == take_steps(watching_bounds(), [6 * KIB], predicted=2 * KIB)


def test_warning_of_a_shift_says_it_all():
    """Without a bound the text names none."""
    expected = (
        "step 1 of shape BatchShape(items=1, longest=2048, total=2048) took 3 KiB, predicted 2 KiB: the last 2 peaks "
        "are 50.0% above their predictions at the median, more than the tolerance 2.0%; refit the model with refit(), "
        "and plan with it anew"
    )
    assert ([1], [expected]) == take_steps(dialled(Guess(), window=2), [3 * KIB] * 2, predicted=2 * KIB)


@pytest.mark.parametrize(("peak", "side"), [(1200, "20.0% above"), (800, "20.0% below")])
def test_shift_of_the_median(peak, side):
    """The warning comes once, when the window is full of steps that need another amount, more or less."""
    numbers, texts = take_steps(dialled(Guess(), window=5), [peak] * 20)
    assert [4] == numbers
    assert f"the last 5 peaks are {side} their predictions" in texts[0]


def test_shift_shows_in_more_than_half_the_window():
    """Single peaks do not move the median; more than half of the window does."""
    monitor = dialled(Guess(), window=5)
    assert [] == warning_steps(monitor, [1000, 1000, 1300, 1000, 1300] * 3)
    assert [16] == warning_steps(monitor, [1000, 1300, 1300, 1300])


@pytest.mark.parametrize("window", [1, 2, 7, np.int64(50)])
def test_window(window):
    """The median is taken of full windows only."""
    monitor = dialled(Guess(), window=window)
    assert [] == warning_steps(monitor, [1200] * (window - 1))
    assert [window - 1] == warning_steps(monitor, [1200])


def test_window_is_fifty_steps():
    """Without a word the window is of 50 steps."""
    assert [49] == warning_steps(dialled(Guess()), [900] * 60)


@pytest.mark.parametrize(
    ("model", "tolerance", "within", "beyond"),
    [
        (Guess(), None, 1019, 1021),
        (Known(0.001), None, 1019, 1021),
        (Known(0.05), None, 1149, 1151),
        (Known(0.05), 0.01, 1009, 1011),
        (Guess(), 1, 2000, 2001),
        (Guess(), np.float64(0.5), 500, 499),
    ],
)
def test_tolerance(model, tolerance, within, beyond):
    """It is 2 %, or three times the model's largest held-out error if that is more, or what was given."""
    monitor = dialled(model, window=1, tolerance=tolerance)
    assert [] == warning_steps(monitor, [within])
    assert [1] == warning_steps(monitor, [beyond])


def test_shift_warns_again_after_it_was_gone():
    """A warning is not repeated while the median trembles at the tolerance, but after it was at half of that."""
    monitor = dialled(Guess(), window=1, tolerance=0.1)
    assert [0] == warning_steps(monitor, [1101, 1099, 1101, 1051, 1101, 949, 1101])
    assert [8] == warning_steps(monitor, [1049, 1101, 1200])
    assert [11] == warning_steps(monitor, [1000, 899])


def test_each_kind_warns_by_itself():
    """A step may be both far above its bound and the end of a window that is off."""
    numbers, texts = take_steps(dialled(Bounded(), window=1), [2000, 2000])
    assert [0, 0] == numbers
    assert [True, False] == ["at the median" in text for text in texts]


def test_model_without_a_bound_is_not_asked_for_one():
    """A model that only predicts is compared with its prediction alone."""
    monitor = dialled(Guess(), tolerance=NEVER)
    assert [] == warning_steps(monitor, [10**6] * 60)
    assert "bound" not in monitor.summary()


def test_bound_without_a_coverage_is_not_checked():
    """A bound that does not say how often it holds cannot be held to anything."""
    model = Guess()
    model.upper_bound = lambda _: pytest.fail("asked for the bound")
    assert [] == warning_steps(dialled(model, tolerance=NEVER), [10**6] * 60)


@pytest.mark.parametrize(("peak", "predicted"), [(0, 1000), (1000, 0), (1000, -5), (1000, math.nan)])
def test_steps_without_a_ratio(peak, predicted):
    """An empty step, and a prediction of nothing, are recorded but not compared."""
    monitor = dialled(Bounded(), window=1)
    assert ([], []) == take_steps(monitor, [peak], predicted)
    assert [peak] == monitor.profile.peak_bytes
    assert "error of" not in monitor.summary()


def test_infinite_prediction():
    """A model that predicts infinitely many bytes is off, while its bound holds."""
    _, texts = take_steps(dialled(Bounded(), window=1), [1000], math.inf)
    assert ["100.0% below"] == [text.split("peaks are ")[1][:12] for text in texts]


def take_two_bytes(monitor):
    """Take a step by callbacks."""
    monitor.begin_step()
    monitor._meter.peak = 2
    monitor.end_step(shape_of(1))


def test_callbacks_warn_where_they_are():
    """The warning points to the line that ended the step."""
    monitor = dialled(Guess(), window=1)
    with monitor, pytest.warns(MemoryDriftWarning, match="took 2 B, predicted 1 B") as caught:
        take_two_bytes(monitor)
    lines = [(warning.filename, linecache.getline(__file__, warning.lineno).strip()) for warning in caught]
    assert [(__file__, "monitor.end_step(shape_of(1))")] == lines


def test_steps_warn_where_they_are():
    """The warning points to the file of the `with monitor.step(...)`."""
    monitor = dialled(Guess(), window=1)
    with monitor, pytest.warns(MemoryDriftWarning, match="predicted 1 B") as caught, monitor.step(shape_of(1)):
        monitor._meter.peak = 2
    assert [__file__] == [warning.filename for warning in caught]


def test_warning_as_an_error_keeps_the_record():
    """Who turns the warning into an error gets it once, with the step recorded."""
    monitor = dialled(Guess(), window=1)
    with monitor:
        with pytest.raises(MemoryDriftWarning, match="step 0"):
            take_two_bytes(monitor)
        take_two_bytes(monitor)
    assert [2, 2] == monitor.profile.peak_bytes


def test_errors_of_the_model_pass():
    """What a model raises about a shape reaches the caller."""
    monitor = dialled(fitted_model())
    with monitor, pytest.raises(ValueError, match="have 2 measures, the model was fitted to 1"):
        take_steps_of(monitor, BatchShape(1, (2, 3), (2, 3)))
    assert 1 == monitor.steps


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (BatchShape(2, 3, 5), np.array([[2.0, 3, 5]])),
        (BatchShape(2, (3, 4), (5, 7)), np.array([[2.0, 3, 4, 5, 7]])),
        ((2, 3), [(2, 3)]),
        ("long", ["long"]),
    ],
)
def test_models_are_given_rows(shape, expected):
    """A `BatchShape` reaches a model as a row of numbers, as in a plan's cost; anything else as a list of one."""
    seen, model = [], Guess()
    model.predict = lambda features: seen.append(features) or [1000]
    monitor = dialled(model)
    with monitor:
        take_steps_of(monitor, shape)
    assert type(expected) is type(seen[0])
    assert np.array_equal(expected, seen[0])


@pytest.mark.parametrize("answer", [[500.0], np.array([500]), torch.tensor([500.0]), np.array([[500]]), 500])
def test_predictions_of_every_kind(answer):
    """A prediction is a number, or a list or an array of one."""
    model = Guess()
    model.predict = lambda _: answer
    monitor = dialled(model)
    take_steps(monitor, [400])
    assert "error of 1 predictions: mean 25.00%, largest 25.00%" in monitor.summary()


def test_fitted_model_is_a_model():
    """A `MemoryModel` predicts and bounds the shapes it was fitted to, in one measure or several."""
    shapes = [BatchShape(n, (k, 2 * k), (n * k, n * k)) for n, k in SHAPES]
    peaks = [1000 + 30 * shape.items * shape.longest[1] for shape in shapes]
    monitor = dialled(MemoryModel().fit(shapes, peaks), window=1)
    with monitor:
        for shape, peak in zip(shapes, peaks, strict=True):
            with monitor.step(shape):
                monitor._meter.peak = peak
    assert "error of 12 predictions: mean 0.00%, largest 0.00%\n0 of 12 peaks above" in monitor.summary()


def test_summary():
    """The summary has steps, range of peaks, errors relative to the peak, and peaks above the bound."""
    monitor = watching_bounds(coverage=0.9)
    take_steps(monitor, [800, 1000, 1250])
    expected = (
        "3 steps on cpu\npeaks: 800 B to 1.221 KiB\nerror of 3 predictions: mean 15.00%, largest 25.00%\n"
        "0 of 3 peaks above the bound, where coverage 0.9 allows 0.3"
    )
    assert expected == monitor.summary()


def test_summary_of_nothing():
    """Before the first step there is nothing to say but that."""
    assert "0 steps on cpu" == PeakMonitor("cpu").summary()
    expected = "0 steps on cpu\n0 of 0 peaks above the bound, where coverage 0.8 allows 0"
    assert expected == PeakMonitor("cpu", Bounded()).summary()


def test_repr():
    """The repr shows device and model, and how far it is."""
    model = fitted_model()
    assert f"PeakMonitor('cpu', {model!r}, steps=0)" == repr(PeakMonitor("cpu", model))


@pytest.mark.parametrize("kind", [str, lambda path: path], ids=["text", "path"])
def test_log(tmp_path, kind):
    """When the block ends, the log is the profile, and replaces what was there."""
    path = tmp_path / "peaks.json"
    path.write_text("old")
    monitor = dialled(log=kind(path))
    take_steps(monitor, [10, 20])
    assert monitor.profile == Profile.load(path)
    take_steps(monitor, [30])
    assert [10, 20, 30] == Profile.load(path).peak_bytes


def test_log_in_this_folder(tmp_path, monkeypatch):
    """A bare name is a file in the current folder."""
    monkeypatch.chdir(tmp_path)
    take_steps(dialled(log="peaks.json"), [10])
    assert [10] == Profile.load("peaks.json").peak_bytes


@pytest.mark.parametrize("error", [ZeroDivisionError, MemoryError, KeyboardInterrupt])
def test_log_after_an_error(tmp_path, error):
    """The log is written also when training fails, with all steps that ended."""
    monitor = dialled(log=tmp_path / "peaks.json")
    with pytest.raises(error, match="failed"):
        train_until(monitor, error("failed"), shape_of(1))
    assert monitor.profile == Profile.load(tmp_path / "peaks.json")
    assert [1000] == monitor.profile.peak_bytes


def test_log_during_training(tmp_path):
    """Every 500 steps the log is written, so that a process that is killed leaves one."""
    path = tmp_path / "peaks.json"
    monitor, seen = dialled(log=path, keep=20), []
    with monitor:
        for _ in range(1001):
            take_steps_of(monitor, None)
            seen += [json.loads(found.read_bytes())["records"][-1]["index"] for found in tmp_path.iterdir()]
            path.unlink(missing_ok=True)
    assert [499, 999] == seen
    assert 20 == len(Profile.load(path))


def test_log_that_cannot_be_written_during_training(tmp_path, caplog):
    """Training goes on, and the program's log says why there is no file; at the end it is an error."""
    monitor = dialled(log=tmp_path / "peaks.json")
    with pytest.raises(TypeError, match="the features at index 0 cannot be saved: they hold object"), monitor:
        take_steps_of(monitor, *[object()] * 501)
    assert 501 == monitor.steps
    assert "peaks.json: the features at index 0 cannot be saved" in caplog.text
    assert ["WARNING"] == [record.levelname for record in caplog.records]


def test_log_that_cannot_be_written_after_an_error(tmp_path, caplog):
    """The error of the training is the one that is raised, and watching ends."""
    monitor = PeakMonitor("cpu", log=tmp_path / "peaks.json")
    with pytest.raises(ZeroDivisionError, match="failed"):
        train_until(monitor, ZeroDivisionError("failed"), object())
    assert "peaks could not be written" in caplog.text
    assert 0 == torch._C._len_torch_dispatch_stack()


def test_no_log_without_a_path(tmp_path, monkeypatch, caplog):
    """Without `log` no file is written, and steps that end well say nothing."""
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.DEBUG):
        take_steps(dialled(), [10])
    assert ([], []) == (list(tmp_path.iterdir()), caplog.records)


BAD_ARGUMENTS = {
    "device is a number": ({"device": 0}, TypeError, "`device` must be a torch.device or its name, got int"),
    "device is absent": ({"device": "cuda:97"}, ValueError, "`device` cuda:97 is not there"),
    "device has no memory": ({"device": "meta"}, ValueError, "accelerator that counts its peak memory, got meta"),
    "model is a number": ({"model": 5}, TypeError, "`model` must be None or have a method `predict`.*got int"),
    "model is a class": ({"model": MemoryModel}, TypeError, "must be None or have a method `predict`.*got type"),
    "model is a function": ({"model": allocate}, TypeError, "have a method `predict`.*got function"),
    "model is not fitted": ({"model": MemoryModel()}, ValueError, "this MemoryModel is not fitted"),
    "coverage is one": ({"model": Bounded(1)}, ValueError, "coverage of `model` must be between 0 and 1, got 1"),
    "coverage is text": ({"model": Bounded("all")}, ValueError, "must be between 0 and 1, got 'all'"),
    "log is a number": ({"log": 3}, TypeError, "`log` must be a path, got int"),
    "log is bytes": ({"log": b"peaks"}, TypeError, "`log` must be a path, got bytes"),
    "log is a folder": ({"log": "/"}, ValueError, "`log` must be a file in a folder that exists, got '/'"),
    "log is in no folder": ({"log": "/nowhere/peaks"}, ValueError, "in a folder that exists, got '/nowhere/peaks'"),
    "keep is zero": ({"keep": 0}, ValueError, "`keep` must be at least 1, got 0"),
    "keep is None": ({"keep": None}, TypeError, "`keep` must be an integer, got NoneType"),
    "window is negative": ({"window": -1}, ValueError, "`window` must be at least 1, got -1"),
    "window is a bool": ({"window": True}, TypeError, "`window` must be an integer, got bool"),
    "window is a fraction": ({"window": 2.5}, TypeError, "`window` must be an integer, got float"),
    "tolerance is zero": ({"tolerance": 0}, ValueError, "`tolerance` must be positive and finite, got 0"),
    "tolerance is negative": ({"tolerance": -0.1}, ValueError, "must be positive and finite, got -0.1"),
    "tolerance is NaN": ({"tolerance": math.nan}, ValueError, "must be positive and finite, got nan"),
    "tolerance is infinite": ({"tolerance": math.inf}, ValueError, "must be positive and finite, got inf"),
    "tolerance is text": ({"tolerance": "2%"}, TypeError, "`tolerance` must be a number, got str"),
    "tolerance is a bool": ({"tolerance": True}, TypeError, "`tolerance` must be a number, got bool"),
}


@pytest.mark.parametrize("case", sorted(BAD_ARGUMENTS))
def test_arguments_are_checked(case):
    """A wrong argument is an error that names it, before any step."""
    change, error, text = BAD_ARGUMENTS[case]
    with pytest.raises(error, match=text):
        PeakMonitor(**{"device": "cpu"} | change)


def test_training_that_changes_is_noticed_and_refitted():
    """A model of the training it was fitted to is silent, of a wider network it warns, and a refit mends that."""
    recorder = PeakMonitor("cpu")
    train(recorder, 64, SHAPES * 2)
    model = recorder.refit()
    train(PeakMonitor("cpu", model, window=10), 64, SHAPES * 2)
    wider = PeakMonitor("cpu", model, window=10)
    with pytest.warns(MemoryDriftWarning) as caught:
        train(wider, 96, SHAPES * 2)
    assert {True, False} == {"above the bound" in str(warning.message) for warning in caught}
    train(PeakMonitor("cpu", wider.refit(), window=10), 96, SHAPES * 2)


def refit_of(model, outlier):
    """Return a refit after two first steps that need something else, and the monitor."""
    monitor = dialled(model, tolerance=NEVER)
    with monitor, warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryDriftWarning)
        for items, longest in [(7, 9), (3, 4), *SHAPES]:
            with monitor.step(BatchShape.of([longest] * items)):
                monitor._meter.peak = 500 + 30 * items * longest + outlier * (monitor.steps < 2)
    return monitor.refit(), monitor


def test_refit_is_a_fit_of_the_profile():
    """A refit is a new model of the same coverage, fitted to the recorded steps without the first two."""
    model = fitted_model(coverage=0.75)
    refitted, monitor = refit_of(model, 10_000)
    records = monitor.profile[2:]
    expected = MemoryModel(coverage=0.75).fit([r.features for r in records], [r.peak_bytes for r in records])
    assert refitted is not model
    assert (0.75, expected.summary()) == (refitted.coverage, refitted.summary())
    assert pytest.approx({"items*longest": 30}) == refitted.coefficients


@pytest.mark.parametrize("model", [None, Guess()])
def test_refit_without_a_coverage(model):
    """Without a model, or with one that states no coverage, a refit has the coverage of any new model."""
    assert MemoryModel().coverage == refit_of(model, 0)[0].coverage


@pytest.mark.parametrize("count", [0, 2, 30])
def test_refit_to_too_little(count):
    """Steps that are too few or too alike cannot be fitted, and the error says what is missing."""
    monitor = dialled()
    take_steps(monitor, [10] * count)
    with pytest.raises(NotIdentifiableError, match="measure"):
        monitor.refit()


class Module:
    """A device module with an allocator's counters, and a record of what was called."""

    def __init__(self):
        self.calls, self.peak = [], 0

    def synchronize(self, device):
        self.calls.append("synchronize")

    def reset_peak_memory_stats(self, device):
        self.calls.append("reset")

    def empty_cache(self):
        self.calls.append("empty_cache")

    def memory_allocated(self, device):
        return 100

    def max_memory_allocated(self, device):
        return self.peak

    def max_memory_reserved(self, device):
        return 2 * self.peak

    def mem_get_info(self, device):
        return 300, 1000

    def get_device_name(self, device):
        return "a card"


def test_monitor_of_an_accelerator(monkeypatch):
    """On an accelerator the allocator's counters are reset and read, and no cache is emptied."""
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monitor = PeakMonitor("cuda:0", Guess(), window=1)
    with monitor, monitor.step(shape_of(140)):
        module.peak = 140
    record = monitor.profile[0]
    assert PeakRecord(0, shape_of(140), 140, 280, 700, 100, "ok", record.seconds) == record
    assert "cuda:0 (a card)" == monitor.profile.device
    assert ["reset"] == [call for call in module.calls if call != "synchronize"]
