"""The command line."""

from __future__ import annotations

from bionemo.size_aware_batching.cli._main import main

__all__ = ["main"]
