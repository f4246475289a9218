"""What a batch looks like to the memory model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bionemo.size_aware_batching._types import FloatArray

__all__ = ["BatchShape", "shape_table"]


class BatchShape(NamedTuple):
    """The shape of a batch: what ties measuring, modelling and planning together.

    Elements may have sizes in several measures (atoms and bonds); then `longest` and `total` are tuples.

    Attributes:
        items: number of elements.
        longest: the largest size, as padded.
        total: the sum of sizes.
    """

    items: int
    longest: Any  # a number, or a tuple: typed as either it could not be computed with
    total: Any

    @classmethod
    def of(cls, sizes: Iterable[Any]) -> BatchShape:
        """Return the shape of a batch of elements of these sizes.

        Args:
            sizes: a number for each element, or a row of numbers, one per measure.

        Raises:
            ValueError: rows of different lengths.

        >>> BatchShape.of([3, 5, 4])
        BatchShape(items=3, longest=5, total=12)
        >>> BatchShape.of([(3, 2), (5, 9)])
        BatchShape(items=2, longest=(5, 9), total=(8, 11))
        """
        # Plain numbers: sums of narrow integers would wrap.
        values = [_plain(size) for size in sizes]
        if not values or not isinstance(values[0], list):
            return cls(len(values), max(values, default=0), sum(values))
        measures = list(zip(*values, strict=True))
        return cls(len(values), tuple(map(max, measures)), tuple(map(sum, measures)))


def shape_table(features: Any) -> FloatArray:
    """Return shapes as an (n, 1 + 2 measures) table: items, then longest and then total in each measure.

    Args:
        features: a `BatchShape`, a list of them, or such a table.

    Raises:
        TypeError: the features are not numbers.
        ValueError: not that many numbers each, or one is NaN, infinite or negative.
    """
    if isinstance(features, BatchShape):
        features = [features]
    if isinstance(features, (list, tuple)) and any(row is None for row in features):
        msg = "`features` must be batch shapes (items, longest, total), got None: does the step return its shape?"
        raise TypeError(msg)
    try:
        rows = features if isinstance(features, np.ndarray) else [_flat(row) for row in features]
        table = np.asarray(rows, np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"`features` must be batch shapes (items, longest, total) in numbers: {error!s:.200}"
        raise TypeError(msg) from error
    except OverflowError as error:
        msg = "`features` must be finite and not negative"
        raise ValueError(msg) from error
    if table.size == 0:
        return np.empty((0, 3))
    if table.ndim != 2 or table.shape[1] < 3 or table.shape[1] % 2 == 0:
        msg = f"`features` must be batch shapes (items, longest, total), got an array of shape {table.shape}"
        raise ValueError(msg)
    good = (np.isfinite(table) & (table >= 0)).all(axis=1)
    if not good.all():
        index = int(np.flatnonzero(~good)[0])
        msg = f"`features` must be finite and not negative, got {table[index].tolist()} at index {index}"
        raise ValueError(msg)
    return table


def _plain(size: Any) -> Any:
    """Return plain numbers for those of numpy and torch, in rows too."""
    if hasattr(size, "tolist"):
        return size.tolist()
    return [_plain(value) for value in size] if isinstance(size, (list, tuple)) else size


def _flat(row: Any) -> Any:
    """Put the measures of a shape side by side."""
    if not isinstance(row, BatchShape) or np.ndim(row.longest) == 0 == np.ndim(row.total):
        return row
    if np.shape(row.longest) != np.shape(row.total):
        msg = f"longest and total have {np.size(row.longest)} and {np.size(row.total)} measures"
        raise ValueError(msg)
    return [row.items, *row.longest, *row.total]
