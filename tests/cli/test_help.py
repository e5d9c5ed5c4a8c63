"""Commands such as --help and --version do not import heavy libraries."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from histodict.cli import app
from tests.cli.commands import get_named_command

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
    assert ("histodict.cli.options" in loaded) == ("train" in arguments)  # only its own module


def test_commands_are_listed_under_their_groups():
    output = CliRunner().invoke(app, ["--help"], terminal_width=100).output
    arguments = [
        "Train and predict:",
        "\n  train ",
        "Explain:",
        "Patches without labels:",
        "\n  serve ",
    ]
    places = [output.index(word) for word in arguments]
    assert places == sorted(places)
    assert "the patches that use them most.\n" in output  # not truncated


COMMANDS = sorted(typer.main.get_command(app).list_commands(None))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_begins_with_a_sentence_and_an_example(command):
    text = get_named_command(command).help
    sentence, example, *_ = text.split("\n\n")
    assert sentence.endswith(".") and sentence.count(". ") <= 1
    assert example.strip().startswith(f"histodict {command}")
    listed = CliRunner().invoke(app, ["--help"], terminal_width=100).output
    assert re.search(rf"^  {command} +{re.escape(sentence)}$", listed, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_options_are_listed_in_sections(command):
    output = CliRunner().invoke(app, [command, "--help"], terminal_width=100).output
    titles = ["Arguments:", "Input:", "Model:", "Output:", "Advanced:"]
    found = [line for line in output.splitlines() if line in titles]
    assert found == sorted(found, key=titles.index) and "Output:" in found
    if "--jobs" in output:
        assert output.index("Advanced:") < output.index("--jobs")
