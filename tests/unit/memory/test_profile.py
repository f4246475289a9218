"""A profile as a sequence of records, and what it says about itself."""

import pytest

from bionemo.size_aware_batching.memory import BatchShape, PeakRecord, Profile

MIB = 2**20


def record(index, peak, *, reserved=None, device=None):
    features = BatchShape(index + 1, 10, 10)
    return PeakRecord(index, features, peak, reserved, device, 7, "ok", 0.5)


def failure(index):
    return PeakRecord(index, None, None, None, None, 7, "oom", 0.5)


PROFILE = Profile((record(0, 3 * MIB), failure(1), record(2, MIB)), "cpu", 2)


def test_profile_is_a_sequence():
    """A profile has a length, items, slices and an order."""
    assert 3 == len(PROFILE)
    assert PROFILE.records[1] == PROFILE[1]
    assert PROFILE.records[-1] == PROFILE[-1]
    assert PROFILE.records[:2] == PROFILE[:2]
    assert list(PROFILE.records) == list(PROFILE)
    assert PROFILE.records[2] in PROFILE
    with pytest.raises(IndexError, match="out of range"):
        PROFILE[3]


def test_measured_leaves_out_what_ran_out_of_memory():
    """Features and peaks are those of the elements that have a peak, in order."""
    assert [0, 2] == [record.index for record in PROFILE.measured]
    assert [(1, 10, 10), (3, 10, 10)] == PROFILE.features
    assert [3 * MIB, MIB] == PROFILE.peak_bytes


def test_profile_of_nothing_but_records():
    """Without measured fragmentation and drift there are none."""
    assert (0, 0.0, 0) == (Profile((), "cpu").warmup, PROFILE.fragmentation_fraction, PROFILE.drift_bytes)


def test_profiles_that_differ_in_what_comes_beyond_their_peaks():
    """Fragmentation and drift belong to a profile's value."""
    profiles = [Profile(PROFILE.records, "cpu", 2, *beyond) for beyond in ((), (0.0, 0), (0.5, 0), (0.0, 7))]
    assert [True, True, False, False] == [profile == PROFILE for profile in profiles]


def test_profile_cannot_be_changed():
    """Records and profile are values."""
    with pytest.raises(AttributeError, match="device"):
        PROFILE.device = "cuda"
    with pytest.raises(AttributeError, match="peak_bytes"):
        PROFILE[0].peak_bytes = 1


@pytest.mark.parametrize(
    ("profile", "lines"),
    [
        (
            PROFILE,
            [
                "2 of 3 elements measured on cpu, after 2 warm-up steps that are not counted",
                "peak allocated: 1 MiB to 3 MiB",
                "out of memory at 1",
            ],
        ),
        (Profile((), "cpu"), ["0 of 0 elements measured on cpu, no warm-up"]),
        (
            Profile(tuple(map(failure, range(11))), "cuda:0 (a card)"),
            [
                "0 of 11 elements measured on cuda:0 (a card), no warm-up",
                "out of memory at 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...",
            ],
        ),
        (
            Profile(tuple(map(failure, range(10))), "cpu"),
            ["0 of 10 elements measured on cpu, no warm-up", "out of memory at 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"],
        ),
        (
            Profile(
                (record(0, MIB, reserved=2 * MIB, device=6 * MIB), record(1, MIB, reserved=4 * MIB, device=5 * MIB)),
                "x",
            ),
            [
                "2 of 2 elements measured on x, no warm-up",
                "peak allocated: 1 MiB to 1 MiB",
                "peak reserved by the allocator: up to 4 MiB",
                "used on the device, all processes: up to 6 MiB",
            ],
        ),
        (
            Profile(
                (record(0, MIB, reserved=2 * MIB, device=6 * MIB),),
                "x",
                fragmentation_fraction=0.1254,
                drift_bytes=3 * MIB,
            ),
            [
                "1 of 1 elements measured on x, no warm-up",
                "peak allocated: 1 MiB to 1 MiB",
                "peak reserved by the allocator: up to 2 MiB",
                "beyond a large peak, when steps follow each other: 3 MiB allocated, 12.5% reserved",
                "used on the device, all processes: up to 6 MiB",
            ],
        ),
        (
            Profile((record(0, MIB),), "x", fragmentation_fraction=0.5),
            [
                "1 of 1 elements measured on x, no warm-up",
                "peak allocated: 1 MiB to 1 MiB",
                "beyond a large peak, when steps follow each other: 0 B allocated, 50.0% reserved",
            ],
        ),
    ],
)
def test_summary(profile, lines):
    """The summary counts, names the range of peaks, what the device showed, and where memory ran out."""
    assert lines == profile.summary().splitlines()
