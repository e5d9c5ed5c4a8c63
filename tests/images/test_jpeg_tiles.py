"""Tests of JPEG tile decoding: the pixels equal those of OpenSlide, which is the fallback."""

from __future__ import annotations

import sys

import pytest

from histodict.images import slide_backend as jpeg_tiles
from histodict.images import slide_backend as openslide_slide
from histodict.images import slide_backend as tiled_level
from histodict.images.slide_backend import JpegTileLevel, OpenSlideBackend
from histodict.images.slide_worker import DONE, OPENSLIDE, SlideServer

if sys.platform != "linux":  # on Linux it is a requirement
    pytest.importorskip("simplejpeg")
big_slide = pytest.importorskip("benchmarks.big_slide", reason="the benchmarks are not here")

SIDE = 1500
REAL = ("CMU-1-Small-Region.svs", "CMU-1-Small-Region_pyramid.tif")


@pytest.fixture(scope="module")
def synthetic_slide(tmp_path_factory):
    return big_slide.write_slide(tmp_path_factory.mktemp("slides") / "drawn.tif", SIDE)


@pytest.fixture(params=["drawn", *REAL])
def slide(request, synthetic_slide, data_folder):
    if request.param == "drawn":
        return synthetic_slide
    path = data_folder / "slides" / request.param
    if not path.is_file():
        pytest.skip(f"HISTODICT_DATA has no {path.name}")
    return path


def opened(path, tiles=True):
    slides = SlideServer()
    slides.open(str(path), OPENSLIDE)
    if not tiles:
        slides._slide._tiles.levels.clear()
    return slides


def order(slides, level, x, y, width, height, factor=1):
    scale = slides._slide.metadata["downsamples"][level]
    corner = [round(x * scale), round(y * scale)]
    shape = (height // factor, width // factor)
    return corner, [level, x, y, shape[1] * factor, shape[0] * factor, shape, None]


@pytest.fixture
def openslide_requests(monkeypatch):
    """Regions that were requested from OpenSlide, apart from comparisons."""
    found = []
    read = OpenSlideBackend._read_with_openslide

    def counted(self, corner, piece):
        found.append(piece)
        return read(self, corner, piece)

    monkeypatch.setattr(OpenSlideBackend, "_read_with_openslide", counted)
    monkeypatch.setattr(openslide_slide, "_N_COMPARED", 0)
    return found


def test_regions_have_the_same_pixels(slide, rng):
    ours, theirs = opened(slide), opened(slide, tiles=False)
    assert 0 in ours._slide._tiles.levels
    for level, (width, height) in enumerate(ours._slide.metadata["level_sizes"]):
        for _ in range(12):
            x, y = (int(rng.integers(-40, side)) for side in (width, height))
            sizes = rng.integers(8, 700, 2).tolist()
            piece = order(ours, level, x, y, *sizes, int(rng.choice([1, 2, 4])))
            assert ours.execute("read_tile", *piece) == theirs.execute("read_tile", *piece)


def test_complete_level_is_read_without_openslide(synthetic_slide, openslide_requests):
    slides = opened(synthetic_slide)
    slides.read_tile(*order(slides, 0, 0, 0, SIDE, SIDE))
    assert not openslide_requests


def test_openslide_reads_between_pixels_of_a_level(synthetic_slide, openslide_requests):
    slides = opened(synthetic_slide)
    corner, fields = order(slides, 1, 10, 10, 50, 50)
    slides.read_tile([corner[0] + 1, corner[1]], fields)
    assert len(openslide_requests) == 1


def test_damaged_tiles_behave_as_with_openslide(slide, tmp_path, rng):
    content = bytearray(slide.read_bytes())
    level = opened(slide)._slide._tiles.levels[0]
    outcomes = set()
    for train_test in range(60):
        place = int(rng.integers(len(level._offsets)))
        start, length = int(level._offsets[place]), int(level._lengths[place])
        harmed = bytearray(content)
        for _ in range(1 + 10 * (train_test % 2)):
            at = start + int(rng.integers(40 if train_test % 3 == 0 else length))
            harmed[at] = int(rng.integers(256))
        path = tmp_path / slide.name
        path.write_bytes(harmed)
        across = level.n_across
        x, y = place % across * level.tile_size[0], place // across * level.tile_size[1]
        predictions = []
        for slides in (opened(path), opened(path, tiles=False)):
            predictions.append(slides.execute("read_tile", *order(slides, 0, x, y, 64, 64)))
            slides.close()
        assert predictions[0] == predictions[1]
        outcomes.add(predictions[0][0] == DONE)
    assert outcomes == {True, False}


def test_level_with_differing_pixels_is_not_used(synthetic_slide, monkeypatch):
    decode = JpegTileLevel.decode

    def off_by_one(self, place, out):
        tile = decode(self, place, out)
        tile[-1, -1, 0] ^= 1
        return tile

    monkeypatch.setattr(JpegTileLevel, "decode", off_by_one)
    slides, right = opened(synthetic_slide), opened(synthetic_slide, tiles=False)
    piece = order(slides, 0, 0, 0, 600, 600)
    assert slides.read_tile(*piece) == right.read_tile(*piece)
    assert 0 not in slides._slide._tiles.levels


def test_tile_is_decoded_once_for_neighbouring_regions(synthetic_slide, monkeypatch):
    places = []
    decode = JpegTileLevel.decode
    monkeypatch.setattr(
        JpegTileLevel, "decode", lambda self, *more: places.append(more[0]) or decode(self, *more)
    )
    slides = opened(synthetic_slide)
    for y in range(0, SIDE - 528, 512):
        for x in range(0, SIDE - 528, 512):
            slides.read_tile(*order(slides, 0, x, y, 528, 528))
    assert len(places) == len(set(places)) > 9


def test_tile_cache_is_bounded(synthetic_slide, monkeypatch):
    monkeypatch.setattr(tiled_level, "_CACHE_BYTES", 3 * 4 * 256**2)
    slides = opened(synthetic_slide)
    full_level = slides.read_tile(*order(slides, 0, 0, 0, SIDE, SIDE))
    assert len(slides._slide._tiles.levels[0]._cache._entries) == 3
    assert full_level == opened(synthetic_slide, tiles=False).read_tile(
        *order(slides, 0, 0, 0, SIDE, SIDE)
    )


def test_openslide_reads_all_without_the_decoder(synthetic_slide, monkeypatch):
    monkeypatch.setattr(jpeg_tiles, "can_decode_jpeg_tiles", lambda: False)
    slides = opened(synthetic_slide)
    assert not slides._slide._tiles.levels
    assert len(slides.read_tile(*order(slides, 0, 0, 0, 64, 64))) == 64 * 64 * 3
