"""Which share of a plan is this process's: no other module asks for ranks, and nothing here communicates."""

from __future__ import annotations

import os
from typing import Any

from bionemo.size_aware_batching._checks import check_int

__all__ = ["resolve_rank"]


def resolve_rank(rank: Any, world_size: Any) -> tuple[int, int]:
    """Return rank and world size: as given, else of the process group, else of torchrun's environment, else 0 of 1.

    Args:
        rank: 0 to `world_size` - 1, or None together with `world_size`.
        world_size: number of ranks, or None.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: one is given without the other; there is no such rank; the environment says half or nonsense.
    """
    if (rank is None) != (world_size is None):
        given = "rank" if world_size is None else "world_size"
        msg = f"`rank` and `world_size` go together, got `{given}` alone"
        raise ValueError(msg)
    if rank is None:
        rank, world_size = _surroundings()
    world_size = check_int("world_size", world_size, at_least=1)
    rank = check_int("rank", rank, at_least=0)
    if rank >= world_size:
        msg = f"`rank` must be below `world_size`, got rank {rank} of {world_size}"
        raise ValueError(msg)
    return rank, world_size


def _surroundings() -> tuple[int, int]:
    import torch.distributed as dist  # noqa: PLC0415 - not every torch has it, and most programs do not need it

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    found = {name: os.environ.get(name, "").strip() for name in ("RANK", "WORLD_SIZE")}
    if not any(found.values()) or found == {"RANK": "", "WORLD_SIZE": "1"}:
        return 0, 1
    try:
        return int(found["RANK"]), int(found["WORLD_SIZE"])
    except ValueError:
        msg = (
            f"the environment has RANK={found['RANK']!r:.40} and WORLD_SIZE={found['WORLD_SIZE']!r:.40}: set both to "
            "integers or neither, or give `rank` and `world_size`"
        )
        raise ValueError(msg) from None
