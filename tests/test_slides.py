"""A planted region of a whole slide is found at its position in every output file.

The slide is background with healthy tissue that contains a rectangle of inflamed tissue. The models
are trained on synthetic images of the same patient, so that most patches are correct. The tests
check positions at several reductions, not accuracy.
"""

from __future__ import annotations

import json
from functools import cache, cached_property
from pathlib import Path

import numpy as np
import openslide
import pyarrow.parquet
import pytest
from PIL import Image
from scipy import ndimage
from typer.testing import CliRunner

from histodict.cli import app
from histodict.datasets.manifest import read_manifest
from histodict.images.source import SlideReader, open_image
from histodict.models import TissueClassifier, save_model
from histodict.models.recipe import Recipe
from histodict.patches import grid
from histodict.patches.patch_map import COLOURS, NO_TISSUE
from histodict.synthetic.tissue_generator import make_region_image, make_tissue_image, random_stain
from tests.images.files import save_slide

MPP = 0.5
SIZE = (1792, 1536)
TISSUE = (256, 192, 1600, 1376)  # left, top, right, bottom, in level-0 pixels
PLANTED = (860, 600, 1372, 1112)  # across borders of chunks and of tiles
CLASSES = ("healthy", "inflamed")
STEP = 4  # between the pixels of an overlay that are examined
RECIPE = Recipe(
    method_parameters={"n_atoms": 24, "n_iter": 3},
    patch_px=16,
    patches_per_class=1000,
    augment_patches=True,
    features="centred",
)
SCALES = {
    "unreduced": {"downsample": 1.0},
    "to 1 µm": {"mpp": 1.0},
    "to 1.25 µm": {"mpp": 1.25},
    "by 4": {"downsample": 4.0},
}


# ---------------------------------------------------------------- the slide and the models


def mirrored(pixels, width, height):
    """Extend the image to this size by its mirror images to the right and below."""
    margins = ((0, height - pixels.shape[0]), (0, width - pixels.shape[1]), (0, 0))
    return np.pad(pixels, margins, mode="symmetric")


def inflamed_square(stain, rng, side=128):
    """Return the centre of a focus: completely inflamed, unlike most inflamed images."""
    image, mask = make_region_image(stain, rng, (640, 640), n_regions=1)
    depth = ndimage.distance_transform_edt(mask)
    middle = np.unravel_index(depth.argmax(), depth.shape)
    top, left = (int(np.clip(at - side // 2, 0, 640 - side)) for at in middle)
    return image[top : top + side, left : left + side]


def put(canvas, pixels, box):
    canvas[box[1] : box[3], box[0] : box[2]] = mirrored(pixels, box[2] - box[0], box[3] - box[1])


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """The slide, and a folder of training images of the same patient."""
    folder = tmp_path_factory.mktemp("slides")
    rng = np.random.default_rng(3)
    stain = random_stain(rng)
    lines = ["path,label,patient,mpp"]
    for i in range(3):
        images = make_tissue_image("healthy", stain, rng, (400, 400)), inflamed_square(stain, rng)
        for label, image in zip(CLASSES, images, strict=True):
            Image.fromarray(image).save(folder / f"{label}{i}.png")
            lines.append(f"{label}{i}.png,{label},one,{MPP}")
    (folder / "manifest.csv").write_text("\n".join(lines))
    noise = 2 * rng.standard_normal((SIZE[1], SIZE[0], 1))
    canvas = np.clip(np.array(stain.white) + noise, 0, 255).astype(np.uint8)
    put(canvas, make_tissue_image("healthy", stain, rng, (672, 592)), TISSUE)
    put(canvas, inflamed_square(stain, rng), PLANTED)
    save_slide(folder / "slide.tif", canvas, MPP)
    return folder


class Result:
    """Output of `histodict predict` for one slide."""

    def __init__(self, folder: Path, slide: Path) -> None:
        table = pyarrow.parquet.read_table(folder / "predictions.parquet").to_pylist()
        (self.row,) = (row for row in table if Path(row["path"]) == slide)
        self.slide = slide
        key = self.row["key"]
        with np.load(folder / "maps" / f"{key}.npz") as arrays:
            self.predicted_classes = arrays["predicted_classes"]
            self.stride, self.side = float(arrays["stride"]), float(arrays["side"])
        text = (folder / "geojson" / f"{key}.geojson").read_text("utf-8")
        self.features = json.loads(text)["features"]
        picture = np.asarray(Image.open(folder / "overlays" / f"{key}.png"))
        with open_image(slide) as source:
            width, height = source.size
        # The legend is below the image.
        self.overlay = picture[: round(height / width * picture.shape[1])]

    @cached_property
    def tints(self) -> np.ndarray:
        """Classes of the blended colours, of every fourth pixel of the overlay in x and y."""
        return tints(self.overlay, self.slide, STEP)


def predict(model, output, *slides):
    arguments = ["predict", model, *slides, "--output", output, "--outline-patches"]
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return [Result(output, slide) for slide in slides]


@pytest.fixture(scope="module")
def model_at(scene):
    """Return a function that trains a model at a scale once and returns its file."""

    @cache
    def train(scale):
        recipe = RECIPE.with_changes(**SCALES[scale])
        fitted = TissueClassifier(recipe).fit(read_manifest(scene / "manifest.csv"))
        return save_model(fitted, scene / f"{scale}.histodict")

    return train


@pytest.fixture(scope="module", params=["unreduced", "to 1.25 µm", "by 4"])
def result(request, model_at, scene, tmp_path_factory):
    model = model_at(request.param)
    with pytest.MonkeyPatch.context() as patch:
        # Small chunks, so that the rectangle extends over several at every scale.
        patch.setattr(grid, "_CHUNK_PX", 256)
        return predict(model, tmp_path_factory.mktemp("out"), scene / "slide.tif")[0]


# ---------------------------------------------------------------- detection of the rectangle


def best_box(positive):
    """Return the rectangle (left, top, right, bottom) with the most positive cells.

    Every positive cell counts 1, and every cell costs 0.35: more than the rate of false positives
    outside, less than that of true positives inside. The best rectangle is the best interval of
    summed columns over all pairs of rows.
    """
    sums = np.pad(np.cumsum(positive - 0.35, axis=0), ((1, 0), (0, 0)))
    best, box = -np.inf, None
    for top in range(len(positive)):
        strips = np.pad(np.cumsum(sums[top + 1 :] - sums[top], axis=1), ((0, 0), (1, 0)))
        gains = strips - np.minimum.accumulate(strips, axis=1)
        row, right = np.unravel_index(gains.argmax(), gains.shape)
        if gains[row, right] > best:
            best = gains[row, right]
            box = strips[row, : right + 1].argmin(), top, right, top + 1 + row
    return np.array(box)


def distance(positive, step):
    """Return the distance of the best rectangle's edges from the planted ones, in level-0 pixels.

    `positive`: cells of `step` level-0 pixels, 1 where the tissue is predicted inflamed.
    """
    return np.abs(best_box(positive) * step - PLANTED).max()


def from_geojson(features, step=8):
    """Return the inflamed patches as cells of `step` level-0 pixels."""
    cells = np.zeros((SIZE[1] // step, SIZE[0] // step))
    for feature in features:
        if feature["properties"]["classification"]["name"] == "inflamed":
            ring = np.array(feature["geometry"]["coordinates"][0])
            left, top = np.rint(ring.min(axis=0) / step).astype(int)
            right, bottom = np.rint(ring.max(axis=0) / step).astype(int)
            cells[top:bottom, left:right] = 1
    return cells, step


def tints(overlay, slide, step):
    """Return per pixel of the overlay the class of the blended colour: 0, 1, or NO_TISSUE for
    none."""
    with open_image(slide) as source:
        under = source.thumbnail(max(overlay.shape[:2]))[::step, ::step].astype(float)
    change = overlay[::step, ::step] - under
    towards = COLOURS[: len(CLASSES), None, None] - under
    agreement = (towards * change).sum(axis=3) / np.linalg.norm(towards, axis=3)
    return np.where(np.abs(change).max(axis=2) < 2, NO_TISSUE, agreement.argmax(axis=0))


def from_overlay(result, every=8):
    laid_on = result.tints[:: every // STEP, :: every // STEP]
    return (laid_on == 1).astype(float), every * SIZE[0] / result.overlay.shape[1]


# ---------------------------------------------------------------- positions


def test_slide_is_read_by_openslide(scene):
    with open_image(scene / "slide.tif") as source:
        assert isinstance(source, SlideReader)
        assert source.size == SIZE
        assert source.mpp == pytest.approx(MPP)
    assert openslide.OpenSlide(scene / "slide.tif").level_count == 3


def test_map_has_the_planted_rectangle_within_a_patch(result):
    assert distance((result.predicted_classes == 1).astype(float), result.stride) <= result.side


@pytest.mark.parametrize("shift", [(0, 2), (0, -2), (2, 0), (-2, 0)])
def test_map_shifted_by_two_patches_is_detected(result, shift):
    moved = np.roll(result.predicted_classes == 1, shift, axis=(0, 1)).astype(float)
    assert distance(moved, result.stride) > result.side


def test_map_of_wrong_scale_is_detected(result):
    positive = (result.predicted_classes == 1).astype(float)
    n_off = 2 * result.side / PLANTED[3]  # two patches, at the lower edge
    assert distance(positive, result.stride * (1 + n_off)) > result.side


def test_geojson_is_in_level_0_pixels(result):
    cells, step = from_geojson(result.features)
    assert distance(cells, step) <= result.side
    moved = np.roll(cells, round(2 * result.side / step), axis=1)
    assert distance(moved, step) > result.side


def test_geojson_equals_the_map(result):
    assert (
        len(result.features)
        == (result.predicted_classes != NO_TISSUE).sum()
        == result.row["n_patches"]
    )
    for feature in result.features[:: max(1, len(result.features) // 300)]:
        (ring,) = feature["geometry"]["coordinates"]
        left, top = ring[0]
        assert ring[2] == [left + result.side, top + result.side]
        row, column = round(top / result.stride), round(left / result.stride)
        assert abs(row * result.stride - top) <= 0.5
        name = feature["properties"]["classification"]["name"]
        assert name == CLASSES[result.predicted_classes[row, column]]


def test_overlay_has_the_colours_in_place(result):
    assert max(result.overlay.shape[:2]) == 1600
    cells, step = from_overlay(result)
    assert distance(cells, step) <= result.side
    moved = np.roll(cells, round(2 * result.side / step), axis=0)
    assert distance(moved, step) > result.side


def test_tissue_is_predicted_and_background_is_not(result):
    rows, columns = (np.arange(n) * result.stride for n in result.predicted_classes.shape)

    def inside(starts, low, high, side=result.side):
        return (starts >= low) & (starts + side <= high)

    def outside(starts, low, high, side=result.side):
        return (starts + side <= low) | (starts >= high)

    left, top, right, bottom = TISSUE
    tissue = inside(rows, top, bottom)[:, None] & inside(columns, left, right)[None, :]
    background = outside(rows, top, bottom)[:, None] | outside(columns, left, right)[None, :]
    # lumens are background, too
    assert (result.predicted_classes[tissue] != NO_TISSUE).mean() > 0.85
    assert (result.predicted_classes[background] == NO_TISSUE).all()
    laid_on = result.tints
    scale = STEP * SIZE[0] / result.overlay.shape[1]
    margin = int((TISSUE[0] - result.side) / scale)
    assert (laid_on[:, :margin] == NO_TISSUE).all()


# ---------------------------------------------------------------- real slides


@pytest.fixture(scope="module")
def real(model_at, data_folder, tmp_path_factory):
    names = ("CMU-1-Small-Region.svs", "CMU-1-Small-Region_pyramid.tif")
    slides = [data_folder / "slides" / name for name in names]
    for slide in slides:
        if not slide.is_file():
            pytest.skip(f"HISTODICT_DATA has no {slide.name}")
    return predict(model_at("to 1 µm"), tmp_path_factory.mktemp("out"), *slides)


def patch_values(result, values):
    """Return the mean over every patch of an array of level-0 pixels."""
    sums = np.pad(values.cumsum(axis=0, dtype=float).cumsum(axis=1), ((1, 0), (1, 0)))
    tops, lefts = (
        np.rint(np.arange(n) * result.stride).astype(int) for n in result.predicted_classes.shape
    )
    ends = [np.rint(starts + result.side).astype(int) for starts in (tops, lefts)]
    (top, bottom), (left, right) = (tops, ends[0]), (lefts, ends[1])
    inside = sums[bottom][:, right] - sums[top][:, right] - sums[bottom][:, left]
    return (inside + sums[top][:, left]) / result.side**2


def test_real_slides_are_predicted_where_there_is_tissue(real):
    for result in real:
        assert result.row["label"] in CLASSES
        assert result.predicted_classes.shape == (2967 // 32, 2220 // 32)
        slide = openslide.OpenSlide(result.slide)
        pixels = np.asarray(slide.read_region((0, 0), 0, slide.dimensions).convert("RGB"))
        colour = patch_values(result, np.ptp(pixels, axis=2))
        light = patch_values(result, pixels.min(axis=2))
        tissue, background = (colour > 45) & (light < 190), (colour < 14) & (light > 215)
        assert min(tissue.mean(), background.mean()) > 0.2
        assert (result.predicted_classes[tissue] != NO_TISSUE).mean() > 0.97
        assert (result.predicted_classes[background] != NO_TISSUE).mean() < 0.01


def test_real_slides_are_exported_completely(real):
    for result in real:
        assert (
            len(result.features)
            == result.row["n_patches"]
            == (result.predicted_classes != NO_TISSUE).sum()
        )
        corners = np.array([f["geometry"]["coordinates"][0] for f in result.features])
        assert corners.min() >= 0
        assert (corners.max(axis=(0, 1)) <= (2220 + 1, 2967 + 1)).all()
        assert result.overlay.shape == (1600, round(2220 / 2967 * 1600), 3)
        laid_on = result.tints != NO_TISSUE
        assert laid_on.mean() == pytest.approx(
            (result.predicted_classes != NO_TISSUE).mean(), abs=0.03
        )


def test_two_files_of_the_same_slide_agree(real):
    one, two = (result.predicted_classes for result in real)
    assert np.mean((one == NO_TISSUE) == (two == NO_TISSUE)) > 0.97
    both = (one != NO_TISSUE) & (two != NO_TISSUE)
    assert np.mean(one[both] == two[both]) > 0.8
