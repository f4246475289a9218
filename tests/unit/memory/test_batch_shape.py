"""The shape of a batch."""

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching.memory import BatchShape
from bionemo.size_aware_batching.memory._shape import shape_table


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ([3, 5, 4], (3, 5, 12)),
        ([], (0, 0, 0)),
        ([7], (1, 7, 7)),
        ((0.5, 0.25), (2, 0.5, 0.75)),
        (range(4), (4, 3, 6)),
        (np.array([200, 100]), (2, 200, 300)),
    ],
)
def test_shape_of_sizes(sizes, shape):
    """Items, longest and total are the number, the maximum and the sum; nothing has zeros."""
    assert shape == BatchShape.of(sizes)


def test_shape_of_a_generator():
    """Sizes that can be read once are read once."""
    assert (2, 5, 8) == BatchShape.of(map(len, ["abc", "abcde"]))


def test_shape_of_small_integers_does_not_wrap():
    """A sum of sizes in a small integer type is as large as it is."""
    assert (2, 200, 300) == BatchShape.of(np.array([200, 100], dtype=np.uint8))


def test_shape_of_an_array_is_of_plain_numbers():
    """Sizes from an array give Python's own numbers, which JSON can hold."""
    assert [int, int, int] == [type(number) for number in BatchShape.of(np.array([3, 4]))]


ROWS = [(3, 2), (5, 9), (4, 1)]


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        (ROWS, (3, (5, 9), (12, 12))),
        ([[3, 2], [5, 9], [4, 1]], (3, (5, 9), (12, 12))),
        (iter(ROWS), (3, (5, 9), (12, 12))),
        (np.array(ROWS), (3, (5, 9), (12, 12))),
        (torch.tensor(ROWS), (3, (5, 9), (12, 12))),
        ([np.array(row) for row in ROWS], (3, (5, 9), (12, 12))),
        ([(1, 2.5, 0)], (1, (1, 2.5, 0), (1, 2.5, 0))),
        ([(1, 20, 300), (2, 10, 400)], (2, (2, 20, 400), (3, 30, 700))),
        ([(7,), (8,)], (2, (8,), (15,))),
    ],
)
def test_shape_of_sizes_in_several_measures(sizes, shape):
    """Each measure has a largest size and a sum of its own, in the order of the rows."""
    assert shape == BatchShape.of(sizes)


def test_shape_of_several_measures_is_of_plain_numbers():
    """Rows of an array give tuples of Python's own numbers, however narrow the array's were."""
    shape = BatchShape.of(np.array([(200, 1), (100, 2)], dtype=np.uint8))
    assert (2, (200, 2), (300, 3)) == shape
    assert (tuple, tuple) == (type(shape.longest), type(shape.total))
    assert {int} == {type(number) for number in (shape.items, *shape.longest, *shape.total)}


def test_shape_of_rows_of_small_integers_does_not_wrap():
    """A sum of sizes in a small integer type is as large as it is, in rows too."""
    rows = [tuple(row) for row in np.array([(200, 1), (100, 2)], dtype=np.uint8)]
    assert (2, (200, 2), (300, 3)) == BatchShape.of(rows)


@pytest.mark.parametrize("sizes", [[(1, 2), (3,)], [(1,), (2, 3)], [(1, 2), (3, 4), (5, 6, 7)], [np.ones(2), [1.0]]])
def test_shape_of_rows_of_different_lengths(sizes):
    """Elements with different numbers of measures are refused."""
    with pytest.raises(ValueError, match=r"zip\(\) argument \d is (short|long)er than argument"):
        BatchShape.of(sizes)


@pytest.mark.parametrize(
    "features",
    [
        [BatchShape(1, 2, 2), BatchShape(3, 4, 9)],
        [(1, 2, 2), (3, 4, 9)],
        [[1.0, 2.0, 2.0], [3.0, 4.0, 9.0]],
        np.array([[1, 2, 2], [3, 4, 9]]),
        iter([(1, 2, 2), (3, 4, 9)]),
    ],
)
def test_table_of_shapes(features):
    """Shapes, tuples, lists, arrays and generators of them give the same table of doubles."""
    table = shape_table(features)
    assert [[1, 2, 2], [3, 4, 9]] == table.tolist()
    assert np.float64 == table.dtype


@pytest.mark.parametrize("features", [[], np.empty((0, 3)), iter([])])
def test_table_of_nothing(features):
    """No shape gives a table of no rows and three columns."""
    assert (0, 3) == shape_table(features).shape


def test_table_of_one_shape():
    """One `BatchShape` is a table of one row."""
    assert [[3, 4, 9]] == shape_table(BatchShape(3, 4, 9)).tolist()


@pytest.mark.parametrize(
    "features",
    [
        [BatchShape(1, (2, 7), (2, 7)), BatchShape(3, (4, 5), (9, 12))],
        iter([BatchShape(1, (2, 7), (2, 7)), BatchShape(3, (4, 5), (9, 12))]),
        [BatchShape(1, [2, 7], [2, 7]), BatchShape(3, np.array([4, 5]), torch.tensor([9, 12]))],
        [(1, 2, 7, 2, 7), (3, 4, 5, 9, 12)],
        [BatchShape(1, (2, 7), (2, 7)), (3, 4, 5, 9, 12)],
        np.array([(1, 2, 7, 2, 7), (3, 4, 5, 9, 12)]),
    ],
)
def test_table_of_shapes_in_two_measures(features):
    """All longest come before all totals, whatever holds them."""
    table = shape_table(features)
    assert [[1, 2, 7, 2, 7], [3, 4, 5, 9, 12]] == table.tolist()
    assert np.float64 == table.dtype


def test_table_of_shapes_in_three_measures():
    """Three measures make seven columns."""
    assert [[2, 2, 20, 400, 3, 30, 700]] == shape_table(BatchShape.of([(1, 20, 300), (2, 10, 400)])).tolist()


def test_table_of_one_measure_in_tuples():
    """A single measure is the same with and without a tuple around it."""
    assert [[2, 8, 15], [2, 8, 15]] == shape_table([BatchShape(2, (8,), (15,)), BatchShape(2, 8, 15)]).tolist()


@pytest.mark.parametrize(
    ("features", "error", "text"),
    [
        ([BatchShape(1, 2, 2), BatchShape(1, (2, 3), (2, 3))], TypeError, "in numbers: .*inhomogeneous"),
        ([BatchShape(1, (2, 3), (2, 3)), (1, 2, 2)], TypeError, "in numbers: .*inhomogeneous"),
        ([BatchShape(1, (2, 3), (2, 3)), BatchShape.of([])], TypeError, "in numbers: .*inhomogeneous"),
        ([BatchShape(1, (2, 3), 5)], TypeError, "longest and total have 2 and 1 measures"),
        ([BatchShape(1, 2, (2, 3))], TypeError, "longest and total have 1 and 2 measures"),
        ([BatchShape(1, (2, 3), (5,))], TypeError, "longest and total have 2 and 1 measures"),
        ([BatchShape(1, (2, 3, 4), (5,))], TypeError, "longest and total have 3 and 1 measures"),
        ([BatchShape(1, (), ())], ValueError, r"got an array of shape \(1, 1\)"),
        ([(1, (2, 3), (2, 3))], TypeError, "in numbers: .*inhomogeneous"),
        ([(1, 2, 3, 4)], ValueError, r"got an array of shape \(1, 4\)"),
        (np.ones((5, 6)), ValueError, r"got an array of shape \(5, 6\)"),
        ([(1, 2, 3, 4, 5), (1, 2, 3, float("nan"), 5)], ValueError, r"got \[1.0, 2.0, 3.0, nan, 5.0\] at index 1"),
        ([BatchShape(1, (2, -3), (2, 3))], ValueError, r"got \[1.0, 2.0, -3.0, 2.0, 3.0\] at index 0"),
        ([BatchShape(1, (2, "many"), (2, 3))], TypeError, "in numbers: could not convert"),
    ],
)
def test_shapes_that_make_no_table(features, error, text):
    """Shapes in different numbers of measures, or with an incomplete or impossible one, are refused."""
    with pytest.raises(error, match=f"`features` must be .*{text}"):
        shape_table(features)


def test_longest_and_total_in_different_numbers_of_measures():
    """Longest and total have a number for each measure; numbers are not moved from one to the other."""
    with pytest.raises((TypeError, ValueError), match="`features` must be batch shapes"):
        shape_table([BatchShape(1, (2, 3, 4), (5,))])


def test_shape_table_of_a_step_that_returned_nothing():
    """A step that forgot to return its shape is told so."""
    with pytest.raises(TypeError, match="got None: does the step return its shape"):
        shape_table([None, None])
