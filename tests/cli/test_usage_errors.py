"""Tests of messages about wrong command lines."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from histodict.cli import app

TRAIN = "Usage: histodict train DATA --output OUTPUT [OPTIONS]. All options: histodict train --help"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train", f"DATA is missing: Folder with one sub-folder per class, or a CSV file. {TRAIN}"),
        ("train x", f"--output or -o is missing: Model file to write. {TRAIN}"),
        ("train x --outptu m", f"unknown option --outptu (did you mean --output?). {TRAIN}"),
        ("train x -z", f"unknown option -z. {TRAIN}"),
        ("train x --seed one", f"--seed: one is not a whole number. {TRAIN}"),
        ("train x --mpp 0,5", f"--mpp: 0,5 is not a number. {TRAIN}"),
        ("train x --seed -1", f"--seed: -1 is less than 0. {TRAIN}"),
        ("train x --jobs", f"--jobs needs a value. {TRAIN}"),
        ("train x --json=1", f"--json takes no value. {TRAIN}"),
        (
            "train my set -o m",
            f"unexpected argument: set. Put quotes around a path that contains spaces. {TRAIN}",
        ),
        ("--vresion", "unknown option --vresion (did you mean --version?). Usage: histodict COM"),
        ("trian x", "unknown command 'trian' (did you mean train?); the commands are train, pred"),
        ("--", "the command is missing. Usage: histodict COMMAND [OPTIONS]. All options: histodi"),
    ],
)
def test_usage_error_is_one_line_with_the_next_step(arguments, message):
    run = CliRunner().invoke(app, arguments.split(), prog_name="histodict")
    assert run.exit_code == 2 and run.stdout == ""
    assert run.stderr.startswith(f"Error: {message}") and run.stderr.count("\n") == 1


def test_short_option_prints_the_help():
    for arguments in (["-h"], ["train", "-h"]):
        long = [*arguments[:-1], "--help"]
        runner = CliRunner()
        assert runner.invoke(app, arguments).output == runner.invoke(app, long).output
