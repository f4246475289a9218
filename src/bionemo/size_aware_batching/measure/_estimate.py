"""`estimate_peaks`: what a step would need, on a machine without the device and without computing anything."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.overrides import TorchFunctionMode

from bionemo.size_aware_batching._checks import check_int, kind_of
from bionemo.size_aware_batching.measure._meter import Reading, StorageMeter
from bionemo.size_aware_batching.measure._run import run_steps
from bionemo.size_aware_batching.measure._storages import StorageCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from bionemo.size_aware_batching.memory import Profile

__all__ = ["estimate_peaks"]

Data = TypeVar("Data")

_VALUES = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException)


def estimate_peaks(
    dataset: Iterable[Data],
    build: Callable[[], Callable[[Data], Any]],
    *,
    warmup: int = 2,
    workspace_bytes: int = 0,
    cleanup: Callable[[], Any] | None = None,
    progress: bool = True,
) -> Profile:
    """Estimate the peaks that `measure_peaks` would find on a CUDA device, with no device and no real computation.

    The model is built and its steps are run on fake tensors, which have shapes but no data: neither time nor memory
    depends on how large it is. The peak is the exact high-water mark of live storages, rounded as CUDA's caching
    allocator rounds. Where torch takes other ways on CUDA than on a CPU (dropout, autocast to float32), the way of
    CUDA is taken. Not seen is what kernels and libraries allocate inside themselves; how much that is, the page on
    memory says.

    Args:
        dataset: the elements, usually batches, as for `measure_peaks`; `suggest_shapes` works too.
        build: called once, makes model and optimizer **on the CPU** and returns the `work` that `measure_peaks` takes.
            Nothing there may depend on the values of tensors (`.item()`, boolean masks as indices).
        warmup: how many steps to run first, which make the optimizer's state.
        workspace_bytes: added to every peak and baseline, for the workspaces of libraries.
        cleanup: called after each step.
        progress: show a progress bar on a terminal.

    Returns:
        A `Profile`, whose `reserved_bytes` and `device_bytes` are None.

    Raises:
        TypeError: an argument is of the wrong kind.
        ValueError: the step depends on values of tensors; a number is negative.

    >>> def build():
    ...     layer = torch.nn.Linear(1000, 100_000)  # 400 MB that nobody allocates
    ...     def work(items):
    ...         layer(torch.zeros(items, 1000)).relu().sum().backward()
    ...         layer.zero_grad()
    ...     return work
    >>> [round(record.peak_bytes / 1e6) for record in estimate_peaks([1, 1000], build)]
    [801, 1205]
    """
    if not callable(build):
        msg = f"`build` must be callable, got {kind_of(build)}"
        raise TypeError(msg)
    workspace_bytes = check_int("workspace_bytes", workspace_bytes, at_least=0)
    meter = _FakeMeter(workspace_bytes)
    try:
        with meter.faking():
            work = build()
        return run_steps(
            dataset,
            work,
            torch.device("cpu"),
            meter,
            warmup=warmup,
            cleanup=cleanup,
            rehearse=False,
            progress=progress,
            name="an estimate without a device",
        )
    except _VALUES as error:
        msg = (
            "the step depends on values of tensors, which an estimate does not have "
            f"(loss.item(), x[mask], or a model or optimizer made outside `build`): {error!s:.200}"
        )
        raise ValueError(msg) from error


class _FakeMeter(StorageMeter):
    """Counts the storages of fake tensors, which it makes of all there are."""

    def __init__(self, workspace_bytes: int) -> None:
        super().__init__(StorageCounter(frozenset({"cpu", "meta"})))
        self._workspace_bytes = workspace_bytes
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)

    def faking(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(self._fakes)
        stack.enter_context(_AsOnCuda())
        return stack

    def watching(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(self.faking())
        stack.enter_context(self._counter)
        return stack

    def read(self) -> Reading:
        seen, more = super().read(), self._workspace_bytes
        return seen._replace(peak_bytes=seen.peak_bytes + more, baseline_bytes=seen.baseline_bytes + more)


# Autocast to float32 on CUDA but not on a CPU: aten/src/ATen/autocast_mode.h, AT_FORALL_FP32.
_FLOAT32 = frozenset(
    getattr(nn.functional, name)
    for name in (
        "layer_norm",
        "group_norm",
        "softmax",
        "log_softmax",
        "cross_entropy",
        "nll_loss",
        "mse_loss",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "binary_cross_entropy_with_logits",
        "kl_div",
        "softplus",
        "cosine_similarity",
    )
) | {torch.exp, torch.log, torch.pow, torch.rsqrt, torch.cumsum, torch.softmax, torch.log_softmax, torch.sum}


class _AsOnCuda(TorchFunctionMode):
    """Replaces calls that on a CPU keep other tensors for the backward pass than on CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (nn.functional.dropout, torch.dropout):
            return _dropout(*args, **kwargs)
        if func is nn.functional.scaled_dot_product_attention:
            # The CPU's fused attention knows no dropout; CUDA's keeps only a seed for it.
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            kwargs.pop("dropout_p", None)
        if func in _FLOAT32 and torch.is_autocast_enabled("cpu"):
            args = tuple(_as_float32(value) for value in args)
            kwargs = {name: _as_float32(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _dropout(
    input: torch.Tensor,  # noqa: A002 - as torch names it
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    train: bool | None = None,
) -> torch.Tensor:
    """Drop with a mask of a byte an element, as CUDA's kernel does."""
    if not (training if train is None else train) or p == 0:
        return input
    dropped: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(dropped) if inplace else dropped


def _as_float32(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value
