"""JPEG tiles of a slide, decoded one by one: OpenSlide's own pixels in a fifth of its time.

OpenSlide blends every tile into the region that was asked for. Scanners mostly write TIFF files of
JPEG tiles side by side, where there is nothing to blend. Such tiles are decoded here, in the
process that opens slides, by the library that OpenSlide has inside (libjpeg-turbo, from the package
simplejpeg; where that has no wheels, OpenSlide reads everything).

Nothing is taken on trust: warnings of the decoder are errors, as they are to OpenSlide, and where a
tile is missing or refused OpenSlide is asked for the region, and has the last word.

What a library makes of a slide, in the process that opens slides.

Tiled levels of slides: regions are composed of tiles.

A slide as OpenSlide reads it; JPEG tiles where these can be decoded one by one.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..utils.cache import LRUCache
from .resampling import ResampleTile, composite_on_white

if TYPE_CHECKING:
    from PIL import Image

    from .resampling import ResampleTile
if TYPE_CHECKING:
    from tifffile import TiffPage
if TYPE_CHECKING:
    from PIL import Image

# Additional property: a scale without a unit, which may be the pixel size in µm.
SCALE_WITHOUT_UNIT = "ome.scale-without-unit"


class UnsupportedSlideError(Exception):
    """The file is as it should be, and yet cannot be used; the message says why, and what to do."""


class MissingLibraryError(Exception):
    """What would read it is not installed."""


class SlideBackend(Protocol):
    """facts : its size, level_sizes, downsamples and properties, of OpenSlide's names"""

    metadata: dict[str, Any]

    def picture(self, corner: list[int], piece: ResampleTile) -> Image.Image:
        """The rectangle of a piece, not reduced yet; its corner is given in pixels of level 0."""

    def close(self) -> None: ...


def level_downsamples(sizes: list[tuple[int, int]]) -> list[float]:
    """How many times smaller each level is than the first.

    A whole number where the sizes are those of the first divided by it and rounded, up or down.
    """
    return [_downsample(sizes[0], size) for size in sizes]


def _downsample(whole: tuple[int, int], size: tuple[int, int]) -> float:
    ratios = [a / b for a, b in zip(whole, size, strict=True)]
    mean = sum(ratios) / 2
    factor = max(1, round(mean))
    if all(abs(a / factor - b) < 1 for a, b in zip(whole, size, strict=True)):
        return float(factor)
    return mean


Pixels = NDArray[np.uint8]

# Tiles at the border of a region are needed again by its neighbours.
_CACHE_BYTES = 40 * 2**20
_RIM = 2


class TileCache(LRUCache[Pixels]):
    """The most recently used tiles of all levels of a slide."""

    def __init__(self) -> None:
        super().__init__(_CACHE_BYTES)


class TiledLevel(ABC):
    """One level of a slide.

    size, tile : (width, height) in pixels, of the level and of a tile; the last tiles may exceed it
    """

    def __init__(self, size: tuple[int, int], tile: tuple[int, int], kept: TileCache) -> None:
        self.size, self.tile = size, tile
        self.n_across, self.n_down = (-(-a // b) for a, b in zip(size, tile, strict=True))
        self._cache = kept

    @abstractmethod
    def decode(self, place: int, out: Pixels) -> Pixels:
        """Return a tile (height, width, 4) by its row-major index; `out` may be used for it."""

    def region(self, x: int, y: int, width: int, height: int) -> Pixels:
        """Return pixels (height, width, 4), white beyond the level; the last channel is unused.

        A ValueError states why a tile cannot be decoded.
        """
        pixels = np.full((height, width, 4), 255, np.uint8)
        ends = min(x + width, self.size[0]), min(y + height, self.size[1])
        down, across = (
            range(max(0, start) // side, -(-max(0, end) // side))
            for start, end, side in ((y, ends[1], self.tile[1]), (x, ends[0], self.tile[0]))
        )
        scratch = np.empty((self.tile[1], self.tile[0], 4), np.uint8)
        for row in down:
            from_rows, to_rows = _overlap(row, self.tile[1], y, ends[1])
            for column in across:
                from_columns, to_columns = _overlap(column, self.tile[0], x, ends[0])
                keep = _at_rim(row, down) or _at_rim(column, across)
                tile = self._tile_at(row * self.n_across + column, keep, scratch)
                pixels[to_rows, to_columns] = tile[from_rows, from_columns]
        return pixels

    def _tile_at(self, place: int, keep: bool, scratch: Pixels) -> Pixels:
        """Return a tile; one that is not cached may share memory with the scratch array."""
        key = id(self), place
        keep = keep and scratch.nbytes <= _CACHE_BYTES
        tile = self._cache.find(key)
        if tile is None:
            tile = self.decode(place, np.empty_like(scratch) if keep else scratch)
            if keep:
                self._cache.put(key, tile, tile.nbytes)
        return tile


def _overlap(place: int, side: int, start: int, end: int) -> tuple[slice, slice]:
    """Return the part of a tile between start and end, in the tile and in the region."""
    first, last = max(place * side, start), min((place + 1) * side, end)
    return slice(first - place * side, last - place * side), slice(first - start, last - start)


def _at_rim(place: int, places: range) -> bool:
    return place < places.start + _RIM or place >= places.stop - _RIM


# Those whose tiles lie side by side, each level in a directory of its own.
_VENDORS = ("aperio", "generic-tiff")
_JPEG, _RGB, _YCBCR = 7, 2, 6
_START, _END = b"\xff\xd8", b"\xff\xd9"
# Says that the colours are red, green and blue, which a TIFF says in a tag of its own.
_COLOURS_ARE_RGB = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"


class JpegTileLevel(TiledLevel):
    """One level, a page of a TIFF."""

    def __init__(self, file: int, page: TiffPage, kept: TileCache) -> None:
        tile = page.tilewidth, page.tilelength
        super().__init__((page.imagewidth, page.imagelength), tile, kept)
        self._file = file
        self._offsets = np.array(page.dataoffsets, np.int64)
        self._lengths = np.array(page.databytecounts, np.int64)
        if not len(self._offsets) == len(self._lengths) == self.n_across * self.n_down:
            raise ValueError("a directory without as many tiles as its size asks for")
        tables: bytes = page.jpegtables or _START + _END
        colours = _COLOURS_ARE_RGB if page.photometric == _RGB else b""
        self._head = _START + colours + tables[2:-2]

    def decode(self, place: int, out: Pixels) -> Pixels:
        from simplejpeg import decode_jpeg

        length = int(self._lengths[place])
        data = os.pread(self._file, length, int(self._offsets[place])) if length > 0 else b""
        if len(data) < 4 or len(data) != length or data[:2] != _START:
            raise ValueError("no JPEG")
        tile: Pixels = decode_jpeg(
            self._head + data[2:],
            "RGBX",
            fastdct=False,
            fastupsample=False,
            buffer=out,
            strict=True,
        )
        if tile.shape != out.shape:
            raise ValueError(f"a tile of {tile.shape[1]} x {tile.shape[0]} pixels")
        return tile


class JpegTileReader:
    """The levels of a slide that can be read so, by OpenSlide's number; none where it is unsure."""

    def __init__(self, path: str, vendor: str, sizes: Sequence[tuple[int, int]]) -> None:
        self._file = -1
        self.levels: dict[int, JpegTileLevel] = {}
        if vendor in _VENDORS and can_decode():
            self._file = os.open(path, os.O_RDONLY)
            try:
                self._find(path, sizes)
            except Exception:  # of a damaged directory: OpenSlide reads it, or says what is wrong
                self.levels.clear()

    def _find(self, path: str, sizes: Sequence[tuple[int, int]]) -> None:
        pages, kept = list(_pages(path)), TileCache()
        for level, size in enumerate(sizes):
            fitting = [page for page in pages if (page.imagewidth, page.imagelength) == size]
            if len(fitting) == 1 and is_supported_page(fitting[0]):
                self.levels[level] = JpegTileLevel(self._file, fitting[0], kept)

    def close(self) -> None:
        self.levels.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def can_decode() -> bool:
    if not hasattr(os, "pread"):  # which several threads may call at once
        return False
    try:
        import simplejpeg  # noqa: F401
        import tifffile  # noqa: F401
    except ImportError:
        return False
    return True


def _pages(path: str) -> Iterator[Any]:
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        yield from tiff.pages


def is_supported_page(page: TiffPage) -> bool:
    return (
        page.is_tiled
        and page.compression == _JPEG
        and page.photometric in (_RGB, _YCBCR)
        and page.planarconfig == 1
        and (page.samplesperpixel, page.bitspersample) == (3, 8)
        and page.tiledepth == page.imagedepth == 1
    )


# Of the first regions made of tiles this much is read by OpenSlide as well.
_N_COMPARED = 8
_COMPARED_PX = 512


def _openslide() -> ModuleType:
    try:
        import openslide
    except (ImportError, OSError) as error:  # OSError: the library behind it is missing
        raise MissingLibraryError(str(error)) from error
    return openslide


def is_slide(path: str) -> bool:
    """Whether OpenSlide takes a file for a slide."""
    return _openslide().OpenSlide.detect_format(path) is not None


class OpenSlideBackend:
    """One open slide."""

    def __init__(self, path: str) -> None:
        self._n_compared: Counter[int] = Counter()  # by level, what was seen to be the same
        slide = self._slide = _openslide().OpenSlide(path)
        vendor = slide.properties.get("openslide.vendor", "")
        self._tiles = JpegTileReader(path, vendor, slide.level_dimensions)
        self.metadata: dict[str, Any] = {
            "size": slide.dimensions,
            "level_sizes": slide.level_dimensions,
            "downsamples": slide.level_downsamples,
            "properties": dict(slide.properties),
        }

    def picture(self, corner: list[int], piece: ResampleTile) -> Image.Image:
        region = self._from_tiles(corner, piece)
        return self._read(corner, piece) if region is None else region

    def _read(self, corner: list[int], piece: ResampleTile) -> Image.Image:
        size = (piece.width, piece.height)
        return composite_on_white(
            self._slide.read_region((corner[0], corner[1]), piece.level, size)
        )

    def _from_tiles(self, corner: list[int], piece: ResampleTile) -> Image.Image | None:
        """The region from tiles decoded one by one; None where that cannot be done."""
        from PIL import Image

        tiles = self._tiles.levels.get(piece.level)
        scale = self._slide.level_downsamples[piece.level]
        if not tiles or corner != [piece.x * scale, piece.y * scale]:
            return None  # or between two pixels of the level, which OpenSlide mixes
        try:
            pixels = tiles.region(piece.x, piece.y, piece.width, piece.height)
        except (ValueError, OSError, MemoryError):  # what is wrong is for OpenSlide to say
            return None
        if self._n_compared[piece.level] < _N_COMPARED and not self._compare(corner, piece, pixels):
            return None
        return Image.frombuffer("RGBX", (piece.width, piece.height), pixels, "raw", "RGBX", 0, 1)

    def _compare(self, corner: list[int], piece: ResampleTile, pixels: NDArray[np.uint8]) -> bool:
        """Whether OpenSlide's pixels are the same; if not, this level's tiles serve no more."""
        part = piece._replace(
            width=min(piece.width, _COMPARED_PX), height=min(piece.height, _COMPARED_PX)
        )
        expected = np.asarray(self._read(corner, part))
        if not np.array_equal(pixels[: part.height, : part.width, :3], expected):
            self._tiles.levels.pop(piece.level, None)
            return False
        self._n_compared[piece.level] += 1
        return True

    def close(self) -> None:
        self._tiles.close()
        self._slide.close()
