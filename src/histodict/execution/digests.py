"""What a file holds, in a few letters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

# Slides of which the file that is named is but the index of others in its folder.
_INDEXES = (".dcm", ".vms", ".vmu")


def content_digest(path: Path) -> str:
    """SHA-256 of a file; read once as long as its size and its times stay as they are.

    Of slides that lie in several files the others count by their size and time.
    """
    state = path.stat()
    own = _digest(path.resolve(), state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    beside = list(_beside(path))
    return hashlib.sha256(f"{own} {beside}".encode()).hexdigest() if beside else own


def _beside(path: Path) -> Iterator[list[Any]]:
    folder = path.parent if path.suffix.lower() in _INDEXES else path.with_suffix("")
    if folder.is_dir() and path.suffix.lower() in (*_INDEXES, ".mrxs"):
        for other in sorted(folder.iterdir()):
            if other != path and other.is_file():
                yield [other.name, other.stat().st_size, other.stat().st_mtime_ns]


@lru_cache(maxsize=100_000)
def _digest(path: Path, size: int, changed_ns: int, moved_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
