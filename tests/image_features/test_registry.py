from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from histodict.image_features import FEATURES
from tests.image_features.planes import colour_image

IMAGES = {
    "white": np.full((70, 66, 3), 255, np.uint8),
    "black": np.zeros((64, 64, 3), np.uint8),
    "one pixel": np.full((1, 1, 3), 7, np.uint8),
    "one colour": np.full((9, 80, 3), [220, 120, 180], np.uint8),
    "tiny": np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 14,
    "one row": np.arange(300, dtype=np.uint8).reshape(1, 100, 3),
    "chessboard": np.repeat((np.indices((65, 67)).sum(0) % 2 * 255)[..., None], 3, 2).astype("u1"),
    "white dot": np.pad(np.full((1, 1, 3), 255, np.uint8), [(40, 30), (30, 50), (0, 0)]),
    "noise": np.random.default_rng(0).integers(0, 256, (65, 71, 3)).astype(np.uint8),
}


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("pixels", IMAGES.values(), ids=IMAGES)
@pytest.mark.filterwarnings("error")
def test_features_of_any_image_are_finite(name, pixels):
    before = pixels.copy()
    values = FEATURES[name](pixels)
    assert values.dtype == np.float64
    assert np.isfinite(values).all()
    assert np.abs(values).max() < 1e9
    np.testing.assert_array_equal(pixels, before)


@pytest.mark.parametrize("name", FEATURES)
def test_entry_names_are_unique(name, rng):
    names = FEATURES[name].names
    assert len(set(names)) == len(names) == len(FEATURES[name](colour_image(rng, (70, 90))))


@pytest.mark.parametrize("name", FEATURES)
def test_same_pixels_give_the_same_bits(name, rng):
    pixels = colour_image(rng, (70, 90))
    turned_copy = np.asfortranarray(pixels)
    np.testing.assert_array_equal(FEATURES[name](pixels), FEATURES[name](turned_copy))


@pytest.mark.parametrize("name", FEATURES)
def test_invalid_shapes_are_refused(name):
    with pytest.raises(ValueError, match="height, width, 3"):
        FEATURES[name](np.zeros((4, 4), np.uint8))


def test_image_libraries_are_imported_lazily():
    code = """
import sys, histodict.image_features
heavy = {"mahotas", "skimage", "pywt", "joblib", "sklearn", "numba", "torch"}
print(sorted(heavy.intersection(sys.modules)))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
