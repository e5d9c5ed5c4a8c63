"""Whether a result can be written, asked before the work that makes it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from .files import WriteError, true_file


class OutputError(ValueError):
    """What was named cannot be written to; the message says why, and what to do."""


def check_writable_file(path: Path) -> None:
    """Refuses a name under which no file can be written: a folder's, or in none that is there."""
    try:
        path = true_file(path)
    except WriteError as error:
        raise OutputError(str(error)) from error
    if path.is_dir():
        raise OutputError(f"{path}: is a folder; give the name of a file, such as {path / 'NAME'}")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist: make it first")
    _check_writable(path, path.parent)


def check_writable_folder(path: Path) -> None:
    """Refuses a name that cannot become a folder of results; folders above it are made."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise OutputError(f"{path}: {there} is a file; give the name of a folder")
    _check_writable(path, there)


def check_disk_space(path: Path, n_bytes: int) -> None:
    """Refuses a disk that has less room than what will be written is likely to take."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    if free < n_bytes:
        raise OutputError(
            f"{path}: about {format_bytes(n_bytes)} will be written, and the disk has "
            f"{format_bytes(free)} "
            "left: make room, or write elsewhere"
        )


def _check_writable(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{path}: nothing can be written to the folder {folder} ({error.strerror or error}): "
            "choose another, or ask for the right to write there"
        ) from error


def format_bytes(n_bytes: int) -> str:
    """1.6 GB, or 310 MB."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"
