"""Files that are replaced whole or not at all, and JSON documents that say what they are."""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bionemo.size_aware_batching.errors import FileFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["read_document", "replace_file", "write_document"]


@contextmanager
def replace_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` that takes its place when the block ends without an error."""
    target = Path(path)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes private files; give this one the mode that open() would have given it.
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_document(path: str | os.PathLike[str], kind: str, version: int, body: dict[str, Any]) -> None:
    """Write a JSON object whose first two keys say what it is and in which version."""
    text = json.dumps({"kind": kind, "version": version, **body}, indent=1, allow_nan=False)
    with replace_file(path) as file:
        file.write(text.encode() + b"\n")


def read_document(path: str | os.PathLike[str], kind: str, version: int) -> dict[str, Any]:
    """Read what `write_document` wrote.

    Raises:
        FileFormatError: not JSON, of another kind, or of a version this release does not know.
        OSError: the file cannot be read.
    """
    try:
        body = json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not a JSON file: {error}"
        raise FileFormatError(msg) from error
    if not isinstance(body, dict) or body.get("kind") != kind:
        msg = f"{path} is not a {kind} file"
        raise FileFormatError(msg)
    found = body.get("version")
    if not isinstance(found, int) or isinstance(found, bool) or not 1 <= found <= version:
        msg = f"{path} is a {kind} file of version {found!r:.20}; this release reads versions up to {version}"
        raise FileFormatError(msg)
    return body
