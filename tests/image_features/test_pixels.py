from __future__ import annotations

import colorsys

import numpy as np
import pytest

from histodict.image_features.descriptors import (
    area_means,
    check_pixels,
    hue_saturation_value,
    luminance,
    pad_reflect,
)


def test_hsv_equals_the_standard_library(rng):
    pixels = rng.integers(0, 256, (30, 20, 3)).astype(np.uint8)
    pixels[:2] = [[[0, 0, 0]], [[90, 90, 90]]]
    pixels[2, :3] = [[255, 0, 0], [255, 0, 1], [9, 9, 8]]
    ours = np.stack(hue_saturation_value(pixels), axis=-1).reshape(-1, 3)
    expected = [colorsys.rgb_to_hsv(*(pixel / 255)) for pixel in pixels.reshape(-1, 3)]
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_grey_pixels_keep_their_level():
    pixels = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    np.testing.assert_array_equal(luminance(pixels)[0], np.arange(256))


def test_luminance_weights_of_red_green_and_blue():
    assert luminance(255 * np.eye(3, dtype=np.uint8)[None])[0].tolist() == [76, 150, 29]


def test_small_images_are_padded_by_reflection():
    pixels = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    larger = pad_reflect(pixels, 4)
    assert larger.shape == (4, 4, 3)
    np.testing.assert_array_equal(larger[:, :, 0], np.tile([0, 3, 3, 0], (4, 1)))
    large = np.zeros((5, 4, 3), np.uint8)
    assert pad_reflect(large, 4) is large


def test_area_means_by_hand():
    plane = np.array([[0, 3, 6]], np.float32)
    np.testing.assert_allclose(area_means(plane, 2), [[1, 5], [1, 5]])
    np.testing.assert_allclose(area_means(plane, 3), [[0, 3, 6]] * 3)
    np.testing.assert_allclose(area_means(plane, 1), [[3]])


@pytest.mark.parametrize(("shape", "side"), [((50, 31), 16), ((5, 70), 32), ((1, 1), 8)])
def test_area_means_keep_the_mean(rng, shape, side):
    plane = rng.random(shape).astype(np.float32)
    assert area_means(plane, side).mean() == pytest.approx(plane.mean(), rel=1e-5)


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 4), (0, 4, 3), (2, 4, 4, 3)])
def test_invalid_shapes_are_refused(shape):
    with pytest.raises(ValueError, match="RGB"):
        check_pixels(np.zeros(shape, np.uint8))


@pytest.mark.parametrize("pixels", [np.zeros((4, 4, 3)), [[[0, 0, 0]]]])
def test_pixels_of_other_than_8_bits_are_refused(pixels):
    with pytest.raises(TypeError, match="8 bits"):
        check_pixels(pixels)
