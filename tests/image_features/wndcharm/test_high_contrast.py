"""Tests of edges, objects and Otsu's threshold."""

from __future__ import annotations

import numpy as np
import pytest
from skimage.filters import threshold_otsu
from skimage.measure import euler_number as known_euler_number

from histodict.image_features.wndcharm.histograms import otsu_threshold
from histodict.image_features.wndcharm.textures import (
    bright_objects,
    dark_objects,
    edge_statistics,
    euler_number,
    object_statistics,
)
from tests.image_features.planes import texture


def squares():
    """Return a square of 4 × 4, one of 2 × 2, and one of 4 × 4 with a hole of one pixel."""
    plane = np.zeros((20, 30))
    plane[2:6, 2:6] = 200
    plane[10:12, 14:16] = 200
    plane[2:6, 24:28] = 200
    plane[3, 25] = 0
    return plane


def test_threshold_equals_scikit_image(rng):
    plane = texture(rng).astype(np.float64)
    assert otsu_threshold(plane) == pytest.approx(threshold_otsu(plane, nbins=1024), abs=255 / 1024)
    assert otsu_threshold(np.full((4, 4), 3.0)) == 3


def test_objects_by_hand():
    entries = bright_objects(squares())
    assert entries["number"] == 3
    assert entries["Euler number"] == 2
    assert (entries["area least"], entries["area greatest"]) == (4, 16)
    assert entries["area median"] == 15
    assert entries["area mean"] == pytest.approx(35 / 3)
    assert [entries[f"area {i}"] for i in (1, 10)] == [1, 2]
    rows, columns = np.nonzero(squares())
    middle = np.array([columns.mean(), rows.mean()])
    assert [entries["middle 1"], entries["middle 2"]] == pytest.approx(middle + 1)
    assert entries["distance least"] == pytest.approx(np.hypot(*(middle - (14.5, 10.5))))
    assert len(entries) == 34


def test_dark_objects_are_the_complement():
    entries = dark_objects(squares())
    assert entries["number"] == 2
    assert entries["area greatest"] == 600 - 16 - 4 - 16
    assert entries["area least"] == 1


def test_objects_are_connected_at_corners():
    assert object_statistics(np.eye(5, dtype=bool))["number"] == 1


def test_no_object_gives_zeros():
    assert set(object_statistics(np.zeros((5, 5), bool)).values()) == {0.0}


def test_inverted_image_swaps_bright_and_dark():
    plane = squares()
    assert bright_objects(plane) == dark_objects(200 - plane)


def test_euler_number_uses_diagonal_connectivity():
    mask = squares() > 0
    assert euler_number(mask) == known_euler_number(mask, connectivity=2) == 2


def test_edges_of_a_step_by_hand():
    plane = np.zeros((20, 40))
    plane[:, 20:] = 100
    entries = edge_statistics(plane)
    assert len(entries) == 28
    # Both sides of the step; outside the border all is 0, so that the bright half has edges there
    # too.
    assert entries["number of edges"] == 2 * 20 + 20 + 2 * 18
    assert entries["steepness median"] == 0
    assert sum(entries[f"direction {i}"] for i in range(1, 9)) == 800
    assert sum(entries[f"steepness {i}"] for i in range(1, 9)) == 800
    assert entries["first two"] == (entries["direction 1"] + entries["direction 2"]) / 800


def test_rotation_by_180_degrees_swaps_opposite_directions(rng):
    plane = np.pad(texture(rng, (60, 60)).astype(np.float64), 2)
    entries, turned = (edge_statistics(p) for p in (plane, plane[::-1, ::-1]))
    for i in range(1, 5):
        assert turned[f"opposite {i}"] == pytest.approx(entries[f"opposite {i}"], abs=0.05)
    assert turned["steepness variance"] == pytest.approx(entries["steepness variance"])


def test_black_image_has_no_edges():
    entries = edge_statistics(np.zeros((9, 9)))
    assert entries["number of edges"] == entries["direction mean"] == 0
