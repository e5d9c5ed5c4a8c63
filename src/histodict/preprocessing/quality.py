"""Tissue that should not be judged: out of focus, under pen marks, in folds.

An image is looked at in squares of 128 of its own pixels, small beside a fold or a stroke of a pen
and large enough for its texture to say whether it is sharp. Three rules, each of which may be used
or not; what they leave of real tissue is in docs/formats.md.

blur
    Of neighbouring pixels' green the differences, squared, beside those of squares of 4 × 4 pixels
    (steps 1 and 3 of a Haar transform). Where an image is smooth, differences grow with the
    distance: four times as far, sixteen times as large, 1/16 = 0.063. Noise and detail make the
    share larger, and how dark or contrasty the tissue is does not matter. Below 0.095 it is
    blurred.
pen
    Ink is blue or green, which no stain of tissue is, or black: green above red, blue above twice
    the red, or dark without any colour. More than half of a square.
folds
    Two layers absorb twice as much: the median density of the square is 1.75 times that of all
    tissue of the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .tissue import BackgroundMask, TissueThreshold

Pixels = NDArray[np.uint8]
Squares = NDArray[np.uint8]  # (n, 128, 128, 3)

NONE = "none"
SQUARE = 128
_READ = 2048  # level-0 pixels that are looked at together
_MIN_TISSUE = 0.25  # of a square: glass with a little tissue says nothing of it
_SMOOTH = 0.095
_INK = 0.5
_GREENER, _BLUER = 12, 20  # grey levels
_BLACK, _GREY = 70, 25
_FOLDED = 1.75


@dataclass(frozen=True)
class QualityFilter:
    """words : what is said of tissue that it leaves out

    bad : (squares, density of the image's tissue) to which of them: (n,)
    """

    describe_excluded: str
    bad: Callable[[Squares, float], NDArray[np.bool_]]


def is_blurred(squares: Squares, density: float) -> NDArray[np.bool_]:
    energies = []
    plane = squares[..., 1].astype(np.float32)
    for _ in range(3):
        n, height, width = plane.shape
        blocks = plane.reshape(n, height // 2, 2, width // 2, 2)
        means = blocks.mean(axis=(2, 4))
        off = blocks - means[:, :, None, :, None]
        energies.append((off**2).mean(axis=(1, 2, 3, 4)))
        plane = means
    blurred: NDArray[np.bool_] = energies[0] < _SMOOTH * energies[2]
    return blurred


def is_inked(squares: Squares, density: float) -> NDArray[np.bool_]:
    red, green, blue = (squares[..., place].astype(np.int16) for place in range(3))
    brightest = np.maximum(np.maximum(red, green), blue)
    spread = brightest - np.minimum(np.minimum(red, green), blue)
    ink = (green > red + _GREENER) | (blue > 2 * red + _BLUER)
    ink |= (brightest < _BLACK) & (spread < _GREY)
    inked: NDArray[np.bool_] = ink.mean(axis=(1, 2)) > _INK
    return inked


def is_folded(squares: Squares, density: float) -> NDArray[np.bool_]:
    folded: NDArray[np.bool_] = np.median(_density(squares), axis=(1, 2)) > _FOLDED * density
    return folded


QUALITY_FILTERS = {
    "blur": QualityFilter("blurred", is_blurred),
    "pen": QualityFilter("under pen marks", is_inked),
    "folds": QualityFilter("folded", is_folded),
}


def parse_quality_filters(text: str) -> list[str]:
    """The rules of a setting: none, or some names with commas between them."""
    names = [] if text == NONE else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in QUALITY_FILTERS]
    if unknown or len(set(names)) < len(names):
        raise ValueError(
            f"quality must be {NONE!r}, or some of {', '.join(QUALITY_FILTERS)} with commas "
            "between them, "
            f"not {text!r}"
        )
    return names


def check_quality(text: str, method: str, sees_patches: bool) -> None:
    """Refuse a setting that names no rules, or is of no use to a method."""
    if parse_quality_filters(text) and not sees_patches:
        raise ValueError(
            f"quality_filters={text} is of patches, and {method} sees images as a whole"
        )


class _Source(Protocol):
    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def overview_downsample(self) -> float | None: ...

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels: ...


def median_tissue_density(thumbnail: Pixels, threshold: TissueThreshold) -> float:
    """The median optical density of an image's tissue."""
    tissue = _density(thumbnail)[threshold.mask(thumbnail)]
    return float(np.median(tissue)) if len(tissue) else math.inf


def _density(pixels: Pixels) -> NDArray[np.float32]:
    """The mean of −log₁₀ of the light of each colour that comes through: (...)."""
    table = -np.log10((np.arange(256, dtype=np.float32) + 1) / 256)
    density: NDArray[np.float32] = table[pixels].mean(axis=-1)
    return density


class QualityMap:
    """What of an image's tissue is left out, by square and rule.

    tissue : (rows, columns), which squares have tissue; bad : by rule, which of these are left out
    """

    def __init__(
        self, source: _Source, threshold: TissueThreshold, density: float, rules: Sequence[str]
    ) -> None:
        width, height = source.size
        shape = -(-height // SQUARE), -(-width // SQUARE)
        self.tissue = np.zeros(shape, bool)
        self.bad = {name: np.zeros(shape, bool) for name in rules}
        low = source.overview_downsample
        glass = None if low is None else BackgroundMask(source, low, threshold)
        for y in range(0, height, _READ):
            for x in range(0, width, _READ):
                corner = np.array([x]), np.array([y])
                if glass is None or glass.maybe_tissue(*corner, _READ).any():
                    self._measure(source, x, y, threshold, density)

    def _measure(
        self, source: _Source, x: int, y: int, threshold: TissueThreshold, density: float
    ) -> None:
        """At a part of the image; beyond it is white."""
        rows, columns = (
            slice(at // SQUARE, min((at + _READ) // SQUARE, n))
            for at, n in zip((y, x), self.tissue.shape, strict=True)
        )
        n_rows, n_columns = rows.stop - rows.start, columns.stop - columns.start
        pixels = source.read(x, y, n_columns * SQUARE, n_rows * SQUARE)
        squares = pixels.reshape(n_rows, SQUARE, n_columns, SQUARE, 3).swapaxes(1, 2)
        # Including pen marks, which the mask excludes in part.
        dark = threshold.mask(squares) | threshold.is_unusable(squares)
        dark |= squares.max(axis=-1) < _BLACK
        there = dark.mean(axis=(2, 3)) > _MIN_TISSUE
        self.tissue[rows, columns] = there
        if not there.any():
            return
        for name, bad in self.bad.items():
            bad[rows, columns][there] = QUALITY_FILTERS[name].bad(squares[there], density)

    def is_usable(self, x: NDArray[Any], y: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether nothing is wrong at places of the image, in level-0 pixels."""
        n_rows, n_columns = self.tissue.shape
        row = np.clip(y // SQUARE, 0, n_rows - 1).astype(int)
        column = np.clip(x // SQUARE, 0, n_columns - 1).astype(int)
        fine = np.ones(np.broadcast(row, column).shape, bool)
        for bad in self.bad.values():
            fine &= ~bad[row, column]
        return fine

    def describe_excluded(self) -> str:
        """How much of the tissue is left out, and why; empty where nothing is."""
        n_tissue = max(1, int(self.tissue.sum()))
        shares = {name: int(bad.sum()) / n_tissue for name, bad in self.bad.items()}
        parts = [
            f"{share:.0%} {QUALITY_FILTERS[name].describe_excluded}"
            for name, share in shares.items()
            if share
        ]
        return f"of the tissue {', '.join(parts)}" if parts else ""
