"""Test images with the colours of another laboratory and scanner."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.datasets.manifest import ImageRecord, Manifest
from histodict.images.memory_image import ImageLike, MemoryImage
from histodict.preprocessing.stain import Macenko

Pixels = NDArray[np.uint8]
PLAIN = "as it is"
_FIRST_SCANNER = 1000  # seed


def kinds_of_test(n_scanners: int) -> tuple[str, ...]:
    """Return names of the kinds of test images: unchanged, and one per simulated scanner."""
    return (PLAIN, *(f"scanner {_FIRST_SCANNER + place}" for place in range(n_scanners)))


def simulated_scanner(seed: int) -> Callable[[Pixels], Pixels]:
    """Return a function that changes pixels like another laboratory and scanner.

    Amounts of both stains change by a factor of up to 1.4, their hues by some degrees, and the
    brightness falls by up to a tenth.
    """
    rng = np.random.default_rng(seed)
    h, e = (np.array(stain) / np.linalg.norm(stain) for stain in Macenko.TARGET_STAINS)
    rest = np.cross(h, e)
    before = np.stack([h, e, rest / np.linalg.norm(rest)])
    after = before.copy()
    for row in (0, 1):
        turned = before[row] + rng.normal(0, 0.04, 3)
        after[row] = turned / np.linalg.norm(turned) * np.exp(rng.uniform(-0.35, 0.35))
    change = np.linalg.inv(before) @ after
    light = rng.uniform(0.9, 1.0) + rng.normal(0, 0.01, 3)

    def scan(pixels: Pixels) -> Pixels:
        density = -np.log((pixels.astype(np.float64) + 1) / 256)
        return np.clip(256 * light * np.exp(-density @ change) - 1, 0, 255).round().astype(np.uint8)

    return scan


def pixels_of(record: ImageRecord, kind: str) -> Pixels:
    pixels: Pixels = np.asarray(Image.open(record.path).convert("RGB"))
    return pixels if kind == PLAIN else simulated_scanner(int(kind.split()[-1]))(pixels)


def test_images(test: Manifest, kind: str) -> Iterator[tuple[ImageLike, ImageRecord]]:
    """Yield the test images, unchanged or with the colours of a scanner."""
    for record in test.records:
        if kind == PLAIN:
            yield record.path, record
        else:
            yield MemoryImage.from_array(pixels_of(record, kind), record.path.name), record
