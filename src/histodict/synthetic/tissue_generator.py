"""Synthetic tissue: H&E-like images, healthy and inflamed, for a demonstration without download.

A scene consists of maps of the concentrations of haematoxylin (H) and eosin (E), with wavy stroma,
lumens lined by epithelium, and nuclei. A third map, `inflammation`, determines the pathology: where
it is high, the stroma has many lymphocytes and pale oedema, and lumens are few and narrow. The
simulated scanner records

    RGB = white · 10^−(H·h + E·e)                                         (Beer and Lambert)

with the colour vectors h, e and the white of the patient's stain. Stains differ more between
patients than the classes differ in mean colour. Sizes are those of tissue at 0.5 µm per pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from ..utils.validation import check_whole_number

Map = NDArray[np.float32]
Mask = NDArray[np.bool_]

_MIN_SIDE = 64
_BORDER = 24  # pixels around the image that are drawn but cropped, as nuclei may cross its edge


class Scene:
    """Canvas on which tissue is drawn; all arrays are (height, width).

    Attributes
    ----------
    H : concentration of haematoxylin
    E : concentration of eosin
    occupied : mask of the pixels in which no further nucleus may have its centre
    """

    def __init__(self, shape: tuple[int, int]) -> None:
        self.H: Map = np.zeros(shape, np.float32)
        self.E: Map = np.zeros(shape, np.float32)
        self.occupied: Mask = np.zeros(shape, bool)


def canvas_shape(size: tuple[int, int]) -> tuple[int, int]:
    """Return the shape of the canvas for an image.

    Parameters
    ----------
    size : (width, height) of the image

    Returns
    -------
    tuple of int
        (height, width) of the canvas, which includes a border.
    """
    width = check_whole_number("width", size[0], _MIN_SIDE)
    height = check_whole_number("height", size[1], _MIN_SIDE)
    return height + 2 * _BORDER, width + 2 * _BORDER


def cut_border(canvas: NDArray) -> NDArray:
    """Return the canvas without its border.

    Parameters
    ----------
    canvas : (height, width) or (height, width, n)

    Returns
    -------
    ndarray
        View of the canvas.
    """
    return canvas[_BORDER:-_BORDER, _BORDER:-_BORDER]


def smooth_noise(
    shape: tuple[int, int], scale: tuple[float, float], rng: np.random.Generator
) -> Map:
    """Return smooth noise of mean 0 and standard deviation about 1.

    Parameters
    ----------
    shape : (height, width)
    scale : vertical and horizontal distance in pixels between random values, which are interpolated
    rng : random generator

    Returns
    -------
    ndarray of shape (height, width)
    """
    coarse = [max(2, round(n / s) + 1) for n, s in zip(shape, scale, strict=True)]
    grid = rng.standard_normal(coarse, dtype=np.float32) * np.float32(1.25)
    return enlarge(grid, shape)


def enlarge(grid: Map, shape: tuple[int, int]) -> Map:
    """Return a map resized by bicubic interpolation.

    Parameters
    ----------
    grid : map
    shape : new (height, width)

    Returns
    -------
    ndarray of shape (height, width)
    """
    resized: Map = np.asarray(Image.fromarray(grid).resize(shape[::-1], Image.Resampling.BICUBIC))
    return resized


def pixel_coordinates(shape: tuple[int, int]) -> tuple[Map, Map]:
    """Return the coordinates y and x of every pixel.

    Parameters
    ----------
    shape : (height, width)

    Returns
    -------
    y, x : ndarray of shape (height, width)
    """
    y, x = np.indices(shape, dtype=np.float32)
    return y, x


Positions = tuple[NDArray[np.intp], NDArray[np.intp]]  # rows and columns

_MAX_NUCLEUS_SHAPES = 128  # different nuclei of one kind in an image


@dataclass(frozen=True)
class _NucleusKind:
    """Appearance of one kind of nucleus; lengths are in pixels."""

    length: float  # half of the long axis
    width: float  # half of the short axis
    density: float  # concentration of haematoxylin
    rim: float  # added density of the membrane
    clumps: float  # relative contrast of the chromatin
    nucleolus: float  # added density of the nucleolus
    spacing: int  # no other nucleus within this distance of the centre

    @property
    def max_radius(self) -> int:
        """Distance from the centre to the edge of the image of a nucleus, in pixels."""
        return math.ceil(1.35 * self.length)


_EPITHELIAL = _NucleusKind(9.2, 6.2, 0.46, 0.24, 0.22, 0.35, 10)
_FIBROBLAST = _NucleusKind(12.5, 2.6, 0.62, 0.12, 0.15, 0.0, 14)
_LYMPHOCYTE = _NucleusKind(5.3, 4.9, 0.80, 0.18, 0.20, 0.0, 8)


def draw_epithelial_nuclei(
    scene: Scene, depth: Map, wall: float, tissue: Mask, rng: np.random.Generator
) -> None:
    """Draw a layer of epithelial nuclei around the lumens, perpendicular to the lumen borders.

    Parameters
    ----------
    scene : scene to draw on
    depth : distance of every pixel to a lumen, in pixels
    wall : thickness of the epithelium in pixels
    tissue : mask of the tissue
    rng : random generator
    """
    positions = _random_positions((np.abs(depth - 0.58 * wall) < 1.5) & tissue, 0.3, rng)
    angles = _steepest_ascent_angles(depth, positions)
    _draw_nuclei(scene, _EPITHELIAL, positions, angles + rng.normal(0, 0.2, len(angles)), rng)


def draw_lymphocytes(
    scene: Scene, inflammation: Map, allowed: Mask, stroma: Mask, rng: np.random.Generator
) -> None:
    """Draw many lymphocytes in inflamed stroma, some in inflamed epithelium, few elsewhere.

    Parameters
    ----------
    scene : scene to draw on
    inflammation : inflammation of every pixel, from 0 to 1
    allowed : mask of pixels that may have a nucleus
    stroma : mask of the stroma
    rng : random generator
    """
    weight = np.where(stroma, np.float32(1), np.float32(0.15))
    density = 0.02 * (inflammation * inflammation * weight + 0.01)
    positions = _random_positions(allowed, density, rng)
    angles = rng.uniform(0, np.pi, len(positions[0]))
    _draw_nuclei(scene, _LYMPHOCYTE, positions, angles, rng)


def draw_fibroblasts(scene: Scene, flow: Map, allowed: Mask, rng: np.random.Generator) -> None:
    """Draw thin nuclei along the fibres.

    Parameters
    ----------
    scene : scene to draw on
    flow : map that is constant along fibres
    allowed : mask of pixels that may have a nucleus
    rng : random generator
    """
    positions = _random_positions(allowed, 0.0016, rng)
    angles = _steepest_ascent_angles(flow, positions) + math.pi / 2
    _draw_nuclei(scene, _FIBROBLAST, positions, angles + rng.normal(0, 0.15, len(angles)), rng)


def _steepest_ascent_angles(heights: Map, positions: Positions) -> NDArray[np.float64]:
    """Return the angle of steepest ascent at each position, in radians."""
    dy, dx = (np.asarray(slope)[positions] for slope in np.gradient(heights))
    return np.arctan2(dy, dx).astype(np.float64)


def _random_positions(allowed: Mask, density: Map | float, rng: np.random.Generator) -> Positions:
    """Return random allowed pixels in random order; `density` is the probability per pixel."""
    selected = allowed & (rng.random(allowed.shape, dtype=np.float32) < density)
    rows, columns = np.nonzero(selected)
    order = rng.permutation(len(rows))
    return rows[order], columns[order]


def _draw_nuclei(
    scene: Scene,
    kind: _NucleusKind,
    positions: Positions,
    angles: NDArray[np.float64],
    rng: np.random.Generator,
) -> None:
    """Draw nuclei, rotated by `angles` (radians), at the positions that have enough space."""
    half = kind.max_radius
    accepted = _enforce_spacing(scene.occupied, positions, kind.spacing, max(half, kind.spacing))
    # Nuclei of about the same angle share one of 128 templates.
    accepted.sort(key=angles.__getitem__)
    template_of = (
        np.arange(len(accepted)) * min(len(accepted), _MAX_NUCLEUS_SHAPES) // max(len(accepted), 1)
    )
    first = np.flatnonzero(np.diff(template_of, prepend=-1))
    covers, densities = _nucleus_templates(kind, angles[accepted][first], rng)
    for i, cover, density in zip(
        accepted, covers[template_of], densities[template_of], strict=True
    ):
        y, x = positions[0][i], positions[1][i]
        window = np.s_[y - half : y + half + 1, x - half : x + half + 1]
        H, E = scene.H[window], scene.E[window]
        H += cover * (density - H)
        E -= 0.55 * cover * E


def _enforce_spacing(occupied: Mask, positions: Positions, spacing: int, margin: int) -> list[int]:
    """Return the indices of accepted positions; set `occupied` within `spacing` around them.

    A position is accepted if it is not occupied, and `margin` pixels or more from the border.
    """
    height, width = occupied.shape
    dy, dx = np.indices((2 * spacing + 1, 2 * spacing + 1)) - spacing
    disc = dy**2 + dx**2 <= spacing**2
    accepted = []
    for i, (y, x) in enumerate(zip(positions[0].tolist(), positions[1].tolist(), strict=True)):
        inside = margin <= y < height - margin and margin <= x < width - margin
        if inside and not occupied[y, x]:
            occupied[y - spacing : y + spacing + 1, x - spacing : x + spacing + 1] |= disc
            accepted.append(i)
    return accepted


def _nucleus_templates(
    kind: _NucleusKind, angles: NDArray[np.float64], rng: np.random.Generator
) -> tuple[Map, Map]:
    """Return images (n_nuclei, side, side) of nuclei: opacity (0 to 1) and haematoxylin."""

    def per_nucleus(values: NDArray[np.float64]) -> Map:
        return values.astype(np.float32)[:, None, None]

    def vary(mean: float, spread: float) -> Map:
        return per_nucleus(mean * np.clip(rng.normal(1, spread, len(angles)), 0.7, 1.3))

    half = kind.max_radius
    y, x = np.indices((2 * half + 1, 2 * half + 1), dtype=np.float32) - half
    cos, sin = per_nucleus(np.cos(angles)), per_nucleus(np.sin(angles))
    length, width = vary(kind.length, 0.11), vary(kind.width, 0.13)
    u, v = (cos * x + sin * y) / length, (cos * y - sin * x) / width
    r = np.sqrt(u * u + v * v) + np.float32(1e-3)
    c, s = (per_nucleus(rng.normal(0, 0.04, len(angles))) for _ in range(2))
    r /= 1 + (c * u * (u * u - 3 * v * v) + s * v * (3 * u * u - v * v)) / (
        r * r * r
    )  # c·cos 3θ + s·sin 3θ
    cover = np.clip((1 - r) * width / 1.2 + 0.5, 0, 1)
    rim = np.exp(-(((r - 0.86) * width / 1.3) ** 2))
    u0, v0 = (per_nucleus(rng.uniform(-0.35, 0.35, len(angles))) for _ in range(2))
    nucleolus = np.exp(-((u - u0) ** 2 + (v - v0) ** 2) * (width / 1.5) ** 2)
    grain = rng.standard_normal(cover.shape, dtype=np.float32)
    chromatin = 1 + 4 * kind.clumps * ndimage.gaussian_filter(grain, (0, 1.1, 1.1))
    density = kind.density * chromatin + kind.rim * rim + kind.nucleolus * nucleolus
    return cover, np.maximum(vary(1, 0.13) * density, np.float32(0.15))


@dataclass(frozen=True)
class Stain:
    """Stain and scanner of one patient's slides.

    Attributes
    ----------
    haematoxylin : optical density (R, G, B) of haematoxylin, as a unit vector
    eosin : optical density (R, G, B) of eosin, as a unit vector
    haematoxylin_strength : factor of the concentration of haematoxylin
    eosin_strength : factor of the concentration of eosin
    white : background colour (R, G, B), from 0 to 255
    """

    haematoxylin: tuple[float, float, float]
    eosin: tuple[float, float, float]
    haematoxylin_strength: float
    eosin_strength: float
    white: tuple[float, float, float]


def random_stain(rng: np.random.Generator) -> Stain:
    """Return a random stain.

    Colour vectors vary around those of haematoxylin and eosin; strengths and brightness are random.

    Parameters
    ----------
    rng : random generator

    Returns
    -------
    Stain
    """
    h = _unit_vector(np.array([0.62, 0.71, 0.31]) + rng.normal(0, [0.035, 0.025, 0.025]))
    e = _unit_vector(np.array([0.14, 0.87, 0.42]) + rng.normal(0, [0.045, 0.03, 0.07]))
    white = rng.uniform(216, 252) + rng.normal(0, 2.5, 3)
    return Stain(
        haematoxylin=_to_tuple(h),
        eosin=_to_tuple(e),
        haematoxylin_strength=float(np.exp(rng.uniform(-0.6, 0.6))),
        eosin_strength=float(np.exp(rng.uniform(-0.75, 0.45))),
        white=_to_tuple(np.minimum(white, 254)),
    )


def simulate_scan(scene: Scene, stain: Stain, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the scanned image of a scene, by the Beer-Lambert law with slight blur and noise.

    Parameters
    ----------
    scene : concentrations of the stains
    stain : stain and scanner
    rng : random generator

    Returns
    -------
    ndarray of shape (height, width, 3)
    """
    thickness = rng.uniform(0.85, 1.15)  # of the section, relative to the mean
    h = thickness * stain.haematoxylin_strength * np.array(stain.haematoxylin)
    e = thickness * stain.eosin_strength * np.array(stain.eosin)
    H, E = cut_border(scene.H)[..., None], cut_border(scene.E)[..., None]
    density = H * h.astype(np.float32) + E * e.astype(np.float32)
    light = np.array(stain.white, np.float32) * np.exp(-math.log(10) * density)
    blur = rng.uniform(0.6, 0.9)
    light = ndimage.gaussian_filter(light, (blur, blur, 0), truncate=3)
    light += 2 * rng.standard_normal((*H.shape[:2], 1), dtype=np.float32)
    return np.clip(np.rint(light), 0, 255).astype(np.uint8)


def _unit_vector(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)


def _to_tuple(vector: NDArray[np.float64]) -> tuple[float, float, float]:
    r, g, b = vector.tolist()
    return r, g, b


MICRONS_PER_PIXEL = 0.5
_BACKGROUND_FRACTION = 0.2  # fraction of images with a margin of background


def make_tissue_image(
    kind: str, stain: Stain, rng: np.random.Generator, size: tuple[int, int] = (480, 360)
) -> NDArray[np.uint8]:
    """Return an image of healthy or inflamed tissue.

    Parameters
    ----------
    kind : "healthy" or "inflamed"
    stain : stain and scanner
    rng : random generator
    size : (width, height)

    Returns
    -------
    ndarray of shape (height, width, 3)
    """
    if kind not in INFLAMMATION_MAPS:
        raise ValueError(f"kind must be one of {', '.join(INFLAMMATION_MAPS)}, not {kind!r}")
    shape = canvas_shape(size)
    tissue = _make_tissue_mask(shape, rng)
    inflammation = INFLAMMATION_MAPS[kind](shape, rng)
    return simulate_scan(_draw_scene(inflammation, tissue, rng), stain, rng)


def make_region_image(
    stain: Stain, rng: np.random.Generator, size: tuple[int, int] = (480, 360), n_regions: int = 1
) -> tuple[NDArray[np.uint8], Mask]:
    """Return an image of healthy tissue with inflamed foci, and the mask of the foci.

    Parameters
    ----------
    stain : stain and scanner
    rng : random generator
    size : (width, height)
    n_regions : number of foci

    Returns
    -------
    image : ndarray of shape (height, width, 3)
    mask : ndarray of shape (height, width)
    """
    check_whole_number("n_regions", n_regions, 0)
    shape = canvas_shape(size)
    tissue = _make_tissue_mask(shape, rng)
    foci = _make_foci_mask(tissue, n_regions, rng)
    image = simulate_scan(_draw_scene(foci.astype(np.float32), tissue, rng), stain, rng)
    return image, cut_border(foci)


def _draw_scene(inflammation: Map, tissue: Mask, rng: np.random.Generator) -> Scene:
    scene = Scene(tissue.shape)
    wall = rng.uniform(15, 21)
    lumens = _make_lumen_mask(inflammation, tissue, wall, rng)
    depth = _distance_to_mask(lumens)
    flow = _draw_stroma(scene, inflammation, depth, rng)
    _draw_epithelium(scene, depth, wall, rng)
    stroma = depth > wall + 3
    draw_epithelial_nuclei(scene, depth, wall, tissue, rng)
    draw_lymphocytes(scene, inflammation, tissue & (depth > 4), stroma, rng)
    draw_fibroblasts(scene, flow, tissue & stroma, rng)
    cover = ndimage.gaussian_filter((tissue & ~lumens).astype(np.float32), 0.8)
    scene.H *= cover
    scene.E *= cover
    return scene


def _distance_to_mask(mask: Mask) -> Map:
    """Return the distance of each pixel to the mask in pixels; 1000 if the mask is empty."""
    coarse = ~mask[::2, ::2]
    if coarse.all():
        return np.full(mask.shape, 1e3, np.float32)
    distance = 2 * ndimage.distance_transform_edt(coarse).astype(np.float32)
    return enlarge(distance, mask.shape)


def _draw_stroma(scene: Scene, inflammation: Map, depth: Map, rng: np.random.Generator) -> Map:
    """Draw eosin as wavy fibres; return a map that is constant along fibres.

    The fibres have one main direction and bend around the lumens.
    """
    shape = scene.E.shape
    y, x = pixel_coordinates(shape)
    angle = rng.uniform(0, math.pi)
    along = math.cos(angle) * x + math.sin(angle) * y
    flow = math.cos(angle) * y - math.sin(angle) * x
    flow += 16 * smooth_noise(shape, (80, 80), rng) + 2.5 * smooth_noise(shape, (24, 24), rng)
    around = np.exp(depth / -40)
    for _ in range(2):  # smooths creases halfway between two lumens
        around = ndimage.uniform_filter(around, 15)
    flow += 70 * around
    texture = np.zeros((1024, 128), np.float32)
    for weight, width, length in ((0.55, 9, 80), (0.5, 4, 48), (0.4, 2, 32)):
        texture += weight * smooth_noise(texture.shape, (width, length / 8), rng)
    points = np.stack([flow + 256, along / 8])
    fibres = ndimage.map_coordinates(texture, points, order=1, mode="mirror")
    fibres += 0.2 * smooth_noise(shape, (2.2, 2.2), rng)
    clefts = 1 / (1 + np.exp((fibres + 1.05 - 0.45 * inflammation) / -0.16))
    amount = 0.30 + 0.06 * fibres + 0.04 * smooth_noise(shape, (60, 60), rng)
    scene.E += (0.12 + 0.88 * clefts) * np.clip(amount, 0.1, 0.6) * (1 - 0.55 * inflammation)
    scene.H += 0.03 + 0.03 * inflammation
    return flow


def _draw_epithelium(scene: Scene, depth: Map, wall: float, rng: np.random.Generator) -> None:
    """Draw epithelium of thickness `wall` around lumens, with a dark inner border and a membrane.

    `depth` is the distance of every pixel to a lumen.
    """
    uneven = depth + 1.5 * smooth_noise(depth.shape, (14, 14), rng)
    inside = np.clip(wall - uneven, 0, 1)
    grain = 0.04 * smooth_noise(depth.shape, (2.5, 2.5), rng)
    border = np.exp(-(((depth - 1) / 1.3) ** 2))
    scene.E += inside * (0.30 + grain + 0.12 * border - scene.E)
    scene.H += inside * (0.12 + grain + 0.05 * border - scene.H)
    scene.E += 0.16 * np.exp(-(((uneven - wall - 1) / 1.4) ** 2))


# --- layout -------------------------------------------------------------------------------------


def _make_tissue_mask(shape: tuple[int, int], rng: np.random.Generator) -> Mask:
    """Return a mask of the tissue: the whole canvas, or in some images one side of a wavy line."""
    if rng.random() > _BACKGROUND_FRACTION:
        return np.ones(shape, bool)
    angle = rng.uniform(0, 2 * math.pi)
    y, x = pixel_coordinates(shape)
    across = math.cos(angle) * (2 * x / shape[1] - 1) + math.sin(angle) * (2 * y / shape[0] - 1)
    waves = 0.1 * smooth_noise(shape, (70, 70), rng) + 0.02 * smooth_noise(shape, (15, 15), rng)
    return across + waves < rng.uniform(0.5, 0.8)


def _healthy_map(shape: tuple[int, int], rng: np.random.Generator) -> Map:
    return np.zeros(shape, np.float32)


def _inflamed_map(shape: tuple[int, int], rng: np.random.Generator) -> Map:
    """Return an inflammation map (0 to 1) with clusters over most of the image."""
    noise = smooth_noise(shape, (80, 80), rng) + 0.5 * smooth_noise(shape, (30, 30), rng)
    calm = np.quantile(noise[::4, ::4], rng.uniform(0.4, 0.65))
    return np.clip(0.5 + 2 * (noise - calm), 0.12, 1).astype(np.float32)


# Map of inflammation, from 0 to 1 at every pixel, by class.
INFLAMMATION_MAPS: dict[str, Callable[[tuple[int, int], np.random.Generator], Map]] = {
    "healthy": _healthy_map,
    "inflamed": _inflamed_map,
}


def _make_foci_mask(tissue: Mask, n_regions: int, rng: np.random.Generator) -> Mask:
    """Return a mask of `n_regions` separate blobs inside the tissue and the image."""
    shape = tissue.shape
    foci = np.zeros(shape, bool)
    free = np.zeros(shape, bool)
    cut_border(free)[:] = cut_border(tissue)
    radius = math.sqrt(0.16 * free.sum() / max(n_regions, 2) / math.pi)
    for _ in range(n_regions):
        earlier = foci.copy()
        clearance = ndimage.distance_transform_edt(free)
        rows, columns = np.nonzero(clearance >= min(1.5 * radius, 0.9 * clearance.max()))
        choice = rng.integers(len(rows))
        centre = int(rows[choice]), int(columns[choice])
        _add_blob(foci, centre, radius * rng.uniform(0.85, 1.15), 0.16, rng)
        foci &= free | earlier
        free &= ndimage.distance_transform_edt(~foci) > 0.3 * radius
    return foci


def _add_blob(
    mask: Mask, centre: tuple[int, int], radius: float, roughness: float, rng: np.random.Generator
) -> None:
    """Add a disc with an irregular outline to the mask.

    In polar coordinates, the outline is radius·(1 + Σ_k c_k cos(kθ + φ_k)), with random phases φ_k
    and random coefficients c_k, whose standard deviation is proportional to `roughness`.
    """
    largest = 1 + 5 * roughness
    reach = int(radius * largest) + 2
    top, left = (max(0, c - reach) for c in centre)
    window = mask[top : centre[0] + reach, left : centre[1] + reach]
    y, x = pixel_coordinates(window.shape)
    y, x = y + (top - centre[0]), x + (left - centre[1])
    theta = np.arctan2(y, x)
    outline = np.ones_like(theta)
    for k in (2, 3, 4, 5, 7):
        amplitude = rng.normal(0, roughness * (2 / k) ** 0.7)
        outline += amplitude * np.cos(k * theta + rng.uniform(0, 2 * math.pi))
    window |= np.hypot(x, y) < radius * np.clip(outline, 0.45, largest)


def _make_lumen_mask(
    inflammation: Map, tissue: Mask, wall: float, rng: np.random.Generator
) -> Mask:
    """Return a mask of lumens with enough space for epithelium and stroma between them."""
    shape = tissue.shape
    lumens = np.zeros(shape, bool)
    placed: list[tuple[float, float, float]] = []
    mean_radius = rng.uniform(13, 34)
    gap = rng.uniform(1.9, 2.8) * wall
    for _ in range(tissue.size // 1500):
        cy, cx = (int(rng.integers(n)) for n in shape)
        radius = mean_radius * rng.uniform(0.6, 1.35)
        reach = int(radius + wall)
        neighbourhood = np.s_[max(0, cy - reach) : cy + reach, max(0, cx - reach) : cx + reach]
        local_inflammation = float(inflammation[neighbourhood].max())
        radius *= 1 - 0.55 * local_inflammation
        is_crowded = any(math.hypot(cy - y, cx - x) < radius + r + gap for y, x, r in placed)
        is_rejected = rng.random() < 0.93 * local_inflammation
        if is_crowded or is_rejected or not tissue[neighbourhood].all():
            continue
        placed.append((cy, cx, radius))
        _add_blob(lumens, (cy, cx), radius, 0.13, rng)
    return lumens
