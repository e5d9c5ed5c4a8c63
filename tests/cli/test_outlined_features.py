"""Outlines of other programs on feature files of other programs: no pixels are read."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from histodict.annotations.annotation_file import AnnotationFile
from histodict.cli import app
from histodict.models.prepared_image import PrecomputedImage
from histodict.models.recipe import preset
from histodict.precomputed.feature_file import open_features
from tests.annotations.outline_files import box, collection, feature, write_geojson
from tests.precomputed.feature_files import write_trident

SIDE, N = 512, 8  # side of a patch, and patches along the slide
MIDDLE = SIDE * N // 2


def run(*arguments):
    result = CliRunner().invoke(app, [str(word) for word in arguments])
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    """The left half of every slide is stroma with an outline, the right half is tumour."""
    folder = tmp_path_factory.mktemp("slides")
    (folder / "features").mkdir()
    (folder / "geojson").mkdir()
    rng = np.random.default_rng(0)
    cells = np.stack(np.meshgrid(np.arange(N), np.arange(N), indexing="ij"), -1).reshape(-1, 2)
    kinds = 3 * rng.standard_normal((12, 40))  # six per half: with few, centred vectors overlap
    extent = {"level0_width": SIDE * N, "level0_height": SIDE * N}
    for number in range(4):
        own = 6 * (cells[:, 0] >= N // 2) + rng.integers(0, 6, N * N)
        vectors = kinds[own] + 0.5 * rng.standard_normal((N * N, 40))
        vectors = vectors.astype(np.float32)
        write_trident(folder / "features" / f"s{number}.h5", vectors, cells * SIDE, **extent)
        halves = (
            feature("Stroma", box(0, 0, MIDDLE, SIDE * N)),
            feature("Tumor", box(MIDDLE, 0, SIDE * N, SIDE * N)),
        )
        write_geojson(folder / "geojson" / f"s{number}.geojson", collection(*halves))
    rows = "".join(f"s{number}.svs,p{number}\n" for number in range(4))
    (folder / "slides.csv").write_text("slide,patient\n" + rows)
    return folder


@pytest.fixture(scope="module")
def model(slides):
    path = slides / "model.histodict"
    chosen = ["--features", slides / "features", "--annotations", slides / "geojson"]
    small = ["--preset", "precomputed", "--set", "n_atoms=6", "--set", "n_iter=2"]
    regions = ["--regions", "Stroma,Tumor", "--positive", "Tumor"]
    status, output = run("train", slides / "slides.csv", *chosen, *regions, *small, "-o", path)
    assert status == 0, output
    return path


def test_classes_are_trained_inside_their_outlines(slides, model, tmp_path):
    chosen = ["--features", slides / "features", "--annotations", slides / "geojson"]
    status, output = run("predict", model, slides / "slides.csv", *chosen, "-o", tmp_path / "out")
    assert status == 0, output
    for path in (tmp_path / "out" / "maps").glob("*.npz"):
        with np.load(path) as arrays:
            predicted_classes = arrays["predicted_classes"]
        truth = np.repeat([[0, 1]], N // 2, axis=1).repeat(N, axis=0)
        assert (predicted_classes == truth).mean() > 0.9


def test_only_patches_inside_are_predicted(slides, model, tmp_path):
    only = ["--within", slides / "geojson", "--within-class", "Tumor"]
    chosen = ["--features", slides / "features", "-o", tmp_path / "out"]
    status, output = run("predict", model, slides / "slides.csv", *chosen, *only)
    assert status == 0, output
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "predictions.parquet").to_pylist()
    assert [row["n_patches"] for row in rows] == [N * N // 2] * 4
    assert {row["label"] for row in rows} == {"Tumor"}


def test_training_patches_are_inside(slides, rng):
    annotation = AnnotationFile(slides / "geojson" / "s0.geojson", ("Tumor",))
    with open_features(slides / "features" / "s0.h5") as file:
        prepared = PrecomputedImage(file, preset("precomputed"), None, None, annotation)
        inside = file.read_rows(np.flatnonzero(file.coords[:, 0] >= MIDDLE))
        sampled = prepared.sample_features(1000, rng)
    assert {row.tobytes() for row in sampled} == {row.tobytes() for row in inside}
