"""Commands such as --help and --version do not import heavy libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from histodict.cli import app

# Each of these takes longer to import than the command may take; rich and pydantic belong to typer.
SLOW = (
    "concurrent.futures",
    "jinja2",
    "matplotlib",
    "numba",
    "numpy",
    "openslide",
    "PIL",
    "pyarrow",
    "pydantic",
    "rich",
    "scipy",
    "skimage",
    "sklearn",
    "torch",
)
PROBE = """
import sys
from histodict.cli import app
try:
    app(sys.argv[1:])
finally:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["--version"]])
def test_slow_libraries_are_not_imported(arguments):
    run = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    loaded = run.stderr.split()
    assert "typer" in loaded and set(SLOW).intersection(loaded) == set()


def test_commands_are_listed_under_their_groups():
    output = CliRunner().invoke(app, ["--help"], terminal_width=100).output
    arguments = [
        "From images to answers:",
        "train",
        "What is in a model:",
        "How good is it:",
        "serve",
    ]
    places = [output.index(word) for word in arguments]
    assert places == sorted(places)
    assert "its atoms, and the real patches that use them most.\n" in output  # not truncated
