"""`predict` with a CSV, which is scored if it has labels; and into a used folder."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from typer.testing import CliRunner

from histodict.batch import RunResult
from histodict.cli import app
from histodict.cli.predict import _format_label_counts, _print_metrics
from histodict.datasets.manifest import read_manifest
from histodict.models import load_model
from histodict.models.inputs import region_patch_mask
from histodict.patches.patch_map import PatchMap
from histodict.synthetic.dataset import write_synthetic_dataset


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set") / "tissue"
    return write_synthetic_dataset(folder, 4, 2, size=(160, 120), seed=3)


@pytest.fixture
def run_command(small_models):
    """Return a function that runs `predict` or `detect` with a small model."""

    def run(command, kind, *arguments):
        return CliRunner().invoke(
            app, [command, str(small_models.path(kind)), *map(str, arguments)]
        )

    return run


def table(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write(path, header, *lines):
    path.write_text("\n".join([header, *lines]), encoding="utf-8")
    return path


def as_csv(tissue, path, fields=("path", "label", "patient", "mpp"), **changes):
    records = read_manifest(tissue / "manifest.csv").records
    lines = [",".join(str(changes.get(f, getattr(r, f)) or "") for f in fields) for r in records]
    return write(path, ",".join(fields), *lines)


def test_table_with_labels_is_scored(run_command, tissue, tmp_path):
    out = tmp_path / "out"
    run = run_command("predict", "dfdl", as_csv(tissue, tmp_path / "a.csv"), "-o", out)
    assert run.exit_code == 0, run.output
    rows = table(out / "predictions.csv")
    records = read_manifest(tissue / "manifest.csv").records
    assert [(r["truth"], r["patient"]) for r in rows] == [(r.label, r.patient) for r in records]
    truth, output = ([row[name] for row in rows] for name in ("truth", "label"))
    scores = json.loads((out / "scores.json").read_text())
    found = scores["metrics"]
    assert found["balanced accuracy"]["value"] == pytest.approx(
        balanced_accuracy_score(truth, output)
    )
    ill = np.array(truth) == "inflamed"
    values = [float(row["score"]) for row in rows]
    assert found["AUC"]["value"] == pytest.approx(roc_auc_score(ill, values))
    sensitivity = np.mean(np.array(output)[ill] == "inflamed")
    assert found["sensitivity"]["value"] == pytest.approx(sensitivity)
    assert found["AUC"]["low"] <= found["AUC"]["value"] <= found["AUC"]["high"]
    assert scores["n_images"] == 8 and scores["n_patients"] == 4
    (healthy, _) = scores["confusion"]
    counted = sum(t == "healthy" and s == "inflamed" for t, s in zip(truth, output, strict=True))
    assert healthy["truth"] == "healthy" and healthy["inflamed"] == counted
    for text in ("8 labelled images (4 patients", "balanced accuracy", "AUC", "predicted healthy"):
        assert text in run.output


def test_table_needs_no_labels_and_its_pixel_sizes_are_used(run_command, tissue, tmp_path):
    plain = as_csv(tissue, tmp_path / "plain.csv", ("path",))
    run = run_command("predict", "dfdl", plain, "-o", tmp_path / "a")
    assert run.exit_code == 0, run.output
    assert "8 images" in run.output and "Warning: " + str(plain) not in run.output
    assert not (tmp_path / "a" / "scores.json").exists()
    coarse = as_csv(tissue, tmp_path / "coarse.csv", ("path", "mpp"), mpp=2.0)
    run = run_command("predict", "dfdl", coarse, "-o", tmp_path / "b")
    assert run.exit_code == 1 and "2 µm per pixel" in run.output
    assert not (tmp_path / "b" / "predictions.csv").exists()  # no table is written if all fail


def test_unknown_labels_are_reported_and_not_scored(run_command, tissue, tmp_path):
    records = read_manifest(tissue / "manifest.csv").records[:4]
    lines = [f"{r.path},{r.label},{r.patient},0.5" for r in records[:3]]
    lines.append(f"{records[3].path},scar,x,0.5")
    file = write(tmp_path / "a.csv", "path,label,patient,mpp", *lines)
    run = run_command("predict", "dfdl", file, "-o", tmp_path / "o")
    assert run.exit_code == 0 and "1 'scar'" in run.output
    scores = json.loads((tmp_path / "o" / "scores.json").read_text())
    assert scores["n_images"] == 3 and scores["other_labels"] == {"scar": 1}


def test_columns_and_splits_are_selected_as_in_train(run_command, tissue, tmp_path):
    records = read_manifest(tissue / "manifest.csv").records
    lines = [f"{r.path},{r.label},{i % 2},0.5" for i, r in enumerate(records)]
    file = write(tmp_path / "a.csv", "path,what,split,mpp", *lines)
    text = ("--column", "label=what", "--split", "1", "--json", "-o", tmp_path / "o")
    run = run_command("predict", "dfdl", file, *text)
    assert run.exit_code == 0, run.output
    content = json.loads(run.stdout.splitlines()[-1])
    assert len(content["rows"]) == content["scores"]["n_images"] == 4
    run = run_command("predict", "dfdl", tissue / "healthy", "--split", "1", "-o", tmp_path / "o2")
    assert run.exit_code == 2 and "--split need a CSV" in run.output


def test_patches_are_compared_with_masks(run_command, tissue, tmp_path):
    manifest = read_manifest(tissue / "regions" / "manifest.csv")
    run = run_command(
        "predict", "regions", tissue / "regions" / "manifest.csv", "-o", tmp_path / "o"
    )
    assert run.exit_code == 0, run.output
    truth, found, margins = [], [], []
    for row, record in zip(table(tmp_path / "o" / "detections.csv"), manifest.records, strict=True):
        patch_map = PatchMap.load(tmp_path / "o" / "maps" / f"{row['key']}.npz")
        tissue_ = patch_map.tissue
        inside = np.zeros(tissue_.shape, bool)
        for window, cells, _ in patch_map.regions(1, int(row["min_patches"])):
            inside[window] |= cells
        truth.append(region_patch_mask(record, patch_map)[tissue_])
        found.append(inside[tissue_])
        margins.append(patch_map.margins[..., 1][tissue_])
    truth, found, margins = (np.concatenate(part) for part in (truth, found, margins))
    scores = json.loads((tmp_path / "o" / "scores.json").read_text())["patches"]
    assert scores["AUC"]["value"] == pytest.approx(roc_auc_score(truth, margins), abs=2e-3)
    dice = 2 * (truth & found).sum() / (truth.sum() + found.sum())
    assert scores["Dice"]["value"] == pytest.approx(dice)
    assert scores["sensitivity"]["value"] == pytest.approx(found[truth].mean())
    assert scores["specificity"]["value"] == pytest.approx((~found[~truth]).mean())
    assert "Dice of patches" in run.output


def test_missing_mask_is_warned_of_and_excluded_from_scores(run_command, tissue, tmp_path):
    regions = tmp_path / "regions"
    shutil.copytree(tissue / "regions", regions)
    out = tmp_path / "o"
    assert run_command("predict", "regions", regions / "manifest.csv", "-o", out).exit_code == 0
    record = read_manifest(regions / "manifest.csv").records[0]
    record.mask.unlink()
    image = sorted((tissue / "healthy").iterdir())[0]
    with pytest.warns(UserWarning, match="excluded from patch scores"):
        run = run_command("predict", "regions", image, "-o", out)
    assert run.exit_code == 0, run.output
    scores = json.loads((out / "scores.json").read_text())
    assert scores["n_images"] == len(table(out / "detections.csv")) - 1
    assert scores["patches"]["AUC"]["value"] is not None


def test_mask_is_no_label_of_a_class(run_command, tissue, tmp_path):
    record = read_manifest(tissue / "regions" / "manifest.csv").records[0]
    file = write(tmp_path / "a.csv", "path,mask", f"{record.path},{record.mask}")
    run = run_command("predict", "dfdl", file, "-o", tmp_path / "o")
    assert run.exit_code == 0 and not (tmp_path / "o" / "scores.json").exists()


def test_uncertain_predictions_are_counted():
    labels = ["adenocarcinoma", "uncertain", "normal", "uncertain", "adenocarcinoma"]
    rows = [{"label": label, "path": f"{i}.png"} for i, label in enumerate(labels)]
    text = _format_label_counts(RunResult(rows, [], [], 0))
    assert text == "2 adenocarcinoma, 1 normal, 2 uncertain (no clear class)"
    failed = [(Path("a.png"), "damaged")]
    assert _format_label_counts(RunResult([], [], failed, 0)) == "no prediction, 1 failed"


def test_label_is_uncertain_unless_the_prediction_set_is_one_class(small_models):
    """The table, the summary and the overlay agree; the accuracy uses top_label."""
    model = load_model(small_models.path("calibrated"))
    image = next((small_models.tissue / "inflamed").iterdir())
    prediction = model.predict_one(image)
    for classes, label in ((["healthy", "inflamed"], "uncertain"), ([], "uncertain")):
        unsure = replace(prediction, prediction_set=classes)
        row = unsure.row()
        assert (row["label"], row["top_label"]) == (label, prediction.top_label)
        assert "uncertain" not in row and unsure.summary().startswith("uncertain (")
        text = f"uncertain (best guess: {prediction.top_label})"
        assert unsure.summary().startswith(text) and text in repr(unsure)
    sure = replace(prediction, prediction_set=["inflamed"], top_label="inflamed")
    assert sure.label == sure.row()["label"] == "inflamed"


# --- a folder that was used ---------------------------------------------------------------------


def test_rows_of_earlier_runs_remain(run_command, tissue, tmp_path):
    images = sorted((tissue / "healthy").iterdir())
    assert run_command("predict", "dfdl", images[1], "-o", tmp_path).exit_code == 0
    (first,) = table(tmp_path / "predictions.csv")
    run = run_command("predict", "dfdl", images[0], "-o", tmp_path)
    assert run.exit_code == 0 and "1 image of earlier runs" in run.output
    rows = table(tmp_path / "predictions.csv")
    assert [row["path"] for row in rows] == [str(images[0]), str(images[1])] and rows[1] == first
    assert len(list((tmp_path / "overlays").iterdir())) == 2


def test_failed_images_do_not_count_as_images_of_earlier_runs(run_command, tissue, tmp_path):
    image, other = (tmp_path / f"{number}.jpg" for number in range(2))
    for path, source in zip((image, other), sorted((tissue / "healthy").iterdir()), strict=False):
        path.write_bytes(source.read_bytes())
    output = tmp_path / "o"
    assert run_command("predict", "dfdl", image, other, "-o", output).exit_code == 0
    image.write_bytes(b"")
    run = run_command("predict", "dfdl", image, "-o", output)
    assert run.exit_code == 1 and "See" not in run.output
    assert "The table also contains 1 image of earlier runs" in run.output
    assert f"{output / 'predictions.csv'} still contains earlier predictions of 1 failed" in (
        run.output
    )
    assert len(table(output / "predictions.csv")) == 2


def test_few_failures_are_also_in_a_table(run_command, tmp_path):
    image = tmp_path / "empty.png"
    image.touch()
    assert run_command("predict", "dfdl", image, "-o", tmp_path / "o").exit_code == 1
    assert [row["path"] for row in table(tmp_path / "o" / "failures.csv")] == [str(image)]


def test_labels_of_earlier_runs_are_scored(run_command, tissue, tmp_path):
    file = as_csv(tissue, tmp_path / "a.csv")
    assert run_command("predict", "dfdl", file, "-o", tmp_path / "o").exit_code == 0
    before = (tmp_path / "o" / "scores.json").read_text()
    image = sorted((tissue / "healthy").iterdir())[0]
    run = run_command("predict", "dfdl", image, "-o", tmp_path / "o")
    assert run.exit_code == 0 and (tmp_path / "o" / "scores.json").read_text() == before


@pytest.mark.parametrize(
    ("kind", "arguments", "conflict"),
    [
        ("lcksvd", [], "another model"),
        ("dfdl", ["--mpp", "0.5"], "--mpp was not set and is now 0.5"),
    ],
)
def test_another_model_or_setting_needs_another_folder(
    run_command, tissue, tmp_path, kind, arguments, conflict
):
    image, other = sorted((tissue / "healthy").iterdir())[:2]
    assert run_command("predict", "dfdl", image, "-o", tmp_path).exit_code == 0
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    run = run_command("predict", kind, other, "-o", tmp_path, *arguments)
    assert run.exit_code == 2 and conflict in run.output and "another folder" in run.output
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_results_do_not_belong_to_a_model_that_replaced_theirs_during_loading(
    small_models, tissue, tmp_path, monkeypatch
):
    image = sorted((tissue / "healthy").iterdir())[0]
    model = shutil.copy(small_models.path("dfdl"), tmp_path / "a.histodict")
    arguments = ["predict", str(model), str(image), "-o", str(tmp_path / "o")]

    def load_and_replace(path, **options):
        loaded = load_model(path, **options)
        loaded.with_threshold(0.9).save(path)
        return loaded

    with monkeypatch.context() as patch:
        patch.setattr("histodict.models.load_model", load_and_replace)
        assert CliRunner().invoke(app, arguments).exit_code == 0
    second = CliRunner().invoke(app, arguments)
    assert second.exit_code == 2 and "another model" in second.output


def test_images_may_be_repeated_with_their_pixel_size(run_command, tissue, tmp_path):
    """Some could not be predicted without it; no row with another size is left."""
    image = sorted((tissue / "healthy").iterdir())[0]
    assert run_command("predict", "dfdl", image, "-o", tmp_path).exit_code == 0
    run = run_command("predict", "dfdl", image, "--mpp", "0.5", "-o", tmp_path)
    assert run.exit_code == 0 and "done before" not in run.output
    assert len(table(tmp_path / "predictions.csv")) == 1


def test_table_of_another_origin_is_not_overwritten(run_command, tissue, tmp_path):
    mine = write(tmp_path / "predictions.csv", "path,label", "a,b")
    run = run_command("predict", "dfdl", tissue / "healthy", "-o", tmp_path)
    assert run.exit_code == 2 and "predictions.csv" in run.output
    assert mine.read_text() == "path,label\na,b"


def test_run_with_failures_only_keeps_the_table(run_command, tissue, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    source = sorted((tissue / "healthy").iterdir())[0]
    copied = images / "a.jpg"
    copied.write_bytes(source.read_bytes())
    out = tmp_path / "o"
    assert run_command("predict", "dfdl", images, "-o", out).exit_code == 0
    before = table(out / "predictions.csv")
    copied.write_bytes(b"gone")
    (images / "b.jpg").write_bytes(b"")
    run = run_command("predict", "dfdl", images, "-o", out)
    assert run.exit_code == 1 and "its earlier prediction stays in the table" in run.output
    assert table(out / "predictions.csv") == before


def test_replaced_file_has_no_metadata_of_the_earlier_one(run_command, tissue, tmp_path):
    records = read_manifest(tissue / "manifest.csv").records
    image, other = tmp_path / "a.jpg", records[-1].path
    shutil.copy(records[0].path, image)
    labelled = write(tmp_path / "a.csv", "path,label,patient,mpp", "a.jpg,healthy,one,0.5")
    assert run_command("predict", "dfdl", labelled, "-o", tmp_path / "o").exit_code == 0
    shutil.copy(other, image)
    without_labels = write(tmp_path / "b.csv", "path,mpp", "a.jpg,0.5")
    assert run_command("predict", "dfdl", without_labels, "-o", tmp_path / "o").exit_code == 0
    (row,) = table(tmp_path / "o" / "predictions.csv")
    assert not row.get("truth") and not (tmp_path / "o" / "scores.json").exists()


def test_invalid_mask_prevents_scoring_but_not_prediction(run_command, tissue, tmp_path):
    image = read_manifest(tissue / "manifest.csv").records[0].path
    (tmp_path / "mask.png").write_bytes(b"no picture")
    listed = write(tmp_path / "a.csv", "path,mask,mpp", f"{image},mask.png,0.5")
    run = run_command("predict", "regions", listed, "-o", tmp_path / "o")
    assert run.exit_code == 1 and "not used for scores" in run.output and "mask.png" in run.output
    assert "\n1 image: " in f"\n{run.output}" and "failed" not in run.stdout
    (row,) = table(tmp_path / "o" / "detections.csv")
    assert row["path"] == str(image) and not row.get("truth")


@pytest.mark.parametrize(("low", "is_noted"), [(1.0, True), (0.9996, True), (0.8, False)])
def test_interval_of_zero_width_is_noted(low, is_noted, capsys):
    _print_metrics({"AUC": {"value": 1.0, "low": low, "high": 1.0}}, None)
    text = "An interval of zero width does not mean certainty."
    assert (text in capsys.readouterr().out) == is_noted
