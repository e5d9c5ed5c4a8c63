"""Tests of ensemble presets and of ensembles."""

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
from histodict.models.ensemble_recipes import ensemble_recipes
from histodict.models.recipe import Recipe, preset
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.progress import ENSEMBLE_STAGES

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
def reports():
    return []


@pytest.fixture(scope="module")
def model(manifest, reports):
    return SMALL.build_model(random_state=0).fit(manifest, callback=reports.append)


def summarize_members(plan):
    return [(r.method, r.stain, r.downsample, r.context_scale) for r in plan.recipes]


def test_members_of_presets():
    assert summarize_members(Plan.named("pixels")) == [
        ("dfdl", "reinhard", 1.0, 1),
        ("lbp-colour", "reinhard", 2.0, 1),
        ("lbp-colour", "none", 4.0, 1),
    ]
    assert Plan.named("pixels").recipe.method_parameters["penalty"] == 0.2
    scaled = ensemble_recipes(Plan.named("pixels").recipe.with_changes(mpp=0.5))
    assert [r.mpp for r in scaled] == [0.5, 1.0, 2.0]
    # Textures use a fixed downsampling, unless the patches are downsampled more.
    assert [r.downsample for r in ensemble_recipes(replace(preset("fast"), downsample=8.0))] == [
        8.0
    ] * 3
    assert [r.downsample for r in ensemble_recipes(preset("fast"))] == [2.0, 2.0, 4.0]
    members = summarize_members(Plan.named("pixels", "wndcharm"))
    assert {method for method, *_ in members} == {"wndcharm"}
    assert len(Plan.named("pixels", "wndcharm").recipes) == 4
    with_encoder, plain, *others = ensemble_recipes(preset("embeddings"))
    assert with_encoder == preset("embeddings") and with_encoder.stain == "reinhard"
    assert plain == replace(with_encoder, stain="none")
    # With an encoder: the first pixel model of the preset `pixels`, and its textures.
    assert others == Plan.named("pixels").recipes[:2]
    for stain, other in (("macenko", "none"), ("none", "reinhard")):
        changed = ensemble_recipes(replace(preset("embeddings"), stain=stain))
        assert [r.stain for r in changed] == [stain, other, stain, stain]
    assert Plan.named("pixels", "shirc").recipe.method_parameters.get("n_channels", 3) == 3


def test_settings_apply_to_all_members():
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
    # Its own value: the best value for pixels is not suitable for encoder features.
    assert (cells.method_parameters["rho"], pixels.method_parameters["penalty"]) == (0.1, 0.2)
    assert "rho" not in pixels.method_parameters and pixels.stain == "reinhard"
    changed = plan.parse_settings({"stain": "macenko"})
    assert [r.stain for r in changed.recipes] == ["macenko", "none", "macenko", "macenko"]


def test_callback_gets_the_progress_of_all_trainings(model, reports):
    stages = [(p.stage, p.done) for p in reports if p.stage in ENSEMBLE_STAGES]
    train_tests = [("cross-validation", n) for n in range(10)]
    assert list(dict.fromkeys(stages)) == [*train_tests, *(("members", n) for n in range(4))]
    assert [stage for stage, _ in stages] == sorted(
        [stage for stage, _ in stages], key=list(ENSEMBLE_STAGES).index
    )


def mean_of(prediction):
    return prediction.patch_map.margins[..., 1][prediction.patch_map.tissue].mean()


def test_score_is_the_mean_of_members_and_map_that_of_the_first(model, manifest):
    record = manifest.records[0]
    prediction = model.predict(record.path, mpp=record.mpp)
    first = TissueClassifier(RECIPE, random_state=0).fit(manifest)
    alone = first.predict(record.path, mpp=record.mpp)
    # Differences within the map are those of the first member; the level is that of the ensemble.
    scale = model.combination_.scales[0]
    tissue, own = alone.patch_map.tissue, alone.patch_map.margins[..., 1]
    np.testing.assert_allclose(
        prediction.patch_map.margins[..., 1][tissue],
        ((own - mean_of(alone)) / scale + prediction.score)[tissue],
        atol=1e-5,
    )
    assert mean_of(alone) == pytest.approx(alone.score, abs=1e-5)
    assert prediction.threshold is None and "an ensemble of 3" in prediction.summary()
    scores = [member.predict(record.path, mpp=record.mpp).scores[0] for member in model.estimators_]
    assert len(scores) == model.n_estimators_ == 3 and scores[0] == alone.scores[0]
    combined = model.combination_
    bent = np.tanh(combined.tanh_scale * np.array(scores) / combined.scales) / combined.tanh_scale
    expected = np.average(bent, weights=combined.weights) + combined.offset
    assert prediction.score == pytest.approx(expected)
    assert prediction.top_label == max(
        prediction.probabilities, key=prediction.probabilities.__getitem__
    )
    moved = model.with_threshold(prediction.score + 0.01).predict(record.path, mpp=record.mpp)
    assert moved.label == model.classes_[0] and moved.score == pytest.approx(-0.01)
    assert moved.probabilities == prediction.probabilities


def test_model_file_round_trip(model, manifest, tmp_path):
    file = save_model(model, tmp_path / "m.histodict")
    loaded = load_model(file)
    for record in manifest.records[:3]:
        one, two = (m.predict(record.path, mpp=record.mpp) for m in (model, loaded))
        assert (one.scores, one.probabilities) == (two.scores, two.probabilities)
    run = CliRunner().invoke(app, ["info", str(file)])
    assert run.exit_code == 0, run.output
    assert "Base models" in run.output
    assert run.output.count("method=lbp-colour") == 2 and "downsample=4.0" in run.output
    out = tmp_path / "out"
    image = str(manifest.records[0].path)
    run = CliRunner().invoke(app, ["predict", str(file), image, "-o", str(out)])
    assert run.exit_code == 0, run.output
    assert "probability_" in (out / "predictions.csv").read_text()


def test_members_are_evaluated_on_patients_they_were_not_trained_on(
    manifest, tmp_path, monkeypatch
):
    fitted = []
    original = TissueClassifier.fit

    def fit(self, data, **more):
        fitted.append(set(data.patients))
        return original(self, data, **more)

    monkeypatch.setattr(TissueClassifier, "fit", fit)
    two = [RECIPE, replace(RECIPE, stain="none")]
    one = EnsembleClassifier(two, folds=3, cache=tmp_path, n_jobs=1).fit(manifest)
    assert [len(patients) for patients in fitted] == [4] * 6 + [6, 6]
    # Out-of-fold scores are cached, and only the two members are trained again.
    again = EnsembleClassifier(two, folds=3, cache=tmp_path, n_jobs=1).fit(manifest)
    assert len(fitted) == 10
    np.testing.assert_array_equal(
        again.calibration_.nonconformity_scores, one.calibration_.nonconformity_scores
    )


def test_shared_features_are_computed_once_and_removed(manifest, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    measured = []
    original = whole_image_model._whole_image_pixels

    def stages(*arguments):
        measured.append(arguments[-1])
        return original(*arguments)

    monkeypatch.setattr(whole_image_model, "_whole_image_pixels", stages)
    textures = replace(preset("fast", "lbp-colour"), downsample=4.0)
    model = EnsembleClassifier([textures], folds=3, n_jobs=1).fit(manifest)
    # Three trainings in folds, their predictions, and the final training use every image once.
    assert sorted(measured) == sorted(record.path for record in manifest.records)
    assert list(tmp_path.iterdir()) == []
    assert model.estimators_[0].cache is None and model.estimators_[0].model_.cache is None


def test_failing_member_is_excluded_with_a_warning(manifest):
    large = replace(RECIPE, patch_px=300)
    model = EnsembleClassifier([RECIPE, large], random_state=0).fit(manifest)
    assert model.n_estimators_ == 1
    estimators = model.training_info_["estimators"]
    assert "failure" not in estimators[0] and "smaller than a patch" in estimators[1]["failure"]
    with pytest.raises(ValueError, match="smaller than a patch"):
        EnsembleClassifier([large, RECIPE]).fit(manifest)


def of_patients(manifest, n_per_class):
    """Return the images of the first patients of every class."""
    stored = []
    for name in manifest.classes:
        stored += sorted({r.patient for r in manifest.records if r.label == name})[:n_per_class]
    return manifest.select([i for i, patient in enumerate(manifest.patients) if patient in stored])


def test_two_patients_per_class_are_calibrated_in_two_folds(manifest):
    model = SMALL.build_model().fit(of_patients(manifest, 2))
    assert model.training_info_["folds"] == 2 and model.calibration_ is not None


def test_one_patient_per_class_gives_an_uncalibrated_model(manifest, tmp_path):
    few = of_patients(manifest, 1)
    model = SMALL.build_model().fit(few)
    assert model.training_info_["folds"] == 0 and model.n_estimators_ == 3
    np.testing.assert_allclose(model.combination_.weights, 1 / 3)
    predictions = [model.predict(r.path, mpp=r.mpp) for r in few.records]
    right = [a.top_label == r.label for a, r in zip(predictions, few.records, strict=True)]
    assert np.mean(right) > 0.9  # the training images
    assert all(a.probabilities == {} and a.prediction_set == [] for a in predictions)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(AttributeError, match=r"not calibrated: .*'inflamed' has only one patient"):
        model.predict_proba(few.records[0].path)
    loaded = load_model(save_model(model, tmp_path / "m.histodict"))
    assert (
        loaded.predict(few.records[0].path, mpp=few.records[0].mpp).scores == predictions[0].scores
    )


def test_whole_image_methods_are_calibrated(manifest):
    model = EnsembleClassifier([preset("fast", "lbp-colour")], folds=2, random_state=0).fit(
        manifest
    )
    prediction = model.predict(manifest.records[0].path)
    assert sum(prediction.probabilities.values()) == pytest.approx(1)
    assert model.threshold is None and prediction.patch_map is None


def test_slide_is_represented_by_sampled_tissue(tmp_path, monkeypatch, rng):
    """Features that are means over parts of an image; other features refuse a slide."""
    pixels = np.full((600, 800, 3), 240, np.uint8)
    pixels[:, :400] = rng.integers(60, 200, (600, 400, 3))
    pixels[:, :400, 1] //= 2
    Image.fromarray(pixels).save(tmp_path / "slide.png")
    Image.fromarray(pixels[:, :400]).save(tmp_path / "tissue.png")
    monkeypatch.setattr(whole_image_model, "_SQUARE_PX", 100)
    recipe = Recipe(method="lbp-colour")
    stages = whole_image_model.WholeImagePipeline(recipe, ["a", "b"], 0, 1)
    tissue = stages._feature_vectors({tmp_path / "tissue.png": None}, None)[0]
    monkeypatch.setattr(whole_image_model, "_MAX_PIXELS", 25_000)
    parts = stages._feature_vectors({tmp_path / "slide.png": None}, None)[0]
    np.testing.assert_allclose(parts, tissue, atol=0.02)
    other = whole_image_model.WholeImagePipeline(Recipe(method="wndcharm"), ["a", "b"], 0, 1)
    with pytest.raises(ImageError, match="too many for a method"):
        other._feature_vectors({tmp_path / "slide.png": None}, None)
    Image.fromarray(np.full((600, 800, 3), 240, np.uint8)).save(tmp_path / "background.png")
    with pytest.raises(ImageError, match="no tissue"):
        stages._feature_vectors({tmp_path / "background.png": None}, None)


def test_training_resumes_from_the_cache(manifest, tmp_path):
    arguments = ["train", str(manifest.root), "--preset", "pixels", "--method", "nearest-mean"]
    arguments += ["--set", "patch_px=8", "--set", "patches_per_class=200", "--json"]
    arguments += ["--cache", str(tmp_path / "cache"), "-o", str(tmp_path / "m.histodict")]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    assert json.loads(run.output.splitlines()[-1])["threshold"] is None
    assert len(list((tmp_path / "cache" / "runs").glob("*.json"))) == 3 * 3


def test_member_that_fails_on_an_image_abstains(model, manifest, monkeypatch):
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


def test_background_image_has_no_label_and_no_abstention(model, manifest, tmp_path):
    Image.new("RGB", (160, 120), (244, 243, 245)).save(tmp_path / "background.png")
    prediction = model.predict(tmp_path / "background.png", mpp=manifest.records[0].mpp)
    assert (prediction.label, prediction.n_abstaining, prediction.row()["n_abstaining"]) == (
        None,
        0,
        0,
    )


def test_number_of_folds_is_stored(manifest, tmp_path):
    ensemble = EnsembleClassifier([RECIPE], folds=2, cache=tmp_path / "cache").fit(manifest)
    assert load_model(save_model(ensemble, tmp_path / "m.histodict")).folds == 2
    # only predictions of inner folds are cached, so no training image is predicted.
    assert not list((tmp_path / "cache" / "runs").rglob("*.npz"))


def test_ensemble_is_created_from_a_preset_or_recipes():
    assert EnsembleClassifier().recipes == Plan.named("default").recipes
    assert EnsembleClassifier("pixels").recipes == Plan.named("pixels").recipes
    assert EnsembleClassifier("pixels", method="odl").recipes == Plan.named("pixels", "odl").recipes
    assert EnsembleClassifier(preset("fast")).recipes == ensemble_recipes(preset("fast"))
    assert EnsembleClassifier(["fast", RECIPE]).recipes == [preset("fast"), RECIPE]
    first, *_, last = EnsembleClassifier("pixels", patch_px=12).recipes
    assert (first.patch_px, last.patch_px, last.method) == (12, 12, "lbp-colour")
    with pytest.raises(ValueError, match="recipes is empty"):
        EnsembleClassifier([])


def test_whole_image_method_refuses_a_cluster(manifest):
    with pytest.raises(ValueError, match="Leave out the cluster"):
        EnsembleClassifier([preset("fast", "lbp-colour")], folds=2).fit(manifest, executor=object())
