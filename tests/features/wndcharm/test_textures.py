"""Haralick, Tamura, fractal and Gabor features, and the gradient."""

from __future__ import annotations

import mahotas
import numpy as np
import pytest

from histodict.features.wndcharm.fractal import fractal_features
from histodict.features.wndcharm.gabor import gabor_textures
from histodict.features.wndcharm.gradients import gradient, steepness
from histodict.features.wndcharm.haralick import haralick_textures, maximal_correlation
from histodict.features.wndcharm.tamura import (
    coarsest_scales,
    contrast,
    directionality,
    tamura_textures,
)
from tests.features.planes import TURNS, texture

FAMILIES = {
    "haralick": haralick_textures,
    "tamura": tamura_textures,
    "fractal": fractal_features,
    "gabor": gabor_textures,
}


def stripes(wavelength, side=96):
    wave = np.sin(2 * np.pi * np.arange(side) / wavelength)
    return np.tile(wave, (side, 1)).astype(np.float32)


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("features", FAMILIES.values(), ids=FAMILIES)
def test_turning_the_image_changes_nothing(rng, features, turn):
    plane = texture(rng, (80, 100))
    one, other = (list(features(p).values()) for p in (plane, turn(plane)))
    np.testing.assert_allclose(other, one, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["haralick", "fractal", "gabor"])
def test_brightness_and_contrast_change_nothing(rng, name):
    plane = texture(rng)
    one, other = (list(FAMILIES[name](p).values()) for p in (plane, plane * 2 + 16))
    np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-6)


# --- gradient -----------------------------------------------------------------------------------


def test_gradient_of_a_ramp_is_its_slope():
    rows, columns = np.indices((9, 12), dtype=np.float32)
    down, right = gradient(3 * rows - 4 * columns)
    np.testing.assert_allclose(down[1:-1], 3, rtol=1e-5)
    np.testing.assert_allclose(right[:, 1:-1], -4, rtol=1e-5)
    np.testing.assert_allclose(steepness(3 * rows - 4 * columns)[1:-1, 1:-1], 5, rtol=1e-5)


# --- Haralick -----------------------------------------------------------------------------------


def test_haralick_of_a_chessboard_by_hand():
    board = (np.indices((64, 64)).sum(axis=0) % 2).astype(np.float32)
    entries = haralick_textures(board)
    # Next to each other levels always differ by 63, diagonally never: contrasts 63², 0, 63², 0.
    assert entries["contrast mean"] == pytest.approx(63**2 / 2)
    assert entries["contrast range"] == pytest.approx(63**2)
    assert entries["correlation range"] == pytest.approx(2)
    assert entries["maximal correlation mean"] == pytest.approx(1)
    assert len(entries) == 28


def test_haralick_of_a_blank_image_by_hand():
    entries = haralick_textures(np.full((64, 64), 3, np.float32))
    assert entries["angular second moment mean"] == 1
    assert entries["entropy mean"] == entries["contrast mean"] == 0


def test_haralick_is_mahotas(rng):
    levels = rng.integers(0, 64, (50, 50)).astype(np.uint8)
    levels[0, :2] = 0, 63
    known = mahotas.features.haralick(levels, return_mean_ptp=True, use_x_minus_y_variance=True)
    ours = np.array(list(haralick_textures(levels.astype(np.float32)).values())).reshape(2, 14)
    np.testing.assert_allclose(ours[:, :13].ravel(), known, rtol=1e-9, atol=1e-12)


def test_maximal_correlation_is_0_of_independent_and_1_of_equal_neighbours(rng):
    p = rng.random(6)
    assert maximal_correlation(np.outer(p, p)) == pytest.approx(0, abs=1e-7)
    assert maximal_correlation(np.diag(p)) == pytest.approx(1)
    # Of two levels it is the plain correlation: E = ad − bc over the roots of the margins.
    assert maximal_correlation(np.array([[3, 1], [1, 5]])) == pytest.approx((15 - 1) / (4 * 6))
    assert maximal_correlation(np.array([[4, 0], [0, 0]])) == 0


# --- Tamura -------------------------------------------------------------------------------------


def naive_scale(plane, row, column, n_scales):
    def mean(top, left, side):
        return plane[top : top + side, left : left + side].mean(dtype=float)

    best = []
    for k in range(1, n_scales + 1):
        s, half = 2**k, 2 ** (k - 1)
        across = mean(row - half, column, s) - mean(row - half, column - s, s)
        down = mean(row, column - half, s) - mean(row - s, column - half, s)
        best.append(max(abs(across), abs(down)))
    return int(np.argmax(best))


def test_coarsest_scales_are_those_of_a_naive_loop(rng):
    plane = texture(rng, (40, 37))
    scales, n_scales = coarsest_scales(plane)
    margin = 2**n_scales
    assert (n_scales, scales.shape) == (4, (40 - 2 * margin + 1, 37 - 2 * margin + 1))
    for row, column in np.ndindex(scales.shape):
        expected = naive_scale(plane, row + margin, column + margin, n_scales)
        assert scales[row, column] == expected


def test_coarser_textures_are_coarser(rng):
    blurs = [0.3, 2, 6]
    values = [tamura_textures(texture(rng, (128, 128), b))["coarseness"] for b in blurs]
    assert values[0] < values[1] < values[2]


def test_contrast_by_hand():
    halves = np.repeat([[0, 10]], 4, axis=0).astype(np.float32)  # deviation 5, kurtosis 1
    assert contrast(halves) == pytest.approx(5)
    assert contrast(np.full((4, 4), 9, np.float32)) == 0


def test_directionality_is_1_for_stripes_and_near_0_for_rings():
    steps = np.arange(128) - 63.5
    rings = np.cos(np.hypot(steps[:, None], steps) / 3).astype(np.float32)
    assert directionality(stripes(8)) == pytest.approx(1)
    assert directionality(stripes(8).T) == pytest.approx(1)
    assert abs(directionality(rings)) < 0.2
    assert directionality(np.zeros((9, 9), np.float32)) == 0


# --- fractal and Gabor --------------------------------------------------------------------------


def test_differences_on_a_ramp_grow_with_the_distance():
    plane = np.add.outer(np.arange(64), np.arange(64)).astype(np.float32)
    values = np.array(list(fractal_features(plane).values()))
    np.testing.assert_allclose(values, np.arange(1, 21) / plane.std(), rtol=1e-4)


def test_differences_on_noise_do_not_grow(rng):
    values = np.array(list(fractal_features(rng.standard_normal((200, 200)).astype("f4")).values()))
    np.testing.assert_allclose(values, 2 / np.sqrt(np.pi), rtol=0.02)


@pytest.mark.parametrize("wavelength", [3, 4, 6, 8, 12, 16, 24])
def test_gabor_answers_most_to_its_own_wavelength(wavelength):
    entries = gabor_textures(stripes(wavelength))
    assert max(entries, key=entries.get) == f"wavelength {wavelength}"
    # Half of a sine of deviation 1: one of its two frequencies passes.
    assert entries[f"wavelength {wavelength}"] == pytest.approx(np.sqrt(2) / 2, rel=0.02)
