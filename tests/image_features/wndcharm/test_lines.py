"""Tests of comb moments and Radon sums, both over lines through the image."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.image_features.wndcharm.histograms import comb_moments
from histodict.image_features.wndcharm.polynomials import line_sums, radon_features
from tests.image_features.planes import TURNS, texture


def entries_of(entries, name):
    return [entries[f"{name} {i}"] for i in (1, 2, 3)]


def naive_sums(plane, degrees, reach):
    """Sum four points per pixel, each distributed over two lines."""
    (height, width), sums = plane.shape, np.zeros(2 * reach + 2)
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    for row, column in np.ndindex(plane.shape):
        for up, right in [(-0.25, -0.25), (-0.25, 0.25), (0.25, -0.25), (0.25, 0.25)]:
            x = column - (width - 1) // 2 + right
            y = height - 1 - row - (height - 1) // 2 + up
            at = x * cos + y * sin + reach
            below = int(at)
            sums[below] += plane[row, column] / 4 * (below + 1 - at)
            sums[below + 1] += plane[row, column] / 4 * (at - below)
    return sums[:-1]


@pytest.mark.parametrize("shape", [(1, 1), (7, 12), (12, 8), (9, 9)])
def test_sums_equal_a_naive_loop(rng, shape):
    plane = rng.standard_normal(shape)
    for direction, sums in line_sums(plane).items():
        expected = naive_sums(plane, int(direction[:-1]), len(sums) // 2)
        np.testing.assert_allclose(sums, expected, atol=1e-9)
        assert sums.sum() == pytest.approx(plane.sum())


def test_radon_detects_the_direction_of_stripes():
    stripes = np.tile(np.repeat([0.0, 200], 10), (60, 3))
    entries = radon_features(stripes)
    assert len(entries) == 12
    # Across the stripes half of the lines are bright; along them all lines that meet the image are.
    assert entries_of(entries, "0°")[2] == pytest.approx(30, abs=3)
    assert entries_of(entries, "90°")[1] == 0
    assert entries_of(entries, "90°")[2] == 60


def test_combs_by_hand():
    # Ten dark columns, ten grey, twenty bright; all rows are equal.
    plane = np.tile(np.repeat([0.0, 100, 200], [10, 10, 20]), (40, 1))
    entries = comb_moments(plane)
    assert len(entries) == 48
    assert {sum(entries_of(entries, f"{d} mean")) for d in ("0°", "45°", "90°", "135°")} == {20}
    # Half of the lines miss the image and count as 0, as do those through the dark columns.
    assert entries_of(entries, "90° mean") == [10 + 2, 3, 5]
    assert entries_of(entries, "90° deviation") == [20, 0, 0]
    assert entries_of(entries, "0° mean") == [10, 0, 10]


def test_combs_rotate_with_the_image(rng):
    plane = texture(rng, (60, 60)).astype(np.float64)
    entries, turned = comb_moments(plane), comb_moments(plane.T)
    for moment in ("mean", "deviation", "skewness", "kurtosis"):
        for was, now in [("0°", "90°"), ("90°", "0°")]:
            assert entries_of(turned, f"{now} {moment}") == entries_of(entries, f"{was} {moment}")


def test_combs_do_not_depend_on_the_scale_of_brightness(rng):
    plane = texture(rng).astype(np.float64)
    assert comb_moments(plane * 2) == comb_moments(plane)


def test_mirrored_images_swap_the_diagonals(rng):
    plane = texture(rng, (50, 50)).astype(np.float64)
    entries, mirrored = comb_moments(plane), comb_moments(TURNS["mirrored"](plane))
    for moment in ("mean", "kurtosis"):
        assert entries_of(mirrored, f"45° {moment}") == entries_of(entries, f"135° {moment}")
