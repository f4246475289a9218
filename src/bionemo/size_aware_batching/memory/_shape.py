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

    Attributes:
        items: number of elements.
        longest: the largest size, as padded.
        total: the sum of sizes.
    """

    items: int
    longest: float
    total: float

    @classmethod
    def of(cls, sizes: Iterable[float]) -> BatchShape:
        """Return the shape of a batch of elements of these sizes.

        >>> BatchShape.of([3, 5, 4])
        BatchShape(items=3, longest=5, total=12)
        """
        # Plain numbers: sums of narrow integers would wrap.
        values = [size.item() if hasattr(size, "item") else size for size in sizes]
        return cls(len(values), max(values, default=0), sum(values))


def shape_table(features: Any) -> FloatArray:
    """Return shapes as an (n, 3) table of items, longest, total.

    Args:
        features: a `BatchShape`, a list of them, or an (n, 3) array.

    Raises:
        TypeError: the features are not numbers.
        ValueError: not three numbers each, or one is NaN, infinite or negative.
    """
    if isinstance(features, BatchShape):
        features = [features]
    try:
        table = np.asarray(features if isinstance(features, np.ndarray) else list(features), np.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        msg = f"`features` must be batch shapes (items, longest, total) in numbers: {error!s:.200}"
        raise TypeError(msg) from error
    except OverflowError as error:
        msg = "`features` must be finite and not negative"
        raise ValueError(msg) from error
    if table.size == 0:
        return np.empty((0, 3))
    if table.ndim != 2 or table.shape[1] != 3:
        msg = f"`features` must be batch shapes (items, longest, total), got an array of shape {table.shape}"
        raise ValueError(msg)
    good = (np.isfinite(table) & (table >= 0)).all(axis=1)
    if not good.all():
        index = int(np.flatnonzero(~good)[0])
        msg = f"`features` must be finite and not negative, got {table[index].tolist()} at index {index}"
        raise ValueError(msg)
    return table
