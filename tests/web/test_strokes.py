"""Tests of painted strokes against known areas and shapes."""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("starlette", reason='the web app is not installed: pip install ".[web]"')

from shapely import Polygon

from histodict.annotations.outlines import AnnotationPolygon, RunLengthMask, find_self_intersections
from histodict.web.annotation.store import buffer_path, compute_area, polygonize, subtract

SIZE = (1000, 800)


def square(left, top, side):
    corners = [[left, top], [left + side, top], [left + side, top + side], [left, top + side]]
    return np.array(corners, float)


def covered(polygons):
    """Return covered level-0 pixels, counted as in training."""
    return RunLengthMask.from_outlines(
        [AnnotationPolygon("", tuple(rings)) for rings in polygons], SIZE
    ).n_pixels


@pytest.mark.parametrize("radius", [3, 20, 150])
def test_single_point_is_a_disc(radius):
    disc = buffer_path(np.array([[500.0, 400.0]]), radius, SIZE)
    assert len(disc) == 1 and len(disc[0]) == 1
    assert compute_area(disc) == pytest.approx(
        math.pi * radius**2, rel=0.15 if radius < 10 else 0.02
    )
    away = np.hypot(*(disc[0][0] - [500, 400]).T)
    assert away.max() < 1.1 * radius + 1 and away.min() > 0.85 * radius - 1


def test_stroke_is_within_its_radius_for_any_sampling():
    path = np.array([[200.0, 200.0], [600.0, 500.0]])
    often = np.linspace(path[0], path[1], 50)
    expected = 500 * 80 + math.pi * 40**2
    assert compute_area(buffer_path(path, 40, SIZE)) == pytest.approx(expected, rel=0.01)
    assert compute_area(buffer_path(often, 40, SIZE)) == pytest.approx(
        compute_area(buffer_path(path, 40, SIZE)), rel=1e-3
    )


def test_painted_ring_has_a_hole():
    angles = np.linspace(0, 2 * np.pi, 80)
    path = np.stack([500 + 100 * np.cos(angles), 400 + 100 * np.sin(angles)], axis=1)
    ring = buffer_path(path, 10, SIZE)
    assert [len(rings) for rings in ring] == [2]
    assert compute_area(ring) == pytest.approx(math.pi * (110**2 - 90**2), rel=0.02)
    assert covered(ring) == pytest.approx(compute_area(ring), rel=0.01)


def test_area_beyond_the_image_is_clipped():
    edge = buffer_path(np.array([[0.0, 400.0]]), 50, SIZE)
    assert compute_area(edge) == pytest.approx(math.pi * 50**2 / 2, rel=0.03)
    assert min(ring.min() for rings in edge for ring in rings) >= 0
    assert buffer_path(np.array([[-200.0, 400.0]]), 50, SIZE) == []


def test_painted_borders_never_intersect_themselves():
    rng = np.random.default_rng(0)
    for _ in range(20):
        path = 100 + 500 * rng.random((12, 2))
        for rings in buffer_path(path, rng.integers(3, 60), SIZE):
            assert all(find_self_intersections(ring) == [] for ring in rings)


def test_eraser_removes_exactly_the_covered_area():
    box = [[square(100, 100, 200)]]
    cut = subtract(box, [[square(150, 0, 150)]])
    assert compute_area(cut) == pytest.approx(200 * 200 - 150 * 50, rel=0.01)
    middle = subtract(box, [[square(150, 150, 100)]])
    assert [len(rings) for rings in middle] == [2]
    halves = subtract(box, buffer_path(np.array([[200.0, 50.0], [200.0, 350.0]]), 20, SIZE))
    assert len(halves) == 2 and compute_area(halves) == pytest.approx(200 * 160, rel=0.02)


def test_untouched_shapes_are_unchanged():
    box = [[square(100, 100, 200)]]
    assert subtract(box, [[square(500, 500, 100)]]) is None
    assert subtract(box, [[square(301, 100, 100)]]) is None
    assert subtract(box, [[square(0, 0, 900)]]) == []


def test_wide_brush_removes_small_shapes_and_keeps_far_ones():
    """Small shapes must not be missed on the coarse canvas of a wide brush."""
    size = (8000, 8000)
    wide = buffer_path(np.array([[500.0, 500.0]]), 500, size)
    assert subtract([[square(491, 491, 18)]], wide) == []
    island, strip = [square(4000, 4000, 18)], [square(6000, 6000, 20)]
    left = subtract([[square(300, 300, 100)], island, strip], wide)
    assert len(left) == 2 and left[0] is island and left[1] is strip


def test_bow_tie_is_filled():
    tie = np.array([[100, 100], [300, 300], [300, 100], [100, 300]], float)
    found = polygonize([tie], SIZE)
    assert compute_area(found) == pytest.approx(2 * 200 * 100 / 2, rel=0.02)
    assert all(find_self_intersections(ring) == [] for rings in found for ring in rings)


@pytest.mark.parametrize(
    "corners", [[[1, 1]], [[1, 1], [5, 5]], [[1, 1], [1, 1], [1, 1]], [[0, 0], [5, 5], [9, 9]]]
)
def test_shape_without_area_is_dropped(corners):
    assert polygonize([np.array(corners, float)], SIZE) == []


def test_polygon_is_stored_unchanged():
    triangle = np.array([[10, 10], [200, 30], [60, 190]], float)
    ((found,),) = polygonize([triangle], SIZE)
    assert np.array_equal(found, triangle)
    ((stored, hole),) = polygonize([square(0, 0, 100), square(20, 20, 10)], SIZE)
    assert len(stored) == len(hole) == 4 and compute_area([[stored, hole]]) == 9900


@pytest.mark.parametrize(
    "corners",
    [
        [[10, 10], [90, 10], [90, 90], [50, 10], [10, 90]],  # touches its own side
        [[10, 10], [90, 10], [90, 90], [90, 40], [90, 95], [10, 90]],  # retraces itself
        [[10, 10], [90, 10], [90, 90], [10, 90], [10, 10], [90, 10], [90, 90], [10, 90]],  # twice
        [[-30, 10], [90, 10], [90, 90], [-20, 70]],  # extends beyond the image
    ],
)
def test_invalid_polygons_become_valid_with_the_same_pixels(corners):
    ring = np.array(corners, float)
    found = polygonize([ring], SIZE)
    assert covered(found) == covered([[ring]])
    assert all(Polygon(outer, holes).is_valid for outer, *holes in found)


def test_hole_beyond_its_polygon_removes_the_covered_area():
    found = polygonize([square(100, 100, 100), square(150, 150, 100)], SIZE)
    assert [len(rings) for rings in found] == [1] and compute_area(found) == 7500


def test_line_with_too_many_self_intersections_is_refused(rng):
    with pytest.raises(ValueError, match="crosses itself too often"):
        polygonize([rng.uniform(0, 800, (1000, 2))], SIZE)


def test_scribble_has_few_corners():
    angles = np.linspace(0, 200, 2000)
    path = np.stack([500 + 300 * np.sin(angles), 100 + 3 * angles], axis=1)
    found = buffer_path(path, 10, SIZE)
    assert sum(len(ring) for rings in found for ring in rings) < 4000
    assert covered(found) == pytest.approx(compute_area(found), rel=0.01)
