"""Files that are complete or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A name to write to, in the same folder; on success the file gets its final name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{os.getpid()}.partial.{path.name}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
