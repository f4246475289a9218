"""`PeakMonitor`: what training steps really need, beside what a memory model said they would."""

from __future__ import annotations

import logging
import math
import os
import time
import warnings
from collections import deque
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bionemo.size_aware_batching._bytes import format_bytes
from bionemo.size_aware_batching._checks import check_int, kind_of
from bionemo.size_aware_batching.errors import MemoryDriftWarning
from bionemo.size_aware_batching.measure._drift import Drift
from bionemo.size_aware_batching.measure._meter import device_name, meter_for, present_device
from bionemo.size_aware_batching.measure._oom import is_out_of_memory
from bionemo.size_aware_batching.memory import MemoryModel, PeakRecord, Profile

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from typing_extensions import Self

__all__ = ["PeakMonitor"]

_log = logging.getLogger(__name__)
# A thousand records or so are a few hundred kilobytes of JSON: written this often, they cost no training time.
_STEPS_PER_SAVE = 500
# As many as `measure_peaks` runs to warm up: they make the optimizer's state and the libraries' workspaces.
_COLD = 2


class PeakMonitor:
    """Records the peak memory of every training step, and warns when a model no longer predicts it.

    Two things are watched, and each warns once until it has recovered:

    - peaks above the model's bound, when so many in the steps so far have a probability below 0.001 at the model's
      coverage, or at once when a peak is above the bound by more than another whole margin. Recovered after
      1 / (1 - coverage) steps in a row below the bound, at least `window`.
    - the median of observed over predicted peaks in the last `window` steps, when it is off 1 by more than
      `tolerance`. Recovered when it is off by half of that at most.

    No cache is emptied and no device waited for, so on an accelerator a record's `seconds` are the host's alone. On a
    CPU all operations inside `with monitor` are counted, which slows them down.

    Args:
        device: where the steps run: a CPU, CUDA or another accelerator whose module counts peaks.
        model: a fitted `MemoryModel`, or a regressor whose `predict` takes (n, 1 + 2 measures) rows of a `BatchShape`
            (else a list of features); bounds are checked where it has `upper_bound` and `coverage` too. None records.
        log: a file to write the profile to, as JSON: every 500 steps, and when the `with` block ends. It is replaced.
        keep: how many steps are kept, the last ones; older ones are still counted in the summary.
        window: how many steps the median is taken of.
        tolerance: relative; by default the larger of 0.02 and three times the model's largest held-out error.

    Attributes:
        model: as given.
        steps: how many steps were recorded, those that ran out of memory among them.

    >>> import torch
    >>> from bionemo.size_aware_batching.memory import BatchShape
    >>> layer = torch.nn.Linear(1000, 1000)
    >>> monitor = PeakMonitor("cpu")
    >>> with monitor:
    ...     for n in (1, 10):
    ...         with monitor.step(BatchShape(items=n, longest=1000, total=n * 1000)):
    ...             layer(torch.zeros(n, 1000)).sum().backward()
    >>> print(monitor.summary())
    2 steps on cpu
    peaks: ... MiB to ... MiB
    """

    def __init__(
        self,
        device: torch.device | str,
        model: Any = None,
        *,
        log: str | os.PathLike[str] | None = None,
        keep: int = 10_000,
        window: int = 50,
        tolerance: float | None = None,
    ) -> None:
        """Take the settings; nothing is watched yet.

        Raises:
            TypeError: an argument is of the wrong kind.
            ValueError: the device is absent or does not count peaks; the model is not fitted; `keep` or `window` is
                below 1, `tolerance` not positive and finite; the folder of `log` does not exist.
        """
        target = present_device(device)
        self.model, self._meter, self._device = model, meter_for(target), device_name(target)
        self._log_path = None if log is None else _check_log(log)
        self._records: deque[PeakRecord] = deque(maxlen=check_int("keep", keep, at_least=1))
        window = check_int("window", window, at_least=1)
        _check_tolerance(tolerance)
        self._drift = Drift(model, window, tolerance) if model is not None else None
        self.steps = self._failed = self._highest = 0
        self._lowest, self._time = math.inf, 0.0
        self._stack, self._inside, self._begun = ExitStack(), False, False

    def __enter__(self) -> Self:
        """Start to watch the device.

        Raises:
            RuntimeError: it is watched already.
        """
        if self._inside:
            raise RuntimeError("this PeakMonitor is entered already: one `with monitor` is around all steps")
        self._stack.enter_context(self._meter.watching())
        self._inside = True
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Stop watching, and write the log; whatever happens to it, an error of the training comes first."""
        self._stack.close()
        self._inside = self._begun = False
        self._save(must=error is None)

    @contextmanager
    def step(self, shape: Any) -> Iterator[None]:
        """Measure a step: `begin_step` and `end_step` around the block.

        A step that runs out of memory is recorded without a peak. No other error leaves a record; all go on.
        """
        self.begin_step()
        try:
            yield
        except BaseException as error:
            if self._begun and is_out_of_memory(error):
                # As text: a log record that held the error would hold the step's tensors.
                _log.warning("step %d of shape %.100r ran out of memory: %.200s", self.steps, shape, str(error))
                self._record(None, "oom")
            self._begun = False
            raise
        # From here out: this generator, contextlib's `__exit__`, the caller.
        self._end(shape, stacklevel=4)

    def begin_step(self) -> None:
        """Begin a step; one that was begun before and did not end is forgotten.

        Raises:
            RuntimeError: outside of `with monitor`.
        """
        if not self._inside:
            raise RuntimeError("a step begins inside `with monitor`, which watches the device: put it around the loop")
        self._meter.begin()
        self._begun, self._time = True, time.perf_counter()

    def end_step(self, shape: Any) -> None:
        """End a step: record its peak and compare it with the model's prediction.

        Args:
            shape: what describes the step's memory to the model, usually a `BatchShape`.

        Raises:
            RuntimeError: no step was begun.
            Exception: what the model raises about the shape.

        Warns:
            MemoryDriftWarning: the model no longer holds.
        """
        self._end(shape, stacklevel=3)

    @property
    def profile(self) -> Profile:
        """The steps that were kept, as a `Profile`; each one's `index` is its number, from 0."""
        return Profile(tuple(self._records), self._device)

    def refit(self) -> MemoryModel:
        """Fit a new model of the same coverage to the steps that were kept.

        The first two steps of all are left out: they make what later steps find, such as the optimizer's state.

        Raises:
            NotIdentifiableError: the steps are too few or too alike.
        """
        warm = tuple(record for record in self._records if record.index >= _COLD)
        model = MemoryModel(coverage=getattr(self.model, "coverage", MemoryModel().coverage))
        return model.fit(Profile(warm, self._device, _COLD))

    def summary(self) -> str:
        """Describe all steps so far in a few lines, those no longer kept too."""
        lines = [f"{self.steps} steps on {self._device}" + (f", {self._failed} out of memory" if self._failed else "")]
        if self.steps > self._failed:
            lines.append(f"peaks: {format_bytes(self._lowest)} to {format_bytes(self._highest)}")
        return "\n".join([*lines, *(self._drift.summary() if self._drift else ())])

    def __repr__(self) -> str:
        return f"PeakMonitor({self._device!r}, {self.model!r}, steps={self.steps})"

    def _record(self, features: Any, status: Literal["ok", "oom"]) -> int:
        """Read the meter and keep a record; return the peak."""
        reading, seconds = self._meter.read(), time.perf_counter() - self._time
        peak = reading.peak_bytes if status == "ok" else None
        self._records.append(PeakRecord(self.steps, features, peak, *reading[1:], status, seconds))
        self._begun = False
        self.steps += 1
        self._failed += peak is None
        if peak is not None:
            self._lowest, self._highest = min(self._lowest, peak), max(self._highest, peak)
        if self.steps % _STEPS_PER_SAVE == 0:
            self._save(must=False)
        return reading.peak_bytes

    def _end(self, shape: Any, stacklevel: int) -> None:
        if not self._begun:
            raise RuntimeError("no step was begun: call begin_step() before end_step(shape)")
        peak = self._record(shape, "ok")
        for text in self._drift.check(self.steps - 1, shape, peak) if self._drift else ():
            warnings.warn(text, MemoryDriftWarning, stacklevel=stacklevel)

    def _save(self, *, must: bool) -> None:
        try:
            if self._log_path is not None:
                self.profile.save(self._log_path)
        except Exception as error:
            if must:
                raise
            # A full disk is no reason to end a training run.
            _log.warning("the peaks could not be written to %s: %s", self._log_path, error)


def _check_log(log: Any) -> Path:
    if not isinstance(log, (str, os.PathLike)):
        msg = f"`log` must be a path, got {kind_of(log)}"
        raise TypeError(msg)
    path = Path(log)
    if path.is_dir() or not path.parent.is_dir():
        msg = f"`log` must be a file in a folder that exists, got {str(path)!r:.200}"
        raise ValueError(msg)
    return path


def _check_tolerance(tolerance: Any) -> None:
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float, type(None))):
        msg = f"`tolerance` must be a number, got {kind_of(tolerance)}"
        raise TypeError(msg)
    if tolerance is not None and not 0 < tolerance < math.inf:
        msg = f"`tolerance` must be positive and finite, got {tolerance}"
        raise ValueError(msg)
