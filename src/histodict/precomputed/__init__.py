"""White placeholder image for a feature file."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..images.source import register_opener
from .feature_file import check_has_positions, is_feature_file, open_features


class PlaceholderImage:
    """White image in place of the slide of a feature file, with the interface of `ImageSource`."""

    memory_bytes = 0
    overview_downsample: float | None = None

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        with open_features(path) as file:
            self.offset, self.missing_chunks = file.offset, file.missing_chunks
            self.mpp = file.mpp if mpp is None else mpp
        self.path = path

    @cached_property
    def size(self) -> tuple[int, int]:
        """(width, height) in level-0 pixels."""
        with open_features(self.path) as file:
            return file.extent

    def read(
        self, x: int, y: int, width: int, height: int, downsample: float = 1.0
    ) -> NDArray[np.uint8]:
        """Return a white image of the region."""
        shape = (max(1, round(length / downsample)) for length in (height, width))
        return np.full((*shape, 3), 255, np.uint8)

    def thumbnail(self, longest_side: int) -> NDArray[np.uint8]:
        """Return a white thumbnail of at most `longest_side` pixels."""
        return self.read(0, 0, *self.size, max(1.0, max(self.size) / longest_side))

    def is_region_invariant(self, downsample: float) -> bool:
        """Return True, as all pixels are equal."""
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def _open_feature_file(path: Path, mpp: float | None) -> PlaceholderImage | None:
    """Open a feature file; return None for other files."""
    if is_feature_file(path):
        return PlaceholderImage(path, mpp)
    check_has_positions(path)
    return None


register_opener(_open_feature_file)
