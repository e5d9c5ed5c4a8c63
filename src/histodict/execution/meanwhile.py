"""A folder for the time being, which does not stay behind for ever if its process is killed."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .file_lock import lock_descriptor

_NEW_S = 60  # so young a folder may belong to somebody who has not locked it yet


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder whose name begins so; those that killed processes left are removed.

    Whoever works in one holds a lock on it, which the system lifts however the process ends. Other
    machines that share the folder may not see the lock: names tell which machine's it is.
    """
    own = f"{prefix}{platform.node()}-"
    _sweep(own)
    with tempfile.TemporaryDirectory(prefix=own) as name, ExitStack() as stack:
        with suppress(OSError):  # some file systems know no locks: then nobody gets one to sweep
            stack.enter_context(_locked(Path(name)))
        yield Path(name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError if somebody else holds it."""
    if (
        sys.platform == "win32"
    ):  # folders cannot be locked, so those of killed processes are not removed
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock_descriptor(handle)
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
