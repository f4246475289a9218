"""Measuring on a CUDA device: the allocator's counters, recovery, and the budget."""

from __future__ import annotations

import pytest
import torch

from bionemo.size_aware_batching import BatchShape, MemoryModel, measure_peaks, memory_budget

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::bionemo.size_aware_batching.errors.FragmentationWarning"),
]
DEVICE = torch.device("cuda:0")
TOO_MUCH = 2**44


@pytest.fixture
def train():
    """Return a training step with AdamW on a small perceptron."""
    layers = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(layers.parameters())

    def work(items):
        if items >= TOO_MUCH:
            held = layers(torch.zeros(4096, 256, device=DEVICE))  # an activation that the error's frames keep
            torch.empty(items, device=DEVICE)
            held.sum().backward()
        layers(torch.zeros(items, 256, device=DEVICE)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return BatchShape(items, 256, items * 256)

    return work


def test_m1_peak_after_an_out_of_memory_is_that_of_the_element_alone(train):
    """A small element measured after one that ran out of memory has the peak that it has alone."""
    alone = measure_peaks([64], train, DEVICE, progress=False)
    after = measure_peaks([TOO_MUCH, 64], train, DEVICE, progress=False)
    assert ["oom", "ok"] == [record.status for record in after]
    assert alone.peak_bytes == after.peak_bytes


def test_m2_out_of_memory_in_backward_returns_to_the_baseline():
    """An error inside backward is recorded and what it held is released."""

    class Explode(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad + torch.empty(TOO_MUCH, device=DEVICE)[:1]

    def work(_):
        x = torch.zeros(2**20, device=DEVICE, requires_grad=True)
        Explode.apply(x * 2).sum().backward()

    before = torch.cuda.memory_allocated(DEVICE)
    profile = measure_peaks([0], work, DEVICE, progress=False)
    assert "oom" == profile[0].status
    assert before == torch.cuda.memory_allocated(DEVICE)


def test_m4_warm_up_makes_optimizer_state_exist(train):
    """The first recorded peak holds AdamW's state, which the very first step makes late."""
    profile = measure_peaks([64, 64, 64], train, DEVICE, progress=False)
    assert 1 == len(set(profile.peak_bytes))


def test_m7_allocated_reserved_and_device_bytes_are_all_there(train):
    """Allocated is at most reserved, and reserved at most what the device shows."""
    record = measure_peaks([512], train, DEVICE, progress=False)[0]
    assert record.baseline_bytes <= record.peak_bytes <= record.reserved_bytes <= record.device_bytes


def test_random_states_are_put_back(train):
    """Measuring does not change the random numbers of the training that follows."""
    torch.cuda.manual_seed(3)
    expected = torch.rand(4, device=DEVICE)
    torch.cuda.manual_seed(3)
    measure_peaks([8], lambda n: float(torch.rand(n, device=DEVICE).sum()), DEVICE, warmup=0, progress=False)
    assert torch.equal(expected, torch.rand(4, device=DEVICE))


def test_a_model_bounds_what_it_did_not_see(train):
    """A model of measured steps bounds the peak of another step within five percent."""
    model = MemoryModel()
    shapes = [BatchShape(n, length, n * length) for n in (251, 1021, 4001, 8111) for length in (67, 253, 509)]

    def work(shape):
        x = torch.zeros(shape.items, shape.longest, 64, device=DEVICE, requires_grad=True)
        (x * 2).relu().sum().backward()
        return shape

    model.fit(measure_peaks(shapes, work, DEVICE, progress=False))
    unseen = BatchShape(3000, 333, 3000 * 333)
    peak = measure_peaks([unseen], work, DEVICE, progress=False).peak_bytes[0]
    assert peak <= model.upper_bound(unseen) <= 1.05 * peak


def test_budget_accounts_for_what_is_used_outside():
    """A share of the card is a share of what is left beside contexts and other processes."""
    budget = memory_budget("50%", DEVICE)
    free, total = torch.cuda.mem_get_info(DEVICE)
    assert total == budget.total_bytes
    assert abs(budget - (free + torch.cuda.memory_reserved(DEVICE)) / 2) < 2**20
    assert "available" in budget.account()


def test_budget_respects_a_capped_process():
    """A process capped at a share of the card gets no budget beyond the cap."""
    torch.cuda.set_per_process_memory_fraction(0.25, DEVICE)
    try:
        budget = memory_budget("100%", DEVICE)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
    assert budget <= 0.25 * budget.total_bytes
