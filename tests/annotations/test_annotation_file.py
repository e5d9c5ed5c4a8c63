"""Tests of imported outlines: covered pixels, and messages about invalid ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histodict.annotations.annotation_file import AnnotationFile
from histodict.annotations.outlines import (
    AnnotationPolygon,
    RunLengthMask,
    find_self_intersections,
    is_too_complex,
)
from histodict.datasets.annotated import RegionMask
from histodict.images.source import ImageError
from tests.annotations.outline_files import (
    box,
    collection,
    feature,
    write_asap,
    write_geojson,
    write_imagescope,
)


@dataclass
class Canvas:
    """The part of an image that outlines need."""

    size: tuple[int, int] = (80, 60)
    mpp: float | None = None
    offset: tuple[int, int] = (0, 0)
    path: Path = Path("image.svs")


def winds_around(ring: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether a ring encloses points, by the sum of the angles of its sides."""
    away = np.asarray(ring, float) - np.stack([x, y], axis=-1)[..., None, :]
    angles = np.arctan2(away[..., 1], away[..., 0])
    orientation = np.diff(np.concatenate([angles, angles[..., :1]], axis=-1), axis=-1)
    orientation = (orientation + np.pi) % (2 * np.pi) - np.pi
    return np.abs(orientation.sum(axis=-1)) > np.pi


def centres(width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    return np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)


def pixels_of(runs: RunLengthMask) -> np.ndarray:
    """Return the mask pixel by pixel."""
    width, height = runs.size
    x, y = np.meshgrid(np.arange(width, dtype=float), np.arange(height, dtype=float))
    return runs.coverage(x, y, 1) == 1


points = st.tuples(st.floats(-5, 35), st.floats(-5, 25))


@settings(max_examples=60, deadline=None)
@given(st.lists(points, min_size=3, max_size=8))
def test_pixel_belongs_to_a_ring_around_its_centre(corners):
    """Any ring, including self-intersecting ones and ones that leave the image."""
    ring = np.array(corners) + 0.0137
    found = pixels_of(RunLengthMask.from_outlines([AnnotationPolygon("a", (ring,))], (30, 20)))
    x, y = centres(30, 20)
    clear = (distances(ring, x, y) > 1e-9).ravel()
    differs = (found != winds_around(ring, x, y)).ravel()
    assert not (differs & clear).any()


def distances(ring: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return distances from points to the nearest side."""
    a, b = ring, np.roll(ring, -1, axis=0)
    along, away = b - a, np.stack([x, y], axis=-1)[..., None, :] - a
    length = np.maximum((along**2).sum(axis=-1), 1e-300)
    share = np.clip((along * away).sum(axis=-1) / length, 0, 1)
    return np.linalg.norm(away - share[..., None] * along, axis=-1).min(axis=-1)


def test_polygons_with_holes_and_islands():
    """The island in the hole, and another outline over the hole, remain."""
    shores = box(5, 5, 60, 50), box(20, 15, 50, 40)
    lake = AnnotationPolygon("a", tuple(np.array(shore)[:4] for shore in shores))
    island = AnnotationPolygon("a", (np.array(box(30, 20, 40, 30))[:4],))
    expected = np.zeros((60, 80), bool)
    expected[5:50, 5:60] = True
    expected[15:40, 20:50] = False
    expected[20:30, 30:40] = True
    for outlines in ([lake, island], [island, lake], [lake, island, island]):
        runs = RunLengthMask.from_outlines(outlines, (80, 60))
        np.testing.assert_array_equal(pixels_of(runs), expected)
        assert runs.n_pixels == expected.sum()
    cut = AnnotationPolygon("a", (np.array(box(0, 0, 10, 60))[:4],), is_hole=True)
    expected[:, :10] = False
    np.testing.assert_array_equal(
        pixels_of(RunLengthMask.from_outlines([lake, cut, island], (80, 60))), expected
    )


def test_coverage_equals_that_of_a_mask_of_the_same_pixels(rng):
    ring = 30 + 25 * np.stack([np.cos(np.arange(40) / 6.3), 0.8 * np.sin(np.arange(40) / 6.3)], 1)
    runs = RunLengthMask.from_outlines([AnnotationPolygon("a", (ring,))], (80, 60))
    region = winds_around(ring, *centres(80, 60))
    np.testing.assert_array_equal(pixels_of(runs), region)
    mask = RegionMask(region, (80, 60))
    for side in (1, 7, 16.3, 90):
        x, y = rng.uniform(-3, 79, (2, 5, 40))
        np.testing.assert_array_equal(runs.coverage(x, y, side), mask.coverage(x, y, side))
    assert runs.any() and not runs.all()
    assert RunLengthMask.from_outlines(
        [AnnotationPolygon("a", (np.array(box(-9, -9, 99, 99))[:4],))], (80, 60)
    ).all()
    assert not RunLengthMask.from_outlines(
        [AnnotationPolygon("a", (np.array(box(2.6, 2, 3.4, 9))[:4],))], (80, 60)
    ).any()


@pytest.mark.parametrize(
    ("ring", "crossing"),
    [
        (box(0, 0, 10, 10)[:4], None),
        ([[0, 0], [10, 10], [10, 0], [0, 10]], (5, 5)),
        ([[0, 0], [10, 0], [5, 0], [5, 5]], None),  # retraces itself, but crosses nothing
        ([[0, 0], [20, 0], [20, 10], [4, 10], [4, -5], [0, -5]], (4, 0)),
    ],
)
def test_position_of_a_self_intersection(ring, crossing):
    assert find_self_intersections(np.array(ring, float)) == ([crossing] if crossing else [])


def crosses(ring):
    """Compare every pair of sides."""
    sides = list(zip(ring, np.roll(ring, -1, axis=0), strict=True))

    def orientation(a, b, c):
        return np.sign((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))

    return any(
        orientation(a, b, c) * orientation(a, b, d) < 0
        and orientation(c, d, a) * orientation(c, d, b) < 0
        for n, (a, b) in enumerate(sides)
        for c, d in sides[n + 1 :]
    )


def test_self_intersections_are_always_found(rng):
    rings = [rng.integers(0, 12, (int(rng.integers(3, 9)), 2)) for _ in range(300)]
    found = [bool(find_self_intersections(ring.astype(float))) for ring in rings]
    assert found == [crosses(ring) for ring in rings]
    assert 50 < sum(found) < 250


def test_tangled_rings_are_distinguished_from_long_ones(rng):
    n = 20_000
    teeth = np.stack([np.tile([0.0, 9000.0], n // 2), np.linspace(0, 9000, n)], axis=1)
    ring = np.concatenate([teeth, [[9999, 9000], [9999, -9], [0, -9]]])
    for own in (ring, ring[:, ::-1]):
        assert not is_too_complex(own) and find_self_intersections(own) == []
    assert is_too_complex(rng.uniform(0, 1000, (150_000, 2)))
    crossed = rng.uniform(0, 1000, (300, 2))
    assert (
        100
        <= len(find_self_intersections(crossed, 100))
        < len(find_self_intersections(crossed, 10**6))
    )


# --- files --------------------------------------------------------------------------------------

LAKE = box(10, 10, 50, 40), box(20, 20, 30, 30)


def covered(path: Path, *names: str, canvas: Canvas | None = None, **how) -> np.ndarray:
    return pixels_of(AnnotationFile(path, names, **how).region_mask(canvas or Canvas()))


def boxes(*filled: tuple[int, int, int, int], holes=()) -> np.ndarray:
    found = np.zeros((60, 80), bool)
    for value, areas in ((True, filled), (False, holes)):
        for left, top, right, bottom in areas:
            found[top:bottom, left:right] = value
    return found


LAKE_PIXELS = boxes((10, 10, 50, 40), holes=[(20, 20, 30, 30)])


@pytest.mark.parametrize("version", ["0.2", "0.3", "0.4", "0.5", "0.6"])
@pytest.mark.parametrize("ending", ["geojson", "json", "geojson.gz"])
@pytest.mark.parametrize("wrapped", ["collection", "array", "single"])
def test_geojson_of_every_qupath_version_gives_the_same_region(tmp_path, version, ending, wrapped):
    annotated = feature("Tumor", *LAKE, version=version)
    content = {"collection": collection(annotated), "array": [annotated], "single": annotated}[
        wrapped
    ]
    path = write_geojson(tmp_path / f"slide.{ending}", content)
    assert AnnotationFile(path).read().class_counts == {"Tumor": 1}
    np.testing.assert_array_equal(covered(path, "Tumor"), LAKE_PIXELS)


@pytest.mark.parametrize("version", ["0.3", "0.4", "0.6"])
def test_derived_class_has_its_full_name(tmp_path, version):
    annotated = feature("Tumor: Positive", *LAKE, version=version)
    path = write_geojson(tmp_path / "a.geojson", collection(annotated))
    assert list(AnnotationFile(path).read().class_counts) == ["Tumor: Positive"]


def test_other_content_of_qupath_files(tmp_path):
    """Several polygons in one object, a bare geometry, a class given as a name, child objects,
    cells, points, and annotations without a class."""
    multi = feature("Stroma", *LAKE)
    parts = [[box(0, 0, 4, 4)], [box(60, 0, 64, 4), box(61, 1, 62, 2)]]
    multi["geometry"] = {"type": "MultiPolygon", "coordinates": parts}
    mixed = feature("Stroma", *LAKE) | {
        "geometry": {
            "type": "GeometryCollection",
            "geometries": [
                {"type": "Polygon", "coordinates": [box(70, 50, 80, 60)]},
                {"type": "Point", "coordinates": [3, 3]},
            ],
        }
    }
    named = feature(None, *LAKE)
    named["properties"]["classification"] = "Tumor"
    parent = feature(None, box(0, 50, 10, 60), childObjects=[named])
    cell = feature("Tumor", *LAKE, objectType="cell")
    empty = feature("Tumor", [[1, 1], [5, 1], [1, 1]])
    content = collection(multi, mixed, parent, cell, empty)
    path = write_geojson(tmp_path / "a.geojson", content)
    found = AnnotationFile(path).read()
    assert found.class_counts == {"Stroma": 3, "Tumor": 1, "unclassified": 1}
    assert found.skipped == {"points": 1, "cells": 1, "polygons without an area": 1}
    assert "ignored: 1 points" in found.notes()[0]
    expected = boxes((0, 0, 4, 4), (60, 0, 64, 4), (70, 50, 80, 60), holes=[(61, 1, 62, 2)])
    np.testing.assert_array_equal(covered(path, "Stroma"), expected)
    np.testing.assert_array_equal(covered(path, "Tumor"), LAKE_PIXELS)
    np.testing.assert_array_equal(covered(path, "unclassified"), boxes((0, 50, 10, 60)))
    alone = write_geojson(tmp_path / "b.geojson", multi["geometry"])
    assert AnnotationFile(alone).read().class_counts == {"unclassified": 2}


def test_groups_of_asap_are_classes(tmp_path):
    outlines = [
        ("Tumor", "Polygon", box(0, 0, 20, 20)),
        ("Tumor", "Rectangle", box(40, 0, 50, 20)),
        ("Tumor", "Spline", box(0, 40, 20, 50)),
        ("None", "Polygon", box(60, 40, 70, 50)),
        ("Tumor", "Dot", [[3, 3], [3, 3]]),
    ]
    path = write_asap(tmp_path / "a.xml", outlines)
    assert AnnotationFile(path).read().class_counts == {"Tumor": 3, "unclassified": 1}
    assert AnnotationFile(path).read().skipped == {"dot annotations": 1}
    expected = boxes((0, 0, 20, 20), (40, 0, 50, 20), (0, 40, 20, 50))
    np.testing.assert_array_equal(covered(path, "Tumor"), expected)


def test_imagescope_negative_regions_rectangles_and_ellipses(tmp_path):
    layers = {
        "Tumor": [
            {"points": box(0, 0, 30, 30)},
            {"points": box(10, 10, 40, 20), "NegativeROA": "1"},
            {"points": [[40, 30], [60, 50]], "Type": "1"},
            {"points": [[0, 0], [9, 9]], "Type": "4"},
        ],
        "": [{"points": [[60, 0], [80, 30]], "Type": "2", "Text": "Stroma"}],
    }
    path = write_imagescope(tmp_path / "a.xml", layers, mpp="0.25")
    expected = boxes((0, 0, 30, 30), holes=[(10, 10, 40, 20)]) | boxes((40, 30, 60, 50))
    np.testing.assert_array_equal(covered(path, "Tumor"), expected)
    x, y = centres(80, 60)
    ellipse = ((x - 70) / 10) ** 2 + ((y - 15) / 15) ** 2 < 1
    assert (covered(path, "Stroma") != ellipse).sum() <= 4  # it has 360 corners
    assert AnnotationFile(path).read().skipped == {"arrows, rulers and similar objects": 1}
    np.testing.assert_array_equal(covered(path, "Tumor", canvas=Canvas(mpp=0.2505)), expected)
    with pytest.raises(ImageError, match=r"0\.25 µm per pixel, but .*image\.svs has 0\.5"):
        covered(path, "Tumor", canvas=Canvas(mpp=0.5))


def test_origin_of_coordinates_on_a_slide_with_bounds(tmp_path):
    """QuPath counts from the first pixel of the bounds, ASAP from the corner of the slide."""
    canvas, here = Canvas(offset=(100, 200)), box(10, 10, 50, 40)
    there = [[x + 100, y + 200] for x, y in here]
    expected = boxes((10, 10, 50, 40))
    qupath = write_geojson(tmp_path / "a.geojson", feature("a", here))
    np.testing.assert_array_equal(covered(qupath, canvas=canvas), expected)
    other = write_geojson(tmp_path / "b.geojson", feature("a", there))
    np.testing.assert_array_equal(covered(other, canvas=canvas, coordinates="slide"), expected)
    asap = write_asap(tmp_path / "c.xml", [("a", "Polygon", there)])
    np.testing.assert_array_equal(covered(asap, canvas=canvas), expected)
    with pytest.raises(ImageError, match=r"are outside image\.svs"):
        covered(asap, canvas=Canvas())


def test_outlines_in_micrometres_need_the_pixel_size(tmp_path):
    microns = [[x * 0.25, y * 0.25] for x, y in box(10, 10, 50, 40)]
    path = write_geojson(tmp_path / "a.geojson", feature("a", microns))
    found = covered(path, canvas=Canvas(mpp=0.25), coordinates="um")
    np.testing.assert_array_equal(found, boxes((10, 10, 50, 40)))
    with pytest.raises(ImageError, match="coordinates are in µm, but the pixel size of"):
        covered(path, coordinates="um")
    with pytest.raises(ValueError, match="coordinates must be one of pixels, slide, um"):
        AnnotationFile(path, coordinates="mm")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (collection(), "no outline with an area"),
        (collection(feature("a", *LAKE, objectType="detection")), "area: it contains 1 detections"),
        (collection(feature("a", box(500, 500, 600, 600))), "1 of 1 outlines are outside"),
        (
            collection(feature("a", box(10, 10, 200, 50))),
            "or extend far beyond it; one ranges from",
        ),
        (collection(feature("a", [[1, 1], [2], [3, 3]])), "points without two finite numbers"),
        (
            collection(feature("a", [[1, 1], [float("nan"), 3], [3, 3]])),
            "points without two finite numbers",
        ),
        ({"type": "Topology"}, "unknown geometry type .Topology."),
        ({"name": "a"}, "without GeoJSON features"),
        ([1, 2], "without GeoJSON features"),
        ({"type": "Circle", "geometry": {"type": "Circle"}}, "geometry type 'Circle'"),
    ],
)
def test_invalid_geojson_is_refused(tmp_path, content, message):
    path = write_geojson(tmp_path / "a.geojson", content)
    with pytest.raises(ImageError, match=message):
        covered(path)


def test_invalid_files_are_refused(tmp_path):
    for name, content, output in (
        ("a.geojson", b"{", "invalid GeoJSON"),
        ("b.geojson.gz", b"no gzip", "cannot be decompressed"),
        ("c.xml", b"<Annotations>", "invalid XML"),
        ("d.xml", b"<Slide/>", "unknown root element <Slide>"),
        ("e.txt", b"hello", "supported are .geojson .json .xml .annotations"),
        ("f.geojson", b"", "empty"),
        ("g.xml", b'<ASAP_Annotations><Annotation><Coordinate Order="0" X="1"/></Annotation>'
                  b"</ASAP_Annotations>", "incomplete"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ImageError, match=output):
            covered(tmp_path / name)
    path = write_geojson(tmp_path / "h.geojson", feature("Tumor", *LAKE))
    with pytest.raises(
        ImageError, match=r"no outline has the class 'tumor'; the file has 'Tumor' \(1\)"
    ):
        covered(path, "tumor")


def test_self_intersecting_outline_is_warned_of_and_filled(tmp_path):
    bow = [[10, 10], [50, 40], [50, 10], [10, 40], [10, 10]]
    path = write_geojson(tmp_path / "a.geojson", feature("Tumor", bow))
    (note,) = AnnotationFile(path).read().notes()
    assert "1 self-intersecting outline, such as 'Tumor' at (30, 25)" in note
    found = covered(path)
    assert found[25, 12] and found[25, 48] and not found[12, 30]


def test_changed_file_is_read_again(tmp_path):
    path = write_geojson(tmp_path / "a.geojson", feature("a", box(0, 0, 10, 10)))
    fingerprint = AnnotationFile(path).fingerprint()
    assert covered(path).sum() == 100
    write_geojson(path, feature("a", box(0, 0, 20, 11)))
    assert covered(path).sum() == 220
    assert AnnotationFile(path).fingerprint() != fingerprint
