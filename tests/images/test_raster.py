"""Tests of plain images: colour modes, bit depths, transparency and rotation."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
from PIL import Image

from histodict.images.source import ImageError, open_image
from tests.images.files import RED, read_all, save_plain, save_slide, scene


def test_single_pixel_image(tmp_path):
    path = save_plain(tmp_path / "a.png", np.full((1, 1, 3), RED, np.uint8))
    assert read_all(path).tolist() == [[list(RED)]]
    assert open_image(path).thumbnail(100).shape == (1, 1, 3)


def test_cmyk_jpeg(tmp_path):
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    np.testing.assert_allclose(read_all(tmp_path / "a.jpg")[4, 4], [255, 0, 0], atol=3)


def test_palette_grey_and_black_and_white(tmp_path):
    colours = Image.fromarray(scene()).quantize(4)
    colours.save(tmp_path / "palette.png")
    np.testing.assert_array_equal(
        read_all(tmp_path / "palette.png"), np.array(colours.convert("RGB"))
    )
    save_plain(tmp_path / "grey.png", np.full((4, 5), 77, np.uint8))
    assert (read_all(tmp_path / "grey.png") == 77).all()
    Image.new("1", (5, 4), 1).save(tmp_path / "bits.tif")
    assert (read_all(tmp_path / "bits.tif") == 255).all()


def test_transparency_is_composited_on_white(tmp_path):
    half = np.zeros((1, 3, 4), np.uint8)
    half[..., 3] = [0, 51, 255]
    save_plain(tmp_path / "rgba.png", half)
    assert read_all(tmp_path / "rgba.png")[0, :, 0].tolist() == [255, 204, 0]
    Image.fromarray(half).convert("LA").save(tmp_path / "la.png")
    assert read_all(tmp_path / "la.png")[0, :, 2].tolist() == [255, 204, 0]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    assert read_all(tmp_path / "palette.png").tolist() == [[[255] * 3, [40, 50, 60]]]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize(
    ("values", "expected"), [([0, 257, 65535], [0, 1, 255]), ([0, 7, 255], [0, 7, 255])]
)
def test_16_bit_grey(tmp_path, suffix, values, expected):
    path = save_plain(tmp_path / f"a{suffix}", np.array([values], np.uint16))
    assert read_all(path)[0].tolist() == [[value] * 3 for value in expected]


def test_16_bit_colour_tiff(tmp_path):
    tifffile.imwrite(
        tmp_path / "a.tif", scene().astype(np.uint16) * 257, photometric="rgb", byteorder=">"
    )
    np.testing.assert_array_equal(read_all(tmp_path / "a.tif"), scene())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("white", [1, 255, 4095, 65535])
def test_floating_point_tiff(tmp_path, dtype, white):
    if white == 65535 and dtype == np.float16:
        pytest.skip("more than such a number can be")
    pixels = (scene() / 255 * white).astype(dtype)
    resolution = {"resolution": (2e4, 2e4), "resolutionunit": 3}
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb", **resolution)
    np.testing.assert_allclose(read_all(tmp_path / "a.tif"), scene(), atol=1)
    assert open_image(tmp_path / "a.tif").mpp == pytest.approx(0.5)
    tifffile.imwrite(tmp_path / "g.tif", pixels[..., 0], photometric="minisblack")
    np.testing.assert_allclose(read_all(tmp_path / "g.tif")[..., 2], scene()[..., 0], atol=1)


@pytest.mark.parametrize("white", [1, 255, 4095])
def test_floating_point_overshoot_is_clipped(tmp_path, white):
    """Bicubic resizing may exceed the maximum; with the next larger range all would be black."""
    pixels = (scene() / 255 * white).astype(np.float32)
    pixels[0, 0] = 1.1 * white
    tifffile.imwrite(tmp_path / "a.tif", pixels, photometric="rgb")
    expected = scene()
    expected[0, 0] = 255
    np.testing.assert_allclose(read_all(tmp_path / "a.tif"), expected, atol=1)


@pytest.mark.parametrize(
    ("values", "message"),
    [([-1.0, 0.5], "values from -1 to 0.5"), ([0, 7e4], "to 70000"), ([0, np.nan], "NaN")],
)
def test_floating_point_that_is_no_colours_is_refused(tmp_path, values, message):
    tifffile.imwrite(tmp_path / "a.tif", np.array([values], np.float32))
    with pytest.raises(ImageError, match=rf"a\.tif: .*{message}"):
        read_all(tmp_path / "a.tif")


def test_truncated_floating_point_tiff_is_refused(tmp_path):
    tifffile.imwrite(tmp_path / "a.tif", scene() / 255, photometric="rgb")
    full = (tmp_path / "a.tif").read_bytes()
    for n_bytes in (len(full) // 2, 200, 20):
        (tmp_path / "a.tif").write_bytes(full[:n_bytes])
        with pytest.raises(ImageError, match=r"a\.tif: "):
            read_all(tmp_path / "a.tif")


WRITTEN = {
    "little": {},
    "big": {"byteorder": ">"},
    "squeezed": {"compression": "zlib"},
    "planes": {"planarconfig": "separate"},
}


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("white", [255, 4095, 65535])
def test_white_level_of_16_bit_colours(tmp_path, how, white):
    pixels = np.rint(scene() / 255 * white).astype(np.uint16)
    stored = np.moveaxis(pixels, -1, 0) if how == "planes" else pixels
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", **WRITTEN[how])
    np.testing.assert_allclose(read_all(tmp_path / "a.tif"), scene(), atol=1)


@pytest.mark.parametrize("how", WRITTEN)
@pytest.mark.parametrize("opaque", [255, 4095, 65535])
def test_white_level_of_16_bit_colours_with_transparency(tmp_path, how, opaque):
    pixels = np.full((*scene().shape[:2], 4), opaque, np.uint16)
    pixels[..., :3] = np.rint(scene() / 255 * 4095)
    pixels[:4, :4, 3] = 0
    stored = np.moveaxis(pixels, -1, 0) if how == "planes" else pixels
    how_alpha = {"photometric": "rgb", "extrasamples": ["unassalpha"]} | WRITTEN[how]
    tifffile.imwrite(tmp_path / "a.tif", stored, **how_alpha)
    expected = scene()
    expected[:4, :4] = 255
    np.testing.assert_allclose(read_all(tmp_path / "a.tif"), expected, atol=1)


def test_12_bit_grey(tmp_path):
    path = save_plain(tmp_path / "a.tif", np.array([[0, 2048, 4095]], np.uint16))
    assert read_all(path)[0, :, 0].tolist() == [0, 128, 255]


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(tmp_path, suffix, orientation):
    pixels = np.full((32, 48, 3), 255, np.uint8)
    pixels[:8, :8] = 0  # the corner that moves
    pixels[:8, 8:16] = 128
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[274] = orientation
    image.save(tmp_path / f"a{suffix}", exif=exif)
    steps = {
        1: [],
        2: [np.fliplr],
        3: [np.rot90, np.rot90],
        4: [np.flipud],
        5: [lambda a: a.transpose(1, 0, 2)],
        6: [np.rot90] * 3,
        7: [lambda a: a[::-1, ::-1].transpose(1, 0, 2)],
        8: [np.rot90],
    }
    for step in steps[orientation]:
        pixels = step(pixels)
    assert open_image(tmp_path / f"a{suffix}").size == pixels.shape[1::-1]
    np.testing.assert_allclose(read_all(tmp_path / f"a{suffix}").astype(int), pixels, atol=12)


def test_names_outside_ascii(tmp_path):
    folder = tmp_path / "Gewebe µm 组织"
    folder.mkdir()
    assert (read_all(save_plain(folder / "Präparat №1.png", scene())) == scene()).all()
    assert (read_all(save_slide(folder / "Schnitt é.tif", scene())) == scene()).all()
