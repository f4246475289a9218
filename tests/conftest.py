"""Fixtures that several folders share."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(scope="module")
def small_heap():
    """Keep what exists already out of the garbage collector's way, which every measured step calls."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
