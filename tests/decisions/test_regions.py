from __future__ import annotations

import itertools

import numpy as np
import pytest

from histodict.decisions.regions import Findings, SizeCurve, compare, label_regions, polygons


def drawn(*lines):
    return np.array([[character != "." for character in line] for line in lines])


def test_patches_that_touch_by_a_corner_are_one_region():
    places, sizes = label_regions(drawn("##..", "..#.", "....", "#..#"))
    assert sorted(sizes) == [1, 1, 3]
    assert places[0, 0] == places[0, 1] == places[1, 2] != places[3, 0]
    assert label_regions(np.zeros((3, 3), bool))[1].size == 0


def test_the_outside_of_a_mask_counts_as_a_negative_image():
    positive = drawn("##....", "##....", "....##", "......")
    truth = drawn("#.....", "......", "......", "......")
    everywhere = np.ones_like(truth)
    assert compare(positive, truth, everywhere) == Findings(4, 2)
    assert compare(positive, ~truth, everywhere) == Findings(4, 0)
    assert compare(positive, np.zeros_like(truth), everywhere) == Findings(None, 4)
    assert compare(positive, everywhere, everywhere) == Findings(4, None)
    assert compare(np.zeros_like(truth), truth, truth) == Findings(0, None)


def test_m_is_where_the_curve_comes_closest_to_the_origin():
    findings = [Findings(found, alarm) for found, alarm in ((9, 2), (12, 3), (5, 0), (4, 6))]
    curve = SizeCurve.of(findings)
    distances = []
    for m in range(1, 21):
        miss = np.mean([f.found < m for f in findings])
        alarm = np.mean([f.alarm >= m for f in findings])
        assert (curve.miss[m - 1], curve.alarm[m - 1]) == (miss, alarm)
        distances.append(np.hypot(miss, alarm))
    assert curve.least_patches == int(np.argmin(distances)) + 1 == 4
    assert (np.diff(curve.miss) >= 0).all() and (np.diff(curve.alarm) <= 0).all()


def test_without_positives_or_negatives_m_cannot_be_chosen():
    with pytest.raises(ValueError, match="without the class"):
        SizeCurve.of([Findings(3, None)])
    with pytest.raises(ValueError, match="with the class"):
        SizeCurve.of([Findings(None, 3)])


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
