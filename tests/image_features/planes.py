"""Planes and images shared by tests of image features."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import gaussian_filter


def texture(rng, shape=(80, 80), blur=2.0):
    """Return smooth random integer grey levels from 0 to 255."""
    smooth = gaussian_filter(rng.standard_normal(shape), blur)
    unit = (smooth - smooth.min()) / (smooth.max() - smooth.min())
    return np.rint(unit * 255).astype(np.float32)


def colour_image(rng, shape=(80, 80), blur=2.0):
    return np.stack([texture(rng, shape, blur) for _ in range(3)], axis=-1).astype(np.uint8)


TURNS = {
    "quarter turn": lambda plane: np.rot90(plane).copy(),
    "half turn": lambda plane: np.rot90(plane, 2).copy(),
    "mirrored": lambda plane: plane[:, ::-1].copy(),
}
