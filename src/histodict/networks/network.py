"""What a network must give to be used here."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Network(Protocol):
    """A trained network, ready to use.

    cell_px : side of a cell in pixels of the reduced image
    digest : changes when the weights do
    """

    cell_px: int
    digest: str

    def cells(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Pixels (h·cell_px, w·cell_px, 3) to vectors (h, w, n_features)."""
