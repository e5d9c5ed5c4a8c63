"""Tiles show the image's own pixels, at every level, and what is kept stays bounded."""

import io

import numpy as np
import pytest
from PIL import Image

from histodict.images.manifest import Record
from histodict.web.tiles import TILE_SIDE, Tiles, n_levels


@pytest.fixture
def picture(tmp_path, rng):
    coarse = rng.integers(0, 255, (9, 14, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(coarse).resize((1300, 900), Image.Resampling.BICUBIC))
    Image.fromarray(pixels).save(tmp_path / "a.png")
    return Record(tmp_path / "a.png", "", ""), pixels


@pytest.fixture
def tiles(tmp_path):
    return Tiles(tmp_path / "thumbnails")


def decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data))).astype(int)


@pytest.mark.parametrize(
    ("size", "count"),
    [((1, 1), 1), ((512, 512), 1), ((513, 20), 2), ((1024, 9), 2), ((30000, 30000), 7)],
)
def test_the_coarsest_level_is_one_tile(size, count):
    assert n_levels(size) == count
    factor = 2 ** (count - 1)
    assert max(size) <= TILE_SIDE * factor
    assert count == 1 or max(size) > TILE_SIDE * factor / 2


def test_tiles_of_the_finest_level_are_the_image(tiles, picture):
    record, pixels = picture
    rows = []
    for row in range(2):
        parts = [decoded(tiles.tile(record, 2, column, row)) for column in range(3)]
        rows.append(np.concatenate(parts, axis=1))
    whole = np.concatenate(rows)
    assert whole.shape == pixels.shape
    assert np.abs(whole - pixels).mean() < 4  # JPEG


def test_a_coarser_tile_is_the_mean_of_the_finer_pixels(tiles, picture):
    record, pixels = picture
    tile = decoded(tiles.tile(record, 0, 0, 0))
    assert tile.shape == (225, 325, 3)
    means = pixels.reshape(225, 4, 325, 4, 3).mean(axis=(1, 3))
    assert np.abs(tile - means).mean() < 4


@pytest.mark.parametrize("place", [(3, 0, 0), (-1, 0, 0), (2, 3, 0), (2, 0, 2), (0, -1, 0)])
def test_there_are_no_other_tiles(tiles, picture, place):
    with pytest.raises(KeyError):
        tiles.tile(picture[0], *place)


def test_a_changed_file_is_read_anew(tiles, picture):
    record, pixels = picture
    tiles.tile(record, 0, 0, 0)
    Image.fromarray(255 - pixels).save(record.path)
    assert np.abs(decoded(tiles.tile(record, 2, 0, 0)) - (255 - pixels)[:512, :512]).mean() < 4


def test_a_thumbnail_stays_until_the_image_changes(tiles, picture):
    record, pixels = picture
    first = tiles.thumbnail(record)
    assert max(decoded(first.read_bytes()).shape) == 220
    assert tiles.thumbnail(record) == first
    Image.fromarray(255 - pixels).save(record.path)
    assert tiles.thumbnail(record) != first
