"""Pixels for the page, straight from the image files: deep-zoom tiles and thumbnails.

Level 0 is the whole image in one tile; every further level is twice as fine, the last is the
image's own pixels. A tile is TILE_SIDE pixels square, less at the right and lower edge.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..execution.files import atomic_write, file_key
from ..execution.memory_cache import Key, LocksByKey, LRUCache
from ..images.manifest import ImageRecord
from ..images.readers import ImageSource, open_image
from ..patches.pictures import encode_jpeg

TILE_SIDE = 512
_THUMBNAIL_SIDE = 220
_TILE_BYTES = 96 * 2**20  # encoded tiles
_PIXEL_BYTES = 768 * 2**20  # open images


def n_levels(size: tuple[int, int]) -> int:
    """Levels from the whole image in one tile to its own pixels."""
    return max(0, (max(size) - 1).bit_length() - (TILE_SIDE - 1).bit_length()) + 1


class Tiles:
    """Images, kept open as long as there is room; their tiles, in memory; thumbnails, on disk."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for thumbnails, so that a large set opens at once the second time."""
        self._folder = folder
        self._sources: LRUCache[ImageSource] = LRUCache(_PIXEL_BYTES)
        self._tiles: LRUCache[bytes] = LRUCache(_TILE_BYTES)
        self._writing = LocksByKey()

    def open(self, record: ImageRecord) -> ImageSource:
        """The image, opened before or now; one that has changed on disk is opened anew.

        It is never closed here: another thread may be reading. It goes when nobody holds it.
        """

        def opened() -> tuple[ImageSource, int]:
            source = open_image(record.path, record.mpp)
            source.read(0, 0, 1, 1)
            return source, source.memory_bytes

        return self._sources.get(_key(record), opened)

    def tile(self, record: ImageRecord, level: int, column: int, row: int) -> bytes:
        """A tile as JPEG; raises KeyError where there is none."""

        def encoded() -> tuple[bytes, int]:
            data = encode_jpeg(_read_tile(self.open(record), level, column, row))
            return data, len(data)

        return self._tiles.get(_tile_key(record, level, column, row), encoded)

    def cached_tile(self, record: ImageRecord, level: int, column: int, row: int) -> bytes | None:
        """A tile that was made before; None if it has to be made."""
        return self._tiles.find(_tile_key(record, level, column, row))

    def thumbnail_file(self, record: ImageRecord) -> Path:
        """Where the small picture is or will be."""
        name = hashlib.sha256(str(file_key(record.path)).encode()).hexdigest()[:24]
        return self._folder / name[:2] / f"{name}.jpg"

    def thumbnail(self, record: ImageRecord) -> Path:
        """The file of a small picture, made if it is not there."""
        path = self.thumbnail_file(record)
        with self._writing.held((path.name,)):  # two threads must not write the same file
            if not path.is_file():
                with open_image(record.path, record.mpp) as source:
                    data = encode_jpeg(source.thumbnail(_THUMBNAIL_SIDE))
                with atomic_write(path) as partial:
                    partial.write_bytes(data)
        return path


def _key(record: ImageRecord) -> Key:
    return (repr(file_key(record.path)), record.mpp)


def _tile_key(record: ImageRecord, *place: int) -> Key:
    return (*_key(record), *place)


def _read_tile(source: ImageSource, level: int, column: int, row: int) -> NDArray[np.uint8]:
    count = n_levels(source.size)
    factor = 2 ** (count - 1 - level) if 0 <= level < count else 0
    x, y = column * TILE_SIDE * factor, row * TILE_SIDE * factor
    if not (factor and 0 <= x < source.size[0] and 0 <= y < source.size[1]):
        raise KeyError("there is no such tile")
    width, height = (
        min(TILE_SIDE * factor, side - at) for side, at in zip(source.size, (x, y), strict=True)
    )
    return source.read(x, y, width, height, float(factor))
