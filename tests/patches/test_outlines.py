"""Connected cells and their borders, on small grids drawn by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from histodict.patches.outlines import label_regions, polygons


def drawn(*lines):
    return np.array([[character != "." for character in line] for line in lines])


def test_patches_that_touch_by_a_corner_are_one_region():
    places, sizes = label_regions(drawn("##..", "..#.", "....", "#..#"))
    assert sorted(sizes) == [1, 1, 3]
    assert places[0, 0] == places[0, 1] == places[1, 2] != places[3, 0]
    assert label_regions(np.zeros((3, 3), bool))[1].size == 0


def inside(ring, x, y):
    """Whether a point lies in a closed ring, by the number of its sides to the right."""
    crossings = 0
    for (x0, y0), (x1, y1) in itertools.pairwise(ring):
        if x0 == x1 and x0 > x and min(y0, y1) < y < max(y0, y1):
            crossings += 1
    return crossings % 2 == 1


def area(ring):
    return sum(x0 * y1 - x1 * y0 for (x0, y0), (x1, y1) in itertools.pairwise(ring)) / 2


@pytest.mark.parametrize("seed", range(8))
def test_polygons_cover_their_cells_and_nothing_else(seed):
    cells = np.random.default_rng(seed).random((9, 11)) < 0.6
    found = polygons(cells)
    for row, column in np.ndindex(cells.shape):
        centre = column + 0.5, row + 0.5
        covered = [
            inside(outer, *centre) and not any(inside(hole, *centre) for hole in holes)
            for outer, *holes in found
        ]
        assert sum(covered) == cells[row, column]
    for outer, *holes in found:
        assert area(outer) > 0
        for ring in (outer, *holes):
            assert ring[0] == ring[-1]
            assert len(set(ring[:-1])) == len(ring) - 1  # never through the same corner twice
        assert all(area(hole) < 0 for hole in holes)


def test_a_square_has_four_corners_and_its_hole_too():
    cells = drawn("###", "#.#", "###")
    ((outer, hole),) = polygons(cells)
    assert sorted(set(outer)) == [(0, 0), (0, 3), (3, 0), (3, 3)]
    assert sorted(set(hole)) == [(1, 1), (1, 2), (2, 1), (2, 2)]
