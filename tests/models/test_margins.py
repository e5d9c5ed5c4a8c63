"""Predictions do not change when software adds a uniform margin to a tile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import read_manifest
from histodict.images.memory_image import MemoryImage
from histodict.models import TissueClassifier
from histodict.models.image_pipeline import _whole_image_pixels
from histodict.models.inputs import region_patch_mask
from histodict.models.patch_pipeline import SamplingArea, sample_training_patches
from histodict.models.prepared_image import open_prepared_image
from histodict.models.recipe import Recipe
from histodict.patches.patch_map import NO_TISSUE
from histodict.patches.rendering import draw_overlay
from histodict.synthetic.dataset import write_synthetic_dataset
from histodict.utils.parallel import ThreadExecutor
from histodict.utils.progress import no_callback

CONTEXT = Recipe(
    method_parameters={"n_atoms": 20, "n_iter": 2},
    patch_px=16,
    downsample=2.0,
    context_scale=2,
    patches_per_class=300,
    augment_patches=True,
    stain="reinhard",
    features="centred",
    aggregation="margin",
)
MARGINS = [(64, 255), (64, 0), (37, 255)]  # width and grey level


def padded(pixels, width, grey):
    edges = [(width, width)] * 2 + [(0, 0)] * (pixels.ndim - 2)
    return np.pad(pixels, edges, constant_values=grey)


@pytest.fixture(scope="module")
def tissue(tmp_path_factory):
    folder = write_synthetic_dataset(
        tmp_path_factory.mktemp("set") / "tissue", 2, 2, size=(240, 180)
    )
    return read_manifest(folder / "manifest.csv")


@pytest.fixture(scope="module")
def model(tissue):
    return TissueClassifier(CONTEXT, random_state=1).fit(tissue)


@pytest.fixture(scope="module")
def pixels(tissue):
    return np.asarray(Image.open(tissue.records[0].path).convert("RGB"))


@pytest.mark.parametrize(("width", "grey"), MARGINS)
def test_margin_changes_neither_score_nor_map(model, pixels, width, grey):
    alone, wide = (model.predict(image, mpp=0.5) for image in (pixels, padded(pixels, width, grey)))
    assert alone.score == wide.score and alone.n_patches == wide.n_patches
    grid = alone.patch_map.grid
    assert wide.patch_map.grid == replace(grid, left=width, top=width)
    np.testing.assert_array_equal(
        wide.patch_map.predicted_classes, alone.patch_map.predicted_classes
    )
    np.testing.assert_array_equal(wide.patch_map.margins, alone.patch_map.margins)


def test_whole_image_methods_ignore_the_margin(pixels):
    recipe = Recipe("lbp-colour", {}, stain="reinhard")
    images = [MemoryImage.from_array(padded(pixels, width, 255), "a") for width in (0, 37)]
    alone, wide = (_whole_image_pixels({image: None}, recipe, None, image) for image in images)
    np.testing.assert_array_equal(alone, wide)


def test_training_patches_are_inside_the_margin(tissue, pixels, tmp_path):
    """At the same positions, also with outlines or a mask."""
    found = []
    region = np.zeros(pixels.shape[:2], np.uint8)
    region[40:140, 30:170] = 255
    for width in (0, 37):
        Image.fromarray(padded(pixels, width, 255)).save(tmp_path / f"{width}.png")
        Image.fromarray(padded(region, width, 0)).save(tmp_path / f"{width}-mask.png")
        record = replace(
            tissue.records[0], path=tmp_path / f"{width}.png", mask=tmp_path / f"{width}-mask.png"
        )
        sources = [SamplingArea(record, int(inside), inside, "x") for inside in (False, True)]
        found.append(
            sample_training_patches(sources, CONTEXT, 0, None, no_callback, ThreadExecutor(1))
        )
    np.testing.assert_array_equal(found[0].features, found[1].features)
    assert len(found[0].labels) and set(found[0].labels) == {0, 1}


def test_masks_outlines_and_overlays_stay_aligned(tissue, model, pixels, tmp_path):
    region = np.zeros(pixels.shape[:2], np.uint8)
    region[40:140, 30:170] = 255
    truths, rings = [], []
    for width in (0, 100):
        Image.fromarray(padded(pixels, width, 255)).save(tmp_path / f"{width}.png")
        Image.fromarray(padded(region, width, 0)).save(tmp_path / f"{width}-mask.png")
        record = replace(
            tissue.records[0], path=tmp_path / f"{width}.png", mask=tmp_path / f"{width}-mask.png"
        )
        patch_map = model.predict(record.path, mpp=0.5).patch_map
        truths.append(region_patch_mask(record, patch_map))
        rings.append(
            [
                np.array(ring) - width
                for place in (0, 1)
                for _, _, polygons in patch_map.regions(place)
                for polygon in polygons
                for ring in polygon
            ]
        )
    np.testing.assert_array_equal(*truths)
    assert 0 < truths[0].mean() < 1 and len(rings[0]) == len(rings[1]) > 0
    for one, other in zip(*rings, strict=True):
        np.testing.assert_array_equal(one, other)
    overlay = draw_overlay(patch_map, "")[: 180 + 200, : 240 + 200]
    original = padded(pixels, 100, 255)
    assert (overlay[:60] == 255).all() and (overlay[:, :60] == 255).all()
    assert (overlay[120:260, 120:320] != original[120:260, 120:320]).any(axis=2).mean() > 0.2


def test_image_of_one_colour_is_predicted_completely(model):
    blank = np.full((200, 160, 3), 255, np.uint8)
    speck = blank.copy()
    speck[90:95, 70:75] = 120, 40, 130
    for pixels in (blank, speck):
        image = Image.fromarray(pixels)
        with open_prepared_image(MemoryImage.from_pillow(image, "a"), None, CONTEXT) as prepared:
            assert prepared.content.size == (160, 200)
        prediction = model.predict(pixels, mpp=0.5)
        assert (prediction.patch_map.grid.left, prediction.patch_map.grid.n_rows) == (0, 6)
        assert (prediction.patch_map.predicted_classes == NO_TISSUE).all()
