"""Overlays, outlines and heat maps are at the positions of planted tissue.

An image is grey with a red square at a known position. A model that separates red from grey
predicts it at three scales, as a plain image and as a slide with another origin. The overlay is
compared with the red pixels themselves and outlines with the planted square, without using the
geometry code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from histodict import TissueClassifier
from histodict.batch import predict_images
from histodict.datasets.manifest import ImageRecord, Manifest
from histodict.export.qupath import GeoJSONOptions
from histodict.images.slide_reader import end_idle_processes
from histodict.models import RegionDetector
from histodict.models.recipe import Recipe
from histodict.patches.patch_map import COLOURS, PatchMap
from histodict.precomputed.feature_file import open_features
from histodict.web.maps import render_map

GREY, RED = (150, 150, 160), (220, 30, 60)
SIZE = (520, 400)
SQUARE = (320, 160, 160)  # left, top, side: complete patches at every scale below
OFFSET = (1000, 800)
SCALES = {"unreduced": 1.0, "by 2": 2.0, "by 5": 5.0}


def scene(size=SIZE):
    pixels = np.full((size[1], size[0], 3), GREY, np.uint8)
    x, y, side = SQUARE
    pixels[y : y + side, x : x + side] = RED
    return pixels


# A slide whose image is inside larger bounds, as OpenSlide shows it.
BOUNDED = f"""
from PIL import Image

class OpenSlide:
    dimensions = (4000, 3000)
    level_dimensions = (dimensions,)
    level_downsamples = (1.0,)

    def __init__(self, path):
        names = ("x", "y", "width", "height")
        bounds = zip(names, map(str, {(*OFFSET, *SIZE)}))
        self.properties = {{"openslide.bounds-" + name: value for name, value in bounds}}
        self.canvas = Image.new("RGBA", self.dimensions, (0, 0, 0, 0))
        self.canvas.paste(Image.open(path).convert("RGBA"), {OFFSET})

    def read_region(self, corner, level, size):
        (x, y), (width, height) = corner, size
        return self.canvas.crop((x, y, x + width, y + height))

    def close(self):
        pass
"""


@pytest.fixture(scope="module", params=["plain", "slide"])
def image(request, tmp_path_factory):
    """Return the path of the scene and its offset; slides are read by another `openslide`."""
    folder = tmp_path_factory.mktemp(request.param)
    Image.fromarray(scene()).save(folder / "scene.png")
    if request.param == "plain":
        yield folder / "scene.png", (0, 0)
        return
    library = folder / "library"
    library.mkdir()
    (library / "openslide.py").write_text(BOUNDED)
    end_idle_processes()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(library)
        yield (folder / "scene.png").rename(folder / "scene.mrxs"), OFFSET
    end_idle_processes()


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    records = []
    for place, (name, colour) in enumerate((("grey", GREY), ("red", RED)) * 2):
        path = folder / f"{place}.png"
        rng = np.random.default_rng(place)
        noise = rng.integers(-4, 5, (160, 160, 3))
        Image.fromarray((np.array(colour) + noise).astype(np.uint8)).save(path)
        records.append(ImageRecord(path, name, f"p{place // 2}"))
    return Manifest(tuple(records), (), folder)


@pytest.fixture(scope="module")
def models(manifest):
    """Models by scale and kind; all patches are tissue."""
    found = {}
    for name, factor in SCALES.items():
        recipe = Recipe(
            method="nearest-mean",
            patch_px=16 if factor < 5 else 8,
            downsample=factor,
            patches_per_class=60,
            min_tissue_fraction=0.0,
            aggregation="margin",
        )
        found[name, "classes"] = TissueClassifier(recipe).fit(manifest)
        found[name, "regions"] = RegionDetector(recipe, region="red").fit(manifest)
    return found


@dataclass(frozen=True)
class Output:
    """Files of a run: overlay above its legend, GeoJSON features, patch map, feature table."""

    pixels: NDArray[np.float64]
    features: list[dict[str, Any]]
    patch_map: PatchMap
    table: Path


def run(model, image, folder, height=SIZE[1], *, outline_patches=False):
    result = predict_images(
        model,
        "digest",
        [ImageRecord(image, "", "")],
        folder,
        qupath=GeoJSONOptions(outline_patches=outline_patches),
        anndata=not isinstance(model, RegionDetector),
    )
    assert not result.failures, result.failures
    (row,) = result.rows
    key = row["key"]
    with Image.open(folder / "overlays" / f"{key}.png") as overlay:
        assert overlay.height > height  # a legend is below
        pixels = np.asarray(overlay.convert("RGB"))[:height].astype(float)
    features = json.loads((folder / "geojson" / f"{key}.geojson").read_text())["features"]
    patch_map = PatchMap.load(folder / "maps" / f"{key}.npz")
    return Output(pixels, features, patch_map, folder / "anndata" / f"{key}.h5ad")


@pytest.fixture(scope="module", params=SCALES)
def output(request, image, models, tmp_path_factory):
    """Run a classifier at each scale, with the outlines of patches."""
    path, _ = image
    folder = tmp_path_factory.mktemp("classes")
    return run(models[request.param, "classes"], path, folder, outline_patches=True)


def coloured(pixels, under, place):
    """Return where the image was blended with the colour of a class."""
    towards = COLOURS[place] - under
    pulled = ((pixels - under) * towards).sum(axis=2) / (towards**2).sum(axis=2)
    away = np.abs(pixels - under - pulled[..., None] * towards).max(axis=2)
    return (pulled > 0.1) & (away < 3)


def test_overlay_is_aligned_with_the_pixels(output):
    under = scene().astype(float)
    red = (under == RED).all(axis=2)
    assert coloured(output.pixels, under, 1)[red].all()
    assert coloured(output.pixels, under, 0)[~red].all()


def rings_of(features, name):
    """Return outer rings and holes of a class in one list."""
    return [
        np.array(ring)
        for feature in features
        if feature["properties"]["classification"]["name"] == name
        for ring in feature["geometry"]["coordinates"]
    ]


def test_patch_outlines_surround_their_patches(image, output):
    """QuPath shows a slide from its bounds, as pixels are read: no offset is added."""
    _, offset = image
    x, y, side = SQUARE
    assert output.patch_map.offset == offset
    rings = rings_of(output.features, "red")
    corners = np.concatenate(rings)
    assert corners.min(axis=0).tolist() == [x, y]
    assert corners.max(axis=0).tolist() == [x + side, y + side]
    area = sum(np.ptp(ring, axis=0).prod() for ring in rings)
    assert area == side**2 and len(rings) == (side / output.patch_map.grid.step) ** 2


@pytest.mark.parametrize("scale", ["by 5"])
def test_area_outlines_surround_their_areas(image, models, scale, tmp_path):
    path, _ = image
    features = run(models[scale, "classes"], path, tmp_path / "out").features
    x, y, side = SQUARE
    square = {(x, y), (x + side, y), (x + side, y + side), (x, y + side)}
    (red,) = rings_of(features, "red")
    grey, hole = rings_of(features, "grey")
    assert {*map(tuple, red.tolist())} == {*map(tuple, hole.tolist())} == square
    assert grey.min(axis=0).tolist() == [0, 0]
    assert {f["properties"]["objectType"] for f in features} == {"detection"}


def test_table_rows_are_aligned_with_the_pixels(image, output):
    """In pixels of the image; as feature files, in those of OpenSlide."""
    _, offset = image
    with h5py.File(output.table) as file:
        centres, predicted_classes = file["obsm/spatial"][()], file["obs/class/codes"][()]
    x, y, side = SQUARE
    inside = ((centres > (x, y)) & (centres < (x + side, y + side))).all(axis=1)
    np.testing.assert_array_equal(predicted_classes, inside)
    assert inside.any() and not inside.all()
    with open_features(output.table) as features:
        corners = features.coords - offset
        np.testing.assert_array_equal(corners + features.side / 2, centres)
        assert features.size == tuple(np.add(SIZE, offset))


@pytest.mark.parametrize("scale", SCALES)
def test_region_outlines_surround_their_regions(image, models, scale, tmp_path):
    path, _ = image
    x, y, side = SQUARE
    output = run(models[scale, "regions"], path, tmp_path / "out")
    (feature,) = output.features
    (ring,) = feature["geometry"]["coordinates"]
    expected = {(x, y), (x + side, y), (x + side, y + side), (x, y + side)}
    assert set(map(tuple, ring)) == expected
    # The line is five pixels wide, black within white, and drawn on the border of the square.
    black = (output.pixels < 40).all(axis=2)
    rows, columns = np.nonzero(black)
    assert abs(rows.min() - y) <= 2 and abs(rows.max() - (y + side)) <= 2
    assert abs(columns.min() - x) <= 2 and abs(columns.max() - (x + side)) <= 2
    assert black[y - 2 : y + 3, x + side // 2].any()


def test_heat_map_of_the_web_page_is_aligned(output):
    """One pixel per patch, drawn `step` wide from `shift`, as on the web page."""
    heat_map = render_map(output.patch_map, 1)
    grid = output.patch_map.grid
    rows, columns = np.nonzero(heat_map[..., 3])
    x, y, side = SQUARE
    left, top = grid.shift + columns.min() * grid.step, grid.shift + rows.min() * grid.step
    right = grid.shift + (columns.max() + 1) * grid.step
    bottom = grid.shift + (rows.max() + 1) * grid.step
    assert (left, top, right, bottom) == (x, y, x + side, y + side)
    assert len(rows) == (side / grid.step) ** 2


def test_overlay_of_a_reduced_image_is_aligned(manifest, models, tmp_path):
    """The overlay of a large image is smaller than the image."""
    size = (3200, 400)
    Image.fromarray(scene(size)).save(tmp_path / "large.png")
    pixels = run(
        models["by 5", "classes"], tmp_path / "large.png", tmp_path / "out", height=200
    ).pixels
    assert pixels.shape == (200, 1600, 3)
    x, y, side = (value // 2 for value in SQUARE)
    under = np.asarray(Image.fromarray(scene(size)).reduce(2)).astype(float)
    inside = coloured(pixels, under, 1)[: y + 2 * side, : x + 2 * side]
    expected = np.zeros_like(inside)
    expected[y : y + side, x : x + side] = True
    # Pixels at the border are mixed from both sides.
    expected_shrunk = expected[1:-1, 1:-1]
    assert (inside[1:-1, 1:-1] == expected_shrunk).mean() > 0.999
