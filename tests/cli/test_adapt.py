"""Tests of `adapt`, which moves the threshold of a model using unlabelled images."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict import TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.decision.threshold import adapted_threshold, fingerprint
from histodict.models import Plan, load_model, save_model
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

FAST = Recipe(method="nearest-mean", patch_px=12, patches_per_class=100, aggregation="margin")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 10, 2, size=(96, 80))
    return read_manifest(folder / "manifest.csv")


@pytest.mark.parametrize("folds", [0, 2])
def test_only_the_threshold_changes(manifest, tmp_path, folds):
    model = Plan(FAST, calibration_folds=folds).build_model(random_state=0).fit(manifest)
    paths = [record.path for record in manifest.records]
    before = [model.predict(path) for path in paths]
    scores = [prediction.score for prediction in before]
    adapted = model.adapt_threshold([*scores, np.nan], force=True)
    shift = adapted_threshold(np.array(scores))
    loaded = load_model(save_model(adapted, tmp_path / "m.histodict"))
    for path, old in zip(paths, before, strict=True):
        new = adapted.predict(path)
        assert new.score == pytest.approx(old.score - shift)
        assert new.top_label == model.classes_[int(old.score > shift)]
        assert loaded.predict(path).scores == new.scores
        # The map is centred on the score, and so moves with the threshold.
        tissue, margins = old.patch_map.tissue, old.patch_map.margins[..., 1]
        found = new.patch_map.margins[..., 1][tissue]
        np.testing.assert_allclose(found, margins[tissue] - shift, atol=1e-5)
    assert adapted.threshold == pytest.approx(model.score_to_decision_value(shift))
    assert loaded.training_info_["tuning"][-1]["n_images"] == len(scores)
    assert "tuning" not in model.training_info_


def test_adapt_on_the_command_line(manifest, tmp_path):
    model, adapted = tmp_path / "m.histodict", tmp_path / "a.histodict"
    save_model(TissueClassifier(FAST, random_state=0).fit(manifest), model)
    images = [str(record.path) for record in manifest.records]
    run = CliRunner().invoke(
        app, ["adapt", str(model), *images, "-o", str(adapted), "--force", "--json"]
    )
    assert run.exit_code == 0, run.output
    report = json.loads(run.output.splitlines()[-1])
    assert report["n_images"] == sum(report["groups"]) == len(images)
    one, two = (load_model(path) for path in (model, adapted))
    moved = [one.predict(image).label != two.predict(image).label for image in images]
    assert report["n_moved"] == sum(moved)
    (change,) = two.training_info_["tuning"]
    assert (change["source"], change["date"]) == ("adapted", date.today().isoformat())
    assert change["images"] == sorted(map(fingerprint, map(Path, images)))
    run = CliRunner().invoke(app, ["adapt", str(model), *images[:3], "-o", str(adapted)])
    assert run.exit_code == 2 and "at least 10" in run.output


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Images of uniform colours, 20 of each of two classes, and a model that separates them."""
    folder = tmp_path_factory.mktemp("planted")
    rng = np.random.default_rng(0)
    for label, red in (("blue", 120), ("red", 190)):
        (folder / "set" / label).mkdir(parents=True)
        for place in range(20):
            colour = np.array([red + rng.normal(0, 6), 90, 150]) + rng.normal(0, 3, (60, 80, 3))
            pixels = np.clip(colour, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "set" / label / f"{place}.png")
    recipe = replace(FAST, features="rgb", stain="none")
    model = TissueClassifier(recipe, random_state=0).fit(read_manifest(folder / "set"))
    return folder / "set", save_model(model, folder / "m.histodict")


def adapt(model, images, output, *options):
    return CliRunner().invoke(app, ["adapt", str(model), str(images), "-o", str(output), *options])


def test_images_of_one_class_are_refused_without_force(planted, tmp_path):
    images, model = planted
    output = tmp_path / "a.histodict"
    run = adapt(model, images / "red", output)
    assert run.exit_code == 2 and not output.exists()
    assert "do not form two groups" in run.output and "--force" in run.output
    assert run.output.count("Error") == 1
    forced = adapt(model, images / "red", output, "--force")
    assert forced.exit_code == 0
    assert "The scores form no clear groups; --force divides them into" in forced.output
    assert load_model(output).training_info_["tuning"][-1]["two_groups"] is False


def test_images_of_both_classes_move_the_threshold(planted, tmp_path):
    images, model = planted
    output = tmp_path / "a.histodict"
    run = adapt(model, images, output)
    assert run.exit_code == 0, run.output
    assert "Two groups of scores: 20 and 20 images" in run.output
    assert "two_groups" not in load_model(output).training_info_["tuning"][-1]


def test_unreadable_images_are_reported_together(planted, tmp_path):
    images, model = planted
    shutil.copytree(images, tmp_path / "set")
    for name in ("1.png", "2.png"):
        (tmp_path / "set" / "red" / name).write_bytes(b"no image")
    output = tmp_path / "a.histodict"
    run = adapt(model, tmp_path / "set", output)
    assert run.exit_code == 2 and "2 of 40 images cannot be used" in run.output
    assert "red/1.png" in run.output and "red/2.png" in run.output
    run = adapt(model, tmp_path / "set", output, "--skip-unreadable")
    assert run.exit_code == 0 and "2 of 40 images skipped" in run.output
    assert len(load_model(output).training_info_["tuning"][-1]["left_out"]) == 2


def test_region_detector_has_no_threshold_to_adapt(manifest, small_models, tmp_path):
    finder, image = small_models.path("regions"), manifest.records[0].path
    arguments = ["adapt", str(finder), str(image), "-o", str(tmp_path / "a.histodict")]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 2 and "region detector cannot be adapted" in run.output


def test_evaluation_of_adaptation_uses_no_labels(manifest, tmp_path):
    out = tmp_path / "out"
    settings = ["--set", "patch_px=12", "--set", "patches_per_class=100", "--set", "downsample=1"]
    methods = "nearest-mean,nearest-mean+unlabelled"
    arguments = ["evaluate", str(manifest.root), "--methods", methods, "--folds", "2"]
    run = CliRunner().invoke(app, [*arguments, *settings, "-o", str(out)])
    assert run.exit_code == 0, run.output
    with (out / "predictions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for split in {row["split"] for row in rows}:
        own = [row for row in rows if row["split"] == split]
        plain, adapted = (
            np.array([float(r["score"]) for r in own if r["method"] == name])
            for name in methods.split(",")
        )
        np.testing.assert_allclose(adapted, plain - adapted_threshold(plain))
