"""Levels of OME images: tiles of grey, RGB or RGBA, of 8 or 16 bits, converted to 8-bit RGB."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .opened_slide import UnsupportedSlideError, level_downsamples
from .reduction import ResampleTile, composite_on_white
from .tiled_level import Pixels, TileCache, TiledLevel
from .wide_pixels import to_8_bits, white_level

# Of a decoded tile: the memory of the process that decodes is limited to about a gigabyte.
MAX_TILE_BYTES = 256 * 2**20
_KINDS = ("uint8", "uint16")
# Images reduced more unevenly than this are other images, not levels.
_MAX_SKEW = 1.05


class OmeLevel(TiledLevel):
    """dtype : of the values; white : the value that is white"""

    def __init__(
        self, size: tuple[int, int], tile: tuple[int, int], dtype: Any, kept: TileCache
    ) -> None:
        super().__init__(size, tile, kept)
        self.dtype = np.dtype(dtype)
        self.white = 255.0
        check_kind(self.dtype)

    @abstractmethod
    def values(self, place: int) -> NDArray[Any] | None:
        """Return a tile (height, width, n_samples), cropped to the level; None if it is missing.

        n_samples is 1 for grey, 3 for RGB, 4 for RGBA.
        """

    def check_tile(self, n_samples: int) -> None:
        """Refuse tiles that are too large to be decoded."""
        n_bytes = self.tile[0] * self.tile[1] * n_samples * self.dtype.itemsize
        if n_bytes > MAX_TILE_BYTES:
            raise UnsupportedSlideError(
                f"its pixels lie in pieces of {self.tile[0]} x {self.tile[1]}, {n_bytes >> 20} MiB "
                f"each; more than {MAX_TILE_BYTES >> 20} cannot be read in parts: save it again "
                "in tiles of, say, 512 x 512"
            )

    def largest(self) -> int:
        """Return the largest value, reading tile by tile."""
        found = (self.values(place) for place in range(self.n_across * self.n_down))
        return max((int(tile.max(initial=0)) for tile in found if tile is not None), default=0)

    def decode(self, place: int, out: Pixels) -> Pixels:
        values = self.values(place)
        if values is None:
            out[:] = 255
            return out
        height, width, n_samples = values.shape
        shown = to_8_bits(values, self.white)
        if n_samples == 4:
            shown = np.asarray(composite_on_white(Image.fromarray(shown)))
        out[:height, :width, :3] = shown
        return out


def check_kind(dtype: np.dtype[Any]) -> None:
    if dtype.name not in _KINDS:
        raise UnsupportedSlideError(
            f"its values are of the kind {dtype.name}, and colours have 8 or 16 bits: save it with "
            "8 bits per colour (RGB)"
        )


class OmeBackend:
    """Open OME image; `levels` begin with the finest. Subclasses define `close`."""

    def __init__(self, path: str, levels: Sequence[OmeLevel], mpp: float | None) -> None:
        self.levels = _true_levels(levels)
        if self.levels[0].dtype.itemsize > 1:
            # From the smallest level: in the others only single pixels could be brighter.
            white = white_level(Path(path), 0, self.levels[-1].largest())
            for level in self.levels:
                level.white = white
        sizes = [level.size for level in self.levels]
        self.metadata: dict[str, Any] = {
            "size": sizes[0],
            "level_sizes": sizes,
            "downsamples": level_downsamples(sizes),
            "properties": {} if mpp is None else {"openslide.mpp-x": repr(mpp)},
        }

    def picture(self, corner: list[int], piece: ResampleTile) -> Image.Image:
        pixels = self.levels[piece.level].region(piece.x, piece.y, piece.width, piece.height)
        return Image.frombuffer("RGBX", (piece.width, piece.height), pixels, "raw", "RGBX", 0, 1)


def _true_levels(levels: Sequence[OmeLevel]) -> list[OmeLevel]:
    """Return the levels that are the first one reduced, each smaller than the one before."""
    found = [levels[0]]
    for level in levels[1:]:
        across, down = (a / b for a, b in zip(levels[0].size, level.size, strict=True))
        is_smaller = level.size[0] < found[-1].size[0] and level.size[1] <= found[-1].size[1]
        # Rounding changes the ratio of short sides.
        slack = _MAX_SKEW + 2 / min(level.size)
        if is_smaller and 1 / slack < across / down < slack and level.dtype == found[0].dtype:
            found.append(level)
    return found
