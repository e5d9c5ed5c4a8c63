"""Tests of image sources: regions, pixel size, handles, and files that are refused."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageFile

from histodict.images import region_reader as reduction
from histodict.images.source import READERS, ImageError, RasterReader, SlideReader, open_image
from tests.images.files import (
    GREY,
    RED,
    SQUARE,
    read_all,
    save_plain,
    save_png_header,
    save_slide,
    scene,
    texture,
)


@pytest.fixture(params=["slide", "plain"])
def save(request, tmp_path):
    """Return a function that saves pixels without loss, for each of the two readers."""
    if request.param == "slide":
        return lambda pixels: save_slide(tmp_path / "image.tif", pixels)
    return lambda pixels: save_plain(tmp_path / "image.png", pixels)


def block_means(pixels, factor):
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    blocks = pixels[: height * factor, : width * factor].reshape(height, factor, width, factor, 3)
    return blocks.mean(axis=(1, 3))


# --- regions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("downsample", [1.0, 2.0, 4.0])
def test_planted_square_is_at_its_position(save, downsample):
    x, y, side = SQUARE
    with open_image(save(scene())) as source:
        inside = source.read(x, y, side, side, downsample)
        around = source.read(x - 16, y - 16, side + 32, side + 32, downsample)
    n, margin = int(side / downsample), int(16 / downsample)
    assert inside.shape == (n, n, 3)
    assert (inside == RED).all()
    assert (around[margin:-margin, margin:-margin] == RED).all()
    around[margin:-margin, margin:-margin] = GREY
    assert (around == GREY).all()


def test_reader_is_selected_by_file_type(tmp_path):
    assert isinstance(open_image(save_slide(tmp_path / "a.tif", scene())), SlideReader)
    assert isinstance(open_image(save_plain(tmp_path / "b.tif", scene())), RasterReader)
    assert isinstance(open_image(save_plain(tmp_path / "c.JPG", scene())), RasterReader)


def test_memory_bytes_of_readers(tmp_path):
    """All pixels of a plain image; a constant amount for slides."""
    plain = [open_image(save_plain(tmp_path / f"{n}.png", scene(n, 400))) for n in (500, 600)]
    assert [source.memory_bytes for source in plain] == [4 * 500 * 400, 4 * 600 * 400]
    grey = open_image(save_plain(tmp_path / "grey.png", scene(500, 400)[..., 0]))
    assert grey.memory_bytes == 500 * 400
    slides = [open_image(save_slide(tmp_path / f"{n}.tif", scene(n, 400))) for n in (500, 600)]
    assert slides[0].memory_bytes == slides[1].memory_bytes


def test_pixels_are_unchanged_without_reduction(save, rng):
    pixels = texture(rng)
    with open_image(save(pixels)) as source:
        assert source.size == (600, 440)
        region = source.read(37, 101, 211, 97)
    np.testing.assert_array_equal(region, pixels[101:198, 37:248])
    assert region.dtype == np.uint8
    region[:] = 0  # the caller gets a copy


def test_integer_reduction_is_the_block_mean(tmp_path, rng):
    pixels = texture(rng)
    with open_image(save_plain(tmp_path / "image.png", pixels)) as source:
        region = source.read(30, 50, 300, 200, 5)
    expected = block_means(pixels[50:250, 30:330].astype(float), 5)
    np.testing.assert_allclose(region, expected, atol=1.01)


@pytest.mark.parametrize("factor", [2, 4, 20, 40, 110])
def test_reduction_is_unbiased(tmp_path, rng, factor):
    """Rounding is to the nearest: by 2, Pillow's resize would add half a grey level on average."""
    pixels = texture(rng, 880, 440)
    with open_image(save_plain(tmp_path / "image.png", pixels)) as source:
        region = source.read(0, 0, 880, 440, factor)
    off = region - block_means(pixels.astype(float), factor)
    assert np.abs(off).max() < 1
    assert abs(off.mean()) < 0.2


def test_fractional_reduction_keeps_positions(save):
    x, y, side = SQUARE
    with open_image(save(scene())) as source:
        region = source.read(0, 0, 600, 440, 2.7)
    assert region.shape == (163, 222, 3)
    rows, columns = np.nonzero(np.abs(region.astype(int) - GREY).sum(axis=2) > 100)
    edges = np.array([columns.min(), columns.max() + 1, rows.min(), rows.max() + 1]) * 2.7
    np.testing.assert_allclose(edges, [x, x + side, y, y + side], atol=2.7)


@pytest.mark.parametrize("downsample", [3.0, 2.7])
def test_pieces_join_without_seams(save, rng, monkeypatch, downsample):
    source = open_image(save(texture(rng)))
    full = source.read(-20, 10, 540, 540, downsample)
    monkeypatch.setattr(reduction, "MAX_TILE_PX", 50)
    monkeypatch.setattr(reduction, "MAX_BLOCK_TILE_PX", 50)
    pieces = source.read(-20, 10, 540, 540, downsample)
    assert np.abs(full.astype(int) - pieces).max() <= 1


def test_slide_is_read_in_small_pieces(tmp_path, monkeypatch):
    source = open_image(save_slide(tmp_path / "a.tif", scene(), n_levels=1))
    sizes = []
    copy = SlideReader._read_tile
    monkeypatch.setattr(reduction, "MAX_TILE_PX", 64)
    monkeypatch.setattr(reduction, "MAX_BLOCK_TILE_PX", 64)
    monkeypatch.setattr(
        SlideReader,
        "_read_tile",
        lambda self, slide, piece: (
            sizes.append((piece.width, piece.height)) or copy(self, slide, piece)
        ),
    )
    for longest_side in (1, 20, 600):
        source.thumbnail(longest_side)
    assert len(sizes) > 3
    assert np.max(sizes) <= 64 + 2 * 64 + 2  # a piece with its margins


def test_area_beyond_the_border_is_white(save, rng):
    pixels = texture(rng)
    padded = np.full((460, 640, 3), 255, np.uint8)
    padded[10:450, 20:620] = pixels
    with open_image(save(pixels)) as source:
        np.testing.assert_array_equal(source.read(-20, -10, 640, 460), padded)
        assert (source.read(600, 0, 50, 40) == 255).all()
        assert (source.read(-5000, 9000, 64, 64, 2) == 255).all()
        assert (source.read(-5000, 9000, 64, 64, 2.5) == 255).all()


@pytest.mark.parametrize(
    ("width", "downsample", "expected"), [(10, 3, 3), (1, 8, 1), (7, 1, 7), (100, 1.5, 67)]
)
def test_size_of_the_result(save, width, downsample, expected):
    with open_image(save(scene())) as source:
        assert source.read(5, 5, width, width, downsample).shape == (expected, expected, 3)


@pytest.mark.parametrize(
    "arguments", [(0.5, 0, 1, 1), (0, 0, 0, 1), (0, 0, 1, -1), (0, 0, 1, 1, 0.5)]
)
def test_invalid_regions_are_refused(save, arguments):
    with open_image(save(scene())) as source, pytest.raises(ValueError, match="must be"):
        source.read(*arguments)


@pytest.mark.parametrize(
    ("longest", "shape"), [(300, (220, 300)), (277, (203, 277)), (9999, (440, 600)), (1, (1, 1))]
)
def test_thumbnail(save, longest, shape):
    with open_image(save(scene())) as source:
        thumbnail = source.thumbnail(longest)
    assert thumbnail.shape == (*shape, 3)
    # without dark or white borders, and with the colours of the image
    np.testing.assert_allclose(thumbnail.mean(axis=(0, 1)), scene().mean(axis=(0, 1)), atol=1)
    if longest > 1:
        assert (thumbnail[[0, -1]] == GREY).all()


def test_coarse_level_is_used_for_coarse_reductions(tmp_path, rng):
    source = open_image(save_slide(tmp_path / "a.tif", texture(rng)))
    assert [source._select_level(d)[0] for d in (1, 1.9, 2, 3.9, 4, 99)] == [0, 0, 1, 1, 2, 2]


# --- pixel size, bounds, transparency -----------------------------------------------------------


def test_pixel_size_of_a_slide_and_precedence(tmp_path):
    path = save_slide(tmp_path / "a.tif", scene(), mpp=0.25)
    assert open_image(path).mpp == pytest.approx(0.25)
    assert open_image(path, mpp=0.5).mpp == 0.5
    assert open_image(save_slide(tmp_path / "b.tif", scene())).mpp is None


@pytest.mark.parametrize(
    ("per_unit", "unit", "expected"),
    [
        (20_000, 3, 0.5),
        (50_800, 2, 0.5),
        (72, 2, None),
        (96, 2, None),
        (1, 3, None),
        (20_000, 1, None),
        (10_000_000, 3, None),
    ],
)
def test_pixel_size_of_a_plain_tiff(tmp_path, per_unit, unit, expected):
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, scene(), resolution=(per_unit, per_unit), resolutionunit=unit)
    assert open_image(path).mpp == (expected and pytest.approx(expected))


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_dots_per_inch_of_other_formats_are_ignored(tmp_path, suffix):
    assert open_image(save_plain(tmp_path / f"a{suffix}", scene(), dpi=(50_800,) * 2)).mpp is None


@pytest.mark.parametrize("mpp", [0, -1, float("nan"), "0.5"])
def test_invalid_pixel_size_is_refused(tmp_path, mpp):
    with pytest.raises(ValueError, match="mpp must be"):
        open_image(save_plain(tmp_path / "a.png", scene()), mpp=mpp)


# Like OpenSlide with an MRXS file: pixels only in a rectangle, half transparent there.
SLIDE_WITH_BOUNDS = """
from PIL import Image

class OpenSlide:
    dimensions = (5000, 4000)
    level_dimensions = ((5000, 4000), (1250, 1000))
    level_downsamples = (1.0, 4.0)

    def __init__(self, path):
        names = ("x", "y", "width", "height")
        bounds = zip(names, ("1000", "800", "600", "440"))
        self.properties = {f"openslide.bounds-{name}": value for name, value in bounds}
        self.properties |= {"openslide.mpp-x": "0.2", "openslide.mpp-y": "0.3"}
        self.picture = Image.new("RGBA", (5000, 4000))
        self.picture.paste((220, 30, 60, 255), (1000, 800, 1600, 1240))
        self.picture.paste((220, 30, 60, 51), (1000, 800, 1600, 900))

    def read_region(self, corner, level, size):
        step = int(self.level_downsamples[level])
        (x, y), (width, height) = corner, size
        box = (x, y, x + width * step, y + height * step)
        return self.picture.crop(box).resize(size, Image.Resampling.NEAREST)
"""


def test_slide_with_bounds_is_read_inside_them_over_white(tmp_path, slide_library):
    slide_library(SLIDE_WITH_BOUNDS)
    (tmp_path / "a.mrxs").write_bytes(b"x")
    source = open_image(tmp_path / "a.mrxs")
    assert (source.size, source.offset, source.mpp) == ((600, 440), (1000, 800), 0.25)
    for downsample in (1, 4):
        n = 100 // downsample
        pixels = source.read(0, 0, 600, 440, downsample)
        assert (pixels[n:] == RED).all()
        np.testing.assert_allclose(pixels[0, 0], 0.2 * np.array(RED) + 0.8 * 255, atol=1)
    assert (source.read(-100, -100, 50, 50) == 255).all()


def test_offset_is_zero_without_bounds(save):
    assert open_image(save(scene())).offset == (0, 0)


# --- handles ------------------------------------------------------------------------------------


def test_pickled_source_is_small_and_reads_the_same(save, rng):
    pixels = texture(rng)
    source = open_image(save(pixels))
    before = source.read(3, 4, 50, 60)
    packed = pickle.dumps(source)
    assert len(packed) < 2000
    twin = pickle.loads(packed)
    assert (twin.size, twin.mpp, twin.path) == (source.size, source.mpp, source.path)
    np.testing.assert_array_equal(twin.read(3, 4, 50, 60), before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_opens_the_file_itself(save, rng):
    source = open_image(save(texture(rng)))
    expected = source.read(3, 4, 50, 60)
    child = os.fork()
    if child == 0:
        own = os.getpid() not in source._handles
        same = np.array_equal(source.read(3, 4, 50, 60), expected)
        os._exit(0 if own and same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(source.read(3, 4, 50, 60), expected)


def test_threads_share_a_source(save, rng):
    pixels = texture(rng)
    source = open_image(save(pixels))
    with ThreadPoolExecutor(4) as pool:
        columns = list(pool.map(lambda x: source.read(x, 0, 10, 440), range(0, 600, 10)))
    np.testing.assert_array_equal(np.concatenate(columns, axis=1), pixels)


def test_close_releases_the_file(save):
    with open_image(save(scene())) as source:
        source.read(0, 0, 1, 1)
        assert source._handles
    assert not source._handles


def test_import_loads_no_image_library():
    code = (
        "import sys, histodict.images.source, histodict.datasets.manifest\n"
        "print(sorted({'PIL', 'openslide', 'tifffile', 'scipy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- invalid input ------------------------------------------------------------------------------


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ImageError, match=r"nothing\.png: file not found"):
        open_image(tmp_path / "nothing.png")


def test_folder_is_refused(tmp_path):
    (tmp_path / "a.png").mkdir()
    for path in (tmp_path, tmp_path / "a.png"):
        with pytest.raises(ImageError, match="is a folder"):
            open_image(path)


@pytest.mark.parametrize("suffix", sorted(READERS))
def test_empty_file_is_refused(tmp_path, suffix):
    (tmp_path / f"a{suffix}").touch()
    with pytest.raises(ImageError, match=r"0 bytes.*copy it again"):
        open_image(tmp_path / f"a{suffix}")


@pytest.mark.parametrize("suffix", sorted(READERS))
def test_text_with_an_image_suffix_is_refused(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_text("not an image")
    with pytest.raises(ImageError, match=rf"a\{suffix}: .*(not a JPEG|cannot open|is a file)"):
        open_image(path)


@pytest.mark.parametrize("name", ["a.webp", "a"])
def test_unknown_suffix_is_refused(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(
        ImageError, match=r"unsupported image format .*; supported are .*\.jpg.*\.svs"
    ):
        open_image(tmp_path / name)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".tif"])
def test_truncated_image_is_refused(tmp_path, rng, suffix):
    path = save_plain(tmp_path / f"a{suffix}", texture(rng))
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    with pytest.raises(ImageError, match=rf"a\{suffix}: .*(damaged|not a JPEG)"):
        read_all(path)
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_damaged_slide_is_refused(tmp_path, rng):
    path = save_slide(tmp_path / "a.tif", texture(rng))
    with tifffile.TiffFile(path) as tiff:
        start = tiff.pages[0].dataoffsets[0]
    data = bytearray(path.read_bytes())
    data[start : start + 5000] = bytes(5000)
    path.write_bytes(data)
    source = open_image(path)
    with pytest.raises(ImageError, match=r"a\.tif: part of the slide cannot be read"):
        source.read(0, 0, 100, 100)


def test_too_many_pixels_are_refused(tmp_path):
    limit = Image.MAX_IMAGE_PIXELS
    path = save_png_header(tmp_path / "a.png", 30_000, 20_000)
    with pytest.raises(ImageError, match=r"30000 x 20000 .*500 million.*pyramidal TIFF"):
        open_image(path)
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.filterwarnings("error")
def test_own_pixel_limit_replaces_that_of_pillow(tmp_path):
    assert 2 * Image.MAX_IMAGE_PIXELS < 24_000 * 20_000
    path = save_png_header(tmp_path / "a.png", 24_000, 20_000)
    assert open_image(path).size == (24_000, 20_000)


def test_missing_openslide_is_reported(tmp_path, slide_library):
    slide_library("raise ImportError('No module named openslide')")
    (tmp_path / "a.svs").write_bytes(b"x")
    with pytest.raises(ImageError, match="pip install openslide-python openslide-bin"):
        open_image(tmp_path / "a.svs")
    path = save_plain(tmp_path / "a.tif", scene())
    assert isinstance(open_image(path), RasterReader)


# --- real slides --------------------------------------------------------------------------------


def test_real_slides(data_folder):
    svs = open_image(data_folder / "slides" / "CMU-1-Small-Region.svs")
    tif = open_image(data_folder / "slides" / "CMU-1-Small-Region_pyramid.tif")
    for source in (svs, tif):
        assert isinstance(source, SlideReader)
        assert source.size == (2220, 2967)
        assert source.mpp == pytest.approx(0.499)
    for downsample in (1, 2, 4):
        regions = [s.read(700, 800, 1024, 1000, downsample).astype(int) for s in (svs, tif)]
        contrast = regions[0].std()
        assert np.sqrt(np.mean((regions[0] - regions[1]) ** 2)) < 0.3 * contrast
        # a shift by 8 level-0 pixels is much worse, so the regions are at the same position
        shifted = svs.read(708, 800, 1024, 1000, downsample).astype(int)
        assert np.abs(regions[0] - regions[1]).mean() < 0.5 * np.abs(shifted - regions[1]).mean()


def test_real_truncated_slide_is_refused(data_folder, tmp_path):
    full = data_folder / "slides" / "CMU-1-Small-Region.svs"
    cut = tmp_path / "cut.svs"
    shutil.copyfile(full, cut)
    os.truncate(cut, full.stat().st_size // 2)
    with pytest.raises(ImageError, match=r"cut\.svs"):
        read_all(cut)
