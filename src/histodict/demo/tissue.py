"""Drawn tissue: H&E-like images, healthy and inflamed, for a demonstration without download.

A scene is two maps, the concentrations of haematoxylin H and eosin E: wavy stroma, lumens lined by
epithelium, nuclei. One map decides what is ill: where `inflammation` is high, lymphocytes crowd the
stroma, the stroma is pale with oedema, and lumens are few and narrow. The scanner then sees

    RGB = white · 10^−(H·h + E·e)                                         (Beer and Lambert)

with the colour vectors h, e and the white of the patient's stain. Stains differ more between
patients than the classes differ in mean colour. Sizes are those of tissue at 0.5 µm per pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ..parameters import check_whole_number
from .nuclei import draw_fibroblasts, draw_lining, draw_lymphocytes
from .scanner import Stain, simulate_scan
from .scene import Map, Mask, Scene, canvas_shape, coordinates, cut_border, enlarge, smooth_noise

MICRONS_PER_PIXEL = 0.5
_BACKGROUND_FRACTION = 0.2  # of the images show a margin of empty glass


def make_tissue_image(
    kind: str, stain: Stain, rng: np.random.Generator, size: tuple[int, int] = (480, 360)
) -> NDArray[np.uint8]:
    """An image (height, width, 3) of "healthy" or "inflamed" tissue; size is (width, height)."""
    if kind not in INFLAMMATION:
        raise ValueError(f"kind must be one of {', '.join(INFLAMMATION)}, not {kind!r}")
    shape = canvas_shape(size)
    tissue = _draw_tissue_edge(shape, rng)
    inflammation = INFLAMMATION[kind](shape, rng)
    return simulate_scan(_draw_scene(inflammation, tissue, rng), stain, rng)


def make_region_image(
    stain: Stain, rng: np.random.Generator, size: tuple[int, int] = (480, 360), n_regions: int = 1
) -> tuple[NDArray[np.uint8], Mask]:
    """Healthy tissue with n_regions inflamed foci: the image and their mask (height, width)."""
    check_whole_number("n_regions", n_regions, 0)
    shape = canvas_shape(size)
    tissue = _draw_tissue_edge(shape, rng)
    foci = _draw_foci(tissue, n_regions, rng)
    image = simulate_scan(_draw_scene(foci.astype(np.float32), tissue, rng), stain, rng)
    return image, cut_border(foci)


def _draw_scene(inflammation: Map, tissue: Mask, rng: np.random.Generator) -> Scene:
    scene = Scene(tissue.shape)
    wall = rng.uniform(15, 21)
    lumens = _draw_lumens(inflammation, tissue, wall, rng)
    depth = _distance(lumens)
    flow = _draw_stroma(scene, inflammation, depth, rng)
    _draw_epithelium(scene, depth, wall, rng)
    stroma = depth > wall + 3
    draw_lining(scene, depth, wall, tissue, rng)
    draw_lymphocytes(scene, inflammation, tissue & (depth > 4), stroma, rng)
    draw_fibroblasts(scene, flow, tissue & stroma, rng)
    cover = ndimage.gaussian_filter((tissue & ~lumens).astype(np.float32), 0.8)
    scene.H *= cover
    scene.E *= cover
    return scene


def _distance(mask: Mask) -> Map:
    """Distance of every pixel to the mask, to about a pixel; far away if the mask is empty."""
    coarse = ~mask[::2, ::2]
    if coarse.all():
        return np.full(mask.shape, 1e3, np.float32)
    distance = 2 * ndimage.distance_transform_edt(coarse).astype(np.float32)
    return enlarge(distance, mask.shape)


def _draw_stroma(scene: Scene, inflammation: Map, depth: Map, rng: np.random.Generator) -> Map:
    """Eosin in wavy fibres; returns the map whose level lines the fibres follow.

    The fibres run in one direction, bent by waves, and around the lumens.
    """
    shape = scene.E.shape
    y, x = coordinates(shape)
    angle = rng.uniform(0, math.pi)
    along = math.cos(angle) * x + math.sin(angle) * y
    flow = math.cos(angle) * y - math.sin(angle) * x
    flow += 16 * smooth_noise(shape, (80, 80), rng) + 2.5 * smooth_noise(shape, (24, 24), rng)
    around = np.exp(depth / -40)
    for _ in range(2):  # without creases halfway between two lumens
        around = ndimage.uniform_filter(around, 15)
    flow += 70 * around
    texture = np.zeros((1024, 128), np.float32)
    for share, width, length in ((0.55, 9, 80), (0.5, 4, 48), (0.4, 2, 32)):
        texture += share * smooth_noise(texture.shape, (width, length / 8), rng)
    points = np.stack([flow + 256, along / 8])
    fibres = ndimage.map_coordinates(texture, points, order=1, mode="mirror")
    fibres += 0.2 * smooth_noise(shape, (2.2, 2.2), rng)
    clefts = 1 / (1 + np.exp((fibres + 1.05 - 0.45 * inflammation) / -0.16))
    amount = 0.30 + 0.06 * fibres + 0.04 * smooth_noise(shape, (60, 60), rng)
    scene.E += (0.12 + 0.88 * clefts) * np.clip(amount, 0.1, 0.6) * (1 - 0.55 * inflammation)
    scene.H += 0.03 + 0.03 * inflammation
    return flow


def _draw_epithelium(scene: Scene, depth: Map, wall: float, rng: np.random.Generator) -> None:
    """Cytoplasm around the lumens, a darker line on the inside and a membrane outside."""
    uneven = depth + 1.5 * smooth_noise(depth.shape, (14, 14), rng)
    inside = np.clip(wall - uneven, 0, 1)
    grain = 0.04 * smooth_noise(depth.shape, (2.5, 2.5), rng)
    border = np.exp(-(((depth - 1) / 1.3) ** 2))
    scene.E += inside * (0.30 + grain + 0.12 * border - scene.E)
    scene.H += inside * (0.12 + grain + 0.05 * border - scene.H)
    scene.E += 0.16 * np.exp(-(((uneven - wall - 1) / 1.4) ** 2))


# --- where things are ---------------------------------------------------------------------------


def _draw_tissue_edge(shape: tuple[int, int], rng: np.random.Generator) -> Mask:
    """Where there is tissue: everywhere, or on one side of a wavy line."""
    if rng.random() > _BACKGROUND_FRACTION:
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


def _draw_foci(tissue: Mask, n_regions: int, rng: np.random.Generator) -> Mask:
    """n_regions blobs inside the tissue and the image, apart from each other."""
    shape = tissue.shape
    foci = np.zeros(shape, bool)
    free = np.zeros(shape, bool)
    cut_border(free)[:] = cut_border(tissue)
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


def _draw_lumens(inflammation: Map, tissue: Mask, wall: float, rng: np.random.Generator) -> Mask:
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
