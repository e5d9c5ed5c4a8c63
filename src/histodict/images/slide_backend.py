"""Slide backends: tiled levels, a decoder of JPEG tiles, and OpenSlide.

OpenSlide blends all tiles of a region. Most scanners write TIFF files of JPEG tiles side by side,
which need no blending. `JpegTileReader` decodes such tiles one by one, in a fifth of the time, with
the library that OpenSlide uses (libjpeg-turbo, from the package simplejpeg; without it, OpenSlide
reads everything).

Results are verified: the first regions of each level are compared with those of OpenSlide, warnings
of the decoder are errors, as in OpenSlide, and OpenSlide reads regions with missing or rejected
tiles.
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

    from .resampling import ResampleTile


def level_downsamples(sizes: list[tuple[int, int]]) -> list[float]:
    """Return the downsample of each level relative to the first.

    The ratio of sizes is rounded to a whole number if it differs only because the size of the level
    was rounded up or down.
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

# Neighbouring regions share the tiles at their borders.
_CACHE_BYTES = 40 * 2**20
_RIM = 2


class TileCache(LRUCache[Pixels]):
    """Cache of the most recently used tiles of all levels of a slide."""

    def __init__(self) -> None:
        super().__init__(_CACHE_BYTES)


class TiledLevel(ABC):
    """Level of a slide whose regions are composed of tiles.

    Attributes
    ----------
    size : (width, height) of the level in pixels
    tile : (width, height) of a tile; the last tiles may exceed the level
    """

    def __init__(self, size: tuple[int, int], tile: tuple[int, int], cache: TileCache) -> None:
        self.size, self.tile = size, tile
        self.n_across, self.n_down = (-(-a // b) for a, b in zip(size, tile, strict=True))
        self._cache = cache

    @abstractmethod
    def decode(self, index: int, out: Pixels) -> Pixels:
        """Return a tile (height, width, 4) by its row-major index; it may be `out`, filled."""

    def region(self, x: int, y: int, width: int, height: int) -> Pixels:
        """Return pixels (height, width, 4), white outside the level; the last channel is unused.

        Raises
        ------
        ValueError
            If a tile cannot be decoded.
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
                use_cache = _at_rim(row, down) or _at_rim(column, across)
                tile = self._tile_at(row * self.n_across + column, use_cache, scratch)
                pixels[to_rows, to_columns] = tile[from_rows, from_columns]
        return pixels

    def _tile_at(self, index: int, use_cache: bool, scratch: Pixels) -> Pixels:
        """Return a tile; one that is not cached may share memory with the scratch array."""
        key = id(self), index
        use_cache = use_cache and scratch.nbytes <= _CACHE_BYTES
        tile = self._cache.find(key)
        if tile is None:
            tile = self.decode(index, np.empty_like(scratch) if use_cache else scratch)
            if use_cache:
                self._cache.put(key, tile, tile.nbytes)
        return tile


def _overlap(index: int, side: int, start: int, end: int) -> tuple[slice, slice]:
    """Return the part of a tile between start and end, in the tile and in the region."""
    first, last = max(index * side, start), min((index + 1) * side, end)
    return slice(first - index * side, last - index * side), slice(first - start, last - start)


def _at_rim(index: int, indices: range) -> bool:
    return index < indices.start + _RIM or index >= indices.stop - _RIM


# Formats with tiles side by side and one directory per level.
_VENDORS = ("aperio", "generic-tiff")
_JPEG, _RGB, _YCBCR = 7, 2, 6
_START, _END = b"\xff\xd8", b"\xff\xd9"
# JPEG marker for RGB colours, which a TIFF states in a tag instead.
_COLOURS_ARE_RGB = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"


class JpegTileLevel(TiledLevel):
    """Level of JPEG tiles, from one page of a TIFF."""

    def __init__(self, file: int, page: TiffPage, cache: TileCache) -> None:
        tile = page.tilewidth, page.tilelength
        super().__init__((page.imagewidth, page.imagelength), tile, cache)
        self._file = file
        self._offsets = np.array(page.dataoffsets, np.int64)
        self._lengths = np.array(page.databytecounts, np.int64)
        if not len(self._offsets) == len(self._lengths) == self.n_across * self.n_down:
            raise ValueError("the directory lists too few or too many tiles for the image size")
        tables: bytes = page.jpegtables or _START + _END
        colours = _COLOURS_ARE_RGB if page.photometric == _RGB else b""
        self._head = _START + colours + tables[2:-2]

    def decode(self, index: int, out: Pixels) -> Pixels:
        """Decode a tile into `out`, as RGB in the first three channels."""
        from simplejpeg import decode_jpeg

        length = int(self._lengths[index])
        data = os.pread(self._file, length, int(self._offsets[index])) if length > 0 else b""
        if len(data) < 4 or len(data) != length or data[:2] != _START:
            raise ValueError("not a JPEG tile")
        tile: Pixels = decode_jpeg(
            self._head + data[2:],
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
        if vendor in _VENDORS and can_decode():
            self._file = os.open(path, os.O_RDONLY)
            try:
                self._find_levels(path, sizes)
            except Exception:  # damaged directory: OpenSlide reads it, or reports the error
                self.levels.clear()

    def _find_levels(self, path: str, sizes: Sequence[tuple[int, int]]) -> None:
        pages, cache = list(_pages(path)), TileCache()
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


def can_decode() -> bool:
    """Return whether the libraries that decode JPEG tiles are available."""
    if not hasattr(os, "pread"):  # needed, as it is safe in several threads
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
    """Return whether a page of a TIFF consists of JPEG tiles that can be decoded here."""
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


def _openslide() -> ModuleType:
    try:
        import openslide
    except (ImportError, OSError) as error:  # OSError: the library behind it is missing
        raise MissingLibraryError(str(error)) from error
    return openslide


def is_slide(path: str) -> bool:
    """Return whether OpenSlide recognises a file as a slide."""
    return _openslide().OpenSlide.detect_format(path) is not None


class OpenSlideBackend:
    """Slide opened with OpenSlide; its JPEG tiles are decoded directly if possible."""

    def __init__(self, path: str) -> None:
        self._n_compared: Counter[int] = Counter()  # identical regions by level
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
        """Return the rectangle `piece` of a level, not resampled yet.

        `corner` is its upper left corner in level-0 pixels.
        """
        region = self._from_tiles(corner, piece)
        return self._read(corner, piece) if region is None else region

    def _read(self, corner: list[int], piece: ResampleTile) -> Image.Image:
        size = (piece.width, piece.height)
        return composite_on_white(
            self._slide.read_region((corner[0], corner[1]), piece.level, size)
        )

    def _from_tiles(self, corner: list[int], piece: ResampleTile) -> Image.Image | None:
        """Return a region from individually decoded tiles; None if this is impossible."""
        from PIL import Image

        tiles = self._tiles.levels.get(piece.level)
        scale = self._slide.level_downsamples[piece.level]
        if not tiles or corner != [piece.x * scale, piece.y * scale]:
            return None  # OpenSlide interpolates between pixels of the level
        try:
            pixels = tiles.region(piece.x, piece.y, piece.width, piece.height)
        except (ValueError, OSError, MemoryError):  # OpenSlide reports the error
            return None
        if self._n_compared[piece.level] < _N_COMPARED and not self._compare(corner, piece, pixels):
            return None
        return Image.frombuffer("RGBX", (piece.width, piece.height), pixels, "raw", "RGBX", 0, 1)

    def _compare(self, corner: list[int], piece: ResampleTile, pixels: NDArray[np.uint8]) -> bool:
        """Return whether OpenSlide reads the same pixels; if not, disable this level's tiles."""
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
        """Close the slide."""
        self._tiles.close()
        self._slide.close()
