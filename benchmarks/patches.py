"""Patches for benchmarks: of tissue, or with a similar structure.

Neighbouring patches of tissue share colour and texture, so learnt atoms are nearly dependent, which
makes pursuits ill-conditioned and l1 paths long. Gaussian noise would be unrealistically easy.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

SIDE = 20
CLASSES = ("benign", "malignant")
DATASET = "ucsb-breast"
# Optical density of the two stains in R, G, B: haematoxylin, eosin.
_STAINS = np.array([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11]])


@dataclass(frozen=True)
class Patches:
    """Unit-norm rows (n_samples, 3·SIDE²), channel-planar float32, classes mixed; 0/1 labels."""

    Y: NDArray[np.float32]
    labels: NDArray[np.int64]
    source: str


def draw_patches(n_per_class: int, seed: int) -> Patches:
    """Return patches of the images in HISTODICT_DATA, or of generated images if it is not set."""
    rng = np.random.default_rng(seed)
    folder = os.environ.get("HISTODICT_DATA")
    if folder:
        images = [_read_images(Path(folder) / DATASET / name) for name in CLASSES]
        counts = " + ".join(str(len(of_class)) for of_class in images)
        source = f"real tissue: {DATASET}, {counts} images, reduced 2x"
    else:
        images = [_generate_images(sigma, rng) for sigma in (2.0, 3.0)]
        source = "GENERATED textures, not tissue (HISTODICT_DATA is not set)"
    Y = np.concatenate([_cut(of_class, n_per_class, rng) for of_class in images])
    labels = np.repeat(np.arange(len(CLASSES)), n_per_class)
    order = rng.permutation(len(Y))
    return Patches(Y[order], labels[order], source)


def _read_images(folder: Path) -> list[NDArray]:
    from PIL import Image

    paths = sorted(folder.glob("*.jpg"))
    if not paths:
        raise FileNotFoundError(f"HISTODICT_DATA is set, but {folder} holds no .jpg images")
    images = []
    for path in paths:
        with Image.open(path) as image:
            images.append(np.asarray(image.convert("RGB").reduce(2), np.float32) / 255)
    return images


def _generate_images(sigma: float, rng: np.random.Generator, n_images: int = 8) -> list[NDArray]:
    """Return smooth blobs of two stains, with colours in a plane that vary by image."""
    images = []
    for _ in range(n_images):
        stains = [np.exp(_blobs(scale, rng)) for scale in (sigma, 2 * sigma)]
        density = np.stack(stains, axis=-1) @ _STAINS
        grain = 0.01 * rng.standard_normal(density.shape)
        images.append(np.clip(np.exp(-density) + grain, 0.01, 1).astype(np.float32))
    return images


def _blobs(sigma: float, rng: np.random.Generator) -> NDArray:
    """Return the logarithm of the amount of a stain: smooth at two scales, with its own level."""
    fine, coarse = (
        gaussian_filter(rng.standard_normal((400, 400)), width) * width
        for width in (sigma, 4 * sigma)
    )
    return 1.5 * (fine + coarse) - rng.uniform(0.5, 1.5)


def _cut(images: list[NDArray], n_patches: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return patches at random positions of random images, one per row, with unit norm."""
    rows = np.empty((n_patches, 3 * SIDE**2), np.float32)
    for row, i in zip(rows, rng.integers(len(images), size=n_patches), strict=True):
        height, width, _ = images[i].shape
        top, left = rng.integers(height - SIDE + 1), rng.integers(width - SIDE + 1)
        row[:] = images[i][top : top + SIDE, left : left + SIDE].transpose(2, 0, 1).reshape(-1)
    # A black patch has norm 0 and stays black.
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
