"""The meters of a CPU and of an accelerator's allocator, the latter with a module that counts for itself."""

import gc
from contextlib import nullcontext

import pytest
import torch

from bionemo.size_aware_batching.errors import OutOfMemoryWarning
from bionemo.size_aware_batching.measure import collect_cuda_peak_alloc, measure_peaks, meter_for, present_device

pytestmark = pytest.mark.usefixtures("small_heap")


class Module:
    """A device module with an allocator's counters, and a record of what was called."""

    def __init__(self):
        self.calls = []
        self.allocated, self.peak = 100, 100

    def synchronize(self, device):
        self.calls.append("synchronize")

    def empty_cache(self):
        self.calls.append("empty_cache")

    def reset_peak_memory_stats(self, device):
        self.calls.append("reset")
        self.peak = self.allocated

    def memory_allocated(self, device):
        return self.allocated

    def max_memory_allocated(self, device):
        self.calls.append("read")
        return self.peak

    def max_memory_reserved(self, device):
        return 2 * self.peak

    def mem_get_info(self, device):
        return 300, 1000

    def get_device_name(self, device):
        return "a card"

    def use(self, count):
        """Allocate and free again."""
        self.calls.append("use")
        self.peak = max(self.peak, self.allocated + count)


@pytest.fixture
def module(monkeypatch):
    """Put a counting module in the place of CUDA's, and let torch see two devices."""
    module = Module()
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)

    def fork(devices, device_type):
        module.calls.append((devices, device_type))
        return nullcontext()

    monkeypatch.setattr(torch.random, "fork_rng", fork)
    return module


def test_reading_an_allocator(module):
    """A reading has the peak, what was reserved at most, what the device shows, and what was there before."""
    meter = meter_for(torch.device("cuda:0"))
    with meter.watching():
        meter.begin()
        module.use(40)
        assert (140, 280, 700, 100) == meter.read()


def test_allocator_is_waited_for(module):
    """Caches are emptied when the device has done what was asked of it; counters are read without waiting."""
    meter = meter_for(torch.device("cuda:0"))
    meter.release()
    meter.begin()
    meter.read()
    meter.wait()
    assert ["synchronize", "empty_cache", "reset", "read", "synchronize"] == module.calls


def test_measuring_on_an_allocator(module):
    """Each step starts from an empty cache and its own baseline, and the record has every number."""
    profile = measure_peaks([7, 3], module.use, "cuda:0", warmup=1, progress=False)
    assert [107, 103] == profile.peak_bytes
    assert [(214, 700, 100), (206, 700, 100)] == [
        (record.reserved_bytes, record.device_bytes, record.baseline_bytes) for record in profile
    ]
    assert "cuda:0 (a card)" == profile.device
    assert ([torch.device("cuda:0")], "cuda") == module.calls[0]
    step = ["synchronize", "empty_cache", "reset", "use", "synchronize", "read"]
    assert ["use", *step, *step] == module.calls[1:]


def test_collecting_on_an_allocator(module):
    """`collect_cuda_peak_alloc` gives features and peaks without warm-up, and names what ran out of memory."""

    def work(count):
        module.use(count)
        return 1 / count if count else torch.empty(2**50)

    with pytest.warns(OutOfMemoryWarning, match=r"position 1 ran out of memory") as caught:
        found = collect_cuda_peak_alloc([4, 0, 2], work, torch.device("cuda:0"))
    assert ([0.25, 0.5], [104, 102]) == found
    assert [__file__] == [warning.filename for warning in caught]
    assert 3 == module.calls.count("use")


def test_device_without_an_index_is_the_current_one(module):
    """The name of a kind of device means the one that is current."""
    assert torch.device("cuda:1") == present_device("cuda")
    assert torch.device("cuda:0") == present_device("cuda:0")


def test_device_beyond_the_last(module):
    """An index beyond the last device is refused with how many there are."""
    with pytest.raises(ValueError, match="`device` cuda:2 is not there: torch sees 2 cuda devices"):
        present_device(torch.device("cuda:2"))


def test_no_device_where_torch_sees_none(monkeypatch):
    """A build of torch without the device sees none of it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`device` cuda is not there: torch sees 0 cuda devices"):
        present_device("cuda")


def test_cpu_meter_frees_what_nobody_refers_to():
    """`release` collects cycles, so that nothing of the last step is read into the next."""
    meter = meter_for(torch.device("cpu"))
    with meter.watching():
        meter.begin()
        loop = [torch.zeros(100)]
        loop.append(loop)
        del loop
        meter.release()
        torch.zeros(100)
        assert (512, None, None, 0) == meter.read()


def test_cpu_meter_counts_only_while_it_watches():
    """What happens outside is not counted."""
    meter = meter_for(torch.device("cpu"))
    meter.begin()
    torch.zeros(100)
    gc.collect()
    assert (0, None, None, 0) == meter.read()
