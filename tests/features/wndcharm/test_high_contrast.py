"""Edges and objects."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.features.wndcharm.edges import edge_statistics
from histodict.features.wndcharm.objects import (
    bright_objects,
    dark_objects,
    object_statistics,
)
from tests.features.planes import texture


def squares():
    """A square of 4 × 4, one of 2 × 2, and one of 4 × 4 with a hole of one pixel."""
    plane = np.zeros((20, 30), np.float32)
    plane[2:6, 2:6] = 200
    plane[10:12, 14:16] = 200
    plane[2:6, 24:28] = 200
    plane[3, 25] = 0
    return plane


def test_objects_by_hand():
    entries = bright_objects(squares())
    assert entries["number"] == 3
    assert entries["Euler number"] == 2
    assert (entries["area least"], entries["area greatest"]) == (4, 16)
    assert entries["area median"] == 15
    assert entries["area mean"] == pytest.approx(35 / 3)
    assert [entries[f"area {i}"] for i in (1, 10)] == pytest.approx([1 / 3, 2 / 3])
    rows, columns = np.nonzero(squares())
    middle = np.array([rows.mean(), columns.mean()])
    assert [entries["middle 1"], entries["middle 2"]] == pytest.approx(middle / (20, 30))
    assert entries["distance least"] == pytest.approx(np.hypot(*(middle - (10.5, 14.5))))
    assert len(entries) == 34


def test_dark_objects_are_the_rest():
    entries = dark_objects(squares())
    assert entries["number"] == 2
    assert entries["area greatest"] == 600 - 16 - 4 - 16
    assert entries["area least"] == 1


def test_corners_join():
    assert object_statistics(np.eye(5, dtype=bool))["number"] == 1


def test_no_object_gives_zeros():
    assert set(object_statistics(np.zeros((5, 5), bool)).values()) == {0.0}


def test_an_inverted_image_swaps_bright_and_dark(rng):
    plane = squares()
    assert bright_objects(plane) == dark_objects(200 - plane)


def test_edges_of_a_step_by_hand():
    plane = np.zeros((20, 40), np.float32)
    plane[:, 20:] = 100
    entries = edge_statistics(plane)
    assert entries["share of edges"] == pytest.approx(2 / 40)
    assert entries["steepness mean"] == pytest.approx(50 * 2 / 40)
    assert [entries["steepness 1"], entries["steepness 8"]] == pytest.approx([0.95, 0.05])
    assert entries["direction 1"] == entries["two fullest"] == entries["opposite 1"] == 1
    assert len(entries) == 28


def test_the_direction_turns_with_the_image(rng):
    plane = texture(rng, (60, 60))
    entries, turned = (edge_statistics(p) for p in (plane, np.rot90(plane, -1).copy()))
    for i in range(8):
        # A quarter turn clockwise: what rose to the right (direction 1) now rises down (3).
        assert turned[f"direction {(i + 2) % 8 + 1}"] == pytest.approx(
            entries[f"direction {i + 1}"], abs=0.02
        )
    assert turned["steepness variance"] == pytest.approx(entries["steepness variance"], rel=1e-5)


def test_a_blank_image_has_no_edges():
    entries = edge_statistics(np.full((9, 9), 5, np.float32))
    assert entries["share of edges"] == entries["direction mean"] == entries["two fullest"] == 0
