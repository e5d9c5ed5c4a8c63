"""Where things are in a scene: tissue and glass, inflammation, foci, lumens."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import ndimage

from .scene import BORDER, Map, Mask, coordinates, smooth_noise

_GLASS_SHARE = 0.2  # of the images show a margin of empty glass


def draw_tissue_edge(shape: tuple[int, int], rng: np.random.Generator) -> Mask:
    """Where there is tissue: everywhere, or on one side of a wavy line."""
    if rng.random() > _GLASS_SHARE:
        return np.ones(shape, bool)
    angle = rng.uniform(0, 2 * math.pi)
    y, x = coordinates(shape)
    across = math.cos(angle) * (2 * x / shape[1] - 1) + math.sin(angle) * (2 * y / shape[0] - 1)
    waves = 0.1 * smooth_noise(shape, (70, 70), rng) + 0.02 * smooth_noise(shape, (15, 15), rng)
    return across + waves < rng.uniform(0.5, 0.8)


def _healthy(shape: tuple[int, int], rng: np.random.Generator) -> Map:
    return np.zeros(shape, np.float32)


def _inflamed(shape: tuple[int, int], rng: np.random.Generator) -> Map:
    """Clusters over most of the image, with calmer tissue between them."""
    noise = smooth_noise(shape, (80, 80), rng) + 0.5 * smooth_noise(shape, (30, 30), rng)
    calm = np.quantile(noise[::4, ::4], rng.uniform(0.4, 0.65))
    return np.clip(0.5 + 2 * (noise - calm), 0.12, 1).astype(np.float32)


# How ill the tissue is, from 0 to 1 at every pixel, by kind of image.
INFLAMMATION: dict[str, Callable[[tuple[int, int], np.random.Generator], Map]] = {
    "healthy": _healthy,
    "inflamed": _inflamed,
}


def draw_foci(tissue: Mask, n_regions: int, rng: np.random.Generator) -> Mask:
    """n_regions blobs inside the tissue and the image, apart from each other."""
    shape = tissue.shape
    foci = np.zeros(shape, bool)
    inside = np.zeros(shape, bool)
    inside[BORDER:-BORDER, BORDER:-BORDER] = True
    free = tissue & inside
    radius = math.sqrt(0.16 * free.sum() / max(n_regions, 2) / math.pi)
    for _ in range(n_regions):
        earlier = foci.copy()
        room = ndimage.distance_transform_edt(free)
        rows, columns = np.nonzero(room >= min(1.5 * radius, 0.9 * room.max()))
        pick = rng.integers(len(rows))
        centre = int(rows[pick]), int(columns[pick])
        _add_blob(foci, centre, radius * rng.uniform(0.85, 1.15), 0.16, rng)
        foci &= free | earlier
        free &= ndimage.distance_transform_edt(~foci) > 0.3 * radius
    return foci


def _add_blob(
    mask: Mask, centre: tuple[int, int], radius: float, roughness: float, rng: np.random.Generator
) -> None:
    """A disc with an irregular outline, radius·(1 + Σ_k c_k cos(kθ + φ_k)), added to the mask."""
    largest = 1 + 5 * roughness
    reach = int(radius * largest) + 2
    top, left = (max(0, c - reach) for c in centre)
    window = mask[top : centre[0] + reach, left : centre[1] + reach]
    y, x = coordinates(window.shape)
    y, x = y + (top - centre[0]), x + (left - centre[1])
    theta = np.arctan2(y, x)
    outline = np.ones_like(theta)
    for k in (2, 3, 4, 5, 7):
        amplitude = rng.normal(0, roughness * (2 / k) ** 0.7)
        outline += amplitude * np.cos(k * theta + rng.uniform(0, 2 * math.pi))
    window |= np.hypot(x, y) < radius * np.clip(outline, 0.45, largest)


def draw_lumens(inflammation: Map, tissue: Mask, wall: float, rng: np.random.Generator) -> Mask:
    """Openings that keep a wall of epithelium and some stroma between each other."""
    shape = tissue.shape
    lumens = np.zeros(shape, bool)
    placed: list[tuple[float, float, float]] = []
    usual = rng.uniform(13, 34)
    gap = rng.uniform(1.9, 2.8) * wall
    for _ in range(tissue.size // 1500):
        cy, cx = (int(rng.integers(n)) for n in shape)
        radius = usual * rng.uniform(0.6, 1.35)
        reach = int(radius + wall)
        near = np.s_[max(0, cy - reach) : cy + reach, max(0, cx - reach) : cx + reach]
        swelling = float(inflammation[near].max())
        radius *= 1 - 0.55 * swelling
        crowded = any(math.hypot(cy - y, cx - x) < radius + r + gap for y, x, r in placed)
        blocked = rng.random() < 0.93 * swelling
        if crowded or blocked or not tissue[near].all():
            continue
        placed.append((cy, cx, radius))
        _add_blob(lumens, (cy, cx), radius, 0.13, rng)
    return lumens
