"""Where a run stopped: what is saved, and whether it belongs to the sampler that it is loaded into."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np

from bionemo.size_aware_batching.plan._cost import Price
from bionemo.size_aware_batching.plan._sizes import size_matrix

__all__ = ["Start", "decode_state", "encode_state", "fingerprint"]

_VERSION = 1
_CHUNK = 2**20
# Shapes that a cost is asked about, to tell it from another.
_ITEMS, _LONGEST = np.array([1, 3, 7, 64, 1024]), np.array([10, 1000, 100, 35, 8])


class Start(NamedTuple):
    """Where a pass begins.

    Attributes:
        epoch: of the pass.
        served: how many batches of its plan were served, on all ranks together.
        world_size: what that plan was made for.
        accumulate: likewise.
        before: (world size, accumulate, served) of the runs before, with other numbers of ranks, that served a part of
            this epoch.
    """

    epoch: int
    served: int
    world_size: int
    accumulate: int
    before: tuple[tuple[int, int, int], ...]


def fingerprint(sizes: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return what decides on the batches, in plain values: sizes by their hash, a cost by what it says of a few shapes.

    Args:
        sizes: as given to the sampler.
        settings: of `plan_batches`.
    """
    matrix = size_matrix(sizes)
    digest = hashlib.sha256(repr(matrix.shape).encode())
    kind = "<f8" if matrix.dtype.kind == "f" else "<i8"  # the same on every machine
    for begin in range(0, len(matrix), _CHUNK):
        digest.update(matrix[begin : begin + _CHUNK].astype(kind).tobytes())
    price = Price(settings["cost"], settings["budget"], matrix.shape[1])
    longest = np.repeat(_LONGEST[:, None], matrix.shape[1], axis=1)
    # With padding in them, or the sum of sizes could not be told from their padded area.
    costs = price.of(_ITEMS, longest, longest * (_ITEMS[:, None] // 2 + 1))
    plain = ("strategy", "window", "uniform", "max_items", "items_multiple_of", "oversized", "shuffle")
    return {
        "elements": len(matrix),
        "sizes": digest.hexdigest(),
        "budget": [float(budget) for budget in price.budgets],
        "cost": [f"{value:.6g}" for value in costs.ravel().tolist()],
        **{name: settings[name] for name in plain},
        "seed": settings["seed"],
    }


def encode_state(start: Start, prints: dict[str, Any]) -> dict[str, Any]:
    """Return a state as a new dict of plain values."""
    return {
        "version": _VERSION,
        "seed": prints["seed"],
        "epoch": start.epoch,
        "position": start.served,
        "world_size": start.world_size,
        "accumulate": start.accumulate,
        "before": [list(part) for part in start.before],
        "fingerprint": {name: list(v) if isinstance(v, list) else v for name, v in prints.items()},
    }


def decode_state(state: Any, prints: dict[str, Any]) -> Start:
    """Return where a state says to begin.

    Raises:
        TypeError: it is not a dict.
        ValueError: it is not a state of this kind, is of a newer version, or was made with other data or settings; the
            text names what differs, and both sides.
    """
    if not isinstance(state, dict):
        msg = f"a sampler's state must be a dict, got {type(state).__name__}"
        raise TypeError(msg)
    version = state.get("version")
    if version != _VERSION:
        msg = f"the state is of version {version!r:.40}; this release reads version {_VERSION}"
        raise ValueError(msg)
    theirs = state.get("fingerprint")
    theirs = theirs if isinstance(theirs, dict) else {}
    differ = [
        f"{name} ({_short(theirs.get(name))} in the state, {_short(ours)} here)"
        for name, ours in prints.items()
        if theirs.get(name) != ours
    ]
    if differ:
        msg = f"the state was made with other {', '.join(differ)}: batches would be lost or come twice"
        raise ValueError(msg)
    try:
        before = tuple((int(w), int(a), int(served)) for w, a, served in state["before"])
        epoch, position, world_size, accumulate = numbers = [
            state[name] for name in ("epoch", "position", "world_size", "accumulate")
        ]
        start = Start(epoch, position, world_size, accumulate, before)
        good = all(type(n) is int for n in numbers) and start.epoch >= 0
        parts = (*before, (start.world_size, start.accumulate, start.served))
        good = good and all(w >= 1 and a >= 1 and served >= 0 for w, a, served in parts)
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise ValueError("the state is damaged: it does not say which batches were served")
    return start


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:18]}...{text[-8:]}"
