"""A scene under way: maps of the two dyes on a canvas, and smooth noise to draw them with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..parameters import check_whole_number

Map = NDArray[np.float32]
Mask = NDArray[np.bool_]

_SMALLEST_SIDE = 64
_BORDER = 24  # drawn around the image and cut off, so that nuclei may lie across its edge


class Scene:
    """Concentrations under way: maps H and E, and where nuclei have taken the room."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.H: Map = np.zeros(shape, np.float32)
        self.E: Map = np.zeros(shape, np.float32)
        self.occupied: Mask = np.zeros(shape, bool)


def canvas_shape(size: tuple[int, int]) -> tuple[int, int]:
    """The shape to draw on for an image of `size`, (width, height)."""
    width = check_whole_number("width", size[0], _SMALLEST_SIDE)
    height = check_whole_number("height", size[1], _SMALLEST_SIDE)
    return height + 2 * _BORDER, width + 2 * _BORDER


def cut_border(canvas: NDArray) -> NDArray:
    return canvas[_BORDER:-_BORDER, _BORDER:-_BORDER]


def smooth_noise(
    shape: tuple[int, int], scale: tuple[float, float], rng: np.random.Generator
) -> Map:
    """Noise of mean 0 and deviation about 1, smooth over `scale` pixels down and across."""
    coarse = [max(2, round(n / s) + 1) for n, s in zip(shape, scale, strict=True)]
    grid = rng.standard_normal(coarse, dtype=np.float32) * np.float32(1.25)
    return enlarge(grid, shape)


def enlarge(grid: Map, shape: tuple[int, int]) -> Map:
    resized: Map = np.asarray(Image.fromarray(grid).resize(shape[::-1], Image.Resampling.BICUBIC))
    return resized


def coordinates(shape: tuple[int, int]) -> tuple[Map, Map]:
    y, x = np.indices(shape, dtype=np.float32)
    return y, x
