"""`split_on_oom` on one process: gradients, parts, weights, errors, memory."""

import dataclasses
import gc
import logging
import math
import pickle
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from bionemo.size_aware_batching.errors import BatchTooLargeError
from bionemo.size_aware_batching.measure._split import SplitOutcome, _Step, split_on_oom

pytestmark = pytest.mark.usefixtures("small_heap")
OutOfMemory = torch.cuda.OutOfMemoryError
LENGTHS = [5, 1, 3, 8, 2, 2, 7, 1, 4, 6, 1, 3]
EVERYTHING = list(range(len(LENGTHS)))
TOKENS = [torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in LENGTHS]


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()


def mean_over_elements(model, part):
    """A mean over elements of means over their tokens."""
    return torch.stack([model(TOKENS[i]).square().mean() for i in part]).mean()


def mean_over_tokens(model, part):
    return model(torch.cat([TOKENS[i] for i in part])).square().mean()


def count_tokens(part):
    return sum(LENGTHS[i] for i in part)


def raise_out_of_memory(*_):
    raise OutOfMemory("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee the documentation.")


def step_of(model, limit, loss=mean_over_elements, error=None):
    """Return a step that runs out of memory after its backward when a part has more elements than a limit."""

    def backward(part, weight):
        weighted = loss(model, part) * weight
        weighted.backward()
        if len(part) > limit:
            raise error or OutOfMemory("CUDA out of memory")
        return weighted.detach()

    return backward


def gradients_of(model):
    return [parameter.grad for parameter in model.parameters()]


def whole_gradients(loss=mean_over_elements, batch=EVERYTHING):
    model = make_model()
    loss(model, batch).backward()
    return gradients_of(model)


def parts_after(failures, batch, **settings):
    """Return the parts and weights of the attempt that succeeds after so many that ran out of memory at once."""
    seen = []

    def backward(part, weight):
        seen.append((part, weight))
        if len(seen) <= failures:
            raise_out_of_memory()

    outcome = split_on_oom(batch, backward, make_model(), **{"max_splits": failures} | settings)
    assert (len(seen) - failures, failures) == (outcome.parts, outcome.failures)
    return seen[failures:]


def test_batch_that_fits_runs_whole():
    """A batch that fits is given to `backward` once, as it is, with weight 1."""
    seen, batch = [], [3, 4]
    outcome = split_on_oom(batch, lambda *arguments: seen.append(arguments) or "value", make_model())
    assert [(batch, 1.0)] == seen
    assert batch is seen[0][0]
    assert SplitOutcome(parts=1, values=["value"], failures=0) == outcome


@pytest.mark.parametrize(("limit", "parts"), [(99, 1), (12, 1), (11, 2), (6, 2), (5, 4), (3, 4), (2, 8)])
@pytest.mark.parametrize(
    ("loss", "weigh"), [(mean_over_elements, len), (mean_over_tokens, count_tokens)], ids=["elements", "tokens"]
)
def test_gradient_is_that_of_the_whole_batch(loss, weigh, limit, parts):
    """However often it is split, the gradient and the sum of the values are the whole batch's."""
    model = make_model()
    outcome = split_on_oom(EVERYTHING, step_of(model, limit, loss), model, weigh=weigh)
    assert (parts, round(math.log2(parts))) == (outcome.parts, outcome.failures)
    assert parts == len(outcome.values)
    torch.testing.assert_close(whole_gradients(loss), gradients_of(model), rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(loss(make_model(), EVERYTHING).detach(), sum(outcome.values), rtol=1e-12, atol=0)


def test_weighing_elements_where_tokens_count_is_another_gradient():
    """A mean over tokens needs parts weighed by tokens: weighed by elements it is not the whole batch's."""
    model = make_model()
    split_on_oom(EVERYTHING, step_of(model, 6, mean_over_tokens), model)
    assert not torch.allclose(whole_gradients(mean_over_tokens)[0], model[0].weight.grad, rtol=1e-6)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemory("CUDA out of memory"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:66] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
    ids=["torch", "driver", "cpu", "cublas", "python"],
)
def test_every_text_of_running_out_of_memory_splits(error):
    """All errors that say that memory ran out are answered by splitting."""
    model = make_model()
    assert 2 == split_on_oom(EVERYTHING, step_of(model, 6, error=error), model).parts
    torch.testing.assert_close(whole_gradients(), gradients_of(model), rtol=1e-12, atol=1e-14)


def test_out_of_memory_in_the_middle_of_backward():
    """What backward accumulated before memory ran out in it is not counted."""
    model, partial = make_model(), []

    def backward(part, weight):
        hidden = model[1](model[0](torch.cat([TOKENS[i] for i in part])))
        if len(part) > 4:
            hidden.register_hook(lambda _: partial.append(model[2].weight.grad.clone()) or raise_out_of_memory())
        (model[2](hidden).square().mean() * weight).backward()

    outcome = split_on_oom(EVERYTHING, backward, model, weigh=count_tokens)
    assert (4, 2) == (outcome.parts, len(partial))
    assert all(gradient.any() for gradient in partial)
    torch.testing.assert_close(whole_gradients(mean_over_tokens), gradients_of(model), rtol=1e-12, atol=1e-14)


def test_out_of_memory_in_a_later_part():
    """Parts that went through before another one ran out of memory are run again, and counted once."""
    model, calls = make_model(), []

    def backward(part, weight):
        calls.append(list(part))
        (mean_over_elements(model, part) * weight).backward()
        if len(part) > 3 and 11 in part:
            raise_out_of_memory()

    assert 4 == split_on_oom(EVERYTHING, backward, model).parts
    assert [EVERYTHING, EVERYTHING[:6], EVERYTHING[6:]] == calls[:3]
    torch.testing.assert_close(whole_gradients(), gradients_of(model), rtol=1e-12, atol=1e-14)


def test_gradients_of_earlier_batches_are_kept():
    """Gradients from before stay out of the attempts, and the new ones are added into the same tensors."""
    model = make_model()
    mean_over_elements(model, [0, 1, 2]).backward()
    before = gradients_of(model)
    copies = [gradient.clone() for gradient in before]
    fits = step_of(model, 3)

    def backward(part, weight):
        if part[0] == 0:
            assert [None] * 4 == gradients_of(model)
        return fits(part, weight)

    split_on_oom(EVERYTHING, backward, model)
    assert all(old is new for old, new in zip(before, gradients_of(model), strict=True))
    expected = [old + new for old, new in zip(copies, whole_gradients(), strict=True)]
    torch.testing.assert_close(expected, gradients_of(model), rtol=1e-12, atol=1e-14)


def test_parameters_that_get_no_gradient():
    """A parameter without a new gradient keeps its old one bit for bit, or None."""
    model = make_model()
    kept = torch.randn(1, dtype=torch.float64)
    model[2].bias.grad, bits = kept, kept.clone()
    model[0].bias.requires_grad_(requires_grad=False)

    def backward(part, weight):
        ((model[0](TOKENS[part[0]]) @ model[2].weight.T).mean() * weight).backward()
        if len(part) > 1:
            raise_out_of_memory()

    split_on_oom([3, 4], backward, model)
    assert kept is model[2].bias.grad
    assert torch.equal(bits, kept)
    assert model[0].bias.grad is None
    assert model[0].weight.grad.any()


def test_training_in_parts_is_training():
    """Steps that were split lead an optimizer where whole steps lead it."""
    models = [make_model(), make_model()]
    for model, limit in zip(models, [99, 2], strict=True):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for indices in ([0, 1, 2, 3, 4], [5, 6, 7], [8, 9, 10, 11]):
            optimizer.zero_grad()
            split_on_oom(indices, step_of(model, limit), model)
            optimizer.step()
    for whole, parted in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(whole, parted, rtol=1e-7, atol=1e-9)


def test_layers_with_statistics_count_every_attempt():
    """Statistics of BatchNorm move on with failed attempts, too, as the documentation says."""
    model = torch.nn.BatchNorm1d(3).double()

    def backward(part, weight):
        (model(torch.cat([TOKENS[i] for i in part])).square().mean() * weight).backward()
        if len(part) > 6:
            raise_out_of_memory()

    split_on_oom(EVERYTHING, backward, model)
    assert 3 == model.num_batches_tracked.item()


def test_model_without_parameters():
    """A model without parameters has no gradients to keep, and its steps split all the same."""
    seen = []

    def backward(part, _):
        seen.append(part)
        if len(part) > 1:
            raise_out_of_memory()

    assert SplitOutcome(2, [None, None], 1) == split_on_oom([1, 2], backward, torch.nn.Identity())
    assert [[1, 2], [1], [2]] == seen


PARTS = {
    "even": (2, range(8), None, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    "odd": (1, range(7), None, [[0, 1, 2], [3, 4, 5, 6]]),
    "fewer elements than parts": (3, range(5), None, [[0], [1], [2], [3], [4]]),
    "three in four": (2, range(3), None, [[0], [1], [2]]),
    "uneven": (2, range(6), None, [[0], [1, 2], [3], [4, 5]]),
    "a large one at the end": (1, range(4), [1, 1, 1, 9], [[0, 1, 2], [3]]),
    "a large one at the beginning": (2, range(6), [9.5, 1, 1, 1, 1, 1], [[0], [1], [2], [3, 4, 5]]),
    "a large one within": (1, range(5), [2, 2, 20, 2, 2], [[0, 1], [2, 3, 4]]),
    "sizes of nothing": (1, range(4), [0, 0, 0, 0], [[0, 1], [2, 3]]),
    "one size": (1, range(4), [0, 0, 5, 0], [[0], [1, 2, 3]]),
    "small ones at the end": (2, range(4), [1, 0, 0, 0], [[0], [1], [2], [3]]),
}


@pytest.mark.parametrize("case", sorted(PARTS))
def test_parts_are_alike(case):
    """Parts are contiguous, never empty, and near-equal in number or, where sizes are given, in their sum."""
    failures, batch, sizes, expected = PARTS[case]
    assert expected == [part for part, _ in parts_after(failures, list(batch), sizes=sizes)]


def cut(batch, number, sizes=None):
    return _Step(batch, None, len, sizes, len(batch))._cut(number)


@given(st.lists(st.integers(0, 1000) | st.floats(0, 1e6), min_size=1, max_size=40), st.data())
def test_parts_by_sizes(sizes, data):
    """No part exceeds an equal share by more than the largest size, all have elements, and together they are all."""
    batch = list(range(len(sizes)))
    number = data.draw(st.integers(1, len(batch)))
    parts = cut(batch, number, np.array(sizes))
    assert number == len(parts)
    assert all(parts)
    assert batch == [index for part in parts for index in part]
    room = sum(sizes) / number + max(sizes)
    assert all(sum(sizes[index] for index in part) <= room * (1 + 1e-9) for part in parts)


@given(st.data(), st.integers(1, 200))
def test_parts_by_number(data, count):
    """Without sizes, parts differ by one element at most."""
    lengths = {len(part) for part in cut(range(count), data.draw(st.integers(1, count)))}
    assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(
    "batch",
    [[5, 6, 7, 8], (5, 6, 7, 8), range(5, 9), torch.tensor([5, 6, 7, 8]), np.array([5, 6, 7, 8])],
    ids=lambda batch: type(batch).__name__,
)
def test_batches_that_can_be_sliced(batch):
    """Parts are slices of the batch: lists of a list, tensors of a tensor, arrays of an array."""
    parts = [part for part, _ in parts_after(1, batch)]
    assert [type(batch)] * 2 == [type(part) for part in parts]
    assert [[5, 6], [7, 8]] == [[int(index) for index in part] for part in parts]


def test_batch_of_data():
    """A batch may be the data itself."""
    parts = parts_after(1, torch.arange(12.0).reshape(4, 3))
    assert [(2, 3), (2, 3)] == [tuple(part.shape) for part, _ in parts]


@pytest.mark.parametrize("sizes", [[1, 1, 9], (1, 1, 9), np.array([1, 1, 9.0]), torch.tensor([1, 1, 9])], ids=type)
def test_kinds_of_sizes(sizes):
    """Sizes may be a list, a tuple, an array or a tensor."""
    assert [[0, 1], [2]] == [part for part, _ in parts_after(1, [0, 1, 2], sizes=sizes)]


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32, torch.tensor], ids=lambda kind: kind.__name__)
def test_weights_are_shares_of_what_the_whole_weighs(kind):
    """A part's weight is a plain float, its share of the batch's own, whatever kind of number `weigh` returns."""
    weights = [weight for _, weight in parts_after(1, [0, 3, 4, 6], weigh=lambda part: kind(count_tokens(part)))]
    assert [float, float] == [type(weight) for weight in weights]
    assert pytest.approx([13 / 22, 9 / 22]) == weights


def give_up(batch=EVERYTHING, limit=0, **settings):
    """Return the error of a batch that never fits, and its model, whose gradients were ones."""
    model = make_model()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = gradients_of(model)
    with pytest.raises(BatchTooLargeError, match="does not fit into memory") as caught:
        split_on_oom(batch, step_of(model, limit), model, **settings)
    assert all(old is new for old, new in zip(before, gradients_of(model), strict=True))
    return caught.value, model


@pytest.mark.parametrize("max_splits", [0, 1, 3, np.int64(2)])
def test_giving_up_after_so_many_splits(max_splits):
    """After `max_splits` doublings the error says what was tried, and gradients from before are back, bit for bit."""
    error, model = give_up(max_splits=max_splits)
    assert f"(elements: 12, parts: up to {2**max_splits}, given up here)" in str(error)
    assert "first indices [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]; plan smaller batches or raise `max_splits`" in str(error)
    assert str(error).endswith("Last error: CUDA out of memory")
    assert all(torch.equal(torch.ones_like(gradient), gradient) for gradient in gradients_of(model))
    assert (EVERYTHING, None) == (error.indices, error.sizes)


@pytest.mark.parametrize(("count", "parts"), [(1, 1), (2, 2), (3, 3), (5, 5)])
def test_giving_up_on_single_elements(count, parts):
    """Elements that do not fit alone end it, however many splits are allowed."""
    error, _ = give_up(EVERYTHING[:count], max_splits=50)
    assert f"(elements: {count}, parts: up to {parts}, given up here)" in str(error)
    assert "plan smaller batches or leave the largest elements out" in str(error)


def test_error_names_the_largest_sizes():
    """Where sizes were given, the error's text has the largest and the error has all."""
    error, _ = give_up(np.array(EVERYTHING[:6]), sizes=np.array([5, 1, 3, 8, 2, 2]))
    assert "first indices [0, 1, 2, 3, 4, 5]; largest sizes [8, 5, 3, 2, 2]; plan" in str(error)
    assert ([0, 1, 2, 3, 4, 5], [5, 1, 3, 8, 2, 2]) == (error.indices, error.sizes)
    assert {int} == {type(index) for index in error.indices}


def test_error_does_not_show_data():
    """A batch of data is in the error but not in its text."""
    model = make_model()
    with pytest.raises(BatchTooLargeError, match=r"given up here\); plan smaller") as caught:
        split_on_oom(["secret", "data"], raise_out_of_memory, model)
    assert "secret" not in str(caught.value)
    assert ["secret", "data"] == caught.value.indices


def test_error_travels_between_processes():
    """The error can be pickled with what it knows."""
    error, _ = give_up(sizes=LENGTHS)
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert (str(error), error.indices, error.sizes) == (str(copy), copy.indices, copy.sizes)


def test_error_has_no_cause():
    """The error that gives up is not chained to the ones that it is about, whose frames hold tensors."""
    error, _ = give_up()
    assert (None, None) == (error.__cause__, error.__context__)


def test_nothing_of_an_attempt_stays_alive():
    """When the next attempt begins, and when the error is raised, every tensor of the last attempt is gone."""
    model, references, alive = make_model(), [], []

    def backward(part, weight):
        if part[0] == 0:
            alive.append(sum(reference() is not None for reference in references))
        hidden = model[0](TOKENS[part[0]])
        loop = [hidden]
        loop.append(loop)
        loss = model[2](model[1](hidden)).mean() * weight
        loss.backward()
        references.extend(weakref.ref(tensor) for tensor in (hidden, loss, *gradients_of(model)))
        if part[-1] == 11:
            raise_out_of_memory()
        return hidden

    gc.disable()
    try:
        with pytest.raises(BatchTooLargeError, match=r"Tried to allocate 2\.00 GiB\.$") as caught:
            split_on_oom(EVERYTHING, backward, model, max_splits=2)
    finally:
        gc.enable()
    assert [0, 0, 0] == alive
    assert 6 * (1 + 2 + 4) == len(references)
    assert [] == [reference for reference in references if reference() is not None]
    assert EVERYTHING == caught.value.indices


def raising(model, *errors):
    """Return a step that raises one error after the other, each with gradients made."""
    errors = iter(errors)

    def backward(part, weight):
        (mean_over_elements(model, part) * weight).backward()
        raise next(errors)

    return backward


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("failures", [0, 1, 2])
def test_other_errors_pass_through(kind, failures):
    """Any other error, in whichever attempt, comes through as it is, and gradients from before are back."""
    model = make_model()
    mean_over_elements(model, [0, 1]).backward()
    before = gradients_of(model)
    bits = [gradient.clone() for gradient in before]
    error = kind("broken")
    step = raising(model, *(OutOfMemory() for _ in range(failures)), error)
    with pytest.raises(kind, match=r"^broken$") as caught:
        split_on_oom(EVERYTHING, step, model)
    assert error is caught.value
    assert all(old is new for old, new in zip(before, gradients_of(model), strict=True))
    assert all(torch.equal(old, new) for old, new in zip(bits, before, strict=True))


def test_failed_attempts_are_logged(caplog, capsys):
    """Each attempt that ran out of memory leaves a warning with one line of its error, and nothing is printed."""
    step = raising(make_model(), OutOfMemory("CUDA out of memory.\nMuch more"), MemoryError(), ValueError("broken"))
    with caplog.at_level(logging.DEBUG, "bionemo"), pytest.raises(ValueError, match="broken"):
        split_on_oom(EVERYTHING, step, make_model())
    expected = [
        "a step on 12 elements in 1 parts ran out of memory: CUDA out of memory.",
        "a step on 12 elements in 2 parts ran out of memory: MemoryError",
    ]
    assert expected == [record.message for record in caplog.records]
    assert {("WARNING", "bionemo.size_aware_batching.measure._split")} == {
        (record.levelname, record.name) for record in caplog.records
    }
    assert ("", "") == capsys.readouterr()


def test_cache_of_an_accelerator_is_emptied(monkeypatch):
    """Before it tries again, what the allocator of the parameters' device keeps is given back."""
    emptied = []

    class Module:
        @staticmethod
        def empty_cache():
            emptied.append(len(seen))

    seen = []

    def backward(part, _):
        seen.append(part)
        if len(part) > 1:
            raise_out_of_memory()

    model = torch.nn.Linear(2, 2, device="meta")
    monkeypatch.setattr(torch, "get_device_module", {"meta": Module}.get)
    split_on_oom([1, 2, 3, 4], backward, model)
    assert [1, 2] == emptied


def test_outcome_is_a_value():
    """An outcome cannot be changed, and shows what it is."""
    outcome = SplitOutcome(1, [2], 0)
    assert "SplitOutcome(parts=1, values=[2], failures=0)" == repr(outcome)
    with pytest.raises(dataclasses.FrozenInstanceError, match="parts"):
        outcome.parts = 3


BAD_WEIGHTS = {
    "zero": (lambda _: 0, ValueError, "`weigh` must return a positive number, got 0 for 12 of 12 elements"),
    "negative": (lambda _: -2.5, ValueError, "`weigh` must return a positive number, got -2.5 for 12 of 12"),
    "NaN": (lambda _: math.nan, ValueError, "`weigh` must return a positive number, got nan"),
    "infinite": (lambda _: torch.tensor(torch.inf), ValueError, "`weigh` must return a positive number, got inf"),
    "None": (lambda _: None, TypeError, "`weigh` must return a number, got NoneType"),
    "text": (str, TypeError, "`weigh` must return a number, got str"),
    "a part's is zero": (lambda part: len(part) - 6, ValueError, "must return a positive number, got 0 for 6 of 12"),
    "does not add up": (lambda part: len(part) + 1, ValueError, "`weigh` must add up, got 14 for 2 parts and 13 for"),
    "averages": (lambda _: 4, ValueError, "`weigh` must add up, got 8 for 2 parts and 4 for the whole"),
}


@pytest.mark.parametrize("case", sorted(BAD_WEIGHTS))
def test_weights_must_be_positive_and_add_up(case):
    """Weights that are no shares of a whole are an error, before a part runs with them."""
    weigh, error, text = BAD_WEIGHTS[case]
    model = make_model()
    with pytest.raises(error, match=text):
        split_on_oom(EVERYTHING, step_of(model, 6), model, weigh=weigh)
    assert [None] * 4 == gradients_of(model)


def test_weights_may_be_rounded():
    """Weights that add up within the rounding of float32 do."""
    roots = np.sqrt(np.arange(1, 13, dtype=np.float32))
    weights = [weight for _, weight in parts_after(2, EVERYTHING, weigh=lambda part: roots[part].sum())]
    assert 0 < abs(sum(weights) - 1) < 1e-6


class Stream:
    """Something with a length and no slices."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise IndexError


BAD_ARGUMENTS = {
    "batch is empty": ({"batch": []}, ValueError, "`batch` must have one element at least, got none"),
    "batch is a number": ({"batch": 5}, TypeError, "`batch` must be a sequence that can be sliced, got int"),
    "batch is None": ({"batch": None}, TypeError, "`batch` must be a sequence that can be sliced, got NoneType"),
    "batch is a set": ({"batch": {1, 2}}, TypeError, "`batch` must be a sequence that can be sliced, got set"),
    "batch is a mapping": ({"batch": {"x": 1}}, TypeError, "`batch` must be a sequence that can be sliced, got dict"),
    "batch is a generator": ({"batch": iter([1])}, TypeError, "`batch` must be a sequence .* got list_iterator"),
    "batch is a scalar": ({"batch": torch.tensor(1)}, TypeError, "`batch` must be a sequence .* got Tensor"),
    "batch has no slices": ({"batch": Stream()}, TypeError, "`batch` must be a sequence .* got Stream"),
    "backward is no function": ({"backward": 5}, TypeError, "`backward` must be callable, got int"),
    "weigh is no function": ({"weigh": [1, 2]}, TypeError, "`weigh` must be callable, got list"),
    "model is no module": ({"model": [torch.zeros(1)]}, TypeError, "`model` must be a torch.nn.Module, got list"),
    "max_splits is negative": ({"max_splits": -1}, ValueError, "`max_splits` must be at least 0, got -1"),
    "max_splits is a fraction": ({"max_splits": 1.5}, TypeError, "`max_splits` must be an integer, got float"),
    "max_splits is a bool": ({"max_splits": True}, TypeError, "`max_splits` must be an integer, got bool"),
    "sizes are too few": ({"sizes": [1]}, ValueError, "`sizes` must have a number for each .*, got 1 for 2"),
    "sizes are none": ({"sizes": []}, ValueError, "`sizes` must have a number for each .*, got 0 for 2"),
    "sizes are NaN": ({"sizes": [1, math.nan]}, ValueError, "`sizes` must be finite and not .*, got nan at index 1"),
    "sizes are negative": ({"sizes": [-1, 1]}, ValueError, "`sizes` must be finite and not .*, got -1 at index 0"),
    "sizes are a number": ({"sizes": 5}, TypeError, "`sizes` must be numbers in one dimension, got int"),
    "sizes are a scalar": ({"sizes": torch.tensor(5)}, TypeError, "`sizes` must be numbers in one .*, got Tensor"),
    "sizes are text": ({"sizes": "ab"}, TypeError, "`sizes` must be numbers in one dimension, got str"),
    "sizes are a table": ({"sizes": [[1], [2]]}, TypeError, "`sizes` must be numbers in one dimension, got list"),
    "sizes are ragged": ({"sizes": [[1], 2]}, TypeError, "`sizes` must be numbers in one dimension, got list"),
    "sizes are bools": ({"sizes": [True, False]}, TypeError, "`sizes` must be numbers in one dimension, got list"),
}


@pytest.mark.parametrize("case", sorted(BAD_ARGUMENTS))
def test_arguments_are_checked_before_a_step(case):
    """A wrong argument is an error that names it, before a step runs; gradients stay as they are."""
    change, error, text = BAD_ARGUMENTS[case]
    model = make_model()
    kept = model[0].bias.grad = torch.ones(4, dtype=torch.float64)
    arguments = {"batch": [1, 2], "backward": lambda *_: pytest.fail("ran a step"), "model": model}
    with pytest.raises(error, match=text):
        split_on_oom(**arguments | change)
    assert kept is model[0].bias.grad


def wrapped(module_name):
    """Return a model of a class that another library defines."""
    return torch.nn.Sequential(type("Wrapper", (torch.nn.Module,), {"__module__": module_name})())


def with_optimizer_in_backward():
    model = make_model()
    model[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    return model


UNFIT = {
    "FSDP": (lambda: wrapped("torch.distributed.fsdp.fully_sharded_data_parallel"), "a wrapper that synchronises"),
    "DeepSpeed": (lambda: wrapped("deepspeed.runtime.engine"), "a wrapper that synchronises by itself"),
    "an optimizer in backward": (with_optimizer_in_backward, "hooks that act as gradients accumulate"),
}


@pytest.mark.parametrize("case", sorted(UNFIT))
def test_models_whose_steps_cannot_be_split(case):
    """A model that acts in forward or backward by itself is refused."""
    make, text = UNFIT[case]
    with pytest.raises(TypeError, match=f"`model` must not have {text}.*: its steps cannot be split"):
        split_on_oom([1, 2], lambda *_: pytest.fail("ran a step"), make())


def test_sync_batch_norm_of_one_process():
    """Layers that would communicate are fine where there is nobody to talk to."""
    model = torch.nn.Sequential(torch.nn.SyncBatchNorm(3))
    assert 1 == split_on_oom([1, 2], lambda *_: None, model).parts


@pytest.fixture
def lone_group(tmp_path, monkeypatch):
    """Start torch.distributed with this process alone."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("lone_group")
@pytest.mark.parametrize("buffers", [False, True])
def test_one_rank_with_distributed_data_parallel(buffers):
    """A wrapped model on one rank is split like any other, and synchronises again afterwards."""
    inner = make_model()
    inner.append(torch.nn.BatchNorm1d(1).double() if buffers else torch.nn.Identity())
    model = DistributedDataParallel(inner.eval())
    outcome = split_on_oom(EVERYTHING, step_of(model, 5, mean_over_tokens), model, weigh=count_tokens)
    plain = make_model().append(torch.nn.BatchNorm1d(1).double().eval() if buffers else torch.nn.Identity())
    mean_over_tokens(plain, EVERYTHING).backward()
    assert (4, 2) == (outcome.parts, outcome.failures)
    torch.testing.assert_close(gradients_of(plain), gradients_of(inner), rtol=1e-12, atol=1e-14)
    assert (True, True) == (model.require_backward_grad_sync, model.require_forward_param_sync)


def ddp(**settings):
    return DistributedDataParallel(torch.nn.Linear(3, 1), **settings)


UNFIT_DDP = {
    "static graph": (lambda: ddp(static_graph=True), "a DistributedDataParallel with a static graph"),
    "two": (lambda: torch.nn.ModuleList([ddp(), ddp()]), "more than one DistributedDataParallel"),
}


@pytest.mark.usefixtures("lone_group")
@pytest.mark.parametrize("case", sorted(UNFIT_DDP))
def test_kinds_of_distributed_data_parallel_that_cannot_be_split(case):
    """Wrappers that communicate in backward whatever they are told are refused."""
    make, text = UNFIT_DDP[case]
    with pytest.raises(TypeError, match=f"`model` must not have {text}"):
        split_on_oom([1, 2], lambda *_: pytest.fail("ran a step"), make())


@pytest.mark.usefixtures("lone_group")
def test_distributed_data_parallel_within_join():
    """Within `join()` each forward communicates, so the step is refused."""
    model = ddp()
    with model.join(), pytest.raises(TypeError, match=r"delayed reduction or join\(\)"):
        split_on_oom([1, 2], lambda *_: pytest.fail("ran a step"), model)


@pytest.mark.usefixtures("lone_group")
def test_group_of_distributed_data_parallel():
    """`group` may repeat the wrapper's own group and be no other."""
    model, other = ddp(), torch.distributed.new_group([0])
    split_on_oom([1, 2], lambda *_: None, model, group=torch.distributed.group.WORLD)
    with pytest.raises(ValueError, match="`group` must be left out or be that of the DistributedDataParallel"):
        split_on_oom([1, 2], lambda *_: pytest.fail("ran a step"), model, group=other)


@pytest.mark.usefixtures("lone_group")
def test_rank_outside_the_group():
    """A rank that `group` does not have cannot decide with it."""
    with pytest.raises(ValueError, match="`group` must contain this rank"):
        split_on_oom([1], lambda *_: None, make_model(), group=torch.distributed.GroupMember.NON_GROUP_MEMBER)
