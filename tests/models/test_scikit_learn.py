"""Image models follow the conventions of scikit-learn and work with its tools."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import sklearn
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix, roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    GroupKFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import Pipeline

import histodict
from histodict import EnsembleClassifier, RegionDetector, TissueClassifier
from histodict.datasets.manifest import Manifest, read_manifest
from histodict.models.class_labels import NamedLabels, labels_from_names
from histodict.models.recipe import Recipe, preset
from histodict.synthetic.dataset import write_synthetic_dataset

SMALL = {"n_atoms": 8, "n_iter": 1, "patches_per_class": 120, "patch_px": 12, "n_jobs": 1}
FOLDS = GroupKFold(2)
KINDS = (TissueClassifier, RegionDetector, EnsembleClassifier)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set") / "t"
    return read_manifest(write_synthetic_dataset(folder, 4, 2, size=(96, 80)))


@pytest.fixture(scope="module")
def paths(manifest):
    return [str(record.path) for record in manifest.records]


@pytest.fixture(scope="module")
def arrays(paths):
    return [np.asarray(Image.open(path)) for path in paths]


@pytest.fixture(scope="module")
def y(manifest):
    return np.array(manifest.labels)


@pytest.fixture(scope="module")
def patients(manifest):
    return manifest.patients


@pytest.fixture
def unfitted():
    return TissueClassifier("paper", **SMALL)


@pytest.fixture(scope="module")
def model(paths, y):
    return TissueClassifier("paper", **SMALL).fit(paths, y)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


# --- fit(X, y, groups) --------------------------------------------------------------------------


def test_list_of_paths_trains_the_same_model_as_the_table(
    model, unfitted, manifest, paths, y, patients
):
    table = Manifest(tuple(manifest.records)).with_positive("inflamed")
    again = unfitted.fit(table)
    expected = again.decision_function(paths)
    for X in (list(map(Path, paths)), np.array(paths), np.array(paths, dtype=object)):
        fitted = clone(unfitted).fit(X, y, groups=patients)
        np.testing.assert_array_equal(fitted.decision_function(X), expected)
        assert fitted.training_info_["n_patients"] == again.training_info_["n_patients"] == 4
    assert "images of 4 patients" in fitted._repr_html_()
    assert "images of unknown patients" in model._repr_html_()  # no groups


def test_arrays_are_processed_like_files_without_loss(unfitted, arrays, y, patients, tmp_path):
    files = [tmp_path / f"{index}.png" for index in range(len(arrays))]
    for file, pixels in zip(files, arrays, strict=True):
        Image.fromarray(pixels).save(file)
    expected = clone(unfitted).fit(files, y, patients).decision_function(files)
    images = [Image.fromarray(pixels) for pixels in arrays]
    for X in (arrays, np.stack(arrays), images, [files[0], *arrays[1:]]):
        fitted = clone(unfitted).fit(X, y, patients)
        np.testing.assert_array_equal(fitted.decision_function(X), expected)
        np.testing.assert_array_equal(fitted.decision_function(files), expected)
    whole = TissueClassifier("fast", method="lbp-colour", n_jobs=1)
    np.testing.assert_array_equal(
        clone(whole).fit(arrays, y).decision_function(arrays),
        clone(whole).fit(files, y).decision_function(files),
    )


def test_arrays_leave_no_files(unfitted, arrays, y, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    unfitted.fit(arrays, y)
    with pytest.raises(ValueError, match="at least two classes"):
        unfitted.fit(arrays[:2], y[:2])
    assert not list(tmp_path.iterdir())


def test_records_and_dataframes_have_labels_that_y_replaces(unfitted, manifest, paths, y):
    pandas = pytest.importorskip("pandas")
    records = list(manifest.records)
    expected = clone(unfitted).fit(manifest).decision_function(paths)
    np.testing.assert_array_equal(clone(unfitted).fit(records).decision_function(records), expected)
    swapped = np.where(y == "healthy", "inflamed", "healthy")
    frame = pandas.DataFrame({"path": paths, "label": y, "patient": manifest.patients})
    for X in (records, manifest, frame):
        fitted = clone(unfitted).fit(X, swapped)
        assert fitted.training_info_["n_patients"] == 4
        assert fitted.score(X) == pytest.approx(1 - fitted.score(X, swapped))
    without_labels = frame.drop(columns="label")
    np.testing.assert_array_equal(
        clone(unfitted).fit(without_labels, pandas.Series(y)).decision_function(frame), expected
    )


@pytest.mark.parametrize(
    ("X", "y", "groups", "message"),
    [
        (["a.png", "b.png"], None, None, "y is missing"),
        (["a.png", "b.png"], ["u"], None, "X has 2 images, and y 1"),
        (["a.png", "b.png"], ["u", "v"], [1], "X has 2 images, and groups 1"),
        (["a.png", "b.png"], ["u", "v"], [1, None], "groups has no patient for image 1"),
        (["a.png", "b.png"], ["u", "v"], [1, np.nan], "groups has no patient for image 1"),
        (["a.png", "b.png"], ["u", " "], None, "the label of image 1 is empty"),
        (["a.png", "b.png"], ["u", None], None, "have one type.*NoneType, str"),
        (["a.png", "b.png"], [0.5, 1.5], None, "continuous"),
        (["a.png", "a.png"], ["u", "v"], None, "X contains a.png twice"),
        (["a.png", "b.png"], ["u", "u"], None, "at least two classes"),
        (["a.png", "b.png"], ["u", "v"], None, "cannot be used"),
        ([np.zeros((9, 9, 4)), "b.png"], ["u", "v"], None, r"image 0: an image must be an array"),
        (np.zeros((2, 30)), ["u", "v"], None, r"image 0: an image must be an array"),
        (np.zeros((30, 30, 3), np.uint8), ["u"] * 30, None, "X is a single image"),
    ],
)
def test_unusable_images_and_labels_are_refused(unfitted, X, y, groups, message):
    with pytest.raises(ValueError, match=message):
        unfitted.fit(X, y, groups)
    assert not hasattr(unfitted, "classes_")


def test_folder_with_separate_labels_is_refused(unfitted, manifest, y, paths, model):
    with pytest.raises(TypeError, match="a list of paths"):
        unfitted.fit(manifest.root, y)
    with pytest.raises(ValueError, match="positive=… applies to tables"):
        unfitted.fit(paths, y, positive="healthy")
    with pytest.raises(ValueError, match="give y"):
        model.score(paths)
    with pytest.raises(ValueError, match="X has 8 images, and y 7 labels"):
        model.score(paths, y[:-1])


# --- labels -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["tumour", "normal"]),
        np.array(["cancer", "healthy"], dtype=object),  # the last is positive, whatever its name
        np.array([10, 9]),
        np.array([True, False]),
        np.array([1.0, 2.0]),
    ],
)
def test_classes_are_sorted_and_predictions_have_the_type_of_y(
    unfitted, paths, y, labels, tmp_path
):
    truth = labels[(y == "inflamed").astype(int)]
    unfitted.fit(paths, truth)
    for fitted in (unfitted, histodict.load(unfitted.save(tmp_path / "m.histodict"))):
        np.testing.assert_array_equal(fitted.classes_, np.unique(labels))
        found = np.asarray(fitted.predict(paths))
        assert found.dtype.kind == np.array(labels.tolist()).dtype.kind
        is_last = fitted.decision_function(paths) > 0
        np.testing.assert_array_equal(found, fitted.classes_[is_last.astype(int)])
        assert fitted.score(paths, truth) == balanced_accuracy_score(truth, found)


def test_more_than_two_integers_are_sorted_as_numbers(unfitted, paths, y):
    truth = np.array([-1, 10, 9, 2])[np.arange(len(y)) % 2 + 2 * (y == "inflamed")]
    unfitted.fit(paths, truth)
    assert unfitted.classes_.tolist() == [-1, 2, 9, 10]
    scores = unfitted.decision_function(paths)
    assert scores.shape == (8, 4)
    predicted = unfitted.classes_[scores.argmax(axis=1)]
    assert (unfitted.predict(paths) == predicted).all()


def test_labels_that_the_type_does_not_have_are_refused():
    assert labels_from_names(["-1", "7"], "int").tolist() == [-1, 7]
    for names, label_type in ((["a"], "int"), (["yes"], "bool"), (["9" * 30], "int")):
        with pytest.raises(ValueError, match=f"type {label_type} cannot have"):
            labels_from_names(names, label_type)
    with pytest.raises(ValueError, match="not datetime64"):
        NamedLabels.from_labels(np.array(["2020-01-01"], dtype="datetime64[D]"))


def test_model_file_with_labels_of_another_type_is_refused(unfitted, paths, y, tmp_path):
    fitted = unfitted.fit(paths, y)
    for label_type, message in (("int", "type int cannot have"), ("set", "label_type must be one")):
        fitted.training_info_["label_type"] = label_type
        with pytest.raises(ValueError, match=message):
            histodict.load(fitted.save(tmp_path / "m.histodict"))


def test_predictions_are_an_array_of_labels(model, paths, y):
    found = model.predict(paths)
    assert np.asarray(found).tolist() == found.labels
    assert np.asarray(found[2:]).tolist() == found.labels[2:]
    for truth in (y, y.tolist()):
        right = found == truth
        assert right.mean() == accuracy_score(truth, found) == 1 - (truth != found).mean()
    assert confusion_matrix(y, found).sum() == len(y)
    assert np.asarray(model.predict([])).shape == model.decision_function([]).shape == (0,)


def test_images_without_tissue_have_no_label_of_y(unfitted, paths, y):
    background = [np.full((80, 96, 3), 245, np.uint8)]
    fitted = unfitted.fit(paths, y)
    assert np.asarray(fitted.predict(background)).tolist() == ["no tissue"]
    assert np.isnan(fitted.decision_function(background)).all()
    fitted.fit(paths, (y == "inflamed").astype(int))
    with pytest.raises(ValueError, match="image 0: no tissue has no label of type"):
        np.asarray(fitted.predict(background))
    assert fitted.score(background * 2, [0, 1]) == 0


# --- tools of scikit-learn ----------------------------------------------------------------------


def test_estimators_are_classifiers_of_lists():
    for kind in KINDS:
        estimator = kind("fast")
        assert is_classifier(estimator)
        tags = estimator.__sklearn_tags__()
        assert tags.input_tags.string and not tags.input_tags.two_d_array
        assert not tags.target_tags.required
        assert not hasattr(estimator, "classes_")


def test_cross_validation_by_patient(unfitted, paths, arrays, y, patients):
    scores = cross_val_score(unfitted, paths, y, groups=patients, cv=FOLDS, error_score="raise")
    assert scores.shape == (2,)
    again = cross_val_score(unfitted, arrays, y, groups=patients, cv=FOLDS, error_score="raise")
    assert again.shape == (2,)
    found = cross_validate(
        unfitted,
        paths,
        (y == "inflamed").astype(int),
        groups=patients,
        cv=FOLDS,
        scoring=["roc_auc", "accuracy", "f1"],
        error_score="raise",
        return_estimator=True,
    )
    values = cross_val_predict(
        unfitted, paths, y, groups=patients, cv=FOLDS, method="decision_function"
    )
    labels = cross_val_predict(unfitted, paths, y, groups=patients, cv=FOLDS)
    np.testing.assert_array_equal(labels == "inflamed", values > 0)
    parts = list(FOLDS.split(paths, y, patients))
    for (train, test), auc, estimator in zip(
        parts, found["test_roc_auc"], found["estimator"], strict=True
    ):
        fitted = clone(unfitted).fit([paths[i] for i in train], y[train])
        np.testing.assert_array_equal(
            fitted.decision_function([paths[i] for i in test]), values[test]
        )
        assert auc == roc_auc_score(y[test] == "inflamed", values[test])
        assert estimator.classes_.tolist() == [0, 1]
    assert scores[0] == balanced_accuracy_score(y[parts[0][1]], labels[parts[0][1]])


def test_records_need_no_labels_apart(unfitted, manifest, patients):
    records = list(manifest.records)
    scores = cross_val_score(unfitted, records, groups=patients, cv=FOLDS, error_score="raise")
    assert scores.shape == (2,)


def test_grid_search_over_settings(unfitted, paths, y, patients):
    grid = {"n_atoms": [4, 8], "stain": ["none"]}
    search = GridSearchCV(unfitted, grid, cv=FOLDS, error_score="raise")
    search.fit(paths, y, groups=patients)
    assert search.best_params_["n_atoms"] in (4, 8)
    assert search.best_estimator_.recipe.method_parameters["n_atoms"] in (4, 8)
    assert search.score(paths, y) == search.best_estimator_.score(paths, y)
    pipeline = Pipeline([("tissue", unfitted)]).set_params(tissue__patch_px=10)
    assert pipeline.fit(paths, y).named_steps["tissue"].recipe.patch_px == 10
    assert (pipeline.predict(paths) == y).mean() > 0.5


def test_region_detector_is_trained_on_crops_with_labels(paths, y, patients):
    detector = RegionDetector("regions", **SMALL)
    truth = (y == "inflamed").astype(int)
    scores = cross_val_score(
        detector, paths, truth, groups=patients, cv=FOLDS, scoring="accuracy", error_score="raise"
    )
    assert scores.shape == (2,)
    assert detector.fit(paths, truth).classes_.tolist() == [0, 1]
    assert set(np.asarray(detector.predict(paths)).tolist()) <= {0, 1}


# --- patients of calibrated models --------------------------------------------------------------


def test_groups_are_the_patients_of_calibration(paths, y, patients):
    ensemble = EnsembleClassifier(["paper"], folds=2, **SMALL)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble.fit(paths, y, groups=patients)
    assert ensemble.training_info_["n_patients"] == 4
    probabilities = ensemble.predict_proba(paths)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    found = ensemble.predict(paths, error_rate=0.01)
    assert "uncertain" in found.labels
    np.testing.assert_array_equal(found, ensemble.classes_[probabilities.argmax(axis=1)])
    is_last = ensemble.decision_function(paths) > 0
    np.testing.assert_array_equal(found, ensemble.classes_[is_last.astype(int)])
    with pytest.warns(UserWarning, match="8 images without groups: each image counts") as caught:
        clone(ensemble).fit(paths, y)
    assert caught[0].filename == __file__
    single = ensemble.fit(paths, y, groups=["one"] * 4 + ["two"] * 4)
    assert single.training_info_["n_patients"] == 2
    assert not hasattr(single, "predict_proba")  # one patient per class


def test_metadata_routing_passes_groups_to_fit(routing, paths, y, patients):
    ensemble = EnsembleClassifier(["paper"], folds=2, **SMALL)
    with pytest.raises(UnsetMetadataPassedError):
        cross_val_score(ensemble, paths, y, cv=FOLDS, params={"groups": patients})
    ensemble.set_fit_request(groups=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = cross_validate(
            ensemble,
            paths,
            y,
            cv=FOLDS,
            params={"groups": patients},
            return_estimator=True,
            error_score="raise",
        )
    assert [each.training_info_["n_patients"] for each in found["estimator"]] == [2, 2]


def test_params_pass_groups_to_fit_without_routing(unfitted, paths, y, patients):
    found = cross_validate(
        unfitted,
        paths,
        y,
        groups=patients,
        cv=FOLDS,
        params={"groups": patients},
        return_estimator=True,
        error_score="raise",
    )
    assert [each.training_info_["n_patients"] for each in found["estimator"]] == [2, 2]


# --- parameters ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "text"),
    [
        (TissueClassifier(), "TissueClassifier('fast')"),
        (TissueClassifier("fast", n_atoms=5), "TissueClassifier('fast', n_atoms=5)"),
        (
            TissueClassifier("paper", method="odl", stain="reinhard", random_state=3, cache="c"),
            "TissueClassifier('paper', method='odl', random_state=3, cache='c', stain='reinhard')",
        ),
        (RegionDetector(), "RegionDetector()"),
        (RegionDetector("regions", region="a"), "RegionDetector('regions', region='a')"),
        (EnsembleClassifier(), "EnsembleClassifier('default')"),
        (
            EnsembleClassifier(["fast"], folds=2, patch_px=12),
            "EnsembleClassifier(['fast'], folds=2, patch_px=12)",
        ),
        (TissueClassifier(preset("paper", "odl")), None),
        (TissueClassifier("fast", cache=Path("c")), None),
    ],
)
def test_repr_is_an_expression_of_the_preset_and_changed_settings(estimator, text):
    assert text is None or repr(estimator) == text
    names = {kind.__name__: kind for kind in (*KINDS, Recipe)}
    made = eval(repr(estimator), names | {type(Path()).__name__: Path})
    assert type(made) is type(estimator)
    assert made.get_params() == estimator.get_params()


def test_settings_equal_to_the_preset_are_not_shown():
    estimator = TissueClassifier("paper", n_atoms=30)
    copied = TissueClassifier().set_params(**estimator.get_params())
    assert repr(copied) == repr(estimator) == "TissueClassifier('paper', n_atoms=30)"
    assert copied.get_params() == estimator.get_params()
