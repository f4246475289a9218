"""Ranks that decide together how a step goes on, and average its gradients."""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["BROKE", "FITTED", "GAVE_UP", "RAN_OUT", "Ranks"]

# As DistributedDataParallel's buckets by default: large enough for bandwidth, small beside a model.
_CHUNK_BYTES = 25 * 2**20
# Wrappers from here communicate in forward or backward, or keep gradients elsewhere than in `.grad`.
_FOREIGN = (
    "apex.parallel",
    "deepspeed",
    "fairscale.nn.data_parallel",
    "megatron.core.distributed",
    "torch.distributed._composable",
    "torch.distributed.fsdp",
)
# How an attempt ended on a rank; the worst decides for all.
FITTED, RAN_OUT, GAVE_UP, BROKE = range(4)


class Ranks:
    """The ranks that decide together; one alone talks to nobody."""

    def __init__(self, model: torch.nn.Module, group: dist.ProcessGroup | None) -> None:
        started = dist.is_available() and dist.is_initialized()
        self._ddp = ddp = _ddp_in(model, started and dist.get_world_size() > 1)
        if ddp is not None:
            if group not in (None, ddp.process_group):
                msg = "`group` must be left out or be that of the DistributedDataParallel"
                raise ValueError(msg)
            group = ddp.process_group
        self._group = (group or dist.group.WORLD) if started else None
        self._rank = dist.get_rank(self._group) if started else 0
        if self._rank < 0:
            msg = "`group` must contain this rank"
            raise ValueError(msg)
        self._names = dist.get_process_group_ranks(self._group) if started else [0]
        self._averages = ddp is not None and len(self._names) > 1 and ddp.require_backward_grad_sync
        # Made now, since there may be no memory for it later, and where NCCL reaches it.
        device = next((parameter.device for parameter in model.parameters()), "cpu")
        self._states = torch.zeros(len(self._names), dtype=torch.int32, device=device)

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Keep DistributedDataParallel from communicating: a rank that is out of memory could not take part."""
        if (ddp := self._ddp) is None:
            yield
            return
        # What the first forward would do with the others is done here, where no rank can be missing.
        ddp.reducer._rebuild_buckets()  # noqa: SLF001
        if ddp.will_sync_module_buffers():
            ddp._sync_buffers()  # noqa: SLF001
        ddp.require_forward_param_sync = False
        try:
            with ddp.no_sync():
                yield
        finally:
            ddp.require_forward_param_sync = ddp.require_backward_grad_sync

    def agree(self, state: int) -> list[int]:
        """Return how the attempt ended on each rank."""
        if len(self._names) == 1:
            return [state]
        self._states.zero_()
        self._states[self._rank] = state
        dist.all_reduce(self._states, op=dist.ReduceOp.MAX, group=self._group)
        return [int(other) for other in self._states.tolist()]

    def where(self, states: list[int], *wanted: int) -> str:
        """Say where an attempt ended in a state; nothing, where it did nowhere."""
        names = [str(name) for name, state in zip(self._names, states, strict=True) if state in wanted]
        if names and len(self._names) == 1:
            return "here"
        return f"on rank{'s' * (len(names) > 1)} {', '.join(names)}" if names else ""

    def check_gradients(self) -> None:
        """Find what would keep `average` from succeeding while other ranks can still hear of it."""
        if self._averages:
            if any(p.grad is not None and p.grad.layout != torch.strided for p in self._ddp.parameters()):
                msg = "`model` must make dense gradients under DistributedDataParallel, got sparse ones"
                raise TypeError(msg)
            torch.empty(_CHUNK_BYTES, dtype=torch.uint8, device=self._states.device)  # the allocator keeps it

    @torch.no_grad()
    def average(self) -> None:
        """Average gradients as DistributedDataParallel does; one that is None on all ranks stays None."""
        if not self._averages:
            return
        named, ignored = self._ddp.module.named_parameters(), self._ddp.parameters_to_ignore
        parameters = [parameter for name, parameter in named if parameter.requires_grad and name not in ignored]
        present = self._states.new_tensor([parameter.grad is not None for parameter in parameters])
        dist.all_reduce(present, op=dist.ReduceOp.MAX, group=self._group)
        grads = []
        for parameter in itertools.compress(parameters, present.tolist()):
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
        for chunk in _chunks(grads):
            flat = torch.cat([grad.reshape(-1) for grad in chunk]) if len(chunk) > 1 else chunk[0].reshape(-1)
            flat.mul_(1 / len(self._names))  # before the sum, which could leave the range of float16
            dist.all_reduce(flat, group=self._group)
            for grad, piece in zip(chunk, torch.split(flat, [grad.numel() for grad in chunk]), strict=True):
                grad.copy_(piece.view_as(grad))


def _chunks(grads: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield gradients alike in device and type, few enough to be copied together; a large one comes alone."""
    chunks: dict[Any, list[torch.Tensor]] = {}
    for grad in grads:
        chunk = chunks.setdefault((grad.device, grad.dtype), [])
        if chunk and sum(other.nbytes for other in chunk) + grad.nbytes > _CHUNK_BYTES:
            yield chunk.copy()
            chunk.clear()
        chunk.append(grad)
    yield from chunks.values()


def _ddp_in(model: torch.nn.Module, several: bool) -> Any:
    """Return the DistributedDataParallel in a model, or None; refuse what acts in an attempt by itself."""
    modules, parameters = list(model.modules()), list(model.parameters())
    ddps: list[Any] = [module for module in modules if isinstance(module, DistributedDataParallel)]
    origins = {base.__module__ for kind in {type(module) for module in modules} for base in kind.__mro__}
    sync_batch_norm = any(isinstance(module, torch.nn.SyncBatchNorm) for module in modules)
    special = any(
        ddp.static_graph or ddp.mixed_precision or ddp._delay_all_reduce_params or ddp._join_config.enable  # noqa: SLF001
        for ddp in ddps
    )
    hooks = ("_post_accumulate_grad_hooks", "_in_backward_optimizers")  # of torch, and of torch.distributed.optim
    for present, problem in (
        (any(origin.startswith(_FOREIGN) for origin in origins), "a wrapper that synchronises by itself"),
        (several and sync_batch_norm, "SyncBatchNorm, which communicates in forward"),
        (several and any(hasattr(p, "device_mesh") for p in parameters), "parameters that are spread over ranks"),
        (len(ddps) > 1, "more than one DistributedDataParallel"),
        (special, "a DistributedDataParallel with a static graph, mixed precision, delayed reduction or join()"),
        (any(getattr(p, hook, None) for p in parameters for hook in hooks), "hooks that act as gradients accumulate"),
    ):
        if present:
            msg = f"`model` must not have {problem}: its steps cannot be split"
            raise TypeError(msg)
    return ddps[0] if ddps else None
