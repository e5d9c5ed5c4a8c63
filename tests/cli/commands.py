"""Run commands in this process and read what they leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
from PIL import Image
from typer.main import get_command
from typer.testing import CliRunner

from histodict.cli import app

SETTINGS = ("patch_px=16", "downsample=1", "patches_per_class=200", "n_atoms=16", "n_iter=2")
SIZE = (240, 180)


@dataclass
class Outcome:
    """Result of a command: exit status, output on one line, and folder of its tables."""

    status: int
    message: str
    folder: Path

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows of predictions.parquet by file name."""
        table = pyarrow.parquet.read_table(self.folder / "predictions.parquet")
        return {Path(row["path"]).name: row for row in table.to_pylist()}

    def predicted_classes(self, name: str) -> np.ndarray:
        with np.load(self.folder / "maps" / f"{self.rows[name]['key']}.npz") as arrays:
            return arrays["predicted_classes"]

    def overlay(self, name: str) -> np.ndarray:
        with Image.open(self.folder / "overlays" / f"{self.rows[name]['key']}.png") as image:
            return np.asarray(image)


def get_named_command(name: str) -> Any:
    return get_command(app).get_command(None, name)


def run(folder: Path, *arguments: object) -> Outcome:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return Outcome(result.exit_code, " ".join(result.output.split()), folder)


def train(data: Path, model: Path, *options: object) -> Outcome:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    if "--preset" not in options and "--regions" not in options:
        settings += ["--preset", "fast"]
    return run(model.parent, "train", data, "--output", model, *settings, *options)


def predict(model: Path, output: Path, *arguments: object) -> Outcome:
    return run(output, "predict", model, *arguments, "--output", output)
