"""`collect_cuda_peak_alloc` on a CUDA device."""

import contextlib
import gc

import pytest
import torch

from bionemo.size_aware_batching.errors import OutOfMemoryWarning
from bionemo.size_aware_batching.utils import collect_cuda_peak_alloc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 2**20
TOO_MUCH = 2**50


@pytest.fixture
def device():
    """Give the CUDA device with empty caches, and leave it so."""
    device = torch.device("cuda", torch.cuda.current_device())
    gc.collect()
    torch.cuda.empty_cache()
    yield device
    gc.collect()
    torch.cuda.empty_cache()


def allocate(size, device):
    return torch.empty(size, dtype=torch.uint8, device=device)


def peak_by_hand(work, element, device):
    """Return the allocator's high-water mark around one call of `work`."""
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    work(element)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device)


class GreedyBackward(torch.autograd.Function):
    """The identity, whose backward asks for as many bytes as its second argument says."""

    @staticmethod
    def forward(ctx, value, size):
        ctx.size = size
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        allocate(ctx.size, gradient.device)
        return gradient, None


class TrainingStep:
    """A small model's training step; the element is the number of rows, the feature is twice that."""

    def __init__(self, device):
        self.device = device
        self.model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 256)).to(
            device
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self(8)

    def __call__(self, rows):
        self.optimizer.zero_grad()
        self.model(torch.ones(rows, 256, device=self.device)).square().mean().backward()
        self.optimizer.step()
        return 2 * rows


def test_peaks_are_the_high_water_marks_of_the_same_work(device):
    """Each peak is what torch reports around the same call, with what was allocated before included."""
    held = allocate(3 * MIB, device)

    def work(mebibytes):
        first = allocate(mebibytes * MIB, device)
        del first
        return mebibytes, allocate(MIB, device).numel()

    elements = [4, 64, 1, 32]
    expected = [peak_by_hand(work, element, device) for element in elements]
    features, peaks = collect_cuda_peak_alloc(elements, work, device)
    assert [(element, MIB) for element in elements] == features
    assert expected == peaks
    assert held.numel() + 64 * MIB <= peaks[1]


def test_peaks_of_a_training_step(device):
    """A whole training step's peaks equal those taken by hand."""
    step = TrainingStep(device)
    rows = [16, 4096, 64, 1024]
    expected = [peak_by_hand(step, count, device) for count in rows]
    features, peaks = collect_cuda_peak_alloc(rows, step, device)
    assert [2 * count for count in rows] == features
    assert expected == peaks


def test_result_is_a_pair_of_lists(device):
    """Features and peaks are lists of the same length, and peaks are plain ints."""
    features, peaks = collect_cuda_peak_alloc(iter([1, 2]), lambda size: allocate(size, device).numel(), device)
    assert (list, list) == (type(features), type(peaks))
    assert {int} == {type(peak) for peak in peaks}
    assert [1, 2] == features


def test_empty_data_set(device):
    """No element gives no feature and no peak."""
    assert ([], []) == tuple(collect_cuda_peak_alloc([], untouched, device))


def untouched(element):
    pytest.fail("there was an element")


def test_device_without_an_index(device):
    """The device "cuda" is the current one."""
    features, peaks = collect_cuda_peak_alloc(
        [MIB, 2 * MIB], lambda size: allocate(size, device).numel(), torch.device("cuda")
    )
    assert [MIB, 2 * MIB] == features
    assert MIB == peaks[1] - peaks[0]


def test_element_that_runs_out_of_memory_is_left_out(device):
    """The middle element is named in a warning, and the next one measures as if it had come alone."""

    def work(size):
        buffer = allocate(8 * MIB, device)
        return buffer.numel() + allocate(size, device).numel()

    expected = [peak_by_hand(work, size, device) for size in (4 * MIB, MIB)]
    with pytest.warns(OutOfMemoryWarning, match=r"\b1\b") as caught:
        features, peaks = collect_cuda_peak_alloc([4 * MIB, TOO_MUCH, MIB], work, device)
    assert 1 == len(caught)
    assert [12 * MIB, 9 * MIB] == features
    assert expected == peaks


def test_every_out_of_memory_position_is_named(device):
    """Positions count the elements of the data set, also those that were left out before."""
    work = lambda size: allocate(size, device).numel()  # noqa: E731
    with pytest.warns(OutOfMemoryWarning) as caught:
        features, peaks = collect_cuda_peak_alloc([TOO_MUCH, MIB, MIB, TOO_MUCH], work, device)
    text = " ".join(str(warning.message) for warning in caught)
    assert [True, True] == [position in text for position in ("0", "3")]
    assert [MIB, MIB] == features
    assert 2 == len(peaks)


def test_out_of_memory_in_backward(device):
    """What a failed backward pass held is given back before the next element."""
    weight = torch.ones(MIB, device=device, requires_grad=True)

    def work(size):
        hidden = weight * 2
        GreedyBackward.apply(hidden, size).sum().backward()
        return size

    def cleanup():
        weight.grad = None

    peak_by_hand(work, 512, device)
    cleanup()
    expected = []
    for _ in range(2):
        expected.append(peak_by_hand(work, 512, device))
        cleanup()
    baseline = torch.cuda.memory_allocated(device)
    with pytest.warns(OutOfMemoryWarning, match=r"\b1\b"):
        features, peaks = collect_cuda_peak_alloc([512, TOO_MUCH, 512], work, device, cleanup)
    assert [512, 512] == features
    assert expected == peaks
    gc.collect()
    assert baseline == torch.cuda.memory_allocated(device)


def test_cleanup_runs_after_every_element(device):
    """`cleanup` runs once after each element, also after one that ran out of memory."""
    events = []

    def work(size):
        events.append(size)
        return allocate(size, device).numel()

    with pytest.warns(OutOfMemoryWarning, match=r"\b1\b"):
        collect_cuda_peak_alloc([MIB, TOO_MUCH, 2 * MIB], work, device, lambda: events.append("cleanup"))
    assert [MIB, "cleanup", TOO_MUCH, "cleanup", 2 * MIB, "cleanup"] == events


def test_what_cleanup_releases_does_not_reach_the_next_peak(device):
    """References that `cleanup` drops after an element do not count for the next."""
    held = []

    def work(size):
        held.append(allocate(size, device))
        return size

    _, peaks = collect_cuda_peak_alloc([MIB] * 3, work, device, held.clear)
    assert [peaks[0]] * 3 == peaks


def test_other_exceptions_propagate_after_cleanup(device):
    """An error that is not about memory reaches the caller, and `cleanup` has run for its element too."""
    events = []

    def work(size):
        events.append(size)
        return 1 // size

    with pytest.raises(ZeroDivisionError, match="division"):
        collect_cuda_peak_alloc([1, 0, 2], work, device, lambda: events.append("cleanup"))
    assert [1, "cleanup", 0, "cleanup"] == events


def test_runtime_errors_that_are_not_about_memory_propagate(device):
    """A RuntimeError alone is not taken for a lack of memory."""

    def work(size):
        raise RuntimeError("the shapes do not match")

    with pytest.raises(RuntimeError, match="the shapes do not match"):
        collect_cuda_peak_alloc([1], work, device)


def test_memory_is_back_at_the_baseline(device):
    """After the call nothing of the measured work is left on the device."""
    baseline = torch.cuda.memory_allocated(device)
    with contextlib.suppress(ZeroDivisionError):
        collect_cuda_peak_alloc([MIB], lambda size: allocate(size, device).numel() // 0, device)
    collect_cuda_peak_alloc([MIB, 2 * MIB], lambda size: allocate(size, device).numel(), device)
    gc.collect()
    assert baseline == torch.cuda.memory_allocated(device)
