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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .tiled_level import Pixels, TileCache, TiledLevel

if TYPE_CHECKING:
    from tifffile import TiffPage

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
