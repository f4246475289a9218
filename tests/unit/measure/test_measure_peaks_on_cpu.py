"""`measure_peaks` on a CPU: records, warm-up, order of calls, errors, random states."""

import io
import logging
import random
import sys
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from bionemo.size_aware_batching.measure import collect_cuda_peak_alloc, measure_peaks
from bionemo.size_aware_batching.memory import BatchShape, PeakRecord, Profile

CPU = torch.device("cpu")
MIB = 2**20


pytestmark = pytest.mark.usefixtures("small_heap")


class Untouchable:
    """A data set whose elements nobody may ask for."""

    def __len__(self):
        pytest.fail("asked for the length")
        return 0

    def __iter__(self):
        pytest.fail("asked for the elements")


def allocate(count):
    """Return how many bytes were asked for, after having had them."""
    return torch.zeros(count, dtype=torch.uint8).numel()


def measure(dataset, work=allocate, **settings):
    return measure_peaks(dataset, work, "cpu", **{"warmup": 0, "progress": False} | settings)


def test_profile_of_a_run():
    """Each element has a record in order, with its features, its peak, and its time; a CPU has no reserved bytes."""
    profile = measure([MIB, 3 * MIB, 512], warmup=2)
    assert Profile is type(profile)
    assert ("cpu", 2, 3) == (profile.device, profile.warmup, len(profile))
    expected = [PeakRecord(i, n, n, None, None, 0, "ok", profile[i].seconds) for i, n in enumerate([MIB, 3 * MIB, 512])]
    assert expected == list(profile)
    assert all(0 < record.seconds < 60 for record in profile)


@pytest.mark.parametrize("device", ["cpu", CPU, "cpu:0", torch.device("cpu", 0)])
def test_devices_that_are_the_cpu(device):
    """Text and devices with or without an index mean the one CPU."""
    profile = measure_peaks([1024], allocate, device, warmup=0, progress=False)
    assert ("cpu", [1024]) == (profile.device, profile.peak_bytes)


@pytest.mark.parametrize("features", [BatchShape(1, 2, 3), None, [1, 2], "text", 7])
def test_features_are_what_work_returns(features):
    """Whatever `work` returns is kept as it is."""
    assert [features] == measure([0], lambda _: features).features


def test_baseline_is_what_was_there():
    """What the step reads but did not make is its baseline, and part of its peak."""
    weights = torch.zeros(MIB, dtype=torch.uint8)
    record = measure([0], lambda _: (weights + 1).numel())[0]
    assert (2 * MIB, MIB) == (record.peak_bytes, record.baseline_bytes)


def test_memory_of_one_step_does_not_reach_the_next():
    """Peaks do not depend on the order of the elements, even where a step leaves a reference cycle."""

    def work(count):
        loop = [torch.zeros(count, dtype=torch.uint8)]
        loop.append(loop)
        return count

    sizes = [MIB, 4 * MIB, 1024, 2 * MIB]
    assert sizes == measure(sizes, work).peak_bytes


@pytest.mark.parametrize(
    "dataset",
    [
        [3, 5],
        (3, 5),
        iter([3, 5]),
        (n for n in (3, 5)),
        range(3, 6, 2),
        {3: "", 5: ""},
        np.array([3, 5]),
        torch.tensor([3, 5]),
    ],
    ids=lambda dataset: type(dataset).__name__,
)
def test_every_iterable_is_a_data_set(dataset):
    """Lists, generators, arrays and what else can be iterated over are read once, in order."""
    assert [3, 5] == measure(dataset, lambda n: allocate(int(n))).features


@pytest.mark.parametrize("workers", [0, 1])
def test_data_loader_is_a_data_set(workers):
    """The batches of a DataLoader are elements."""
    loader = DataLoader(TensorDataset(torch.zeros(5, 7)), batch_size=2, num_workers=workers)
    shapes = measure(loader, lambda batch: tuple((batch[0] + 1).shape)).features
    assert [(2, 7), (2, 7), (1, 7)] == shapes


class Stream(IterableDataset):
    """A data set of no known length."""

    def __iter__(self):
        return iter([3, 5])


class Mapped(Dataset):
    """A data set with items and no iteration of its own, which ends by an IndexError."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return [3, 5][index]


def test_data_loader_of_unknown_length_is_a_data_set():
    """A DataLoader over a stream has `__len__`, which raises: it has no known length."""
    assert [3, 5] == measure(DataLoader(Stream(), batch_size=None), lambda n: allocate(int(n))).features


def test_map_style_data_set_is_a_data_set():
    """A map-style data set of torch is iterated by its items."""
    assert [3, 5] == measure(Mapped()).features


def test_empty_data_set():
    """No element gives a profile without records, and warm-up finds nothing to run."""
    assert Profile((), "cpu", 2) == measure([], lambda _: pytest.fail("there was an element"), warmup=2)


BAD_ARGUMENTS = {
    "device is a number": ({"device": 0}, TypeError, "`device` must be a torch.device or its name, got int"),
    "device is None": ({"device": None}, TypeError, "`device` must be a torch.device or its name, got NoneType"),
    "device is nothing": (
        {"device": "nowhere"},
        ValueError,
        "`device` must be a device that torch knows, got 'nowhere'",
    ),
    "device is no text": ({"device": ""}, ValueError, "`device` must be a device that torch knows, got ''"),
    "device has no memory": ({"device": "meta"}, ValueError, "accelerator that counts its peak memory, got meta"),
    "device is absent": (
        {"device": "cuda:97"},
        ValueError,
        r"`device` cuda:97 is not there: torch sees \d+ cuda devices",
    ),
    "work is no function": ({"work": 5}, TypeError, "`work` must be callable, got int"),
    "work is None": ({"work": None}, TypeError, "`work` must be callable, got NoneType"),
    "cleanup is no function": ({"cleanup": "now"}, TypeError, "`cleanup` must be callable, got str"),
    "warmup is negative": ({"warmup": -1}, ValueError, "`warmup` must be at least 0, got -1"),
    "warmup is a fraction": ({"warmup": 1.5}, TypeError, "`warmup` must be an integer, got float"),
    "warmup is a bool": ({"warmup": True}, TypeError, "`warmup` must be an integer, got bool"),
    "warmup is text": ({"warmup": "2"}, TypeError, "`warmup` must be an integer, got str"),
    "progress is a number": ({"progress": 1}, TypeError, "`progress` must be True or False, got int"),
    "progress is None": ({"progress": None}, TypeError, "`progress` must be True or False, got NoneType"),
    "data set is a number": ({"dataset": 5}, TypeError, "`dataset` must be iterable, got int"),
    "data set is None": ({"dataset": None}, TypeError, "`dataset` must be iterable, got NoneType"),
}


@pytest.mark.parametrize("case", sorted(BAD_ARGUMENTS))
def test_arguments_are_checked_before_the_data(case):
    """A wrong argument is an error that names it, before an element is touched or a step is run."""
    change, error, text = BAD_ARGUMENTS[case]
    arguments = {
        "dataset": Untouchable(),
        "work": lambda _: pytest.fail("ran a step"),
        "device": "cpu",
        "cleanup": lambda: pytest.fail("cleaned up"),
    }
    with pytest.raises(error, match=text):
        measure_peaks(**arguments | change)


def test_device_index_beyond_eight_bits():
    """An index that torch folds into another one is refused as absent."""
    with pytest.raises(ValueError, match="`device` cuda:"):
        measure_peaks(Untouchable(), allocate, "cuda:999")


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        ("cpu", ValueError, "`device` must be a CUDA device, got cpu"),
        (CPU, ValueError, "`device` must be a CUDA device, got cpu"),
        (torch.device("meta"), ValueError, "`device` must be a CUDA device, got meta"),
        (torch.device("cuda:97"), ValueError, "`device` cuda:97 is not there"),
        ("nowhere", ValueError, "`device` must be a device that torch knows"),
        (0, TypeError, "`device` must be a torch.device or its name, got int"),
    ],
)
def test_collecting_is_for_cuda_alone(device, error, text):
    """`collect_cuda_peak_alloc` refuses other devices before it touches the data."""
    with pytest.raises(error, match=text):
        collect_cuda_peak_alloc(Untouchable(), lambda _: pytest.fail("ran a step"), device)


@pytest.mark.parametrize("warmup", [0, 1, 2, 5, np.int64(3)])
def test_warm_up_runs_the_first_element(warmup):
    """Warm-up steps run the first element that many times more, and none of them is a record."""
    seen = []

    def work(count):
        seen.append(count)
        return allocate(count)

    profile = measure([3, 5, 7], work, warmup=warmup)
    assert [3] * warmup + [3, 5, 7] == seen
    assert [3, 5, 7] == profile.features
    assert (int, warmup) == (type(profile.warmup), profile.warmup)


def test_warm_up_is_two_steps_by_default():
    """Without a word two warm-up steps come first, and the summary says so."""
    seen = []
    profile = measure_peaks([3, 5], seen.append, "cpu", progress=False)
    assert [3, 3, 3, 5] == seen
    assert "after 2 warm-up steps that are not counted" in profile.summary()


def test_warm_up_goes_on_with_the_next_element_after_running_out_of_memory():
    """An element that runs out of memory in its warm-up is recorded so, and the next one warms up instead."""
    seen = []

    def work(count):
        seen.append(count)
        return allocate(2**50 if count == 9 else count)

    profile = measure([9, 9, 3, 5], work, warmup=2)
    assert [9, 9, 3, 3, 3, 5] == seen
    assert ["oom", "oom", "ok", "ok"] == [record.status for record in profile]
    assert ([3, 5], [512, 512]) == (profile.features, profile.peak_bytes)


def test_warm_up_that_fails_midway_goes_on():
    """Warm-up steps that succeeded count, however the element fared afterwards."""
    seen = []

    def work(count):
        seen.append(count)
        return allocate(2**50 if len(seen) == 2 else count)

    profile = measure([3, 5, 7], work, warmup=3)
    assert [3, 3, 5, 5, 5, 7] == seen
    assert ["oom", "ok", "ok"] == [record.status for record in profile]


def test_warm_up_steps_are_logged(caplog):
    """Each warm-up step leaves a line for those who debug."""
    with caplog.at_level(logging.DEBUG, "bionemo.size_aware_batching"):
        measure([3], warmup=2)
    assert ["warm-up step, not recorded, on element 0"] * 2 == [record.message for record in caplog.records]


def test_record_of_an_element_without_memory():
    """An element that ran out of memory has neither features nor a peak, and its reason is logged."""
    weights = torch.zeros(MIB, dtype=torch.uint8)

    def work(count):
        weights.sum()
        return allocate(count)

    record = measure([2**50], work)[0]
    assert PeakRecord(0, None, None, None, None, MIB, "oom", record.seconds) == record


def test_cleanup_follows_every_step():
    """`cleanup` runs after each step, warm-up steps and those that ran out of memory included."""
    events = []

    def work(count):
        events.append(count)
        return allocate(count)

    measure([3, 2**50, 5], work, warmup=1, cleanup=lambda: events.append("cleanup"))
    assert [3, "cleanup", 3, "cleanup", 2**50, "cleanup", 5, "cleanup"] == events


def test_cleanup_comes_before_the_next_peak():
    """What a step keeps and `cleanup` drops does not count for the next step."""
    held = []

    def work(count):
        held.append(torch.zeros(count, dtype=torch.uint8))
        return sum(tensor.sum().item() for tensor in held)

    assert 1 == len(set(measure([MIB] * 3, work, cleanup=held.clear).peak_bytes))
    assert 1 < len(set(measure([MIB] * 3, work).peak_bytes))


def test_memory_of_cleanup_is_part_of_the_step():
    """A peak in `cleanup` is read too: it comes before the reading."""
    assert [2 * MIB] == measure([MIB], cleanup=lambda: allocate(2 * MIB)).peak_bytes


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, KeyboardInterrupt, SystemExit, RuntimeError])
@pytest.mark.parametrize("warmup", [0, 2])
def test_other_errors_pass(error, warmup):
    """What is not about memory reaches the caller at once, after `cleanup`, and later elements do not run."""
    events = []

    def work(count):
        events.append(count)
        raise error("the shapes do not match")

    with pytest.raises(error, match="the shapes do not match"):
        measure([3, 5], work, warmup=warmup, cleanup=lambda: events.append("cleanup"))
    assert [3, "cleanup"] == events


def test_errors_of_cleanup_pass():
    """What `cleanup` raises reaches the caller."""
    with pytest.raises(ZeroDivisionError, match="division"):
        measure([3], cleanup=lambda: 1 // 0)


def test_running_out_of_memory_in_cleanup():
    """A `cleanup` that runs out of memory fails its element, not the run."""
    calls = iter([2**50, 1])
    profile = measure([3, 5], cleanup=lambda: allocate(next(calls)))
    assert ["oom", "ok"] == [record.status for record in profile]


def test_error_of_cleanup_after_running_out_of_memory():
    """Another error of `cleanup` propagates, also after a step that ran out of memory."""
    with pytest.raises(ZeroDivisionError, match="zero"):
        measure([2**50, 5], cleanup=lambda: 1 // 0)


def test_running_out_of_memory_while_handling_an_error():
    """A step that makes what it did not find in a cache, and runs out of memory over it, has run out of memory."""

    def work(count):
        try:
            return {}[count]
        except KeyError:
            return allocate(count)

    assert ["oom", "ok"] == [record.status for record in measure([2**50, 5], work)]


def test_measuring_while_handling_an_error():
    """Measuring from within an `except`, to find out what fits, works as anywhere else."""
    try:
        raise KeyError
    except KeyError:
        profile = measure([2**50, 5])
    assert ["oom", "ok"] == [record.status for record in profile]


def test_log_holds_no_tensors(caplog):
    """What is logged about a lack of memory is text: an error would keep the step's tensors alive."""
    with caplog.at_level("INFO"):
        measure([2**50])
    record = next(record for record in caplog.records if "out of memory" in record.getMessage())
    assert [] == [value for value in record.args or () if isinstance(value, BaseException)]
    assert record.exc_info is None


def test_errors_of_the_data_set_pass():
    """What the data set raises reaches the caller, even when it is about memory: there is no element to blame."""

    def elements():
        yield 3
        allocate(2**50)

    with pytest.raises(RuntimeError, match="allocate"):
        measure(elements())


def draw():
    return torch.rand(3).tolist()


@pytest.mark.parametrize("fails", [False, True])
def test_random_states_are_put_back(fails):
    """Random numbers after measuring are those that would have come without, even after an error."""
    torch.manual_seed(3)
    expected = draw()
    torch.manual_seed(3)

    def work(count):
        draw()
        return 1 // count

    expectation = pytest.raises(ZeroDivisionError, match="division") if fails else warnings.catch_warnings()
    with expectation:
        measure([1, 2, 0] if fails else [1, 2], work)
    assert expected == draw()


@pytest.mark.parametrize(("seed", "number"), [(random.seed, random.random), (np.random.seed, np.random.random)])
def test_other_random_states_are_put_back(seed, number):
    """Steps that augment with Python's or numpy's random numbers change nothing that follows either."""
    seed(3)
    expected = number()
    seed(3)
    measure([1], lambda _: number())
    assert expected == number()


def test_grad_mode_is_left_alone():
    """A step sees the caller's grad mode, and the caller keeps it."""
    with torch.no_grad():
        assert [False] == measure([0], lambda _: torch.is_grad_enabled()).features
        assert not torch.is_grad_enabled()
    assert [True] == measure([0], lambda _: torch.is_grad_enabled()).features


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("dataset", [[3, 2**50], (n for n in (3, 2**50))], ids=["sized", "unsized"])
def test_progress_on_a_terminal(monkeypatch, dataset):
    """On a terminal a bar counts the steps and shows each one's peak."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    profile = measure(dataset, lambda n: BatchShape(1, n, allocate(n)), progress=True)
    assert ["ok", "oom"] == [record.status for record in profile]
    assert "measuring" in sys.stderr.getvalue()
    assert "#1: out of memory" in sys.stderr.getvalue()
    assert "2" in sys.stderr.getvalue().splitlines()[-1]


def test_progress_shows_the_shape(monkeypatch):
    """The bar names the batch by its shape where `work` returned one, else by its number."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    measure([3 * MIB], lambda n: BatchShape(4, n / 1e6, allocate(n)), progress=True)
    assert "4 x 3.14573: 3 MiB" in sys.stderr.getvalue()
    measure([3 * MIB], progress=True)
    assert "#0: 3 MiB" in sys.stderr.getvalue()


@pytest.mark.parametrize(("file", "progress"), [(Terminal, False), (io.StringIO, True), (io.StringIO, False)])
def test_no_progress_where_nobody_watches(monkeypatch, file, progress):
    """Without a terminal, or on request, nothing is written."""
    monkeypatch.setattr(sys, "stderr", file())
    measure([3, 5], progress=progress)
    assert "" == sys.stderr.getvalue()


def test_nothing_is_printed(capfd):
    """Measuring writes to neither stream by default when there is no terminal."""
    measure_peaks([3, 5], allocate, "cpu")
    assert ("", "") == tuple(capfd.readouterr())
