"""From measured peaks to predicted bytes, in numpy alone."""

from __future__ import annotations

from bionemo.size_aware_batching.memory._budget import MemoryBudget
from bionemo.size_aware_batching.memory._model import MemoryModel
from bionemo.size_aware_batching.memory._profile import PeakRecord, Profile
from bionemo.size_aware_batching.memory._shape import BatchShape

__all__ = ["BatchShape", "MemoryBudget", "MemoryModel", "PeakRecord", "Profile"]
