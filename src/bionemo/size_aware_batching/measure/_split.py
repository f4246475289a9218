"""`split_on_oom`: a step that ran out of memory runs again in parts, with the gradient of the whole batch."""

from __future__ import annotations

import gc
import itertools
import logging
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import torch

from bionemo.size_aware_batching._checks import check_int, check_sizes, kind_of
from bionemo.size_aware_batching.errors import BatchTooLargeError
from bionemo.size_aware_batching.measure._oom import is_out_of_memory
from bionemo.size_aware_batching.measure._ranks import BROKE, FITTED, GAVE_UP, RAN_OUT, Ranks

if TYPE_CHECKING:
    import torch.distributed as dist

    from bionemo.size_aware_batching._types import AnyArray

__all__ = ["SplitOutcome", "split_on_oom"]

Value = TypeVar("Value")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SplitOutcome(Generic[Value]):
    """How a step went.

    Attributes:
        parts: in how many parts the batch went through on this rank; 1 is the whole.
        values: what `backward` returned for each part, in order.
        failures: how many attempts ran out of memory before, here or on another rank.
    """

    parts: int
    values: list[Value]
    failures: int


def split_on_oom(
    batch: Any,
    backward: Callable[[Any, float], Value],
    model: torch.nn.Module,
    *,
    weigh: Callable[[Any], Any] = len,
    max_splits: int = 3,
    sizes: Any = None,
    group: dist.ProcessGroup | None = None,
) -> SplitOutcome[Value]:
    """Run forward and backward on a batch; where memory runs out, do it in parts whose gradients add up.

    The batch is tried whole, then in 2, 4, ... contiguous parts::

        attempt 1   [ a  b  c  d  e  f ]        weight 1                    out of memory
        attempt 2   [ a  b  c ][ d  e  f ]      weights 1/2, 1/2            out of memory in the second part
        attempt 3   [ a ][ b  c ][ d ][ e  f ]  weights 1/6, 1/3, 1/6, 1/3  done: .grad is that of the whole

    Part means times weights sum to the batch's mean, so `.grad` then holds what the whole batch gives, up to
    rounding, added to what was there before. Failed attempts leave nothing in it, and errors leave it as it was.

    Every attempt runs forward anew: random states move on (dropout draws new masks), and layers with statistics, such
    as BatchNorm, count failed attempts and see parts, so that the gradient is not exactly the whole batch's.
    `backward` must not step the optimizer, clip or zero gradients, nor make gradients of parameters outside `model`
    (put several modules into a `ModuleList`). Gradients from before stay in memory beside the new ones.

    With several ranks, all of the group must make the same calls. Each attempt ends with one small collective and a
    wait for the device. Where one ran out of memory, all drop the attempt and split further, as far as they have
    elements; where one gives up, all raise and can skip the step. A `DistributedDataParallel` does not communicate
    in attempts; `.grad`, old and new, is averaged after success (unless within its `no_sync()`), which does not
    overlap with backward and uses no communication hook. Gradients of other models are left as they are.

    Args:
        batch: elements or their indices, one at least; a sequence that can be sliced.
        backward: called with a part and its weight; runs forward and backward, and returns what is wanted of it
            without a graph: with `loss.detach()`, `sum(outcome.values)` is the batch's mean loss.
        model: whose gradients `backward` makes; it may be or contain one `DistributedDataParallel`. Pass the wrapper,
            not what it wraps.
        weigh: what the loss is a mean over: `len` for elements, or a function that counts tokens. Must be positive
            for each part, and parts must add up to the whole.
        max_splits: how often to double the parts, 0 or more; 3 allows 8. Never more parts than elements.
        sizes: a number of 0 or more for each element of `batch`: makes parts near-equal in its sum (within the
            largest size), not in their number of elements.
        group: the ranks that decide together; by default the `DistributedDataParallel`'s, else all.

    Raises:
        BatchTooLargeError: memory ran out after `max_splits` doublings or with single elements, here or on another
            rank. Nothing keeps the attempts' tensors.
        TypeError: an argument is of the wrong kind, or a part of `model` synchronises by itself (FSDP, DeepSpeed, a
            static graph) or acts on gradients as they accumulate, or gradients to average are sparse.
        ValueError: `batch`, `sizes`, weights, `max_splits` or `group` are not as above.
        RuntimeError: another rank failed with another error.
        Exception: what `backward` or `weigh` raises, unless it says that memory ran out.

    >>> import torch
    >>> model, data = torch.nn.Linear(1, 1), torch.arange(6.0).reshape(6, 1)
    >>> def backward(part, weight):
    ...     if len(part) > 3:
    ...         raise MemoryError("more than three do not fit here")
    ...     (model(data[part]).mean() * weight).backward()
    ...     return weight
    >>> split_on_oom([0, 1, 2, 3, 4, 5], backward, model)
    SplitOutcome(parts=2, values=[0.5, 0.5], failures=1)
    >>> model.weight.grad.item(), model.bias.grad.item()  # the mean of 0 to 5, and 1
    (2.5, 1.0)
    """
    max_splits = check_int("max_splits", max_splits, at_least=0)
    for name, function in (("backward", backward), ("weigh", weigh)):
        if not callable(function):
            msg = f"`{name}` must be callable, got {kind_of(function)}"
            raise TypeError(msg)
    if not isinstance(model, torch.nn.Module):
        msg = f"`model` must be a torch.nn.Module, got {kind_of(model)}"
        raise TypeError(msg)
    step = _Step(batch, backward, weigh, None if sizes is None else _array(sizes), _count(batch))
    ranks = Ranks(model, group)
    parameters = list(model.parameters())
    old = [parameter.grad for parameter in parameters]
    try:
        _set_gradients(parameters, None)
        with ranks.quiet():
            outcome = _until_it_fits(step, max_splits, ranks, parameters)
        _add_gradients(parameters, old)
        ranks.average()
    except BaseException:
        _set_gradients(parameters, old)
        raise
    return outcome


def _until_it_fits(
    step: _Step, max_splits: int, ranks: Ranks, parameters: list[torch.nn.Parameter]
) -> SplitOutcome[Any]:
    failures = 0
    while True:
        parts = min(2**failures, step.count)
        values, problem = _attempt(step, parts, ranks)
        state = FITTED
        if values is None:
            state = GAVE_UP if failures >= max_splits or parts == step.count else RAN_OUT
            _release(parameters)  # before the ranks talk: the first collective of all takes memory, too
        states = ranks.agree(state)
        if values is not None:
            if max(states) == FITTED:
                return SplitOutcome(parts, values, failures)
            values = None
            _release(parameters)
        failures += 1
        if where := ranks.where(states, RAN_OUT, GAVE_UP):
            problem = problem or f"not here, but {where}"
            _log.warning("a step on %d elements in %d parts ran out of memory: %s", step.count, parts, problem)
        if where := ranks.where(states, BROKE):
            msg = f"a step failed {where}, whose own error says why"
            raise RuntimeError(msg)
        if where := ranks.where(states, GAVE_UP):
            if state == GAVE_UP:
                raise step.too_large(parts, problem, where)
            msg = f"a batch does not fit into memory {where}, whose own error names it; this rank gives up with it"
            raise BatchTooLargeError(msg, [])


def _attempt(step: _Step, parts: int, ranks: Ranks) -> tuple[list[Any] | None, str]:
    """Return what the parts returned, or None and the first line of the error that says that memory ran out.

    When this returns, the error is gone, and with it the traceback whose frames hold the step's tensors.
    """
    try:
        values = step.run(parts)
        ranks.check_gradients()
    except Exception as error:
        if not is_out_of_memory(error):
            ranks.agree(BROKE)  # the others wait for a word
            raise
        return None, (str(error).strip() or kind_of(error)).splitlines()[0]
    return values, ""


@dataclass(frozen=True)
class _Step:
    """The caller's batch and what to do with it."""

    batch: Any
    backward: Callable[[Any, float], Any]
    weigh: Callable[[Any], Any]
    sizes: AnyArray | None
    count: int

    def run(self, number: int) -> list[Any]:
        """Run so many parts. What is wrong with the data is raised in here, where other ranks hear of it."""
        if self.count == 0:
            msg = "`batch` must have one element at least, got none"
            raise ValueError(msg)
        if self.sizes is not None:
            if len(self.sizes) != self.count:
                msg = f"`sizes` must have a number for each element of `batch`, got {len(self.sizes)} for {self.count}"
                raise ValueError(msg)
            check_sizes("sizes", self.sizes)
        parts = self._cut(number)
        return [self.backward(part, weight) for part, weight in zip(parts, self._weights(parts), strict=True)]

    def _cut(self, number: int) -> list[Any]:
        if number == 1:
            return [self.batch]
        sizes = np.ones(self.count) if self.sizes is None or not self.sizes.any() else self.sizes
        sums = np.cumsum(sizes, dtype=np.float64)
        cuts = [0]
        for part in range(1, number):
            # Where the sum is nearest to its share, with an element for this part and for each to come.
            nearest = int(np.abs(sums - sums[-1] * part / number).argmin()) + 1
            cuts.append(min(max(nearest, cuts[-1] + 1), self.count - number + part))
        return [self.batch[begin:end] for begin, end in itertools.pairwise([*cuts, self.count])]

    def _weights(self, parts: list[Any]) -> list[float]:
        weights = [self._weight(part) for part in parts]
        total = weights[0] if len(parts) == 1 else self._weight(self.batch)
        # Loose enough for sums in float32, tight enough to miss no token of a hundred thousand.
        if not math.isclose(math.fsum(weights), total, rel_tol=1e-6):
            msg = f"`weigh` must add up, got {math.fsum(weights):g} for {len(parts)} parts and {total:g} for the whole"
            raise ValueError(msg)
        return [weight / total for weight in weights]

    def _weight(self, part: Any) -> float:
        weight = self.weigh(part)
        if not hasattr(weight, "__float__"):
            msg = f"`weigh` must return a number, got {kind_of(weight)}"
            raise TypeError(msg)
        if not 0 < float(weight) < math.inf:
            share = f"{len(part)} of {self.count} elements"
            msg = f"`weigh` must return a positive number, got {float(weight):g} for {share}"
            raise ValueError(msg)
        return float(weight)

    def too_large(self, parts: int, problem: str, where: str) -> BatchTooLargeError:
        """Return the error that gives up; it holds nothing of the attempts."""
        indices, sizes = list(self.batch), None if self.sizes is None else self.sizes.tolist()
        msg = f"a batch does not fit into memory (elements: {self.count}, parts: up to {parts}, given up {where})"
        try:
            indices = [operator.index(index) for index in indices]
            msg += f"; first indices {indices[:10]}"
        except TypeError:  # data itself, whose contents do not belong into an error
            pass
        if sizes is not None:
            msg += f"; largest sizes {sorted(sizes, reverse=True)[:5]}"
        advice = "leave the largest elements out" if parts == self.count else "raise `max_splits`"
        return BatchTooLargeError(f"{msg}; plan smaller batches or {advice}. Last error: {problem}", indices, sizes)


def _set_gradients(parameters: list[torch.nn.Parameter], grads: list[torch.Tensor | None] | None) -> None:
    for parameter, grad in zip(parameters, grads or [None] * len(parameters), strict=True):
        parameter.grad = grad


@torch.no_grad()
def _add_gradients(parameters: list[torch.nn.Parameter], old: list[torch.Tensor | None]) -> None:
    for parameter, grad in zip(parameters, old, strict=True):
        if grad is not None:
            parameter.grad = grad if parameter.grad is None else grad.add_(parameter.grad)


def _release(parameters: list[torch.nn.Parameter]) -> None:
    """Free what an attempt left: gradients, tensors in reference cycles, and what the allocator keeps."""
    _set_gradients(parameters, None)
    gc.collect()
    for kind in {parameter.device.type for parameter in parameters} - {"cpu"}:
        torch.get_device_module(kind).empty_cache()


def _count(batch: Any) -> int:
    try:
        if not isinstance(batch, Mapping) and len(batch[:1]) <= 1:
            return len(batch)
    except (TypeError, KeyError, IndexError):
        pass
    msg = f"`batch` must be a sequence that can be sliced, got {kind_of(batch)}"
    raise TypeError(msg)


def _array(sizes: Any) -> AnyArray:
    try:
        array = np.asarray(sizes.tolist() if hasattr(sizes, "tolist") else list(sizes))
    except (TypeError, ValueError):  # not iterable, or ragged
        array = np.empty(0, dtype=object)
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        msg = f"`sizes` must be numbers in one dimension, got {kind_of(sizes)}"
        raise TypeError(msg)
    return array
