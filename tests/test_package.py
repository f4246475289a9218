"""What is installed: metadata, data, typing marker, the command, and a namespace that others can share."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import bionemo.size_aware_batching as package

DISTRIBUTION = "bionemo-size-aware-batching"


def test_namespace_is_shared():
    """`bionemo` is a namespace package, so that other distributions can live in it."""
    import bionemo

    assert getattr(bionemo, "__file__", None) is None


def test_distribution_says_what_it_needs():
    """The metadata asks for Python 3.10 or later, torch 2.4 or later, and nothing that pins torch."""
    found = metadata.metadata(DISTRIBUTION)
    assert ">=3.10" == found["Requires-Python"]
    assert "torch>=2.4" in [need.replace(" ", "") for need in metadata.requires(DISTRIBUTION)]


@pytest.mark.parametrize("name", ["py.typed", "demo/data/bacterial_proteome.faa.gz", "demo/data/README.md"])
def test_data_is_installed(name):
    """The typing marker, the proteome and its attribution come with the package."""
    assert resources.files(package).joinpath(name).is_file()


def test_command_is_installed():
    """The command answers with the installed version."""
    command = Path(sys.executable).parent / "size-aware-batching"
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert metadata.version(DISTRIBUTION) == done.stdout.strip()


def test_constraints_pin_what_the_project_asks_for():
    """Every direct dependency is pinned in constraints.txt."""
    tomllib = pytest.importorskip("tomllib")
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    pinned = {line.split("==")[0].lower() for line in (root / "constraints.txt").read_text().splitlines()}
    extras = project["optional-dependencies"]
    needs = [*project["dependencies"], *extras["plot"], *extras["test"], *extras["dev"]]
    names = {need.split(">")[0].split("[")[0].lower() for need in needs} - {DISTRIBUTION}
    assert set() == names - pinned
