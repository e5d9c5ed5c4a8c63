"""Arrays that are costly to make, kept on disk under all that decides their numbers."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .files import written_whole

_FORM = 2  # of the files
_DIGEST = 32  # bytes
_PART = 1 << 20


class ArrayCache:
    """One file per array: a `.npy` file with the SHA-256 of its bytes behind it.

    It is complete or not there; a damaged one is named in a warning and counts as not there.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def read(self, key: list[Any]) -> NDArray[Any] | None:
        path = self._file(key)
        try:
            with path.open("rb") as file:
                if _digest(file, path.stat().st_size - _DIGEST) != file.read():
                    raise ValueError("its content is not what was written")
                file.seek(0)
                array: NDArray[Any] = np.load(file, allow_pickle=False)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError) as error:
            warnings.warn(f"{path}: is damaged and made anew ({error})", stacklevel=2)
            return None
        return array

    def write(self, key: list[Any], array: NDArray[Any]) -> None:
        with (
            written_whole(self._file(key), durable=False) as partial,
            partial.open("w+b") as file,
        ):
            np.save(file, array, allow_pickle=False)
            size = file.tell()
            file.seek(0)
            file.write(_digest(file, size))

    def _file(self, key: list[Any]) -> Path:
        digest = hashlib.sha256(json.dumps([_FORM, *key]).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[:32]}.npy"


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the next bytes of a file, so many; it then stands behind them."""
    total = hashlib.sha256()
    while size > 0 and (part := file.read(min(size, _PART))):
        total.update(part)
        size -= len(part)
    return total.digest()
