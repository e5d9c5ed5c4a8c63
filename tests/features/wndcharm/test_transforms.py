from __future__ import annotations

import numpy as np
import pytest

from histodict.features.pixels import hue_saturation_value
from histodict.features.wndcharm.transforms import (
    colour_plane,
    colour_shares,
    fourier,
    hue_plane,
    wavelet,
)
from tests.features.planes import TURNS, texture


def test_fourier_keeps_the_energy(rng):
    plane = texture(rng, (60, 50))
    lengths = np.expm1(fourier(plane).astype(np.float64))
    assert (lengths**2).sum() == pytest.approx((plane.astype(float) ** 2).sum(), rel=1e-5)


def test_fourier_has_frequency_0_in_the_middle_and_turns_with_the_image(rng):
    plane = texture(rng, (65, 65))
    spectrum = fourier(plane)
    assert np.unravel_index(spectrum.argmax(), spectrum.shape) == (32, 32)
    for turn in TURNS.values():
        np.testing.assert_allclose(fourier(turn(plane)), turn(spectrum), atol=1e-5)


def test_fourier_does_not_see_shifts(rng):
    plane = texture(rng)
    shifted = np.roll(plane, (7, 11), axis=(0, 1))
    np.testing.assert_allclose(fourier(shifted), fourier(plane), atol=1e-5)


def test_a_wave_has_two_points():
    wave = np.cos(2 * np.pi * 5 * np.arange(64) / 64) * np.ones((64, 1))
    points = np.argwhere(fourier(wave.astype(np.float32)) > 0.1)
    assert points.tolist() == [[32, 27], [32, 37]]


@pytest.mark.parametrize("slope", [0.0, 3.0])
def test_details_of_flat_and_evenly_sloping_planes_are_none(slope):
    plane = (7 + slope * np.arange(64) * np.ones((64, 1))).astype(np.float32)
    details = wavelet(plane)
    assert details.shape == (32, 32)
    # Where the plane is continued from its other side a slope has a step.
    assert np.abs(details[:, 5:-5]).max() < 1e-4


def test_details_of_noise_hold_three_quarters_of_its_energy(rng):
    noise = rng.standard_normal((256, 256)).astype(np.float32)
    assert (wavelet(noise) ** 2).sum() / (noise**2).sum() == pytest.approx(0.75, abs=0.01)


def colours(*pixels):
    return hue_saturation_value(np.array([pixels], np.uint8))


def test_hue_is_cut_open_at_green():
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


def test_shares_of_colours_sum_to_one(rng):
    pixels = rng.integers(0, 256, (30, 30, 3)).astype(np.uint8)
    shares = colour_shares(colour_plane(*hue_saturation_value(pixels)))
    assert shares.shape == (20,)
    assert shares.sum() == pytest.approx(1)
