from __future__ import annotations

import numpy as np
import pytest

from histodict.image_features.descriptors import (
    THUMBNAIL_PX,
    luminance,
    luminance_thumbnail,
    plane_thumbnail,
)
from tests.image_features.planes import colour_image


def test_luminance_is_the_mean_over_equal_parts(rng):
    pixels = colour_image(rng, (3 * THUMBNAIL_PX, 2 * THUMBNAIL_PX))
    means = luminance(pixels).reshape(THUMBNAIL_PX, 3, THUMBNAIL_PX, 2).mean(axis=(1, 3)).ravel()
    values, names = luminance_thumbnail(pixels)
    np.testing.assert_allclose(values, means / np.linalg.norm(means), rtol=1e-5)
    assert (len(names), names[THUMBNAIL_PX + 2]) == (THUMBNAIL_PX**2, "grey 1,2")


def test_planes_are_concatenated(rng):
    pixels = colour_image(rng, (THUMBNAIL_PX, THUMBNAIL_PX))
    values, names = plane_thumbnail(pixels)
    flat = pixels.transpose(2, 0, 1).ravel() / np.linalg.norm(pixels.astype(float))
    np.testing.assert_allclose(values, flat, rtol=1e-5)
    assert names[THUMBNAIL_PX**2] == "green 0,0"


@pytest.mark.parametrize("features", [luminance_thumbnail, plane_thumbnail])
@pytest.mark.parametrize("shape", [(1, 1), (5, 400), (33, 31)])
def test_thumbnail_has_unit_norm_at_any_size(rng, features, shape):
    pixels = rng.integers(1, 256, (*shape, 3)).astype(np.uint8)
    assert np.linalg.norm(features(pixels)[0]) == pytest.approx(1)


@pytest.mark.parametrize("features", [luminance_thumbnail, plane_thumbnail])
def test_black_image_gives_zeros(features):
    assert not features(np.zeros((40, 40, 3), np.uint8))[0].any()
