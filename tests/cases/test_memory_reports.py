"""What users reported about measured memory, one situation a test."""

import gc
import weakref

import pytest
import torch

from bionemo.size_aware_batching import BatchShape, MemoryModel, Profile, measure_peaks, memory_budget
from bionemo.size_aware_batching.errors import NotIdentifiableError
from bionemo.size_aware_batching.memory import PeakRecord

WIDTH = 64
TOO_MUCH = 2**50
ERRORS = {
    "torch": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "torch.cuda": lambda: torch.cuda.OutOfMemoryError("CUDA out of memory."),
    "Python": lambda: MemoryError("Unable to allocate 7.45 GiB"),
    "cuBLAS": lambda: RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cuDNN": lambda: RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cuDNN's workspace": lambda: RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
    "CUDA": lambda: RuntimeError("CUDA error: out of memory"),
    "the CPU": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
    "Windows": lambda: RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."),
}
EVERY_ERROR = pytest.mark.parametrize("origin", sorted(ERRORS))
WHERE = pytest.mark.parametrize("where", ["forward", "backward"])


pytestmark = pytest.mark.usefixtures("small_heap")


class Fail(torch.autograd.Function):
    """The identity, whose backward keeps some memory and then raises what it was given."""

    @staticmethod
    def forward(ctx, value, error):
        ctx.error = error
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        held = gradient * 2
        raise ctx.error() if held.numel() else AssertionError


class Step:
    """A training step on `items` rows; negative ones fail half way, and every tensor is watched."""

    def __init__(self, where="forward", error=ERRORS["torch"], optimizer=torch.optim.AdamW):
        self.model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
        self.optimizer = optimizer(self.model.parameters())
        self.where, self.error = where, error
        self.watched = []

    def __call__(self, items):
        rows = torch.ones(abs(items), WIDTH)
        hidden = self.model[0](rows).relu()
        self.watched += [weakref.ref(rows), weakref.ref(hidden)]
        if items < 0 and self.where == "forward":
            raise self.error()
        if items < 0:
            hidden = Fail.apply(hidden, self.error)
        self.model[2](hidden).sum().backward()
        self.optimizer.step()
        return BatchShape(items, WIDTH, items * WIDTH)

    def cleanup(self):
        self.optimizer.zero_grad(set_to_none=True)

    def alive(self):
        return [reference for reference in self.watched if reference() is not None]


def measure(dataset, step, **settings):
    return measure_peaks(dataset, step, "cpu", cleanup=step.cleanup, progress=False, **settings)


def statuses(profile):
    return [record.status for record in profile]


@WHERE
def test_m1_peak_after_an_out_of_memory_is_that_of_the_element_alone(where):
    """A small element measured after one that ran out of memory had a peak that was too high."""
    alone = measure([64], Step())
    after = measure([64, -4096, 64, -4096, -4096, 64], Step(where))
    assert ["ok", "oom", "ok", "oom", "oom", "ok"] == statuses(after)
    assert alone.peak_bytes * 3 == after.peak_bytes
    assert 1 == len({record.baseline_bytes for record in after.measured})


def test_m1_with_the_allocator_itself():
    """The same with an allocation that no machine can make, in place of a raised error."""
    kept = []

    def work(count):
        activations = torch.ones(2**20, dtype=torch.uint8)
        kept.append(weakref.ref(activations))
        return (activations[:1].sum() + torch.empty(count, dtype=torch.uint8).numel()).item()

    alone = measure_peaks([5], work, "cpu", progress=False)
    after = measure_peaks([TOO_MUCH, 5], work, "cpu", progress=False)
    assert ["oom", "ok"] == statuses(after)
    assert alone.peak_bytes == after.peak_bytes
    assert [None] * len(kept) == [reference() for reference in kept]


@WHERE
@EVERY_ERROR
def test_m2_memory_is_back_at_the_baseline(where, origin):
    """An error in the forward or the backward pass kept the step's tensors alive in its traceback."""
    step = Step(where, ERRORS[origin])
    seen = []

    def elements():
        for items in (-512, 8, -512):
            yield items
            seen.append(len(step.alive()))

    profile = measure(elements(), step, warmup=1)
    assert ["oom", "ok", "oom"] == statuses(profile)
    assert [0, 0, 0] == seen
    assert 2 * 4 == len(step.watched)


def test_m2_reference_cycles_of_a_failed_step_are_collected():
    """A model that refers to itself kept the last failed step's tensors until the collector happened to come by."""
    watched = []

    def work(_):
        loop = [torch.ones(8)]
        watched.append(weakref.ref(loop[0]))
        loop.append(loop)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    gc.disable()
    try:
        measure_peaks([0, 0], work, "cpu", warmup=0, progress=False)
        alive = [reference() for reference in watched]
    finally:
        gc.enable()
    assert [None, None] == alive


@WHERE
@EVERY_ERROR
def test_m3_errors_of_every_library_count_as_out_of_memory(where, origin):
    """Libraries below torch say that memory ran out in a RuntimeError with a text of their own."""
    profile = measure([-4, 8], Step(where, ERRORS[origin]))
    assert ["oom", "ok"] == statuses(profile)
    assert (None, None) == (profile[0].features, profile[0].peak_bytes)
    assert "out of memory at 0" in profile.summary()


@WHERE
def test_m3_errors_that_are_about_something_else_are_raised(where):
    """A mistake in the step was taken for a lack of memory, and every element was "too large"."""
    step = Step(where, lambda: RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure([8, -4, 8], step)


def test_m4_optimizer_state_exists_before_the_first_record():
    """The probe came before the optimizer's first step, whose state then ran the training out of memory."""
    late = measure([2048] * 3, Step(), warmup=0)
    in_time = measure([2048] * 3, Step())
    states = 2 * sum(-(-4 * parameter.numel() // 512) * 512 for parameter in Step().model.parameters())
    assert [in_time.peak_bytes[0]] * 3 == in_time.peak_bytes
    assert [in_time.peak_bytes[0] - states, in_time.peak_bytes[0]] == late.peak_bytes[:2]
    assert states == in_time[0].baseline_bytes - late[0].baseline_bytes


@WHERE
def test_m5_every_element_runs_out_of_memory(where):
    """A model was fitted to nothing, and the error came from deep inside a library."""
    profile = measure([-4, -8, -16], Step(where))
    assert ([], []) == (profile.features, profile.peak_bytes)
    with pytest.raises(NotIdentifiableError, match="all ran out of memory; measure smaller batches"):
        MemoryModel().fit(profile)


def test_m6_first_measurements_are_left_out():
    """The first peaks were too small and pulled the fit down."""
    profile = measure([4, 8], Step())
    assert (2, 2) == (profile.warmup, len(profile))
    assert "after 2 warm-up steps that are not counted" in profile.summary()
    assert "no warm-up" in measure([4, 8], Step(), warmup=0).summary()


def test_m7_every_number_of_the_device_is_kept(tmp_path):
    """The peak allocated was below the peak reserved, and both below what the device showed."""
    records = tuple(PeakRecord(i, None, 2**20, 3 * 2**20, 7 * 2**20, 5, "ok", 0.1) for i in range(2))
    Profile(records, "cuda:0").save(tmp_path / "profile.json")
    profile = Profile.load(tmp_path / "profile.json")
    record = profile[1]
    assert (2**20, 3 * 2**20, 7 * 2**20) == (record.peak_bytes, record.reserved_bytes, record.device_bytes)
    summary = profile.summary()
    assert "peak allocated: 1 MiB to 1 MiB" in summary
    assert "peak reserved by the allocator: up to 3 MiB" in summary
    assert "used on the device, all processes: up to 7 MiB" in summary


def test_m7_a_cpu_has_one_number():
    """A CPU has no reserve, and none is made up."""
    assert [(None, None)] == [(r.reserved_bytes, r.device_bytes) for r in measure([4], Step())]


def test_m7_budget_says_which_number_it_bounds():
    """A budget was compared with reserved bytes, or with what a monitor showed."""
    assert "budget for peak allocated bytes" in memory_budget("1MiB", "cpu").account()


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        (
            [16] * 6,
            r"the measured batches \(6\) all have items = 16 and longest = 64, .* other values of items and longest",
        ),
        ([4, 8, 16, 32], r"the measured batches \(4\) all have longest = 64, .* other values of longest"),
    ],
)
def test_m8_shapes_that_are_all_alike(dataset, text):
    """One shape alone cannot tell weights from bytes per element, and the fit did not say so."""
    with pytest.raises(NotIdentifiableError, match=text):
        MemoryModel().fit(measure(dataset, Step(), warmup=0))


def test_cleanup_of_these_tests():
    """The step of these tests keeps no tensor of its own, so that what is alive is the library's doing."""
    step = Step()
    step(8)
    step.cleanup()
    gc.collect()
    assert [] == step.alive()
