"""Arrays that are costly to make, kept on disk under all that decides their numbers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .files import written_whole


class ArrayCache:
    """One `.npy` file per array; a file is complete or not there, a damaged one is not there."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def read(self, key: list[Any]) -> NDArray[Any] | None:
        try:
            array: NDArray[Any] = np.load(self._file(key), allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return array

    def write(self, key: list[Any], array: NDArray[Any]) -> None:
        with written_whole(self._file(key), durable=False) as partial:
            np.save(partial, array, allow_pickle=False)

    def _file(self, key: list[Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[:32]}.npy"
