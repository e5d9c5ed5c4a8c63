"""The preset auto: several views of the tissue that decide together."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict import TissueClassifier
from histodict.cli import app
from histodict.demo.sets import write_synthetic_set
from histodict.images.manifest import read_manifest
from histodict.images.readers import ImageError
from histodict.model_file import load_model, save_model
from histodict.pipeline import RegionDetector, panel, whole_image_model
from histodict.pipeline.panel import members
from histodict.recipes import Recipe, preset

SMALL = replace(
    preset("auto", "nearest-mean"), patch_px=8, patches_per_class=200, rule="margin-and-codes"
)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_set(tmp_path_factory.mktemp("set") / "t", 6, 2, size=(160, 120))
    return read_manifest(folder / "manifest.csv")


@pytest.fixture(scope="module")
def model(manifest):
    return TissueClassifier(SMALL, random_state=0).fit(manifest)


def views(recipe):
    return [(r.method, r.stain, r.downsample, r.context) for r in members(recipe)]


def test_who_sits_on_it():
    patches = [("reinhard", 2.0, 2), ("macenko", 2.0, 2), ("reinhard", 1.0, 1)]
    textures = [("reinhard", 2.0), ("none", 2.0), ("reinhard", 4.0), ("none", 4.0)]
    assert views(preset("auto")) == [
        *(("dfdl", *view) for view in patches),
        *(("lbp-colour", *view, 2) for view in textures),
    ]
    assert members(preset("auto"))[2].method_parameters["penalty"] == 0.2
    assert all(not r.panel and r.calibration_folds == 0 for r in members(preset("auto")))
    assert [r.mpp for r in members(preset("auto").with_changes(mpp=0.5))[:4]] == [
        0.5,
        0.5,
        0.5,
        0.5,
    ]
    assert {view[0] for view in views(preset("auto", "wndcharm"))} == {"wndcharm"}
    assert len(views(preset("auto", "wndcharm"))) == 4
    cells = replace(preset("embeddings"), panel=True, calibration_folds=3)
    assert [(r.stain, r.downsample) for r in members(cells)] == [
        ("reinhard", 1.0),
        ("macenko", 1.0),
        ("reinhard", 2.0),
    ]
    channels = [r.method_parameters["n_channels"] for r in members(preset("auto", "shirc"))[:3]]
    assert channels == [6, 6, 3]


def test_the_score_is_the_members_mean_and_the_map_is_the_first_ones(model, manifest):
    record = manifest.records[0]
    answer = model.predict(record.path, mpp=record.mpp)
    plain = replace(SMALL, panel=False, calibration_folds=0)
    first = TissueClassifier(plain, random_state=0).fit(manifest)
    alone = first.predict(record.path, mpp=record.mpp)
    np.testing.assert_array_equal(answer.patch_map.margins, alone.patch_map.margins)
    assert answer.proportions == alone.proportions and answer.threshold is None
    scores = [alone.scores[0]]
    scores += [other.predict(record.path, mpp=record.mpp).scores[0] for other in model.others_]
    assert len(scores) == 7
    expected = np.mean(np.array(scores) / model.panel_.scales) + model.panel_.offset
    assert answer.score == pytest.approx(expected)
    assert answer.label == max(answer.probabilities, key=answer.probabilities.__getitem__)
    moved = model.with_threshold(answer.score + 0.01).predict(record.path, mpp=record.mpp)
    assert moved.label == model.classes_[0] and moved.score == pytest.approx(-0.01)
    assert moved.probabilities == answer.probabilities


def test_it_is_kept_whole_in_a_file(model, manifest, tmp_path):
    file = save_model(model, tmp_path / "m.histodict")
    loaded = load_model(file)
    for record in manifest.records[:3]:
        one, two = (m.predict(record.path, mpp=record.mpp) for m in (model, loaded))
        assert (one.scores, one.probabilities) == (two.scores, two.probabilities)
    run = CliRunner().invoke(app, ["info", str(file)])
    assert run.exit_code == 0, run.output
    assert "These decide together" in run.output
    assert run.output.count("method=lbp-colour") == 4 and "stain=macenko" in run.output
    out = tmp_path / "out"
    image = str(manifest.records[0].path)
    run = CliRunner().invoke(app, ["predict", str(file), image, "-o", str(out)])
    assert run.exit_code == 0, run.output
    assert "probability_" in (out / "predictions.csv").read_text()


def test_members_are_judged_on_patients_they_did_not_see(manifest, tmp_path, monkeypatch):
    fitted = []
    original = TissueClassifier.fit

    def fit(self, data, **more):
        fitted.append(set(data.patients))
        return original(self, data, **more)

    monkeypatch.setattr(TissueClassifier, "fit", fit)
    two = [SMALL, replace(SMALL, stain="none")]
    plain = [replace(r, panel=False, calibration_folds=0) for r in two]
    asked = panel.ask_members(manifest, plain, 3, cache=tmp_path, n_jobs=1)
    assert len(fitted) == 6 and all(len(patients) == 4 for patients in fitted)
    assert all(np.isfinite(member.scores).all() for member in asked)
    again = panel.ask_members(manifest, plain, 3, cache=tmp_path, n_jobs=1)
    assert len(fitted) == 6
    np.testing.assert_array_equal(again[1].scores, asked[1].scores)


def test_a_member_that_does_not_fit_the_images_is_left_out_and_said(manifest, monkeypatch):
    large = replace(SMALL, panel=False, calibration_folds=0, patch_px=300)
    own = replace(large, patch_px=8)
    monkeypatch.setattr(panel, "members", lambda recipe: [own, large])
    model = TissueClassifier(SMALL, random_state=0).fit(manifest)
    assert model.others_ == []
    facts = model.training_["members"]
    assert "failure" not in facts[0] and "less than one patch" in facts[1]["failure"]
    with pytest.raises(ValueError, match="less than one patch"):
        panel.ask_members(manifest, [large, own], 3)


def test_too_few_patients_are_refused_with_advice(manifest):
    one = [manifest.patients.index(name) for name in sorted(set(manifest.patients))[:1]]
    places = [i for i, p in enumerate(manifest.patients) if p == manifest.patients[one[0]]]
    with pytest.raises(ValueError, match="take a preset without a panel"):
        TissueClassifier(SMALL).fit(manifest.select(places))


def test_what_does_not_go_together_is_refused():
    for wrong, words in (
        ({"calibration_folds": 0}, "calibration_folds"),
        ({"candidates": 4}, "candidates"),
    ):
        with pytest.raises(ValueError, match=words):
            replace(SMALL, **wrong)
    with pytest.raises(ValueError, match="not for regions"):
        RegionDetector("auto", region="tumour")


def test_calibrated_methods_of_whole_images(manifest):
    recipe = replace(preset("default", "lbp-colour"), calibration_folds=2)
    model = TissueClassifier(recipe, random_state=0).fit(manifest)
    answer = model.predict(manifest.records[0].path)
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert model.threshold is None and answer.patch_map is None


def test_of_a_slide_some_tissue_stands_for_all(tmp_path, monkeypatch, rng):
    """Features that are means over the parts of an image; others refuse a slide."""
    pixels = np.full((1200, 1600, 3), 240, np.uint8)
    pixels[:, :800] = rng.integers(60, 200, (1200, 800, 3))
    pixels[:, :800, 1] //= 2
    Image.fromarray(pixels).save(tmp_path / "slide.png")
    Image.fromarray(pixels[:, :800]).save(tmp_path / "tissue.png")
    monkeypatch.setattr(whole_image_model, "_SQUARE_PX", 200)
    recipe = Recipe(method="lbp-colour")
    whole = whole_image_model.WholeImageModel(recipe, 0, 1)
    tissue = whole._vectors({tmp_path / "tissue.png": None}, None)[0]
    monkeypatch.setattr(whole_image_model, "_MOST_PIXELS", 100_000)
    parts = whole._vectors({tmp_path / "slide.png": None}, None)[0]
    np.testing.assert_allclose(parts, tissue, atol=0.02)
    other = whole_image_model.WholeImageModel(Recipe(method="wndcharm"), 0, 1)
    with pytest.raises(ImageError, match="too many for a method"):
        other._vectors({tmp_path / "slide.png": None}, None)
    Image.fromarray(np.full((1200, 1600, 3), 240, np.uint8)).save(tmp_path / "glass.png")
    with pytest.raises(ImageError, match="no tissue"):
        whole._vectors({tmp_path / "glass.png": None}, None)


def test_training_goes_on_from_a_cache(manifest, tmp_path):
    arguments = ["train", str(manifest.root), "--preset", "auto", "--method", "nearest-mean"]
    arguments += ["--set", "patch_px=8", "--set", "patches_per_class=200", "--json"]
    arguments += ["--cache", str(tmp_path / "cache"), "-o", str(tmp_path / "m.histodict")]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    assert json.loads(run.output.splitlines()[-1])["threshold"] is None
    assert len(list((tmp_path / "cache" / "unseen").iterdir())) == 7 * 3


def test_found_scores_belong_to_their_images(manifest, tmp_path):
    """Rows in another order, or other images of the same names, are not mixed up in a cache."""
    recipe = replace(SMALL, panel=False, calibration_folds=0)
    one = panel.ask_members(manifest, [recipe], 2, cache=tmp_path / "cache", n_jobs=1)[0].scores
    turned = manifest.select(list(reversed(range(len(manifest.records)))))
    with_cache, without = (
        panel.ask_members(turned, [recipe], 2, cache=folder, n_jobs=1)[0].scores
        for folder in (tmp_path / "cache", None)
    )
    np.testing.assert_array_equal(with_cache, without)
    other = write_synthetic_set(tmp_path / "t", 6, 2, size=(160, 120), seed=5)
    elsewhere = read_manifest(other / "manifest.csv")
    assert [r.path.name for r in elsewhere.records] == [r.path.name for r in manifest.records]
    found = panel.ask_members(elsewhere, [recipe], 2, cache=tmp_path / "cache", n_jobs=1)
    assert not np.allclose(found[0].scores, one)


def test_a_member_that_cannot_judge_an_image_is_silent(model, manifest, monkeypatch):
    record = manifest.records[0]
    before = model.predict(record.path, mpp=record.mpp)
    original = whole_image_model.WholeImageModel.scores

    def refuse(self, path, mpp=None):
        if self.recipe.downsample == 4.0:
            raise ImageError("too small")
        return original(self, path, mpp)

    monkeypatch.setattr(whole_image_model.WholeImageModel, "scores", refuse)
    answer = model.predict(record.path, mpp=record.mpp)
    assert (before.n_silent, answer.n_silent) == (0, 2)
    assert np.isfinite(answer.score) and answer.label
