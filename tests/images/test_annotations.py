"""Outlines drawn elsewhere: what they cover, pixel by pixel, and what is said of those that do not
fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from histodict.images.annotations.crossings import first_crossing
from histodict.images.annotations.outlines import Outline
from histodict.images.annotations.runs import PixelRuns
from histodict.images.masks import RegionMask


@dataclass
class Canvas:
    """As much of an image as outlines need."""

    size: tuple[int, int] = (80, 60)
    mpp: float | None = None
    offset: tuple[int, int] = (0, 0)
    path: Path = Path("image.svs")


def winds_around(ring: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Whether a ring goes around points: the angles under which its sides are seen, added up."""
    away = np.asarray(ring, float) - np.stack([x, y], axis=-1)[..., None, :]
    angles = np.arctan2(away[..., 1], away[..., 0])
    turns = np.diff(np.concatenate([angles, angles[..., :1]], axis=-1), axis=-1)
    turns = (turns + np.pi) % (2 * np.pi) - np.pi
    return np.abs(turns.sum(axis=-1)) > np.pi


def centres(width: int, height: int) -> tuple[np.ndarray, np.ndarray]:
    return np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)


def pixels_of(runs: PixelRuns) -> np.ndarray:
    """Pixel by pixel."""
    width, height = runs.size
    x, y = np.meshgrid(np.arange(width, dtype=float), np.arange(height, dtype=float))
    return runs.share(x, y, 1) == 1


def square(left: float, top: float, right: float, bottom: float) -> list[list[float]]:
    return [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]


points = st.tuples(st.floats(-5, 35), st.floats(-5, 25))


@settings(max_examples=60, deadline=None)
@given(st.lists(points, min_size=3, max_size=8))
def test_a_pixel_belongs_to_a_ring_that_winds_around_its_centre(corners):
    """Any ring at all, also one that crosses itself or leaves the image."""
    ring = np.array(corners) + 0.0137
    found = pixels_of(PixelRuns.of([Outline("a", (ring,))], (30, 20)))
    x, y = centres(30, 20)
    clear = np.array([_distances(ring, *p).min() > 1e-9 for p in zip(x.flat, y.flat, strict=True)])
    differs = (found != winds_around(ring, x, y)).ravel()
    assert not (differs & clear).any()


def _distances(ring: np.ndarray, x: float, y: float) -> np.ndarray:
    """From a point to the sides."""
    a, b = ring, np.roll(ring, -1, axis=0)
    along, away = b - a, np.array([x, y]) - a
    length = np.maximum((along**2).sum(axis=1), 1e-300)
    share = np.clip((along * away).sum(axis=1) / length, 0, 1)
    return np.hypot(*(away - share[:, None] * along).T)


def test_polygons_with_holes_and_islands_are_their_pixels():
    """The island in the hole, and another outline over the hole, stay."""
    lake = Outline(
        "a", tuple(np.array(square(*box))[:4] for box in ((5, 5, 60, 50), (20, 15, 50, 40)))
    )
    island = Outline("a", (np.array(square(30, 20, 40, 30))[:4],))
    expected = np.zeros((60, 80), bool)
    expected[5:50, 5:60] = True
    expected[15:40, 20:50] = False
    expected[20:30, 30:40] = True
    for outlines in ([lake, island], [island, lake], [lake, island, island]):
        runs = PixelRuns.of(outlines, (80, 60))
        np.testing.assert_array_equal(pixels_of(runs), expected)
        assert runs.n_pixels == expected.sum()
    cut = Outline("a", (np.array(square(0, 0, 10, 60))[:4],), cuts=True)
    expected[:, :10] = False
    np.testing.assert_array_equal(pixels_of(PixelRuns.of([lake, cut, island], (80, 60))), expected)


def test_shares_are_those_of_a_mask_of_the_same_pixels(rng):
    ring = 30 + 25 * np.stack([np.cos(np.arange(40) / 6.3), 0.8 * np.sin(np.arange(40) / 6.3)], 1)
    runs = PixelRuns.of([Outline("a", (ring,))], (80, 60))
    region = winds_around(ring, *centres(80, 60))
    np.testing.assert_array_equal(pixels_of(runs), region)
    mask = RegionMask(region, (80, 60))
    for side in (1, 7, 16.3, 90):
        x, y = rng.uniform(-3, 79, (2, 5, 40))
        np.testing.assert_array_equal(runs.share(x, y, side), mask.share(x, y, side))
    assert runs.any() and not runs.all()
    assert PixelRuns.of([Outline("a", (np.array(square(-9, -9, 99, 99))[:4],))], (80, 60)).all()
    assert not PixelRuns.of([Outline("a", (np.array(square(2.6, 2, 3.4, 9))[:4],))], (80, 60)).any()


@pytest.mark.parametrize(
    ("ring", "crossing"),
    [
        (square(0, 0, 10, 10)[:4], None),
        ([[0, 0], [10, 10], [10, 0], [0, 10]], (5, 5)),
        ([[0, 0], [10, 0], [5, 0], [5, 5]], None),  # goes back over itself, and crosses nothing
        ([[0, 0], [20, 0], [20, 10], [4, 10], [4, -5], [0, -5]], (4, 0)),
    ],
)
def test_where_a_ring_crosses_itself(ring, crossing):
    assert first_crossing(np.array(ring, float)) == crossing
