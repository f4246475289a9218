"""The shape of a batch."""

import numpy as np
import pytest

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
