"""Tests of evaluations: interruption and resumption, equal bytes, and refusal of misleading
input."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.encoders import ENCODERS
from histodict.evaluation import evaluate, measures
from histodict.evaluation import runs as tasks
from histodict.model_selection.protocols import k_folds
from histodict.model_selection.splits import PatientLeakError, Split, SplitError
from histodict.models import Plan, load_model
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.parallel import ExecutionOptions
from tests.evaluation.planted import PLANS, evaluate_planted, write_images, wrong_for

SETTINGS = ("n_atoms=10", "n_iter=2", "patches_per_class=100", "patch_px=16", "downsample=1")
TABLES = [
    f"{name}.{kind}"
    for name in ("predictions", "results", "comparisons")
    for kind in ("csv", "parquet")
]


def command(data: Path, folder: Path, *more: str) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    arguments = ["evaluate", str(data), "-o", str(folder), "--methods", "dfdl,lbp-colour"]
    return [*arguments, "--folds", "2", *settings, *more]


def run(data: Path, folder: Path, *more: str):
    return CliRunner().invoke(app, command(data, folder, *more))


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """The intervals themselves are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "N_REPLICATES", 100)
        yield


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    """Four patients; one image of each class has the other label, so that there are errors."""
    folder = write_synthetic_dataset(
        tmp_path_factory.mktemp("set") / "tissue", 4, 3, size=(160, 120)
    )
    lines = (folder / "manifest.csv").read_text().splitlines()
    lines[1] = lines[1].replace(",healthy,", ",inflamed,")
    lines[-1] = lines[-1].replace(",inflamed,", ",healthy,")
    (folder / "manifest.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def folder(tissue, tmp_path_factory):
    """A complete evaluation with the command line, with one process."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    result = run(tissue, folder, "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "dfdl" in result.output
    assert "report.html" in result.output
    return folder


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return write_images(tmp_path_factory.mktemp("images") / "set")


# --- interrupted and resumed --------------------------------------------------------------------


def same_tables(one: Path, other: Path) -> bool:
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


def test_missing_results_are_computed_again_to_the_same_bytes(tissue, folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    train_tests = sorted((again / "runs").glob("*.json"))
    assert len(train_tests) == 4
    stored, *lost = train_tests
    for file in (*lost, *(again / name for name in TABLES)):
        file.unlink()
    before = stored.stat().st_mtime_ns
    result = run(tissue, again, "--jobs", "2")
    assert result.exit_code == 0, result.output
    assert sorted((again / "runs").glob("*.json")) == train_tests
    assert stored.stat().st_mtime_ns == before
    assert same_tables(folder, again)


# Ends its own process, as `kill -9` does, when the second training has finished.
KILLED = """
import os, signal, sys
from histodict.cli import app
from histodict.models import cross_validation

write, written = cross_validation.write_checked_json, []

def write_once(path, content):
    if written:
        os.kill(os.getpid(), signal.SIGKILL)
    written.append(path)
    write(path, content)

cross_validation.write_checked_json = write_once
app(sys.argv[1:])
"""


def test_killed_run_resumes(tissue, folder, tmp_path):
    killed = tmp_path / "killed"
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, *command(tissue, killed, "--jobs", "1")], capture_output=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert len(list(killed.glob("runs/*.json"))) == 1
    assert not (killed / "report.html").exists()
    result = run(tissue, killed, "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert same_tables(folder, killed)


def test_finished_evaluation_is_not_trained_again(tissue, folder):
    files = [*folder.glob("runs/*"), *folder.glob("models/*")]
    before = [file.stat().st_mtime_ns for file in files]
    page = (folder / "report.html").read_bytes()
    assert run(tissue, folder, "--jobs", "1").exit_code == 0
    assert [file.stat().st_mtime_ns for file in files] == before
    assert (folder / "report.html").read_bytes() == page


def test_changed_image_is_predicted_again(tmp_path):
    """Stored results under the name of a changed image must not be used."""
    folder = write_synthetic_dataset(tmp_path / "set", 4, 2, size=(96, 80))
    plans = {"lbp-colour": Plan(Recipe(method="lbp-colour"))}

    def values(out):
        images = read_manifest(folder / "manifest.csv")
        execution = ExecutionOptions(n_jobs=1, cache=out / "cache")
        done = evaluate(images, plans, k_folds(images, 2), out, execution=execution)
        return [row["value"] for row in done.metric_rows]

    before = values(tmp_path / "out")
    healthy, inflamed = (sorted((folder / name).iterdir()) for name in ("healthy", "inflamed"))
    for one, two in zip(healthy[:2], inflamed[:2], strict=True):  # exchange the image files
        first, second = one.read_bytes(), two.read_bytes()
        one.write_bytes(second)
        two.write_bytes(first)
    after = values(tmp_path / "out")
    assert after != before
    assert after == values(tmp_path / "fresh")


# --- content of the folder ----------------------------------------------------------------------


def test_tables_agree_with_each_other(folder):
    predictions = read_csv(folder / "predictions.csv")
    assert len(predictions) == 2 * 12
    for row in read_csv(folder / "results.csv"):
        own = [a for a in predictions if a["method"] == row["method"]]
        if row["metric"] == "balanced accuracy":
            right = {
                label: np.mean([a["label"] == label for a in own if a["truth"] == label])
                for label in ("healthy", "inflamed")
            }
            assert float(row["value"]) == pytest.approx(np.mean(list(right.values())))
        assert float(row["low"]) <= float(row["value"]) <= float(row["high"])
    assert len(read_csv(folder / "timing.csv")) == 4


def test_sensitivity_is_that_of_the_positive_class(tmp_path):
    """All carcinomas are predicted correctly; a normal image of one patient is not."""
    images = write_images(tmp_path / "images", ("adenocarcinoma", "normal"))
    splits = k_folds(images, 2, random_state=0)

    def predict(record, seed, split):
        wrong = record.label == "normal" and record.patient == "p0"
        found = wrong or record.label == "adenocarcinoma"
        return "adenocarcinoma" if found else "normal", [1.0 if found else -1.0], []

    done = evaluate_planted(images, splits, tmp_path / "run", {"lbp-colour": predict})
    figures = {row["metric"]: row["value"] for row in done.metric_rows}
    assert done.classes == ["normal", "adenocarcinoma"]
    assert figures["sensitivity"] == 1
    assert figures["specificity"] == pytest.approx(5 / 6)
    assert figures["AUC"] == pytest.approx(11 / 12)


def test_report_shows_atoms_of_an_example_model(folder):
    (file,) = folder.glob("models/*.histodict")
    model = load_model(file)
    assert model.class_names_ == ["healthy", "inflamed"]
    assert model.training_info_["n_images"] == 6
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "saved in the folder models." in page and "figures/, models/." in page
    assert "Each training used one core; several may have run in parallel." in page
    assert "No site is recorded, so it is unknown" in page
    for place, name in enumerate(model.classes_, start=1):
        assert f'alt="atoms of {name}"' in page
        assert (folder / "figures" / f"bases-{place}-{name}.png").is_file()


def test_wrong_predictions_have_their_patch_map(folder):
    predictions = read_csv(folder / "predictions.csv")
    page = (folder / "report.html").read_text(encoding="utf-8")
    wrong = {
        m: {a["image"] for a in predictions if a["method"] == m and a["label"] != a["truth"]}
        for m in ("dfdl", "lbp-colour")
    }
    assert wrong["dfdl"]
    for image in wrong["dfdl"] | wrong["lbp-colour"]:
        assert f'alt="{image}"' in page
        assert (f'alt="{image} with the patch map of dfdl' in page) == (image in wrong["dfdl"])


# --- misleading input ---------------------------------------------------------------------------


def test_patient_leakage_in_a_split_file_is_refused(tissue, folder, tmp_path):
    content = json.loads((folder / "splits.json").read_text())
    split = content["splits"][0]
    split["train"].append(split["test"].pop())
    del content["digest"]
    # A consistent forgery: its digest is valid.
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    planted = tmp_path / "splits.json"
    planted.write_text(json.dumps(content | {"digest": digest}))
    result = run(tissue, tmp_path / "out", "--protocol", str(planted))
    assert result.exit_code == 2
    assert "is in both training and test set" in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_splits_of_a_file_are_used_again(tissue, folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    result = run(tissue, again, "--protocol", str(folder / "splits.json"), "--jobs", "1")
    assert result.exit_code == 0
    assert same_tables(folder, again)


def test_patient_leakage_in_splits_is_refused(images, tmp_path):
    splits = k_folds(images, 2)
    first = splits.splits[0]
    leaky = replace(first, train=[*first.train, first.test[0]], test=first.test[1:])
    with pytest.raises(PatientLeakError, match="both training and test set"):
        evaluate(images, PLANS, replace(splits, splits=(leaky,)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_splits_of_other_images_are_refused(images, tmp_path):
    with pytest.raises(SplitError, match="other images"):
        evaluate(images.select(range(10)), PLANS, k_folds(images, 2), tmp_path)


def test_unmeasurable_splits_are_refused_before_training(images, tmp_path):
    splits = k_folds(images, 2)
    labels, patients = images.labels, images.patients
    places = range(len(labels))
    one = [i for i in places if patients[i] == "p0"]
    others = [i for i in places if patients[i] != "p0"]
    alone = replace(splits, splits=(Split("one patient", others, one),))
    with pytest.raises(ValueError, match="are of a single patient"):
        evaluate(images, PLANS, alone, tmp_path)
    half = [i for i in places if patients[i] < "p3"]
    benign = [i for i in places if patients[i] >= "p3" and labels[i] == "benign"]
    untested = replace(splits, splits=(Split("no malignant", half, benign),))
    with pytest.raises(SplitError, match="must have the same classes"):
        evaluate(images, PLANS, untested, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_split_by_image_is_warned_of(tissue, folder, tmp_path):
    arguments = ["--by-image", "--methods", "lbp-colour", "--jobs", "1"]
    # The features were computed before.
    result = CliRunner().invoke(
        app, ["evaluate", str(tissue), "-o", str(tmp_path), "--folds", "2",
              "--cache", str(folder / "cache"), "--set", "downsample=1", *arguments]
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "patients are in both the training and the test set of a split" in " ".join(
        result.output.split()
    )
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Warning: split by image, not by patient" in page
    assert json.loads((tmp_path / "provenance.json").read_text())["kept_apart"] == ["image"]
    assert "Warning: split by image" not in (folder / "report.html").read_text(encoding="utf-8")


def test_failing_method_is_excluded(images, tmp_path):
    splits = k_folds(images, 2)
    planted = evaluate_planted(images, splits, tmp_path, {"lbp-colour": wrong_for("p0_1")})
    # No patch fits into the images.
    plans = {"dfdl": Plan(Recipe(patch_px=400)), "lbp-colour": PLANS["lbp-colour"]}
    done = evaluate(images, plans, splits, tmp_path, execution=ExecutionOptions(n_jobs=1))
    assert done.methods == ["lbp-colour"]
    assert [(f.task.method, f.task.split.name) for f in done.failures] == [
        ("dfdl", split.name) for split in splits
    ]
    assert done.metric_rows == planted.metric_rows
    assert read_csv(tmp_path / "comparisons.csv") == []
    report = json.loads((tmp_path / "provenance.json").read_text())["failures"]
    assert [(f["method"], f["split"]) for f in report] == [("dfdl", s.name) for s in splits]


def test_unexpected_error_in_one_run_is_recorded():
    def fail(run_task):
        raise AttributeError("no such attribute")

    assert tasks._result_or_error(fail, None).startswith(
        "unexpected AttributeError: no such attribute"
    )
    with pytest.raises(KeyboardInterrupt):
        tasks._result_or_error(lambda run_task: (_ for _ in ()).throw(KeyboardInterrupt()), None)


def test_broken_encoder_fails_its_own_method_only(images, tmp_path, monkeypatch):
    def broken():
        raise ImportError("no such package")

    monkeypatch.setitem(ENCODERS, "broken", broken)
    plans = {"cells": Plan(Recipe(features="broken")), "lbp-colour": PLANS["lbp-colour"]}
    done = evaluate(
        images, plans, k_folds(images, 2), tmp_path, execution=ExecutionOptions(n_jobs=1)
    )
    assert done.methods == ["lbp-colour"]
    assert {f.task.method for f in done.failures} == {"cells"}
    assert all("no such package" in f.error for f in done.failures)


def test_damaged_example_model_is_trained_again(tissue, folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    (file,) = again.glob("models/*.histodict")
    content = file.read_bytes()
    file.write_bytes(content[:1000])
    with pytest.warns(UserWarning, match="trained again"):
        result = run(tissue, again, "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert file.read_bytes() == content


def test_all_methods_failed(images, tmp_path):
    plans = {"dfdl": Plan(Recipe(patch_px=400))}
    done = evaluate(
        images, plans, k_folds(images, 2), tmp_path, execution=ExecutionOptions(n_jobs=1)
    )
    assert done.methods == []
    for name in ("predictions", "results", "comparisons", "timing"):
        assert read_csv(tmp_path / f"{name}.csv") == []


# --- help -----------------------------------------------------------------------------------------


def test_help_explains_the_options():
    result = CliRunner().invoke(app, ["evaluate", "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    text = " ".join(result.output.replace("│", " ").split())
    for taught in (
        "no patient is in both the training and the test set",
        "run the same command again: finished trainings are reused",
        "histodict evaluate tissue.csv --methods dfdl,lbp-colour",
        "k-fold, hold-out, site (test on each site in turn, train on the others), predefined",
        "predefined (column split), or the splits.json of an earlier run",
        "compares the first with each of the others",
        "Accuracy is then too high; the report states this",
    ):
        assert taught in text


def test_mistyped_method_is_refused_with_the_valid_names(tissue, tmp_path):
    result = run(tissue, tmp_path / "out", "--methods", "dfld")
    assert result.exit_code == 2
    assert "dfdl" in result.output
    assert not (tmp_path / "out").exists()
