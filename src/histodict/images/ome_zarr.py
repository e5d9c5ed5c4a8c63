"""Read OME-Zarr, a folder of chunks, with zarr."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .decoding import plausible_mpp
from .ome_metadata import (
    Multiscale,
    check_channels,
    check_one_plane,
    first_of_several,
    read_multiscale,
)
from .ome_pixels import MAX_TILE_BYTES, OmeBackend, OmeLevel
from .opened_slide import SCALE_WITHOUT_UNIT, MissingLibraryError
from .tiled_level import TileCache

if TYPE_CHECKING:
    from .zarr_store import OpenedArray, ZarrFolder

# Small chunks are read together, up to this side, as each read takes about a millisecond.
_TILE_PX = 512


class OmeZarr(OmeBackend):
    """One open folder."""

    def __init__(self, path: str) -> None:
        folder = _folder(path)
        inside = first_of_several(folder.attributes())
        image = read_multiscale(folder.attributes(inside or ""))
        kept = TileCache()
        opened = [folder.open(_checked(inside, name)) for name in image.paths]
        levels = [_ChunkLevel(each, image, kept) for each in opened]
        super().__init__(path, levels, plausible_mpp(image.mpp))
        used = [each for each, level in zip(opened, levels, strict=True) if level in self.levels]
        self.metadata["missing_chunks"] = [
            sum(each.missing for each in used),
            sum(each.chunks for each in used),
        ]
        scale = plausible_mpp(image.scale_without_unit)
        if scale is not None:
            self.metadata["properties"][SCALE_WITHOUT_UNIT] = repr(scale)

    def close(self) -> None:
        """Do nothing: no file is open between two reads."""


def _folder(path: str) -> ZarrFolder:
    try:
        from .zarr_store import ZarrFolder
    except ImportError as error:
        raise MissingLibraryError(str(error)) from error
    return ZarrFolder(Path(path), MAX_TILE_BYTES)


def _checked(inside: str | None, path: str) -> str:
    """Return the path of a level relative to the folder."""
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or PurePosixPath(path).is_absolute():
        raise ValueError(f"it names a level {path!r} that is not inside")
    return PurePosixPath(inside or "", *parts).as_posix()


class _ChunkLevel(OmeLevel):
    """Level stored as an array whose last two axes are y and x."""

    def __init__(self, opened: OpenedArray, image: Multiscale, kept: TileCache) -> None:
        array, shape = opened.array, opened.metadata.shape
        pieces = opened.metadata.pieces
        if len(shape) != len(image.axes):
            raise ValueError(f"a level has {len(shape)} axes, and {image.axes!r} are named")
        sizes = dict(zip(image.axes, shape, strict=True))
        check_one_plane(sizes)
        check_channels(image.channels, sizes.get("c", 1))
        tile_y, tile_x = (_combined(piece) for piece in pieces[-2:])
        super().__init__((sizes["x"], sizes["y"]), (tile_x, tile_y), array.dtype, kept)
        self.check_tile(max(int(np.prod(pieces[:-2])), sizes.get("c", 1)))
        self._array = array
        self._front = tuple(slice(None) if axis == "c" else 0 for axis in image.axes[:-2])

    def values(self, place: int) -> NDArray[Any]:
        row, column = divmod(place, self.n_across)
        y, x = row * self.tile[1], column * self.tile[0]
        found = self._array[(*self._front, slice(y, y + self.tile[1]), slice(x, x + self.tile[0]))]
        planes = np.asarray(found)
        return planes[..., None] if planes.ndim == 2 else planes.transpose(1, 2, 0)


def _combined(chunk: int) -> int:
    """Return the side of the chunks that are read together."""
    return int(chunk) * max(1, round(_TILE_PX / max(1, int(chunk))))
