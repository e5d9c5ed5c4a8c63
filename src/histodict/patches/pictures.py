"""Pictures of patches and atoms, and pictures as files or as text that a page can hold."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .vectors import to_images

_ENLARGED_PX = 96


def jpeg_data_uri(pixels: NDArray[np.uint8], *, quality: int = 88) -> str:
    """An RGB picture as a data URI."""
    return _uri("jpeg", encode_jpeg(pixels, quality))


def png_data_uri(pixels: NDArray[np.uint8]) -> str:
    """A small RGB picture as a data URI, pixel by pixel."""
    return _uri("png", encode_png(pixels))


def encode_jpeg(pixels: NDArray[np.uint8], quality: int = 85) -> bytes:
    return _encoded(pixels, format="JPEG", quality=quality)


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    return _encoded(pixels, format="PNG", compress_level=3)


def _encoded(pixels: NDArray[np.uint8], **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, **options)
    return buffer.getvalue()


def _uri(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def render_vector(
    vector: NDArray[Any], side: int, ends: tuple[float, float] | None = None
) -> NDArray[np.uint8]:
    """A vector of pixels as an RGB picture, `ends` as black and white; its own range if None."""
    pixels = to_images(vector[None], side)[0]
    low, high = ends if ends is not None else (float(pixels.min()), float(pixels.max()))
    scaled = (pixels - low) / max(high - low, 1e-12)
    return magnify((255 * np.clip(scaled, 0, 1)).astype(np.uint8))


def magnify(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every pixel as a square, so that a patch is large enough to look at."""
    factor = max(1, _ENLARGED_PX // pixels.shape[0])
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def atom_mosaic(
    D: NDArray[Any], patch_px: int, n_atoms: int = 40, n_columns: int = 10
) -> NDArray[np.uint8]:
    """The first atoms of a dictionary of pixel vectors as a sheet of pictures, enlarged 3 times.

    Each atom is stretched to its own range: what counts is its pattern, not its sign or scale.
    """
    atoms = to_images(D[:n_atoms], patch_px)
    low = atoms.min(axis=(1, 2, 3), keepdims=True)
    high = atoms.max(axis=(1, 2, 3), keepdims=True)
    pictures = (255 * (atoms - low) / np.maximum(high - low, 1e-12)).astype(np.uint8)
    pictures = pictures.repeat(3, axis=1).repeat(3, axis=2)
    framed = np.pad(pictures, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255)
    missing = -len(framed) % n_columns
    framed = np.concatenate([framed, np.full((missing, *framed.shape[1:]), 255, np.uint8)])
    rows = framed.reshape(-1, n_columns, *framed.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])


def atom_mosaics(bases: Mapping[str, NDArray[Any]], patch_px: int) -> list[dict[str, str]]:
    """The sheets of several dictionaries by name, for a page."""
    return [
        {"name": name, "uri": jpeg_data_uri(atom_mosaic(D, patch_px), quality=92)}
        for name, D in bases.items()
    ]
