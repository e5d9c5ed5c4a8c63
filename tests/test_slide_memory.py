"""Slides are read in pieces: five times the area takes no more memory, and no tissue is missing.

The images are predicted one after the other in a separate process, whose peak memory is measured
after each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from histodict.datasets.manifest import read_manifest
from histodict.export.qupath import area_features, patch_features, save_geojson
from histodict.models import TissueClassifier, save_model
from histodict.models.recipe import Recipe
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import NO_TISSUE, PatchMap
from histodict.synthetic.dataset import write_synthetic_dataset

big_slide = pytest.importorskip("benchmarks.big_slide", reason="the benchmarks are not here")

SIDES = (2000, 5500)
# The larger slide has 87 MiB as RGB, the smaller 11. Peaks vary by about 20 MiB.
MOST_GROWTH_MIB = 50
# Memory of two threads for their pieces, beyond a run on an image of 240 × 180 pixels.
MOST_FOR_PIECES_MIB = 250
RECIPE = Recipe(
    method_parameters={"n_atoms": 20, "n_iter": 2},
    patch_px=20,
    patches_per_class=400,
    downsample=2.0,
)
PREDICT = """
import sys
from histodict.cli import app
model, *runs = sys.argv[1:]
for image, output in zip(runs[::2], runs[1::2], strict=True):
    command = ["predict", model, image, "--output", output, "--jobs", "2"]
    app(command, standalone_mode=False)
    with open("/proc/self/status") as status:
        peaks = [line.split()[1] for line in status if line.startswith("VmHWM")]
    print("peak", int(peaks[0]) / 1024)
"""


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    return write_synthetic_dataset(tmp_path_factory.mktemp("set") / "tissue", 2, 2, size=(240, 180))


@pytest.fixture(scope="module")
def model(tissue):
    fitted = TissueClassifier(RECIPE).fit(read_manifest(tissue))
    return save_model(fitted, tissue / "model.histodict")


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slides")
    return {side: big_slide.write_slide(folder / f"{side}.tif", side) for side in SIDES}


def peaks_of(model, images, folder):
    """Run `histodict predict` for every image and return the peak memory in MiB after each."""
    runs = [word for name, path in images.items() for word in (path, folder / str(name))]
    command = [sys.executable, "-c", PREDICT, model, *runs]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(line[5:]) for line in done.stdout.splitlines() if line.startswith("peak ")]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is in /proc")
def test_memory_does_not_grow_with_the_slide(model, slides, tissue, tmp_path):
    image = tissue / "healthy" / "patient01_1.jpg"
    plain, small, large = peaks_of(model, {"image": image, **slides}, tmp_path)
    assert large - small < MOST_GROWTH_MIB
    assert small - plain < MOST_FOR_PIECES_MIB
    for side in SIDES:
        check_complete(tmp_path / str(side), side)


def check_complete(folder, side):
    """Tissue and background are in cells at known positions, and must be there in the map."""
    (row,) = pyarrow.parquet.read_table(folder / "predictions.parquet").to_pylist()
    with np.load(folder / "maps" / f"{row['key']}.npz") as arrays:
        evaluated = arrays["predicted_classes"] != NO_TISSUE
    n_patches = side // 40
    assert evaluated.shape == (n_patches, n_patches)
    text = (folder / "geojson" / f"{row['key']}.geojson").read_text("utf-8")
    measured = [f["properties"]["measurements"]["patches"] for f in json.loads(text)["features"]]
    assert evaluated.sum() == row["n_patches"] == sum(measured)
    first = np.arange(n_patches) * 40 // big_slide.CELL
    last = (np.arange(n_patches) * 40 + 39) // big_slide.CELL
    inside_one_cell = first == last  # patches inside one cell
    on_tissue = big_slide.tissue_cells(side)[np.ix_(first[inside_one_cell], first[inside_one_cell])]
    evaluated = evaluated[np.ix_(inside_one_cell, inside_one_cell)]
    assert not evaluated[~on_tissue].any()
    assert evaluated[on_tissue].mean() > 0.8  # lumens are background, too


@pytest.mark.parametrize(("written", "most"), [(patch_features, 1e6), (area_features, 3e6)])
def test_outlines_are_written_incrementally(written, most, tmp_path):
    """A slide has hundreds of thousands of patches, whose outlines would fill gigabytes as a
    list."""
    n = 50 if written is patch_features else 200
    grid = PatchGrid(n, n, 20, 20, 2.0)
    predicted_classes, margins = np.ones((n, n), np.int16), np.zeros((n, n, 2), np.float32)
    predicted_classes[1::2] = predicted_classes[:, 1::2] = NO_TISSUE  # no two are adjacent
    if written is patch_features:
        predicted_classes[:] = 1
    patch_map = PatchMap(grid, predicted_classes, margins, ("healthy", "ill"), tmp_path / "a.svs")
    tracemalloc.start()
    save_geojson(tmp_path / "a.geojson", written(patch_map))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < most
    found = json.loads((tmp_path / "a.geojson").read_text())["features"]
    assert len(found) == patch_map.n_patches
