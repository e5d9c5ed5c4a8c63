"""Tests of pixel sizes on the command line: origin, assumptions and refused sizes."""

from __future__ import annotations

import csv
import json
import re
import shutil
import warnings

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.images.pixel_size import PixelSizeOption
from histodict.models import load_model
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.images.files import save_tiff_of_size

FAST = ("--method", "nearest-mean", "--set", "patch_px=12", "--set", "patches_per_class=100")


def run(*arguments):
    outcome = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert not isinstance(outcome.exception, AssertionError)
    return outcome


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    """Synthetic images without a pixel size; a table would give 0.5."""
    folder = write_synthetic_dataset(tmp_path_factory.mktemp("set") / "t", 3, 2, size=(120, 90))
    shutil.move(folder / "manifest.csv", folder / "with-sizes.csv")
    return folder


@pytest.fixture(scope="module")
def images(tissue, tmp_path_factory):
    """One file with 0.5 µm, one with 1 µm, and one without a pixel size."""
    folder = tmp_path_factory.mktemp("images")
    source = sorted(tissue.glob("healthy/*"))[0]
    pixels = np.asarray(Image.open(source).convert("RGB"))
    save_tiff_of_size(folder / "half.tif", 0.5, pixels)
    save_tiff_of_size(folder / "one.tif", 1.0, pixels)
    Image.fromarray(pixels).save(folder / "silent.png")
    return folder


def train(data, output, *options):
    return run("train", data, "-o", output, *FAST, *options)


@pytest.fixture(scope="module")
def model(tissue, tmp_path_factory):
    """A model trained on images of 0.5 µm."""
    path = tmp_path_factory.mktemp("model") / "m.histodict"
    outcome = train(tissue / "with-sizes.csv", path)
    assert outcome.exit_code == 0, outcome.output
    return path


@pytest.fixture(scope="module")
def model_without_size(tissue, tmp_path_factory):
    """A model without a pixel size."""
    path = tmp_path_factory.mktemp("innocent") / "m.histodict"
    assert train(tissue, path).exit_code == 0
    assert load_model(path).model_.mpp_ is None
    return path


def sizes(folder, table="predictions.csv"):
    with (folder / table).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["path"].rsplit("/")[-1]: (row["mpp"], row["mpp_from"]) for row in rows}


def test_assumed_sizes_are_warned_of_once_and_recorded(model, images, tmp_path):
    files = (images / "half.tif", images / "silent.png")
    outcome = run("predict", model, *files, "-o", tmp_path)
    assert outcome.exit_code == 0, outcome.output
    assert outcome.output.count("Warning") == 1
    assert "1 of 2 images is not known" in outcome.output and "0.5 µm" in outcome.output
    assert sizes(tmp_path) == {"half.tif": ("0.5", "file"), "silent.png": ("0.5", "assumed")}
    # nothing is computed, but the warning is repeated
    again = run("predict", model, *files, "-o", tmp_path)
    assert "2 already finished" in again.output and "1 of 2 images is not known" in again.output


def test_mpp_is_a_default_and_does_not_override(model, images, tmp_path):
    files = (images / "half.tif", images / "silent.png")
    outcome = run("predict", model, *files, "-o", tmp_path, "--mpp", "0.52")
    assert outcome.exit_code == 0 and "Warning" not in outcome.output
    assert sizes(tmp_path) == {"half.tif": ("0.5", "file"), "silent.png": ("0.52", "command")}
    other = ("-o", tmp_path / "other", "--mpp", "0.5")
    assert run("predict", model, images / "one.tif", *other).exit_code == 1
    outcome = run("predict", model, images, "-o", tmp_path / "x", "--override-mpp", "0.5")
    assert outcome.exit_code == 0, outcome.output
    assert set(sizes(tmp_path / "x").values()) == {("0.5", "command")}
    both = run("predict", model, images, "-o", tmp_path, "--mpp", "1", "--override-mpp", "1")
    assert both.exit_code == 2 and "--mpp cannot be combined" in both.output


def test_results_folder_has_one_assumed_size(model, images, tmp_path):
    """Images given again are predicted again; others of another size are not mixed with them."""
    files = (images / "half.tif", images / "silent.png")
    assert run("predict", model, *files, "-o", tmp_path, "--mpp", "0.52").exit_code == 0
    for option in ("--mpp", "--override-mpp"):
        outcome = run("predict", model, files[0], "-o", tmp_path, option, "0.5")
        assert outcome.exit_code == 2 and "--mpp was 0.52" in outcome.output
    outcome = run("predict", model, *files, "-o", tmp_path, "--override-mpp", "0.5")
    assert outcome.exit_code == 0 and "done before" not in outcome.output
    assert set(sizes(tmp_path).values()) == {("0.5", "command")}


def test_sizes_in_the_table_override_the_file_and_mpp(model, images, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "out"
    rows = [f"{images / 'one.tif'},0.5", f"{images / 'half.tif'},", f"{images / 'silent.png'},"]
    table.write_text("\n".join(["path,mpp", *rows]))
    outcome = run("predict", model, table, "-o", out, "--mpp", "0.52")
    assert outcome.exit_code == 0, outcome.output
    expected = {
        "one.tif": ("0.5", "table"),
        "half.tif": ("0.5", "file"),
        "silent.png": ("0.52", "command"),
    }
    assert sizes(out) == expected
    again = run("predict", model, table, "-o", out, "--mpp", "0.51")
    assert "(1 already finished)" in again.output  # the one in the table
    assert sizes(out)["silent.png"] == ("0.51", "command")


def test_model_without_a_size_warns_that_it_cannot_compare(model_without_size, images, tmp_path):
    outcome = run("predict", model_without_size, images, "-o", tmp_path)
    assert outcome.exit_code == 0 and outcome.output.count("Warning") == 1
    assert "agrees with that of 2 images (0.5 to 1 µm)" in outcome.output
    assert sizes(tmp_path)["silent.png"] == ("", "unknown")


def test_detect_has_the_same_columns_and_warning(tissue, images, tmp_path):
    finder = tmp_path / "f.histodict"
    trained = train(tissue / "with-sizes.csv", finder, "--regions", "inflamed")
    assert trained.exit_code == 0, trained.output
    outcome = run("predict", finder, images / "silent.png", "-o", tmp_path / "out")
    assert "pixel size of the image is not known" in outcome.output
    assert sizes(tmp_path / "out", "detections.csv") == {"silent.png": ("0.5", "assumed")}


def test_partly_known_sizes_are_refused_or_completed(tissue, tmp_path):
    text = (tissue / "with-sizes.csv").read_text().splitlines()
    place = text[0].split(",").index("mpp")
    cells = text[1].split(",")
    cells[place] = ""
    table = tissue / "partly.csv"
    table.write_text("\n".join([text[0], ",".join(cells), *text[2:]]))
    outcome = train(table, tmp_path / "m.histodict")
    assert outcome.exit_code == 2, outcome.output
    assert "pixel size of 1 image is not known" in outcome.output and "--mpp" in outcome.output
    assert cells[0] in outcome.output
    assert train(table, tmp_path / "m.histodict", "--mpp", "0.5").exit_code == 0
    assert load_model(tmp_path / "m.histodict").model_.mpp_ == 0.5
    arguments = ("--methods", "nearest-mean", "--folds", "2", "-o", tmp_path / "out")
    outcome = run("evaluate", table, *arguments)
    assert outcome.exit_code == 2 and "pixel size of 1 image is not known" in outcome.output
    assert not (tmp_path / "out" / "runs").exists()


def test_train_accepts_a_size_for_files_without_one(tissue, tmp_path):
    assert train(tissue, tmp_path / "m.histodict", "--mpp", "0.25").exit_code == 0
    assert load_model(tmp_path / "m.histodict").model_.mpp_ == 0.25
    outcome = train(tissue / "with-sizes.csv", tmp_path / "m.histodict", "--override-mpp", "1")
    assert outcome.exit_code == 0
    assert load_model(tmp_path / "m.histodict").model_.mpp_ == 1


def test_whole_image_method_reads_sizes_of_files(tissue, images, tmp_path):
    """The files are read too, not only the table."""
    for label in ("healthy", "inflamed"):
        (tmp_path / "set" / label).mkdir(parents=True)
        for place, path in enumerate(sorted((tissue / label).iterdir())[:3]):
            pixels = np.asarray(Image.open(path).convert("RGB"))
            save_tiff_of_size(tmp_path / "set" / label / f"{place}.tif", 0.5, pixels)
    model = tmp_path / "m.histodict"
    outcome = run("train", tmp_path / "set", "-o", model, "--method", "lbp-colour")
    assert outcome.exit_code == 0, outcome.output
    assert load_model(model).model_.mpp_ == pytest.approx(0.5)
    outcome = run("predict", model, images / "one.tif", "-o", tmp_path / "out")
    assert outcome.exit_code == 1 and "has 1 µm per pixel" in outcome.output


def test_adapt_warns_of_assumed_sizes(model, images, tmp_path):
    outcome = run("adapt", model, images / "silent.png", "-o", tmp_path / "a.histodict")
    assert outcome.exit_code == 2 and "pixel size of the image is not known" in outcome.output


def test_atoms_warns_of_assumed_sizes(tissue, tmp_path):
    model, page = tmp_path / "m.histodict", tmp_path / "atoms.html"
    settings = ("--set", "patch_px=12", "--set", "patches_per_class=60", "--set", "n_atoms=4")
    settings += ("--preset", "fast")
    trained = run("train", tissue / "with-sizes.csv", "-o", model, *settings, "--set", "n_iter=2")
    assert trained.exit_code == 0, trained.output
    outcome = run("atoms", model, tissue, "-o", page, "--atoms", "2")
    assert outcome.exit_code == 0
    assert re.search(r"pixel size of (\d+) of \1 images is not known", outcome.output)


def test_predict_in_python_warns_of_assumed_sizes(model, images):
    loaded = load_model(model)
    with pytest.warns(UserWarning, match="pixel size of the image is not known"):
        prediction = loaded.predict(images / "silent.png")
    assert (prediction.size.mpp, prediction.size.origin) == (0.5, "assumed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded.predict(images / "silent.png", mpp=0.5).size.origin == "command"
        assert loaded.predict(images / "half.tif", mpp=9.0).size.origin == "file"
        specified = PixelSizeOption(override=0.5)
        assert loaded.predict(images / "one.tif", mpp=specified).size.origin == "command"
        # no warning, as many images are processed
        assert json.dumps(loaded.predict_one(images / "silent.png").row())
