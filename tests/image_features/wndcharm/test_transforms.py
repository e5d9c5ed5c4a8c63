from __future__ import annotations

import numpy as np
import pytest

from histodict.image_features.descriptors import hue_saturation_value
from histodict.image_features.wndcharm import (
    colour_fractions,
    colour_plane,
    fourier,
    hue_plane,
    wavelet,
)
from tests.image_features.planes import texture


def test_fourier_keeps_the_energy(rng):
    plane = texture(rng, (60, 50)).astype(np.float64)
    assert (fourier(plane) ** 2).sum() / plane.size == pytest.approx((plane**2).sum())


def test_fourier_has_frequency_0_in_the_corner_and_ignores_shifts(rng):
    plane = texture(rng).astype(np.float64)
    spectrum = fourier(plane)
    assert spectrum[0, 0] == pytest.approx(plane.sum())
    np.testing.assert_allclose(fourier(np.roll(plane, (7, 11), (0, 1))), spectrum, atol=1e-6)


def test_wave_has_two_points():
    wave = np.cos(2 * np.pi * 5 * np.arange(64) / 64) * np.ones((64, 1))
    assert np.argwhere(fourier(wave) > 0.1).tolist() == [[0, 5], [0, 59]]


def test_wavelet_layout_of_details_and_coarse_image():
    plane = np.full((64, 50), 7.0)
    parts = wavelet(plane)
    assert parts.shape == (2 * 36, 2 * 29)
    inner = (slice(5, -5), slice(5, -5))
    coarse = parts[36:, 29:][inner]
    np.testing.assert_allclose(coarse, 14, rtol=1e-6)
    for details in (parts[:36, :29], parts[:36, 29:], parts[36:, :29]):
        np.testing.assert_allclose(details[inner], 0, atol=1e-8)


def test_vertical_stripes_are_horizontal_details():
    stripes = np.tile([0.0, 1], (64, 32))
    parts = wavelet(stripes)[5:-5, 5:-5]
    half = len(parts) // 2
    assert np.abs(parts[:half, half + 5 :]).max() > 0.5
    assert np.abs(parts[half + 5 :, : half - 5]).max() < 1e-8


def test_wavelet_keeps_the_energy(rng):
    noise = rng.standard_normal((256, 256))
    assert (wavelet(noise) ** 2).sum() == pytest.approx((noise**2).sum())


def colours(*pixels):
    return hue_saturation_value(np.array([pixels], np.uint8))


def test_hue_is_cut_at_green():
    hue, saturation, _ = colours([255, 0, 0], [255, 0, 1], [255, 1, 0], [9, 9, 9], [0, 255, 1])
    red, *nearly_red, grey, green = hue_plane(hue, saturation)[0]
    assert red == pytest.approx(170)
    assert nearly_red == pytest.approx([170, 170], abs=0.5)
    assert grey == 0
    assert green == pytest.approx(0, abs=0.5)


def test_colours_by_hand():
    plane = colour_plane(
        *colours([0, 0, 0], [255, 255, 250], [100, 0, 0], [255, 0, 0], [0, 0, 255])
    )
    assert plane[0].tolist() == [0, 3, 4, 5, 4 + 2 * 5 + 1]


def test_colour_fractions_sum_to_one(rng):
    pixels = rng.integers(0, 256, (30, 30, 3)).astype(np.uint8)
    shares = colour_fractions(colour_plane(*hue_saturation_value(pixels)))
    assert shares.shape == (20,)
    assert shares.sum() == pytest.approx(1)
