"""Which errors mean that memory ran out."""

import pytest
import torch

from bionemo.size_aware_batching.measure import is_out_of_memory

OUT_OF_MEMORY = {
    "CUDA's allocator": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ..."),
    "the older name": torch.cuda.OutOfMemoryError("CUDA out of memory."),
    "no text": torch.OutOfMemoryError(),
    "Python": MemoryError(),
    "numpy": MemoryError("Unable to allocate 7.45 GiB for an array with shape (1000000000,) and data type float64"),
    "CUDA's runtime": RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
    "CUDA's driver": RuntimeError("CUDA driver error: out of memory"),
    "ROCm": RuntimeError("HIP out of memory. Tried to allocate 20.00 MiB"),
    "Apple": RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 1.00 GB)"),
    "Intel": RuntimeError("XPU out of memory, please use `empty_cache` to release all unoccupied cached memory."),
    "cuBLAS": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "cuDNN": RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    "cuDNN's workspace": RuntimeError(
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you passed in a non-contiguous input."
    ),
    "cuFFT": RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    "cuSOLVER": RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
    "cuSPARSE": RuntimeError("CUDA error: CUSPARSE_STATUS_ALLOC_FAILED when calling `cusparseCreate(handle)`"),
    "the CPU's allocator": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "the CPU's allocator on Windows": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:72] DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."
    ),
    "Vulkan": RuntimeError("vkAllocateMemory failed: ErrorOutOfMemory"),
    "another case": RuntimeError("Cuda Out Of Memory"),
}
OTHERS = {
    "another RuntimeError": RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"),
    "no text": RuntimeError(),
    "an illegal access": RuntimeError("CUDA error: an illegal memory access was encountered"),
    "cuBLAS otherwise": RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    "the text in another class": ValueError("out of memory"),
    "a full disk": OSError(12, "Cannot allocate memory"),
    "a key": KeyError("out of memory"),
    "an interrupt": KeyboardInterrupt("out of memory"),
}


@pytest.mark.parametrize("origin", sorted(OUT_OF_MEMORY))
def test_errors_that_say_so(origin):
    """The error of each library that memory ran out is recognised, by its class or by its text."""
    assert is_out_of_memory(OUT_OF_MEMORY[origin])


@pytest.mark.parametrize("origin", sorted(OTHERS))
def test_errors_that_do_not(origin):
    """Other errors are not, whatever their text, unless they are the RuntimeErrors that libraries raise."""
    assert not is_out_of_memory(OTHERS[origin])


def test_error_of_the_real_allocator():
    """What torch raises for an exabyte on a CPU is recognised."""
    with pytest.raises(RuntimeError, match="allocate") as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "std::bad_alloc",
        "FIND was unable to find an engine to execute this computation",
        "GET was unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm to run convolution",
    ],
)
def test_more_texts_for_it(text):
    """C++'s own text, and cuDNN's when no algorithm's workspace fits, are recognised as well."""
    assert is_out_of_memory(RuntimeError(text))
