"""JPEG tiles of a slide, decoded one by one: OpenSlide's own pixels in a fifth of its time.

OpenSlide blends every tile into the region that was asked for. Scanners mostly write TIFF files of
JPEG tiles side by side, where there is nothing to blend. Such tiles are decoded here, in the
process that opens slides, by the library that OpenSlide has inside (libjpeg-turbo, from the package
simplejpeg; where that has no wheels, OpenSlide reads everything).

Nothing is taken on trust: warnings of the decoder are errors, as they are to OpenSlide, and where a
tile is missing or refused OpenSlide is asked for the region, and has the last word.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tifffile import TiffPage

Pixels = NDArray[np.uint8]

# Those whose tiles lie side by side, each level in a directory of its own.
_VENDORS = ("aperio", "generic-tiff")
_JPEG, _RGB, _YCBCR = 7, 2, 6
_START, _END = b"\xff\xd8", b"\xff\xd9"
# Says that the colours are red, green and blue, which a TIFF says in a tag of its own.
_COLOURS_ARE_RGB = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00\x00"
# Tiles at the rim of a region are needed again by the next, and by the one below.
_KEPT_BYTES = 48 * 2**20
_RIM = 2


class KeptTiles:
    """The tiles that were asked for last, of all levels together."""

    def __init__(self) -> None:
        self._tiles: OrderedDict[tuple[int, int], Pixels] = OrderedDict()
        self._n_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[int, int]) -> Pixels | None:
        with self._lock:
            tile = self._tiles.get(key)
            if tile is not None:
                self._tiles.move_to_end(key)
            return tile

    def put(self, key: tuple[int, int], tile: Pixels) -> None:
        with self._lock:
            if key in self._tiles:  # another thread was faster
                return
            self._tiles[key] = tile
            self._n_bytes += tile.nbytes
            while self._n_bytes > _KEPT_BYTES:
                self._n_bytes -= self._tiles.popitem(last=False)[1].nbytes


class JpegTiles:
    """One level of a slide.

    size : (width, height) in pixels
    """

    def __init__(self, file: int, page: TiffPage, kept: KeptTiles) -> None:
        self.size = page.imagewidth, page.imagelength
        self._file = file
        self._tile = page.tilewidth, page.tilelength
        self._n_across = -(-page.imagewidth // page.tilewidth)
        self._offsets = np.array(page.dataoffsets, np.int64)
        self._lengths = np.array(page.databytecounts, np.int64)
        n_down = -(-page.imagelength // page.tilelength)
        if not len(self._offsets) == len(self._lengths) == self._n_across * n_down:
            raise ValueError("a directory without as many tiles as its size asks for")
        tables: bytes = page.jpegtables or _START + _END
        colours = _COLOURS_ARE_RGB if page.photometric == _RGB else b""
        self._head = _START + colours + tables[2:-2]
        self._kept = kept

    def region(self, x: int, y: int, width: int, height: int) -> Pixels:
        """Pixels (height, width, 4), of which the last is nothing; white beyond the level.

        A ValueError says why a tile cannot be had.
        """
        pixels = np.full((height, width, 4), 255, np.uint8)
        ends = min(x + width, self.size[0]), min(y + height, self.size[1])
        down, across = (
            range(max(0, start) // side, -(-max(0, end) // side))
            for start, end, side in ((y, ends[1], self._tile[1]), (x, ends[0], self._tile[0]))
        )
        scratch = np.empty((self._tile[1], self._tile[0], 4), np.uint8)
        for row in down:
            from_rows, to_rows = _overlap(row, self._tile[1], y, ends[1])
            for column in across:
                from_columns, to_columns = _overlap(column, self._tile[0], x, ends[0])
                keep = _at_rim(row, down) or _at_rim(column, across)
                tile = self._tile_at(row * self._n_across + column, keep, scratch)
                pixels[to_rows, to_columns] = tile[from_rows, from_columns]
        return pixels

    def _tile_at(self, place: int, keep: bool, scratch: Pixels) -> Pixels:
        """A tile; one that is not to be kept lies in the scratch."""
        key = id(self), place
        tile = self._kept.get(key)
        if tile is None:
            tile = self._decode(place, np.empty_like(scratch) if keep else scratch)
            if keep:
                self._kept.put(key, tile)
        return tile

    def _decode(self, place: int, out: Pixels) -> Pixels:
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


def _overlap(place: int, side: int, start: int, end: int) -> tuple[slice, slice]:
    """Of a row or column of tiles, what lies between start and end: in the tile, and from start."""
    first, last = max(place * side, start), min((place + 1) * side, end)
    return slice(first - place * side, last - place * side), slice(first - start, last - start)


def _at_rim(place: int, places: range) -> bool:
    return place < places.start + _RIM or place >= places.stop - _RIM


class OpenTiles:
    """The levels of a slide that can be read so, by OpenSlide's number; none where it is unsure."""

    def __init__(self, path: str, vendor: str, sizes: Sequence[tuple[int, int]]) -> None:
        self._file = -1
        self.levels: dict[int, JpegTiles] = {}
        if vendor in _VENDORS and _can_decode():
            self._file = os.open(path, os.O_RDONLY)
            try:
                self._find(path, sizes)
            except Exception:  # of a damaged directory: OpenSlide reads it, or says what is wrong
                self.levels.clear()

    def _find(self, path: str, sizes: Sequence[tuple[int, int]]) -> None:
        pages, kept = list(_pages(path)), KeptTiles()
        for level, size in enumerate(sizes):
            fitting = [page for page in pages if (page.imagewidth, page.imagelength) == size]
            if len(fitting) == 1 and _is_plain(fitting[0]):
                self.levels[level] = JpegTiles(self._file, fitting[0], kept)

    def close(self) -> None:
        self.levels.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _can_decode() -> bool:
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


def _is_plain(page: TiffPage) -> bool:
    return (
        page.is_tiled
        and page.compression == _JPEG
        and page.photometric in (_RGB, _YCBCR)
        and page.planarconfig == 1
        and (page.samplesperpixel, page.bitspersample) == (3, 8)
        and page.tiledepth == page.imagedepth == 1
    )
