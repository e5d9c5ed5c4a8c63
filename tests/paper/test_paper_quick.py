"""Test of `histodict reproduce all --quick`: every method, figure and table.

The images are fewer and smaller than the defaults: WND-CHARM alone would take a minute for those.
"""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict import paper
from histodict.cli import app

SMALLER = replace(
    paper.QUICK,
    max_images=8,
    recipe=paper.QUICK.recipe | {"patches_per_class": 180},
    patches=(60, 120, 180),
    synthetic=(8, 2, (128, 112)),
)
METHODS = ("WND-CHARM", "SRC", "SHIRC", "LC-KSVD", "Nayak's", "FDDL", "DFDL")
SWEEPS = {
    "training-patches": ("patches per class", set(SMALLER.patches)),
    "bases-count": ("bases per class", set(SMALLER.bases)),
    "training-images": ("training images per class", None),
}


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quick")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paper, "QUICK", SMALLER)
        arguments = ["reproduce", "all", "--quick", "--jobs", "1", "--output", str(folder)]
        run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    for count in ("6.6e10", "1.06e11", "8.92e10", "9.04e10"):
        assert count in run.output
    return folder


def ours(output, name) -> list[dict[str, str]]:
    with (output / "synthetic" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return [
            row for row in csv.DictReader(file) if row.get("source", "histodict") == "histodict"
        ]


def test_all_seven_methods_are_compared_with_intervals(output):
    rows = {row["method"]: row for row in ours(output, "accuracy")}
    assert set(rows) == set(METHODS)
    for row in rows.values():
        assert 0 <= float(row["low"]) <= float(row["accuracy"]) <= float(row["high"]) <= 100
    # Few small patches without stain correction: low accuracy, but above chance.
    assert max(float(row["accuracy"]) for row in rows.values()) >= 80
    assert np.mean([float(row["accuracy"]) for row in rows.values()]) >= 60


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_every_size(output, name):
    axis, sizes = SWEEPS[name]
    rows = ours(output, name)
    found = {int(row[axis]) for row in rows}
    assert found == sizes if sizes else len(found) == 3
    for method in {row["method"] for row in rows}:
        assert {int(row[axis]) for row in rows if row["method"] == method} == found


@pytest.mark.parametrize(
    "name", ["accuracy", "confusion", "roc", "bases", "codes", *SWEEPS, "../complexity"]
)
def test_every_figure_is_not_empty(output, name):
    with Image.open(output / "synthetic" / f"{name}.png") as image:
        assert np.asarray(image.convert("L")).std() > 5
    assert "<svg" in (output / "synthetic" / f"{name}.svg").read_text(encoding="utf-8")
