"""Nuclei of a scene: of the epithelium, of lymphocytes and of fibroblasts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from .scene import Map, Mask, Scene

Positions = tuple[NDArray[np.intp], NDArray[np.intp]]  # rows and columns

_MAX_DRAWINGS = 128  # of one kind of nucleus in an image


@dataclass(frozen=True)
class _Nuclei:
    """The look of one kind of nucleus; lengths in pixels, densities as haematoxylin."""

    length: float  # half axes
    width: float
    density: float
    rim: float  # added density of the membrane
    clumps: float  # relative contrast of the chromatin
    nucleolus: float  # its added density
    spacing: int  # no other nucleus within this distance of the centre

    @property
    def max_radius(self) -> int:
        """Pixels from the centre to the edge of the small image that holds a nucleus."""
        return math.ceil(1.35 * self.length)


_EPITHELIAL = _Nuclei(9.2, 6.2, 0.46, 0.24, 0.22, 0.35, 10)
_FIBROBLAST = _Nuclei(12.5, 2.6, 0.62, 0.12, 0.15, 0.0, 14)
_LYMPHOCYTE = _Nuclei(5.3, 4.9, 0.80, 0.18, 0.20, 0.0, 8)


def draw_lining(
    scene: Scene, depth: Map, wall: float, tissue: Mask, rng: np.random.Generator
) -> None:
    """A row of nuclei in the epithelium, standing on its base."""
    places = _scatter((np.abs(depth - 0.58 * wall) < 1.5) & tissue, 0.3, rng)
    angles = _uphill(depth, places)
    _paint(scene, _EPITHELIAL, places, angles + rng.normal(0, 0.2, len(angles)), rng)


def draw_lymphocytes(
    scene: Scene, inflammation: Map, allowed: Mask, stroma: Mask, rng: np.random.Generator
) -> None:
    """Crowds in inflamed stroma, some in inflamed epithelium, single ones elsewhere."""
    welcome = np.where(stroma, np.float32(1), np.float32(0.15))
    density = 0.02 * (inflammation * inflammation * welcome + 0.01)
    places = _scatter(allowed, density, rng)
    angles = rng.uniform(0, np.pi, len(places[0]))
    _paint(scene, _LYMPHOCYTE, places, angles, rng)


def draw_fibroblasts(scene: Scene, flow: Map, allowed: Mask, rng: np.random.Generator) -> None:
    """Thin nuclei along the fibres."""
    places = _scatter(allowed, 0.0016, rng)
    angles = _uphill(flow, places) + math.pi / 2
    _paint(scene, _FIBROBLAST, places, angles + rng.normal(0, 0.15, len(angles)), rng)


def _uphill(heights: Map, places: Positions) -> NDArray[np.float64]:
    """The angle of steepest ascent at the places."""
    dy, dx = (np.asarray(slope)[places] for slope in np.gradient(heights))
    return np.arctan2(dy, dx).astype(np.float64)


def _scatter(allowed: Mask, density: Map | float, rng: np.random.Generator) -> Positions:
    """Pixels at random, in random order, with the given density per pixel."""
    chosen = allowed & (rng.random(allowed.shape, dtype=np.float32) < density)
    rows, columns = np.nonzero(chosen)
    order = rng.permutation(len(rows))
    return rows[order], columns[order]


def _paint(
    scene: Scene,
    nuclei: _Nuclei,
    places: Positions,
    angles: NDArray[np.float64],
    rng: np.random.Generator,
) -> None:
    """Draw a nucleus at those places where there is room."""
    half = nuclei.max_radius
    kept = _enforce_spacing(scene.occupied, places, nuclei.spacing, max(half, nuclei.spacing))
    # Nuclei of about the same angle share a drawing: 128 are more than the eye remembers.
    kept.sort(key=angles.__getitem__)
    shared = np.arange(len(kept)) * min(len(kept), _MAX_DRAWINGS) // max(len(kept), 1)
    first = np.flatnonzero(np.diff(shared, prepend=-1))
    covers, densities = _nucleus_templates(nuclei, angles[kept][first], rng)
    for i, cover, density in zip(kept, covers[shared], densities[shared], strict=True):
        y, x = places[0][i], places[1][i]
        window = np.s_[y - half : y + half + 1, x - half : x + half + 1]
        H, E = scene.H[window], scene.E[window]
        H += cover * (density - H)
        E -= 0.55 * cover * E


def _enforce_spacing(taken: Mask, places: Positions, spacing: int, margin: int) -> list[int]:
    """Which places, first come first served, keep spacing and margin; they are marked as taken."""
    height, width = taken.shape
    dy, dx = np.indices((2 * spacing + 1, 2 * spacing + 1)) - spacing
    disc = dy**2 + dx**2 <= spacing**2
    kept = []
    for i, (y, x) in enumerate(zip(places[0].tolist(), places[1].tolist(), strict=True)):
        inside = margin <= y < height - margin and margin <= x < width - margin
        if inside and not taken[y, x]:
            taken[y - spacing : y + spacing + 1, x - spacing : x + spacing + 1] |= disc
            kept.append(i)
    return kept


def _nucleus_templates(
    nuclei: _Nuclei, angles: NDArray[np.float64], rng: np.random.Generator
) -> tuple[Map, Map]:
    """Cover (0 to 1) and haematoxylin of one small square image per nucleus."""

    def one_each(values: NDArray[np.float64]) -> Map:
        return values.astype(np.float32)[:, None, None]

    def around(mean: float, spread: float) -> Map:
        return one_each(mean * np.clip(rng.normal(1, spread, len(angles)), 0.7, 1.3))

    half = nuclei.max_radius
    y, x = np.indices((2 * half + 1, 2 * half + 1), dtype=np.float32) - half
    cos, sin = one_each(np.cos(angles)), one_each(np.sin(angles))
    length, width = around(nuclei.length, 0.11), around(nuclei.width, 0.13)
    u, v = (cos * x + sin * y) / length, (cos * y - sin * x) / width
    r = np.sqrt(u * u + v * v) + np.float32(1e-3)
    c, s = (one_each(rng.normal(0, 0.04, len(angles))) for _ in range(2))
    r /= 1 + (c * u * (u * u - 3 * v * v) + s * v * (3 * u * u - v * v)) / (
        r * r * r
    )  # c·cos 3θ + s·sin 3θ
    cover = np.clip((1 - r) * width / 1.2 + 0.5, 0, 1)
    rim = np.exp(-(((r - 0.86) * width / 1.3) ** 2))
    u0, v0 = (one_each(rng.uniform(-0.35, 0.35, len(angles))) for _ in range(2))
    nucleolus = np.exp(-((u - u0) ** 2 + (v - v0) ** 2) * (width / 1.5) ** 2)
    grain = rng.standard_normal(cover.shape, dtype=np.float32)
    chromatin = 1 + 4 * nuclei.clumps * ndimage.gaussian_filter(grain, (0, 1.1, 1.1))
    density = nuclei.density * chromatin + nuclei.rim * rim + nuclei.nucleolus * nucleolus
    return cover, np.maximum(around(1, 0.13) * density, np.float32(0.15))
