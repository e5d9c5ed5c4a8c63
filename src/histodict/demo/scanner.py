"""From concentrations to colours: a patient's stain, and the scanner that sees it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from .scene import Scene, cut_border


@dataclass(frozen=True)
class Stain:
    """How one patient's slides were stained and scanned.

    `haematoxylin` and `eosin` are unit vectors of optical density (R, G, B), the strengths multiply
    the concentrations, `white` is the colour of empty glass (0 to 255).
    """

    haematoxylin: tuple[float, float, float]
    eosin: tuple[float, float, float]
    haematoxylin_strength: float
    eosin_strength: float
    white: tuple[float, float, float]


def draw_stain(rng: np.random.Generator) -> Stain:
    """A patient's stain: colour vectors about the usual ones; strengths, brightness at random."""
    h = _unit(np.array([0.62, 0.71, 0.31]) + rng.normal(0, [0.035, 0.025, 0.025]))
    e = _unit(np.array([0.14, 0.87, 0.42]) + rng.normal(0, [0.045, 0.03, 0.07]))
    white = rng.uniform(216, 252) + rng.normal(0, 2.5, 3)
    return Stain(
        haematoxylin=_triple(h),
        eosin=_triple(e),
        haematoxylin_strength=float(np.exp(rng.uniform(-0.6, 0.6))),
        eosin_strength=float(np.exp(rng.uniform(-0.75, 0.45))),
        white=_triple(np.minimum(white, 254)),
    )


def simulate_scan(scene: Scene, stain: Stain, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The image that a scanner makes: Beer-Lambert, a little blur, a little noise."""
    thickness = rng.uniform(0.85, 1.15)  # of the section, about the usual one
    h = thickness * stain.haematoxylin_strength * np.array(stain.haematoxylin)
    e = thickness * stain.eosin_strength * np.array(stain.eosin)
    H, E = cut_border(scene.H)[..., None], cut_border(scene.E)[..., None]
    density = H * h.astype(np.float32) + E * e.astype(np.float32)
    light = np.array(stain.white, np.float32) * np.exp(-math.log(10) * density)
    blur = rng.uniform(0.6, 0.9)
    light = ndimage.gaussian_filter(light, (blur, blur, 0), truncate=3)
    light += 2 * rng.standard_normal((*H.shape[:2], 1), dtype=np.float32)
    return np.clip(np.rint(light), 0, 255).astype(np.uint8)


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)


def _triple(vector: NDArray[np.float64]) -> tuple[float, float, float]:
    r, g, b = vector.tolist()
    return r, g, b
