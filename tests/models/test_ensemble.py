"""The presets of panels: several views of the tissue that decide together."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.images.source import ImageError
from histodict.models import EnsembleClassifier, Plan, TissueClassifier, load_model, save_model
from histodict.models import image_pipeline as whole_image_model
from histodict.models.recipe import Recipe, ensemble_recipes, preset
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.progress import PANEL_STAGES

RECIPE = replace(
    Plan.named("pixels", "nearest-mean").recipe,
    patch_px=8,
    patches_per_class=200,
    aggregation="margin-and-codes",
)
SMALL = Plan(RECIPE, calibration_folds=3, ensemble=True)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 6, 2, size=(160, 120))
    return read_manifest(folder / "manifest.csv")


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def model(manifest, told):
    return SMALL.build_model(random_state=0).fit(manifest, callback=told.append)


def seen(plan):
    return [(r.method, r.stain, r.downsample, r.context_scale) for r in plan.recipes]


def test_who_sits_on_it():
    assert seen(Plan.named("pixels")) == [
        ("dfdl", "reinhard", 1.0, 1),
        ("lbp-colour", "reinhard", 2.0, 1),
        ("lbp-colour", "none", 4.0, 1),
    ]
    assert Plan.named("pixels").recipe.method_parameters["penalty"] == 0.2
    scaled = ensemble_recipes(Plan.named("pixels").recipe.with_changes(mpp=0.5))
    assert [r.mpp for r in scaled] == [0.5, 1.0, 2.0]
    # Textures are looked at from as far whatever the patches are, unless those are from further.
    assert [r.downsample for r in ensemble_recipes(replace(preset("fast"), downsample=8.0))] == [
        8.0
    ] * 3
    assert [r.downsample for r in ensemble_recipes(preset("fast"))] == [2.0, 2.0, 4.0]
    assert {view[0] for view in seen(Plan.named("pixels", "wndcharm"))} == {"wndcharm"}
    assert len(Plan.named("pixels", "wndcharm").recipes) == 4
    network, plain, *others = ensemble_recipes(preset("embeddings"))
    assert network == preset("embeddings") and network.stain == "reinhard"
    assert plain == replace(network, stain="none")
    # Beside a network sit the pixels that stand first on the panel of pixels, and its textures.
    assert others == Plan.named("pixels").recipes[:2]
    for stain, other in (("macenko", "none"), ("none", "reinhard")):
        changed = ensemble_recipes(replace(preset("embeddings"), stain=stain))
        assert [r.stain for r in changed] == [stain, other, stain, stain]
    assert Plan.named("pixels", "shirc").recipe.method_parameters.get("n_channels", 3) == 3


def test_what_is_changed_beside_a_network_is_changed_in_all():
    settings = {
        "n_atoms": "70",
        "patches_per_class": "500",
        "min_tissue_fraction": "0.2",
        "mpp": "0.5",
    }
    plan = Plan(preset("embeddings"), 3, ensemble=True).parse_settings(settings)
    cells, plain, pixels, _ = plan.recipes
    for recipe in (cells, plain, pixels):
        assert (recipe.patches_per_class, recipe.min_tissue_fraction) == (500, 0.2)
        assert recipe.method_parameters["n_atoms"] == 70
    assert [r.mpp for r in plan.recipes] == [0.5, 0.5, 0.5, 1.0]
    # Its own: what pixels are best coded by is no good for cells.
    assert (cells.method_parameters["rho"], pixels.method_parameters["penalty"]) == (0.1, 0.2)
    assert "rho" not in pixels.method_parameters and pixels.stain == "reinhard"
    changed = plan.parse_settings({"stain": "macenko"})
    assert [r.stain for r in changed.recipes] == ["macenko", "none", "macenko", "macenko"]


def test_who_watches_hears_of_all_trainings(model, told):
    whole = [(p.stage, p.done) for p in told if p.stage in PANEL_STAGES]
    train_tests = [("unseen patients", n) for n in range(10)]
    assert list(dict.fromkeys(whole)) == [*train_tests, *(("views", n) for n in range(4))]
    assert [stage for stage, _ in whole] == sorted(
        [stage for stage, _ in whole], key=list(PANEL_STAGES).index
    )


def mean_of(answer):
    return answer.patch_map.margins[..., 1][answer.patch_map.tissue].mean()


def test_the_score_is_the_members_mean_and_the_map_is_the_first_ones(model, manifest):
    record = manifest.records[0]
    prediction = model.predict(record.path, mpp=record.mpp)
    first = TissueClassifier(RECIPE, random_state=0).fit(manifest)
    alone = first.predict(record.path, mpp=record.mpp)
    # From place to place the map differs as the first member's does; its level is the panel's.
    scale = model.combination_.scales[0]
    tissue, own = alone.patch_map.tissue, alone.patch_map.margins[..., 1]
    np.testing.assert_allclose(
        prediction.patch_map.margins[..., 1][tissue],
        ((own - mean_of(alone)) / scale + prediction.score)[tissue],
        atol=1e-5,
    )
    assert mean_of(alone) == pytest.approx(alone.score, abs=1e-5)
    assert prediction.threshold is None and "a panel of 3" in prediction.summary()
    scores = [member.predict(record.path, mpp=record.mpp).scores[0] for member in model.estimators_]
    assert len(scores) == model.n_estimators_ == 3 and scores[0] == alone.scores[0]
    combined = model.combination_
    bent = np.tanh(combined.tanh_scale * np.array(scores) / combined.scales) / combined.tanh_scale
    expected = np.average(bent, weights=combined.weights) + combined.offset
    assert prediction.score == pytest.approx(expected)
    assert prediction.label == max(
        prediction.probabilities, key=prediction.probabilities.__getitem__
    )
    moved = model.with_threshold(prediction.score + 0.01).predict(record.path, mpp=record.mpp)
    assert moved.label == model.classes_[0] and moved.score == pytest.approx(-0.01)
    assert moved.probabilities == prediction.probabilities


def test_it_is_kept_whole_in_a_file(model, manifest, tmp_path):
    file = save_model(model, tmp_path / "m.histodict")
    loaded = load_model(file)
    for record in manifest.records[:3]:
        one, two = (m.predict(record.path, mpp=record.mpp) for m in (model, loaded))
        assert (one.scores, one.probabilities) == (two.scores, two.probabilities)
    run = CliRunner().invoke(app, ["info", str(file)])
    assert run.exit_code == 0, run.output
    assert "These decide together" in run.output
    assert run.output.count("method=lbp-colour") == 2 and "downsample=4.0" in run.output
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
    two = [RECIPE, replace(RECIPE, stain="none")]
    one = EnsembleClassifier(two, folds=3, cache=tmp_path, n_jobs=1).fit(manifest)
    assert [len(patients) for patients in fitted] == [4] * 6 + [6, 6]
    # What was said of unseen patients is kept, and only the two members are trained again.
    again = EnsembleClassifier(two, folds=3, cache=tmp_path, n_jobs=1).fit(manifest)
    assert len(fitted) == 10
    np.testing.assert_array_equal(
        again.calibration_.nonconformity_scores, one.calibration_.nonconformity_scores
    )


def test_what_several_trainings_need_is_made_once_and_cleared_away(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measured = []
    original = whole_image_model._whole

    def whole(*given):
        measured.append(given[-1])
        return original(*given)

    monkeypatch.setattr(whole_image_model, "_whole", whole)
    textures = replace(preset("fast", "lbp-colour"), downsample=4.0)
    model = EnsembleClassifier([textures], folds=3, n_jobs=1).fit(manifest)
    # Three trainings in folds, their answers, and the one of all: every image once.
    assert sorted(measured) == sorted(record.path for record in manifest.records)
    assert list(tmp_path.iterdir()) == []
    assert model.estimators_[0].cache is None and model.estimators_[0].model_.cache is None


def test_a_member_that_does_not_fit_the_images_is_left_out_and_said(manifest):
    large = replace(RECIPE, patch_px=300)
    model = EnsembleClassifier([RECIPE, large], random_state=0).fit(manifest)
    assert model.n_estimators_ == 1
    facts = model.training_info_["estimators"]
    assert "failure" not in facts[0] and "less than one patch" in facts[1]["failure"]
    with pytest.raises(ValueError, match="less than one patch"):
        EnsembleClassifier([large, RECIPE]).fit(manifest)


def of_patients(manifest, n_per_class):
    """The images of the first patients of every class."""
    stored = []
    for name in manifest.classes:
        stored += sorted({r.patient for r in manifest.records if r.label == name})[:n_per_class]
    return manifest.select([i for i, patient in enumerate(manifest.patients) if patient in stored])


def test_with_two_patients_of_a_class_it_is_weighed_in_two_folds(manifest):
    model = SMALL.build_model().fit(of_patients(manifest, 2))
    assert model.training_info_["folds"] == 2 and model.calibration_ is not None


def test_with_one_patient_of_a_class_it_answers_and_says_what_is_not_known(manifest, tmp_path):
    few = of_patients(manifest, 1)
    model = SMALL.build_model().fit(few)
    assert model.training_info_["folds"] == 0 and model.n_estimators_ == 3
    np.testing.assert_allclose(model.combination_.weights, 1 / 3)
    predictions = [model.predict(r.path, mpp=r.mpp) for r in few.records]
    right = [a.label == r.label for a, r in zip(predictions, few.records, strict=True)]
    assert np.mean(right) > 0.9  # those it learnt from
    assert all(a.probabilities == {} and a.prediction_set == [] for a in predictions)
    with pytest.raises(ValueError, match="how sure it is cannot be known"):
        model.predict_proba(few.records[0].path)
    loaded = load_model(save_model(model, tmp_path / "m.histodict"))
    assert (
        loaded.predict(few.records[0].path, mpp=few.records[0].mpp).scores == predictions[0].scores
    )


def test_calibrated_methods_of_whole_images(manifest):
    model = EnsembleClassifier([preset("fast", "lbp-colour")], folds=2, random_state=0).fit(
        manifest
    )
    prediction = model.predict(manifest.records[0].path)
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    assert model.threshold is None and prediction.patch_map is None


def test_of_a_slide_some_tissue_stands_for_all(tmp_path, monkeypatch, rng):
    """Features that are means over the parts of an image; others refuse a slide."""
    pixels = np.full((1200, 1600, 3), 240, np.uint8)
    pixels[:, :800] = rng.integers(60, 200, (1200, 800, 3))
    pixels[:, :800, 1] //= 2
    Image.fromarray(pixels).save(tmp_path / "slide.png")
    Image.fromarray(pixels[:, :800]).save(tmp_path / "tissue.png")
    monkeypatch.setattr(whole_image_model, "_SQUARE_PX", 200)
    recipe = Recipe(method="lbp-colour")
    whole = whole_image_model.WholeImagePipeline(recipe, ["a", "b"], 0, 1)
    tissue = whole._features({tmp_path / "tissue.png": None}, None)[0]
    monkeypatch.setattr(whole_image_model, "_MAX_PIXELS", 100_000)
    parts = whole._features({tmp_path / "slide.png": None}, None)[0]
    np.testing.assert_allclose(parts, tissue, atol=0.02)
    other = whole_image_model.WholeImagePipeline(Recipe(method="wndcharm"), ["a", "b"], 0, 1)
    with pytest.raises(ImageError, match="too many for a method"):
        other._features({tmp_path / "slide.png": None}, None)
    Image.fromarray(np.full((1200, 1600, 3), 240, np.uint8)).save(tmp_path / "glass.png")
    with pytest.raises(ImageError, match="no tissue"):
        whole._features({tmp_path / "glass.png": None}, None)


def test_training_goes_on_from_a_cache(manifest, tmp_path):
    arguments = ["train", str(manifest.root), "--preset", "pixels", "--method", "nearest-mean"]
    arguments += ["--set", "patch_px=8", "--set", "patches_per_class=200", "--json"]
    arguments += ["--cache", str(tmp_path / "cache"), "-o", str(tmp_path / "m.histodict")]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    assert json.loads(run.output.splitlines()[-1])["threshold"] is None
    assert len(list((tmp_path / "cache" / "runs").glob("*.json"))) == 3 * 3


def test_a_member_that_cannot_judge_an_image_is_silent(model, manifest, monkeypatch):
    record = manifest.records[0]
    before = model.predict(record.path, mpp=record.mpp)
    original = whole_image_model.WholeImagePipeline.score_image

    def refuse(self, path, *more):
        if self.recipe.downsample == 4.0:
            raise ImageError("too small")
        return original(self, path, *more)

    monkeypatch.setattr(whole_image_model.WholeImagePipeline, "score_image", refuse)
    prediction = model.predict(record.path, mpp=record.mpp)
    assert (before.n_abstaining, prediction.n_abstaining) == (0, 1)
    assert np.isfinite(prediction.score) and prediction.label


def test_glass_has_no_answer_and_nobody_was_silent(model, manifest, tmp_path):
    Image.new("RGB", (160, 120), (244, 243, 245)).save(tmp_path / "glass.png")
    prediction = model.predict(tmp_path / "glass.png", mpp=manifest.records[0].mpp)
    assert (prediction.label, prediction.n_abstaining, prediction.row()["n_abstaining"]) == (
        None,
        0,
        0,
    )


def test_a_file_says_in_how_many_folds_it_was_weighed(manifest, tmp_path):
    ensemble = EnsembleClassifier([RECIPE], folds=2, cache=tmp_path / "cache").fit(manifest)
    assert load_model(save_model(ensemble, tmp_path / "m.histodict")).folds == 2
    # What inner folds got wrong is shown by nobody: only their answers are kept.
    assert not list((tmp_path / "cache" / "runs").rglob("*.npz"))


def test_a_panel_is_made_of_a_preset_or_of_recipes():
    assert EnsembleClassifier().recipes == Plan.named("default").recipes
    assert EnsembleClassifier("pixels").recipes == Plan.named("pixels").recipes
    assert EnsembleClassifier("pixels", method="odl").recipes == Plan.named("pixels", "odl").recipes
    assert EnsembleClassifier(preset("fast")).recipes == ensemble_recipes(preset("fast"))
    assert EnsembleClassifier(["fast", RECIPE]).recipes == [preset("fast"), RECIPE]
    first, *_, last = EnsembleClassifier("pixels", patch_px=12).recipes
    assert (first.patch_px, last.patch_px, last.method) == (12, 12, "lbp-colour")
    with pytest.raises(ValueError, match="not of none"):
        EnsembleClassifier([])


def test_a_method_of_whole_images_is_not_sent_to_a_cluster(manifest):
    with pytest.raises(ValueError, match="leave out the cluster"):
        EnsembleClassifier([preset("fast", "lbp-colour")], folds=2).fit(manifest, executor=object())
