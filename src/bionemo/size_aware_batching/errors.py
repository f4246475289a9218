"""Errors and warnings of this package; each is also one of Python's own, so callers can catch either."""

from __future__ import annotations

__all__ = [
    "ArgumentKindError",
    "FileFormatError",
    "NotIdentifiableError",
    "OutOfMemoryWarning",
    "OutOfRangeWarning",
    "OversizedError",
    "SizeofError",
    "SkippedElementsWarning",
    "SuspiciousSizesWarning",
]


class ArgumentKindError(TypeError, ValueError):
    """An argument is of the wrong kind.

    It is a `TypeError`, which it is by nature, and a `ValueError` too, which is what the documented
    `BucketBatchSampler` announces for these arguments.
    """


class FileFormatError(ValueError):
    """A file is not what it should be: damaged, foreign, or written by a newer version."""


class NotIdentifiableError(ValueError):
    """Measurements do not determine a memory model; the text says what to measure in addition."""


class OversizedError(ValueError):
    """An element alone is over the budget; the text names its index, its size and the budget."""


class SizeofError(RuntimeError):
    """Asking for an element's size failed; the original error is its `__cause__`."""


class OutOfMemoryWarning(UserWarning):
    """An element ran out of memory while it was measured and has no peak."""


class OutOfRangeWarning(UserWarning):
    """Elements lie in no bucket and are never served."""


class SkippedElementsWarning(UserWarning):
    """Elements over the limit were left out of a pass or of a plan."""


class SuspiciousSizesWarning(UserWarning):
    """All sizes are alike in a way that looks like the length of the wrong thing."""
