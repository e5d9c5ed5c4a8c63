"""Combs and Radon sums: what both make of lines through the image."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.features.wndcharm.comb import comb_moments
from histodict.features.wndcharm.radon import line_sums, radon_features
from tests.features.planes import TURNS, texture


def of(entries, name):
    return [entries[f"{name} {i}"] for i in (1, 2, 3)]


def test_sums_by_hand():
    sums = line_sums(np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    assert sums["0°"].tolist() == [6, 15]
    assert sums["90°"].tolist() == [5, 7, 9]
    assert sums["45°"].tolist() == [1, 6, 8, 6]
    assert sums["135°"].tolist() == [4, 6, 8, 3]


@pytest.mark.parametrize("shape", [(1, 1), (7, 20), (20, 7)])
def test_every_direction_counts_every_pixel_once(rng, shape):
    plane = rng.standard_normal(shape).astype(np.float32)
    for direction, sums in line_sums(plane).items():
        assert sums.sum() == pytest.approx(plane.sum(dtype=float), abs=1e-5)
        assert len(sums) == {"0°": shape[0], "90°": shape[1]}.get(direction, sum(shape) - 1)


def test_sums_turn_with_the_image(rng):
    plane = texture(rng, (30, 40))
    sums, turned = line_sums(plane), line_sums(TURNS["quarter turn"](plane))
    for was, now in [("0°", "90°"), ("90°", "0°"), ("45°", "135°"), ("135°", "45°")]:
        np.testing.assert_allclose(np.sort(turned[now]), np.sort(sums[was]), rtol=1e-6)


def test_radon_shares_tell_the_direction_of_stripes():
    stripes = np.tile(np.repeat([0, 200], 5), (60, 6)).astype(np.float32)
    entries = radon_features(stripes)
    assert of(entries, "90°") == [0.5, 0, 0.5]
    assert of(entries, "0°") == [1, 0, 0]
    assert len(entries) == 12


def test_combs_by_hand():
    # Ten dark columns, ten grey, twenty bright; every row is the same.
    plane = np.tile(np.repeat([0, 100, 200], [10, 10, 20]), (40, 1)).astype(np.float32)
    entries = comb_moments(plane)
    assert len(entries) == 48
    assert of(entries, "90° mean") == [0.25, 0.25, 0.5]
    assert of(entries, "90° deviation") == [1, 0, 0]
    assert of(entries, "0° mean") == of(entries, "0° kurtosis") == [1, 0, 0]
    assert of(entries, "45° mean") == of(entries, "135° mean")


def test_combs_turn_with_the_image(rng):
    plane = texture(rng, (60, 60))
    entries, turned = comb_moments(plane), comb_moments(TURNS["quarter turn"](plane))
    for moment in ("mean", "deviation", "skewness", "kurtosis"):
        for was, now in [("0°", "90°"), ("90°", "0°")]:
            assert of(turned, f"{now} {moment}") == of(entries, f"{was} {moment}")


def test_combs_are_blind_to_brightness_and_contrast(rng):
    plane = texture(rng)
    assert comb_moments(plane * 2 + 16) == comb_moments(plane)
