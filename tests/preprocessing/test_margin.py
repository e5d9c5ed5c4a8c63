"""Uniform margins are found to the pixel; noisy background is content."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from histodict.images.memory_image import MemoryImage
from histodict.images.source import open_image
from histodict.preprocessing.tissue import Crop, content_box


def box_of(pixels):
    with open_image(MemoryImage.from_array(pixels, "a")) as source:
        return content_box(source)


def padded(pixels, margins, colour):
    """Add a margin (left, top, right, bottom) of one colour."""
    left, top, right, bottom = margins
    shape = pixels.shape[0] + top + bottom, pixels.shape[1] + left + right, 3
    made = np.full(shape, colour, np.uint8)
    made[top : top + pixels.shape[0], left : left + pixels.shape[1]] = pixels
    return made


@pytest.fixture
def tissue(rng):
    return rng.integers(60, 200, (150, 120, 3)).astype(np.uint8)


@pytest.mark.parametrize("colour", [255, 0, (230, 240, 250)])
@pytest.mark.parametrize("margins", [(64,) * 4, (37,) * 4, (0, 1, 0, 0), (0, 0, 70, 0)])
def test_box_excludes_exactly_the_margin(tissue, margins, colour):
    left, top = margins[:2]
    assert box_of(padded(tissue, margins, colour)) == (left, top, left + 120, top + 150)


def test_nested_margins(tissue):
    both = padded(padded(tissue, (5, 6, 7, 8), 0), (20, 20, 20, 20), 255)
    assert box_of(both) == (25, 26, 145, 176)


def test_noisy_background_is_content(tissue, rng):
    background = padded(tissue, (64,) * 4, 236).astype(int)
    noisy = np.clip(background + np.rint(rng.normal(0, 2, background.shape)), 0, 255).astype(
        np.uint8
    )
    assert box_of(noisy) == (0, 0, 248, 278)


def test_lossy_compression_enlarges_the_box_by_at_most_a_block(tissue, tmp_path):
    Image.fromarray(padded(tissue, (64,) * 4, 255)).save(tmp_path / "a.jpg", quality=75)
    with open_image(tmp_path / "a.jpg") as source:
        box = content_box(source)
    outward = np.array([64, 64, 184, 214]) - box
    assert (outward[:2] >= 0).all() and (outward[2:] <= 0).all() and abs(outward).max() <= 16


@pytest.mark.parametrize("colour", [255, 0])
def test_image_of_one_colour_has_no_margin(colour):
    assert box_of(np.full((200, 90, 3), colour, np.uint8)) == (0, 0, 90, 200)


def test_cropped_image_reads_like_the_original(tissue):
    padded_source = open_image(MemoryImage.from_array(padded(tissue, (37,) * 4, 255), "a"))
    alone = open_image(MemoryImage.from_array(tissue, "b"))
    crop = Crop(padded_source, content_box(padded_source))
    assert crop.size == alone.size
    np.testing.assert_array_equal(crop.read(10, 20, 80, 60, 2), alone.read(10, 20, 80, 60, 2))
    np.testing.assert_array_equal(crop.thumbnail(50), alone.thumbnail(50))
