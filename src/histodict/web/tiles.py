"""Deep-zoom tiles straight from the image file, with bounded memory.

Level 0 is the whole image in one tile; every further level is twice as fine, the last is the
image's own pixels. A tile is TILE_SIDE pixels square, less at the right and lower edge.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..images.readers import ImageSource, open_image
from ..reports.pictures import encode_jpeg
from .bytes_cache import BytesCache, Key

TILE_SIDE = 512
_TILE_BYTES = 96 * 2**20  # encoded tiles
_PIXEL_BYTES = 768 * 2**20  # open images


def n_levels(size: tuple[int, int]) -> int:
    """Levels from the whole image in one tile to its own pixels."""
    return max(0, (max(size) - 1).bit_length() - (TILE_SIDE - 1).bit_length()) + 1


class Tiles:
    """Tiles and cut-outs of images; files are kept open as long as there is room for them."""

    def __init__(self) -> None:
        self._sources: BytesCache[ImageSource] = BytesCache(_PIXEL_BYTES)
        self._tiles: BytesCache[bytes] = BytesCache(_TILE_BYTES)
        self._opening = threading.Lock()

    def open(self, path: Path, mpp: float | None = None) -> ImageSource:
        """The image, opened before or now; one that has changed on disk is opened anew.

        It is never closed here: another thread may be reading. It goes when nobody holds it.
        """
        key = _stamp(path, mpp)
        source = self._sources.get(key)
        if source is None:
            with self._opening:  # or the tiles of one screen would all decode the same file
                source = self._sources.get(key)
                if source is None:
                    source = open_image(path, mpp)
                    source.read(0, 0, 1, 1)
                    self._sources.put(key, source, source.held_bytes)
        return source

    def tile(self, path: Path, mpp: float | None, level: int, column: int, row: int) -> bytes:
        """A tile as JPEG; raises KeyError where there is none."""
        key = (*_stamp(path, mpp), level, column, row)
        data = self._tiles.get(key)
        if data is None:
            data = encode_jpeg(_read_tile(self.open(path, mpp), level, column, row))
            self._tiles.put(key, data, len(data))
        return data

    def cut_out(
        self, path: Path, mpp: float | None, corner: tuple[int, int], side: int, shown_px: int
    ) -> NDArray[np.uint8]:
        """A square of the image, `side` level-0 pixels wide, shown_px pixels at most."""
        source = self.open(path, mpp)
        return source.read(*corner, side, side, max(1.0, side / shown_px))


def _read_tile(source: ImageSource, level: int, column: int, row: int) -> NDArray[np.uint8]:
    count = n_levels(source.size)
    if not 0 <= level < count:
        raise KeyError("there is no such tile")
    factor = 2 ** (count - 1 - level)
    x, y = column * TILE_SIDE * factor, row * TILE_SIDE * factor
    if not (0 <= x < source.size[0] and 0 <= y < source.size[1]):
        raise KeyError("there is no such tile")
    width, height = (
        min(TILE_SIDE * factor, side - at) for side, at in zip(source.size, (x, y), strict=True)
    )
    return source.read(x, y, width, height, float(factor))


def _stamp(path: Path, mpp: float | None) -> Key:
    state = path.stat()
    return str(path), mpp, state.st_size, state.st_mtime_ns
