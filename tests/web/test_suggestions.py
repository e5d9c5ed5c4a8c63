"""Tests of suggestions to label next: uncertain and novel, no near duplicates, scale-invariant."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from histodict.images.source import open_image
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import NO_TISSUE, PatchMap
from histodict.web.annotation.store import Shape
from histodict.web.annotation.suggestions import (
    colour_descriptor,
    map_regions,
    prediction_margin,
    suggest,
    suggest_regions,
)


def places(*args):
    return [one.candidate for one in suggest(*args)]


def test_uncertain_and_novel_comes_first():
    summaries = np.array([[0.0, 0], [9, 0], [9, 9], [0, 9]])
    trained = np.array([[0.0, 0.1], [9, 0.1]])
    leads = np.array([0.1, 0.9, 0.2, 0.8])  # uncertain but known; certain; both; novel but certain
    assert places(leads, summaries, trained, 1) == [2]


def test_near_duplicate_of_a_suggestion_is_not_suggested():
    summaries = np.array([[5.0, 5], [5, 5.001], [0, 0], [4, 0], [0, 1]])
    trained = np.array([[0.0, 0]])
    leads = np.array([0.1, 0.11, 0.9, 0.2, 0.8])
    assert places(leads, summaries, trained, 2) == [0, 3]


def test_scale_and_order_do_not_matter():
    rng = np.random.default_rng(0)
    leads, summaries, trained = rng.random(30), rng.normal(size=(30, 4)), rng.normal(size=(5, 4))
    found = places(leads, summaries, trained, 6)
    assert len(set(found)) == 6
    scale = np.array([1, 1000, 0.01, 7])
    assert places(np.exp(5 * leads), summaries * scale, trained * scale, 6) == found
    order = rng.permutation(30)
    assert [int(order[p]) for p in places(leads[order], summaries[order], trained, 6)] == found


def test_central_image_comes_first_without_training_images():
    summaries = np.array([[0.0], [0.1], [0.2], [50]])
    assert places(np.ones(4), summaries, np.zeros((0, 1)), 1) == [1]
    assert suggest(np.zeros(0), np.zeros((0, 3)), np.zeros((0, 3)), 2) == []


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"probabilities": {"a": 0.9, "b": 0.1}}, 0.8),
        ({"score": -2.5}, 2.5),
        ({"shares": {"a": 0.2, "b": 0.5, "c": 0.3}, "score": 1.0}, 0.2),
        ({"answer": None, "score": None}, None),
        ({"score": None}, None),
    ],
)
def test_prediction_margin(values, wanted):
    reference = {"answer": "a", "probabilities": {}, "shares": {"a": 0.6, "b": 0.4}, "score": 0.0}
    assert prediction_margin(reference | values) == (
        wanted if wanted is None else pytest.approx(wanted)
    )


def test_colour_descriptor_is_rotation_invariant_and_stain_sensitive():
    rng = np.random.default_rng(0)
    pixels = rng.integers(60, 200, (40, 60, 3)).astype(np.uint8)
    response = colour_descriptor(pixels)
    np.testing.assert_allclose(colour_descriptor(np.rot90(pixels)), response, rtol=1e-6)
    assert np.abs(colour_descriptor(pixels // 2) - response).max() > 0.1
    for blank in (0, 255):
        assert np.isfinite(colour_descriptor(np.full((8, 8, 3), blank, np.uint8))).all()


# --- parts of an image --------------------------------------------------------------------------


@pytest.fixture
def field_map():
    """2 × 3 regions of 512 pixels; the model is uncertain in one, another is background."""
    predicted_classes = np.zeros((32, 48), np.int16)
    predicted_classes[16:, 32:] = NO_TISSUE
    leads = np.ones((32, 48))
    leads[:16, 16:32] = 0.1
    margins = np.stack([leads / 2, -leads / 2], axis=2).astype(np.float32)
    return PatchMap(PatchGrid(32, 48, 32, 32, 1.0), predicted_classes, margins, ("a", "b"), "x.png")


@pytest.fixture
def source(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 200, (1024, 1536, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    with open_image(tmp_path / "x.png") as source:
        yield source


def test_regions_tile_the_tissue(field_map):
    boxes = {one.box: one.mean_margin for one in map_regions(field_map)}
    assert len(boxes) == 5 and (1024, 512, 1536, 1024) not in boxes
    assert min(boxes, key=boxes.get) == (512, 0, 1024, 512)


def test_uncertain_region_is_suggested_until_it_is_labelled(field_map, source):
    labelled = [(0, 0, 100, 100)]
    found = suggest_regions(field_map, source, labelled, 3)
    boxes = [box for box, _ in found]
    assert len(boxes) == 3 and (0, 0, 512, 512) not in boxes
    assert max(found, key=lambda one: one[1].uncertainty)[0] == (512, 0, 1024, 512)
    labelled.append((600, 100, 700, 200))
    assert (512, 0, 1024, 512) not in [
        b for b, _ in suggest_regions(field_map, source, labelled, 3)
    ]
    assert suggest_regions(field_map, source, [(0, 0, 1536, 1024)], 3) == []


@pytest.mark.parametrize(
    "corners",
    [
        [[600, 100], [700, 100], [700, 200], [600, 200]],
        [[700, 300], [704, 300], [704, 304], [700, 304]],  # less than a patch
        [[520, 250], [1016, 250], [1016, 260], [520, 260]],  # long and thin
    ],
)
def test_annotated_regions_are_not_suggested(field_map, source, corners):
    shape = Shape(id="", label="", tool="brush", area=1.0, polygons=[[corners]])
    boxes = [box for box, _ in suggest_regions(field_map, source, [], 9, [shape])]
    assert len(boxes) == 4 and (512, 0, 1024, 512) not in boxes


def test_stroke_across_the_image_leaves_other_regions(field_map, source):
    """Its bounding box would cover all of them."""
    corners = [[10, 5], [15, 5], [1530, 1000], [1525, 1000]]
    shape = Shape(id="", label="", tool="polygon", area=1.0, polygons=[[corners]])
    boxes = [box for box, _ in suggest_regions(field_map, source, [], 9, [shape])]
    assert (0, 512, 512, 1024) in boxes and (0, 0, 512, 512) not in boxes
