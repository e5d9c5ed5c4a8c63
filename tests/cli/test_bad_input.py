"""Tests of `histodict train` and `histodict predict` with broken and unusual files.

Broken files are reported with a reason and a hint, and do not stop others. Unusual files (CMYK, 16
bits, grey, transparent, rotated by EXIF, names in any script) give the same predictions as plain
ones.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import tifffile
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.patches.patch_map import NO_TISSUE
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.images.files import save_plain, save_png_header, texture

SETTINGS = ("patch_px=16", "downsample=1", "patches_per_class=800", "n_atoms=40", "n_iter=4")
SIZE = (240, 180)
# The slide library aborts on it, which ends the process that opened it.
ABORTS = Path(__file__).parents[1] / "finds" / "images" / "1106a9b4-jpeg-tiles.tif"


@dataclass
class Outcome:
    """Result of a command: exit status, output on one line, and folder of its tables."""

    status: int
    message: str
    folder: Path

    @property
    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows of predictions.parquet by file name."""
        table = pyarrow.parquet.read_table(self.folder / "predictions.parquet")
        return {Path(row["path"]).name: row for row in table.to_pylist()}

    def predicted_classes(self, name: str) -> np.ndarray:
        with np.load(self.folder / "maps" / f"{self.rows[name]['key']}.npz") as arrays:
            return arrays["predicted_classes"]

    def overlay(self, name: str) -> np.ndarray:
        with Image.open(self.folder / "overlays" / f"{self.rows[name]['key']}.png") as image:
            return np.asarray(image)


def run(folder: Path, *arguments: object) -> Outcome:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "Traceback" not in result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return Outcome(result.exit_code, " ".join(result.output.split()), folder)


def train(data: Path, model: Path, *options: object) -> Outcome:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    if "--preset" not in options and "--regions" not in options:
        settings += ["--preset", "fast"]
    return run(model.parent, "train", data, "--output", model, *settings, *options)


def predict(model: Path, output: Path, *arguments: object) -> Outcome:
    return run(output, "predict", model, *arguments, "--output", output)


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 4, 4, size=SIZE)


@pytest.fixture(scope="module")
def model(tissue, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tissue.histodict"
    outcome = train(tissue / "manifest.csv", path)
    assert outcome.status == 0, outcome.message
    return path


@pytest.fixture(scope="module")
def good(tissue):
    return tissue / "inflamed" / "patient01_2.jpg"


@pytest.fixture(scope="module")
def pixels(good):
    return np.asarray(Image.open(good))


@pytest.fixture
def classes(tissue, tmp_path):
    """A copy of the training folders, to add files to."""
    for name in ("healthy", "inflamed"):
        shutil.copytree(tissue / name, tmp_path / "classes" / name)
    return tmp_path / "classes"


# ---------------------------------------------------------------- unreadable files


def cut_short(path, rng):
    save_plain(path, texture(rng, *SIZE), quality=95)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_short_slide(path, rng):
    tifffile.imwrite(path, texture(rng, *SIZE), tile=(64, 64), photometric="rgb")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# Each broken file: how to write it, and the expected words of reason and hint.
BROKEN = {
    "cut short.jpg": (cut_short, ("damaged or cut short", "copy it again")),
    "cut short.tif": (cut_short_slide, ("copy it again",)),
    "aborts.tif": (
        lambda path, rng: shutil.copy(ABORTS, path),
        ("a part of the slide cannot be read", "died (signal 6)", "copy it again"),
    ),
    "empty.jpg": (lambda path, rng: path.touch(), ("empty (0 bytes)", "copy it again")),
    "text.png": (lambda path, rng: path.write_text("x"), ("not a JPEG", "save it again")),
    "bomb.png": (
        lambda path, rng: save_png_header(path, 60_000, 60_000),
        ("60000 x 60000 pixels are too many", "convert it to a pyramidal TIFF"),
    ),
    "numbers.tif": (
        lambda path, rng: tifffile.imwrite(path, rng.normal(size=(180, 240))),
        ("are no colours", "save the image with 8 bits per colour"),
    ),
}
SMALL = {
    "one pixel.png": ((1, 1), ("1 x 1 pixels", "less than one patch of 16 x 16", "smaller patch")),
    "strip.png": ((200, 15), ("200 x 15 pixels", "less than one patch", "leave the image out")),
}


def make(name, folder, rng):
    """Write one of the files above; return the expected words."""
    if name in BROKEN:
        maker, text = BROKEN[name]
        maker(folder / name, rng)
    else:
        size, text = SMALL[name]
        save_plain(folder / name, texture(rng, *size))
    return text


@pytest.mark.parametrize("name", [*BROKEN, *SMALL])
def test_predict_reports_a_broken_file_and_predicts_others(name, model, good, tmp_path, rng):
    images = tmp_path / "images"
    images.mkdir()
    shutil.copy(good, images / "a good one.jpg")
    shutil.copy(good, images / "z good one.jpg")
    text = make(name, images, rng)
    outcome = predict(model, tmp_path / "out", images)
    assert outcome.status == 1
    assert "2 images: 2 inflamed." in outcome.message
    _, _, complaint = outcome.message.partition("Not done:")
    for word in (name, *text):
        assert word in complaint
    assert "good one" not in complaint
    assert sorted(outcome.rows) == ["a good one.jpg", "z good one.jpg"]


def test_evaluate_reports_a_slide_that_aborts(classes, tmp_path):
    for extra in sorted(classes.glob("*/*"))[2:-2]:
        extra.unlink()
    shutil.copy(ABORTS, classes / "healthy" / "aborts.tif")
    settings = ("--set", "n_atoms=4", "--set", "patches_per_class=50", "--jobs", "1")
    command = ("evaluate", classes, "--methods", "src", "--folds", "2", *settings)
    outcome = run(tmp_path, *command, "--output", tmp_path / "out")
    assert outcome.status == 2 and not (tmp_path / "out" / "runs").exists()
    assert "aborts.tif: a part of the slide cannot be read" in outcome.message


def test_path_of_a_broken_file_is_reported_once(model, tmp_path):
    path = tmp_path / "empty.jpg"
    path.touch()
    assert predict(model, tmp_path / "out", path).message.count(str(path)) == 1


def test_predict_lists_all_broken_files_in_json(model, good, tmp_path, rng):
    images = tmp_path / "images"
    images.mkdir()
    text = {name: make(name, images, rng) for name in (*BROKEN, *SMALL)}
    shutil.copy(good, images / "good.jpg")
    missing = tmp_path / "missing.jpg"
    arguments = ["predict", model, images, missing, "--output", tmp_path / "out", "--json"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit), result.output
    report = json.loads(result.stdout)
    assert [Path(row["path"]).name for row in report["rows"]] == ["good.jpg"]
    errors = {Path(failure["path"]).name: failure["reason"] for failure in report["failures"]}
    assert set(errors) == {*text, "missing.jpg"}
    for name, expected in text.items():
        assert all(word in errors[name] for word in expected), (name, errors[name], expected)
    assert "there is no such file; check the name and the folder" in errors["missing.jpg"]


def test_background_image_gets_the_label_no_tissue(model, tmp_path):
    Image.new("RGB", SIZE, (243, 242, 244)).save(tmp_path / "glass.png")
    arguments = ["predict", model, tmp_path / "glass.png", "--output", tmp_path / "out", "--json"]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0

    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    (row,) = json.loads(result.stdout, parse_constant=refuse)["rows"]
    assert (row["label"], row["n_patches"], row["score"]) == ("no tissue", 0, None)


def test_predict_without_any_readable_image_ends_regularly(model, tmp_path):
    (tmp_path / "empty.jpg").touch()
    outcome = predict(model, tmp_path / "out", tmp_path / "empty.jpg", tmp_path / "missing.jpg")
    assert outcome.status == 1
    assert "0 images" in outcome.message and "predictions.csv" not in outcome.message
    assert not outcome.folder.exists()


def test_repaired_file_is_predicted_by_the_next_run(model, good, tmp_path):
    image = tmp_path / "image.jpg"
    image.touch()
    assert predict(model, tmp_path / "out", image).status == 1
    shutil.copy(good, image)
    outcome = predict(model, tmp_path / "out", image)
    assert outcome.status == 0
    assert outcome.rows["image.jpg"]["label"] == "inflamed"


@pytest.mark.parametrize("name", BROKEN)
def test_train_refuses_a_broken_file_before_training(name, classes, tmp_path, rng):
    text = make(name, classes / "healthy", rng)
    outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 2
    _, _, complaint = outcome.message.partition("Error:")
    for word in (f"healthy/{name}", *text):
        assert word in complaint
    assert not (tmp_path / "model.histodict").exists()


@pytest.mark.parametrize("name", SMALL)
def test_train_refuses_an_image_smaller_than_a_patch(name, classes, tmp_path, rng):
    text = make(name, classes / "healthy", rng)
    outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 2
    _, _, complaint = outcome.message.partition("Error:")
    for word in (name, *text):
        assert word in complaint
    assert not (tmp_path / "model.histodict").exists()


def test_train_skips_background_images(classes, tmp_path):
    Image.new("RGB", SIZE, (243, 242, 244)).save(classes / "healthy" / "glass.png")
    with pytest.warns(UserWarning, match="nothing is learnt from 1 training image.*glass.png"):
        outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 0, outcome.message
    assert "from 17 images" in outcome.message


def test_train_refuses_a_class_without_tissue(classes, tmp_path):
    shutil.rmtree(classes / "healthy")
    (classes / "healthy").mkdir()
    Image.new("RGB", SIZE, (243, 242, 244)).save(classes / "healthy" / "glass.png")
    with pytest.warns(UserWarning, match="as no tissue was found there: glass.png"):
        outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 2
    assert "no tissue was found in any image of class 'healthy'" in outcome.message


# ---------------------------------------------------------------- unusual, but readable


def save_16_bit_png(path, pixels):
    """Write a PNG of 16 bits per colour, which Pillow only reads."""

    def chunk(kind, data):
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    height, width = pixels.shape[:2]
    lines = (pixels.astype(">u2") * 257).reshape(height, -1).view(np.uint8)
    data = zlib.compress(np.pad(lines, ((0, 0), (1, 0))).tobytes())
    header = struct.pack(">IIBBBBB", width, height, 16, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)


def save_rotated(path, pixels, **options):
    """Write the image rotated by 90° to the left, with the EXIF tag to rotate it back."""
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(np.ascontiguousarray(np.rot90(pixels))).save(path, exif=exif, **options)


def save_opaque(path, pixels):
    Image.fromarray(pixels).convert("RGBA").save(path)


def save_16_bit_tiff(path, pixels):
    tifffile.imwrite(path, pixels.astype(np.uint16) * 256 + 100, photometric="rgb")


# Lossless: the same pixels as the plain file, hence the same prediction and map bit for bit.
EXACT = {
    "16 bits.png": save_16_bit_png,
    "16 bits.tif": save_16_bit_tiff,
    "opaque.png": save_opaque,
    "turned.png": save_rotated,
    "turned.tif": save_rotated,
    "slide.tif": lambda path, pixels: tifffile.imwrite(path, pixels, tile=(64, 64)),
}
# Lossy: nearly the same.
CLOSE = {
    "turned.jpg": lambda path, pixels: save_rotated(path, pixels, quality=95, subsampling=0),
    "cmyk.jpg": lambda path, pixels: Image.fromarray(pixels).convert("CMYK").save(path, quality=95),
}


@pytest.fixture(scope="module")
def predictions(model, pixels, tmp_path_factory):
    """Predictions of the plain image and all its copies, from one run."""
    images = tmp_path_factory.mktemp("images")
    save_plain(images / "plain.png", pixels)
    for name, save in (EXACT | CLOSE).items():
        save(images / name, pixels)
    outcome = predict(model, tmp_path_factory.mktemp("results") / "out", images)
    assert outcome.status == 0, outcome.message
    assert len(outcome.rows) == 1 + len(EXACT) + len(CLOSE)
    return outcome


@pytest.mark.parametrize("name", EXACT)
def test_lossless_formats_give_the_same_prediction(name, predictions):
    plain, twin = (predictions.rows[of] for of in ("plain.png", name))
    assert plain["label"] == "inflamed"
    for column in ("label", "score", "n_patches", "proportion_inflamed"):
        assert twin[column] == plain[column]
    np.testing.assert_array_equal(
        predictions.predicted_classes(name), predictions.predicted_classes("plain.png")
    )
    np.testing.assert_array_equal(predictions.overlay(name), predictions.overlay("plain.png"))


@pytest.mark.parametrize("name", CLOSE)
def test_lossy_formats_give_a_similar_prediction(name, predictions):
    plain, twin = (predictions.rows[of] for of in ("plain.png", name))
    assert twin["label"] == plain["label"]
    assert twin["score"] == pytest.approx(plain["score"], abs=0.15)
    same = predictions.predicted_classes(name) == predictions.predicted_classes("plain.png")
    assert same.mean() > 0.95
    assert predictions.overlay(name).shape == predictions.overlay("plain.png").shape


def test_rotated_image_without_exif_has_another_map(predictions, model, pixels, tmp_path):
    """The copies above agree because of EXIF: rotated pixels without it have another map."""
    save_plain(tmp_path / "turned.png", np.ascontiguousarray(np.rot90(pixels)))
    outcome = predict(model, tmp_path / "out", tmp_path / "turned.png")
    assert (
        outcome.predicted_classes("turned.png").shape
        == predictions.predicted_classes("plain.png").shape[::-1]
    )


def test_transparent_area_is_background(model, pixels, tmp_path):
    half = np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)])
    half[:, 120:, 3] = 0
    save_plain(tmp_path / "half.png", half)
    outcome = predict(model, tmp_path / "out", tmp_path / "half.png")
    assert outcome.status == 0
    on_tissue = outcome.predicted_classes("half.png") != NO_TISSUE
    assert on_tissue[:, :7].mean() > 0.9
    assert not on_tissue[:, 8:].any()


def test_tissue_of_grey_and_coloured_images_is_the_same(predictions, model, pixels, tmp_path):
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    save_plain(tmp_path / "grey.png", grey)
    save_plain(tmp_path / "grey.jpg", grey, quality=95)
    save_plain(tmp_path / "grey.tif", grey.astype(np.uint16) * 257)
    Image.fromarray(grey).convert("RGB").save(tmp_path / "grey as colour.png")
    outcome = predict(model, tmp_path / "out", *sorted(tmp_path.glob("grey*.*")))
    assert outcome.status == 0, outcome.message
    here = outcome.predicted_classes("grey.png")
    assert (
        np.mean((here == NO_TISSUE) == (predictions.predicted_classes("plain.png") == NO_TISSUE))
        > 0.9
    )
    for name in ("grey.tif", "grey as colour.png"):
        np.testing.assert_array_equal(outcome.predicted_classes(name), here)
    assert np.mean(outcome.predicted_classes("grey.jpg") == here) > 0.95


def test_grey_images_can_be_used_for_training(classes, tmp_path):
    for path in classes.glob("*/*.jpg"):
        Image.open(path).convert("L").save(path, quality=95)
    (tmp_path / "unseen").mkdir()
    for path in classes.glob("*/patient02*"):
        path.rename(tmp_path / "unseen" / f"{path.parent.name} {path.name}")
    assert train(classes, tmp_path / "grey.histodict").status == 0
    outcome = predict(tmp_path / "grey.histodict", tmp_path / "out", tmp_path / "unseen")
    right = [name.startswith(row["label"]) for name, row in outcome.rows.items()]
    assert len(right) == 4
    assert sum(right) >= 3


def test_unusual_files_can_be_used_for_training(classes, pixels, tmp_path):
    """The same images in other formats give the same model, and predictions of the same bits."""
    plain, unusual = tmp_path / "plain", tmp_path / "unusual"
    savers = list(EXACT.items())
    for name in ("healthy", "inflamed"):
        for folder in (plain, unusual):
            (folder / name).mkdir(parents=True)
        for i, path in enumerate(sorted((classes / name).iterdir())[: len(savers)]):
            image = np.asarray(Image.open(path))
            save_plain(plain / name / f"{i}.png", image)
            kind, save = savers[i]
            save(unusual / name / f"{i} {kind}", image)
    models = [folder.with_suffix(".histodict") for folder in (plain, unusual)]
    for folder, model in zip((plain, unusual), models, strict=True):
        outcome = train(folder, model)
        assert outcome.status == 0, outcome.message
    save_plain(tmp_path / "image.png", pixels)
    one, two = (
        predict(model, model.with_suffix(".out"), tmp_path / "image.png").rows["image.png"]
        for model in models
    )
    assert one["score"] == two["score"]


NAMES = ("Präparat Nr. 1.jpg", "組織 切片.jpg", "ткань.jpg", "ιστός é.jpg", "scan 50 % #1.jpg")


def test_names_in_any_script(tissue, tmp_path):
    """For folders, classes, files, the model and the results."""
    home = tmp_path / "Gewebe µm 组织"
    home.mkdir()
    for label, source in (("gesünd", "healthy"), ("entzündet", "inflamed")):
        shutil.copytree(tissue / source, home / "Klassen" / label)
        for name, path in zip(NAMES, sorted((home / "Klassen" / label).iterdir()), strict=False):
            path.rename(path.with_name(name))
    outcome = train(home / "Klassen", home / "Modell ä.histodict")
    assert outcome.status == 0, outcome.message
    assert "entzündet / gesünd" in outcome.message
    images = home / "Klassen" / "entzündet"
    outcome = predict(home / "Modell ä.histodict", home / "Ergebnisse 结果", images)
    assert outcome.status == 0, outcome.message
    assert set(NAMES) <= set(outcome.rows)
    table = pyarrow.csv.read_csv(outcome.folder / "predictions.csv").to_pylist()
    assert {row["path"] for row in table} == {str(path) for path in images.iterdir()}
    for name in NAMES:
        row = outcome.rows[name]
        assert row["label"] in ("gesünd", "entzündet")
        assert row["key"].startswith(Path(name).stem)
        assert outcome.overlay(name).shape[1:] == (SIZE[0], 3)
        text = (outcome.folder / "geojson" / f"{row['key']}.geojson").read_text("utf-8")
        features = json.loads(text)["features"]
        labels = {feature["properties"]["classification"]["name"] for feature in features}
        assert labels <= {"gesünd", "entzündet"}


def test_names_as_long_as_the_file_system_allows(model, good, tmp_path):
    """Result files are named after the image."""
    names = ["n" * 251 + ".jpg", "é" * 125 + ".jpg"]
    for name in names:
        shutil.copy(good, tmp_path / name)
    outcome = predict(model, tmp_path / "out", *(tmp_path / name for name in names))
    assert outcome.status == 0, outcome.message
    assert sorted(outcome.rows) == sorted(names)
    for name in names:
        assert (outcome.predicted_classes(name) != NO_TISSUE).any()
        assert outcome.overlay(name).shape[1:] == (SIZE[0], 3)


def test_names_in_brackets_are_printed_unchanged(model, tmp_path):
    name = "scan [red] [1].jpg"
    (tmp_path / name).touch()
    outcome = predict(model, tmp_path / "out", tmp_path / name)
    assert outcome.status == 1
    assert name in outcome.message


def test_name_that_is_not_unicode_does_not_stop_others(model, good, tmp_path):
    """Archives of old systems contain names in Latin-1, which are not UTF-8."""
    images = tmp_path / "images"
    images.mkdir()
    try:
        shutil.copy(good, os.path.join(os.fsencode(images), b"caf\xe9.jpg"))
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    shutil.copy(good, images / "good.jpg")
    outcome = predict(model, tmp_path / "out", images)
    assert outcome.status in (0, 1)
    assert outcome.rows["good.jpg"]["label"] == "inflamed"


# ---------------------------------------------------------------- tables of images


def write_table(folder, rows, header="path,label,patient"):
    path = folder / "images.csv"
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def rows_of(folder):
    """Return a row for every image of the class folders."""
    return [
        f"{path.relative_to(folder).as_posix()},{path.parent.name},{path.name[:9]}"
        for path in sorted(folder.glob("*/*.jpg"))
    ]


def test_missing_file_is_reported_with_its_line(classes, tmp_path):
    rows = rows_of(classes)
    rows[3] = "healthy/gone.jpg,healthy,patient01"
    outcome = train(write_table(classes, rows), tmp_path / "model.histodict")
    assert outcome.status == 2
    for word in ("1 file not there", "healthy/gone.jpg (line 5)", "relative to the folder"):
        assert word in outcome.message
    assert not (tmp_path / "model.histodict").exists()


def test_class_with_one_image_is_warned_of(classes, tmp_path, good):
    for path in sorted((classes / "healthy").iterdir())[1:]:
        path.unlink()
    outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 0, outcome.message
    assert "Warning" in outcome.message
    assert "the class 'healthy' has one image only" in outcome.message
    assert "cannot be both trained on and tested" in outcome.message
    prediction = predict(tmp_path / "model.histodict", tmp_path / "out", good).rows[good.name]
    assert prediction["label"] == "inflamed"


def test_single_class_is_refused(classes, tmp_path):
    shutil.rmtree(classes / "healthy")
    outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 2
    assert "at least two classes are needed; there are: ['inflamed']" in outcome.message


def test_labels_that_differ_only_in_case_are_refused(classes, tmp_path):
    rows = rows_of(classes)
    rows[0] = rows[0].replace(",healthy,", ",Healthy,")
    outcome = train(write_table(classes, rows), tmp_path / "model.histodict")
    assert outcome.status == 2
    for word in ("['Healthy', 'healthy']", "differ only in case", "write them alike"):
        assert word in outcome.message


def test_folders_that_differ_only_in_case_are_refused(classes, tmp_path, good):
    try:
        (classes / "Healthy").mkdir()
    except FileExistsError:
        pytest.skip("this file system does not tell the case of names")
    shutil.copy(good, classes / "Healthy")
    outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 2
    assert "differ only in case" in outcome.message


# ---------------------------------------------------------------- pixel sizes


def save_with_mpp(path, pixels, mpp):
    resolution = (1e4 / mpp, 1e4 / mpp)
    tifffile.imwrite(path, pixels, photometric="rgb", resolution=resolution, resolutionunit=3)
    return path


def test_image_of_another_pixel_size_is_refused_and_others_are_predicted(model, pixels, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    save_with_mpp(images / "same.tif", pixels, 0.5)
    save_with_mpp(images / "finer.tif", pixels, 0.25)
    save_with_mpp(images / "coarser.tif", pixels, 1.0)
    save_plain(images / "unknown.png", pixels)
    outcome = predict(model, tmp_path / "out", images)
    assert outcome.status == 1
    assert set(outcome.rows) == {"same.tif", "unknown.png"}
    for word in ("finer.tif: has 0.25 µm", "coarser.tif: has 1 µm", "trained on images of 0.5"):
        assert word in outcome.message
    assert "give the true size with --override-mpp" in outcome.message


def test_pixel_size_can_be_overridden(model, pixels, tmp_path):
    wrong = save_with_mpp(tmp_path / "wrong.tif", pixels, 0.25)
    assert predict(model, tmp_path / "out", wrong).status == 1
    assert predict(model, tmp_path / "out", wrong, "--override-mpp", "0.5").status == 0
    assert predict(model, tmp_path / "out", wrong, "--mpp", "0.5").status == 1
    outcome = predict(model, tmp_path / "out", wrong, "--override-mpp", "0.25")
    assert outcome.status == 1
    assert "0.25 µm per pixel" in outcome.message


@pytest.mark.parametrize("mpp", ["0", "-1", "nan"])
def test_invalid_pixel_size_is_refused(model, good, tmp_path, mpp):
    outcome = predict(model, tmp_path / "out", good, "--mpp", mpp)
    assert outcome.status in (1, 2)
    assert "mpp must be" in outcome.message


def test_model_with_a_pixel_size_requires_one(tissue, good, pixels, tmp_path):
    path = tmp_path / "model.histodict"
    assert train(tissue / "manifest.csv", path, "--set", "mpp=0.5").status == 0
    outcome = predict(path, tmp_path / "out", good)
    assert outcome.status == 1
    for word in ("pixel size is not known", "works at 0.5 µm", "give it with --mpp"):
        assert word in outcome.message
    assert predict(path, tmp_path / "out", good, "--mpp", "0.5").status == 0
    coarse = save_with_mpp(tmp_path / "coarse.tif", pixels, 1.0)
    assert "coarser than the 0.5 µm" in predict(path, tmp_path / "other", coarse).message


def test_train_refuses_different_pixel_sizes(classes, tmp_path):
    rows = [f"{row},{0.25 if i % 3 else 0.5}" for i, row in enumerate(rows_of(classes))]
    table = write_table(classes, rows, "path,label,patient,mpp")
    outcome = train(table, tmp_path / "model.histodict")
    assert outcome.status == 2
    for word in ("0.25", "0.5", "mpp"):
        assert word in outcome.message
    # after reduction to a common size they can be used
    assert train(table, tmp_path / "model.histodict", "--set", "mpp=0.5").status == 0


def test_version_option():
    run = CliRunner().invoke(app, ["--version"])
    assert run.exit_code == 0 and run.output.startswith("histodict ")
    run = CliRunner().invoke(app, [])
    assert "Usage" in run.output and "train" in run.output
