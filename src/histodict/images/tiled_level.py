"""Tiled levels of slides: regions are composed of tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from ..execution.memory_cache import LRUCache

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
