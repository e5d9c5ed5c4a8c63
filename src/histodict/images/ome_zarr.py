"""OME-Zarr, a folder of chunks, read by zarr chunk by chunk."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .decoding import plausible_mpp
from .ngff import Multiscale, first_of_several, read_multiscale
from .ome_channels import check_channels, check_one_plane
from .ome_level import OmeLevel, OmeSlide
from .opened_slide import SCALE_WITHOUT_UNIT, NoLibraryError, UnfitError
from .tiled_level import KeptTiles

# Small chunks are asked for together, up to this side: each question takes a millisecond.
_TILE_PX = 512


class OmeZarr(OmeSlide):
    """One open folder."""

    def __init__(self, path: str) -> None:
        _check_links(path)
        group = _group(path)
        inside = first_of_several(group.attrs)
        if inside is not None:
            group = group[inside]
        image = read_multiscale(group.attrs)
        kept = KeptTiles()
        levels = [_ChunkLevel(group[_checked(name)], image, kept) for name in image.paths]
        super().__init__(path, levels, plausible_mpp(image.mpp))
        scale = plausible_mpp(image.scale_without_unit)
        if scale is not None:
            self.facts["properties"][SCALE_WITHOUT_UNIT] = repr(scale)

    def close(self) -> None:
        """There is nothing open between two reads."""


def _group(path: str) -> Any:
    try:
        import zarr
    except ImportError as error:
        raise NoLibraryError(str(error)) from error
    try:
        return zarr.open_group(zarr.storage.LocalStore(path, read_only=True), mode="r")
    except FileNotFoundError as error:
        raise UnfitError(
            "there is no zarr group in this folder (zarr.json, or .zgroup): copy all of it"
        ) from error


def _check_links(path: str) -> None:
    """Whoever lets us read a folder does not let us read what a link in it leads to."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            if os.path.islink(os.path.join(folder, name)):
                raise UnfitError(
                    f"there are links in this folder ({name}), which are not followed: copy it "
                    "with what they lead to (cp -rL)"
                )


def _checked(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or ".." in parts or PurePosixPath(path).is_absolute():
        raise ValueError(f"it names a level {path!r} that is not inside")
    return path


class _ChunkLevel(OmeLevel):
    """An array, of which the last two axes are y and x."""

    def __init__(self, array: Any, image: Multiscale, kept: KeptTiles) -> None:
        if len(array.shape) != len(image.axes):
            raise ValueError(f"a level has {len(array.shape)} axes, and {image.axes!r} are named")
        sizes = dict(zip(image.axes, array.shape, strict=True))
        check_one_plane(sizes)
        check_channels(image.channels, sizes.get("c", 1))
        tile_y, tile_x = (_together(chunk) for chunk in array.chunks[-2:])
        super().__init__((sizes["x"], sizes["y"]), (tile_x, tile_y), array.dtype, kept)
        self.check_tile(max(int(np.prod(array.chunks[:-2])), sizes.get("c", 1)))
        self._array = array
        self._front = tuple(slice(None) if axis == "c" else 0 for axis in image.axes[:-2])

    def values(self, place: int) -> NDArray[Any]:
        row, column = divmod(place, self.n_across)
        y, x = row * self.tile[1], column * self.tile[0]
        found = self._array[(*self._front, slice(y, y + self.tile[1]), slice(x, x + self.tile[0]))]
        planes = np.asarray(found)
        return planes[..., None] if planes.ndim == 2 else planes.transpose(1, 2, 0)


def _together(chunk: int) -> int:
    """The side of as many chunks as are read at once."""
    return int(chunk) * max(1, round(_TILE_PX / max(1, int(chunk))))
