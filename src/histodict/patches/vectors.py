"""What stands for a patch, exchangeable by name; here vectors of the patch's own pixels.

A patch is (size, size, 3) uint8. Vectors are float32 of unit norm, the three colour channels one
after another, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..execution.array_cache import ArrayCache
from .grid import PatchGrid, Pixels
from .sampling import Allowed, sample_patches, turn_at_random
from .surroundings import read_pairs

PatchVectors = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

# Contrast below one grey level is noise: such a patch keeps a short vector, it is not blown up.
_LEAST_CONTRAST = 1 / 255


class Tissue(Pixels, Protocol):
    """What vectors are cut from: an image as a recipe sees it.

    context, turned : how much wider the surroundings are; whether patches are turned or mirrored
    border : what a network sees beyond it
    cache : keeps what is costly to compute; None keeps nothing
    pixels_key : all that decides its pixels, to keep things under
    """

    downsample: float
    context: int
    turned: bool
    border: str
    cache: ArrayCache | None

    @property
    def normalise(self) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]: ...
    @property
    def pixels_key(self) -> list[Any]: ...

    def on_tissue(self, patches: NDArray[np.uint8]) -> NDArray[np.bool_]: ...


class Vectors:
    """What stands for a patch, and how it is cut; every kind of vectors derives from it.

    are_pictures : atoms of such vectors can be looked at
    take_surroundings : a patch may be seen with what lies around it (`context`)
    """

    are_pictures: bool = True
    take_surroundings: bool = True

    def weights(self) -> str:
        """A digest of what was learnt to compute them; empty where nothing was."""
        return ""

    def length(self, patch_px: int, n_channels: int) -> int | None:
        """Of a vector; None where that is not known before there is one."""
        return None

    def check(self, patch_px: int, stride_px: int) -> None:
        """Refuses patches that they cannot be made of."""

    def of_chunk(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Which patches of a chunk are tissue (rows, columns), and these patches' vectors."""
        raise NotImplementedError

    def sample(
        self, tissue: Tissue, grid: PatchGrid, n: int, rng: Generator, allowed: Allowed | None
    ) -> NDArray[np.float32]:
        """Up to n vectors of random patches on tissue, at places that `allowed` accepts."""
        raise NotImplementedError


class PixelVectors(Vectors):
    """A function of the patch's pixels: (n, side, side, 3) to (n, n_features)."""

    def __init__(self, make: PatchVectors, *, are_pictures: bool = True) -> None:
        self.make = make
        self.are_pictures = are_pictures

    def __call__(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self.make(patches)

    def length(self, patch_px: int, n_channels: int) -> int | None:
        return n_channels * patch_px**2 if self.are_pictures else None

    def of_chunk(
        self, tissue: Tissue, grid: PatchGrid, rows: slice, columns: slice
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        if tissue.context > 1:
            patches = read_pairs(grid, tissue, rows, columns, tissue.context)
        else:
            patches = grid.read(tissue, rows, columns)[:, None]
        found = tissue.on_tissue(patches[:, 0])
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        return found.reshape(shape), self._of_scales(tissue, patches[found])

    def sample(
        self, tissue: Tissue, grid: PatchGrid, n: int, rng: Generator, allowed: Allowed | None
    ) -> NDArray[np.float32]:
        patches = sample_patches(tissue, n, grid, rng, tissue.on_tissue, allowed, tissue.context)
        if tissue.turned:
            patches = turn_at_random(patches, rng)
        return self._of_scales(tissue, patches if tissue.context > 1 else patches[:, None])

    def _of_scales(self, tissue: Tissue, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of patches (n, n_scales, patch_px, patch_px, 3); the scales weigh the same."""
        n_scales = patches.shape[1]
        parts = [self.make(tissue.normalise(patches[:, i])) for i in range(n_scales)]
        return parts[0] if n_scales == 1 else np.hstack(parts) / np.float32(n_scales**0.5)


# --- of pixels ----------------------------------------------------------------------------------


def rgb(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Pixel values as they are: brightness and colour count, as published."""
    return _unit(_planar(patches), float(np.finfo(np.float32).tiny))


def centred(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Less the mean of the whole patch: brightness does not count, colour does."""
    values = _planar(patches)
    values -= values.mean(axis=1, keepdims=True)
    return _unit(values, _LEAST_CONTRAST * np.sqrt(values.shape[1]))


def channel_centred(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Less the mean of each channel: neither brightness nor overall colour counts."""
    flat = _planar(patches)
    channels = flat.reshape(len(flat), 3, flat.shape[1] // 3)
    channels -= channels.mean(axis=2, keepdims=True)
    return _unit(flat, _LEAST_CONTRAST * np.sqrt(flat.shape[1]))


VECTORS: dict[str, PixelVectors] = {
    "rgb": PixelVectors(rgb),
    "centred": PixelVectors(centred),
    "channel-centred": PixelVectors(channel_centred),
}


def as_pictures(vectors: NDArray[Any], patch_px: int) -> NDArray[Any]:
    """Vectors of pixels, or atoms for such, as pictures (n, patch_px, width, 3).

    A patch and its surroundings stand side by side.
    """
    planes = vectors.reshape(len(vectors), -1, 3, patch_px, patch_px)
    pictures: NDArray[Any] = planes.transpose(0, 3, 1, 4, 2).reshape(len(vectors), patch_px, -1, 3)
    return pictures


def _planar(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    # The length is written out: an image of glass has no patches, and numpy cannot tell it then.
    planes: NDArray[Any] = patches.transpose(0, 3, 1, 2).reshape(
        len(patches), math.prod(patches.shape[1:])
    )
    return planes.astype(np.float32) / np.float32(255)


def _unit(vectors: NDArray[np.float32], least_norm: float) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, np.float32(least_norm))
