"""The high-water mark of tensors where no allocator tells it: every storage a step touches, while it lives."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["StorageCounter"]

# c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize.
_BLOCK = 512


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of live tensor storages while it is entered.

    A storage is counted once, however many tensors view it, from the operation that makes it until Python and
    autograd have let go of it, in the blocks of 512 bytes that CUDA's caching allocator hands out. One that an
    operation reads but none has made since `begin` (weights, optimizer state, data) is counted as if it had been there
    from the start. Not counted is what a step does not touch, what a kernel allocates and frees inside itself, and what
    other Python threads do.

    Attributes:
        live_bytes: counted now.
        peak_bytes: the largest `live_bytes` since `begin`.
        baseline_bytes: what was there at `begin`, of all that was touched since.
    """

    def __init__(self, kinds: frozenset[str] = frozenset({"cpu"})) -> None:
        """Start with nothing counted.

        Args:
            kinds: the types of devices whose storages count.
        """
        super().__init__()
        self._kinds = kinds
        self.begin()

    def begin(self) -> None:
        """Forget everything: a step begins."""
        self.live_bytes = self.peak_bytes = self.baseline_bytes = 0
        # Keyed by identity: a storage lives as long as its entry, whose weak reference removes it.
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count the storages of its inputs and outputs."""
        kwargs = kwargs or {}
        for storage in self._storages((args, kwargs)):
            self._count(storage, existed=True)
        result = func(*args, **kwargs)
        # The inputs again: an operation may resize what it writes to.
        for storage in self._storages((args, kwargs, result)):
            self._count(storage, existed=False)
        return result

    def _count(self, storage: torch.UntypedStorage, *, existed: bool) -> None:
        key, size = id(storage), -(-storage.nbytes() // _BLOCK) * _BLOCK
        entry = self._known.get(key)
        if entry is not None and entry[1] == size:
            return
        known = entry[1] if entry is not None else 0
        reference = entry[0] if entry is not None else weakref.ref(storage, partial(self._forget, key))
        self._known[key] = reference, size
        self.live_bytes += size - known
        if existed and entry is None:
            self.peak_bytes += size
            self.baseline_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def _storages(self, tree: Any) -> Iterator[torch.UntypedStorage]:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, torch.Tensor):
                for part in _dense_parts(leaf):
                    if part.device.type in self._kinds:
                        yield part.untyped_storage()

    def _forget(self, key: int, _: object) -> None:
        self.live_bytes -= self._known.pop(key)[1]


def _dense_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]  # noqa: SLF001 - also works before coalescing
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []
