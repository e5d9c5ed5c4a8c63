from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.annotated import RegionMask
from histodict.images.source import ImageError


def test_coverage_is_that_of_the_pixels(rng):
    region = rng.random((60, 80)) < 0.3
    mask = RegionMask(region, (80, 60))
    x, y = rng.integers(0, 70, 50), rng.integers(0, 50, 50)
    shares = mask.coverage(x, y, 10)
    expected = [region[b : b + 10, a : a + 10].mean() for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(shares, expected)


def test_reduced_mask_covers_the_same_positions():
    region = np.zeros((60, 80), bool)
    region[20:40, 40:60] = True
    small = RegionMask(region[::4, ::4], (80, 60))
    corners = np.array([40.0, 20.0, 60.0]), np.array([20.0, 20.0, 20.0])
    np.testing.assert_array_equal(small.coverage(*corners, 20), [1, 0, 0])


@pytest.mark.parametrize(
    ("mode", "high", "name"),
    [("L", 255, "m.png"), ("L", 3, "m.png"), ("RGB", (255, 255, 255), "m.png"), ("1", 1, "m.png"),
     ("L", 255, "m.jpg"), ("LA", (255, 255), "m.png"), ("RGBA", (0, 9, 0, 255), "m.png")],
)  # fmt: skip
def test_file_formats_and_modes(tmp_path, mode, high, name):
    """Opacity is ignored: visible black is background."""
    nothing = {"LA": (0, 255), "RGBA": (0, 0, 0, 255)}.get(mode, 0)
    image = Image.new(mode, (64, 48), nothing)
    image.paste(high, (16, 8, 48, 40))
    image.save(tmp_path / name)
    mask = RegionMask.read(tmp_path / name, (128, 96))
    assert mask.region.sum() == 32 * 32
    assert mask.coverage(np.array([32.0]), np.array([16.0]), 64)[0] == 1


def test_unusable_mask_is_refused(tmp_path):
    Image.new("L", (64, 48)).save(tmp_path / "m.png")
    with pytest.raises(ImageError, match="different aspect ratios"):
        RegionMask.read(tmp_path / "m.png", (64, 64))
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"bad\.png: not a PNG"):
        RegionMask.read(tmp_path / "bad.png", (64, 48))
    with pytest.raises(ImageError, match="file not found"):
        RegionMask.read(tmp_path / "none.png", (64, 48))
