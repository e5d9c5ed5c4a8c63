"""Patches on disk: as many as the disk holds, read and turned into vectors a block at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .vectors import PATCH_FEATURES


@dataclass(frozen=True)
class StoredPatches:
    """Two `.npy` files: patches (n, size, size, 3) as bytes, and their labels (n,).

    It holds the files' names alone, and can be sent to other processes and machines that see the
    same files. `methods.dfdl.DFDL.fit_blocks` takes it; no file is ever held in memory as a whole.

    patches_file, labels_file : the files
    vectors : what stands for a patch, of `patches.vectors.VECTORS`
    """

    patches_file: Path
    labels_file: Path
    features: str = "centred"

    def __post_init__(self) -> None:
        if self.features not in PATCH_FEATURES:
            raise ValueError(
                f"features must be one of {sorted(PATCH_FEATURES)}, not {self.features!r}"
            )
        shape, n_labels = self._open().shape, len(self.labels)
        if self._open().dtype != np.uint8 or len(shape) != 4 or shape[3] != 3:
            raise ValueError(f"{self.patches_file}: must hold bytes of shape (n, size, size, 3)")
        if shape[0] != n_labels:
            raise ValueError(
                f"{self.patches_file} holds {shape[0]} patches, "
                f"but {self.labels_file} {n_labels} labels"
            )

    @property
    def labels(self) -> NDArray[Any]:
        found: NDArray[Any] = np.load(self.labels_file, mmap_mode="r", allow_pickle=False)
        return found

    def read(self, rows: slice) -> NDArray[np.float32]:
        """The vectors (n, n_features) of some patches."""
        # Opened anew each time: pages of a map that stays open count as this process's memory.
        return PATCH_FEATURES[self.features](self._open()[rows])

    def _open(self) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = np.load(self.patches_file, mmap_mode="r", allow_pickle=False)
        return found
