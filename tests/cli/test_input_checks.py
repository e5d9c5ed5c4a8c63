"""Errors and notes that come before any work: misspelt classes, small images, missing packages."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import histodict
from histodict.cli import app
from histodict.datasets.manifest import ManifestError, read_manifest
from histodict.datasets.record import count_patients, describe_patients, differ_by_one_letter
from histodict.metrics.intervals import MIN_RELIABLE_PATIENTS, few_patients_warning
from histodict.models import TissueClassifier
from histodict.models.recipe import Recipe

FAST = ["--preset", "fast", "--set", "n_atoms=4", "--set", "n_iter=1", "--set", "patch_px=8"]
FAST += ["--set", "patches_per_class=40", "--set", "downsample=1", "--mpp", "0.5"]


def run(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


@pytest.fixture
def misspelt(small_models, tmp_path):
    """A folder with a class of one image whose name has two letters swapped."""
    folder = shutil.copytree(small_models.tissue, tmp_path / "tissue")
    (folder / "manifest.csv").unlink()
    shutil.rmtree(folder / "regions", ignore_errors=True)
    image = sorted((folder / "healthy").rglob("*.jpg"))[0]
    for index in range(8):  # the class must be much more frequent
        picture = np.asarray(Image.open(image)).copy()
        picture[index] = 0
        Image.fromarray(picture).save(image.with_name(f"more{index}.png"))
    (folder / "healhty").mkdir()
    picture[:] = picture[::-1]
    Image.fromarray(picture).save(folder / "healhty" / "a.png")
    return folder


def test_misspelt_class_is_refused_unless_allowed(misspelt, tmp_path):
    model = tmp_path / "m.histodict"
    status, output = run("train", misspelt, "-o", model, *FAST)
    assert status == 2 and "'healhty' (1 image) may be a misspelling of 'healthy'" in output
    assert "--allow-class 'healhty'" in output and not model.exists()
    status, output = run("train", misspelt, "-o", model, *FAST, "--allow-class", "healhty")
    assert status == 0, output
    status, output = run("info", model, "--json")
    assert "healhty" in json.loads(output)["classes"]
    with pytest.raises(ManifestError, match=r"allow_classes=\['healhty'\]"):
        read_manifest(misspelt)
    assert "healhty" in read_manifest(misspelt, allow_classes=["healhty"]).classes


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("healhty", "healthy", True),
        ("healty", "healthy", True),
        ("healthyy", "healthy", True),
        ("benigm", "benign", True),
        ("normal", "abnormal", False),
        ("typical", "atypical", False),
        ("type a", "type b", False),
        ("grade 1", "grade 2", False),
        ("fat", "fit", False),
        ("ductal", "lobular", False),
        ("healthy", "healthy", False),
    ],
)
def test_names_that_differ_by_one_letter_are_similar(first, second, expected):
    assert differ_by_one_letter(first, second) == expected == differ_by_one_letter(second, first)


def test_small_images_are_listed_before_training_or_skipped(small_models, tmp_path, monkeypatch):
    folder = shutil.copytree(small_models.tissue, tmp_path / "tissue")
    (folder / "manifest.csv").unlink()
    shutil.rmtree(folder / "regions", ignore_errors=True)
    for label in ("healthy", "inflamed"):
        Image.new("RGB", (7, 60), (200, 90, 150)).save(folder / label / "small.png")
    model = tmp_path / "m.histodict"
    with monkeypatch.context() as patch:
        patch.setattr(TissueClassifier, "fit", None)  # is not reached
        status, output = run("train", folder, "-o", model, *FAST)
    assert status == 2 and output.count("small.png") == 2, output
    assert "--skip-unreadable" in output and "is smaller than a patch (8 x 8)" in output
    status, output = run("train", folder, "-o", model, *FAST, "--skip-unreadable")
    assert status == 0 and "2 of" in output and "images skipped" in output and model.exists()
    # In Python, too, all are listed at once.
    recipe = Recipe(method_parameters={"n_atoms": 4, "n_iter": 1}, patch_px=8)
    with pytest.raises(ValueError, match="2 of") as raised:
        TissueClassifier(recipe).fit(folder)
    assert str(raised.value).count("small.png") == 2


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["features", "IMAGES", "-o", "OUT"], "h5py", "features"),
        (["features", "IMAGES", "-o", "OUT"], "torch", "networks"),
        (["features", "IMAGES", "--encoder", "timm:resnet18", "-o", "OUT"], "timm", "encoders"),
        (["predict", "MODEL", "FILE", "-o", "OUT"], "h5py", "features"),
        (["train", "TABLE", "--features", "FOLDER", "-o", "OUT"], "h5py", "features"),
        (["train", "IMAGES", "--preset", "embeddings", "-o", "OUT"], "torch", "networks"),
        (
            ["predict", "MODEL", "IMAGES", "--cluster", "local:2", "-o", "OUT"],
            "distributed",
            "cluster",
        ),
        (["predict", "MODEL", "IMAGES", "--anndata", "-o", "OUT"], "h5py", "anndata"),
        (["serve"], "uvicorn", "web"),
    ],
)
def test_missing_packages_are_reported_before_any_work(
    small_models, tmp_path, monkeypatch, arguments, module, extra
):
    features = tmp_path / "features"
    features.mkdir()
    (features / "s1.h5").touch()
    table = tmp_path / "t.csv"
    table.write_text("slide,label\ns1,a\n")
    places = {
        "IMAGES": small_models.tissue / "healthy",
        "MODEL": small_models.path("dfdl"),
        "FILE": features / "s1.h5",
        "FOLDER": features,
        "TABLE": table,
        "OUT": tmp_path / "out",
    }
    if "--preset" in arguments:
        places["IMAGES"] = small_models.tissue
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("histodict.web")]:
        monkeypatch.delitem(sys.modules, name)  # is imported again
    if hasattr(histodict, "web"):  # a new import replaces it; this restores it after the test
        monkeypatch.setattr(histodict, "web", histodict.web)
    status, output = run(*(places.get(argument, argument) for argument in arguments))
    assert status == 2, output
    assert output.count(f'pip install ".[{extra}]"') == 1 and f"needs {module}" in output
    assert not (tmp_path / "out").exists()


def test_adapt_refuses_three_classes_before_any_work(small_models, tmp_path, monkeypatch):
    monkeypatch.setattr(TissueClassifier, "predict_one", None)  # is not reached
    model = small_models.path("three")
    status, output = run("adapt", model, small_models.tissue, "-o", tmp_path / "a.histodict")
    assert status == 2 and "has 3 classes; only models of two classes can be adapted" in output


# --- accuracy with few or unknown patients, or one class ----------------------------------------


def scores_of(small_models, tmp_path, rows, header="path,label,patient"):
    table = tmp_path / "t.csv"
    lines = [",".join([str(small_models.tissue / row[0]), *row[1:]]) for row in rows]
    table.write_text("\n".join([header, *lines]) + "\n")
    model = small_models.path("dfdl")
    status, output = run("predict", model, table, "-o", tmp_path / "o", "--mpp", "0.5")
    assert status == 0, output
    return output, json.loads((tmp_path / "o" / "scores.json").read_text())


def labelled_images(small_models):
    return [
        (record.path.relative_to(small_models.tissue).as_posix(), record.label, record.patient)
        for record in read_manifest(small_models.tissue).records
    ]


def test_balanced_accuracy_of_one_class_is_undefined(small_models, tmp_path):
    rows = [row for row in labelled_images(small_models) if row[1] == "healthy"]
    output, scores = scores_of(small_models, tmp_path, rows)
    assert scores["metrics"]["balanced accuracy"]["value"] is None
    assert "balanced accuracy undefined" in output
    assert "all images are 'healthy'" in output


def test_unknown_patients_are_not_counted(small_models, tmp_path):
    rows = [row[:2] for row in labelled_images(small_models)]
    output, scores = scores_of(small_models, tmp_path, rows, "path,label")
    assert (scores["n_patients"], scores["n_images_without_patient"]) == (0, len(rows))
    assert "(patients unknown; intervals by image" in output
    assert "patients)" not in output


def test_few_patients_are_warned_of(small_models, tmp_path):
    output, scores = scores_of(small_models, tmp_path, labelled_images(small_models))
    assert (
        "few patients" in output
        and "the 95 % intervals are unreliable, usually too narrow" in output
    )
    assert scores["few_patients"] in output
    labels, patients = (
        ["a", "b"] * MIN_RELIABLE_PATIENTS,
        np.repeat(range(MIN_RELIABLE_PATIENTS), 2),
    )
    assert few_patients_warning(labels, patients) == ""
    assert "(9 with images of 'b')" in few_patients_warning([*labels[:-1], "a"], patients)


def test_patients_are_described():
    pairs = [("p1", "a.png"), ("p1", "b.png"), ("p2", "c.png"), ("folder/d.png", "x/folder/d.png")]
    assert count_patients(pairs) == (2, 1)
    assert describe_patients(2, 1) == "2 patients and 1 image without patient"
    assert describe_patients(0, 3) == "patients unknown"
    assert describe_patients(1, 0) == "1 patient"
