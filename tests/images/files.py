"""Write small images, slides and synthetic tissue for the tests."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image

from histodict.images.source import open_image

GREY = (200, 200, 200)
RED = (220, 30, 60)
# The planted square in level-0 pixels: x, y, side. A multiple of 8, so that levels divide it
# evenly.
SQUARE = (328, 136, 64)


def scene(width: int = 600, height: int = 440) -> NDArray[np.uint8]:
    """Return a grey image with a red square at SQUARE."""
    pixels = np.full((height, width, 3), GREY, np.uint8)
    x, y, side = SQUARE
    pixels[y : y + side, x : x + side] = RED
    return pixels


def texture(rng: np.random.Generator, width: int = 600, height: int = 440) -> NDArray[np.uint8]:
    return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)


def save_slide(
    path: Path, pixels: NDArray[np.uint8], mpp: float | None = None, n_levels: int = 3
) -> Path:
    """Write a tiled TIFF with n_levels, each half as wide and high as the previous one."""
    resolution = {"resolution": (1e4 / mpp, 1e4 / mpp), "resolutionunit": 3} if mpp else {}
    with tifffile.TiffWriter(path) as tiff:
        for level in range(n_levels):
            if level:
                height, width = (side // 2 * 2 for side in pixels.shape[:2])
                blocks = pixels[:height, :width].reshape(height // 2, 2, width // 2, 2, 3)
                pixels = np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)
            tiff.write(
                pixels,
                tile=(128, 128),
                photometric="rgb",
                compression="zlib",
                subfiletype=int(level > 0),
                metadata=None,
                **(resolution if not level else {}),
            )
    return path


def save_plain(path: Path, pixels: NDArray, **options: object) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def save_png_header(path: Path, width: int, height: int) -> Path:
    """Write a PNG that consists of little more than its size."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def read_all(path: Path) -> NDArray[np.uint8]:
    """Return all pixels of an image."""
    with open_image(path) as source:
        return source.read(0, 0, *source.size)


# --- synthetic tissue ---------------------------------------------------------------------------

HAEMATOXYLIN = np.array([0.65, 0.70, 0.29])
EOSIN = np.array([0.15, 0.90, 0.40])


def amounts(rng: np.random.Generator, n_pixels: int) -> NDArray[np.float64]:
    """Return amounts of haematoxylin and eosin, (n_pixels, 2): nuclei mostly the first, rest the
    second."""
    nucleus = rng.random(n_pixels) < 0.3
    haematoxylin = np.where(nucleus, rng.uniform(1, 2, n_pixels), rng.uniform(0, 0.1, n_pixels))
    eosin = np.where(nucleus, rng.uniform(0, 0.1, n_pixels), rng.uniform(0.3, 0.9, n_pixels))
    return np.stack([haematoxylin, eosin], axis=1)


def stained(
    amount: NDArray[np.float64],
    haematoxylin: NDArray[np.float64] = HAEMATOXYLIN,
    eosin: NDArray[np.float64] = EOSIN,
) -> NDArray[np.uint8]:
    """Return the colours (..., 3) of stain amounts (..., 2), by the law of Beer and Lambert."""
    W = np.stack([v / np.linalg.norm(v) for v in (haematoxylin, eosin)])
    return np.rint(np.clip(256 * np.exp(-amount @ W) - 1, 0, 255)).astype(np.uint8)


def tissue(rng: np.random.Generator, height: int = 100, width: int = 120) -> NDArray[np.uint8]:
    return stained(amounts(rng, height * width)).reshape(height, width, 3)


def save_tiff_of_size(path: Path, mpp: float, pixels: NDArray[np.uint8] | None = None) -> Path:
    """Write a plain TIFF with a pixel size."""
    colours = np.full((8, 8, 3), 200, np.uint8) if pixels is None else pixels
    tifffile.imwrite(
        path, colours, photometric="rgb", resolution=(1e4 / mpp, 1e4 / mpp), resolutionunit=3
    )
    return path
