"""Tests of outlines for QuPath against direct computations from the map."""

from __future__ import annotations

import gzip
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from histodict.export.qupath import area_features, patch_features, region_features, save_geojson
from histodict.models import DetectedRegion
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import NO_TISSUE, PatchMap, class_rgb
from tests.patches.test_outlines import area, inside

CLASSES = ("gesünd", 'to"mor 100 %d', "a: b")
GRIDS = {
    "side by side": PatchGrid(9, 13, 16, 16, 2.0),
    "overlapping": PatchGrid(9, 13, 16, 8, 2.0),
    "not whole": PatchGrid(9, 13, 16, 16, 1.0317),
    "beginning elsewhere": PatchGrid(9, 13, 16, 16, 2.0, left=37.0, top=-411.0),
}


@pytest.fixture(params=GRIDS)
def patch_map(request):
    rng = np.random.default_rng(7)
    predicted_classes = rng.integers(-1, len(CLASSES), (9, 13)).astype(np.int16)
    predicted_classes[2:7, 3:9] = 1
    predicted_classes[4:6, 5] = NO_TISSUE  # a hole
    margins = rng.normal(size=(9, 13, 3)).astype(np.float32)
    return PatchMap(
        GRIDS[request.param], predicted_classes, margins, CLASSES, Path("a.mrxs"), 0.5, (1000, 800)
    )


def read(features):
    def refuse(word):
        raise AssertionError(word)

    return [json.loads(text, parse_constant=refuse) for text in features]


def polygons_of(feature):
    shape = feature["geometry"]
    return [shape["coordinates"]] if shape["type"] == "Polygon" else shape["coordinates"]


def name_of(feature):
    return feature["properties"]["classification"]["name"]


def measured(feature):
    return feature["properties"]["measurements"]


def contains(feature, x, y):
    return any(
        inside(outer, x, y) and not any(inside(hole, x, y) for hole in holes)
        for outer, *holes in polygons_of(feature)
    )


def test_named_concepts_are_measured(patch_map):
    name, rng = 'dark "nuclei" 5 %d', np.random.default_rng(1)
    used = (rng.random((9, 13)) < 0.4) & patch_map.tissue
    named = replace(patch_map, concepts={name: used})
    patches = [measured(feature)[f"{name}: use"] for feature in read(patch_features(named))]
    assert patches == used[patch_map.tissue].astype(float).tolist()
    areas = read(area_features(named))
    total = sum(measured(a)["patches"] * measured(a)[f"{name}: use"] for a in areas)
    assert total == pytest.approx(used.sum(), abs=1e-3)
    region = DetectedRegion(
        4, 1.0, 9.0, None, (0, 0, 1, 1), [[[(0, 0), (1, 0), (0, 1), (0, 0)]]], {name: 1}
    )
    assert (
        measured(read(region_features([region], replace(patch_map, classes=CLASSES[:2])))[0])[
            f"{name}: use"
        ]
        == 1
    )
    assert not any("use" in key for f in read(area_features(patch_map)) for key in measured(f))


def test_areas_cover_the_cells_of_their_class_exactly(patch_map):
    grid = patch_map.grid
    features = read(area_features(patch_map))
    for row, column in np.ndindex(patch_map.predicted_classes.shape):
        x = grid.corner(row, column)[0] + grid.patch_side / 2  # the centre of the patch
        y = grid.corner(row, column)[1] + grid.patch_side / 2
        found = [name_of(feature) for feature in features if contains(feature, x, y)]
        predicted_class = patch_map.predicted_classes[row, column]
        assert found == ([] if predicted_class == NO_TISSUE else [CLASSES[predicted_class]])
    for feature in features:
        rings = [ring for polygon in polygons_of(feature) for ring in polygon]
        whole = measured(feature)["patches"] * grid.step**2
        assert sum(area(ring) for ring in rings) == pytest.approx(whole, rel=2e-3)
        for outer, *holes in polygons_of(feature):  # as required by RFC 7946
            assert area(outer) > 0 and all(area(hole) < 0 for hole in holes)


@pytest.mark.parametrize("patch_map", ["side by side"], indirect=True)
def test_areas_of_adjacent_patches_are_their_union(patch_map):
    """Non-overlapping patches have a union for each class, compared pixel by pixel."""
    pixels = np.full((9 * 32, 13 * 32), NO_TISSUE)
    for feature in read(patch_features(patch_map)):
        (ring,) = polygons_of(feature)[0]
        (left, top), (right, low) = np.min(ring, axis=0), np.max(ring, axis=0)
        pixels[top:low, left:right] = CLASSES.index(name_of(feature))
    for feature in read(area_features(patch_map)):
        place, inner = CLASSES.index(name_of(feature)), np.zeros(pixels.shape, int)
        for ring in (ring for polygon in polygons_of(feature) for ring in polygon):
            for (x, y), (_, next_y) in itertools.pairwise(ring):
                inner[min(y, next_y) : max(y, next_y), x:] += 1 if next_y < y else -1
        assert (pixels[inner == 1] == place).all() and {*np.unique(inner)} <= {0, 1}
        pixels[inner == 1] = NO_TISSUE
    assert (pixels == NO_TISSUE).all()


def test_area_measurements_are_means_over_patches(patch_map):
    grid = patch_map.grid
    for feature in read(area_features(patch_map)):
        found = measured(feature)
        place = CLASSES.index(name_of(feature))
        own = [
            patch_map.margins[row, column].astype(float)
            for row, column in np.ndindex(patch_map.predicted_classes.shape)
            if patch_map.predicted_classes[row, column] == place
            and contains(feature, *(n + grid.patch_side / 2 for n in grid.corner(row, column)))
        ]
        assert len(own) == found["patches"]
        for name, mean in zip(CLASSES, np.mean(own, axis=0), strict=True):
            assert found[f"{name}: score"] == pytest.approx(mean, rel=1e-4)
        assert found["area µm²"] == pytest.approx(len(own) * (grid.step * 0.5) ** 2, rel=1e-6)
        assert list(found) == [*(f"{name}: score" for name in CLASSES), "patches", "area µm²"]
    unknown = read(area_features(replace(patch_map, mpp=None)))
    assert all("area µm²" not in measured(feature) for feature in unknown)


def test_patches_have_scores_of_every_class_and_a_colour(patch_map):
    features = read(patch_features(patch_map))
    places = np.argwhere(patch_map.predicted_classes != NO_TISSUE)
    assert len(features) == len(places)
    for (row, column), feature in zip(places, features, strict=True):
        predicted_class = patch_map.predicted_classes[row, column]
        assert feature["properties"]["classification"] == {
            "name": CLASSES[predicted_class],
            "color": list(class_rgb(predicted_class)),
        }
        for name, margin in zip(CLASSES, patch_map.margins[row, column], strict=True):
            assert measured(feature)[f"{name}: score"] == pytest.approx(margin, rel=1e-4)
        # The bounds of the slide are the origin of coordinates in QuPath.
        assert polygons_of(feature)[0][0][0] == list(patch_map.grid.corner(row, column))


@pytest.mark.parametrize("written", [area_features, patch_features])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_omitted(patch_map, written, value):
    margins = patch_map.margins.copy()
    margins[2:7, 3:9, 0] = value
    features = read(written(replace(patch_map, margins=margins)))
    lacking = [f for f in features if "gesünd: score" not in measured(f)]
    assert lacking and len(lacking) < len(features)
    assert all(f"{CLASSES[1]}: score" in measured(feature) for feature in features)


def test_region_is_an_annotation_of_the_second_class(patch_map):
    two = replace(patch_map, classes=("no focus", "focus"), margins=patch_map.margins[..., :2])
    ring = [(0.0, 0.0), (8.5, 0.0), (8.5, 4.0), (0.0, 4.0), (0.0, 0.0)]
    region = DetectedRegion(3, 0.25, 96.0, 24.0, (0, 0, 8.5, 4), [[ring], [ring]])
    (feature,) = read(region_features([region], two))
    assert feature["properties"]["objectType"] == "annotation" and name_of(feature) == "focus"
    assert measured(feature) == {
        "no focus: score": -0.25,
        "focus: score": 0.25,
        "patches": 3,
        "area µm²": 24.0,
    }
    assert feature["geometry"]["type"] == "MultiPolygon"
    assert polygons_of(feature)[0] == [[[0, 0], [8.5, 0], [8.5, 4], [0, 4], [0, 0]]]


def test_background_image_gives_an_empty_collection(patch_map, tmp_path):
    background = replace(
        patch_map, predicted_classes=np.full_like(patch_map.predicted_classes, NO_TISSUE)
    )
    for written in (area_features, patch_features):
        save_geojson(tmp_path / "a.geojson", written(background))
        found = json.loads((tmp_path / "a.geojson").read_text())
        assert found == {"type": "FeatureCollection", "features": []}


def test_compressed_file_has_the_same_content_and_reproducible_bytes(patch_map, tmp_path):
    plain, packed = tmp_path / "a.geojson", tmp_path / "a.geojson.gz"
    save_geojson(plain, area_features(patch_map))
    save_geojson(packed, area_features(patch_map))
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert plain.read_bytes().isascii()  # ASCII is the same in every encoding
    save_geojson(tmp_path / "b.geojson.gz", area_features(patch_map))
    assert packed.read_bytes() == (tmp_path / "b.geojson.gz").read_bytes()
