"""Tests of the complete feature bank: number of features per plane and family."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from histodict.image_features.wndcharm import wndcharm_features
from tests.image_features.planes import colour_image


@pytest.fixture(scope="module")
def bank():
    values, names = wndcharm_features(colour_image(np.random.default_rng(0), (70, 66)))
    return dict(zip(names, values, strict=True))


def test_number_of_features_is_as_published(bank):
    of_planes = [name for name in bank if not name.startswith("colour fractions")]
    planes = Counter(name.rsplit(" of ", 1)[1] for name in of_planes)
    assert sum(planes.values()) + 20 == len(bank) == 4059
    assert planes["grey"] == 103 + 136 + 144
    assert Counter(planes.values()) == {383: 1, 280: 11, 144: 4}
    grey = [n for plane, n in planes.items() if "hue" not in plane and plane != "colour"]
    assert sum(grey) == 2919


@pytest.mark.parametrize(
    ("family", "n_entries", "n_planes"),
    [
        ("edges", 28, 1),
        ("bright objects", 34, 1),
        ("dark objects", 34, 1),
        ("gabor", 7, 1),
        ("chebyshev", 32, 12),
        ("chebyshev-fourier", 32, 12),
        ("zernike", 72, 12),
        ("comb", 48, 16),
        ("haralick", 28, 16),
        ("histograms", 24, 16),
        ("tamura", 6, 16),
        ("radon", 12, 16),
        ("fractal", 20, 16),
        ("intensity", 5, 16),
        ("gini", 1, 16),
    ],
)
def test_families_have_the_published_sizes(bank, family, n_entries, n_planes):
    own = [name for name in bank if re.match(rf"{family} .* of \S+$", name)]
    assert len(own) == n_entries * n_planes


def test_grey_image_has_no_colour():
    rng = np.random.default_rng(1)
    pixels = np.repeat(rng.integers(64, 128, (64, 64, 1)).astype(np.uint8), 3, axis=2)
    entries = dict(zip(*wndcharm_features(pixels)[::-1], strict=True))
    assert entries["intensity greatest of hue"] == 0
    assert entries["colour fractions 2"] == 1


def test_small_images_are_padded_by_reflection(rng):
    pixels = colour_image(rng, (64, 64))[:32]
    mirrored = np.concatenate([pixels, pixels[::-1]])
    np.testing.assert_array_equal(wndcharm_features(pixels)[0], wndcharm_features(mirrored)[0])
