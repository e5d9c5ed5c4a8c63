"""A folder for the time being, which does not stay behind for ever if its process is killed."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":  # what a killed process leaves there stays
    import fcntl

_NEW_S = 60  # so young a folder may belong to somebody who has not locked it yet


@contextmanager
def folder_meanwhile(prefix: str) -> Iterator[Path]:
    """A temporary folder whose name begins so; those that killed processes left are removed.

    Whoever works in one holds a lock on it, which the system lifts however the process ends.
    """
    _sweep(prefix)
    with tempfile.TemporaryDirectory(prefix=prefix) as name, _locked(Path(name)):
        yield Path(name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError if somebody else holds it."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def _sweep(prefix: str) -> None:
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # In use, another user's, or gone by now.
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _NEW_S:
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)
