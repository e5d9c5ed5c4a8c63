"""What stands for a patch: the step from pixels to a vector, exchangeable by name.

A patch is (size, size, 3) uint8. Vectors are float32 of unit norm, the three colour channels one
after another, as in the paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

PatchVectors = Callable[[NDArray[np.uint8]], NDArray[np.float32]]

# Contrast below one grey level is noise: such a patch keeps a short vector, it is not blown up.
_LEAST_CONTRAST = 1 / 255


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


VECTORS: dict[str, PatchVectors] = {
    "rgb": rgb,
    "centred": centred,
    "channel-centred": channel_centred,
}


def as_pictures(vectors: NDArray[Any], patch_px: int) -> NDArray[Any]:
    """Vectors of pixels, or atoms for such, as pictures (n, patch_px, width, 3).

    A patch and its surroundings stand side by side.
    """
    planes = vectors.reshape(len(vectors), -1, 3, patch_px, patch_px)
    pictures: NDArray[Any] = planes.transpose(0, 3, 1, 4, 2).reshape(len(vectors), patch_px, -1, 3)
    return pictures


def are_pictures(n_features: int, patch_px: int) -> bool:
    """Whether vectors so long can be shown as pictures."""
    return n_features in (3 * patch_px**2, 6 * patch_px**2)


def _planar(patches: NDArray[np.uint8]) -> NDArray[np.float32]:
    # The length is written out: an image of glass has no patches, and numpy cannot tell it then.
    planes: NDArray[Any] = patches.transpose(0, 3, 1, 2).reshape(
        len(patches), math.prod(patches.shape[1:])
    )
    return planes.astype(np.float32) / np.float32(255)


def _unit(vectors: NDArray[np.float32], least_norm: float) -> NDArray[np.float32]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, np.float32(least_norm))
