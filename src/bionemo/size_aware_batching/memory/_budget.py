"""A memory budget and its account."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from bionemo.size_aware_batching._bytes import format_bytes, parse_bytes
from bionemo.size_aware_batching._checks import check_int

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MemoryBudget"]


class MemoryBudget(int):
    """A number of bytes that remembers where it comes from; everywhere else it is an `int`.

    Attributes:
        device: what it is a budget of, for people to read.
        total_bytes: what the device has.
        outside_bytes: what is used there but not by this process's tensors: other processes, contexts, libraries.
        fragmentation_bytes: what the allocator was seen to take from the device beyond what it handed out.
        limit: as given: "90%", "16GiB" or bytes.
    """

    device: str
    total_bytes: int
    outside_bytes: int
    fragmentation_bytes: int
    limit: str | int

    @classmethod
    def of(
        cls, limit: str | int, *, device: str, total_bytes: int, outside_bytes: int, fragmentation_bytes: int = 0
    ) -> Self:
        """Work out a budget.

        Args:
            limit: a share of what is available ("90%"), or bytes ("16GiB", 17179869184).
            device: its name.
            total_bytes: what the device has.
            outside_bytes: what is in use there that this process's tensors cannot have.
            fragmentation_bytes: what the allocator needs beyond what it hands out.

        Raises:
            TypeError: `limit` is neither text nor an integer.
            ValueError: `limit` cannot be read, is not positive, or is more than is available.
        """
        available = max(total_bytes - outside_bytes - fragmentation_bytes, 0)
        count = _count(limit, available)
        if not 0 < count <= available:
            kept = f" and {format_bytes(fragmentation_bytes)} for fragmentation" if fragmentation_bytes else ""
            msg = (
                f"`limit` {limit!s:.40} must be positive and at most what {device} has, {format_bytes(available)} "
                f"({format_bytes(total_bytes)} less {format_bytes(outside_bytes)} used outside this process's tensors"
                f"{kept})"
            )
            raise ValueError(msg)
        budget = cls(count)
        budget.device, budget.limit = device, limit
        budget.total_bytes, budget.outside_bytes = total_bytes, outside_bytes
        budget.fragmentation_bytes = fragmentation_bytes
        return budget

    def account(self) -> str:
        """Say what was subtracted and why, one line each."""
        available = self.total_bytes - self.outside_bytes - self.fragmentation_bytes
        lines = [
            f"{self.device}: {format_bytes(self.total_bytes)} in all",
            f"- {format_bytes(self.outside_bytes)} used outside this process's tensors",
        ]
        if self.fragmentation_bytes:
            lines.append(f"- {format_bytes(self.fragmentation_bytes)} for fragmentation, as measured")
        return "\n".join(
            [
                *lines,
                f"= {format_bytes(available)} available",
                f"- {format_bytes(available - self)} left free by the limit {self.limit}",
                f"= {format_bytes(self)} budget for peak allocated bytes",
            ]
        )


def _count(limit: Any, available: int) -> int:
    if isinstance(limit, str):
        percent = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", limit, re.ASCII)
        return int(available * Fraction(percent[1]) / 100) if percent else parse_bytes(limit)
    if isinstance(limit, float):
        msg = f"`limit` must be text or whole bytes, got the float {limit}; for a share write for example '90%'"
        raise TypeError(msg)
    return check_int("limit", limit, at_least=1)
