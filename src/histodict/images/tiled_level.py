"""A level of a slide that lies in tiles: a region of it from the tiles that it touches."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

# Tiles at the rim of a region are needed again by the next, and by the one below.
_KEPT_BYTES = 40 * 2**20
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


class TiledLevel(ABC):
    """One level of a slide.

    size, tile : (width, height) in pixels, of all and of a tile; the last ones may stand out
    """

    def __init__(self, size: tuple[int, int], tile: tuple[int, int], kept: KeptTiles) -> None:
        self.size, self.tile = size, tile
        self.n_across, self.n_down = (-(-a // b) for a, b in zip(size, tile, strict=True))
        self._kept = kept

    @abstractmethod
    def decode(self, place: int, out: Pixels) -> Pixels:
        """A tile (height, width, 4), by its place row by row; `out` may be used for it."""

    def region(self, x: int, y: int, width: int, height: int) -> Pixels:
        """Pixels (height, width, 4), of which the last is nothing; white beyond the level.

        A ValueError says why a tile cannot be had.
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
        """A tile; one that is not to be kept lies in the scratch."""
        key = id(self), place
        tile = self._kept.get(key)
        if tile is None:
            tile = self.decode(place, np.empty_like(scratch) if keep else scratch)
            if keep:
                self._kept.put(key, tile)
        return tile


def _overlap(place: int, side: int, start: int, end: int) -> tuple[slice, slice]:
    """Of a row or column of tiles, what lies between start and end: in the tile, and from start."""
    first, last = max(place * side, start), min((place + 1) * side, end)
    return slice(first - place * side, last - place * side), slice(first - start, last - start)


def _at_rim(place: int, places: range) -> bool:
    return place < places.start + _RIM or place >= places.stop - _RIM
