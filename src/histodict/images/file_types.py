"""File types: folder images, slides of several files, decompressed sizes and image errors.

A DICOM series has one file per pyramid level, and OpenSlide opens the whole series from any of
them. VMS, VMU and NDPI sets have an index that lists the other files. The data of MRXS are in a
separate folder (`source.FOLDER_FORMATS`).

Decompressed sizes are checked before decompression, so that a small file cannot fill the memory.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..utils.dicom_header import DICOM_SUFFIX as _DICOM
from ..utils.dicom_header import find_series

if TYPE_CHECKING:
    from PIL import Image

    from .resampling import ResampleTile

# Maximum compression ratio of deflate.
MAX_DEFLATE_RATIO = 1032
_ZSTD, _ZSTD_SKIPPED = 0xFD2FB528, 0x184D2A50
_BLOSC_HEADER = 16
_ZSTD_BLOCK = 128 * 1024
_INFLATE_STEP_BYTES = 2**20


def decompressed_size(compressor: str | None, data: bytes, unchecked_bytes: int) -> int:
    """Return the decompressed size in bytes, or a bound if the format does not state it.

    The bound is an upper bound for Zstandard, and a lower bound for gzip and zlib.

    Parameters
    ----------
    compressor : name of the codec; None for uncompressed data
    data : compressed data
    unchecked_bytes : for gzip and zlib, the size up to which the exact size is not needed; see
        `inflated_size`

    Raises
    ------
    ValueError
        If blosc data are shorter than their header states.
    """
    if compressor is None:
        return len(data)
    if compressor == "blosc":
        # Blosc trusts the length in the header and would read beyond the end.
        if int.from_bytes(data[12:16], "little") > len(data) or len(data) < _BLOSC_HEADER:
            raise ValueError("a compressed chunk is truncated; copy the file again")
        return int.from_bytes(data[4:8], "little")
    if compressor == "lz4":
        return int.from_bytes(data[:4], "little")
    if compressor == "zstd":
        return _zstd_size(data)
    return inflated_size(data, unchecked_bytes)


def inflated_size(data: bytes, unchecked_bytes: int) -> int:
    """Return the decompressed size of zlib or gzip data in bytes, or a lower bound.

    `unchecked_bytes` is the size up to which the exact size is not needed. Return 0, without
    decompression, if the data cannot exceed it even at the maximum compression ratio. Otherwise
    decompress the data until they exceed it or end, and return the size reached.
    """
    if len(data) * MAX_DEFLATE_RATIO <= unchecked_bytes:
        return 0
    total = 0
    while data and total <= unchecked_bytes:  # gzip allows several consecutive streams
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        try:
            while data and not unpacker.eof and total <= unchecked_bytes:
                total += len(unpacker.decompress(data, _INFLATE_STEP_BYTES))
                data = unpacker.unconsumed_tail
        except zlib.error:  # the decompressor reports damaged data
            return total
        if not unpacker.eof:
            break
        data = unpacker.unused_data.lstrip(b"\0")
    return total


def _zstd_size(data: bytes) -> int:
    """Return the decompressed size of Zstandard frames (RFC 8878) in bytes, or an upper bound.

    The result is an upper bound if a frame does not state its size. Data after damage are not
    counted, as the decompressor reports the damage.
    """
    total = position = 0
    while position + 5 <= len(data):
        magic = int.from_bytes(data[position : position + 4], "little")
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPED:
            position += 8 + int.from_bytes(data[position + 4 : position + 8], "little")
            continue
        if magic != _ZSTD:
            break
        descriptor = data[position + 4]
        single, checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
        n_size = (single, 2, 4, 8)[descriptor >> 6]
        position += 5 + (1 - single) + (0, 1, 2, 4)[descriptor & 3]
        stated = int.from_bytes(data[position : position + n_size], "little") + 256 * (n_size == 2)
        position, bound = _skip_zstd_blocks(data, position + n_size)
        total += stated if n_size else bound
        position += 4 * checksum
    return total


def _skip_zstd_blocks(data: bytes, position: int) -> tuple[int, int]:
    """Return the end of a Zstandard frame, and an upper bound of its decompressed size in bytes.

    `position` is the position of the first block header. The end is the position after the last
    block.
    """
    total = 0
    while position + 3 <= len(data):
        header = int.from_bytes(data[position : position + 3], "little")
        kind, size = header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == 1 else size)
        total += _ZSTD_BLOCK if kind == 2 else size
        if header & 1:
            break
    return position, total


class ImageError(ValueError):
    """Exception raised if an image cannot be read; the message states why and what to do."""


class UnknownImageError(ImageError):
    """Exception raised if a file has none of the expected image formats."""


class InsufficientMemoryError(ImageError):
    """Exception raised if an image needs more memory than is available."""


FOLDER_IMAGE_SUFFIXES = (".zarr",)
_OME_ZARR_SUFFIXES = (".ome.zarr",)
_ATTRIBUTE_FILES = ("zarr.json", ".zattrs")
_MAX_ATTRIBUTE_BYTES = 2**24  # maximum size of an attribute file
NO_SUCH_FILE = "no such file"
_SPECIAL_FILE_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_ERROR_DESCRIPTIONS = {
    errno.ELOOP: "a cycle of links",
    errno.EACCES: "not readable",
    errno.ENAMETOOLONG: "a name that is too long",
}
OME_LAYOUT = "bioformats2raw.layout"  # attribute of a folder with images named 0, 1, 2, …


def is_ome_zarr(path: Path) -> bool:
    """Return whether a path is a folder with an OME-Zarr image.

    A folder named .ome.zarr counts as an image even if it is damaged. Other .zarr folders may
    contain other data, so their attributes are read.
    """
    name = path.name.lower()
    if not name.endswith(FOLDER_IMAGE_SUFFIXES) or not os.path.isdir(path):
        return False
    return name.endswith(_OME_ZARR_SUFFIXES) or any(
        _file_describes_image(path / file) for file in _ATTRIBUTE_FILES
    )


def is_image_path(path: Path) -> bool:
    """Return whether the path is a file or an OME-Zarr image."""
    return os.path.isfile(path) or is_ome_zarr(path)


def is_zarr(path: Path) -> bool:
    """Return whether the path has the suffix of a Zarr folder."""
    return path.name.lower().endswith(FOLDER_IMAGE_SUFFIXES)


def _file_describes_image(file: Path) -> bool:
    """Return whether a file with the attributes of a Zarr folder describes an image."""
    try:
        if not file.is_file() or file.stat().st_size > _MAX_ATTRIBUTE_BYTES:
            return False
        found = json.loads(file.read_bytes())
        attributes = found.get("attributes", {}) if file.name == _ATTRIBUTE_FILES[0] else found
        return isinstance(attributes, dict) and describes_image(attributes)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False


# --- special files ------------------------------------------------------------------------------


def special_file_kind(path: Path) -> str:
    """Return what a path is, such as "a named pipe" or "no such file"; "" for files and folders.

    The path is not opened, as opening a pipe blocks until another process writes to it.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "a dangling link" if path.is_symlink() else NO_SUCH_FILE
    except OSError as error:
        return _ERROR_DESCRIPTIONS.get(error.errno or 0, error.strerror or str(error))
    return _SPECIAL_FILE_KINDS.get(stat.S_IFMT(mode), "")


def check_not_special(path: Path, error: type[Exception]) -> None:
    """Raise the exception `error` if the path exists but is neither a file nor a folder."""
    kind = special_file_kind(path)
    if kind and kind != NO_SUCH_FILE:
        raise error(f"{path}: not a regular file but {kind}; remove or replace it")


def is_unreadable_folder(folder: Path) -> bool:
    """Return whether the path is a folder without read permission."""
    return os.path.isdir(folder) and not os.access(folder, os.R_OK | os.X_OK)


def with_brackets(kind: str) -> str:
    """Return " (kind)", to append to a message; "" if `kind` is empty."""
    return f" ({kind})" if kind else ""


def ome_attributes(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the OME attributes among the `attributes` of a Zarr folder.

    OME-Zarr 0.5 stores them under the key "ome"; in earlier versions they are the `attributes`.
    """
    return attributes.get("ome", attributes)


def describes_image(attributes: Mapping[str, Any]) -> bool:
    """Return whether the attributes of a Zarr folder describe one or several images."""
    return bool({"multiscales", OME_LAYOUT, "plate"} & set(ome_attributes(attributes)))


_INDEX_SUFFIXES = (".vms", ".vmu", ".ndpis")
_LISTED_SUFFIXES = (".jpg", ".jpeg", ".ndpi", ".tif", ".tiff")  # files that an index may list
_INDEX_ENTRY = re.compile(rb"^[^=\r\n]+=([^\r\n]+)", re.MULTILINE)
_MAX_INDEX_BYTES = 2**20


def find_redundant_files(folder: Path, names: Sequence[str]) -> set[str]:
    """Return the files of a folder that need not be opened: all but the main file of each slide.

    The main file is the index if it can be opened, otherwise the first file by name. In a DICOM
    series it is the (first) file with the most frames, which is the base level.
    `names` are the names of all files in the folder.
    """
    groups: dict[str, list[str]] = {}
    for name, slide in map_files_to_slides(folder, names, names).items():
        groups.setdefault(slide, []).append(name)
    redundant = set[str]()
    for members in groups.values():
        redundant.update(sorted(members, key=lambda name: _file_rank(folder, name))[1:])
    return redundant


def split_redundant_files(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the main file of each slide, and the other files of the same slides.

    The only file of a slide is its main file.
    """
    by_folder: dict[Path, list[str]] = {}
    for path in paths:
        by_folder.setdefault(path.parent, []).append(path.name)
    redundant = {
        folder / name
        for folder, names in by_folder.items()
        for name in find_redundant_files(folder, names)
    }
    return [p for p in paths if p not in redundant], [p for p in paths if p in redundant]


def _file_rank(folder: Path, name: str) -> tuple[bool, int, str]:
    """Return a sort key by which the main file of a slide is first."""
    series = find_series(folder / name) if _has_suffix(name, _DICOM) else None
    return not _has_suffix(name, *_INDEX_SUFFIXES), -series.n_frames if series else 0, name


def map_files_to_slides(
    folder: Path, names: Iterable[str], all_names: Iterable[str] | None = None
) -> dict[str, str]:
    """Map the files of slides that consist of several files to an identifier of the slide.

    Parameters
    ----------
    folder : folder of the files
    names : file names to look up
    all_names : names of all files in the folder; None to list the folder

    Returns
    -------
    dict
        Slide identifier by file name. Files that are not part of such a slide are omitted.
    """
    chosen = {
        name for name in names if _has_suffix(name, _DICOM, *_INDEX_SUFFIXES, *_LISTED_SUFFIXES)
    }
    found = {}
    if any(not _has_suffix(name, _DICOM) for name in chosen):
        all_names = _list_folder(folder) if all_names is None else all_names
        for index in sorted(name for name in all_names if _has_suffix(name, *_INDEX_SUFFIXES)):
            slide = f"{folder / index}"
            members = _read_index(folder / index) & chosen
            found.update(dict.fromkeys(members, slide))
            if index in chosen and not _has_suffix(index, ".ndpis"):  # no reader opens this index
                found[index] = slide
    for name in chosen:
        series = find_series(folder / name) if _has_suffix(name, _DICOM) else None
        if series is not None:
            found[name] = f"DICOM series {series.uid}"
    return found


def _list_folder(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _has_suffix(name: str, *suffixes: str) -> bool:
    return name.lower().endswith(suffixes)


def _read_index(index: Path) -> set[str]:
    """Return the names of the files that an index lists; an empty set if it cannot be read.

    The names are relative to the folder of the index.
    """
    try:
        if not index.is_file():
            return set()
        with index.open("rb") as file:
            text = file.read(_MAX_INDEX_BYTES)
    except OSError:
        return set()
    return {name.decode("utf-8", "surrogateescape").strip() for name in _INDEX_ENTRY.findall(text)}


# --- slide libraries ----------------------------------------------------------------------------

# Name of an additional property: scale without a unit, which may be the pixel size in µm.
SCALE_WITHOUT_UNIT = "ome.scale-without-unit"


class UnreadableContentError(Exception):
    """Exception raised if an undamaged file is unsupported; the message states why."""


class MissingLibraryError(Exception):
    """Exception raised if the library that reads a file is not installed."""


class SlideBackend(Protocol):
    """Interface of an open slide, implemented for each library that reads slides.

    Attributes
    ----------
    metadata : dictionary with `size` (width, height) of level 0, `level_sizes` and `downsamples` of
        all levels, and `properties` named as in OpenSlide; for an OME-Zarr also `missing_chunks`,
        (number of missing chunks, number of chunks)
    """

    metadata: dict[str, Any]

    def read_region(self, corner: list[int], tile: ResampleTile) -> Image.Image:
        """Return the pixels of a tile before resampling.

        `corner` is [x, y] of the tile's upper left corner in level-0 pixels.
        """

    def close(self) -> None:
        """Close the file."""
