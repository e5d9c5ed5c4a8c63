"""What a library makes of a slide, in the process that opens slides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from PIL import Image

    from .reduction import ResampleTile


# Additional property: a scale without a unit, which may be the pixel size in µm.
SCALE_WITHOUT_UNIT = "ome.scale-without-unit"


class UnsupportedSlideError(Exception):
    """The file is as it should be, and yet cannot be used; the message says why, and what to do."""


class MissingLibraryError(Exception):
    """What would read it is not installed."""


class SlideBackend(Protocol):
    """facts : its size, level_sizes, downsamples and properties, of OpenSlide's names"""

    metadata: dict[str, Any]

    def picture(self, corner: list[int], piece: ResampleTile) -> Image.Image:
        """The rectangle of a piece, not reduced yet; its corner is given in pixels of level 0."""

    def close(self) -> None: ...


def level_downsamples(sizes: list[tuple[int, int]]) -> list[float]:
    """How many times smaller each level is than the first.

    A whole number where the sizes are those of the first divided by it and rounded, up or down.
    """
    return [_downsample(sizes[0], size) for size in sizes]


def _downsample(whole: tuple[int, int], size: tuple[int, int]) -> float:
    ratios = [a / b for a, b in zip(whole, size, strict=True)]
    mean = sum(ratios) / 2
    factor = max(1, round(mean))
    if all(abs(a / factor - b) < 1 for a, b in zip(whole, size, strict=True)):
        return float(factor)
    return mean
