"""A slide as OpenSlide reads it; JPEG tiles where these can be decoded one by one."""

from __future__ import annotations

from collections import Counter
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .jpeg_tiles import JpegTileReader
from .opened_slide import MissingLibraryError
from .reduction import ResampleTile, composite_on_white

if TYPE_CHECKING:
    from PIL import Image

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
