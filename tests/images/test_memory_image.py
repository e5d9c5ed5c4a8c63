"""Pixels in memory are read like those of a file, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from tifffile import imwrite

from histodict.images.memory_image import MemoryImage, cache_key
from histodict.images.pixel_size import PixelSize, PixelSizeOption
from histodict.images.source import ImageError, open_image


@pytest.fixture
def pixels(rng):
    return rng.integers(0, 256, (70, 90, 3)).astype(np.uint8)


def regions(source):
    with open_image(source) as image:
        yield image.thumbnail(40)
        for box in ((0, 0, 90, 70, 1.0), (-5, 60, 50, 40, 2.5), (11, 13, 31, 17, 3.0)):
            yield image.read(*box)


def assert_same(one, two):
    for a, b in zip(regions(one), regions(two), strict=True):
        np.testing.assert_array_equal(a, b)


def test_array_gives_the_bits_of_its_png(pixels, tmp_path):
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert_same(MemoryImage.from_array(pixels, "a"), tmp_path / "a.png")
    assert_same(MemoryImage.from_array(pixels[::-1][::-1], "a"), tmp_path / "a.png")


@pytest.mark.parametrize("mode", ["RGBA", "L", "P", "CMYK", "I;16", "F", "1"])
def test_pillow_image_of_any_mode_gives_the_bits_of_its_file(mode, pixels, rng, tmp_path):
    if mode == "RGBA":
        image = Image.fromarray(rng.integers(0, 256, (70, 90, 4)).astype(np.uint8))
    elif mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (70, 90)).astype(np.uint16))
    elif mode == "F":
        image = Image.fromarray(rng.random((70, 90), dtype=np.float32))
    else:
        image = Image.fromarray(pixels).convert(mode)
    file = tmp_path / ("a.tif" if mode in ("CMYK", "F") else "a.png")
    image.save(file)
    assert_same(MemoryImage.from_pillow(image, "a"), file)


def test_opened_pillow_image_keeps_name_rotation_and_pixel_size(pixels, tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # rotated by a quarter
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=exif)
    turned = MemoryImage.from_pillow(Image.open(tmp_path / "turned.jpg"), "a")
    assert_same(turned, tmp_path / "turned.jpg")
    assert turned.decoded.size == (70, 90)
    Image.fromarray(pixels).save(tmp_path / "sized.tif", dpi=(50_800, 50_800))
    sized = MemoryImage.from_pillow(Image.open(tmp_path / "sized.tif"), "a")
    assert sized.mpp == pytest.approx(0.5)
    assert str(sized) == str(tmp_path / "sized.tif")
    with open_image(sized) as own, open_image(sized, 0.25) as specified:
        assert (own.mpp, specified.mpp) == (sized.mpp, 0.25)


@pytest.mark.parametrize("orientation", [1, 6])
def test_resized_pillow_image_has_no_pixel_size(orientation, pixels, tmp_path):
    tags = {274: orientation}
    Image.fromarray(pixels).save(tmp_path / "sized.tif", dpi=(50_800, 50_800), tiffinfo=tags)
    original, small = Image.open(tmp_path / "sized.tif"), Image.open(tmp_path / "sized.tif")
    small.thumbnail((45, 45))
    assert MemoryImage.from_pillow(original, "a").mpp == pytest.approx(0.5)
    assert MemoryImage.from_pillow(small, "a").mpp is None


def test_pillow_image_of_16_bit_colours_is_refused(rng, tmp_path):
    """Pillow reads only 8 of 16 bits, and thus 4 of the 12 used; the file is read correctly."""
    colours = rng.integers(0, 4096, (70, 90, 3)).astype(np.uint16)
    imwrite(tmp_path / "a.tif", colours, photometric="rgb")
    with pytest.raises(ImageError, match=r"a\.tif: Pillow drops .* pass the path of the file"):
        MemoryImage.from_pillow(Image.open(tmp_path / "a.tif"), "a")


def test_pixel_size_is_resolved_as_for_a_file(pixels, tmp_path):
    Image.fromarray(pixels).save(tmp_path / "sized.tif", dpi=(50_800, 50_800))
    sized = MemoryImage.from_pillow(Image.open(tmp_path / "sized.tif"), "a")
    assert PixelSizeOption(default=0.25).resolve(sized) == PixelSizeOption(default=0.25).resolve(
        tmp_path / "sized.tif"
    )
    assert PixelSizeOption(default=0.25).resolve(sized).origin == "file"
    assert PixelSizeOption(default=0.25).resolve(MemoryImage.from_array(pixels, "a")) == PixelSize(
        0.25, "command"
    )


def test_cache_key_changes_with_a_pixel(pixels):
    one = MemoryImage.from_array(pixels, "a")
    assert cache_key(one) == cache_key(MemoryImage.from_array(pixels.copy(), "b"))
    pixels[3, 4, 1] += 1  # after the image was created
    assert cache_key(one) != cache_key(MemoryImage.from_array(pixels, "a"))


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((4, 5)),
        np.zeros((4, 5, 3)),
        np.zeros((4, 5, 4), np.uint8),
        np.zeros((0, 5, 3), "u1"),
    ],
)
def test_other_arrays_are_refused(wrong):
    with pytest.raises(
        ImageError,
        match=r"a: an image must be an array of shape \(height, width, 3\) and type uint8",
    ):
        MemoryImage.from_array(wrong, "a")


def test_truncated_pillow_image_is_refused(pixels, tmp_path):
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes()[:3000])
    with pytest.raises(ImageError, match=r"b\.png: the image cannot be decoded"):
        MemoryImage.from_pillow(Image.open(tmp_path / "b.png"), "a")
