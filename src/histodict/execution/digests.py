"""What a file holds, in a few letters."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path


def content_digest(path: Path) -> str:
    """SHA-256 of a file; read once as long as its size and its times stay as they are."""
    state = path.stat()
    return _digest(path.resolve(), state.st_size, state.st_mtime_ns, state.st_ctime_ns)


@lru_cache(maxsize=100_000)
def _digest(path: Path, size: int, changed_ns: int, moved_ns: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
