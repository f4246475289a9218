"""The house: imports only go down, pure floors stay pure, importing the package is cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import bionemo.size_aware_batching as package

ROOT = Path(package.__file__).parent
NAME = "bionemo.size_aware_batching"
FLOORS = [
    {"errors", "_bytes", "_checks", "_files", "_types"},
    {"plan", "memory"},
    {"measure", "sampler"},
    {"report"},
    {"demo"},
    {"cli"},
]
# What a room may use of its own floor, or must not use of the floors below.
SAME_FLOOR = {("_checks", "_types"), ("_files", "errors")}
STRANGERS = {("sampler", "memory"), ("measure", "plan")}
PURE = ("plan", "memory")
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def floor_of(room):
    """Return the floor on which a room stands."""
    return next(number for number, rooms in enumerate(FLOORS) if room in rooms)


def imports_of(path):
    """Yield the full names of the modules that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def rooms_used(path):
    """Return the rooms of this package that a file imports from."""
    prefix = f"{NAME}."
    return {name.removeprefix(prefix).split(".")[0] for name in imports_of(path) if name.startswith(prefix)}


@pytest.mark.parametrize(
    "path", [m for m in MODULES if m.name not in ("__init__.py", "utils.py") or m.parts[1:]], ids=str
)
def test_imports_go_down(path):
    """A module imports only from its own room, from lower floors, and never from the package's front."""
    room = path.parts[0].removesuffix(".py")
    others = rooms_used(path) - {room}
    assert NAME not in set(imports_of(path))
    wrong = {
        other
        for other in others
        if (floor_of(other) >= floor_of(room) and (room, other) not in SAME_FLOOR) or (room, other) in STRANGERS
    }
    assert set() == wrong


@pytest.mark.parametrize("path", [m for m in MODULES if m.parts[0] in PURE], ids=str)
def test_pure_floors_know_no_torch(path):
    """Planning and modelling run on numpy alone: no device, no process group, no clock, no global random state."""
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert set() == roots & {"torch", "random", "time", "tqdm", "rich", "typer"}
    assert "numpy.random" not in set(imports_of(path))
    assert "np.random" not in (ROOT / path).read_text()


def test_compiled_code_lives_in_one_place():
    """All numba code is in one folder of the planner."""
    assert {Path("plan/_kernels")} == {path.parent for path in MODULES if "numba" in set(imports_of(path))}


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_modules_stay_small(path):
    """No module grows past 350 lines."""
    assert len((ROOT / path).read_text().splitlines()) <= 350


def test_public_names_are_sorted():
    """The front lists its names in order, and each is there."""
    assert sorted(package.__all__) == package.__all__
    assert all(hasattr(package, name) for name in package.__all__)


def run(code):
    """Run Python code in a process of its own and return what it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_is_cheap():
    """Importing the package does not import what only some calls need."""
    code = "import sys; before = set(sys.modules); import torch, torch.utils.data; known = set(sys.modules)\n"
    code += f"import {NAME}, {NAME}.sampler, {NAME}.utils\n"
    code += "print([m for m in ('numba', 'scipy', 'matplotlib', 'rich', 'typer') if m in sys.modules])"
    assert "[]" == run(code)


def test_importing_starts_no_process_group():
    """Importing the package neither touches CUDA nor a process group."""
    code = f"import torch, {NAME}; print(torch.cuda.is_initialized(), torch.distributed.is_initialized())"
    assert "False False" == run(code)
