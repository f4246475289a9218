"""The comparison table and the figure."""

import io
import struct
import sys

import numpy as np
import pytest
from rich.console import Console

from bionemo.size_aware_batching.memory import BatchShape, MemoryModel, PeakRecord, Profile
from bionemo.size_aware_batching.report import Row, check_matplotlib, comparison_table, memory_figure

MIB = 2**20


def row(name, *, batches=231, speed=12_345.6, peak=480 * MIB, padding=0.1234, used=0.876, oom=0):
    return Row(name, batches, padding, used, 490 * MIB, peak, speed, 6, oom)


ROWS = [
    row("fixed batch size", batches=1050, speed=1000.0, padding=0.6, peak=511 * MIB),
    row("bucket + size-aware", batches=310, speed=2500.0),
    row("planned by size", batches=1_234, speed=500.0, peak=1023 * MIB),
]


def rendered(rows, unit="residues", width=80):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(comparison_table(rows, unit))
    return console.file.getvalue()


def test_table_fits_eighty_columns():
    """No line is longer than 80 columns, each row has one line, and nothing is cut off."""
    text = rendered(ROWS)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert 2 + len(ROWS) == len(lines)
    assert "…" not in text


def test_large_numbers_fit_eighty_columns():
    """A million batches and a hundred thousand residues a second of a large card still fit."""
    rows = [row("bucket + size-aware", batches=1_234_567, speed=654_321.0, peak=1023 * 2**30, padding=0.999, used=1.0)]
    text = rendered(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert ["1,234,567", "654,321"] == [word for word in text.split() if word in ("1,234,567", "654,321")]


def test_cells_of_a_row():
    """A row has its name, counts, shares, peaks, throughput, and the speed against the first row."""
    lines = rendered(ROWS).splitlines()
    assert ["real", "residues/s"] == [
        word for line in lines[:2] for word in line.split() if word.startswith(("real", "residues"))
    ]
    assert "fixed batch size 1,050 60.0% 87.6% 490 MiB 511 MiB 1,000 1.00x" == " ".join(lines[2].split())
    assert "bucket + size-aware 310 12.3% 87.6% 490 MiB 480 MiB 2,500 2.50x" == " ".join(lines[3].split())
    assert "planned by size 1,234 12.3% 87.6% 490 MiB 1023 MiB 500 0.50x" == " ".join(lines[4].split())


def test_unit_is_in_the_heading():
    """What is counted per second is named in the heading."""
    assert "tokens/s" in rendered(ROWS, "tokens")


def test_first_row_without_speed():
    """Where the first way trained nothing there is no speed to compare with."""
    lines = rendered([row("first", speed=0.0), row("second", speed=10.0)]).splitlines()
    assert ["-", "-"] == [line.split()[-1] for line in lines[2:]]


def test_rows_are_values():
    """A row cannot be changed after the fact."""
    with pytest.raises(AttributeError, match="batches"):
        ROWS[0].batches = 1


SHAPES = [BatchShape(n, longest, n * longest) for n in (1, 4, 9) for longest in (30, 90, 270)]
PEAKS = [10 * MIB + 40_000 * shape.items * shape.longest for shape in SHAPES]
RECORDS = [PeakRecord(i, s, p, None, None, 0, "ok", 0.1) for i, (s, p) in enumerate(zip(SHAPES, PEAKS, strict=True))]
PROFILE = Profile((*RECORDS, PeakRecord(9, None, None, None, None, 0, "oom", 0.1)), "cpu")
EPOCHS = {"one": np.array([[3, 50, 140], [2, 100, 190.0]]), "two": np.array([[5, 20, 90.0]])}


@pytest.mark.parametrize(
    ("budget", "epochs"),
    [(200 * MIB, EPOCHS), (8 * 2**30, {}), (200 * MIB, {f"way {i}": EPOCHS["one"] for i in range(7)})],
    ids=["two", "none", "many"],
)
def test_figure_is_a_png(budget, epochs):
    """The figure is a PNG file of 1650 by 690 pixels, for any number of epochs and budgets of any unit."""
    pytest.importorskip("matplotlib")
    data = memory_figure(PROFILE, MemoryModel().fit(PROFILE), epochs, budget)
    assert b"\x89PNG\r\n\x1a\n" == data[:8]
    assert (1650, 690) == struct.unpack(">II", data[16:24])
    assert b"IEND" == data[-8:-4]


def test_figure_leaves_the_users_figures_alone():
    """Drawing does not touch pyplot, whose figures and backend are the user's."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    before = pyplot.get_fignums()
    memory_figure(PROFILE, MemoryModel().fit(PROFILE), EPOCHS, 200 * MIB)
    assert before == pyplot.get_fignums()


@pytest.mark.parametrize(
    "call",
    [check_matplotlib, lambda: memory_figure(PROFILE, MemoryModel().fit(PROFILE), EPOCHS, 200 * MIB)],
    ids=["check", "figure"],
)
def test_figure_without_matplotlib(call, monkeypatch):
    """Without matplotlib the error names the extra that brings it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"figures need matplotlib: pip install 'bionemo-size-aware-batching\[plot\]'"):
        call()
