"""Slides whose pixels begin inside their bounds, like MRXS files, with feature files.

TRIDENT, CLAM and ASAP count from the corner of the slide, QuPath from the first pixel of the
bounds.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from histodict.cli import app
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import PatchMap
from histodict.utils import parallel
from tests.annotations.outline_files import box, collection, feature, write_asap, write_geojson
from tests.images.test_source import SLIDE_WITH_BOUNDS
from tests.precomputed.feature_files import write_trident

# Closes without an error, so that its process opens the next slide.
SLIDE = SLIDE_WITH_BOUNDS + "    def close(self):\n        self.picture.close()\n"
N_SLIDES = 2
FIRST, SIZE, SIDE = np.array([1000, 800]), (600, 440), 40  # as in that slide
LEFT, RIGHT = box(0, 0, 320, 440), box(320, 0, 600, 440)
SMALL = ("--preset", "precomputed", "--set", "n_atoms=6", "--set", "n_iter=2")


def run(*arguments):
    result = CliRunner().invoke(app, [str(word) for word in arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def slides(tmp_path, slide_library, monkeypatch):
    """The left half is stroma with an outline, the right half is tumour."""
    monkeypatch.setattr(parallel, "available_cores", lambda: 1)  # starts no further processes
    slide_library(SLIDE)
    for name in ("features", "geojson", "asap"):
        (tmp_path / name).mkdir()
    rng = np.random.default_rng(0)
    cells = np.stack(np.meshgrid(np.arange(15), np.arange(11), indexing="ij"), -1).reshape(-1, 2)
    kinds = 3 * rng.standard_normal((12, 40))
    reported = {"patch_size": 40, "patch_size_level0": SIDE, "level0_height": 4000}
    there = [("Stroma", LEFT), ("Tumor", RIGHT)]
    for number in range(N_SLIDES):
        own = 6 * (cells[:, 0] * SIDE >= 320) + rng.integers(0, 6, len(cells))
        vectors = (kinds[own] + 0.5 * rng.standard_normal((len(cells), 40))).astype(np.float32)
        path = tmp_path / "features" / f"s{number}.h5"
        write_trident(path, vectors, cells * SIDE + FIRST, level0_width=5000, **reported)
        (tmp_path / f"s{number}.mrxs").write_bytes(b"x")
        halves = collection(*(feature(name, ring) for name, ring in there))
        write_geojson(tmp_path / "geojson" / f"s{number}.geojson", halves)
        moved = [(name, "Polygon", (np.array(ring) + FIRST).tolist()) for name, ring in there]
        write_asap(tmp_path / "asap" / f"s{number}.xml", moved)
    rows = "".join(f"s{number}.mrxs,p{number}\n" for number in range(N_SLIDES))
    (tmp_path / "slides.csv").write_text("path,patient\n" + rows)
    return tmp_path


def corners_of(folder):
    """Return x and y of the corners of all outlines of a run."""
    found = []
    for path in (folder / "geojson").glob("*.geojson"):
        for one in json.loads(path.read_text())["features"]:
            shape = one["geometry"]
            parts = [shape["coordinates"]] if shape["type"] == "Polygon" else shape["coordinates"]
            found += [point for polygon in parts for ring in polygon for point in ring]
    return np.array(found)


def test_outlines_cover_their_patches(slides, tmp_path):
    """Both formats of outlines are used for training, for scores and to select patches."""
    specified = [slides / "slides.csv", "--features", slides / "features"]
    qupath, asap = (["--annotations", slides / kind] for kind in ("geojson", "asap"))
    several, one = tmp_path / "several.histodict", tmp_path / "one.histodict"
    names = ["--regions", "Stroma,Tumor", "--positive", "Tumor"]
    run("train", *specified, *qupath, *names, *SMALL, "-o", several)
    run("train", *specified, *asap, "--regions", "Tumor", *SMALL, "-o", one)
    run("predict", several, *specified, *asap, "-o", tmp_path / "answers")
    run("predict", one, *specified, *qupath, "--anndata", "-o", tmp_path / "found")
    for path in (tmp_path / "found" / "anndata").iterdir():
        with h5py.File(path) as file:
            names = file["obs/truth/categories"].asstr()[:]
            x, truth = file["obsm/spatial"][:, 0], names[file["obs/truth/codes"][:]]
            assert ((x > 320) == (truth == "Tumor")).all() and x.max() < SIZE[0]
    for folder, dice in (("answers", "Dice Tumor"), ("found", "Dice")):
        scores = json.loads((tmp_path / folder / "scores.json").read_text())["patches"]
        assert scores[dice]["value"] > 0.9
        corners = corners_of(tmp_path / folder)
        assert (corners >= 0).all() and (corners <= SIZE).all()  # as QuPath shows the slide
    assert corners_of(tmp_path / "found")[:, 0].min() == 320
    rows = pyarrow.parquet.read_table(tmp_path / "found" / "regions.parquet").to_pylist()
    assert min(row["left"] for row in rows) == 320 and max(row["right"] for row in rows) == 600
    for kind in ("geojson", "asap"):
        out = tmp_path / f"within-{kind}"
        only = ["--within", slides / kind, "--within-class", "Tumor", "-o", out]
        run("predict", several, *specified, *only)
        table = pyarrow.parquet.read_table(out / "predictions.parquet")
        assert table["n_patches"].to_pylist() == [7 * 11] * N_SLIDES


def test_map_outside_the_image_is_refused(slides):
    predicted_classes, margins = np.zeros((3, 3), np.int16), np.zeros((3, 3, 2), np.float32)
    made = PatchMap(
        PatchGrid(3, 3, SIDE, SIDE, 1.0), predicted_classes, margins, ("a", "b"), Path("s0.h5")
    )
    there = replace(made, grid=replace(made.grid, left=1000.0, top=800.0))
    assert there.align_if_possible(slides / "s0.mrxs").grid.corner(0, 0) == (0, 0)
    far = replace(made, grid=replace(made.grid, left=3000.0, top=800.0))
    with pytest.warns(
        UserWarning, match=r"extend beyond the image .*600 x 440.* without the image"
    ):
        assert far.align_if_possible(slides / "s0.mrxs") is far
