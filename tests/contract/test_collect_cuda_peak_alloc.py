"""`collect_cuda_peak_alloc` as far as a machine without CUDA can tell."""

import inspect

import pytest
import torch

from bionemo.size_aware_batching.utils import collect_cuda_peak_alloc


class Untouchable:
    """A data set that fails the test when somebody starts to read it."""

    def __iter__(self):
        pytest.fail("the data set was touched")

    def __getitem__(self, index):
        pytest.fail("the data set was touched")


def untouchable_work(element):
    pytest.fail("the work was done")


def untouchable_cleanup():
    pytest.fail("the cleanup was done")


def test_signature():
    """Parameters have the documented names, order and default."""
    parameters = inspect.signature(collect_cuda_peak_alloc).parameters
    assert ["dataset", "work", "device", "cleanup"] == list(parameters)
    assert None is parameters["cleanup"].default


@pytest.mark.parametrize(
    "device", [torch.device("cpu"), torch.device("cpu", 0), torch.device("meta"), torch.device("mps")]
)
def test_device_without_cuda_is_refused_before_any_data_is_touched(device):
    """A device that is not CUDA is a ValueError, and neither data nor work nor cleanup is touched."""
    with pytest.raises(ValueError, match=r"(?i)cuda"):
        collect_cuda_peak_alloc(Untouchable(), untouchable_work, device, untouchable_cleanup)


def test_one_shot_data_set_is_left_whole_when_the_device_is_refused():
    """An iterator that was passed with a wrong device can still be used."""
    dataset = iter([1, 2])
    with pytest.raises(ValueError, match=r"(?i)cuda"):
        collect_cuda_peak_alloc(dataset, untouchable_work, torch.device("cpu"))
    assert [1, 2] == list(dataset)
