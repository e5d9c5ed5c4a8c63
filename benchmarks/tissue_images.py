"""Images with known tissue: real ones with manual masks, and synthetic ones.

A mask is at most 256 px wide and has the values BACKGROUND, TISSUE, IGNORED (borders, fat cells,
ambiguous areas) and, in synthetic images, UNUSABLE (pen, dark frame, rim of a bubble).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from scipy import ndimage

from histodict.synthetic.tissue_generator import (
    INFLAMMATION_MAPS,
    Scene,
    Stain,
    _draw_scene,
    canvas_shape,
    cut_border,
    random_stain,
    simulate_scan,
    smooth_noise,
)

Pixels = NDArray[np.uint8]
Truth = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Generator = np.random.Generator

BACKGROUND, TISSUE, IGNORED, UNUSABLE = range(4)
MASKS = Path(__file__).parent / "tissue_masks"
SETS = ("lc25000-lung", "ucsb-breast", "glas-colon", "lymphoma", "camelyon-tumour", "slides")
SYNTHETIC, EMPTY = "synthetic", "empty background"
_FULL = 0.97
_COLOURS = np.array([[0, 200, 0], [0, 0, 0], [240, 220, 0], [230, 0, 0]])
_SIZE = (384, 320)
_REDUCTION = 2  # of synthetic masks
_SUFFIXES = (".jpg", ".jpeg", ".png", ".tif")
# Amounts of both stains below which a synthetic pixel counts as background, and is ignored.
_VISIBLE, _CLEAR = 0.02, 0.08


@dataclass(frozen=True)
class Case:
    """An image and its mask, which may be smaller."""

    name: str
    set: str
    pixels: Pixels
    truth: Truth

    @property
    def is_full(self) -> bool:
        """Return whether the whole image is tissue."""
        n_tissue, n_background = (int((self.truth == v).sum()) for v in (TISSUE, BACKGROUND))
        return n_tissue > 0 and n_tissue >= _FULL * (n_tissue + n_background)

    @property
    def is_empty(self) -> bool:
        return not (self.truth == TISSUE).any()


def read_mask(file: Path) -> Truth:
    """Return the values of a mask, (height, width)."""
    with Image.open(file) as image:
        return np.array(image)


def real_cases(data: Path) -> Iterator[Case]:
    """Yield the images of the development data in `data` that have a manual mask."""
    for name in SETS:
        images = images_of(data / name)
        for file in sorted(MASKS.glob(f"{name}__*.png")):
            path = images[file.stem.partition("__")[2]]
            yield Case(path.relative_to(data).as_posix(), name, read_pixels(path), read_mask(file))


def images_of(folder: Path) -> dict[str, Path]:
    """Return the images of a set by the names of their masks, without mask files of the set."""
    return {
        "-".join(path.relative_to(folder).with_suffix("").parts): path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in _SUFFIXES and path.parent.name != "masks"
    }


def read_pixels(path: Path) -> Pixels:
    """Return the pixels of an image, or of the smallest level of a slide."""
    with Image.open(path) as image:
        image.seek(getattr(image, "n_frames", 1) - 1)
        return np.array(image.convert("RGB"))


def overlay(pixels: Pixels, masks: Iterable[Truth], zoom: int = 1) -> Image.Image:
    """Show an image and its masks: background green, open yellow, unusable red."""
    parts = []
    for mask in masks:
        size = tuple(zoom * n for n in mask.shape[::-1])
        seen = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))
        wide = np.repeat(np.repeat(mask, zoom, axis=0), zoom, axis=1)
        tint = 0.5 * seen + 0.5 * _COLOURS[wide]
        parts.append(np.where((wide == TISSUE)[..., None], seen, tint).astype(np.uint8))
    return Image.fromarray(np.concatenate([seen, *parts], axis=1))


# --- synthetic images ---------------------------------------------------------------------------

_HAEMATOXYLIN, _EOSIN, _DAB = (0.62, 0.71, 0.31), (0.14, 0.87, 0.42), (0.27, 0.57, 0.78)
_REFERENCE = Stain(_HAEMATOXYLIN, _EOSIN, 1.0, 1.0, (240.0, 240.0, 241.0))
SyntheticImage = tuple[Pixels, Truth]


def synthetic_cases(only: Collection[str] | None = None) -> Iterator[Case]:
    """Yield the synthetic images of these names, each with its own seed; masks at half size."""
    for seed, (name, draw) in enumerate(_PAINTERS.items()):
        if only is None or name in only:
            pixels, truth = draw(np.random.default_rng([seed, 4711]))
            yield Case(name, EMPTY if name.startswith(EMPTY) else SYNTHETIC, pixels, _halve(truth))


def _halve(truth: Truth) -> Truth:
    """Return the mask at half size; IGNORED where four pixels differ."""
    height, width = (n // _REDUCTION for n in truth.shape)
    blocks = truth.reshape(height, _REDUCTION, width, _REDUCTION)
    lowest, highest = blocks.min(axis=(1, 3)), blocks.max(axis=(1, 3))
    return np.where(lowest == highest, lowest, IGNORED).astype(np.uint8)


def _scene(rng: Generator, kind: str = "healthy", edge: bool = False, full: bool = False) -> Scene:
    """Return synthetic tissue; `edge`: on one side of a wavy line, `full`: with few lumens."""
    shape = canvas_shape(_SIZE)
    tissue = np.ones(shape, bool)
    if edge:
        y, x = np.indices(shape)
        tissue = x + 0.3 * y + 25 * smooth_noise(shape, (50, 50), rng) < 0.62 * shape[1]
    ill = np.ones(shape, np.float32) if full else INFLAMMATION_MAPS[kind](shape, rng)
    return _draw_scene(ill, tissue, rng)


def _truth(scene: Scene) -> Truth:
    amount = cut_border(scene.H + scene.E)
    visible = np.where(amount < _CLEAR, IGNORED, TISSUE)
    return np.where(amount > _VISIBLE, visible, BACKGROUND).astype(np.uint8)


def _tissue(
    kind: str = "healthy",
    edge: bool = False,
    full: bool = False,
    stain: Stain | None = None,
    blur: float = 0,
) -> Callable[[Generator], SyntheticImage]:
    """Tissue of the demonstration, with a random stain by default."""

    def draw(rng: Generator) -> SyntheticImage:
        scene = _scene(rng, kind, edge, full)
        pixels = simulate_scan(scene, stain or random_stain(rng), rng)
        truth = _truth(scene)
        if blur:
            pixels = ndimage.gaussian_filter(pixels, (blur, blur, 0))
            near = ndimage.uniform_filter(truth.astype(np.float32), round(3 * blur))
            truth[(near > 0.02) & (near < 0.98)] = IGNORED
        return pixels, truth

    return draw


def _single_stain(of: str, full: bool) -> Callable[[Generator], SyntheticImage]:
    """Haematoxylin or eosin alone, which stains cytoplasm and nuclei."""

    def draw(rng: Generator) -> SyntheticImage:
        scene = _scene(rng, full=full)
        truth = _truth(scene)
        if of == "haematoxylin":
            scene.H += 0.35 * scene.E
            scene.E[:] = 0
        else:
            scene.E += 0.4 * scene.H
            scene.H[:] = 0
        return simulate_scan(scene, _REFERENCE, rng), truth

    return draw


def _stained(rng: Generator, scene: Scene, stain: Stain = _REFERENCE) -> SyntheticImage:
    return simulate_scan(scene, stain, rng), _truth(scene)


def _fat(rng: Generator) -> SyntheticImage:
    """Fat cells with thin walls beside tissue; their interiors are IGNORED."""
    scene = _scene(rng, edge=True)
    shape = scene.E.shape
    empty = scene.H + scene.E <= _VISIBLE
    fat = ndimage.binary_opening(_largest(empty), iterations=6)
    fat[:, round(0.85 * shape[1]) :] = False
    centres = np.zeros(shape, bool)
    for y in range(12, shape[0], 42):
        for x in range(12, shape[1], 42):
            dy, dx = rng.integers(-12, 13, 2)
            centres[np.clip(y + dy, 0, shape[0] - 1), np.clip(x + dx, 0, shape[1] - 1)] = True
    names, _ = ndimage.label(centres)
    place = ndimage.distance_transform_edt(~centres, return_indices=True)[1]
    cells = names[tuple(place)]
    wall = ndimage.grey_dilation(cells, 3) != ndimage.grey_erosion(cells, 3)
    scene.E[wall & fat] += 0.18
    pixels, truth = _stained(rng, scene)
    truth[cut_border(fat)] = IGNORED
    return pixels, truth


def _largest(mask: Mask) -> Mask:
    names, _ = ndimage.label(mask)
    return names == 1 + np.argmax(np.bincount(names.ravel())[1:])


def _mucin(rng: Generator) -> SyntheticImage:
    """Pale blue-grey mucin with strands inside tissue; it is tissue."""
    scene = _scene(rng, full=True)
    shape = scene.E.shape
    y, x = np.indices(shape)
    away = np.hypot(y / shape[0] - 0.5, x / shape[1] - 0.5) + 0.03 * smooth_noise(
        shape, (40, 40), rng
    )
    pool = away < 0.33
    strands = np.exp(-((smooth_noise(shape, (14, 40), rng) / 0.15) ** 2))
    scene.H[pool] = (0.075 + 0.05 * strands)[pool]
    scene.E[pool] = (0.015 + 0.01 * strands)[pool]
    return _stained(rng, scene)


def _blood(rng: Generator) -> SyntheticImage:
    """Red cells: dense in one half, sparse in the other."""
    scene = Scene(canvas_shape(_SIZE))
    height, width = scene.E.shape
    canvas = Image.new("L", (width, height))
    pen = ImageDraw.Draw(canvas)
    for _ in range(900):
        x = width * rng.random() ** 2.2
        y, r = height * rng.random(), rng.uniform(5, 6.5)
        pen.ellipse([x - r, y - r, x + r, y + r], fill=255)
    scene.E += 0.55 * ndimage.gaussian_filter(np.asarray(canvas, np.float32) / 255, 0.8)
    red = replace(_REFERENCE, eosin=(0.08, 0.78, 0.62))
    return _stained(rng, scene, red)


def _pigment(rng: Generator) -> SyntheticImage:
    """Clumps of brown-black granules in the tissue; they are tissue."""
    scene = _scene(rng)
    pixels, truth = _stained(rng, scene)
    grains = smooth_noise(truth.shape, (30, 30), rng) + 0.8 * smooth_noise(truth.shape, (4, 4), rng)
    grains = ndimage.gaussian_filter(((grains > 1.7) & (truth == TISSUE)).astype(np.float32), 0.7)
    dark = np.array([70, 45, 25], np.float32)
    mixed = pixels + grains[..., None] * (dark - pixels)
    return mixed.astype(np.uint8), truth


def _pen(colour: tuple[int, int, int]) -> Callable[[Generator], SyntheticImage]:
    """Pen stroke beside tissue; it is UNUSABLE."""

    def draw(rng: Generator) -> SyntheticImage:
        pixels, truth = _stained(rng, _scene(rng, edge=True))
        height, width = truth.shape
        canvas = Image.new("L", (width, height))
        points = [(0.93, -0.1), (0.80, 0.3), (0.9, 0.62), (0.72, 1.1)]
        line = [(x * width, y * height) for x, y in points]
        ImageDraw.Draw(canvas).line(line, fill=255, width=26, joint="curve")
        cover = ndimage.gaussian_filter(np.asarray(canvas, np.float32) / 255, 2.5)
        cover *= 0.85 + 0.1 * smooth_noise(truth.shape, (9, 9), rng)
        ink = 1 - np.clip(cover, 0, 1)[..., None] * (1 - np.array(colour, np.float32) / 255)
        truth[cover > 0.5] = UNUSABLE
        truth[(cover > 0.02) & (cover <= 0.5)] = IGNORED
        return (pixels * ink).astype(np.uint8), truth

    return draw


def _coverslip(rng: Generator) -> SyntheticImage:
    """Edge of the coverslip: a dark and a bright line, and darker background beyond it."""
    pixels, truth = _stained(rng, _scene(rng, edge=True))
    width = truth.shape[1]
    away = np.arange(width) - 0.86 * width
    light = np.where(away > 0, 0.95, 1) - 0.55 * np.exp(-((away / 3) ** 2))
    light += 0.06 * np.exp(-(((away - 8) / 2) ** 2))
    truth[:, np.abs(away) < 8] = UNUSABLE
    return np.clip(pixels * light[:, None], 0, 255).astype(np.uint8), truth


def _bubble(rng: Generator) -> SyntheticImage:
    """Air bubble beside tissue: its black rim is UNUSABLE, its interior background."""
    pixels, truth = _stained(rng, _scene(rng, edge=True))
    y, x = np.indices(truth.shape)
    r = np.hypot(y - 0.3 * truth.shape[0], x - 0.83 * truth.shape[1])
    rim = np.exp(-(((r - 45) / 6) ** 2))
    truth[r < 45] = np.where(truth[r < 45] == TISSUE, IGNORED, BACKGROUND)
    truth[rim > 0.05] = UNUSABLE
    return (pixels * (1 - 0.93 * rim[..., None])).astype(np.uint8), truth


def _frame(rng: Generator) -> SyntheticImage:
    """Dark frame of a camera or of a scanner's padding."""
    pixels, truth = _stained(rng, _scene(rng, edge=True))
    height, width = truth.shape
    frame = np.ones(truth.shape, bool)
    frame[height // 9 : -height // 9, width // 8 : -width // 12] = False
    noise = rng.integers(0, 14, (*truth.shape, 1))
    truth[frame] = UNUSABLE
    return np.where(frame[..., None], noise + np.array([2, 0, 1]), pixels).astype(np.uint8), truth


def _frozen(rng: Generator) -> SyntheticImage:
    """Frozen section: bluish, pale, with holes of ice crystals, which are IGNORED."""
    scene = _scene(rng, "inflamed")
    holes = smooth_noise(scene.E.shape, (7, 7), rng) > 1.6
    cover = 1 - ndimage.gaussian_filter(holes.astype(np.float32), 0.8)
    truth = _truth(scene)
    for amount in (scene.H, scene.E):
        amount[:] = ndimage.gaussian_filter(amount, 2) * cover
    truth[cut_border(cover < 0.95) & (truth == TISSUE)] = IGNORED
    stain = replace(_REFERENCE, eosin_strength=0.5, white=(222.0, 228.0, 238.0))
    return simulate_scan(scene, stain, rng), truth


def _grey(rng: Generator) -> SyntheticImage:
    pixels, truth = _stained(rng, _scene(rng, edge=True))
    return np.repeat(pixels.mean(axis=2, keepdims=True), 3, axis=2).astype(np.uint8), truth


def _empty(
    white: tuple[int, int, int] = (242, 242, 243),
    noise: float = 2,
    vignette: float = 0,
    dust: int = 0,
    quality: int | None = None,
) -> Callable[[Generator], SyntheticImage]:
    """Background without tissue."""

    def draw(rng: Generator) -> SyntheticImage:
        width, height = _SIZE
        y, x = np.indices((height, width))
        away = np.hypot(y / height - 0.5, x / width - 0.5) ** 2 / 0.5
        light = np.array(white, np.float32) * (1 - vignette * away)[..., None]
        truth = np.full((height, width), BACKGROUND, np.uint8)
        for _ in range(dust):
            cy, cx, r = rng.uniform(0, height), rng.uniform(0, width), rng.uniform(1, 4)
            spot = np.exp(-((np.hypot(y - cy, x - cx) / r) ** 2))
            light *= 1 - 0.5 * spot[..., None]
            truth[spot > 0.02] = UNUSABLE
        light += noise * rng.standard_normal((height, width, 3))
        pixels = np.clip(np.rint(light), 0, 255).astype(np.uint8)
        return (pixels if quality is None else _as_jpeg(pixels, quality)), truth

    return draw


def _as_jpeg(pixels: Pixels, quality: int) -> Pixels:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file))


def _jpeg_tissue(rng: Generator) -> SyntheticImage:
    pixels, truth = _stained(rng, _scene(rng, edge=True))
    return _as_jpeg(pixels, 20), truth


_PALE = replace(_REFERENCE, haematoxylin_strength=0.5, eosin_strength=0.4)
_PAINTERS: dict[str, Callable[[Generator], SyntheticImage]] = {
    "healthy": _tissue(),
    "inflamed": _tissue("inflamed"),
    "healthy, edge": _tissue(edge=True),
    "inflamed, edge": _tissue("inflamed", edge=True),
    "full": _tissue(full=True, stain=_REFERENCE),
    "full, pale": _tissue(full=True, stain=_PALE),
    "edge, pale": _tissue(edge=True, stain=_PALE),
    "out of focus": _tissue(edge=True, blur=5),
    "out of focus, full": _tissue(full=True, blur=6),
    "IHC": _tissue("inflamed", stain=replace(_REFERENCE, eosin=_DAB)),
    "IHC, edge": _tissue(edge=True, stain=replace(_REFERENCE, eosin=_DAB, eosin_strength=0.6)),
    "haematoxylin alone": _single_stain("haematoxylin", full=False),
    "haematoxylin alone, full": _single_stain("haematoxylin", full=True),
    "eosin alone": _single_stain("eosin", full=False),
    "eosin alone, full": _single_stain("eosin", full=True),
    "fat": _fat,
    "mucin": _mucin,
    "blood": _blood,
    "pigment": _pigment,
    "pen, blue": _pen((40, 60, 170)),
    "pen, green": _pen((30, 140, 70)),
    "pen, black": _pen((30, 30, 32)),
    "coverslip edge": _coverslip,
    "air bubble": _bubble,
    "dark frame": _frame,
    "frozen section": _frozen,
    "grey": _grey,
    "JPEG quality 20": _jpeg_tissue,
    f"{EMPTY}": _empty(),
    f"{EMPTY}, noise": _empty(noise=7),
    f"{EMPTY}, vignetting": _empty(vignette=0.25),
    f"{EMPTY}, yellowish": _empty(white=(243, 236, 208)),
    f"{EMPTY}, bluish": _empty(white=(214, 226, 244)),
    f"{EMPTY}, pinkish": _empty(white=(244, 224, 236)),
    f"{EMPTY}, dim": _empty(white=(160, 161, 160), noise=3),
    f"{EMPTY}, dust": _empty(dust=25),
    f"{EMPTY}, JPEG quality 20": _empty(noise=5, vignette=0.1, quality=20),
}
