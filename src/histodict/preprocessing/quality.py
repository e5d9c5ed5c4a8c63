"""Quality filters: exclusion of tissue that is out of focus, under pen marks or folded.

An image is divided into squares of 128 level-0 pixels, which are smaller than a fold or pen stroke
and large enough to measure sharpness from texture. Each of three filters can be enabled;
docs/formats.md states how much real tissue they retain.

blur
    The squared differences of green between neighbouring pixels are divided by those between
    squares of 4 × 4 pixels (steps 1 and 3 of a Haar transform). In a smooth image differences grow
    with distance: a distance four times as large gives squared differences sixteen times as large,
    a ratio of 1/16 = 0.063. Noise and detail increase the ratio; darkness and contrast of the
    tissue do not matter. A square is blurred below 0.095.
pen
    Ink is blue or green, unlike any stain of tissue, or black: green above red, blue above twice
    the red, or dark without any colour. A square is inked if more than half of it is ink.
folds
    Two layers absorb twice as much: a square is folded if its median density exceeds 1.75 times
    the median density of all tissue of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .tissue import BackgroundMask, TissueThreshold

Pixels = NDArray[np.uint8]
Squares = NDArray[np.uint8]  # (n, 128, 128, 3)

NONE = "none"
SQUARE_PX = 128  # level-0 pixels, side of a square
_PART_PX = 2048  # level-0 pixels; side of the parts of the image that are read at once
_MIN_TISSUE_FRACTION = 0.25  # squares with a smaller fraction of tissue are not tested
_MIN_ENERGY_RATIO = 0.095
_MIN_INK_FRACTION = 0.5
_INK_GREEN_EXCESS, _INK_BLUE_EXCESS = 12, 20  # grey levels
_MAX_BLACK, _MAX_GREY_SPREAD = 70, 25
_MIN_FOLD_RATIO = 1.75


@dataclass(frozen=True)
class QualityFilter:
    """Quality filter: a test that selects squares of tissue to exclude.

    Attributes
    ----------
    adjective : description of the excluded tissue, for messages
    is_excluded : function of the pixels (n, 128, 128, 3) of n squares and the median optical
        density of the image's tissue that returns which squares to exclude, (n,)
    """

    adjective: str
    is_excluded: Callable[[Squares, float], NDArray[np.bool_]]


def is_blurred(squares: Squares, density: float) -> NDArray[np.bool_]:
    """Return whether each square is out of focus, (n,); `density` is not used."""
    energies = []
    plane = squares[..., 1].astype(np.float32)
    for _ in range(3):
        n, height, width = plane.shape
        blocks = plane.reshape(n, height // 2, 2, width // 2, 2)
        means = blocks.mean(axis=(2, 4))
        off = blocks - means[:, :, None, :, None]
        energies.append((off**2).mean(axis=(1, 2, 3, 4)))
        plane = means
    blurred: NDArray[np.bool_] = energies[0] < _MIN_ENERGY_RATIO * energies[2]
    return blurred


def is_inked(squares: Squares, density: float) -> NDArray[np.bool_]:
    """Return whether each square is under pen marks, (n,); `density` is not used."""
    red, green, blue = (squares[..., channel].astype(np.int16) for channel in range(3))
    brightest = np.maximum(np.maximum(red, green), blue)
    spread = brightest - np.minimum(np.minimum(red, green), blue)
    ink = (green > red + _INK_GREEN_EXCESS) | (blue > 2 * red + _INK_BLUE_EXCESS)
    ink |= (brightest < _MAX_BLACK) & (spread < _MAX_GREY_SPREAD)
    inked: NDArray[np.bool_] = ink.mean(axis=(1, 2)) > _MIN_INK_FRACTION
    return inked


def is_folded(squares: Squares, density: float) -> NDArray[np.bool_]:
    """Return whether each square is folded, (n,).

    `density` is the median optical density of all tissue of the image.
    """
    folded: NDArray[np.bool_] = (
        np.median(_density(squares), axis=(1, 2)) > _MIN_FOLD_RATIO * density
    )
    return folded


QUALITY_FILTERS = {
    "blur": QualityFilter("blurred", is_blurred),
    "pen": QualityFilter("with pen marks", is_inked),
    "folds": QualityFilter("folded", is_folded),
}


def parse_quality_filters(text: str) -> list[str]:
    """Return the filter names in the setting `quality_filters`.

    The setting is "none", or names separated by commas.

    Raises
    ------
    ValueError
        If a name is unknown or repeated.
    """
    names = [] if text == NONE else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in QUALITY_FILTERS]
    if unknown or len(set(names)) < len(names):
        raise ValueError(
            f"quality_filters must be {NONE!r} or a comma-separated list of "
            f"{', '.join(QUALITY_FILTERS)}, not {short(text)}"
        )
    return names


def check_quality_filters(text: str, method: str, uses_patches: bool) -> None:
    """Raise ValueError if a filter is unknown, or the method does not support filters.

    Parameters
    ----------
    text : value of the setting `quality_filters`, see `parse_quality_filters`
    method : name of the method, for messages
    uses_patches : whether the method uses patches; filters require this
    """
    if parse_quality_filters(text) and not uses_patches:
        raise ValueError(
            f"quality_filters={text} needs a method that uses patches, but {method} uses "
            "whole images; remove the setting"
        )


class _Source(Protocol):
    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def overview_downsample(self) -> float | None: ...

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels: ...


def median_tissue_density(thumbnail: Pixels, threshold: TissueThreshold) -> float:
    """Return the median optical density of the tissue in a thumbnail; infinite without tissue."""
    tissue = _density(thumbnail)[threshold.mask(thumbnail)]
    return float(np.median(tissue)) if len(tissue) else math.inf


def _density(pixels: Pixels) -> NDArray[np.float32]:
    """Return the optical density of pixels (..., 3): the mean of −log₁₀ of transmitted light."""
    table = -np.log10((np.arange(256, dtype=np.float32) + 1) / 256)
    density: NDArray[np.float32] = table[pixels].mean(axis=-1)
    return density


class QualityMap:
    """Map of the squares of an image that have tissue, and of those that quality filters exclude.

    Parameters
    ----------
    source : image
    threshold : tissue threshold of the image
    density : median optical density of the image's tissue, from `median_tissue_density`
    filters : names of the quality filters, keys of `QUALITY_FILTERS`

    Attributes
    ----------
    tissue : (rows, columns), whether each square has tissue
    excluded : for each filter name, the mask of the squares that it excludes, (rows, columns)
    """

    def __init__(
        self, source: _Source, threshold: TissueThreshold, density: float, filters: Sequence[str]
    ) -> None:
        width, height = source.size
        shape = -(-height // SQUARE_PX), -(-width // SQUARE_PX)
        self.tissue = np.zeros(shape, bool)
        self.excluded = {name: np.zeros(shape, bool) for name in filters}
        overview = source.overview_downsample
        background = None if overview is None else BackgroundMask(source, overview, threshold)
        for y in range(0, height, _PART_PX):
            for x in range(0, width, _PART_PX):
                corner = np.array([x]), np.array([y])
                if background is None or background.may_have_tissue(*corner, _PART_PX).any():
                    self._measure(source, x, y, threshold, density)

    def _measure(
        self, source: _Source, x: int, y: int, threshold: TissueThreshold, density: float
    ) -> None:
        """Compute `tissue` and `excluded` for one part of the image.

        (x, y) is the upper left corner of the part in level-0 pixels; for `threshold` and `density`
        see the parameters of the class.
        """
        rows, columns = (
            slice(at // SQUARE_PX, min((at + _PART_PX) // SQUARE_PX, n))
            for at, n in zip((y, x), self.tissue.shape, strict=True)
        )
        n_rows, n_columns = rows.stop - rows.start, columns.stop - columns.start
        pixels = source.read(x, y, n_columns * SQUARE_PX, n_rows * SQUARE_PX)
        squares = pixels.reshape(n_rows, SQUARE_PX, n_columns, SQUARE_PX, 3).swapaxes(1, 2)
        # Includes pen marks, which the mask excludes in part.
        dark = threshold.mask(squares) | threshold.is_unusable(squares)
        dark |= squares.max(axis=-1) < _MAX_BLACK
        has_tissue = dark.mean(axis=(2, 3)) > _MIN_TISSUE_FRACTION
        self.tissue[rows, columns] = has_tissue
        if not has_tissue.any():
            return
        for name, excluded in self.excluded.items():
            is_excluded = QUALITY_FILTERS[name].is_excluded
            excluded[rows, columns][has_tissue] = is_excluded(squares[has_tissue], density)

    def is_usable(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
        """Return the mask of the positions (x, y), in level-0 pixels, that no filter excludes."""
        n_rows, n_columns = self.tissue.shape
        row = np.clip(y // SQUARE_PX, 0, n_rows - 1).astype(int)
        column = np.clip(x // SQUARE_PX, 0, n_columns - 1).astype(int)
        usable = np.ones(np.broadcast(row, column).shape, bool)
        for excluded in self.excluded.values():
            usable &= ~excluded[row, column]
        return usable

    def describe_excluded(self) -> str:
        """Return a text with the fraction of tissue that each filter excludes; "" if it is 0."""
        n_tissue = max(1, int(self.tissue.sum()))
        fractions = {name: int(mask.sum()) / n_tissue for name, mask in self.excluded.items()}
        parts = [
            f"{fraction:.0%} {QUALITY_FILTERS[name].adjective}"
            for name, fraction in fractions.items()
            if fraction
        ]
        return f"{', '.join(parts)} (of the tissue)" if parts else ""
