"""The command, run as a process of its own: exit codes, what is on which stream, and what it writes."""

import json
import os
import subprocess
import sys
from importlib.metadata import version

import numpy as np
import pytest
import torch

from bionemo.size_aware_batching.memory import MemoryModel, Profile

COMMAND = "from bionemo.size_aware_batching.cli import main; main()"
# Imports once what the command needs, and then runs each command line in a process of its own.
FORKS = """
import gc, json, os, sys
import scipy.optimize, scipy.stats, torch._dynamo
from bionemo.size_aware_batching.cli import main
gc.freeze()
results = []
for number, arguments in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{number}.{name}", os.O_WRONLY | os.O_CREAT), stream)
        sys.argv = ["size-aware-batching", *arguments]
        main()
    results.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(results))
"""
# Named files are made in the folder that the commands run in.
REFUSED = {
    "unknown option": (["--bad"], "--bad"),
    "unknown option of the demo": (["demo", "--bad"], "--bad"),
    "unknown command": (["train"], "train"),
    "extra argument": (["demo", "more"], "more"),
    "no such device": (["demo", "--device", "nowhere"], "`device` must be a device that torch knows, got 'nowhere'"),
    "device is absent": (["demo", "--device", "cuda:97"], "`device` cuda:97 is not there"),
    "device has no memory": (["demo", "--device", "meta"], "counts its peak memory, got meta"),
    "budget is no number": (["demo", "--device", "cpu", "--budget", "lots"], "not a number of bytes: 'lots'"),
    "budget is nothing": (["demo", "--device", "cpu", "--budget", "0%"], "must be positive"),
    "budget is too much": (["demo", "--device", "cpu", "--budget", "101%"], "at most what cpu has"),
    "budget below the weights": (
        ["demo", "--device", "cpu", "--fasta", "short.faa", "--budget", "1MiB"],
        "the budget 1 MiB leaves no room",
    ),
    "budget too small for the longest": (
        ["demo", "--device", "cpu", "--fasta", "long.faa", "--budget", "40MiB"],
        "over the budget 41943040",
    ),
    "proteins all alike": (["demo", "--device", "cpu", "--fasta", "alike.faa"], "all have longest = 30"),
    "no such file": (["demo", "--device", "cpu", "--fasta", "nowhere.faa"], "No such file or directory: 'nowhere.faa'"),
    "folder for a file": (["demo", "--device", "cpu", "--fasta", "."], "directory"),
    "not FASTA": (["demo", "--device", "cpu", "--fasta", "not.faa"], "not.faa is not a FASTA file: line 1"),
    "no steps": (["demo", "--steps", "0"], "--steps"),
    "steps is text": (["demo", "--steps", "many"], "--steps"),
    "steps is missing": (["demo", "--steps"], "--steps"),
    "seed is negative": (["demo", "--seed", "-1"], "--seed"),
    "out is a file": (["demo", "--device", "cpu", "--out", "not.faa"], "File exists: 'not.faa'"),
}
HELP = {"no arguments": [], "help": ["--help"], "help of the demo": ["demo", "--help"]}
TRACEBACK = {
    "budget of hundreds of digits": ["demo", "--device", "cpu", "--budget", "9" * 400 + "%"],
    "seed of many digits": ["demo", "--seed", "9" * 40],
}
LINES = {name: arguments for name, (arguments, _) in REFUSED.items()} | HELP | TRACEBACK


def fasta(lengths, seed=0):
    """Return a FASTA file's text with random proteins of these lengths."""
    letters = np.random.default_rng(seed)
    return "".join(f">p{n}\n{''.join(letters.choice(list('ACDEFGHIKLMNPQRSTVWY'), n))}\n" for n in lengths)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Give a folder with proteins that are short, and with one that is long."""
    folder = tmp_path_factory.mktemp("commands")
    lengths = np.random.default_rng(1).integers(10, 60, 40).tolist()
    (folder / "short.faa").write_text(fasta(lengths))
    (folder / "long.faa").write_text(fasta([*lengths, 1500]))
    (folder / "alike.faa").write_text(fasta([30] * 20))
    (folder / "not.faa").write_text("once upon a time\n")
    return folder


@pytest.fixture(scope="module")
def running_demo(folder):
    """Start the demo on forty short proteins."""
    pytest.importorskip("matplotlib")
    options = ["--fasta", "short.faa", "--budget", "64MiB", "--steps", "2", "--device", "cpu", "--out", "a/b"]
    with start(folder, COMMAND, "demo", *options) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def done(folder, running_demo):
    """Run every short command line, while the demo runs, and return its exit code, output and error."""
    codes = json.loads(finished(start(folder, FORKS, json.dumps(list(LINES.values()))))[1])
    return {
        name: (code, (folder / f"{number}.out").read_text(), (folder / f"{number}.err").read_text())
        for number, (name, code) in enumerate(zip(LINES, codes, strict=True))
    }


@pytest.fixture(scope="module")
def demo(running_demo, folder):
    """Wait for the demo; return its exit code, output and error, and the folder that it wrote to."""
    return finished(running_demo), folder / "a" / "b"


def start(folder, code, *arguments):
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(folder)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finished(process):
    output, error = process.communicate(timeout=300)
    return process.returncode, output, error


def test_version_and_nothing_else(folder):
    """`--version` prints the installed version on a line of its own."""
    expected = (0, version("bionemo-size-aware-batching") + "\n", "")
    assert expected == finished(start(folder, COMMAND, "--version"))


@pytest.mark.parametrize("name", sorted(HELP))
def test_help(done, name):
    """Help goes to standard output, also without any argument, and is no error."""
    code, output, error = done[name]
    assert (0, "") == (code, error)
    assert "Usage:" in output
    assert "demo" in output


def test_help_names_every_option(done):
    """The demo's help lists its options."""
    options = ("--device", "--budget", "--steps", "--seed", "--fasta", "--out")
    assert [True] * 6 == [option in done["help of the demo"][1] for option in options]


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_wrong_use_is_one_line_and_exit_code_two(done, name):
    """A wrong argument or file is one line on standard error that says what is wrong, and exit code 2."""
    code, _, error = done[name]
    assert 2 == code
    assert 1 == len(error.splitlines()), error
    assert error.startswith("size-aware-batching: error: ")
    assert REFUSED[name][1] in error
    assert "Traceback" not in error


@pytest.mark.parametrize("name", sorted(TRACEBACK))
def test_wrong_use_is_never_a_traceback(done, name):
    """Numbers beyond all reason are wrong arguments like others."""
    code, _, error = done[name]
    assert (2, 1) == (code, len(error.splitlines()))


def test_demo_succeeds(demo):
    """The demo ends well, says what it found on standard output, and nothing on standard error."""
    (code, output, error), _ = demo
    assert (0, "") == (code, error)
    assert "40 proteins of 1" in output
    assert "= 64 MiB budget for peak allocated bytes" in output
    assert "after 2 warm-up steps that are not counted" in output
    assert "held-out error over" in output
    assert "out-of-memory errors: 0" in output
    assert "wrote profile.json, model.json, comparison.json and memory.png to a/b" in output


def test_demo_writes_four_files(demo):
    """The folder holds the profile, the model, the comparison and the figure, and no temporary file."""
    _, out = demo
    assert ["comparison.json", "memory.png", "model.json", "profile.json"] == sorted(
        path.name for path in out.iterdir()
    )
    assert b"\x89PNG\r\n\x1a\n" == (out / "memory.png").read_bytes()[:8]


def test_demo_compares_three_ways(demo):
    """The comparison has a row for each way to batch, none of which ran out of memory or over the budget."""
    _, out = demo
    comparison = json.loads((out / "comparison.json").read_text())
    assert (40, "cpu", 64 * 2**20, 2, 0) == tuple(
        comparison[name] for name in ("proteins", "device", "budget_bytes", "steps", "seed")
    )
    assert torch.__version__ == comparison["torch"]
    rows = comparison["rows"]
    assert ["fixed batch size", "bucket + size-aware", "planned by size"] == [row["strategy"] for row in rows]
    assert [0, 0, 0] == [row["out_of_memory"] for row in rows]
    assert all(0 < row["measured_peak_bytes"] <= 64 * 2**20 for row in rows)
    assert all(0 <= row["padding_fraction"] < 1 and 0 < row["budget_used_mean"] <= 1 for row in rows)
    assert all(row["real_units_per_second"] > 0 and 1 <= row["steps"] <= 2 for row in rows)


def test_demo_prediction_is_what_was_measured(demo):
    """The costliest planned batch was predicted within five percent, and its peak is within the budget."""
    _, out = demo
    planned = json.loads((out / "comparison.json").read_text())["rows"][2]
    assert planned["measured_peak_bytes"] <= 64 * 2**20
    assert pytest.approx(planned["measured_peak_bytes"], rel=0.05) == planned["predicted_peak_bytes"]


def test_demo_files_can_be_read(demo):
    """The written model is the one that the written profile gives."""
    _, out = demo
    profile, model = Profile.load(out / "profile.json"), MemoryModel.load(out / "model.json")
    assert ("cpu", 2) == (profile.device, profile.warmup)
    assert len(profile) == len(profile.measured) >= 8
    assert list(range(len(profile))) == [record.index for record in profile]
    assert MemoryModel().fit(profile).summary() == model.summary()
    assert f"over {len(profile)} measurements" in model.summary()
