"""Pictures for a page: learned atoms, images, curves, each as text that a page can hold."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..patches.vectors import as_pictures

INK = "#22303c"
_ENLARGED_PX = 96


def image_uri(pixels: NDArray[np.uint8], *, quality: int = 88) -> str:
    """An RGB picture as a data URI."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="JPEG", quality=quality)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def png_uri(pixels: NDArray[np.uint8]) -> str:
    """A small RGB picture as a data URI, pixel by pixel."""
    return "data:image/png;base64," + base64.b64encode(encode_png(pixels)).decode()


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format="PNG", compress_level=3)
    return buffer.getvalue()


def vector_picture(
    vector: NDArray[Any], side: int, ends: tuple[float, float] | None = None
) -> NDArray[np.uint8]:
    """A vector of pixels as an RGB picture, `ends` as black and white; its own range if None."""
    pixels = as_pictures(vector[None], side)[0]
    low, high = ends if ends is not None else (float(pixels.min()), float(pixels.max()))
    scaled = (pixels - low) / max(high - low, 1e-12)
    return enlarged((255 * np.clip(scaled, 0, 1)).astype(np.uint8))


def enlarged(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Every pixel as a square, so that a patch is large enough to look at."""
    factor = max(1, _ENLARGED_PX // pixels.shape[0])
    return pixels.repeat(factor, axis=0).repeat(factor, axis=1)


def atom_sheet(
    D: NDArray[Any], patch_px: int, n_atoms: int = 40, n_columns: int = 10
) -> NDArray[np.uint8]:
    """The first atoms of a dictionary of pixel vectors as a sheet of pictures, enlarged 3 times.

    Each atom is stretched to its own range: what counts is its pattern, not its sign or scale.
    """
    atoms = as_pictures(D[:n_atoms], patch_px)
    low = atoms.min(axis=(1, 2, 3), keepdims=True)
    high = atoms.max(axis=(1, 2, 3), keepdims=True)
    pictures = (255 * (atoms - low) / np.maximum(high - low, 1e-12)).astype(np.uint8)
    pictures = pictures.repeat(3, axis=1).repeat(3, axis=2)
    framed = np.pad(pictures, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=255)
    missing = -len(framed) % n_columns
    framed = np.concatenate([framed, np.full((missing, *framed.shape[1:]), 255, np.uint8)])
    rows = framed.reshape(-1, n_columns, *framed.shape[1:])
    return np.concatenate([np.concatenate(list(row), axis=1) for row in rows])


def roc_svg(scores: NDArray[np.float64], positive: NDArray[np.bool_], threshold: float) -> str:
    """Miss against false alarm over all thresholds, with the operating point; lowest is best."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    cuts = np.concatenate([[-np.inf], np.unique(scores), [np.inf]])
    miss = [(scores[positive] <= cut).mean() for cut in cuts]
    alarm = [(scores[~positive] > cut).mean() for cut in cuts]
    here = (scores[~positive] > threshold).mean(), (scores[positive] <= threshold).mean()
    with plt.rc_context({"font.size": 10, "svg.fonttype": "none", "text.color": INK}):
        figure, axes = plt.subplots(figsize=(3.6, 3.4))
        axes.step(alarm, miss, where="post", color="#0072b2", linewidth=2)
        axes.plot(*here, "o", color="#d55e00", markersize=9, label="operating point")
        axes.plot([0, 1], [1, 0], ":", color="#99a3ad", linewidth=1, label="chance")
        axes.set(xlabel="false alarm rate", ylabel="miss rate", xlim=(-0.02, 1), ylim=(-0.02, 1))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.tight_layout()
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]
