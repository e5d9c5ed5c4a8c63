"""Tests of `evaluate --regions`: patches of test patients compared with their masks."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from histodict import RegionDetector
from histodict.cli import app
from histodict.cli.evaluate import MethodsOptions
from histodict.cli.image_options import parse_pairs
from histodict.cli.train import ModelSettingsOptions
from histodict.datasets.manifest import read_manifest
from histodict.evaluation import choose_plans, measures
from histodict.evaluation.measures import PatchEvaluation, count_patches, split_inside_outside
from histodict.evaluation.runs import EvaluationTask
from histodict.metrics.intervals import UndefinedMetricError, bootstrap_interval
from histodict.model_selection.protocols import Repeat
from histodict.model_selection.splits import load_splits
from histodict.models import recipe as presets
from histodict.models.inputs import region_patch_mask
from histodict.models.region_detector import relabel_by_region
from histodict.patches.patch_map import PatchMap
from histodict.synthetic.tissue_generator import make_region_image, random_stain
from histodict.utils.parallel import ExecutionOptions

SETTINGS = ("n_atoms=12", "n_iter=1", "patches_per_class=150", "patch_px=12")


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures, "N_REPLICATES", 100)
        yield


@pytest.fixture(scope="module")
def foci(tmp_path_factory):
    """Four patients with an image of two foci each, and an image of a patient without any."""
    folder = tmp_path_factory.mktemp("foci")
    lines = ["path,mask,patient,mpp"]
    for i in range(5):
        rng = np.random.default_rng(i)
        image, mask = make_region_image(random_stain(rng), rng, (170, 130), n_regions=2)
        if i == 4:
            mask[:] = 0
        Image.fromarray(image).save(folder / f"{i}.png")
        Image.fromarray(mask).save(folder / f"{i}-mask.png")
        lines.append(f"{i}.png,{i}-mask.png,p{i},0.5")
    (folder / "manifest.csv").write_text("\n".join(lines))
    return folder


def run(data: Path, folder: Path, *more: str):
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    arguments = [
        "evaluate",
        str(data),
        "-o",
        str(folder),
        "--regions",
        "inflammation",
        "--folds",
        "2",
    ]
    return CliRunner().invoke(app, [*arguments, *settings, *more])


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(foci, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    result = run(foci, folder, "--methods", "dfdl,odl", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "Dice" in result.output and "report.html" in result.output
    return folder


def test_every_patient_is_tested_and_patches_are_measured(foci, folder):
    rows = read_csv(folder / "results.csv")
    assert {row["method"] for row in rows} == {"dfdl", "odl"}
    assert [r["metric"] for r in rows[:4]] == ["AUC", "Dice", "sensitivity", "specificity"]
    for row in rows:
        assert 0 <= float(row["low"]) <= float(row["value"]) <= float(row["high"]) <= 1
        assert row["n_patients"] == "5"
    predictions = [row for row in read_csv(folder / "predictions.csv") if row["method"] == "dfdl"]
    assert len(predictions) == 5
    assert [row["truth"] for row in predictions].count("not inflammation") == 1
    total = {k: sum(int(row[k]) for row in predictions) for k in ("hits", "misses", "false_alarms")}
    dice = 2 * total["hits"] / (2 * total["hits"] + total["misses"] + total["false_alarms"])
    output = {row["metric"]: float(row["value"]) for row in rows if row["method"] == "dfdl"}
    assert output["Dice"] == pytest.approx(dice)
    assert output["sensitivity"] == pytest.approx(total["hits"] / (total["hits"] + total["misses"]))
    (compared,) = read_csv(folder / "comparisons.csv")
    assert (compared["method"], compared["against"], compared["metric"]) == ("dfdl", "odl", "AUC")


def test_auc_is_that_of_the_patches_of_all_folds(foci, folder):
    manifest = relabel_by_region(read_manifest(foci), "inflammation")
    settings = parse_pairs("--set", list(SETTINGS))
    plan = choose_plans(["dfdl", "odl"], "regions", settings, "inflammation")["odl"]
    truth, margins = [], []
    for split in load_splits(folder / "splits.json", manifest):
        key = (
            EvaluationTask("odl", plan, split, 0, "inflammation")
            .create_run(manifest, ExecutionOptions())
            .key
        )
        for place, image in enumerate(split.test):
            patch_map = PatchMap.load(folder / "runs" / key / f"{place}.npz")
            truth.append(region_patch_mask(manifest.records[image], patch_map)[patch_map.tissue])
            margins.append(patch_map.margins[..., 1][patch_map.tissue])
    rows = read_csv(folder / "results.csv")
    (output,) = (row for row in rows if (row["method"], row["metric"]) == ("odl", "AUC"))
    expected = roc_auc_score(np.concatenate(truth), np.concatenate(margins))
    assert float(output["value"]) == pytest.approx(expected, abs=2e-3)


def test_report_tables_and_provenance_are_of_regions(folder):
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Scores count tissue patches." in page
    assert "detect regions of class &#39;inflammation&#39;" in page
    assert page.count('<figure class="card">') == 5 and "false positive patches of" in page
    assert json.loads((folder / "provenance.json").read_text())["region"] == "inflammation"
    errors = read_csv(folder / "errors.csv")
    assert len(errors) == 10 and {"misses", "false_alarms", "Dice"} <= set(errors[0])
    counts = read_csv(folder / "confusion.csv")
    n_patches = sum(int(row["n_predictions"]) for row in counts if row["method"] == "dfdl")
    assert n_patches == sum(int(r["n_patches"]) for r in errors if r["method"] == "dfdl")
    assert (folder / "figures" / "roc.svg").is_file()


def test_missing_results_are_computed_again_to_the_same_bytes(foci, folder, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    train_tests = sorted((again / "runs").glob("*.json"))
    train_tests[0].unlink()
    next(train_tests[1].with_suffix("").glob("*.npz")).unlink()  # one missing map
    tables = ("predictions.csv", "results.csv", "comparisons.csv", "errors.csv")
    before = {name: (again / name).read_bytes() for name in tables}
    with pytest.warns(UserWarning, match="damaged predictions in the cache are computed again"):
        result = run(foci, again, "--methods", "dfdl,odl", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert {name: (again / name).read_bytes() for name in tables} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--methods", "lbp-colour"], "uses whole images"),
        (["--methods", "pixels:dfdl"], "a region detector cannot be an ensemble"),
        (["--methods", "dfdl+unlabelled"], "not for regions"),
        (["--methods", "dfdl", "--positive", "x"], "--positive cannot be combined with --regions"),
    ],
)
def test_options_without_regions_are_refused(foci, tmp_path, options, message):
    result = run(foci, tmp_path / "o", *options)
    assert result.exit_code == 2 and message in " ".join(result.output.split())
    assert not (tmp_path / "o" / "runs").exists()


def table(foci, path, mask) -> Path:
    """Write a table of the images, each with the mask of this name, or none."""
    masks = [mask(i) for i in range(5)]
    cells = [(foci / f"{i}.png", foci / m if m else "", f"p{i}", 0.5) for i, m in enumerate(masks)]
    path.write_text("path,mask,patient,mpp\n" + "\n".join(",".join(map(str, c)) for c in cells))
    return path


def test_images_without_masks_are_refused(foci, tmp_path):
    some = table(foci, tmp_path / "some.csv", lambda i: f"{i}-mask.png" if i else None)
    result = run(some, tmp_path / "o")
    assert result.exit_code == 2 and "neither a mask nor a label: " in result.output
    assert "0.png" in "".join(result.output.split())
    none = tmp_path / "none.csv"
    none.write_text("path,label\n" + "\n".join(f"{foci / f'{i}.png'},a" for i in range(5)))
    result = run(none, tmp_path / "o")
    assert result.exit_code == 2 and "needs images with masks" in result.output


def test_regions_of_one_patient_are_refused_before_training(foci, tmp_path):
    lonely = table(foci, tmp_path / "a.csv", lambda i: "4-mask.png" if i else "0-mask.png")
    result = run(lonely, tmp_path / "o", "--methods", "dfdl")
    assert result.exit_code == 2, result.output
    assert "has no training tissue inside" in result.output
    assert not (tmp_path / "o" / "runs").exists()


def test_default_comparison_has_the_encoder_and_pixels(monkeypatch, capsys):
    """Without the packages of the encoder only pixels are compared, with a message."""
    for missing in (None, "torch"):
        monkeypatch.setattr(presets, "missing_dependency", lambda encoder, missing=missing: missing)
        plans = MethodsOptions().plans("tumour")
        output = " ".join(capsys.readouterr().err.split())
        kinds = {name: plan.recipe.features for name, plan in plans.items()}
        if missing:
            assert kinds == {"dfdl": "centred"}
            assert (
                "preset 'regions' is used (choose another with --preset), because no pretrained"
                in output
            )
        else:
            half = "efficientnet-lite0-half"
            assert kinds == {"embeddings:dfdl": half, "regions:dfdl": "centred"}
            assert (
                "preset 'embeddings' is used (choose another with --preset), because a pretrained"
                in output
            )
        assert all(plan.recipe.smoothing_radius == 2 for plan in plans.values())
    assert list(MethodsOptions(preset="paper").plans("tumour")) == ["dfdl"]
    MethodsOptions(methods="paper:dfdl,regions:odl").plans("tumour")
    assert not capsys.readouterr().err  # none was selected
    # The encoder is missing here.
    assert list(MethodsOptions().plans(None)) == ["pixels", "lbp-colour"]
    note = "preset 'pixels' is used (choose another with --preset), because no pretrained encoder"
    assert note in capsys.readouterr().err
    monkeypatch.setattr(presets, "missing_dependency", lambda encoder: None)
    plans = MethodsOptions().plans(None)
    assert list(plans) == ["default", "lbp-colour"]
    assert plans["default"].ensemble and plans["lbp-colour"].is_single_model
    assert list(MethodsOptions(preset="paper").plans(None)) == ["dfdl", "lbp-colour"]
    assert not capsys.readouterr().err


def test_methods_of_colour_channels_use_pixels(monkeypatch, capsys):
    """Even if an encoder is installed: its features have no colour channels."""
    monkeypatch.setattr(presets, "missing_dependency", lambda encoder: None)
    made = [
        RegionDetector(method="shirc", region="tumour").recipe,
        ModelSettingsOptions(method="shirc").build_model(None, None, "tumour").recipe,
        *(plan.recipe for plan in MethodsOptions(methods="odl, shirc").plans("tumour").values()),
    ]
    assert {recipe.features for recipe in made} == {"centred"}
    output = " ".join(capsys.readouterr().err.split())
    assert output.count("because shirc codes colour channels") == 2
    assert RegionDetector(method="odl").recipe.features == "efficientnet-lite0-half"


# --- statistics -------------------------------------------------------------------------------


def image(margins, truth) -> PatchEvaluation:
    margins, truth = np.array(margins, np.float32), np.array(truth, bool)
    return PatchEvaluation(margins, truth, margins > 0)


def test_replicates_have_patches_of_both_classes():
    """Two of twenty patients have a region: many replicates have none and are redrawn."""
    images = [image([1, -1], [True, False]) if i < 2 else image([-1], [False]) for i in range(20)]
    patients = np.array([f"p{i:02}" for i in range(20)])
    repeat = split_inside_outside(Repeat(patients, patients, count_patches(images)))
    assert len(repeat.labels) == 22
    found = bootstrap_interval(
        lambda labels, counts: float(counts[:, :2].sum() > 0), [repeat], n_replicates=200
    )
    assert found.value == found.low == 1 and found.n_redrawn > 0


def test_replicates_without_a_metric_value_are_redrawn():
    repeat = Repeat(np.array(["a"] * 4), np.array(list("pqrs")), np.array([1.0, 0, 0, 0]))

    def positive_fraction(labels, predictions):
        if not predictions.any():
            raise UndefinedMetricError("no positive prediction")
        return float(predictions.mean())

    found = bootstrap_interval(positive_fraction, [repeat], n_replicates=100)
    assert found.low > 0 and found.n_redrawn > 0
