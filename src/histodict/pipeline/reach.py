"""How far a large image is done, by the tissue in it: glass takes hardly any time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..execution.progress import Callback, Progress
from ..patches.grid import PatchGrid

_LARGE = 16_000_000  # pixels: of smaller images it is enough to hear that they are done


class Reach:
    """Tells of each chunk of patches that was looked at.

    size : of the image, in pixels
    find_tissue : where a small picture of all of it shows tissue, (height, width); asked for where
        the image is large
    """

    def __init__(
        self,
        size: tuple[int, int],
        find_tissue: Callable[[], NDArray[np.bool_]],
        grid: PatchGrid,
        callback: Callback,
    ) -> None:
        self._grid, self._callback = grid, callback
        tissue = find_tissue() if math.prod(size) > _LARGE else np.zeros((1, 1), bool)
        self._is_large = bool(tissue.any())
        # Of patches to pixels of the small picture.
        self._scale = grid.step * tissue.shape[0] / size[1], grid.step * tissue.shape[1] / size[0]
        self._tissue = tissue
        self._found, self._total = 0, int(np.count_nonzero(tissue))
        self._megapixels = math.prod(size) / tissue.size / 1e6
        self._tell()

    def add(self, rows: slice, columns: slice) -> None:
        """This chunk is done."""
        y, x = (
            slice(round(part.start * scale), math.ceil(part.stop * scale))
            for part, scale in zip((rows, columns), self._scale, strict=True)
        )
        self._found = min(self._total, self._found + int(np.count_nonzero(self._tissue[y, x])))
        self._tell()

    def end(self) -> None:
        self._found = self._total
        self._tell()

    def _tell(self) -> None:
        if self._is_large:
            done, total = (round(n * self._megapixels) for n in (self._found, self._total))
            self._callback(Progress("slide", done, total, work=self._found / self._total))
