"""A folder that is one image, as one thing: how large it is, and whether it is still the same."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

# A slide may lie in a hundred thousand files, and every tile of the page asks for its state. A look
# that took long holds for some times as long, so that looking takes a small part of the time.
_LONG_S = 0.05
_CACHE_SECONDS = 10
_MAX_KEPT = 1000


@dataclass(frozen=True)
class _CachedListing:
    state: tuple[int, int, int]
    valid_until: float


_CACHE: dict[str, _CachedListing] = {}


def folder_signature(folder: str) -> tuple[int, int, int]:
    """Bytes of all files, when the last was changed, and a number that changes with any of them.

    Whatever a file's name, size or times are: see `stat_signature`.
    """
    start = time.monotonic()
    kept = _CACHE.get(folder)
    if kept is not None and start < kept.valid_until:
        return kept.state
    state = _list(folder)
    took = time.monotonic() - start
    if took > _LONG_S:
        while len(_CACHE) >= _MAX_KEPT:
            _CACHE.pop(next(iter(_CACHE)), None)
        _CACHE[folder] = _CachedListing(state, start + (1 + _CACHE_SECONDS) * took)
    return state


def _list(folder: str) -> tuple[int, int, int]:
    n_bytes = newest = 0
    total = hashlib.sha256()
    for name, *sizes in files_inside(folder):
        n_bytes += sizes[0]
        newest = max(newest, sizes[2])
        total.update(repr([name, *sizes]).encode("utf-8", "surrogateescape"))
    return n_bytes, newest, int.from_bytes(total.digest()[:8], "big")


def folder_digest(folder: str) -> str:
    """SHA-256 of the contents and names of all files, wherever the folder lies."""
    total = hashlib.sha256()
    for name, *_ in files_inside(folder):
        with open(os.path.join(folder, name), "rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(repr([name, own]).encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def files_inside(folder: str, above: str = "") -> Iterator[tuple[str, int, int, int]]:
    """Every file below a folder by name, with its size, time of modification and of change.

    Folders that are links are not entered: they may lead in a circle.
    """
    with os.scandir(os.path.join(folder, above)) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{above}/{entry.name}" if above else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from files_inside(folder, name)
        elif entry.is_file():
            state = entry.stat()
            yield name, state.st_size, state.st_mtime_ns, state.st_ctime_ns
