"""`measure_peaks` and its documented thin form, `collect_cuda_peak_alloc`."""

from __future__ import annotations

import gc
import logging
import random
import time
import warnings
from collections.abc import Callable, Iterable, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from tqdm.auto import tqdm

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._checks import check_bool, check_int, kind_of
from bionemo.size_aware_batching.errors import FragmentationWarning, OutOfMemoryWarning
from bionemo.size_aware_batching.measure._meter import Meter, device_name, device_of, meter_for, present_device
from bionemo.size_aware_batching.measure._oom import is_out_of_memory
from bionemo.size_aware_batching.measure._rehearse import (
    CappedMeter,
    Largest,
    Rehearsal,
    beyond_peaks,
    rehearse_steps,
)
from bionemo.size_aware_batching.measure._shapes import SuggestedShapes
from bionemo.size_aware_batching.memory import BatchShape, PeakRecord, Profile

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["collect_cuda_peak_alloc", "measure_peaks", "run_steps"]

Data = TypeVar("Data")
Feature = TypeVar("Feature")
_log = logging.getLogger(__name__)


def measure_peaks(
    dataset: Iterable[Data],
    work: Callable[[Data], Any],
    device: torch.device | str,
    *,
    warmup: int = 2,
    cleanup: Callable[[], Any] | None = None,
    rehearse: bool = True,
    progress: bool = True,
) -> Profile:
    """Run a step on each element and measure its peak memory.

    The peak is the high-water mark of a whole step, whatever `work` does: forward, backward, optimizer. On an
    accelerator it is the caching allocator's own counter; on a CPU it is the largest sum of live tensor storages
    that the step touched (without what kernels free within themselves), not the process's resident memory.

    Warm-up steps come first and are in no record: the first steps of a training run make the optimizer's state
    and the libraries' workspaces, so their peaks are not what later steps need. An element that runs out of
    memory is recorded as "oom", everything it held is released, and the next measurement starts clean. Random
    states are put back at the end: measuring does not change the training that follows.

    At the end some of the larger elements run again in a row, while the allocator may take only little more memory
    than they need: so it shows what blocks left over from other shapes cost, which `memory_budget` sets aside.

    Args:
        dataset: the elements, usually batches; iterated once. Going from small to large is kindest, and
            `suggest_shapes` chooses each by what the last ones took.
        work: does a training step on an element and returns what describes its memory, usually a `BatchShape`.
            It should keep no reference to tensors.
        device: where the work runs: a CPU, CUDA or another accelerator whose module counts peaks.
        warmup: how many steps to run first, on the first element that does not run out of memory.
        cleanup: called after each step, also after an error, before memory is read.
        rehearse: run larger elements again to measure fragmentation; without it single steps have to tell. On a CPU
            there is none.
        progress: show a progress bar on a terminal.

    Returns:
        A `Profile` with a record for each element.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: the device is absent or does not count peaks; `warmup` is negative.
        Exception: what `work` or `cleanup` raises, unless it says that memory ran out.

    Warns:
        FragmentationWarning: the rehearsal found an allocator whose segments cannot grow.

    >>> import torch
    >>> layer = torch.nn.Linear(1000, 1000)
    >>> def work(batch):
    ...     layer(batch).sum().backward()
    ...     layer.zero_grad()
    ...     return BatchShape(items=len(batch), longest=1000, total=batch.numel())
    >>> profile = measure_peaks([torch.zeros(n, 1000) for n in (1, 10)], work, "cpu", progress=False)
    >>> [record.status for record in profile]
    ['ok', 'ok']
    """
    target = present_device(device)
    return run_steps(
        dataset,
        work,
        target,
        meter_for(target),
        warmup=warmup,
        cleanup=cleanup,
        rehearse=check_bool("rehearse", rehearse),
        progress=progress,
        name=device_name(target),
    )


def run_steps(
    dataset: Iterable[Any],
    work: Callable[[Any], Any],
    target: torch.device,
    meter: Meter,
    *,
    warmup: int,
    cleanup: Callable[[], Any] | None,
    rehearse: bool,
    progress: bool,
    name: str,
) -> Profile:
    """Check the arguments and run the steps under a meter, with random states put back; see `measure_peaks`."""
    warmup = check_int("warmup", warmup, at_least=0)
    check_bool("progress", progress)
    for label, function in (("work", work), ("cleanup", cleanup)):
        if not callable(function) and not (label == "cleanup" and function is None):
            msg = f"`{label}` must be callable, got {kind_of(function)}"
            raise TypeError(msg)
    try:
        elements = iter(dataset)
    except TypeError as error:
        msg = f"`dataset` must be iterable, got {kind_of(dataset)}"
        raise TypeError(msg) from error
    try:
        total = len(dataset) if isinstance(dataset, Sized) else None
    except (TypeError, ValueError):  # only the bar wants to know, and a loader may not
        total = None
    devices = [] if target.type == "cpu" else [target]
    kind = "cuda" if target.type == "cpu" else target.type
    with (
        torch.random.fork_rng(devices, device_type=kind),
        _python_random_states(),
        meter.watching(),
        # disable=None: no bar where nobody watches.
        tqdm(total=total, desc="measuring", unit="step", disable=None if progress else True) as bar,
    ):
        records, largest = [], Largest()
        for record, data in _records(elements, work, cleanup, meter, warmup):
            records.append(record)
            largest.add(record.peak_bytes, data)
            if isinstance(dataset, SuggestedShapes):
                dataset.observe(record.peak_bytes, record.baseline_bytes)
            bar.set_postfix_str(_describe(record), refresh=False)
            bar.update()
        steady = Rehearsal(beyond_peaks(records), 0)
        if rehearse and isinstance(meter, CappedMeter):
            bar.set_postfix_str("rehearsing", refresh=True)
            steady = rehearse_steps(largest, lambda data: _attempt(work, data, cleanup)[0], meter, steady[0])
            _warn_of_fragments(meter)
    return Profile(tuple(records), name, warmup, *steady)


def _warn_of_fragments(meter: CappedMeter) -> None:
    if not meter.is_expandable():
        text = (
            "this allocator keeps blocks left over from batches of other shapes, until they leave no room for the next "
            "one: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before Python starts, or empty its cache before "
            "each step"
        )
        warnings.warn(text, FragmentationWarning, stacklevel=4)


def _records(
    elements: Iterator[Any],
    work: Callable[[Any], Any],
    cleanup: Callable[[], Any] | None,
    meter: Meter,
    warmup: int,
) -> Iterator[tuple[PeakRecord, Any]]:
    cold = warmup
    for index, data in enumerate(elements):
        failed = False
        while cold and not failed:
            _log.debug("warm-up step, not recorded, on element %d", index)
            failed, _ = _attempt(work, data, cleanup)
            cold -= not failed
        # With nothing cached, the reserved peak is this step's own and fragments of the last do not matter.
        meter.release()
        meter.begin()
        begin = time.perf_counter()
        features = None
        if not failed:
            failed, features = _attempt(work, data, cleanup)
        meter.wait()
        reading, seconds = meter.read(), time.perf_counter() - begin
        peak = None if failed else reading.peak_bytes
        status: Literal["ok", "oom"] = "oom" if failed else "ok"
        yield PeakRecord(index, features, peak, *reading[1:], status, seconds), data


def _attempt(work: Callable[[Any], Any], data: Any, cleanup: Callable[[], Any] | None) -> tuple[bool, Any]:
    """Run one step; return whether it ran out of memory, and its features."""
    try:
        failed, features = _ran_out(work, data)
    except BaseException:
        if cleanup is not None:
            cleanup()
        raise
    if cleanup is not None:
        failed |= _ran_out(lambda _: cleanup(), None)[0]
    if failed:
        gc.collect()
    return failed, None if failed else features


def _ran_out(work: Callable[[Any], Any], data: Any) -> tuple[bool, Any]:
    """Return whether memory ran out, and what `work` returned.

    When this returns, the error is gone, and with it the traceback whose frames hold the step's tensors: inside an
    `except` nothing of them could be freed.
    """
    try:
        return False, work(data)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # As text: a log record that held the error would hold the step's tensors.
        _log.info("a step ran out of memory: %.200s", str(error))
    return True, None


@contextmanager
def _python_random_states() -> Iterator[None]:
    """Put back the states of `random` and numpy, as `fork_rng` does for torch."""
    states = random.getstate(), np.random.get_state(legacy=False)  # noqa: NPY002 - the global one
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _describe(record: PeakRecord) -> str:
    shape = record.features
    size = f"#{record.index}"
    if isinstance(shape, BatchShape):
        size = f"{shape.items} x {format(shape.longest, 'g' if isinstance(shape.longest, float) else '')}"
    return f"{size}: {format_bytes(record.peak_bytes)}" if record.peak_bytes is not None else f"{size}: out of memory"


def collect_cuda_peak_alloc(
    dataset: Iterable[Data],
    work: Callable[[Data], Feature],
    device: torch.device,
    cleanup: Callable[[], None] | None = None,
) -> tuple[list[Feature], list[int]]:
    """Collect features and CUDA peak memory of a step on each element: `measure_peaks` as two lists.

    There are no warm-up steps: the first peaks may be lower than what the same elements need later on, when
    optimizer state and workspaces exist, so leave them out of a fit or use `measure_peaks`.

    Args:
        dataset: the elements; iterated once.
        work: does the step on an element and returns its features.
        device: a CUDA device.
        cleanup: called after each step, also after an error, before memory is read.

    Returns:
        The features, and the peaks of allocated memory in bytes, of all elements that did not run out of memory.

    Raises:
        ValueError: the device is not a CUDA device, or is not there; before any data is touched.
        Exception: what `work` or `cleanup` raises, unless it says that memory ran out.

    Warns:
        OutOfMemoryWarning: for each element that ran out of memory, with its position.

    >>> import torch
    >>> def work(batch):
    ...     model(batch.cuda()).sum().backward()
    ...     return [len(batch), batch.shape[1]]
    >>> features, peaks = collect_cuda_peak_alloc(
    ...     batches, work, torch.device("cuda"), cleanup=lambda: model.zero_grad(set_to_none=True)
    ... )  # doctest: +SKIP
    """
    target = device_of(device)
    if target.type != "cuda":
        msg = f"`device` must be a CUDA device, got {target}"
        raise ValueError(msg)
    profile = measure_peaks(dataset, work, target, warmup=0, cleanup=cleanup, rehearse=False, progress=False)
    for record in profile:
        if record.status == "oom":
            text = f"the element at position {record.index} ran out of memory and has no peak"
            warnings.warn(text, OutOfMemoryWarning, stacklevel=2)
    return profile.features, profile.peak_bytes
