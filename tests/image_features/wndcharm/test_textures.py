"""Tests of Haralick, Tamura, fractal and Gabor features, the gradient and the edge transform."""

from __future__ import annotations

import mahotas
import numpy as np
import pytest

from histodict.image_features.wndcharm.textures import (
    coarsest_scales,
    contrast,
    directionality,
    edge_transform,
    fractal_features,
    gabor_textures,
    gradient,
    haralick_textures,
    maximal_correlation,
    tamura_textures,
)
from tests.image_features.planes import TURNS, texture


def stripes(wavelength, side=96):
    wave = np.sin(2 * np.pi * np.arange(side) / wavelength)
    return np.tile(wave, (side, 1)) + 1


@pytest.mark.parametrize("symmetry", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("features", [haralick_textures, fractal_features])
def test_rotations_and_mirror_images_change_nothing(rng, features, symmetry):
    plane = texture(rng, (80, 100)).astype(np.float64)
    one, other = (list(features(p).values()) for p in (plane, symmetry(plane)))
    np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)


def test_brightness_and_contrast_do_not_change_haralick(rng):
    plane = texture(rng).astype(np.float64)
    one, other = (list(haralick_textures(p).values()) for p in (plane, plane * 2 + 16))
    np.testing.assert_allclose(other, one, rtol=1e-9)


# --- gradient -----------------------------------------------------------------------------------


def test_gradient_of_a_ramp_is_its_slope():
    rows, columns = np.indices((9, 12), dtype=np.float64)
    up, left = gradient(3 * rows - 4 * columns)
    np.testing.assert_allclose(up[1:-1, 1:-1], -3 * 6)
    np.testing.assert_allclose(left[1:-1, 1:-1], 4 * 6)


def test_edge_transform_is_the_largest_difference_of_four_neighbours():
    plane = np.array([[0.0, 1, 9, 9], [0, 5, 2, 3], [4, 4, 4, 4]])
    # Corners lack one neighbour in both directions.
    assert edge_transform(plane).tolist() == [[0, 8, 8, 0], [4, 5, 7, 6], [0, 0, 0, 0]]


# --- Haralick -----------------------------------------------------------------------------------


def test_haralick_of_two_levels_by_hand():
    board = 1.0 + np.indices((64, 64)).sum(axis=0) % 2
    board[0, 0] = 0  # the lowest level is ignored
    entries = haralick_textures(board)
    # Adjacent levels differ by one, diagonal ones never.
    assert entries["contrast mean"] == pytest.approx(1 / 2)
    assert entries["contrast range"] == 1
    assert entries["correlation range"] == pytest.approx(2)
    assert entries["maximal correlation mean"] == pytest.approx(1)
    assert len(entries) == 28


def test_haralick_of_a_flat_image_is_finite():
    assert np.isfinite(list(haralick_textures(np.full((64, 64), 3.0)).values())).all()


def test_haralick_equals_mahotas(rng):
    levels = rng.integers(0, 256, (90, 90)).astype(np.uint8)
    levels[0, :2] = 0, 255
    assert len(np.unique(levels)) == 256
    expected = mahotas.features.haralick(levels, ignore_zeros=True, use_x_minus_y_variance=True)
    entries = haralick_textures(levels.astype(np.float64))
    for name, column in [
        ("angular second moment", 0),
        ("contrast", 1),
        ("correlation", 2),
        ("variance", 3),
        ("inverse difference moment", 4),
        ("sum average", 5),
        ("sum entropy", 7),
        ("entropy", 8),
        ("difference variance", 9),
        ("difference entropy", 10),
        ("information of correlation 1", 11),
    ]:
        assert entries[f"{name} mean"] == pytest.approx(expected[:, column].mean(), rel=1e-4)


def test_maximal_correlation_of_independent_and_equal_neighbours(rng):
    p = rng.random(6)
    assert maximal_correlation(np.outer(p, p)) == pytest.approx(0, abs=1e-7)
    assert maximal_correlation(np.diag(p)) == pytest.approx(1)
    # Of two levels it is the ordinary correlation: E = ad − bc over the roots of the margins.
    two = np.array([[3.0, 1], [1, 5]])
    assert maximal_correlation(two) == pytest.approx((15 - 1) / (4 * 6))
    assert maximal_correlation(np.array([[4.0, 0], [0, 0]])) == 0


# --- Tamura -------------------------------------------------------------------------------------


def naive_window(plane, row, column, half):
    """The pixel at the lower left of the window, or the column above it, over the window's area."""
    height, width = plane.shape
    top, left = max(row - half, 0), max(column - half, 0)
    bottom, right = min(row + half, height), min(column + half, width)
    first = 0 if top == 0 else bottom - 1
    return plane[first:bottom, left].sum() / ((bottom - top) * (right - left))


def naive_scale(plane, row, column):
    best, strongest = 0, 0.0
    for k in range(1, 8):
        half = 2 ** (k - 1)
        for down, across in [(0, half), (half, 0)]:
            ends = [(row + s * down, column + s * across) for s in (1, -1)]
            if all(0 <= r < plane.shape[0] and 0 <= c < plane.shape[1] for r, c in ends):
                one, other = (naive_window(plane, r, c, half) for r, c in ends)
                if abs(one - other) > strongest:
                    best, strongest = k, abs(one - other)
    return best


@pytest.mark.parametrize("shape", [(40, 37), (7, 150)])
def test_coarsest_scales_equal_a_naive_loop(rng, shape):
    plane = rng.random(shape)
    scales = coarsest_scales(plane)
    assert scales.shape == shape
    for row, column in [(0, 0), *rng.integers(0, shape, (300, 2)).tolist()]:
        assert scales[row, column] == naive_scale(plane, row, column)


def test_tamura_by_hand():
    entries = tamura_textures(texture(np.random.default_rng(0), (64, 70)).astype(np.float64))
    assert len(entries) == 6
    assert max(entries[f"coarseness {i}"] for i in (1, 2, 3)) == 1
    assert set(tamura_textures(np.zeros((64, 64))).values()) == {0.0, 1.0}


def test_contrast_by_hand():
    halves = np.repeat([[0.0, 10]], 4, axis=0)  # variance of 8 values 200/7, kurtosis 1
    assert contrast(halves) == pytest.approx(200 / 7)
    assert contrast(np.full((4, 4), 9.0)) == 0


def test_directionality_is_the_log_of_spread_over_energy(rng):
    plane = rng.random((12, 15))
    padded, angles, energy = np.pad(plane, 1), [], 0.0
    for row, column in np.ndindex(plane.shape):
        (a, b, c), (d, _, f), (g, h, i) = padded[row : row + 3, column : column + 3]
        across, down = -a + 2 * b + c - 2 * d + 2 * f - g - 2 * h - i, a - g
        angles.append(np.arctan(down / across) + np.pi / 2 + 0.001 if across >= 1e-4 else 0)
        energy += across**2 + down**2 + angles[-1] ** 2 if across >= 1e-4 else 0
    counts = np.histogram(angles, 125)[0]
    spread = counts @ (np.arange(125) + 1 - counts.argmax()) ** 2
    assert directionality(plane) == pytest.approx(abs(np.log(spread / energy + 1e-7)))
    assert directionality(np.zeros((9, 9))) == 0


# --- fractal and Gabor --------------------------------------------------------------------------


def test_differences_on_a_ramp_grow_with_the_distance():
    plane = np.add.outer(np.arange(128), np.arange(128)).astype(np.float64)
    values = np.array(list(fractal_features(plane).values()))
    np.testing.assert_allclose(values, np.arange(1, 21))


def test_fractal_distances_reach_a_fifth_of_the_image(rng):
    values = list(fractal_features(rng.standard_normal((210, 400))).values())
    assert len(values) == 20
    assert all(value > 0 for value in values)
    small = list(fractal_features(rng.standard_normal((64, 64))).values())
    assert [value > 0 for value in small] == [True] * 11 + [False] * 9


def test_differences_on_noise_are_constant(rng):
    values = np.array(list(fractal_features(rng.standard_normal((200, 200))).values()))
    np.testing.assert_allclose(values, 2 / np.sqrt(np.pi), rtol=0.02)


def test_gabor_locates_its_wave():
    wave = np.sin(np.arange(96.0))[:, None]
    half = np.where(np.arange(200) < 100, wave, 0) + 1
    entries = gabor_textures(half)
    assert len(entries) == 7
    # The slow wave is strong nearly everywhere, that of one radian per pixel in one half.
    assert entries["frequency 1"] == pytest.approx(0.5, abs=0.15)
    assert set(gabor_textures(np.zeros((64, 64))).values()) == {0.0}
