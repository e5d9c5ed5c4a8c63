"""Tests of the record of changes to the decision of a trained model, and of its notes in
results."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict import TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.decision.atom_annotations import AtomAnnotations
from histodict.decision.threshold import (
    TUNED_IMAGES_NOTE,
    add_change,
    add_tuning_images,
    check_tuning,
    count_training_images,
    count_tuning_images,
    describe_tuning,
    fingerprint,
)
from histodict.models import EnsembleClassifier, RegionDetector, load_model, save_model
from histodict.models.model_file import read_header
from histodict.models.recipe import Recipe
from histodict.reports.model_card import describe_model

FAST = Recipe(
    method="nearest-mean", patch_px=12, patches_per_class=200, aggregation="margin", stain="none"
)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Write images of two overlapping colours, and a table with patients."""
    folder = tmp_path_factory.mktemp("set")
    rng, lines = np.random.default_rng(0), ["path,label,patient"]
    for label, red in (("blue", 140), ("red", 160)):
        for place in range(8):
            colour = np.array([red + rng.normal(0, 12), 90, 150]) + rng.normal(0, 3, (48, 60, 3))
            path = folder / f"{label}{place}.png"
            Image.fromarray(np.clip(colour, 0, 255).astype(np.uint8)).save(path)
            lines.append(f"{path.name},{label},{label}-{place // 2}")
    (folder / "table.csv").write_text("\n".join(lines))
    return folder / "table.csv"


@pytest.fixture(scope="module")
def model(table):
    return TissueClassifier(replace(FAST, features="rgb")).fit(read_manifest(table))


def paths(table):
    return [record.path for record in read_manifest(table).records]


def predict(model, table, folder):
    """Return the scores that `predict` writes, and its output."""
    file = save_model(model, folder / "m.histodict")
    run = CliRunner().invoke(app, ["predict", str(file), str(table), "-o", str(folder / "out")])
    assert run.exit_code == 0, run.output
    return json.loads((folder / "out" / "scores.json").read_text()), run.output


def test_changed_threshold_is_recorded_in_the_model_file(model, table, tmp_path):
    assert describe_tuning(model.training_info_) == ""
    moved = model.with_threshold(model.threshold + 0.1).with_tuning_images(paths(table))
    header = read_header(save_model(moved, tmp_path / "m.histodict"))
    (change,) = header["training_info"]["tuning"]
    assert change["source"] == "manual" and change["n_images"] == len(paths(table))
    assert change["previous"] == pytest.approx(model.threshold)
    assert change["value"] == pytest.approx(moved.threshold) != change["previous"]
    card = dict(describe_model(header))["Changed after training"]
    assert "set manually from" in card and "on 16 images" in card
    assert "not an estimate for unseen patients" in card
    assert count_tuning_images(moved.training_info_, [*paths(table), tmp_path / "gone.png"]) == 16
    assert count_tuning_images(model.training_info_, paths(table)) == 0
    assert "tuning" not in model.training_info_


def test_images_without_a_change_are_refused(table):
    with pytest.raises(ValueError, match="the decision rule of this model was not changed"):
        add_tuning_images({}, paths(table))


@pytest.mark.parametrize("way", ["by hand", "adapted", "adapted ensemble"])
def test_scores_on_tuning_images_are_flagged_beside_the_untuned_ones(model, table, tmp_path, way):
    (tmp_path / "plain").mkdir()
    if way == "adapted ensemble":
        model = EnsembleClassifier([replace(FAST, features="rgb")], folds=2).fit(
            read_manifest(table)
        )
    plain, output = predict(model, table, tmp_path / "plain")
    assert "tuned" not in plain and "used to tune" not in output
    predictions = [model.predict_one(path) for path in paths(table)]
    values = sorted(prediction.decision_value for prediction in predictions)
    if way == "by hand":
        changed = model.with_threshold(values[1])
    else:
        changed = model.adapt_threshold(
            [prediction.score + 1 for prediction in predictions], force=True
        )
    found, output = predict(changed.with_tuning_images(paths(table)), table, tmp_path)
    assert found["tuned"]["n_images"] == 16
    assert found["tuned"]["note"] == TUNED_IMAGES_NOTE
    assert "16 of the labelled images were used to tune this model" in " ".join(output.split())
    assert "untuned" in output
    measure = "balanced accuracy"
    assert found["tuned"]["untuned"][measure] == plain["metrics"][measure]
    assert found["metrics"][measure] != plain["metrics"][measure]


def test_scores_on_other_images_are_not_flagged(model, table, tmp_path):
    moved = model.with_threshold(model.threshold + 0.1).with_tuning_images([])
    found, output = predict(moved, table, tmp_path)
    assert "tuned" not in found and "used to tune" not in output


def test_refitted_rule_has_no_untuned_score(model, table, tmp_path):
    refitted = model.refit_decision_rule(read_manifest(table))
    (change,) = refitted.training_info_["tuning"]
    assert change["source"] == "refit" and len(change["images"]) == 16
    found, output = predict(refitted, table, tmp_path)
    assert found["tuned"]["untuned"] is None
    assert "that this one was made from" in " ".join(output.split())


def test_disabled_atoms_are_recorded_and_names_are_not(table):
    recipe = replace(FAST, method="odl", method_parameters={"n_atoms": 4}, features="centred")
    model = TissueClassifier(recipe).fit(read_manifest(table))
    named = model.with_atom_annotations(AtomAnnotations().with_changes([0], name="dark"))
    assert "tuning" not in named.training_info_
    off = named.with_atom_annotations(AtomAnnotations().with_changes([0], disabled=True))
    assert [change["source"] for change in off.training_info_["tuning"]] == ["atoms"]
    assert "images not recorded" in describe_tuning(off.training_info_)
    ensemble = EnsembleClassifier([recipe], folds=2).fit(read_manifest(table))
    off = ensemble.with_atom_annotations(AtomAnnotations().with_changes([0], disabled=True))
    assert [change["source"] for change in off.training_info_["tuning"]] == ["atoms"]


def test_detector_records_the_number_of_patches(table, tmp_path):
    recipe = replace(FAST, features="rgb", aggregation="proportion")
    model = RegionDetector(recipe, region="red").fit(read_manifest(table))
    moved = model.with_threshold(model.min_patches_ + 2).with_tuning_images(paths(table))
    (change,) = moved.training_info_["tuning"]
    assert (change["previous"], change["value"]) == (model.min_patches_, model.min_patches_ + 2)
    assert (
        load_model(save_model(moved, tmp_path / "m.histodict")).training_info_
        == moved.training_info_
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        [1],
        [{}],
        [{"source": "magic"}],
        [{"images": "abc"}],
        [{"n_images": -1}],
        [{"previous": "0.4"}],
    ],
)
def test_damaged_records_are_refused(wrong):
    record = {"source": "manual", "date": "", "n_images": 0, "images": []}
    record |= dict.fromkeys(("previous", "value", "shift"))
    check_tuning([record])
    if isinstance(wrong, list) and wrong and isinstance(wrong[0], dict) and wrong[0]:
        wrong = [record | wrong[0]]
    with pytest.raises(ValueError):
        check_tuning(wrong)


def test_fingerprints_distinguish_files(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"a" * 3_000_000)
    for change in (b"b" + b"a" * 2_999_999, b"a" * 2_999_999 + b"b", b"a" * 2_999_999):
        other.write_bytes(change)
        assert fingerprint(one) != fingerprint(other)
    other.write_bytes(one.read_bytes())
    assert fingerprint(one) == fingerprint(other)


def test_images_of_the_model_that_training_started_from_count_as_training_images(tmp_path):
    first, second, unseen = (tmp_path / name for name in "abc")
    for path in (first, second, unseen):
        path.write_text(path.name)
    training = {"images": [fingerprint(second)], "started_from": {"images": [fingerprint(first)]}}
    assert count_training_images(training, [first, second, unseen]) == 2
    assert count_training_images({}, [first, second]) == 0


def test_fingerprints_of_stored_models_remain_valid(tmp_path):
    """Model files contain fingerprints; another length or digest would match no image."""
    (tmp_path / "image").write_bytes(b"pixels")
    assert fingerprint(tmp_path / "image") == "48f0710f478fdcef"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"previous": 0.25, "value": 0.5}, "set manually from 0.25 to 0.5"),
        ({"previous": None, "value": 0.5}, "set manually"),
        ({"previous": None, "shift": 0.5}, "set manually, which lowers all scores by 0.5"),
        ({"previous": 0.25, "shift": -0.5}, "set manually, which raises all scores by 0.5"),
    ],
)
def test_description_of_a_change_omits_unknown_values(values, text):
    record = add_change({}, "manual", **values)
    assert describe_tuning(record).startswith(f"{text}, images not recorded (")
