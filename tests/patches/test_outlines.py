"""Tests of connected regions and their borders, on small examples, all 3 × 3 grids and random
grids."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from histodict.patches.region_borders import RegionBorders, label_regions


def mask_of(*lines):
    return np.array([[character != "." for character in line] for line in lines])


def test_patches_that_touch_at_a_corner_are_separate_regions():
    places, sizes = label_regions(mask_of("##..", "..#.", "....", "#..#"))
    assert sorted(sizes) == [1, 1, 3]
    assert places[0, 0] == places[0, 1] == places[1, 2] != places[3, 0]
    assert label_regions(np.zeros((3, 3), bool))[1].size == 0


def area(ring):
    x, y = np.asarray(ring, float).T
    return (x[:-1] * y[1:] - x[1:] * y[:-1]).sum() / 2


def inside(ring, x, y):
    """Whether a point lies in a closed ring, by the number of crossings to its right."""
    crossings = 0
    for (x0, y0), (x1, y1) in itertools.pairwise(ring):
        if x0 == x1 and x0 > x and min(y0, y1) < y < max(y0, y1):
            crossings += 1
    return crossings % 2 == 1


def covered(polygons, shape):
    """Return the number of polygons that contain each cell's centre, outside their holes."""
    counts = np.zeros(shape, int)
    for row, column in np.ndindex(shape):
        centre = column + 0.5, row + 0.5
        counts[row, column] = sum(
            inside(outer, *centre) and not any(inside(hole, *centre) for hole in holes)
            for outer, *holes in polygons
        )
    return counts


def _threes(corners):
    return zip(corners[:-2], corners[1:-1], corners[2:], strict=True)


def check(cells):
    """Require that each region covers its own cells once and nothing else, with valid rings."""
    regions, sizes = label_regions(cells)
    borders = RegionBorders(regions)
    for number, size in enumerate(sizes, start=1):
        polygons = [[ring.tolist() for ring in each] for each in borders.polygons(number)]
        np.testing.assert_array_equal(covered(polygons, cells.shape), regions == number)
        assert sum(area(ring) for each in polygons for ring in each) == size
        for outer, *holes in polygons:
            assert area(outer) > 0 and all(area(hole) < 0 for hole in holes)
            for ring in (outer, *holes):
                corners = list(map(tuple, ring[:-1]))
                assert ring[0] == ring[-1] and len(set(corners)) == len(corners)
                on = [*ring, ring[1]]
                assert all((a[0] == b[0]) != (b[0] == c[0]) for a, b, c in _threes(on))
            shared = [set(map(tuple, ring)) for ring in (outer, *holes)]
            assert all(len(a & b) <= 1 for a, b in itertools.combinations(shared, 2))


def test_every_grid_of_three_by_three():
    for bits in itertools.product((False, True), repeat=9):
        check(np.array(bits).reshape(3, 3))


@pytest.mark.parametrize("seed", range(8))
def test_random_grids(seed):
    rng = np.random.default_rng(seed)
    check(rng.random(rng.integers(1, 14, 2)) < rng.uniform(0.3, 0.8))


def test_empty_grid_has_no_border():
    for shape in ((0, 0), (3, 0), (2, 2)):
        assert RegionBorders(np.zeros(shape, np.int32)).polygons(0) == []


def test_square_with_a_hole_has_four_corners_each():
    regions, _ = label_regions(mask_of("###", "#.#", "###"))
    ((outer, hole),) = RegionBorders(regions).polygons(1)
    assert {*map(tuple, outer.tolist())} == {(0, 0), (0, 3), (3, 0), (3, 3)}
    assert {*map(tuple, hole.tolist())} == {(1, 1), (1, 2), (2, 1), (2, 2)}


def test_hole_that_touches_the_border_at_a_corner_is_a_separate_ring():
    regions, _ = label_regions(mask_of("####", "#.##", "##.#", "###."))
    ((outer, *holes),) = RegionBorders(regions).polygons(1)
    assert len(holes) == 2 and [area(hole) for hole in holes] == [-1, -1]
    assert len(outer) - 1 == 6
