"""Tests of `histodict train` and `histodict predict` with broken files, bad tables and pixel sizes.

Broken files are reported with a reason and a hint, and do not stop others.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tifffile
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from tests.cli.commands import SIZE, predict, run, train
from tests.images.files import save_plain, save_png_header, texture

# The slide library aborts on it, which ends the process that opened it.
ABORTS = Path(__file__).parents[1] / "fuzz_failures" / "images" / "1106a9b4-jpeg-tiles.tif"


# ---------------------------------------------------------------- unreadable files


def cut_short(path, rng):
    save_plain(path, texture(rng, *SIZE), quality=95)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_short_slide(path, rng):
    tifffile.imwrite(path, texture(rng, *SIZE), tile=(64, 64), photometric="rgb")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# Each broken file: how to write it, and the expected words of reason and hint.
BROKEN = {
    "cut short.jpg": (cut_short, ("damaged or truncated", "copy it again")),
    "cut short.tif": (cut_short_slide, ("copy it again",)),
    "aborts.tif": (
        lambda path, rng: shutil.copy(ABORTS, path),
        ("part of the slide cannot be read", "killed by signal 6", "copy it again"),
    ),
    "empty.jpg": (lambda path, rng: path.touch(), ("empty (0 bytes)", "copy it again")),
    "text.png": (lambda path, rng: path.write_text("x"), ("not a JPEG", "save it again")),
    "bomb.png": (
        lambda path, rng: save_png_header(path, 60_000, 60_000),
        ("60000 x 60000 pixels exceed the limit", "convert the image to a pyramidal TIFF"),
    ),
    "numbers.tif": (
        lambda path, rng: tifffile.imwrite(path, rng.normal(size=(180, 240))),
        ("are not colours", "save the image as RGB with 8 bits per colour"),
    ),
}
SMALL = {
    "one pixel.png": ((1, 1), ("1 x 1 pixels", "smaller than a patch (16 x 16)", "smaller patch")),
    "strip.png": ((200, 15), ("200 x 15 pixels", "smaller than a patch", "exclude the image")),
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
    assert "3 images: 2 inflamed, 1 failed." in outcome.message
    _, _, complaint = outcome.message.partition("Failed:")
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
    assert "aborts.tif: part of the slide cannot be read" in outcome.message


def test_evaluate_refuses_images_of_one_class(classes, tmp_path):
    shutil.rmtree(classes / "healthy")
    outcome = run(tmp_path, "evaluate", classes, "--methods", "src", "--output", tmp_path / "out")
    assert outcome.status == 2
    assert "evaluation needs images of at least two classes; found: " in outcome.message


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
    assert "file not found; check the name and the folder" in errors["missing.jpg"]


def test_background_image_gets_the_label_no_tissue(model, tmp_path):
    Image.new("RGB", SIZE, (243, 242, 244)).save(tmp_path / "background.png")
    arguments = [
        "predict",
        model,
        tmp_path / "background.png",
        "--output",
        tmp_path / "out",
        "--json",
    ]
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
    assert "2 images: no prediction, 2 failed" in outcome.message
    assert "predictions.csv" not in outcome.message
    assert [path.name for path in outcome.folder.iterdir()] == ["failures.csv"]


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
    Image.new("RGB", SIZE, (243, 242, 244)).save(classes / "healthy" / "background.png")
    with pytest.warns(
        UserWarning, match="1 training image without tissue was not used: background.png"
    ):
        outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 0, outcome.message
    assert "on 17 images" in outcome.message


def test_train_refuses_a_class_without_tissue(classes, tmp_path):
    shutil.rmtree(classes / "healthy")
    (classes / "healthy").mkdir()
    Image.new("RGB", SIZE, (243, 242, 244)).save(classes / "healthy" / "background.png")
    with pytest.warns(UserWarning, match="without tissue was not used: background.png"):
        outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 2
    assert "no tissue was found in any image of class 'healthy'" in outcome.message


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
    for word in ("1 file not found", "healthy/gone.jpg (line 5)", "Paths are relative to"):
        assert word in outcome.message
    assert not (tmp_path / "model.histodict").exists()


def test_class_with_one_image_is_warned_of(classes, tmp_path, good):
    for path in sorted((classes / "healthy").iterdir())[1:]:
        path.unlink()
    outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 0, outcome.message
    assert "Warning" in outcome.message
    assert "the class 'healthy' has only one image" in outcome.message
    assert "cannot be in both training and test sets" in outcome.message
    prediction = predict(tmp_path / "model.histodict", tmp_path / "out", good).rows[good.name]
    assert prediction["label"] == "inflamed"


def test_single_class_is_refused(classes, tmp_path):
    shutil.rmtree(classes / "healthy")
    outcome = train(classes, tmp_path / "model.histodict")
    assert outcome.status == 2
    assert "at least two classes; found: inflamed" in outcome.message


def test_labels_that_differ_only_in_case_are_refused(classes, tmp_path):
    rows = rows_of(classes)
    rows[0] = rows[0].replace(",healthy,", ",Healthy,")
    outcome = train(write_table(classes, rows), tmp_path / "model.histodict")
    assert outcome.status == 2
    for word in ("['Healthy', 'healthy']", "differ only in case", "use one spelling per class"):
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
    for word in (
        "finer.tif: has 0.25 µm",
        "coarser.tif: has 1 µm",
        "trained on images with 0.5 µm",
    ):
        assert word in outcome.message
    assert "set the true one with --override-mpp" in outcome.message


def test_pixel_size_can_be_overridden(model, pixels, tmp_path):
    wrong = save_with_mpp(tmp_path / "wrong.tif", pixels, 0.25)
    assert predict(model, tmp_path / "out", wrong).status == 1
    assert predict(model, tmp_path / "out", wrong, "--override-mpp", "0.5").status == 0
    assert predict(model, tmp_path / "out", wrong, "--mpp", "0.5").status == 1
    outcome = predict(model, tmp_path / "out", wrong, "--override-mpp", "0.25")
    assert outcome.status == 1
    assert "0.25 µm per pixel" in outcome.message
    outcome = predict(model, tmp_path / "out", wrong, "--override-mpp", "0.2")
    assert "if the specified pixel size is wrong, correct it (--mpp, --override-mpp" in (
        outcome.message
    )


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
    for word in ("pixel size is unknown", "works at 0.5 µm", "set it with --mpp"):
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
