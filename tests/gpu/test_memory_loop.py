"""The memory loop on a CUDA device under a cap: suggest, measure, estimate, watch, and split."""

from __future__ import annotations

import gc
import warnings

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching import (
    BatchShape,
    BudgetBatchSampler,
    MemoryModel,
    PeakMonitor,
    estimate_peaks,
    measure_peaks,
    memory_budget,
    split_on_oom,
    suggest_shapes,
)
from bionemo.size_aware_batching.errors import BatchTooLargeError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore::bionemo.size_aware_batching.errors.FragmentationWarning"),
]
DEVICE = torch.device("cuda:0")
GIB, MIB = 2**30, 2**20
WIDTH = 256


@pytest.fixture
def capped():
    """Let this process take 3 GiB of the device."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(3 * GIB / torch.cuda.mem_get_info(DEVICE)[1], DEVICE)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, DEVICE)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.fixture
def lengths():
    """Give 3,000 lengths of 20 to 1,500."""
    return np.random.default_rng(0).lognormal(5, 0.8, 3000).clip(20, 1500).astype(np.int64)


def make_step(lengths, device):
    """Return a training step of a small encoder with attention on elements of these lengths, padded."""
    layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def work(indices):
        sizes = lengths[indices]
        batch = torch.zeros(len(sizes), int(sizes.max()), WIDTH, device=device)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return BatchShape.of(sizes)

    return work


def test_suggested_shapes_fill_a_capped_device_and_never_pass_it(capped, lengths):
    """No suggested batch runs out of memory, the largest is near the budget, and an epoch by the model fits."""
    work = make_step(lengths, DEVICE)
    profile = measure_peaks(suggest_shapes(lengths, memory_budget("95%", DEVICE)), work, DEVICE, progress=False)
    assert {"ok"} == {record.status for record in profile}
    budget = memory_budget("97%", DEVICE, profile=profile)
    assert 0.85 * budget <= max(profile.peak_bytes) <= memory_budget("95%", DEVICE)
    model = MemoryModel().fit(profile)
    monitor = PeakMonitor(DEVICE, model)
    with monitor:
        for indices in BudgetBatchSampler(lengths, budget=budget, cost=model, strategy="by_size", shuffle=True, seed=0):
            torch.cuda.empty_cache()  # for allocators whose segments cannot grow
            with monitor.step(BatchShape.of(lengths[indices])):
                work(indices)
    assert max(monitor.profile.peak_bytes) <= budget


def test_monitor_reads_the_allocators_own_peaks_and_never_waits(monkeypatch, lengths):
    """Each step's peak is what the allocator says, and no step waits for the device."""
    work = make_step(lengths, DEVICE)
    work([0, 1])
    batches, expected = [[0], list(range(30)), [5, 6], list(range(10))], []
    for indices in batches:
        torch.cuda.reset_peak_memory_stats(DEVICE)
        work(indices)
        expected.append(torch.cuda.max_memory_allocated(DEVICE))
    monitor = PeakMonitor(DEVICE)

    def waits(*_):
        pytest.fail("the host waited for the device")

    monkeypatch.setattr(torch.cuda, "synchronize", waits)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        with monitor:
            for indices in batches:
                with monitor.step(len(indices)):
                    work(indices)
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert expected == list(monitor.profile.peak_bytes)


def test_estimates_are_within_five_percent_of_the_device(lengths):
    """What `estimate_peaks` says of steps above 256 MiB is within 5 % of what they need, workspaces added."""
    batches = [list(range(n)) for n in (20, 60, 120, 300)]
    measured = measure_peaks(batches, make_step(lengths, DEVICE), DEVICE, progress=False)
    estimate = estimate_peaks(batches, lambda: make_step(lengths, "cpu"), progress=False)
    # Workspaces, and what other tests left.
    added = measured[0].baseline_bytes - estimate[0].baseline_bytes
    ratios = [(b + added) / a for a, b in zip(measured.peak_bytes, estimate.peak_bytes, strict=True) if a > 256 * MIB]
    assert [] == [ratio for ratio in ratios if abs(ratio - 1) > 0.05]
    assert len(ratios) > 1


def test_a_batch_that_does_not_fit_goes_through_in_parts(capped):
    """Real out-of-memory errors split the batch, and the gradient is that of the whole."""
    model = torch.nn.Linear(1024, 1024).to(DEVICE)
    rows = 1024 * 1024

    def backward(part, weight):
        x = torch.full((len(part), 1024), 0.5, device=DEVICE)
        loss = model(x).sigmoid().square().mean() * weight
        loss.backward()
        return loss.detach()

    whole = split_on_oom(range(1000), backward, model)
    assert 1 == whole.parts
    expected = model.weight.grad.clone()
    model.zero_grad()
    outcome = split_on_oom(range(rows), backward, model, max_splits=8)
    assert outcome.parts > 1
    assert outcome.failures == outcome.parts.bit_length() - 1
    torch.testing.assert_close(expected, model.weight.grad)
    torch.testing.assert_close(whole.values[0], sum(outcome.values))


def test_a_batch_that_never_fits_is_named_and_leaves_nothing(capped):
    """Giving up names the elements, and neither tensors nor gradients of the attempts remain."""
    model = torch.nn.Linear(8, 8).to(DEVICE)
    before = torch.cuda.memory_allocated(DEVICE)

    def backward(part, weight):
        kept = model(torch.zeros(1024, 8, device=DEVICE))
        torch.empty(8 * GIB, device=DEVICE, dtype=torch.uint8)
        (kept.sum() * weight).backward()

    with pytest.raises(BatchTooLargeError, match=r"\b7\b"):
        split_on_oom([7, 8], backward, model, sizes=[10, 20])
    gc.collect()
    assert before == torch.cuda.memory_allocated(DEVICE)
    assert model.weight.grad is None
