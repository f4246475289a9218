"""Errors and warnings of this package; each is also one of Python's own, so callers can catch either."""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArgumentKindError",
    "BatchTooLargeError",
    "FileFormatError",
    "FragmentationWarning",
    "MemoryDriftWarning",
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


class BatchTooLargeError(RuntimeError):
    """A batch ran out of memory however it was split.

    Attributes:
        indices: the batch.
        sizes: its elements' sizes, where they were given.
    """

    def __init__(self, message: str, indices: list[Any], sizes: list[Any] | None = None) -> None:
        """Take the text, and which batch it is about."""
        super().__init__(message)
        self.indices, self.sizes = indices, sizes

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with all three arguments: errors travel between processes."""
        return type(self), (str(self), self.indices, self.sizes)


class FileFormatError(ValueError):
    """A file is not what it should be: damaged, foreign, or written by a newer version."""


class NotIdentifiableError(ValueError):
    """Measurements do not determine a memory model; the text says what to measure in addition."""


class OversizedError(ValueError):
    """An element alone is over the budget; the text names its index, its size and the budget."""


class SizeofError(RuntimeError):
    """Asking for an element's size failed; the original error is its `__cause__`."""


class FragmentationWarning(UserWarning):
    """The allocator is set up so that batches of many shapes leave it no room; the text says what to set."""


class MemoryDriftWarning(UserWarning):
    """Steps need another amount of memory than the model says."""


class OutOfMemoryWarning(UserWarning):
    """An element ran out of memory while it was measured and has no peak."""


class OutOfRangeWarning(UserWarning):
    """Elements lie in no bucket and are never served."""


class SkippedElementsWarning(UserWarning):
    """Elements over the limit were left out of a pass or of a plan."""


class SuspiciousSizesWarning(UserWarning):
    """All sizes are alike in a way that looks like the length of the wrong thing."""
