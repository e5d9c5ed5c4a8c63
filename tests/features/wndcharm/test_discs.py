"""Zernike moments and Chebyshev–Fourier statistics, both on the disc."""

from __future__ import annotations

import mahotas
import numpy as np
import pytest

from histodict.features.wndcharm.chebyshev_fourier import chebyshev_fourier_statistics
from histodict.features.wndcharm.disc import DISC_PX, disc_square
from histodict.features.wndcharm.zernike import zernike_moments
from tests.features.planes import TURNS, texture


def test_moments_are_those_of_mahotas(rng):
    plane = texture(rng, (DISC_PX, DISC_PX)) + 1
    plane[0, 0], plane[0, 1] = 0, 256  # outside the disc: the stretched plane is plane / 256
    middle = ((DISC_PX - 1) / 2,) * 2
    known = mahotas.features.zernike_moments(plane, DISC_PX / 2, degree=15, cm=middle)
    ours = list(zernike_moments(plane).values())
    assert len(ours) == 72
    np.testing.assert_allclose(ours, known, atol=1e-6)


def test_a_blank_disc_has_its_mean_alone():
    entries = zernike_moments(np.full((200, 200), 9, np.float32))
    assert entries.pop("0,0") == pytest.approx(1 / np.pi)
    assert max(entries.values()) < 0.02  # the disc's border is made of pixels


def test_a_polynomial_has_its_own_moment_alone():
    steps = (np.arange(200) + 0.5) / 100 - 1
    y, x = np.meshgrid(steps, steps, indexing="ij")
    astigmatism = x * x - y * y  # R_22 = r², with cos 2φ
    entries = zernike_moments((astigmatism + 2).astype(np.float32))
    others = {key: value for key, value in entries.items() if key not in ("0,0", "2,2")}
    assert entries["2,2"] > 20 * max(others.values())


@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
@pytest.mark.parametrize("shape", [(DISC_PX, DISC_PX), (70, 90), (300, 256)])
def test_turning_the_image_changes_nothing(rng, turn, shape):
    plane = texture(rng, shape, blur=5)
    for features, tolerance in [(zernike_moments, 1e-6), (chebyshev_fourier_statistics, 2 / 256)]:
        np.testing.assert_allclose(
            list(features(turn(plane)).values()), list(features(plane).values()), atol=tolerance
        )


def test_brightness_and_contrast_change_nothing(rng):
    plane = texture(rng)
    for features in (zernike_moments, chebyshev_fourier_statistics):
        one, other = (list(features(p).values()) for p in (plane, plane * 2 + 16))
        np.testing.assert_allclose(other, one, atol=1e-5)


def test_statistics_are_shares(rng):
    entries = chebyshev_fourier_statistics(texture(rng))
    assert len(entries) == 32
    assert sum(entries.values()) == pytest.approx(1)


def test_rings_have_no_waves_around():
    steps = np.arange(256) - 127.5
    rings = np.cos(np.hypot(steps[:, None], steps) / 6).astype(np.float32)
    # Orders m > 0 are all small: 15 of 16 columns of coefficients lie in the lowest bins.
    assert chebyshev_fourier_statistics(rings)["bin 1"] > 0.7
    noise = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    assert chebyshev_fourier_statistics(noise)["bin 1"] < 0.3


def test_the_square_holds_means():
    plane = np.kron(np.arange(DISC_PX**2).reshape(DISC_PX, -1), [[0, 2], [2, 0]])
    square = disc_square(plane.astype(np.float32))
    known = np.arange(DISC_PX**2).reshape(DISC_PX, -1) / (DISC_PX**2 - 1)
    np.testing.assert_allclose(square, known, atol=1e-5)
