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

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ..parameters import check_whole_number
from .nuclei import draw_fibroblasts, draw_lining, draw_lymphocytes
from .places import INFLAMMATION, draw_foci, draw_lumens, draw_tissue_edge
from .scanner import Stain, scan
from .scene import Map, Mask, Scene, canvas_shape, coordinates, cut_border, enlarge, smooth_noise

MICRONS_PER_PIXEL = 0.5


def draw_image(
    kind: str, stain: Stain, rng: np.random.Generator, size: tuple[int, int] = (480, 360)
) -> NDArray[np.uint8]:
    """An image (height, width, 3) of "healthy" or "inflamed" tissue; size is (width, height)."""
    if kind not in INFLAMMATION:
        raise ValueError(f"kind must be one of {', '.join(INFLAMMATION)}, not {kind!r}")
    shape = canvas_shape(size)
    tissue = draw_tissue_edge(shape, rng)
    inflammation = INFLAMMATION[kind](shape, rng)
    return scan(_draw_scene(inflammation, tissue, rng), stain, rng)


def draw_region_image(
    stain: Stain,
    rng: np.random.Generator,
    size: tuple[int, int] = (480, 360),
    n_regions: int = 1,
) -> tuple[NDArray[np.uint8], Mask]:
    """Healthy tissue with n_regions inflamed foci: the image and their mask (height, width)."""
    check_whole_number("n_regions", n_regions, 0)
    shape = canvas_shape(size)
    tissue = draw_tissue_edge(shape, rng)
    foci = draw_foci(tissue, n_regions, rng)
    image = scan(_draw_scene(foci.astype(np.float32), tissue, rng), stain, rng)
    return image, cut_border(foci)


def _draw_scene(inflammation: Map, tissue: Mask, rng: np.random.Generator) -> Scene:
    scene = Scene(tissue.shape)
    wall = rng.uniform(15, 21)
    lumens = draw_lumens(inflammation, tissue, wall, rng)
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
