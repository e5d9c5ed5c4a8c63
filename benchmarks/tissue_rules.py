"""Tissue detection methods of histodict and of other programs.

The others are implemented from their documentation, with its default settings for thumbnails, and
get the image reduced to at most 320 px. They were designed for thumbnails of slides with much
background; in an image of tissue only, Otsu's threshold finds no background.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from skimage.color import rgb2hed
from skimage.filters import rank, threshold_otsu
from skimage.morphology import disk

from histodict.preprocessing.tissue import TissueThreshold

from .tissue_images import Mask, Pixels

Rule = Callable[[Pixels], Mask]

THUMBNAIL_SIDE = 1024
_PEER_SIDE = 320


def reduced(pixels: Pixels, side: int) -> Pixels:
    """Return the image, reduced by area so that its longer side is at most `side`."""
    factor = side / max(pixels.shape[:2])
    if factor >= 1:
        return pixels
    size = tuple(max(1, round(n * factor)) for n in pixels.shape[1::-1])
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX))


def ours(pixels: Pixels) -> Mask:
    """histodict: the threshold from the thumbnail, applied to every pixel."""
    return TissueThreshold.from_thumbnail(reduced(pixels, THUMBNAIL_SIDE)).mask(pixels)


def otsu_grey(pixels: Pixels) -> Mask:
    """scikit-image: darker than Otsu's threshold of the luminance."""
    grey = _grey(pixels)
    return grey <= _otsu(grey)


def otsu_morphology(pixels: Pixels) -> Mask:
    """TIAToolbox, MorphologicalMasker at 8 µm per pixel: Otsu, no small regions, dilation."""
    return ndimage.binary_dilation(_without_small(otsu_grey(pixels), 16), disk(2))


def haematoxylin_otsu(pixels: Pixels) -> Mask:
    """HistomicsTK, get_tissue_mask: Otsu on the smoothed haematoxylin channel."""
    amount = rgb2hed(pixels)[..., 0]
    lowest, highest = float(amount.min()), float(amount.max())
    amount = 255 * (amount - lowest) / max(highest - lowest, 1e-9)
    return _two_stages(amount, 1, sigma=1.5, smallest=30)


def grey_two_stages(pixels: Pixels) -> Mask:
    """HistomicsTK, get_tissue_mask: Otsu twice on the smoothed darkness, within the first mask."""
    return _two_stages(255 - _grey(pixels), 2, sigma=1.5, smallest=30)


def saturation(pixels: Pixels) -> Mask:
    """CLAM and TRIDENT: saturation above 8 after a median filter, and closing."""
    value = pixels.max(axis=-1).astype(np.float32)
    share = (value - pixels.min(axis=-1)) / np.maximum(value, 1)
    smooth = rank.median(np.rint(255 * share).astype(np.uint8), np.ones((7, 7), np.uint8))
    return _close(smooth > 8, 4, 1)


def magenta(pixels: Pixels) -> Mask:
    """LazySlide, find_tissues: product of red minus green and blue minus green, and closing."""
    footprint = np.ones((7, 7), np.uint8)
    red, green, blue = (
        rank.median(np.ascontiguousarray(pixels[..., i]), footprint).astype(np.int32)
        for i in range(3)
    )
    return _close(np.maximum(red - green, 0) * np.maximum(blue - green, 0) > 7, 7, 3)


def _on_thumbnail(rule: Rule) -> Rule:
    return lambda pixels: rule(reduced(pixels, _PEER_SIDE))


RULES: dict[str, Rule] = {
    "histodict": ours,
    "scikit-image": _on_thumbnail(otsu_grey),
    "TIAToolbox": _on_thumbnail(otsu_morphology),
    "HistomicsTK H": _on_thumbnail(haematoxylin_otsu),
    "HistomicsTK 2": _on_thumbnail(grey_two_stages),
    "CLAM": _on_thumbnail(saturation),
    "LazySlide": _on_thumbnail(magenta),
}


def _grey(pixels: Pixels) -> NDArray[np.float64]:
    return np.rint(pixels @ np.array([0.2125, 0.7154, 0.0721]))


def _otsu(values: NDArray[np.float64]) -> float:
    """Return Otsu's threshold; for a constant image, its value."""
    return float(threshold_otsu(values)) if values.min() < values.max() else float(values.min())


def _two_stages(amount: NDArray[np.float64], n_steps: int, sigma: float, smallest: int) -> Mask:
    amount = amount.copy()
    mask = np.zeros(amount.shape, bool)
    for _ in range(n_steps):
        amount = ndimage.gaussian_filter(amount, sigma)
        positive = amount[amount > 0]
        if not len(positive):
            break
        mask = amount > _otsu(positive)
        amount[~mask] = 0
    return _without_small(mask, smallest)


def _without_small(mask: Mask, n_pixels: int) -> Mask:
    labels, _ = ndimage.label(mask)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0
    return (sizes >= n_pixels)[labels]


def _close(mask: Mask, side: int, n_times: int) -> Mask:
    """Close with a square, repeating the border of the image."""
    margin = side * n_times
    wide = np.pad(mask, margin, mode="edge")
    square = np.ones((side, side), bool)
    wide = ndimage.binary_closing(wide, square, iterations=n_times)
    return wide[margin:-margin, margin:-margin]
