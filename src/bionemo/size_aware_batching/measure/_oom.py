"""Which errors mean that a device ran out of memory."""

from __future__ import annotations

import torch

__all__ = ["is_out_of_memory"]

# Libraries below torch raise plain RuntimeErrors: the allocators of CUDA and CPU say "out of memory" or "can't
# allocate memory" / "not enough memory"; cuBLAS, cuDNN, cuFFT, cuSOLVER and cuSPARSE name a status; cuDNN says
# NOT_SUPPORTED when no algorithm's workspace fits.
_TEXTS = (
    "out of memory",
    "alloc_failed",
    "can't allocate memory",
    "not enough memory",
    "cudnn_status_not_supported",
    "erroroutofmemory",
    "bad_alloc",
    "unable to find an engine to execute this computation",
    "unable to find a valid cudnn algorithm",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory ran out, in any of the texts that libraries use.

    >>> is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"))
    True
    >>> is_out_of_memory(RuntimeError("shapes do not match"))
    False
    """
    if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(part in text for part in _TEXTS)
