"""The high-water mark of CPU storages against sums made by hand."""

import gc

import pytest
import torch

from bionemo.size_aware_batching.measure._storages import StorageCounter

N = 1024
FLOATS = 4 * N
SCALAR = 512
WEIGHT = torch.ones(N)


pytestmark = pytest.mark.usefixtures("small_heap")


@pytest.fixture
def peak_of():
    """Return a function that runs a step and returns its peak, what is left, and what was there before."""
    counter = StorageCounter()

    def run(step):
        counter.begin()
        with counter:
            step()
            gc.collect()
            return counter.peak_bytes, counter.live_bytes, counter.baseline_bytes

    return run


def test_nothing_happens(peak_of):
    """A step without tensors needs nothing."""
    assert (0, 0, 0) == peak_of(lambda: None)


@pytest.mark.parametrize(("count", "peak"), [(0, 0), (1, 512), (128, 512), (129, 1024), (1000, 4096)])
def test_storages_are_rounded_up_to_blocks(peak_of, count, peak):
    """A storage counts as the blocks of 512 bytes that CUDA's allocator would hand out for it."""
    assert (peak, 0, 0) == peak_of(lambda: torch.empty(count))


def test_storages_that_live_together_add_up(peak_of):
    """Three tensors of one step live at once, and nothing of them afterwards."""

    def step():
        held = [torch.zeros(N), torch.zeros(2 * N), torch.zeros(N, dtype=torch.float64)]
        assert 3 == len(held)

    assert (FLOATS + 2 * FLOATS + 2 * FLOATS, 0, 0) == peak_of(step)


def test_freed_storages_do_not_count(peak_of):
    """Tensors that follow each other need as much as the largest of them."""

    def step():
        for count in (N, 3 * N, 2 * N):
            torch.zeros(count)

    assert (3 * FLOATS, 0, 0) == peak_of(step)


def test_order_of_freeing_counts(peak_of):
    """What is freed before the next one is made is not there with it."""

    def step():
        first = torch.zeros(N)
        second = torch.zeros(2 * N)
        del first
        third = torch.zeros(2 * N)
        del second, third

    assert (4 * FLOATS, 0, 0) == peak_of(step)


@pytest.mark.parametrize(
    "view",
    [
        lambda tensor: tensor.view(16, -1),
        lambda tensor: tensor[3:7],
        torch.Tensor.detach,
        lambda tensor: tensor.reshape(-1, 8).t(),
        lambda tensor: tensor.expand(4, N),
        lambda tensor: tensor.split(100),
        lambda tensor: tensor.view(torch.int32),
    ],
)
def test_views_count_once(peak_of, view):
    """However many tensors look at a storage, it is there once, and as long as the last of them."""

    def step():
        tensor = torch.zeros(N)
        views = view(tensor)
        del tensor
        torch.zeros(N)
        del views

    assert (2 * FLOATS, 0, 0) == peak_of(step)


def test_in_place_operations_need_nothing_new(peak_of):
    """Changing a tensor in place takes no memory, changing it out of place takes as much again."""

    def step():
        tensor = torch.zeros(N)
        tensor.add_(1).mul_(2).relu_()
        tensor[2:5].zero_()

    def copying():
        tensor = torch.zeros(N)
        tensor = tensor + 1

    assert FLOATS == peak_of(step)[0]
    assert 2 * FLOATS == peak_of(copying)[0]


def test_output_argument_counts_once(peak_of):
    """An operation that writes into a given tensor adds nothing."""

    def step():
        tensor, out = torch.zeros(N), torch.empty(N)
        torch.add(tensor, 1, out=out)

    assert 2 * FLOATS == peak_of(step)[0]


def test_resize_counts_the_new_size(peak_of):
    """A tensor that grows counts what its storage has then, and shrinking it frees nothing."""

    def step():
        tensor = torch.zeros(N)
        tensor.resize_(3 * N)
        tensor.resize_(10)

    assert (3 * FLOATS, 0, 0) == peak_of(step)


def test_operation_that_resizes_and_returns_nothing(peak_of):
    """A storage that an operation frees or makes again in place counts what it has afterwards."""

    def step():
        tensor = torch.zeros(N)
        torch.ops.inductor.resize_storage_bytes_(tensor, 0)
        torch.zeros(N)
        torch.ops.inductor.resize_storage_bytes_(tensor, 3 * FLOATS)

    assert (3 * FLOATS, 0, 0) == peak_of(step)


def test_resized_storage_is_forgotten_whole(peak_of):
    """What a grown tensor freed leaves room for the next one."""

    def step():
        tensor = torch.zeros(N)
        tensor.resize_(3 * N)
        del tensor
        torch.zeros(2 * N)

    assert (3 * FLOATS, 0, 0) == peak_of(step)


def test_what_was_there_counts_from_the_start(peak_of):
    """Weights first read after the step's own peak were there during it."""
    weight = torch.zeros(N)

    def step():
        torch.zeros(5 * N)
        weight.sum()

    assert (6 * FLOATS, FLOATS, FLOATS) == peak_of(step)


def test_what_is_not_touched_does_not_count(peak_of):
    """A tensor that no operation reads is none of the step's."""
    untouched = torch.zeros(7 * N)
    assert (FLOATS, 0, 0) == peak_of(lambda: torch.zeros(N))
    assert 7 * N == untouched.numel()


def test_what_a_step_keeps_is_live(peak_of):
    """A tensor that a step leaves behind is live at its end, and in the next step's baseline once read."""
    kept = []
    assert (FLOATS, FLOATS, 0) == peak_of(lambda: kept.append(torch.zeros(N)))
    assert (FLOATS + SCALAR, FLOATS, FLOATS) == peak_of(kept[0].sum)


def test_begin_forgets(peak_of):
    """Freeing a tensor of the last step after `begin` does not lower this step's count."""
    kept = []
    peak_of(lambda: kept.append(torch.zeros(N)))

    def step():
        kept.clear()
        torch.zeros(N)

    assert (FLOATS, 0, 0) == peak_of(step)


def test_backward_of_a_temporary(peak_of):
    """Weight and hidden values, or weight and gradient: the hidden values are gone before the gradient comes."""
    weight = torch.ones(N, requires_grad=True)
    # With the gradient live two scalars: the loss and its own gradient.
    assert (2 * FLOATS + 2 * SCALAR, 2 * FLOATS, FLOATS) == peak_of(lambda: (weight * 2).sum().backward())


def test_backward_with_held_activations(peak_of):
    """Activations that Python holds are there while the gradient is made."""
    weight = torch.ones(N, requires_grad=True)

    def step():
        hidden = weight * 2
        hidden.sum().backward()

    assert (3 * FLOATS + 2 * SCALAR, 2 * FLOATS, FLOATS) == peak_of(step)
    # The gradient of the first step was there at the second's start, and the new one is added to it.
    assert (4 * FLOATS + 2 * SCALAR, 2 * FLOATS, 2 * FLOATS) == peak_of(step)


def test_backward_with_saved_activations(peak_of):
    """A square keeps its input for the backward pass, where two gradients and their sum meet."""
    weight = torch.ones(N, requires_grad=True)

    def step():
        hidden = weight * 2
        (hidden * hidden).sum().backward()

    # Weight, hidden, a gradient for each factor, and their sum; then hidden is gone and doubling makes one more.
    assert 5 * FLOATS + 2 * SCALAR == peak_of(step)[0]


def test_reference_cycle_counts_until_it_is_collected(peak_of):
    """A cycle keeps its tensors until the collector comes by."""

    def step():
        loop = [torch.zeros(N)]
        loop.append(loop)
        del loop
        gc.collect()
        torch.zeros(N)

    assert (FLOATS, 0, 0) == peak_of(step)


# Each part has a block of its own; the two rows of indices of a "coo" tensor are one part.
POINTERS, PLAIN, VALUES = torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), torch.ones(3)
SPARSE = {
    "coo": (lambda: torch.sparse_coo_tensor(torch.stack([PLAIN, PLAIN]), VALUES, (2, 2)), 2 * SCALAR),
    "csr": (lambda: torch.sparse_csr_tensor(POINTERS, PLAIN, VALUES, (2, 2)), 3 * SCALAR),
    "csc": (lambda: torch.sparse_csc_tensor(POINTERS, PLAIN, VALUES, (2, 2)), 3 * SCALAR),
    "bsr": (lambda: torch.sparse_bsr_tensor(POINTERS, PLAIN, VALUES.view(3, 1, 1), (2, 2)), 3 * SCALAR),
    "bsc": (lambda: torch.sparse_bsc_tensor(POINTERS, PLAIN, VALUES.view(3, 1, 1), (2, 2)), 3 * SCALAR),
}


@pytest.mark.parametrize("layout", sorted(SPARSE))
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch calls some of these layouts a beta
def test_sparse_tensors_count_their_parts(peak_of, layout):
    """A sparse tensor counts with its indices and its values, and its copy with as much again."""
    make, size = SPARSE[layout]
    tensor = make()
    assert (2 * size, size, size) == peak_of(tensor.clone)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
def test_layouts_without_storages_do_not_count(peak_of):
    """A tensor in a library's own layout has no storage that could be counted, and is no error."""
    assert (FLOATS, FLOATS, FLOATS) == peak_of(WEIGHT.to_mkldnn)


def test_other_devices_do_not_count(peak_of):
    """Tensors without memory here are not counted."""
    assert (0, 0, 0) == peak_of(lambda: torch.zeros(N, device="meta") + 1)


def test_values_are_the_same(peak_of):
    """Counting changes no result, keyword arguments included."""
    seen = []
    peak_of(lambda: seen.append(torch.full((3,), fill_value=2.0).sum(dim=0, keepdim=True)))
    assert [6.0] == seen[0].tolist()


def test_errors_pass_and_counting_goes_on(peak_of):
    """An operation's error reaches the step, and what it held is counted and freed."""

    def step():
        held = torch.zeros(N)
        with pytest.raises(RuntimeError, match=r"shape|size"):
            held.view(7, 7)

    assert (FLOATS, 0, 0) == peak_of(step)
