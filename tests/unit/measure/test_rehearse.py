"""What steps in a row need, on meters whose allocators follow a script."""

from contextlib import contextmanager, nullcontext

import pytest
import torch

from bionemo.size_aware_batching.errors import FragmentationWarning
from bionemo.size_aware_batching.measure import collect_cuda_peak_alloc, measure_peaks, meter_for
from bionemo.size_aware_batching.measure._meter import Reading
from bionemo.size_aware_batching.measure._rehearse import CappedMeter, Largest, beyond_peaks, rehearse_steps
from bionemo.size_aware_batching.memory import PeakRecord

GIB = 2**30


class Script:
    """An allocator that needs a share beyond the largest peak, and whose peaks in a row are higher by some bytes."""

    def __init__(self, needs, *, most=100 * GIB, expandable=True, drift=0):
        self.needs, self.cap, self.expandable, self.drift = needs, most, expandable, drift
        self.device, self.peak, self.largest, self.caps = most, 0, 0, []

    def watching(self):
        return nullcontext()

    def wait(self):
        pass

    def release(self):
        self.largest = 0

    def begin(self):
        self.peak = 0

    def read(self):
        return Reading(self.peak, None, None, 0)

    def most(self):
        return self.device

    @contextmanager
    def capped(self, limit_bytes):
        before, self.cap = self.cap, limit_bytes
        self.caps.append(limit_bytes)
        try:
            yield
        finally:
            self.cap = before

    def is_expandable(self):
        return self.expandable

    def run(self, peak):
        """Run a step; return whether it ran out of memory."""
        self.peak, self.largest = peak + self.drift, max(self.largest, peak)
        return self.largest * (1 + self.needs) > self.cap


def cast(peaks=(10, 10, 9, 6, 6, 5, 5, 4)):
    """Return what was measured: elements that are their own peaks, in GiB."""
    largest = Largest()
    for peak in peaks:
        largest.add(peak * GIB, peak * GIB)
    largest.add(None, "ran out of memory")
    return largest


def test_what_is_a_capped_meter():
    """A script, as a device's meter, tells and limits what the allocator may take; a CPU's does not."""
    assert isinstance(Script(0), CappedMeter)
    assert not isinstance(meter_for(torch.device("cpu")), CappedMeter)


@pytest.mark.parametrize(("needs", "found"), [(0.0, 0.015), (0.009, 0.015), (0.012, 0.0225), (0.05, 0.0759375)])
def test_fragmentation_is_found(needs, found):
    """The answer is one step above the first limit at which no step fails, and the device's own is put back."""
    meter = Script(needs)
    assert (pytest.approx(found), 0) == rehearse_steps(cast(), meter.run, meter, 0.0)
    assert (100 * GIB, sorted(meter.caps)) == (meter.cap, meter.caps)


def test_single_steps_tell_at_least():
    """What a single large step took beyond its peak is never promised away."""
    meter = Script(0.0)
    assert 0.3 == rehearse_steps(cast(), meter.run, meter, 0.3).fragmentation_fraction


def test_middle_sized_elements_play():
    """Of the measured elements those around two thirds of the largest take part, largest first; else the largest."""
    assert [6, 6, 5, 5, 4] == [peak // GIB for peak, _ in cast().cast()]
    assert [10, 10, 10, 9, 9, 9] == [peak // GIB for peak, _ in cast((10, 9, 10, 9, 10, 9, 9)).cast()]


def test_few_elements_are_kept():
    """A long data set leaves its two dozen largest elements, whatever their order, and never compares elements."""
    largest = Largest()
    for peak in [*range(1, 60), *range(120, 60, -1)]:
        largest.add(peak, object())
    kept = sorted(peak for peak, _ in largest.cast())
    assert [120 - 5, 120] == [kept[0], kept[-1]]


@pytest.mark.parametrize("peaks", [(), (5,)])
def test_one_element_is_no_rehearsal(peaks):
    """With fewer than two elements nothing runs, and single steps have to tell."""
    meter = Script(0.5)
    assert (0.2, 0) == rehearse_steps(cast(peaks), meter.run, meter, 0.2)
    assert [] == meter.caps


def test_device_too_small_to_find_out():
    """Where even all of the device is too little, the answer is what it has beyond the peak."""
    meter = Script(5.0, most=9 * GIB, drift=7)
    assert (pytest.approx(0.5), 0) == rehearse_steps(cast(), meter.run, meter, 0.1)


def test_drift_is_found():
    """How much higher peaks are in a row than alone is part of the answer."""
    meter = Script(0.0, drift=12_345)
    assert 12_345 == rehearse_steps(cast(), meter.run, meter, 0.0).drift_bytes


def test_segments_that_cannot_grow():
    """Without expandable segments no reserve helps: single steps tell, and only the drift is measured."""
    meter = Script(0.9, expandable=False, drift=99)
    assert (0.04, 99) == rehearse_steps(cast(), lambda peak: meter.run(peak) and False, meter, 0.04)
    assert [100 * GIB] == meter.caps


def test_other_errors_pass_and_put_the_limit_back():
    """An error that is not about memory ends the rehearsal, and the device has its memory back."""
    meter = Script(0.0)

    def run(_):
        raise ZeroDivisionError("the step is wrong")

    with pytest.raises(ZeroDivisionError, match="the step is wrong"):
        rehearse_steps(cast(), run, meter, 0.0)
    assert 100 * GIB == meter.cap


@pytest.mark.parametrize(
    ("pairs", "share"),
    [
        ([], 0.0),
        ([(100, 150), (1000, 1100)], 0.1),
        ([(900, 1080), (1000, 1100)], 0.2),
        ([(None, 5), (1000, None)], 0.0),
    ],
)
def test_beyond_peaks(pairs, share):
    """Only steps near the largest say what is taken beyond a peak; a CPU's say nothing."""
    records = [PeakRecord(i, None, peak, reserved, None, 0, "ok", 0.1) for i, (peak, reserved) in enumerate(pairs)]
    assert pytest.approx(share) == beyond_peaks(records)


class Card:
    """A device module with an allocator that can be capped."""

    def __init__(self, *, expandable):
        self.expandable, self.fraction, self.fractions, self.steps = expandable, 0.5, [], 0
        self.allocated = self.peak = 100

    def __getattr__(self, name):
        return lambda *_: None

    def reset_peak_memory_stats(self, _):
        self.peak = self.allocated

    def memory_allocated(self, _):
        return self.allocated

    def max_memory_allocated(self, _):
        return self.peak

    def max_memory_reserved(self, _):
        return int(self.peak * 1.02)

    def memory_reserved(self, _):
        return 0

    def mem_get_info(self, _):
        return 9_000, 10_000

    def get_device_name(self, _):
        return "a card"

    def get_per_process_memory_fraction(self, _):
        return self.fraction

    def set_per_process_memory_fraction(self, fraction, _):
        self.fraction = fraction
        self.fractions.append(fraction)

    def memory_snapshot(self):
        return [{"is_expandable": self.expandable}]

    def use(self, count):
        self.steps += 1
        self.peak = max(self.peak, self.allocated + count)


@pytest.fixture
def card(monkeypatch, request):
    """Put a card in the place of CUDA's."""
    card = Card(expandable=request.param)
    monkeypatch.setattr(torch, "get_device_module", lambda _: card)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.random, "fork_rng", lambda *_, **__: nullcontext())
    return card


SIZES = [1500, 1300, 1200, 1100, 700, 800, 900]


@pytest.mark.parametrize("card", [True], indirect=True)
def test_measuring_rehearses(card):
    """Steps run again under caps below the process's own, which is as before afterwards; the profile has the answer."""
    profile = measure_peaks(SIZES, card.use, "cuda:0", warmup=1, progress=False)
    assert 8 + 6 * 3 == card.steps
    assert (0.02, 0) == (pytest.approx(profile.fragmentation_fraction, abs=1e-3), profile.drift_bytes)
    assert (0.5, True) == (card.fraction, all(fraction <= 0.5 for fraction in card.fractions))
    assert "beyond a large peak, when steps follow each other: 0 B allocated, 2.0% reserved" in profile.summary()


@pytest.mark.parametrize("card", [False], indirect=True)
def test_warning_of_segments_that_cannot_grow(card):
    """Whoever measures without expandable segments is told, at the line of the call, what to set."""
    with pytest.warns(FragmentationWarning, match="expandable_segments:True") as caught:
        measure_peaks(SIZES, card.use, "cuda:0", warmup=0, progress=False)
    assert [__file__] == [warning.filename for warning in caught]


@pytest.mark.parametrize("card", [False], indirect=True)
def test_no_rehearsal_on_request(card):
    """Without a rehearsal every element runs once, nothing is warned of; the documented function has none."""
    profile = measure_peaks(SIZES, card.use, "cuda:0", warmup=0, rehearse=False, progress=False)
    assert (7, []) == (card.steps, card.fractions)
    assert pytest.approx(0.02, abs=1e-3) == profile.fragmentation_fraction
    collect_cuda_peak_alloc(SIZES, card.use, torch.device("cuda:0"))
    assert 14 == card.steps


@pytest.mark.parametrize("rehearse", [None, 1, "yes"])
def test_rehearse_is_true_or_false(rehearse):
    """Anything else is an error before a step runs."""
    with pytest.raises(TypeError, match="`rehearse` must be True or False"):
        measure_peaks([1], pytest.fail, "cpu", rehearse=rehearse)
