"""Arrays that are costly to make, kept on disk under all that decides their numbers."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


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
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f".{file.name}.{uuid.uuid4().hex}.partial")
        try:
            with partial.open("wb") as stream:
                np.save(stream, array, allow_pickle=False)
            os.replace(partial, file)
        finally:
            partial.unlink(missing_ok=True)

    def _file(self, key: list[Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[:32]}.npy"


def file_key(path: Path) -> list[Any]:
    """Changes when the file is another one, or was changed."""
    state = path.stat()
    return [str(path.resolve()), state.st_size, state.st_mtime_ns]
