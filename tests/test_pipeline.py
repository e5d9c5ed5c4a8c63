"""From image files to answers, model files and result folders, on a small synthetic set."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image
from safetensors.numpy import save_file
from typer.testing import CliRunner

from histodict.cli import app
from histodict.demo.sets import write_synthetic_set
from histodict.images.manifest import read_manifest
from histodict.images.readers import ImageError
from histodict.model_file import SCHEMA, ModelFileError, read_header
from histodict.patches.patch_map import BLANK
from histodict.pipeline import TissueClassifier, load_model, save_model
from histodict.recipes import PRESETS, Recipe, preset

FAST = Recipe(
    method_parameters={"n_atoms": 40, "n_iter": 4},
    patch_px=16,
    patches_per_class=800,
    stain="reinhard",
    vectors="centred",
    rule="margin",
)


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_set(tmp_path_factory.mktemp("set") / "tissue", 4, 4, size=(240, 180))


@pytest.fixture(scope="module")
def halves(tissue):
    manifest = read_manifest(tissue / "manifest.csv")
    patients = sorted(set(manifest.patients))
    places = [i for i, patient in enumerate(manifest.patients) if patient in patients[:2]]
    others = [i for i in range(len(manifest.records)) if i not in places]
    return manifest.select(places), manifest.select(others)


@pytest.fixture(scope="module")
def model(halves):
    return TissueClassifier(FAST, random_state=1).fit(halves[0])


def test_answers_for_unseen_patients(model, halves):
    answers = [model.predict(record.path, mpp=record.mpp) for record in halves[1].records]
    right = [a.label == r.label for a, r in zip(answers, halves[1].records, strict=True)]
    assert np.mean(right) >= 0.75
    for answer in answers:
        winners = answer.patch_map.winners
        assert answer.n_patches == (winners != BLANK).sum()
        assert sum(answer.proportions.values()) == pytest.approx(1)
        shares = [(winners == i).sum() / answer.n_patches for i in range(2)]
        np.testing.assert_allclose(list(answer.proportions.values()), shares)
        assert (answer.label == model.classes_[1]) == (answer.score > 0)


def test_same_seed_same_model_for_any_number_of_threads(halves):
    one, two = (TissueClassifier(FAST, random_state=3, n_jobs=n).fit(halves[0]) for n in (1, 2))
    np.testing.assert_array_equal(
        one.model_.method_.dictionaries_, two.model_.method_.dictionaries_
    )
    np.testing.assert_array_equal(one.rule_.weights, two.rule_.weights)


def test_glass_gets_no_answer(model, tmp_path):
    Image.new("RGB", (200, 150), (244, 243, 245)).save(tmp_path / "glass.png")
    answer = model.predict(tmp_path / "glass.png")
    assert answer.label is None
    assert answer.n_patches == 0


def test_another_pixel_size_is_refused(model, halves):
    with pytest.raises(ImageError, match="trained on"):
        model.predict(halves[1].records[0].path, mpp=0.25)


def test_a_working_pixel_size_reduces_images_to_it(halves, tmp_path):
    recipe = FAST.with_changes(mpp=1.0)
    model = TissueClassifier(recipe).fit(halves[0])
    record = halves[1].records[0]
    fine = model.predict(record.path, mpp=0.5).patch_map.winners.shape
    with Image.open(record.path) as image:
        assert fine == (image.height // 2 // 16, image.width // 2 // 16)
    with pytest.raises(ImageError, match="pixel size is not known"):
        Image.new("RGB", (200, 150)).save(tmp_path / "unknown.png")
        model.predict(tmp_path / "unknown.png")
    with pytest.raises(ImageError, match="coarser"):
        model.predict(record.path, mpp=2.0)


def test_presets_are_recipes_and_the_paper_is_as_published():
    paper = preset("paper")
    assert (paper.patch_px, paper.patches_per_class, paper.vectors) == (20, 10_000, "rgb")
    assert (paper.stain, paper.rule, paper.downsample) == ("none", "proportion", 1.0)
    parameters = paper.method_parameters
    assert {k: parameters[k] for k in ("n_atoms", "penalty", "rho", "n_iter")} == {
        "n_atoms": 500,
        "penalty": 0.1,
        "rho": 0.001,
        "n_iter": 50,
    }
    for recipe in PRESETS.values():
        assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    with pytest.raises(ValueError, match="preset must be one of"):
        preset("best")
    for setting in ({"stain": "pink"}, {"vectors": "x"}, {"rule": "x"}, {"patch_px": 1}):
        with pytest.raises(ValueError, match=next(iter(setting))):
            Recipe(**setting)


def test_unseen_patients_give_probabilities_and_move_the_threshold(halves, tmp_path):
    recipe = FAST.with_changes(calibration_folds=2)
    model = TissueClassifier(recipe, random_state=1).fit(halves[0])
    plain = TissueClassifier(FAST, random_state=1).fit(halves[0])
    np.testing.assert_array_equal(
        model.model_.method_.dictionaries_, plain.model_.method_.dictionaries_
    )
    assert model.threshold != plain.threshold  # what unseen patients say moves θ
    assert model.predict(halves[1].records[0].path).threshold == model.threshold
    loaded = load_model(save_model(model, tmp_path / "m.histodict"))
    for record in halves[1].records[:3]:
        answer = model.predict(record.path, mpp=record.mpp, error_rate=0.2)
        chances = answer.probabilities
        assert sum(chances.values()) == pytest.approx(1)
        assert chances[answer.label] >= 0.5
        value = model.rule_value(answer.score)
        assert value == pytest.approx(plain.rule_value(plain.predict(record.path).score))
        assert (value > model.threshold) == (answer.label == model.classes_[1])
        assert answer.candidates == [
            name
            for name in model.classes_
            if 1 - chances[name] <= model.calibration_.misfits[int(np.ceil(9 * 0.8)) - 1]
        ]
        assert loaded.predict(record.path, mpp=record.mpp, error_rate=0.2).probabilities == chances
        assert plain.predict(record.path, mpp=record.mpp).probabilities == {}


def test_a_threshold_can_be_moved(model, halves):
    record = halves[1].records[0]
    value = model.rule_value(model.predict(record.path, mpp=record.mpp).score)
    for shift, place in ((-0.01, 1), (0.01, 0)):
        moved = model.with_threshold(value + shift)
        assert moved.threshold == pytest.approx(value + shift)
        assert moved.predict(record.path, mpp=record.mpp).label == model.classes_[place]


# ---------------------------------------------------------------- model files


def test_a_model_file_gives_the_same_answers(model, halves, tmp_path):
    path = save_model(model, tmp_path / "größe.histodict")
    loaded = load_model(path)
    for record in halves[1].records[:3]:
        one, two = model.predict(record.path), loaded.predict(record.path)
        assert (one.label, one.score) == (two.label, two.score)
        np.testing.assert_array_equal(one.patch_map.margins, two.patch_map.margins)
    header = read_header(path)
    assert header["classes"] == ["healthy", "inflamed"]
    assert header["training"]["manifest_digest"] == halves[0].digest()
    assert [p.name for p in tmp_path.iterdir()] == ["größe.histodict"]


def test_damaged_foreign_and_newer_files_are_told_apart(model, tmp_path):
    path = save_model(model, tmp_path / "model.histodict")
    cut = tmp_path / "cut.histodict"
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    text = tmp_path / "text.histodict"
    text.write_text("not a model")
    foreign = tmp_path / "foreign.histodict"
    save_file({"x": np.zeros(3)}, foreign)
    newer = tmp_path / "newer.histodict"
    save_file({"x": np.zeros(3)}, newer, {"histodict": json.dumps({"schema": 99})})
    lacking = tmp_path / "lacking.histodict"
    save_file({"x": np.zeros(3)}, lacking, {"histodict": json.dumps({"schema": SCHEMA})})
    for file, message in (
        (tmp_path / "none.histodict", "no such file"),
        (cut, "damaged"),
        (text, "not a histodict model"),
        (foreign, "another program"),
        (newer, "schema 99"),
        (lacking, "damaged"),
    ):
        with pytest.raises(ModelFileError, match=message):
            load_model(file)
    with pytest.raises(ModelFileError, match="does not exist"):
        save_model(model, tmp_path / "nowhere" / "model.histodict")


# ---------------------------------------------------------------- command line


@pytest.fixture(scope="module")
def trained(tissue, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tissue.histodict"
    options = ["--set", "patch_px=16", "--set", "downsample=1", "--set", "n_atoms=60", "--json"]
    result = CliRunner().invoke(
        app, ["train", str(tissue / "manifest.csv"), "-o", str(path), *options]
    )
    assert result.exit_code == 0, result.output
    return path


def rows_of(folder):
    return pyarrow.parquet.read_table(folder / "predictions.parquet").to_pylist()


def test_train_predict_info(trained, tissue, tmp_path):
    out = tmp_path / "results"
    arguments = ["predict", str(trained), str(tissue / "inflamed"), "--output", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows = rows_of(out)
    assert len(rows) == len(list((tissue / "inflamed").iterdir()))
    assert {"path", "label", "score", "threshold", "proportion_inflamed"} <= set(rows[0])
    header = (out / "predictions.csv").read_text().splitlines()[0]
    assert header.startswith('"path","label","score"')
    for row in rows:
        key = row["key"]
        collection = json.loads((out / "geojson" / f"{key}.geojson").read_text())
        assert len(collection["features"]) == row["n_patches"]
        with Image.open(out / "overlays" / f"{key}.png") as overlay:
            assert overlay.size == (240, 180)
        with np.load(out / "maps" / f"{key}.npz") as arrays:
            assert (arrays["winners"] != BLANK).sum() == row["n_patches"]
    again = CliRunner().invoke(app, arguments)
    assert "were done before" in again.output
    info = CliRunner().invoke(app, ["info", str(trained)])
    assert "healthy, inflamed" in info.output


def test_bad_files_are_listed_and_do_not_stop_the_others(trained, tissue, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    good = sorted((tissue / "healthy").iterdir())[0]
    (images / "gut.jpg").write_bytes(good.read_bytes())
    (images / "empty.jpg").write_bytes(b"")
    (images / "cut.jpg").write_bytes(good.read_bytes()[:2000])
    Image.new("RGB", (5, 5), (200, 100, 150)).save(images / "tiny.png")
    result = CliRunner().invoke(
        app,
        ["predict", str(trained), str(images), str(tmp_path / "no.jpg"), "-o", str(tmp_path / "o")],
    )
    assert result.exit_code == 1
    for name in ("empty.jpg", "cut.jpg", "tiny.png", "no.jpg"):
        assert name in result.output
    assert [row["path"] for row in rows_of(tmp_path / "o")] == [str(images / "gut.jpg")]


def test_errors_are_one_line_and_exit_status_2(trained, tmp_path):
    for arguments in (
        ["train", str(tmp_path / "none"), "-o", str(tmp_path / "m.histodict")],
        ["predict", str(tmp_path / "none.histodict"), str(tmp_path), "-o", str(tmp_path / "o")],
        ["predict", str(trained), str(tmp_path), "-o", str(tmp_path / "o")],
        ["info", __file__],
    ):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 2
        assert "Error:" in result.output
        assert "Traceback" not in result.output


def test_killed_in_mid_run_and_started_again_it_finishes_the_rest(trained, tissue, tmp_path):
    out = tmp_path / "results"
    command = [sys.executable, "-c", "from histodict.cli import app; app()", "predict"]
    command += [str(trained), str(tissue / "healthy"), str(tissue / "inflamed"), "-o", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(out.glob("done/*.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = {p: p.stat().st_mtime_ns for p in out.glob("done/*.json")}
    assert 3 <= len(finished) < 16
    assert not (out / "predictions.csv").exists()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert len(rows_of(out)) == 16
    assert all(p.stat().st_mtime_ns == stamp for p, stamp in finished.items())
    for folder, count in (("overlays", 16), ("maps", 16), ("geojson", 16)):
        whole = [p for p in (out / folder).iterdir() if not p.name.startswith(".")]
        assert len(whole) == count


def test_demo_makes_a_page_that_needs_nothing_else(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/jpeg;base64,") == 12
    assert "<svg" in page and "<script" not in page
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    accuracy = float(result.output.split("patients: ")[1].split()[0])
    assert accuracy >= 0.8
