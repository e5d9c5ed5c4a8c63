"""Slide backends: tiled levels, a decoder of JPEG tiles, and OpenSlide.

OpenSlide blends all tiles of a region. Most scanners write TIFF files of adjacent JPEG tiles, which
need no blending. `JpegTileReader` decodes such tiles one by one, in a fifth of the time, with the
decoder of OpenSlide (libjpeg-turbo, from the package simplejpeg). Without this package, OpenSlide
reads all tiles.

The first regions of each level are compared with those of OpenSlide. Warnings of the decoder are
errors, as in OpenSlide. Regions with missing or rejected tiles are read by OpenSlide.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..utils.cache import LRUCache
from .file_types import MissingLibraryError
from .resampling import ResampleTile, composite_on_white

if TYPE_CHECKING:
    from PIL import Image
    from tifffile import TiffPage


def level_downsamples(sizes: list[tuple[int, int]]) -> list[float]:
    """Return the downsample of each level relative to the first, from (width, height) of each.

    A downsample is the mean of the ratio of the widths and the ratio of the heights. If a whole
    number explains both sizes up to rounding to whole pixels, this number is returned instead.
    """
    return [_downsample(sizes[0], size) for size in sizes]


def _downsample(first: tuple[int, int], size: tuple[int, int]) -> float:
    ratios = [a / b for a, b in zip(first, size, strict=True)]
    mean = sum(ratios) / 2
    factor = max(1, round(mean))
    if all(abs(a / factor - b) < 1 for a, b in zip(first, size, strict=True)):
        return float(factor)
    return mean


Pixels = NDArray[np.uint8]

# Adjacent regions share the tiles at their borders, which are cached.
_CACHE_BYTES = 40 * 2**20
_BORDER_TILES = 2  # width of this border in tiles


class TileCache(LRUCache[Pixels]):
    """Cache of the most recently used tiles of all levels of a slide."""

    def __init__(self) -> None:
        super().__init__(_CACHE_BYTES)


class TiledLevel(ABC):
    """Level of a slide whose regions are composed of tiles.

    Attributes
    ----------
    size : (width, height) of the level in pixels
    tile_size : (width, height) of a tile; the last tiles may extend beyond the level
    n_across : number of tiles in a row
    n_down : number of tiles in a column
    """

    def __init__(self, size: tuple[int, int], tile: tuple[int, int], cache: TileCache) -> None:
        self.size, self.tile_size = size, tile
        self.n_across, self.n_down = (-(-a // b) for a, b in zip(size, tile, strict=True))
        self._cache = cache

    @abstractmethod
    def decode(self, index: int, out: Pixels) -> Pixels:
        """Return a tile (height, width, 4) by its row-major index, in `out` or in a new array."""

    def region(self, x: int, y: int, width: int, height: int) -> Pixels:
        """Return the pixels (height, width, 4) of a region; the last channel is unused.

        Pixels outside the level are white.

        Raises
        ------
        ValueError
            If a tile cannot be decoded.
        """
        pixels = np.full((height, width, 4), 255, np.uint8)
        ends = min(x + width, self.size[0]), min(y + height, self.size[1])
        down, across = (
            range(max(0, start) // side, -(-max(0, end) // side))
            for start, end, side in (
                (y, ends[1], self.tile_size[1]),
                (x, ends[0], self.tile_size[0]),
            )
        )
        scratch = np.empty((self.tile_size[1], self.tile_size[0], 4), np.uint8)
        for row in down:
            from_rows, to_rows = _overlap(row, self.tile_size[1], y, ends[1])
            for column in across:
                from_columns, to_columns = _overlap(column, self.tile_size[0], x, ends[0])
                use_cache = _is_at_border(row, down) or _is_at_border(column, across)
                tile = self._get_tile(row * self.n_across + column, use_cache, scratch)
                pixels[to_rows, to_columns] = tile[from_rows, from_columns]
        return pixels

    def _get_tile(self, index: int, use_cache: bool, scratch: Pixels) -> Pixels:
        """Return a tile by its row-major index; if not `use_cache`, decode it into `scratch`."""
        key = id(self), index
        use_cache = use_cache and scratch.nbytes <= _CACHE_BYTES
        tile = self._cache.find(key)
        if tile is None:
            tile = self.decode(index, np.empty_like(scratch) if use_cache else scratch)
            if use_cache:
                self._cache.put(key, tile, tile.nbytes)
        return tile


def _overlap(index: int, side: int, start: int, end: int) -> tuple[slice, slice]:
    """Return the slices of a tile and of a region in which they overlap along one axis.

    `index` is the index of the tile along this axis and `side` its length. The region is
    [start, end).
    """
    first, last = max(index * side, start), min((index + 1) * side, end)
    return slice(first - index * side, last - index * side), slice(first - start, last - start)


def _is_at_border(index: int, tiles: range) -> bool:
    return index < tiles.start + _BORDER_TILES or index >= tiles.stop - _BORDER_TILES


# Vendors (as in OpenSlide) of formats with adjacent tiles and one TIFF directory per level.
_TILED_VENDORS = ("aperio", "generic-tiff")
_JPEG, _RGB, _YCBCR = 7, 2, 6
_JPEG_START, _JPEG_END = b"\xff\xd8", b"\xff\xd9"
# JPEG marker for RGB colours; TIFF has a tag instead.
_RGB_MARKER = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"


class JpegTileLevel(TiledLevel):
    """Level of JPEG tiles in one page of a TIFF; `file` is the descriptor of the open file."""

    def __init__(self, file: int, page: TiffPage, cache: TileCache) -> None:
        tile = page.tilewidth, page.tilelength
        super().__init__((page.imagewidth, page.imagelength), tile, cache)
        self._file = file
        self._offsets = np.array(page.dataoffsets, np.int64)
        self._lengths = np.array(page.databytecounts, np.int64)
        if not len(self._offsets) == len(self._lengths) == self.n_across * self.n_down:
            raise ValueError("the directory lists too few or too many tiles for the image size")
        tables: bytes = page.jpegtables or _JPEG_START + _JPEG_END
        colours = _RGB_MARKER if page.photometric == _RGB else b""
        self._header = _JPEG_START + colours + tables[2:-2]

    def decode(self, index: int, out: Pixels) -> Pixels:
        """Decode a tile into `out`, as RGB in the first three channels."""
        from simplejpeg import decode_jpeg

        length = int(self._lengths[index])
        data = os.pread(self._file, length, int(self._offsets[index])) if length > 0 else b""
        if len(data) < 4 or len(data) != length or data[:2] != _JPEG_START:
            raise ValueError("not a JPEG tile")
        tile: Pixels = decode_jpeg(
            self._header + data[2:],
            "RGBX",
            fastdct=False,
            fastupsample=False,
            buffer=out,
            strict=True,
        )
        if tile.shape != out.shape:
            raise ValueError(f"a tile has {tile.shape[1]} x {tile.shape[0]} pixels")
        return tile


class JpegTileReader:
    """Levels of a slide whose JPEG tiles can be decoded one by one.

    `levels` maps OpenSlide's level numbers to levels, without those that only OpenSlide can read.
    """

    def __init__(self, path: str, vendor: str, sizes: Sequence[tuple[int, int]]) -> None:
        self._file = -1
        self.levels: dict[int, JpegTileLevel] = {}
        if vendor in _TILED_VENDORS and can_decode_jpeg_tiles():
            self._file = os.open(path, os.O_RDONLY)
            try:
                self._add_levels(path, sizes)
            except Exception:  # damaged directory: OpenSlide reads it, or reports the error
                self.levels.clear()

    def _add_levels(self, path: str, sizes: Sequence[tuple[int, int]]) -> None:
        pages, cache = list(_read_pages(path)), TileCache()
        for level, size in enumerate(sizes):
            matches = [page for page in pages if (page.imagewidth, page.imagelength) == size]
            if len(matches) == 1 and is_supported_page(matches[0]):
                self.levels[level] = JpegTileLevel(self._file, matches[0], cache)

    def close(self) -> None:
        """Close the file."""
        self.levels.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def can_decode_jpeg_tiles() -> bool:
    """Return whether the libraries that decode JPEG tiles are available."""
    if not hasattr(os, "pread"):  # reads of several threads at once need it
        return False
    try:
        import simplejpeg  # noqa: F401
        import tifffile  # noqa: F401
    except ImportError:
        return False
    return True


def _read_pages(path: str) -> Iterator[Any]:
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        yield from tiff.pages


def is_supported_page(page: TiffPage) -> bool:
    """Return whether a page of a TIFF consists of JPEG tiles that `JpegTileLevel` can decode."""
    return (
        page.is_tiled
        and page.compression == _JPEG
        and page.photometric in (_RGB, _YCBCR)
        and page.planarconfig == 1
        and (page.samplesperpixel, page.bitspersample) == (3, 8)
        and page.tiledepth == page.imagedepth == 1
    )


# Number of regions per level to compare with OpenSlide, and the side of the compared part.
_N_COMPARED = 8
_COMPARED_PX = 512


def _import_openslide() -> ModuleType:
    try:
        import openslide
    except (ImportError, OSError) as error:  # OSError: the C library is missing
        raise MissingLibraryError(str(error)) from error
    return openslide


def is_slide(path: str) -> bool:
    """Return whether OpenSlide recognises a file as a slide."""
    return _import_openslide().OpenSlide.detect_format(path) is not None


class OpenSlideBackend:
    """Slide opened with OpenSlide; its JPEG tiles are decoded directly if possible."""

    def __init__(self, path: str) -> None:
        self._n_compared: Counter[int] = Counter()  # number of identical regions by level
        slide = self._slide = _import_openslide().OpenSlide(path)
        vendor = slide.properties.get("openslide.vendor", "")
        self._tiles = JpegTileReader(path, vendor, slide.level_dimensions)
        self.metadata: dict[str, Any] = {
            "size": slide.dimensions,
            "level_sizes": slide.level_dimensions,
            "downsamples": slide.level_downsamples,
            "properties": dict(slide.properties),
        }

    def read_region(self, corner: list[int], tile: ResampleTile) -> Image.Image:
        """Return the pixels of a tile before resampling; see `SlideBackend.read_region`."""
        region = self._read_tiles(corner, tile)
        return self._read_with_openslide(corner, tile) if region is None else region

    def _read_with_openslide(self, corner: list[int], tile: ResampleTile) -> Image.Image:
        size = (tile.width, tile.height)
        return composite_on_white(self._slide.read_region((corner[0], corner[1]), tile.level, size))

    def _read_tiles(self, corner: list[int], tile: ResampleTile) -> Image.Image | None:
        """Return a region composed of decoded JPEG tiles; None if OpenSlide must read it."""
        from PIL import Image

        tiles = self._tiles.levels.get(tile.level)
        scale = self._slide.level_downsamples[tile.level]
        if not tiles or corner != [tile.x * scale, tile.y * scale]:
            return None  # OpenSlide interpolates between pixels of the level
        try:
            pixels = tiles.region(tile.x, tile.y, tile.width, tile.height)
        except (ValueError, OSError, MemoryError):  # OpenSlide reports the error
            return None
        if self._n_compared[tile.level] < _N_COMPARED and not self._matches_openslide(
            corner, tile, pixels
        ):
            return None
        return Image.frombuffer("RGBX", (tile.width, tile.height), pixels, "raw", "RGBX", 0, 1)

    def _matches_openslide(
        self, corner: list[int], tile: ResampleTile, pixels: NDArray[np.uint8]
    ) -> bool:
        """Return whether OpenSlide reads the same `pixels` in the upper left part of a tile.

        Otherwise, the tiles of this level are no longer decoded directly.
        """
        part = tile._replace(
            width=min(tile.width, _COMPARED_PX), height=min(tile.height, _COMPARED_PX)
        )
        expected = np.asarray(self._read_with_openslide(corner, part))
        if not np.array_equal(pixels[: part.height, : part.width, :3], expected):
            self._tiles.levels.pop(tile.level, None)
            return False
        self._n_compared[tile.level] += 1
        return True

    def close(self) -> None:
        """Close the slide."""
        self._tiles.close()
        self._slide.close()
