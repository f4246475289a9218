"""The generator `size_aware_batching`, held against its documented contract."""

import inspect
import itertools
from collections import OrderedDict
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from bionemo.size_aware_batching.errors import SizeofError, SkippedElementsWarning
from bionemo.size_aware_batching.sampler import size_aware_batching

PAIRS = [torch.tensor([first, first + 1]) for first in (1, 3, 5, 7, 9)]


class Once:
    """An iterable that counts how far it was read and how often it was started."""

    def __init__(self, elements):
        self.elements = elements
        self.starts = 0
        self.read = 0

    def __iter__(self):
        self.starts += 1
        for element in self.elements:
            self.read += 1
            yield element


class Loud:
    """An element whose repr is far too long for an error message."""

    def __repr__(self):
        return "Loud(" + "x" * 100_000 + ")"


def refuse(element):
    raise KeyError("no size known")


def identity(element):
    return element


def test_documented_example():
    """The documented data set of five pairs comes out as two stacked batches and a rest."""
    batches = list(size_aware_batching(PAIRS, torch.numel, 4, collate_fn=default_collate))
    printed = "[tensor([[1, 2], [3, 4]]), tensor([[5, 6], [7, 8]]), tensor([[9, 10]])]"
    assert "".join(printed.split()) == "".join(str(batches).split())
    assert [(2, 2), (2, 2), (1, 2)] == [tuple(batch.shape) for batch in batches]


def test_signature():
    """Parameters have the documented names, order and defaults."""
    parameters = inspect.signature(size_aware_batching).parameters
    expected = ["dataset", "sizeof", "max_total_size", "collate_fn", "info_logger", "warn_logger"]
    assert expected == list(parameters)
    assert [None, None, None] == [parameters[name].default for name in expected[3:]]


def test_without_collate_fn_a_batch_is_a_list_of_the_elements():
    """Batches are lists that hold the very elements of the data set."""
    first, second = size_aware_batching(["ab", "cd", "efg"], len, 4)
    assert (["ab", "cd"], ["efg"]) == (first, second)
    assert (list, list) == (type(first), type(second))


def test_collate_fn_makes_each_batch():
    """What `collate_fn` returns for a batch is what is yielded."""
    assert ["abcd", "efg"] == list(size_aware_batching(["ab", "cd", "efg"], len, 4, collate_fn="".join))


def test_result_is_an_iterator():
    """The call gives an iterator, not a list."""
    batches = size_aware_batching([1, 2], identity, 2)
    assert iter(batches) is batches
    assert [1] == next(batches)


@pytest.mark.parametrize(
    "sizeof",
    [
        pytest.param(lambda element: (3, 1, 2, 2)[element], id="callable"),
        pytest.param({0: 3, 1: 1, 2: 2, 3: 2}, id="dict"),
        pytest.param(OrderedDict(enumerate([3, 1, 2, 2])), id="mapping"),
        pytest.param([3, 1, 2, 2], id="list"),
        pytest.param((3, 1, 2, 2), id="tuple"),
        pytest.param(range(3, 7), id="range"),
        pytest.param(np.array([3, 1, 2, 2]), id="ndarray"),
        pytest.param(np.array([3, 1, 2, 2], dtype=np.uint8), id="uint8"),
        pytest.param(torch.tensor([3, 1, 2, 2]), id="tensor"),
        pytest.param(torch.tensor([3.0, 1.0, 2.0, 2.0]), id="float tensor"),
    ],
)
def test_kinds_of_sizeof(sizeof):
    """A callable is called with the element, a container is asked for the element."""
    sizes = [3, 4, 5, 6] if isinstance(sizeof, range) else [3, 1, 2, 2]
    expected = list(size_aware_batching(range(4), sizes.__getitem__, 7))
    assert expected == list(size_aware_batching(range(4), sizeof, 7))


def test_mapping_is_asked_for_the_element_itself():
    """Elements need not be numbers: a mapping has sizes by element."""
    lengths = {"ala": 3, "glycine": 7, "trp": 3}
    assert [["trp", "ala"], ["glycine"]] == list(size_aware_batching(["trp", "ala", "glycine"], lengths, 7))


def test_callable_sees_elements_once_and_in_order():
    """Each element's size is asked for exactly once, in the order of the data set."""
    asked = []

    def sizeof(element):
        asked.append(element)
        return 2

    list(size_aware_batching("abcde", sizeof, 5))
    assert list("abcde") == asked


def test_batches_fill_greedily_and_keep_order():
    """A batch closes only when the next element would exceed the limit, and equality fits."""
    assert [[1, 2, 3], [4, 2], [6], [1]] == list(size_aware_batching([1, 2, 3, 4, 2, 6, 1], identity, 6))


def test_data_set_is_read_in_one_pass():
    """The data set is iterated once from start to end."""
    dataset = Once([1, 2, 3, 4])
    list(size_aware_batching(dataset, identity, 4))
    assert (1, 4) == (dataset.starts, dataset.read)


def test_one_shot_iterator_as_data_set():
    """Data that can be iterated only once is enough."""
    assert [[1, 2], [3]] == list(size_aware_batching(iter([1, 2, 3]), identity, 3))


def test_never_reads_past_the_element_that_does_not_fit():
    """When a batch is yielded, at most one further element has been read."""
    dataset = Once([2, 2, 1, 3, 4, 4])
    batches = size_aware_batching(dataset, identity, 5)
    assert 0 == dataset.read
    seen = [(batch, dataset.read) for batch in batches]
    assert [([2, 2, 1], 4), ([3], 5), ([4], 6), ([4], 6)] == seen


def test_endless_data_set():
    """Batches of an endless stream come out one by one."""
    batches = size_aware_batching(itertools.count(), lambda _: 1, 3)
    assert [[0, 1, 2], [3, 4, 5]] == list(itertools.islice(batches, 2))


def test_empty_data_set_gives_no_batch():
    """No element means no batch, not an empty one."""
    assert [] == list(size_aware_batching([], identity, 3))


def test_element_over_the_limit_is_skipped_and_does_not_close_the_batch():
    """An oversized element is left out; its neighbours may share a batch."""
    messages = []
    batches = list(size_aware_batching([2, 9, 3, 1], identity, 5, warn_logger=messages.append))
    assert [[2, 3], [1]] == batches


def test_warn_logger_names_element_size_and_limit_then_counts():
    """`warn_logger` gets one message a skipped element and one with counts at the end."""
    messages = []
    sizes = {"ala": 3, "titin": 34350, "nebulin": 6669}
    batches = list(size_aware_batching(sizes, sizes, 1234, warn_logger=messages.append))
    assert [["ala"]] == batches
    assert 3 == len(messages)
    assert [True] * 3 == [word in messages[0] for word in ("titin", "34350", "1234")]
    assert [True] * 3 == [word in messages[1] for word in ("nebulin", "6669", "1234")]
    assert "2" in messages[2]


def test_warn_logger_hears_of_an_element_when_it_is_skipped():
    """The message about an element comes while the pass runs, not at its end."""
    messages = []
    batches = size_aware_batching([9, 1, 1, 1], identity, 2, warn_logger=messages.append)
    next(batches)
    assert 1 == len(messages)


def test_warn_logger_is_silent_when_all_fit():
    """Without a skipped element there is nothing to warn of."""
    messages = []
    list(size_aware_batching([1, 2, 3], identity, 3, warn_logger=messages.append))
    assert [] == messages


def test_skipped_elements_are_reported_without_a_logger():
    """One Python warning with the count at the end of the pass stands in for a missing `warn_logger`."""
    batches = size_aware_batching([9, 1, 1, 8, 7], identity, 1)
    assert [1] == next(batches)
    with pytest.warns(SkippedElementsWarning, match="3") as caught:
        assert [[1]] == list(batches)
    assert 1 == len(caught)


def test_info_logger_gets_one_summary_at_the_end():
    """The summary comes once, after the last batch."""
    messages = []
    batches = size_aware_batching([1, 2, 3], identity, 3, info_logger=messages.append)
    next(batches)
    next(batches)
    assert [] == messages
    assert None is next(batches, None)
    assert [str] == [type(message) for message in messages]
    assert "2" in messages[0]


def test_info_logger_gets_a_summary_of_an_empty_pass():
    """A pass without a batch ends with a summary too."""
    messages = []
    list(size_aware_batching([], identity, 3, info_logger=messages.append))
    assert 1 == len(messages)


def test_zero_limit_serves_only_elements_of_size_zero():
    """The generator accepts a limit of 0, over which everything larger is skipped."""
    messages = []
    assert [[0, 0]] == list(size_aware_batching([0, 3, 0], identity, 0, warn_logger=messages.append))
    assert 2 == len(messages)


@pytest.mark.parametrize("limit", ["4", None, True, False, 4j, [4], float("nan"), -1, -0.5, -(2**70)])
@pytest.mark.parametrize("sizeof", [identity, None])
def test_bad_limit_is_refused_at_the_call(limit, sizeof):
    """A limit that is no number, NaN or negative is a ValueError at the call, before `sizeof` is checked."""
    with pytest.raises(ValueError, match="max_total_size"):
        size_aware_batching([1], sizeof, limit)


@pytest.mark.parametrize("limit", [3, 3.0, np.int8(3), np.uint64(3), np.float32(3), Fraction(3), float("inf"), 2**100])
def test_real_limits_are_accepted(limit):
    """Any real number is a limit, infinity included."""
    assert [1, 2] == next(size_aware_batching([1, 2], identity, limit))


@pytest.mark.parametrize("sizeof", [None, 3, "123", b"123", {1, 2}, 1.5, object(), iter([1])])
def test_sizeof_of_the_wrong_kind(sizeof):
    """What is neither callable nor mapping nor sequence is a TypeError at the call."""
    with pytest.raises(TypeError, match=r"^sizeof must be a callable"):
        size_aware_batching([1], sizeof, 4)


def test_error_inside_sizeof_is_chained():
    """A failing `sizeof` gives a RuntimeError that shows the element and keeps the original as its cause."""
    with pytest.raises(RuntimeError, match=r"^sizeof raises error at data='glycine'") as caught:
        list(size_aware_batching(["glycine"], refuse, 4))
    assert SizeofError is caught.type
    assert KeyError is type(caught.value.__cause__)


def test_error_inside_sizeof_shortens_the_element():
    """An element with an endless repr does not flood the error."""
    with pytest.raises(RuntimeError, match=r"^sizeof raises error at data=") as caught:
        list(size_aware_batching([Loud()], refuse, 4))
    assert len(str(caught.value)) < 1000


def test_batches_before_a_failing_element_are_served():
    """An error at a later element leaves complete earlier batches alone."""
    sizes = {"a": 4, "b": 4}
    batches = size_aware_batching("abc", lambda element: sizes[element], 4)
    assert ["a"] == next(batches)
    with pytest.raises(RuntimeError, match=r"^sizeof raises error at data='c'"):
        next(batches)


@pytest.mark.parametrize("size", ["3", None, [3], (3,)])
def test_size_that_cannot_be_compared(size):
    """Python's own TypeError passes through when a size and the limit have no order."""
    with pytest.raises(TypeError, match="'>' not supported"):
        list(size_aware_batching([0], lambda _: size, 4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), -1, -0.25])
@pytest.mark.parametrize("kind", ["callable", "list", "ndarray", "tensor"])
def test_sizes_that_are_no_sizes(bad, kind):
    """A NaN, infinite or negative size is a ValueError that names its position."""
    sizes = [1.0, 2.0, bad, 1.0]
    sizeof = {
        "callable": sizes.__getitem__,
        "list": sizes,
        "ndarray": np.array(sizes),
        "tensor": torch.tensor(sizes),
    }
    with pytest.raises(ValueError, match=r"\b2\b"):
        list(size_aware_batching(range(4), sizeof[kind], 100))


@pytest.mark.parametrize("sizes", [np.array([200, 100], np.uint8), torch.tensor([200, 100], dtype=torch.uint8)])
def test_small_integer_types_do_not_wrap(sizes):
    """In uint8 the sum 200 + 100 is 300, not 44."""
    assert [[0], [1]] == list(size_aware_batching([0, 1], sizes, 250))
    assert [[0], [1]] == list(size_aware_batching([0, 1], lambda index: sizes[index], 250))


def test_large_integers_are_exact():
    """Sums beyond what a float or 64 bits can hold are still exact."""
    assert [[2**53], [1]] == list(size_aware_batching([2**53, 1], identity, 2**53))
    assert [[2**70, 1], [2**70]] == list(size_aware_batching([2**70, 1, 2**70], identity, 2**71))


def test_fractions_are_sizes():
    """Any comparable and additive number serves as a size."""
    third = Fraction(1, 3)
    assert [[third] * 3, [third]] == list(size_aware_batching([third] * 4, identity, 1))
