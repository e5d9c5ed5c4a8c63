"""Tests of the models as used from Python: input, output and display."""

from __future__ import annotations

import shutil
import sys
import warnings
from contextlib import contextmanager
from copy import copy

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from typer.testing import CliRunner

import histodict
from histodict import EnsembleClassifier, RegionDetector, TissueClassifier
from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.decision.calibration import ScoreCombination
from histodict.images.pixel_size import PixelSize, PixelSizeOption
from histodict.metrics.scores import balanced_accuracy
from histodict.models import Predictions
from histodict.models.patch_pipeline import PatchPipeline
from histodict.models.recipe import Recipe, preset
from histodict.synthetic.dataset import write_synthetic_dataset

SMALL = {"n_atoms": 12, "n_iter": 2, "patches_per_class": 300}
KINDS = (TissueClassifier, RegionDetector, EnsembleClassifier)


@contextmanager
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.fixture(scope="module", autouse=True)
def without_a_screen():
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 4, 2, size=(96, 80))


@pytest.fixture(scope="module")
def model(tissue):
    return TissueClassifier("paper", random_state=1, **SMALL).fit(tissue)


@pytest.fixture(scope="module")
def detector(tissue):
    made = RegionDetector("regions", region="inflamed", random_state=1, **SMALL)
    return made.fit(tissue / "regions" / "manifest.csv")


@pytest.fixture(scope="module")
def ensemble(tissue):
    return EnsembleClassifier(["paper"], folds=2, patch_px=16, **SMALL).fit(tissue)


@pytest.fixture
def pixels(tissue):
    return np.asarray(Image.open(next((tissue / "inflamed").iterdir())))


# --- training -----------------------------------------------------------------------------------


def test_folder_table_and_manifest_train_the_same_model(model, tissue):
    manifest = read_manifest(tissue)
    for images in (tissue / "manifest.csv", str(tissue / "manifest.csv"), manifest):
        again = TissueClassifier("paper", random_state=1, **SMALL).fit(images)
        assert again.training_info_ == model.training_info_
        np.testing.assert_array_equal(again.model_.classifier_.dictionaries_, _atoms(model))


@pytest.mark.parametrize(
    ("kind", "last"),
    [
        ("model", (PatchPipeline, "score_images")),
        ("detector", (PatchPipeline, "score_images")),
        ("ensemble", (ScoreCombination, "fit")),
    ],
)
def test_failed_fit_leaves_the_model_unchanged(kind, last, request, tissue, monkeypatch):
    fitted = request.getfixturevalue(kind)
    images = tissue / "regions" / "manifest.csv" if kind == "detector" else tissue
    new, again = clone(fitted), copy(fitted)

    def fail(*_, **__):
        raise RuntimeError("the last step")

    monkeypatch.setattr(*last, fail)
    for one in (new, again):
        with pytest.raises(RuntimeError, match="the last step"):
            one.fit(images)
    with pytest.raises(NotFittedError):
        new.predict(tissue)
    assert not [name for name in vars(new) if name.endswith("_")]
    assert vars(again) == vars(fitted)  # the same objects


def test_dataframe_trains_the_same_model(model, tissue, monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tissue)
    frame = pandas.read_csv("manifest.csv")
    again = TissueClassifier("paper", random_state=1, **SMALL).fit(frame)
    np.testing.assert_array_equal(again.model_.classifier_.dictionaries_, _atoms(model))
    with no_warnings():
        assert again.score(frame) == model.score(tissue)
        assert again.predict(frame).labels == model.predict(tissue / "manifest.csv").labels


def _atoms(model):
    return model.model_.classifier_.dictionaries_


@pytest.mark.parametrize("positive", ["healthy", "inflamed"])
def test_positive_class_can_be_requested(positive, tissue):
    made = TissueClassifier("paper", **SMALL | {"n_iter": 1}).fit(tissue, positive=positive)
    assert made.classes_[1] == positive


def test_warnings_use_the_warnings_module_and_name_the_caller(tissue, tmp_path):
    for old, new in (("healthy", "one"), ("inflamed", "two")):
        shutil.copytree(tissue / old, tmp_path / new)
    (tmp_path / "one" / "notes.txt").write_text("x")
    with pytest.warns() as caught:
        made = TissueClassifier("paper", **SMALL | {"n_iter": 1}).fit(tmp_path)
    messages = [str(one.message) for one in caught]
    assert any("no patient" in text for text in messages)
    assert any("notes.txt" in text for text in messages)
    assert any("Set it with positive=" in text for text in messages)
    assert {one.filename for one in caught} == {__file__}
    assert made.class_names_ == ["one", "two"]
    with pytest.warns(UserWarning, match="Set it with region="):
        RegionDetector(**SMALL | {"n_iter": 1}).fit(tmp_path)
    for use in (made.score, RegionDetector(region="two", **SMALL | {"n_iter": 1}).fit):
        with pytest.warns() as caught:
            use(tmp_path)
        assert not any("Set it with" in str(one.message) for one in caught)
    with no_warnings():
        TissueClassifier("paper", **SMALL | {"n_iter": 1}).fit(tissue)


def test_verbose_shows_progress_bars(tissue, capsys):
    TissueClassifier("paper", verbose=True, **SMALL).fit(tissue).predict([tissue / "healthy"])
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    for stage, count in (
        ("Sampling patches", "8/8"),
        ("Fitting the decision rule", "8/8"),
        ("Training", ""),
    ):
        assert any(line.startswith(stage) and count in line for line in lines)
    assert any(line.startswith("Predicting") and "4/4" in line for line in lines)
    TissueClassifier("paper", **SMALL).fit(tissue)
    assert capsys.readouterr() == ("", "")


# --- prediction ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["model", "detector", "ensemble"])
def test_pixels_in_memory_are_predicted_like_their_file(kind, pixels, tmp_path, request):
    fitted = request.getfixturevalue(kind)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    expected = fitted.predict(tmp_path / "a.png", mpp=0.5)
    for specified in (pixels, Image.fromarray(pixels), Image.open(tmp_path / "a.png")):
        found = fitted.predict(specified, mpp=0.5)
        assert found.row() == expected.row()
        np.testing.assert_array_equal(found.patch_map.margins, expected.patch_map.margins)
        np.testing.assert_array_equal(
            found.patch_map.predicted_classes, expected.patch_map.predicted_classes
        )
        assert found.patch_map.mpp == 0.5


@pytest.mark.parametrize("method", ["lbp-colour", "mean-logistic"])
def test_whole_image_methods_predict_pixels_with_and_without_a_cache(
    method, tissue, pixels, tmp_path
):
    Image.fromarray(pixels).save(tmp_path / "a.png")
    for cache in (None, tmp_path / "cache"):
        made = TissueClassifier("fast", method=method, cache=cache, n_jobs=1).fit(tissue)
        expected = made.predict(tmp_path / "a.png", mpp=0.5).scores
        assert made.predict(pixels, mpp=0.5).scores == expected
        assert made.predict(pixels // 2, mpp=0.5).scores != expected  # not the cached features


def test_one_image_gives_one_prediction_and_several_a_list(model, tissue, pixels):
    files = sorted((tissue / "healthy").iterdir())
    one = model.predict(files[0])
    assert isinstance(one, histodict.models.ImagePrediction)
    several = [files, map(str, files), tissue / "healthy", [tissue / "healthy"]]
    for specified in several:
        found = model.predict(specified)
        assert isinstance(found, Predictions)
        assert [prediction.path for prediction in found] == files
        assert found[0].scores == one.scores
    mixed = model.predict([pixels, files[0], Image.fromarray(pixels)], mpp=0.5)
    assert [str(prediction.path) for prediction in mixed] == ["image 0", str(files[0]), "image 2"]
    assert mixed[0].scores == mixed[2].scores == model.predict(np.stack([pixels]))[0].scores
    assert [prediction.scores for prediction in mixed[1:]] == [mixed[1].scores, mixed[2].scores]
    assert isinstance(mixed[1:], Predictions)
    assert len(model.predict([])) == 0


def test_table_provides_pixel_sizes(model, tissue, tmp_path):
    file = next((tissue / "healthy").iterdir())
    (tmp_path / "t.csv").write_text(f"path,label,patient,mpp\n{file},healthy,p,0.25\n")
    sized = TissueClassifier(model.recipe, mpp=0.5, random_state=1).fit(read_manifest(tissue))
    (found,) = sized.predict(tmp_path / "t.csv", mpp=0.5)
    assert found.scores == sized.predict(file, mpp=0.25).scores
    assert found.n_patches != sized.predict(file, mpp=0.5).n_patches


def test_table_without_labels_warns_once_of_assumed_pixel_sizes(model, tissue, tmp_path):
    files = sorted((tissue / "healthy").iterdir())[:3]
    (tmp_path / "t.csv").write_text("\n".join(["path", *map(str, files)]))
    with pytest.warns(UserWarning, match="pixel size of 3 of 3 images is not known") as output:
        found = model.predict(tmp_path / "t.csv")
    assert len(output) == 1 and output[0].filename == __file__
    assert {prediction.size.origin for prediction in found} == {"assumed"}
    with no_warnings():
        found = model.predict(tmp_path / "t.csv", mpp=PixelSizeOption(override=0.5))
    assert {prediction.size for prediction in found} == {PixelSize(0.5, "command")}


@pytest.mark.parametrize("name", ["t.tsv", "T.TXT"])
def test_table_file_names_of_the_command_line(model, tissue, tmp_path, name):
    files = sorted((tissue / "healthy").iterdir())[:2]
    (tmp_path / name).write_text("\n".join(["path\tmpp", *(f"{file}\t0.5" for file in files)]))
    assert model.predict(tmp_path / name).labels == model.predict(files, mpp=0.5).labels


def test_invalid_images_are_refused(model, ensemble, tmp_path):
    with pytest.raises(TypeError, match="not int"):
        model.predict(3)
    with pytest.raises(
        ValueError, match=r"image: an image must be an array .* \(4, 5\) of float64"
    ):
        model.predict(np.zeros((4, 5)))
    with pytest.raises(ValueError, match=r"image 1: an image must be an array"):
        model.predict([np.zeros((40, 50, 3), np.uint8), np.zeros(3)])
    with pytest.raises(ValueError, match="file not found"):
        model.predict(tmp_path / "none.png")
    with pytest.raises(ValueError, match="no image in this folder"):
        model.predict(tmp_path)
    (tmp_path / "a.gif").write_bytes(b"x")
    Image.new("RGB", (60, 50), "pink").save(tmp_path / "a.png")
    for use, specified in (
        (model.predict, tmp_path),
        (model.predict, [tmp_path]),
        (ensemble.predict_proba, tmp_path),
    ):
        with pytest.warns(UserWarning, match=r"unsupported files skipped: a\.gif") as caught:
            use(specified)
        assert caught[0].filename == __file__


def test_table_equals_that_of_the_command_line(model, detector, ensemble, tissue, tmp_path):
    pandas = pytest.importorskip("pandas")
    for name, fitted, command, folder in (
        ("predictions", model, "predict", "inflamed"),
        ("predictions", ensemble, "predict", "inflamed"),
        ("detections", detector, "predict", "regions"),
    ):
        file = fitted.save(tmp_path / f"{fitted.kind}.histodict")
        out = tmp_path / fitted.kind
        files = sorted((tissue / folder).glob("*.jpg"))
        output = CliRunner().invoke(app, [command, str(file), *map(str, files), "-o", str(out)])
        assert output.exit_code == 0, output.output
        expected = pandas.read_parquet(out / f"{name}.parquet").drop(columns="key")
        found = fitted.predict(files).to_frame()
        pandas.testing.assert_frame_equal(found, expected, check_dtype=False)
        assert len(found) == len(files) > 1
    assert list(model.predict([]).to_frame().columns) == list(model.columns)


def test_missing_pandas_only_affects_dataframes(model, tissue, monkeypatch):
    class NoPandas:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name.partition(".")[0] == "pandas":
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.partition(".")[0] == "pandas"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoPandas, *sys.meta_path])
    found = model.predict(tissue / "healthy")
    assert found.rows()[0]["label"] in model.class_names_
    with pytest.raises(ImportError, match="pip install pandas"):
        found.to_frame()


def test_score_is_balanced_accuracy(model, detector, tissue):
    manifest = read_manifest(tissue)
    few = manifest.select([0, 1, 2, *range(4, len(manifest.records))])
    labels = [model.predict(r.path, mpp=r.mpp).label for r in few.records]
    assert model.score(few) == balanced_accuracy(np.array(few.labels), np.array(labels))
    with pytest.raises(ValueError, match="the metric needs two classes"):
        detector.score(tissue / "regions" / "manifest.csv")  # every image has a region


def test_predict_proba_needs_a_calibrated_model(ensemble, model, detector, pixels, tissue):
    files = sorted((tissue / "healthy").iterdir())
    found = ensemble.predict_proba(files)
    assert found.shape == (len(files), 2)
    for row, prediction in zip(found, ensemble.predict(files), strict=True):
        assert dict(zip(ensemble.classes_, row, strict=True)) == prediction.probabilities
    assert ensemble.predict_proba(pixels).shape == (1, 2)
    background = np.full((80, 96, 3), 245, np.uint8)
    assert np.isnan(ensemble.predict_proba([background])).all()
    for other in (model, detector):
        assert not hasattr(other, "predict_proba")
        with pytest.raises(
            AttributeError, match=r"fit an EnsembleClassifier.*EnsembleClassifier\(\['fast'\]\)"
        ):
            other.predict_proba(files)


# --- display ------------------------------------------------------------------------------------


def test_predictions_are_plotted_on_axes(model, detector, pixels, tissue):
    from matplotlib import pyplot

    _, ax = pyplot.subplots()
    prediction = model.predict(pixels)
    assert prediction.plot(ax) is ax
    synthetic = ax.images[0].get_array()
    assert synthetic.shape[2] == 3
    assert not np.array_equal(synthetic[:80, :96], pixels)  # the map is drawn on the image
    assert prediction.label in ax.get_title()
    several = model.predict([pixels] * 5).plot(n_columns=3)
    assert several.shape == (2, 3)
    assert [len(ax.images) for ax in several.flat] == [1, 1, 1, 1, 1, 0]
    assert "region" in detector.predict(pixels).plot().get_title()


def test_method_without_a_map_plots_the_image(tissue, pixels):
    made = TissueClassifier("fast", method="lbp-colour", n_jobs=1).fit(tissue)
    prediction = made.predict(pixels)
    np.testing.assert_array_equal(prediction.plot().images[0].get_array(), pixels)
    assert prediction.label in prediction._repr_html_()


def test_repr_of_predictions_is_informative_and_escaped(model, ensemble, pixels, tissue, tmp_path):
    prediction = model.predict(pixels)
    assert (
        repr(prediction)
        == f"ImagePrediction('image': {prediction.label}, score {prediction.score:.3g})"
    )
    assert "%" in repr(ensemble.predict(pixels))
    bad = tmp_path / "<b>&.png"
    Image.fromarray(pixels).save(bad)
    html = model.predict(bad)._repr_html_()
    assert "&lt;b&gt;&amp;.png" in html
    assert "<b>&.png" not in html
    assert 'src="data:image/' in html
    assert len(html) < 100_000
    many = model.predict([bad] * 14)
    assert repr(many) == f"<14 predictions: 14 {prediction.label}>"
    assert many._repr_html_().count("<img") == 12
    assert "and 2 more" in many._repr_html_()


def test_labels_are_escaped_in_html_and_mathtext(tissue, tmp_path, pixels):
    for old, new in (("healthy", "no $x"), ("inflamed", "<i>$\\alpha")):
        shutil.copytree(tissue / old, tmp_path / new)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = TissueClassifier("paper", **SMALL | {"n_iter": 1}).fit(tmp_path)
    predictions = made.predict([pixels])
    for prediction in (made, predictions, predictions[0]):
        assert "<i>" not in prediction._repr_html_()
    for axes in (predictions.plot().flat, made.plot_atoms(3)):
        for ax in axes:
            ax.figure.canvas.draw()


def test_atoms_are_plotted_by_class(model, ensemble, tissue):
    axes = model.plot_atoms(5)
    assert [ax.get_title() for ax in axes] == ["healthy: 5 of 12 atoms", "inflamed: 5 of 12 atoms"]
    assert axes[0].images[0].get_array().shape[1] == 5 * (3 * model.recipe.patch_px + 4)
    assert ensemble.plot_atoms(3, axes) is axes
    made = TissueClassifier("fast", method="lbp-colour", n_jobs=1).fit(tissue)
    with pytest.raises(ValueError, match="no atoms"):
        made.plot_atoms()


# --- parameters and files -----------------------------------------------------------------------


def test_settings_are_keyword_arguments():
    made = TissueClassifier("paper", n_atoms=100, patch_px=12)
    assert made.recipe == preset("paper").replace_settings({"n_atoms": 100, "patch_px": 12})
    assert TissueClassifier(n_atoms=7).recipe.method_parameters["n_atoms"] == 7
    assert TissueClassifier("paper", method="odl").recipe == preset("paper", "odl")
    assert TissueClassifier(preset("fast"), method="odl").recipe.method == "odl"
    assert RegionDetector(smoothing_radius=2).recipe.smoothing_radius == 2


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_settings_are_refused_with_a_suggestion(kind):
    for wrong, near in (("n_atom", "n_atoms"), ("patchpx", "patch_px"), ("randomstate", "random_")):
        with pytest.raises(ValueError, match=f"unknown setting '{wrong}' .did you mean {near}"):
            kind(**{wrong: 3})
        with pytest.raises(ValueError, match=f"unknown setting '{wrong}' .did you mean {near}"):
            kind().set_params(**{wrong: 3})
    with pytest.raises(ValueError, match="patch_px must be a whole number"):
        kind(patch_px="x")
    with pytest.raises(ValueError, match="n_atoms must be"):
        kind(n_atoms="many")


def test_setting_names_differ_from_constructor_parameters():
    own = {"recipe", "recipes", "method", "region", "folds", "cache", "verbose", "n_jobs"}
    for method in histodict.methods.registry.METHODS:
        assert not own & Recipe(method).setting_names()


@pytest.mark.parametrize("kind", KINDS)
def test_get_params_set_params_and_clone(kind, tmp_path):
    made = kind("fast", method="odl", n_atoms=30, random_state=4, cache=tmp_path)
    own = made.get_params(deep=False)
    assert (own["n_atoms"], own["method"], own["random_state"]) == (30, "odl", 4)
    again = clone(made)
    assert again is not made
    assert again.get_params() == made.get_params()
    assert again.recipe == made.recipe
    assert clone(kind()).get_params() == kind().get_params()
    changed = clone(made).set_params(n_atoms=9, patch_px=18, verbose=True)
    assert changed.recipe == made.recipe.replace_settings({"n_atoms": 9, "patch_px": 18})
    assert (changed.verbose, changed.random_state) == (True, 4)
    assert made.recipe.method_parameters["n_atoms"] == 30
    made.random_state = 5  # as some functions do
    assert made.set_params(n_jobs=2).get_params()["random_state"] == 5
    before = made.get_params()
    with pytest.raises(ValueError, match="patch_px"):
        made.set_params(n_atoms=5, patch_px=0)
    assert made.get_params() == before


def test_get_params_has_all_settings():
    reported = TissueClassifier("paper").get_params()
    assert (reported["n_atoms"], reported["patch_px"], reported["stain"]) == (500, 20, "none")
    assert "max_iter" not in TissueClassifier("paper").get_params(deep=False)


@pytest.mark.parametrize("kind", ["model", "detector", "ensemble"])
def test_n_jobs_of_a_fitted_model_can_be_changed(kind, request, pixels):
    fitted = request.getfixturevalue(kind)
    before, n_jobs = fitted.predict(pixels).row(), fitted.n_jobs
    try:
        fitted.set_params(n_jobs=1)
        assert (fitted.n_jobs, fitted.model_.n_jobs) == (1, 1)
        assert fitted.predict(pixels).row() == before
    finally:
        fitted.set_params(n_jobs=n_jobs)
    assert not hasattr(clone(fitted), "training_info_")


def test_repr_of_a_model_describes_its_training(model):
    for html in (
        TissueClassifier()._repr_html_(),
        TissueClassifier()._repr_mimebundle_()["text/html"],
    ):
        assert "not fitted" in html
    assert "healthy / inflamed, trained on 8 images of 4 patients" in model._repr_html_()


@pytest.mark.parametrize("kind", KINDS)
def test_unfitted_model_is_refused(kind, pixels, tissue, tmp_path):
    made = kind()
    for use in (
        lambda: made.predict(pixels),
        lambda: made.predict_one(tmp_path / "a.png"),
        lambda: made.score(tissue),
        lambda: made.save(tmp_path / "m.histodict"),
        lambda: made.plot_atoms(),
    ):
        with pytest.raises(NotFittedError, match="this model is not fitted"):
            use()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["model", "detector", "ensemble"])
def test_model_file_round_trip(kind, request, pixels, tmp_path):
    fitted = request.getfixturevalue(kind)
    file = fitted.save(tmp_path / "m.histodict")
    for load in (histodict.load, type(fitted).load):
        loaded = load(file, n_jobs=1)
        assert type(loaded) is type(fitted)
        assert loaded.predict(pixels).row() == fitted.predict(pixels).row()
        assert clone(loaded).recipe == fitted.recipe
    for other in set(KINDS) - {type(fitted)}:
        with pytest.raises(ValueError, match=f"contains a {fitted.kind}, not a {other.kind}"):
            other.load(file)
