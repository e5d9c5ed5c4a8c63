from __future__ import annotations

import numpy as np
import pytest

from histodict.image_features.descriptors import lbp_colour
from tests.image_features.planes import TURNS, colour_image


def entries(pixels):
    values, names = lbp_colour(pixels)
    assert len(set(names)) == len(values)
    return dict(zip(names, values, strict=True))


def test_every_histogram_sums_to_one(rng):
    values, names = lbp_colour(colour_image(rng))
    groups = np.unique([name.rsplit(" ", 1)[0] for name in names])
    assert len(groups) == 9 + 6
    assert values.sum() == pytest.approx(len(groups))
    assert values.min() >= 0


@pytest.mark.parametrize("symmetry", TURNS.values(), ids=TURNS)
def test_rotated_and_mirrored_images_have_the_same_features(rng, symmetry):
    pixels = colour_image(rng)
    ours, turned = lbp_colour(pixels)[0], lbp_colour(symmetry(pixels))[0]
    # Neighbours between pixels are interpolated, and ties are rounded differently.
    np.testing.assert_allclose(turned, ours, atol=0.01)


def test_brightness_does_not_change_patterns_of_grey_levels(rng):
    pixels = colour_image(rng) // 2
    one, other = entries(pixels), entries(pixels + 60)
    grey = [name for name in one if name.startswith("lbp 1 px grey")]
    np.testing.assert_allclose([one[k] for k in grey], [other[k] for k in grey], atol=0.01)


def test_flat_image_has_one_pattern_and_one_colour():
    values = entries(np.full((20, 20, 3), [200, 100, 150], np.uint8))
    full = {name for name, value in values.items() if value > 0}
    assert len(full) == 9 + 6
    assert {"lbp 1 px grey 8", "lbp 2 px eosin 16", "colour red-green 11"} <= full


def test_bright_dot_has_no_brighter_neighbour():
    pixels = np.zeros((41, 41, 3), np.uint8)
    pixels[20, 20] = 255
    assert entries(pixels)["lbp 1 px grey 0"] == pytest.approx(1 / 41**2)


def test_stains_are_separated():
    densities = {"haematoxylin": [0.65, 0.70, 0.29], "eosin": [0.07, 0.99, 0.11]}
    rows = np.arange(60)[:, None, None]
    for own, density in densities.items():
        # Stripes of one stain: its own plane has a texture, that of the other is flat.
        stripes = np.where(rows % 6 < 3, 0.1, 0.9) * np.array(density) / np.linalg.norm(density)
        pixels = np.rint(255 * 10**-stripes).astype(np.uint8).repeat(60, axis=1)
        values = entries(pixels)
        flat = {name: values[f"lbp 3 px {name} 24"] for name in densities}
        assert flat.pop(own) < 0.6
        assert min(flat.values()) > 0.9
