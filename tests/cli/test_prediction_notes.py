"""Limits of a prediction reported by the command line: training images, stain, unused atoms."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict import TissueClassifier, read_manifest
from histodict.cli import app
from histodict.models.recipe import PRESETS
from histodict.synthetic.dataset import write_synthetic_dataset

SMALL = {"n_atoms": 8, "n_iter": 2}


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set") / "tissue"
    return write_synthetic_dataset(folder, 4, 2, size=(160, 120), seed=3)


@pytest.fixture(scope="module")
def model_file(tissue, tmp_path_factory):
    """A model trained on the first two patients."""
    recipe = replace(
        PRESETS["fast"], method_parameters=SMALL | {"penalty": 0.4}, patches_per_class=200
    )
    manifest = read_manifest(tissue / "manifest.csv")
    first = sorted(set(manifest.patients))[:2]
    train = manifest.select([i for i, p in enumerate(manifest.patients) if p in first])
    model = TissueClassifier(recipe, random_state=0).fit(train)
    return model.save(tmp_path_factory.mktemp("model") / "m.histodict"), len(train.records)


def predict(model, source, out, *options):
    return CliRunner().invoke(app, ["predict", str(model), str(source), "-o", str(out), *options])


def rows_of(out):
    with (out / "predictions.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_scores_on_training_images_are_flagged(model_file, tissue, tmp_path):
    model, n_train = model_file
    run = predict(model, tissue / "manifest.csv", tmp_path / "out")
    assert run.exit_code == 0, run.output
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert scores["trained"]["n_images"] == n_train < scores["n_images"]
    assert f"{n_train} of the labelled images were used to train this model" in " ".join(
        run.output.split()
    )


def test_scores_on_other_images_are_not_flagged(model_file, tissue, tmp_path):
    model, _n_train = model_file
    manifest = read_manifest(tissue / "manifest.csv")
    last = sorted(set(manifest.patients))[-1]
    lines = [f"{r.path},{r.label},{r.patient},0.5" for r in manifest.records if r.patient == last]
    table = tmp_path / "other.csv"
    table.write_text("\n".join(["path,label,patient,mpp", *lines]))
    run = predict(model, table, tmp_path / "out")
    assert run.exit_code == 0, run.output
    assert "trained" not in json.loads((tmp_path / "out" / "scores.json").read_text())
    assert "used to train" not in run.output


def test_skipped_stain_normalisation_is_reported(model_file, tissue, tmp_path):
    model, _ = model_file
    image = next((tissue / "healthy").glob("*.jpg"))
    Image.open(image).convert("L").save(tmp_path / "grey.png")
    run = predict(model, tmp_path / "grey.png", tmp_path / "out", "--mpp", "0.5")
    assert run.exit_code == 0, run.output
    assert "stain not normalised" in run.output and "grey.png" in run.output
    assert "stain not normalised" in rows_of(tmp_path / "out")[0]["notes"]
    run = predict(model, image, tmp_path / "colour", "--mpp", "0.5")
    assert "not normalised" not in run.output and "notes" not in rows_of(tmp_path / "colour")[0]


def test_image_of_identical_patches_is_reported(model_file, tmp_path):
    """Every patch of a uniform image has the same features."""
    model, _ = model_file
    plain = np.full((96, 96, 3), (180, 90, 140), np.uint8)
    Image.fromarray(plain).save(tmp_path / "plain.png")
    run = predict(model, tmp_path / "plain.png", tmp_path / "out", "--mpp", "0.5")
    assert run.exit_code == 0, run.output
    assert "the scores of all patches are equal" in rows_of(tmp_path / "out")[0]["notes"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_named_pipes_are_refused(model_file, tissue, tmp_path):
    for name in ("table.csv", "m.histodict"):
        os.mkfifo(tmp_path / name)
    (tmp_path / "set").mkdir()
    os.mkfifo(tmp_path / "set" / "manifest.csv")
    commands = [
        ["train", tmp_path / "table.csv", "-o", tmp_path / "n.histodict"],
        ["train", tmp_path / "set", "-o", tmp_path / "n.histodict"],
        ["info", tmp_path / "m.histodict"],
    ]
    for command in commands:
        run = CliRunner().invoke(app, list(map(str, command)))
        assert run.exit_code == 2 and "not a regular file but a named pipe" in run.output
