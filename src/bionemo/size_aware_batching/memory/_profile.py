"""Measured peaks, one record per element that was tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, overload

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._files import read_document, write_document
from bionemo.size_aware_batching.errors import FileFormatError
from bionemo.size_aware_batching.memory._shape import BatchShape

if TYPE_CHECKING:
    import os

__all__ = ["PeakRecord", "Profile"]

_KIND, _VERSION = "size-aware-batching profile", 1


@dataclass(frozen=True, slots=True)
class PeakRecord:
    """One element's measurement.

    Attributes:
        index: position in the dataset.
        features: what `work` returned, usually a `BatchShape`; None where it ran out of memory.
        peak_bytes: the allocator's high-water mark during the step; None where it ran out of memory.
        reserved_bytes: what the allocator had taken from the device at most; None on a CPU.
        device_bytes: what the device reported as used after the step, other processes included; None on a CPU.
        baseline_bytes: allocated when the step began.
        status: "ok", or "oom" where the element ran out of memory.
        seconds: duration of the step.
    """

    index: int
    features: Any
    peak_bytes: int | None
    reserved_bytes: int | None
    device_bytes: int | None
    baseline_bytes: int
    status: Literal["ok", "oom"]
    seconds: float


@dataclass(frozen=True, slots=True)
class Profile(Sequence[PeakRecord]):
    """The records of a run of `measure_peaks`, in the order of its dataset.

    Attributes:
        records: one for each element.
        device: where it was measured, for people to read.
        warmup: steps that ran first and are in no record.
    """

    records: tuple[PeakRecord, ...]
    device: str
    warmup: int = 0

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, position: int) -> PeakRecord: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[PeakRecord, ...]: ...
    def __getitem__(self, position: int | slice) -> PeakRecord | tuple[PeakRecord, ...]:
        return self.records[position]

    def __iter__(self) -> Iterator[PeakRecord]:
        return iter(self.records)

    @property
    def measured(self) -> tuple[PeakRecord, ...]:
        """The records with a peak: all that did not run out of memory."""
        return tuple(record for record in self.records if record.status == "ok")

    @property
    def features(self) -> list[Any]:
        """What `work` returned for each measured element."""
        return [record.features for record in self.measured]

    @property
    def peak_bytes(self) -> list[int]:
        """The peak of each measured element, in bytes."""
        return [record.peak_bytes for record in self.measured if record.peak_bytes is not None]

    def summary(self) -> str:
        """Describe the profile in a few lines: counts, range of peaks, and what was excluded."""
        lines = [f"{len(self.measured)} of {len(self)} elements measured on {self.device}"]
        lines[0] += f", after {self.warmup} warm-up steps that are not counted" if self.warmup else ", no warm-up"
        peaks = self.peak_bytes
        if peaks:
            lines.append(f"peak allocated: {format_bytes(min(peaks))} to {format_bytes(max(peaks))}")
        reserved = [record.reserved_bytes for record in self.measured if record.reserved_bytes is not None]
        shown = [record.device_bytes for record in self.measured if record.device_bytes is not None]
        if reserved:
            lines.append(f"peak reserved by the allocator: up to {format_bytes(max(reserved))}")
        if shown:
            lines.append(f"used on the device, all processes: up to {format_bytes(max(shown))}")
        failed = [record.index for record in self.records if record.status == "oom"]
        if failed:
            listed = ", ".join(map(str, failed[:10])) + (", ..." if len(failed) > 10 else "")
            lines.append(f"out of memory at {listed}")
        return "\n".join(lines)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile as JSON; the file is replaced whole or not at all.

        Raises:
            TypeError: the features are not numbers, strings or lists of them.
        """
        records = [asdict(record) for record in self.records]
        for document, record in zip(records, self.records, strict=True):
            shape = isinstance(record.features, BatchShape)
            document["features"] = {"shape": list(record.features)} if shape else record.features
        body = {"device": self.device, "warmup": self.warmup, "records": records}
        write_document(path, _KIND, _VERSION, body)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile written by `save`.

        Raises:
            FileFormatError: the file is damaged, foreign or of a newer version.
        """
        body = read_document(path, _KIND, _VERSION)
        try:
            records = tuple(_record(document) for document in body["records"])
            return cls(records, str(body["device"]), int(body["warmup"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            msg = f"{path} is a damaged {_KIND} file: {error!r}"
            raise FileFormatError(msg) from error


def _record(document: dict[str, Any]) -> PeakRecord:
    """Rebuild a record, refusing what no measurement could have written."""
    features = document["features"]
    if isinstance(features, dict):
        features = BatchShape(*features["shape"])
    values = {field.name: document[field.name] for field in fields(PeakRecord)} | {"features": features}
    record = PeakRecord(**values)
    measured = record.status == "ok"
    counts = [record.index, record.baseline_bytes] + ([record.peak_bytes] if measured else [])
    if record.status not in ("ok", "oom") or not all(type(n) is int and n >= 0 for n in counts):
        raise ValueError(document)
    if not math.isfinite(record.seconds):
        raise ValueError(document)
    return record
