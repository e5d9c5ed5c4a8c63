"""Series and number of frames of a DICOM file, read from the header.

Only little-endian files with explicit value representations, such as all compressed files, are
read, up to the tag NumberOfFrames. See DICOM PS3.5, section 7, and PS3.10, section 7.
"""

from __future__ import annotations

import os
import stat
import struct
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

DICOM_SUFFIX = ".dcm"
_MAX_HEADER_BYTES = 64 * 1024
_LONG_VRS = b"OB OD OF OL OV OW SQ SV UC UN UR UT UV".split()  # with a length of four bytes
_SERIES_TAG, _FRAMES_TAG = (0x0020, 0x000E), (0x0028, 0x0008)
_ITEM_TAG, _ITEM_END_TAG, _SEQUENCE_END_TAG = (0xFFFE, 0xE000), (0xFFFE, 0xE00D), (0xFFFE, 0xE0DD)
_UNDEFINED_LENGTH = 0xFFFFFFFF
_MAX_NESTING = 20


class Series(NamedTuple):
    """SeriesInstanceUID and number of frames of a DICOM file (1 frame if not in the header)."""

    uid: str
    n_frames: int


def find_series(path: Path) -> Series | None:
    """Return the series of a file, cached until the file changes; None if it has no series."""
    try:
        return _cached_series(str(path), _file_state(path))
    except OSError:
        return None


def find_other_series_files(path: Path) -> list[Path]:
    """Return the other DICOM files of the same series (slide) in the folder of this file.

    For a file without a series, return all other files without a series. Results are cached until
    the folder changes.
    """
    folder = path.parent
    groups = _group_by_series(str(folder), _file_state(folder))
    return [folder / name for name in groups.get(_series_uid(path), ()) if name != path.name]


@lru_cache(maxsize=100_000)
def _cached_series(path: str, state: tuple[int, ...]) -> Series | None:
    return read_series(Path(path)) if stat.S_ISREG(state[0]) else None


@lru_cache(maxsize=100)
def _group_by_series(folder: str, state: tuple[int, ...]) -> dict[str | None, list[str]]:
    """Return the file names in a folder by SeriesInstanceUID; the key None has all other files.

    `state` (see `_file_state`) is only a cache key.
    """
    groups: dict[str | None, list[str]] = {}
    for name in sorted(os.listdir(folder)):
        path = Path(folder, name)
        if path.is_file():
            groups.setdefault(_series_uid(path), []).append(name)
    return groups


def _series_uid(path: Path) -> str | None:
    series = find_series(path) if path.suffix.lower() == DICOM_SUFFIX else None
    return series.uid if series else None


def _file_state(path: Path) -> tuple[int, ...]:
    """Return mode, device, inode, size and times of a file or folder, to detect changes."""
    status = os.stat(path)
    sizes = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    return status.st_mode, status.st_dev, status.st_ino, *sizes


def read_series(path: Path) -> Series | None:
    """Read the series of a file without a cache; return None if it is damaged or not DICOM."""
    with path.open("rb") as file:
        data = file.read(_MAX_HEADER_BYTES)
    if data[128:132] != b"DICM":
        return None
    uid, n_frames, position = "", 1, 132
    try:
        while position < len(data):
            tag, length, position = _read_element(data, position)
            if tag > _FRAMES_TAG or (length != _UNDEFINED_LENGTH and position + length > len(data)):
                break
            value = data[position : position + length] if length != _UNDEFINED_LENGTH else b""
            if tag == _SERIES_TAG:
                uid = value.decode("ascii").rstrip("\0 ")
            elif tag == _FRAMES_TAG:
                n_frames = int(value)
            has_length = length != _UNDEFINED_LENGTH
            position = position + length if has_length else _skip_sequence(data, position, 0)
    except (struct.error, ValueError):
        pass  # use the tags read before the damage
    return Series(uid, n_frames) if uid else None


def _read_element(data: bytes, position: int) -> tuple[tuple[int, int], int, int]:
    """Return the tag of the element at a position, and the length and start of its value."""
    group, number = struct.unpack_from("<HH", data, position)
    if group == _ITEM_TAG[0]:  # items have no value representation
        return (group, number), struct.unpack_from("<I", data, position + 4)[0], position + 8
    if data[position + 4 : position + 6] in _LONG_VRS:
        return (group, number), struct.unpack_from("<I", data, position + 8)[0], position + 12
    return (group, number), struct.unpack_from("<H", data, position + 6)[0], position + 8


def _skip_sequence(data: bytes, position: int, level: int) -> int:
    """Return the end of a sequence or item of undefined length that begins at `position`.

    `level` is the depth of nesting; raise ValueError if it exceeds the maximum.
    """
    if level > _MAX_NESTING:
        raise ValueError("DICOM sequences are nested too deeply")
    while True:
        tag, length, position = _read_element(data, position)
        if tag in (_SEQUENCE_END_TAG, _ITEM_END_TAG):
            return position
        position = (
            position + length
            if length != _UNDEFINED_LENGTH
            else _skip_sequence(data, position, level + 1)
        )
