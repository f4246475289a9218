"""Cutting a sequence of elements into batches, greedily: each takes all it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from bionemo.size_aware_batching._types import AnyArray, IntArray
    from bionemo.size_aware_batching.plan._cost import Price

__all__ = ["ItemRules", "cut", "cut_by_sum", "uniform_reach"]

_KINDS = {"sum": 0, "padded": 1, "polynomial": 2}
# Starts for which a user's function is asked at the same time; arrays of this size stay in the processor's cache.
_CHUNK = 2**15


class ItemRules(NamedTuple):
    """Limits on the number of elements in a batch."""

    max_items: int
    multiple_of: int


def cut_by_sum(sizes: AnyArray, limit: float, total: float) -> tuple[IntArray, Any]:
    """Cut a run of elements greedily where the running sum would pass the limit.

    Args:
        sizes: (n,) int64 or float64, each at most `limit`.
        limit: the largest sum; below 2^62 for integers.
        total: the sum of the batch that is open when the run begins.

    Returns:
        The positions at which a new batch begins, ascending, and the sum of the batch open at the end. Linear.
    """
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    starts = np.empty(sizes.size, np.int64)
    number = sizes.dtype.type
    count, total = _kernels.cut_by_sum(sizes, number(limit), number(total), starts)
    return starts[:count], total


def cut(matrix: AnyArray, price: Price, rules: ItemRules, first_items: int, *, ascending: bool) -> IntArray:
    """Cut a sequence greedily where the cost would pass the budget.

    Args:
        matrix: (n, measures) sizes in the order of the sequence; no element alone is over budget.
        price: cost and budget.
        rules: limits on the number of elements.
        first_items: the largest number of elements in the first batch.
        ascending: whether the sizes never fall.

    Returns:
        (batches + 1,) positions, from 0 to n. Over ascending sizes no other cut has fewer batches (without a
        multiple of items). Linear; a user's function is asked about a dozen times for each element where sizes are
        ascending integers, else once or twice for each batch.
    """
    if price.kind == "function":
        if ascending and matrix.shape[1] == 1 and matrix.dtype.kind == "i":
            return _cut_ascending(matrix[:, 0], price, rules, first_items)
        return _cut_in_order(matrix, price, rules, first_items)
    from bionemo.size_aware_batching.plan import _kernels  # noqa: PLC0415

    floats = matrix.dtype.kind == "f" or price.kind == "polynomial"
    limits = price.limits.astype(np.float64) if floats else price.limits_for(matrix.dtype)
    ends = np.empty(len(matrix), np.int64)
    matrix, flat = np.ascontiguousarray(matrix), matrix.shape[1] == 1
    loop: Any = _kernels.cut_one if flat else _kernels.cut_several
    count = loop(
        matrix[:, 0] if flat else matrix,
        limits[0] if flat else limits,
        _KINDS[price.kind],
        price.multiple_of,
        price.extra,
        price.weights,
        (first_items, rules.max_items, rules.multiple_of),
        ends,
    )
    return np.concatenate([[0], ends[:count]])


def _cut_in_order(matrix: AnyArray, price: Price, rules: ItemRules, first_items: int) -> IntArray:
    """Ask the user's function about a batch of growing numbers of elements."""
    ends, guess, most = [0], 64, first_items
    while ends[-1] < len(matrix):
        taken, guess = 0, min(guess, most)
        while True:
            part = matrix[ends[-1] : ends[-1] + guess]
            items = np.arange(1, len(part) + 1)
            fits = price.fits(items, np.maximum.accumulate(part), np.cumsum(part, axis=0))
            taken = len(part) if fits.all() else int(fits.argmin())
            if taken < guess or guess >= most or ends[-1] + guess >= len(matrix):
                break
            guess = min(2 * guess, most)
        ends.append(ends[-1] + _rounded(np.int64(max(taken, 1)), rules))
        guess, most = 2 * taken + 1, rules.max_items
    return np.array(ends, np.int64)


def _cut_ascending(sizes: AnyArray, price: Price, rules: ItemRules, first_items: int) -> IntArray:
    """Ask the user's function for many starts at once, where the longest is the last and sums are differences."""
    n = sizes.size
    sums = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    ends, most = [0], first_items
    while ends[-1] < n:
        # The first batch of a chunk tells about how many elements the others take: later ones are no shorter.
        begin = ends[-1]
        first = _reach(np.array([begin]), sizes, sums, price, min(most, n))
        if most != rules.max_items or first[0] > _CHUNK // 2:
            ends.append(begin + int(_rounded(first[0], rules)))
            most = rules.max_items
            continue
        starts = np.arange(begin, min(begin + _CHUNK, n))
        taken = _rounded(_reach(starts, sizes, sums, price, min(most, int(first[0]))), rules).tolist()
        while ends[-1] < starts[-1] + 1:
            ends.append(ends[-1] + taken[ends[-1] - begin])
    return np.array(ends, np.int64)


def uniform_reach(sizes: AnyArray, price: Price, rules: ItemRules) -> IntArray:
    """Return how many elements of one size fit together, for each of several sizes.

    Args:
        sizes: (n, measures), each size once; none alone is over budget.
        price: cost and budget.
        rules: limits on the number of elements.
    """

    def fits(tried: IntArray, rows: IntArray) -> AnyArray:
        total = sizes[rows] * tried[:, None]
        # Adding fractions one by one may round up each time.
        return price.fits(
            tried, sizes[rows], total * (1 + tried[:, None] * 2.0**-52) if total.dtype.kind == "f" else total
        )

    return np.asarray(_rounded(_most_fitting(np.full(len(sizes), rules.max_items), fits), rules))


def _reach(starts: IntArray, sizes: AnyArray, sums: IntArray, price: Price, most: int) -> IntArray:
    """Return how many elements fit from each start of an ascending sequence."""

    def fits(tried: IntArray, rows: IntArray) -> AnyArray:
        ends = starts[rows] + tried
        return price.fits(tried, sizes[ends - 1][:, None], (sums[ends] - sums[starts[rows]])[:, None])

    return _most_fitting(np.minimum(sizes.size - starts, most), fits)


def _most_fitting(most: IntArray, fits: Callable[[IntArray, IntArray], AnyArray]) -> IntArray:
    """Return the largest numbers up to `most` that fit, taking 1 for granted, by halving steps.

    Args:
        most: (n,) at least 1.
        fits: called with numbers and the rows they belong to.
    """
    taken = np.ones(most.size, np.int64)
    step = 1 << max(int(most.max(initial=1)) - 1, 0).bit_length()
    while step > 0:
        rows = np.flatnonzero(taken + step <= most)
        if rows.size:
            good = rows[fits(taken[rows] + step, rows)]
            taken[good] += step
        step >>= 1
    return taken


def _rounded(items: Any, rules: ItemRules) -> Any:
    return np.where(items > rules.multiple_of, items - items % rules.multiple_of, items)
