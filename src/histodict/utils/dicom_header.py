"""Series and number of frames of a DICOM file, from its first tags.

Reads little-endian files with explicit value representations, such as all compressed ones, up to
the tag NumberOfFrames. See DICOM PS3.5, section 7, and PS3.10, section 7.
"""

from __future__ import annotations

import os
import stat
import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

SUFFIX = ".dcm"
_HEAD_BYTES = 64 * 1024
_LONG = (b"OB", b"OD", b"OF", b"OL", b"OV", b"OW", b"SQ", b"SV", b"UC", b"UN", b"UR", b"UT", b"UV")
_SERIES, _FRAMES = (0x0020, 0x000E), (0x0028, 0x0008)
_ITEM, _END_OF_ITEM, _END = (0xFFFE, 0xE000), (0xFFFE, 0xE00D), (0xFFFE, 0xE0DD)
_UNDEFINED = 0xFFFFFFFF
_MAX_LEVELS = 20


class Series(NamedTuple):
    """SeriesInstanceUID and number of frames of a file (1 if it states none)."""

    uid: str
    n_frames: int


def series_of(path: Path) -> Series | None:
    """Return the series of a file, cached until the file changes; None if it states none."""
    try:
        return _cached_series(str(path), _state(path))
    except OSError:
        return None


def files_of_series(path: Path) -> list[Path]:
    """Return the other DICOM files in the same folder that belong to the slide of this file.

    For a file without a series, these are all others without one. Results are cached until the
    folder changes.
    """
    folder = path.parent
    groups = _groups(str(folder), _state(folder))
    return [folder / name for name in groups.get(_uid(path), ()) if name != path.name]


@lru_cache(maxsize=100_000)
def _cached_series(path: str, state: tuple[int, ...]) -> Series | None:
    return read_series(Path(path)) if stat.S_ISREG(state[0]) else None


@lru_cache(maxsize=100)
def _groups(folder: str, state: tuple[int, ...]) -> dict[str | None, list[str]]:
    """Return names of files by series."""
    groups: dict[str | None, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        path = Path(folder, name)
        if path.is_file():
            groups.setdefault(_uid(path), []).append(name)
    return groups


def _uid(path: Path) -> str | None:
    series = series_of(path) if path.suffix.lower() == SUFFIX else None
    return series.uid if series else None


def _state(path: Path) -> tuple[int, ...]:
    status = os.stat(path)
    sizes = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return status.st_mode, status.st_dev, status.st_ino, *sizes


def read_series(path: Path) -> Series | None:
    """Return the series of a file; None if it is damaged or not DICOM."""
    with path.open("rb") as file:
        data = file.read(_HEAD_BYTES)
    if data[128:132] != b"DICM":
        return None
    uid, n_frames, at = "", 1, 132
    try:
        while at < len(data):
            tag, length, at = _element(data, at)
            if tag > _FRAMES or (length != _UNDEFINED and at + length > len(data)):
                break
            value = data[at : at + length] if length != _UNDEFINED else b""
            if tag == _SERIES:
                uid = value.decode("ascii").rstrip("\0 ")
            elif tag == _FRAMES:
                n_frames = int(value)
            at = at + length if length != _UNDEFINED else _skipped(data, at, 0)
    except (struct.error, ValueError):
        pass  # use the tags read before the damage
    return Series(uid, n_frames) if uid else None


def _element(data: bytes, at: int) -> tuple[tuple[int, int], int, int]:
    """Return the tag, the length of the value and its position."""
    group, number = struct.unpack_from("<HH", data, at)
    if group == _ITEM[0]:  # items have no value representation
        return (group, number), struct.unpack_from("<I", data, at + 4)[0], at + 8
    if data[at + 4 : at + 6] in _LONG:
        return (group, number), struct.unpack_from("<I", data, at + 8)[0], at + 12
    return (group, number), struct.unpack_from("<H", data, at + 6)[0], at + 8


def _skipped(data: bytes, at: int, level: int) -> int:
    """Return the end of a sequence or item of undefined length."""
    if level > _MAX_LEVELS:
        raise ValueError("DICOM sequences are nested too deeply")
    while True:
        tag, length, at = _element(data, at)
        if tag in (_END, _END_OF_ITEM):
            return at
        at = at + length if length != _UNDEFINED else _skipped(data, at, level + 1)
