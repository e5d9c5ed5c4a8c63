"""Tests of `histodict train` and `histodict predict` with unusual but valid files.

CMYK, 16 bits, grey, transparency, EXIF rotation and names in any script give the same
predictions as plain files.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import tifffile
from PIL import Image

from histodict.patches.patch_map import NO_TISSUE
from tests.cli.commands import SIZE, predict, train
from tests.images.files import save_plain


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
    half[:, 88:, 3] = 0  # five and a half patches
    save_plain(tmp_path / "half.png", half)
    outcome = predict(model, tmp_path / "out", tmp_path / "half.png")
    assert outcome.status == 0
    on_tissue = outcome.predicted_classes("half.png") != NO_TISSUE
    assert on_tissue[:, :5].mean() > 0.9
    assert not on_tissue[:, 6:].any()


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
