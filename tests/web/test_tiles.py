"""Tiles show the pixels of the image at every level, and the cache is bounded."""

import io
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import ImageRecord
from histodict.images.source import open_image
from histodict.web import maps as tiles_module
from histodict.web.maps import TILE_PX, TileCache, count_levels
from tests.web.app import count_calls


@pytest.fixture(scope="module")
def encoded_image():
    """An image as an array and as a PNG file."""
    coarse = np.random.default_rng(0).integers(0, 255, (9, 14, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((1300, 900), Image.Resampling.BICUBIC))
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", compress_level=1)
    return pixels, file.getvalue()


@pytest.fixture
def image(encoded_image, tmp_path):
    pixels, content = encoded_image
    (tmp_path / "a.png").write_bytes(content)
    return ImageRecord(tmp_path / "a.png", "", ""), pixels


@pytest.fixture
def tiles(tmp_path):
    return TileCache(tmp_path / "thumbnails")


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data))).astype(int)


@pytest.mark.parametrize(
    ("size", "count"),
    [((1, 1), 1), ((512, 512), 1), ((513, 20), 2), ((1024, 9), 2), ((30000, 30000), 7)],
)
def test_coarsest_level_is_one_tile(size, count):
    assert count_levels(size) == count
    factor = 2 ** (count - 1)
    assert max(size) <= TILE_PX * factor
    assert count == 1 or max(size) > TILE_PX * factor / 2


def test_tiles_of_the_finest_level_are_the_image(tiles, image):
    record, pixels = image
    rows = []
    for row in range(2):
        parts = [decoded(tiles.tile(record, 2, column, row)) for column in range(3)]
        rows.append(np.concatenate(parts, axis=1))
    stitched = np.concatenate(rows)
    assert stitched.shape == pixels.shape
    assert np.abs(stitched - pixels).mean() < 4  # JPEG


def test_coarser_tile_is_the_mean_of_finer_pixels(tiles, image):
    record, pixels = image
    tile = decoded(tiles.tile(record, 0, 0, 0))
    assert tile.shape == (225, 325, 3)
    means = pixels.reshape(225, 4, 325, 4, 3).mean(axis=(1, 3))
    assert np.abs(tile - means).mean() < 4


@pytest.mark.parametrize("place", [(3, 0, 0), (-1, 0, 0), (2, 3, 0), (2, 0, 2), (0, -1, 0)])
def test_tiles_outside_are_refused(tiles, image, place):
    with pytest.raises(KeyError):
        tiles.tile(image[0], *place)


def test_changed_file_is_read_again(tiles, image):
    record, pixels = image
    tiles.tile(record, 0, 0, 0)
    Image.fromarray(255 - pixels).save(record.path, compress_level=1)
    assert np.abs(decoded(tiles.tile(record, 2, 0, 0)) - (255 - pixels)[:512, :512]).mean() < 4


def test_thumbnail_is_cached_until_the_image_changes(tiles, image):
    record, pixels = image
    first = tiles.ensure_thumbnail_file(record)
    assert max(decoded(first.read_bytes()).shape) == 220
    assert tiles.ensure_thumbnail_file(record) == first
    Image.fromarray(255 - pixels).save(record.path, compress_level=1)
    assert tiles.ensure_thumbnail_file(record) != first


def test_slide_of_several_files_has_tiles(tiles, tmp_path):
    """The cache key covers all files."""
    record = ImageRecord(tmp_path / "slide.mrxs", "", "")
    (tmp_path / "slide").mkdir()
    for path in (record.path, tmp_path / "slide" / "Data0000.dat"):
        path.write_bytes(b"x")
    assert tiles.cached_tile(record, 0, 0, 0) is None


def test_hanging_image_blocks_no_other(tiles, image, monkeypatch):
    """It blocks neither tiles nor thumbnails of others."""
    record, _ = image
    hung = ImageRecord(record.path.with_name("hung.png"), "", "")
    hung.path.write_bytes(record.path.read_bytes())
    stored, begun = threading.Event(), threading.Semaphore(0)

    def opened(path, mpp=None):
        if path == hung.path:
            begun.release()
            stored.wait(10)
        return open_image(path, mpp)

    monkeypatch.setattr("histodict.web.maps.open_image", opened)
    with ThreadPoolExecutor(20) as pool:
        behind = [pool.submit(tiles.open, hung), pool.submit(tiles.ensure_thumbnail_file, hung)]
        begun.acquire(timeout=30), begun.acquire(timeout=30)
        done = [pool.submit(tiles.tile, record, 2, column, 0) for column in range(3)]
        done.append(pool.submit(tiles.ensure_thumbnail_file, record))
        try:
            assert all(future.result(5) for future in done)
        finally:
            stored.set()
        assert behind[0].result(5).size == (1300, 900)


def test_image_is_opened_once_for_concurrent_requests(tiles, image, monkeypatch):
    calls = count_calls(monkeypatch, tiles_module, "open_image")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda place: tiles.tile(image[0], 2, *place), [(0, 0), (1, 0), (2, 1)]))
    assert len(calls) == 1
