"""Arrays that are costly to make, kept on disk under all that decides their numbers."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .files import atomic_write

_FORM = 3  # of the files
_DIGEST = 32  # bytes
_PART = 1 << 20
_NAMES = f"{'[0-9a-f]' * 2}/{'[0-9a-f]' * 32}.npy"

_LIMIT_VARIABLE = "HISTODICT_CACHE_GIB"
_LIMIT_GIB = 20.0
_CLEANUP_INTERVAL = 1 / 32  # of the limit: after so much was written, the folder is looked at
_FREE_FRACTION = 0.9  # of the limit is what it is made smaller to

# Bytes that this process has written into each folder since it looked at it last.
_written: dict[Path, int] = {}


class ArrayCache:
    """One file per array: a `.npy` file with the SHA-256 of its bytes behind it.

    It is complete or not there; a damaged one is named in a warning and counts as not there. The
    folder holds about 20 GiB at most, or as many as the environment variable HISTODICT_CACHE_GIB
    says: of more, what was not read for longest goes.
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
        with suppress(OSError):  # of somebody else, or gone by now
            os.utime(path)
        return array

    def write(self, key: list[Any], array: NDArray[Any]) -> None:
        with (
            atomic_write(self._file(key), durable=False) as partial,
            partial.open("w+b") as file,
        ):
            np.save(file, array, allow_pickle=False)
            size = file.tell()
            file.seek(0)
            file.write(_digest(file, size))
        self._stay_small(size + _DIGEST)

    def _stay_small(self, n_new: int) -> None:
        """Look at the folder with the first array, and then now and again."""
        limit = max_bytes()
        known = self.folder in _written
        _written[self.folder] = _written.get(self.folder, 0) + n_new
        if not known or _written[self.folder] > limit * _CLEANUP_INTERVAL:
            _written[self.folder] = 0
            _evict(self.folder, limit)

    def _file(self, key: list[Any]) -> Path:
        digest = hashlib.sha256(json.dumps([_FORM, *key]).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[:32]}.npy"


def max_bytes() -> float:
    """That a folder may hold."""
    given = os.environ.get(_LIMIT_VARIABLE, _LIMIT_GIB)
    try:
        gib = float(given)
    except ValueError:
        gib = -1.0
    if not gib >= 0:
        raise ValueError(f"{_LIMIT_VARIABLE} must be a number of GiB, not {given!r}")
    return gib * 2**30


def _evict(folder: Path, limit: float) -> None:
    """Remove the arrays that were not read for longest, if there is more than the limit."""
    found = sorted(_arrays(folder))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, path in found:
        with suppress(OSError):  # somebody else's, or in use where that forbids it
            path.unlink(missing_ok=True)
            total -= size
        if total <= limit * _FREE_FRACTION:
            return


def _arrays(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """When each was used last, its size, and where it is."""
    for path in folder.glob(_NAMES):
        with suppress(OSError):  # gone by now
            stat = path.stat()
            yield stat.st_mtime_ns, stat.st_size, path


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the next bytes of a file, so many; it then stands behind them."""
    total = hashlib.sha256()
    while size > 0 and (part := file.read(min(size, _PART))):
        total.update(part)
        size -= len(part)
    return total.digest()
