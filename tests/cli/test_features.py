"""Tests of `--features` and `histodict features` with a folder of .h5 files and a table."""

from __future__ import annotations

import json
import shutil

import h5py
import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from histodict.cli import app
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.precomputed.feature_files import (
    planted_slides,
    some_vectors,
    write_lazyslide,
    write_trident,
)

SMALL = ("n_atoms=8", "n_iter=2", "patches_per_class=100", "n_components=6")


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, " ".join(result.output.split())


def small(*settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    return planted_slides(tmp_path_factory.mktemp("slides"))


@pytest.fixture(scope="module")
def trained(slides):
    model = slides.parent / "model.histodict"
    features = slides.parent / "features"
    status, output = run("train", slides, "--features", features, "-o", model, *small(*SMALL))
    assert status == 0, output
    assert "Trained on 8 images" in output
    return model


def rows_of(folder):
    return pyarrow.parquet.read_table(folder / "predictions.parquet").to_pylist()


def test_train_and_predict_from_a_folder_and_a_table(trained, slides, tmp_path):
    out = tmp_path / "out"
    features = trained.parent / "features"
    status, output = run(
        "predict", trained, slides, "--features", features, "-o", out, "--outline-patches"
    )
    assert status == 0 and "on 8 labelled images (8 patients" in output, output
    rows = rows_of(out)
    assert all(row["top_label"] == row["truth"] for row in rows)  # the planted difference is large
    assert all(0 <= row["probability_tumour"] <= 1 for row in rows)
    outlines = json.loads((out / "geojson" / f"{rows[0]['key']}.geojson").read_text())
    with h5py.File(trained.parent / "features" / "TCGA-00.DX1.h5") as file:
        corners = {tuple(at) for at in file["coords"][:].tolist()}
    synthetic = {tuple(f["geometry"]["coordinates"][0][0]) for f in outlines["features"]}
    assert synthetic == corners


def test_info_describes_the_vectors(trained):
    status, output = run("info", trained)
    assert status == 0
    assert "from feature files, length 12, encoder uni_v1, patches of 256 pixels" in output
    assert "Stain" not in output


def test_evaluate_writes_a_report_by_patient(slides, tmp_path):
    options = ["--jobs", 1, "--folds", 2, *small("n_atoms=8", "n_iter=2", "patches_per_class=60")]
    options += ["--set", "n_components=6", "--set", "calibration_folds=2"]
    out = tmp_path / "report"
    status, output = run(
        *("evaluate", slides, "--features", slides.parent / "features", "-o", out, *options)
    )
    assert status == 0, output
    assert "features" in output and "mean-logistic" in output
    page = (out / "report.html").read_text()
    assert "vectors from feature files" in page and "mean-logistic" in page
    assert "vectors of patches from feature files" in page and "the pixels of the image" not in page


def test_atoms_are_shown_by_position_without_images(trained, slides, tmp_path):
    page = tmp_path / "atoms.html"
    features = slides.parent / "features"
    status, output = run("atoms", trained, slides, "--features", features, "-o", page, "--json")
    assert status == 0, output
    text = page.read_text()
    assert "<small title=" in text and "level-0 coordinates" in text


def test_explain_needs_feature_files_only(trained, slides, tmp_path):
    features, page = slides.parent / "features", tmp_path / "why.html"
    status, output = run("explain", trained, slides, "--features", features, "-o", page)
    assert status == 0 and output.count("of patches") == 24, output
    text = page.read_text()
    assert text.count('class="sums"') == 8 and "TCGA-00.DX1.h5" in text
    one = run("explain", trained, features / "TCGA-00.DX1.h5", "--json")
    (report,) = json.loads(one[1])["images"]
    total = report["constant"][0] + sum(part["contribution"][0] for part in report["concepts"])
    assert total == pytest.approx(report["scores"][0], abs=1e-6)


def test_atoms_are_named_and_disabled_with_feature_files_only(trained, slides, tmp_path):
    features, new, statistics = (
        slides.parent / "features",
        tmp_path / "n.histodict",
        tmp_path / "f.csv",
    )
    changes = ["--name", "tumour:1=crowded", "--disable", "tumour:2,normal:1"]
    show = ["--show", slides, "--features", features]
    status, output = run("edit", trained, *changes, *show, "-o", new, "--json")
    assert status == 0, output
    rows = json.loads(output[output.index("{") :])["images"]
    assert len(rows) == 8 and all(row["truth"] for row in rows)
    assert any(row["score_before"] != row["score_after"] for row in rows)
    common = [slides, "--features", features]
    page = ["-o", tmp_path / "a.html", "--csv", statistics]
    assert run("atoms", new, *common, *page)[0] == 0
    assert "<b>crowded</b>" in (tmp_path / "a.html").read_text()
    out = tmp_path / "out"
    status, output = run(
        "predict",
        new,
        *common,
        "-o",
        out,
        "--anndata",
        "--atom-statistics",
        statistics,
        "--outline-patches",
    )
    assert status == 0, output
    rows = rows_of(out)
    assert all(0 <= row["usage_crowded"] <= 1 for row in rows)
    outlines = json.loads((out / "geojson" / f"{rows[0]['key']}.geojson").read_text())
    uses = [f["properties"]["measurements"]["crowded: use"] for f in outlines["features"]]
    assert np.mean(uses) == pytest.approx(rows[0]["usage_crowded"])
    with h5py.File(out / "anndata" / f"{rows[0]['key']}.h5ad") as file:
        assert "crowded" in file["var/concept/categories"].asstr()[()]
        assert file["var/n_patients"][()].max() <= 8


def test_missing_preview_images_are_refused_before_writing(trained, slides, tmp_path):
    new = tmp_path / "n.histodict"
    status, output = run("edit", trained, "--disable", "tumour:2", "--show", slides, "-o", new)
    assert status == 2 and "--features" in output and not new.exists()
    status, output = run("edit", trained, "--features", slides.parent / "features")
    assert status == 2 and "--show" in output


def test_concepts_are_discovered_from_feature_files(slides, tmp_path):
    out = tmp_path / "concepts"
    status, output = run(
        *("concepts", slides, "--features", slides.parent / "features", "--atoms", 4, "-o", out)
    )
    assert status == 0 and "Predictions use 8 labels" in output, output
    table = (out / "predictions.csv").read_text()
    assert table.count("\n") == 9 and "% of its patches; in labelled" in table


# --- bad input ----------------------------------------------------------------------------------


@pytest.fixture
def mixed(slides, tmp_path):
    """Valid slides and one of every kind of invalid ones."""
    folder = tmp_path / "features"
    folder.mkdir()
    vectors, coords = some_vectors(40, 12)
    good = slides.parent / "features" / "TCGA-00.DX1.h5"
    (folder / "good.h5").write_bytes(good.read_bytes())
    write_trident(folder / "short.h5", vectors[:, :7], coords)
    write_trident(folder / "other.h5", vectors, coords, "conch_v1")
    write_trident(folder / "empty.h5", vectors[:0], coords[:0])
    write_trident(folder / "nan.h5", np.where(vectors > 1, np.nan, vectors), coords)
    (folder / "none.h5").write_text("this is no HDF5")
    with h5py.File(folder / "nowhere.h5", "w") as file:
        file["features"] = vectors
    for name in ("twice.h5", "twice.npz"):
        (folder / name).write_bytes(b"")
    names = ["good", "short", "other", "empty", "nan", "none", "nowhere", "twice", "missing"]
    lines = [f"{name},{('normal', 'tumour')[n % 2]},{n}" for n, name in enumerate(names)]
    (tmp_path / "mixed.csv").write_text("slide,label,patient\n" + "\n".join(lines) + "\n")
    return tmp_path / "mixed.csv"


REASONS = (
    "short.h5: its features differ from those of the training slides: vectors of length 7, not 12",
    "other.h5: its features differ from those of the training slides: encoder conch_v1, not uni_v1",
    "empty.h5: contains no vectors",
    "contains NaN or infinity",
    "none.h5: not an HDF5 file",
    "nowhere.h5: the array 'coords' is missing",
    "twice: has several feature files",
    "missing: no feature file of this slide",
)


def test_invalid_slides_are_reported_and_others_predicted(trained, mixed, tmp_path):
    features = ["--features", mixed.parent / "features"]
    status, output = run("predict", trained, mixed, *features, "-o", tmp_path / "out")
    assert status == 1
    assert [row["path"].endswith("good.h5") for row in rows_of(tmp_path / "out")] == [True]
    for reason in REASONS:
        assert reason in output, output
    assert output.count("Failed:") == len(REASONS)


def test_missing_chunks_are_refused_unless_allowed(trained, slides, tmp_path):
    import zarr

    folder, table = tmp_path / "features", tmp_path / "slides.csv"
    shutil.copytree(trained.parent / "features", folder)
    table.write_text("".join(slides.read_text().splitlines(keepends=True)[:5]))  # four slides
    with h5py.File(folder / "TCGA-00.DX1.h5") as file:
        group = zarr.open_group(str(folder / "TCGA-00.DX1.zarr"), mode="w")
        for name in ("features", "coords"):
            values = file[name][...] + (name == "coords")
            group.create_array(name, data=values, chunks=(10, values.shape[1]))
        group.attrs.update({"patch_size_level0": 512, "encoder": "uni_v1"})
    (folder / "TCGA-00.DX1.h5").unlink()
    (folder / "TCGA-00.DX1.zarr/features/c/2/0").unlink()
    (folder / "TCGA-00.DX1.zarr/features/c/4/0").unlink()
    options = ("predict", trained, table, "--features", folder, "-o", tmp_path / "out")
    status, output = run(*options)
    assert status == 1 and "4 images: 3 " in output and "1 failed" in output
    assert "TCGA-00.DX1.zarr: 2 of 12 chunks are missing" in output
    with pytest.warns(UserWarning, match="2 of 12 chunks are missing; they are read as") as report:
        status, output = run(*options, "--allow-missing-chunks")
    assert status == 0 and len(report) == 1, output
    missing = [(row["path"][-8:], row["missing_chunks"]) for row in rows_of(tmp_path / "out")]
    assert [n for _, n in sorted(missing)] == [0] * 3 + [2] and ("DX1.zarr", 2) in missing
    status, output = run(*options)  # the earlier result with missing chunks is not reused
    assert status == 1 and "2 of 12 chunks are missing" in output
    status, output = run("train", table, "--features", folder, "-o", tmp_path / "m.histodict")
    assert status == 2 and "TCGA-00.DX1.zarr: 2 of 12 chunks are missing" in output


def test_invalid_attribute_or_unexpected_error_stops_no_command(
    trained, slides, tmp_path, monkeypatch
):
    from histodict import batch as image
    from histodict.models import prepared_image

    folder = tmp_path / "features"
    folder.mkdir()
    vectors, coords = some_vectors(40, 12)
    write_trident(folder / "wide.h5", vectors, coords, patch_size_level0=1e300)
    write_trident(folder / "offset.h5", vectors, coords, histodict='{"offset": [1e400, "a"]}')
    for name in ("defect.h5", "stamp.h5", "good.h5"):
        write_trident(folder / name, vectors, coords)
    place, fingerprint = prepared_image.fit_grid, image.ImageTask.fingerprint

    def fail(file):
        if file.path.name == "defect.h5":
            raise AttributeError("'Dataset' object has no attribute 'get'")
        return place(file)

    def fail_before(task):
        if task.record.path.name == "stamp.h5":
            raise RuntimeError("no stamp")
        return fingerprint(task)

    monkeypatch.setattr(prepared_image, "fit_grid", fail)
    monkeypatch.setattr(image.ImageTask, "fingerprint", fail_before)
    status, output = run("predict", trained, *sorted(folder.iterdir()), "-o", tmp_path / "out")
    assert status == 1 and output.count("Failed:") == 4, output
    assert "stamp.h5: unexpected RuntimeError: no stamp" in output
    assert "wide.h5: the attribute patch_size_level0 must be" in output
    assert "offset.h5: the attribute histodict (offset) must be" in output
    assert "unexpected AttributeError: 'Dataset' object has no attribute 'get' [at " in output
    assert "prepared_image.py" in output and "report this line" in output
    assert [row["path"].endswith("good.h5") for row in rows_of(tmp_path / "out")] == [True]


def test_lazyslide_tiles_are_predicted_at_their_own_magnification_only(tmp_path):
    rng = np.random.default_rng(3)
    corners = 64 * np.stack(np.meshgrid(np.arange(8), np.arange(5)), -1).reshape(-1, 2) + 243
    lines = ["slide,label"]
    for number in range(4):
        vectors = rng.standard_normal((40, 12)).astype(np.float32) + 2 * (number % 2)
        path = tmp_path / f"s{number}.h5ad"
        write_lazyslide(path, vectors, corners, has_graph=number == 0)
        lines.append(f"{path.name},{'ab'[number % 2]}")
    (tmp_path / "slides.csv").write_text("\n".join(lines) + "\n")
    features = ["--features", tmp_path]
    model = tmp_path / "m"
    options = ["--preset", "precomputed", *small(*SMALL)]
    status, output = run("train", tmp_path / "slides.csv", *features, "-o", model, *options)
    assert status == 0, output
    other = write_lazyslide(tmp_path / "other.h5ad", vectors, 2 * corners, mpp=1.0)
    same = tmp_path / "s0.h5ad"
    status, output = run("predict", model, same, other, "-o", tmp_path / "out")
    assert status == 1 and output.count("Failed:") == 1, output
    assert "its features differ from those of the training slides: magnification 10.0" in output
    (row,) = rows_of(tmp_path / "out")
    assert row["path"].endswith("s0.h5ad") and (row["mpp"], row["mpp_from"]) == (0.499, "file")


def test_outlines_of_tiles_beyond_the_slide_are_clipped(trained, tmp_path):
    vectors, coords = some_vectors(40, 12)
    size = {"level0_width": int(coords[:, 0].max()) + 100, "level0_height": 4000}
    path = write_trident(tmp_path / "a.h5", vectors, coords, **size)
    status, output = run("predict", trained, path, "-o", tmp_path / "out")
    assert status == 0, output
    (file,) = (tmp_path / "out" / "geojson").iterdir()
    shapes = [f["geometry"] for f in json.loads(file.read_text())["features"]]
    polygons = [
        s["coordinates"] if s["type"] == "MultiPolygon" else [s["coordinates"]] for s in shapes
    ]
    points = np.array([at for each in polygons for rings in each for ring in rings for at in ring])
    assert points.max(axis=0).tolist() == [size["level0_width"], size["level0_height"]]


def test_training_reports_all_invalid_slides_or_skips_them(mixed, slides, tmp_path):
    features = ["--features", mixed.parent / "features", "-o", tmp_path / "m"]
    status, output = run("train", mixed, *features)
    assert status == 2 and "--skip-unreadable" in output
    for reason in REASONS[2:]:
        assert reason in output, output
    for number in (1, 2, 3):
        name = f"TCGA-{number:02d}.DX1.h5"
        source = slides.parent / "features" / name
        (mixed.parent / "features" / name).write_bytes(source.read_bytes())
    wrong = ("short", "other")  # readable, but with other vectors
    lines = [line for line in mixed.read_text().splitlines() if not line.startswith(wrong)]
    lines += [f"TCGA-{n:02d}.DX1,{('normal', 'tumour')[n % 2]},more{n}" for n in (1, 2, 3)]
    mixed.write_text("\n".join(lines) + "\n")
    status, output = run(
        "train", mixed, *features, "--skip-unreadable", "--preset", "precomputed", *small(*SMALL)
    )
    assert status == 0 and "6 of 10 images skipped" in output, output
    status, output = run("info", tmp_path / "m")
    assert "Excluded" in output


def test_files_of_two_encoders_are_refused_for_training(slides, mixed, tmp_path):
    (mixed.parent / "two.csv").write_text("slide,label\ngood,a\nother,b\n")
    features = ["--features", mixed.parent / "features"]
    status, output = run("train", mixed.parent / "two.csv", *features, "-o", tmp_path / "m")
    assert status == 2 and ".h5: the features differ from those of" in output, output
    assert "good.h5" in output and "other.h5" in output


def test_model_of_vectors_requires_features(trained, tmp_path):
    from PIL import Image

    Image.new("RGB", (300, 300), "pink").save(tmp_path / "a.png")
    status, output = run("predict", trained, tmp_path / "a.png", "-o", tmp_path / "out")
    assert status == 1 and "name the folder of feature files with --features" in output


# --- features out -------------------------------------------------------------------------------


def test_features_are_written_once_and_can_be_used_for_training(tmp_path):
    tissue = write_synthetic_dataset(tmp_path / "tissue", 2, 2, size=(240, 180))
    out = tmp_path / "features"
    options = ["features", tissue / "manifest.csv", "--encoder", "centred", "-o", out]
    status, output = run(*options)
    assert status == 0 and output == f"4 feature files in {out}", output
    assert run(*options)[1] == f"4 feature files in {out} (4 already finished)"
    status, output = run(*options, "--set", "stain=none")
    assert status == 2 and "stain: reinhard in the file, none now" in output
    (tissue / "torn.png").write_bytes(b"\x89PNG")
    status, output = run(*options, tissue / "torn.png", "--json")
    assert status == 1 and "torn.png" in output
    model = tmp_path / "m"
    status, output = run(
        *("train", tissue / "manifest.csv", "--features", out, "-o", model, "--method", "logistic")
    )
    assert status == 0, output
