"""Measured peaks, one record per element that was tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, overload

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._files import read_document, write_document
from bionemo.size_aware_batching.errors import FileFormatError
from bionemo.size_aware_batching.memory._features import decode_features, encode_features

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
        fragmentation_fraction: what the allocator needs beyond the peak of a large step, as a share of the peak.
        drift_bytes: by how much peaks may be higher than those of the records, which began with an empty cache, when
            steps of other shapes come before.
    """

    records: tuple[PeakRecord, ...]
    device: str
    warmup: int = 0
    fragmentation_fraction: float = 0.0
    drift_bytes: int = 0

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
        if self.fragmentation_fraction or self.drift_bytes:
            lines.append(
                f"beyond a large peak, when steps follow each other: {format_bytes(self.drift_bytes)} allocated, "
                f"{self.fragmentation_fraction:.1%} reserved"
            )
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
            TypeError: features are not made of numbers, text, None, lists and dicts with text as keys.
            ValueError: a number is NaN or infinite.
        """
        records = []
        for record in self.records:
            document = {field.name: getattr(record, field.name) for field in fields(PeakRecord)}
            records.append(document | {"features": encode_features(record.features, record.index)})
        body = {"device": self.device, "warmup": self.warmup, "records": records}
        body |= {"fragmentation_fraction": self.fragmentation_fraction, "drift_bytes": self.drift_bytes}
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
            warmup, device = body["warmup"], body["device"]
            beyond, drift = body["fragmentation_fraction"], body["drift_bytes"]
            if not (_is_count(warmup) and isinstance(device, str) and _is_amount(beyond) and _is_count(drift)):
                raise ValueError(warmup)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            msg = f"{path} is a damaged {_KIND} file: {type(error).__name__}"
            raise FileFormatError(msg) from error
        return cls(records, device, warmup, float(beyond), drift)


def _record(document: dict[str, Any]) -> PeakRecord:
    """Rebuild a record, refusing what no measurement could have written."""
    values = {field.name: document[field.name] for field in fields(PeakRecord)}
    record = PeakRecord(**values | {"features": decode_features(values["features"])})
    counts: list[Any] = [record.index, record.baseline_bytes]
    counts += [n for n in (record.reserved_bytes, record.device_bytes) if n is not None]
    if record.status == "ok":
        counts.append(record.peak_bytes)
    elif record.status != "oom" or record.peak_bytes is not None or record.features is not None:
        raise ValueError(record.index)
    if not _is_amount(record.seconds) or not all(map(_is_count, counts)):
        raise ValueError(record.index)
    return record


def _is_amount(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2.0**62


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
