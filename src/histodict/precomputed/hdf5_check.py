"""Checks of feature files before their values are read: memory, links, storage, missing chunks.

The HDF5 library may hang or abort on damaged files, so they are first opened in a child process.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ..images import slide_reader as slide_process
from ..images.file_types import ImageError
from ..utils.files import file_key

MAX_CHUNK_BYTES = 2**24
MAX_ARRAY_BYTES = 2**27
MAX_CHUNKS = 100_000  # per array, as they are read one by one
_MAX_RATIO = 4  # maximum compression ratio of feature vectors
# Accepted filters by number: those of the HDF5 library, then those of h5py and hdf5plugin. In
# others (szip, nbit, scaleoffset), parameters in the file determine the memory.
_DEFLATE, _FLETCHER32 = 1, 3
_MAX_STORED_CHUNKS = 1_000_000
_CHECKSUM_BYTES = 4
_FILTERS = {_DEFLATE: "gzip", 2: "shuffle", _FLETCHER32: "fletcher32"}
_PLUGIN_FILTERS = {32000: "lzf", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32015: "zstd"}


_CHECKED: set[tuple[str, str, str]] = set()  # path, state of the file, and name of a dataset


def check_chunk_size(name: str, n_bytes: int, file_bytes: int) -> None:
    """Raise ValueError if a chunk of the array `name` has more bytes than the file can contain."""
    if n_bytes > max(MAX_CHUNK_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"a chunk of {name} needs {n_bytes >> 20} MiB of memory, but the file has "
            f"{file_bytes} bytes; save it again with smaller chunks, such as 64 rows"
        )


def check_array_size(name: str, n_bytes: int, file_bytes: int) -> None:
    """Raise ValueError if the array `name` has more bytes than the file can contain."""
    if n_bytes > max(MAX_ARRAY_BYTES, _MAX_RATIO * file_bytes):
        raise ValueError(
            f"{name} needs {n_bytes >> 20} MiB of memory, but the file has {file_bytes} "
            "bytes; it is damaged, or must be saved without compression"
        )


def check_links(file: Any) -> None:
    """Raise ValueError if an open HDF5 file has links to other files."""
    h5l, h5o, h5d = (import_module(f"h5py.{name}") for name in ("h5l", "h5o", "h5d"))
    wrong: list[str] = []

    def visit(name: bytes, info: Any) -> str | None:
        shown = name.decode("utf-8", "replace")
        if info.type not in (h5l.TYPE_HARD, h5l.TYPE_SOFT):
            wrong.append(f"{shown!r} is a link to another file")
        elif info.type == h5l.TYPE_HARD:
            try:
                is_array = h5o.get_info(file.id, name).type == h5o.TYPE_DATASET
                settings = h5d.open(file.id, name).get_create_plist() if is_array else None
            except (KeyError, OSError, RuntimeError, ValueError):
                return None  # damaged: reported when read
            if settings is not None:
                is_virtual = settings.get_layout() == h5d.VIRTUAL
                if is_virtual or settings.get_external_count():
                    wrong.append(f"the values of {shown!r} are in another file")
        return wrong[0] if wrong else None

    file.id.links.visit(visit, info=True)
    if wrong:
        raise ValueError(f"{wrong[0]}, which is not supported; save all data in one file")


def check_dataset(dataset: Any, path: Path) -> None:
    """Raise ValueError if an HDF5 dataset has unsupported filters, or chunks of the wrong size.

    The result is cached until the file at `path` changes.
    """
    settings = dataset.id.get_create_plist()
    filters = [settings.get_filter(index)[0] for index in range(settings.get_nfilters())]
    for number in filters:
        if number not in _FILTERS | _PLUGIN_FILTERS:
            raise ValueError(
                f"{dataset.name} uses the unsupported filter {number}; save it again with "
                "gzip or without compression"
            )
    compressions = [i for i, n in enumerate(filters) if n == _DEFLATE or n in _PLUGIN_FILTERS]
    if len(compressions) > 1:
        raise ValueError(f"{dataset.name} is compressed more than once; save it again")
    if compressions and any(n != _FLETCHER32 for n in filters[compressions[0] + 1 :]):
        raise ValueError(f"{dataset.name} has a filter after its compression; save it again")
    if dataset.chunks is None:
        return
    n_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize
    check_chunk_size(dataset.name, n_bytes, path.stat().st_size)
    key = (str(path.absolute()), repr(file_key(path)), dataset.name)
    if math.prod(dataset.shape) and key not in _CHECKED:
        if dataset.id.get_num_chunks() > _MAX_STORED_CHUNKS:
            raise ValueError(f"{dataset.name} has too many chunks; save it again with larger ones")
        _check_stored_chunks(dataset, n_bytes, filters)
        _CHECKED.add(key)


def _check_stored_chunks(dataset: Any, n_bytes: int, filters: Sequence[int]) -> None:
    """Raise ValueError if a stored chunk does not have `n_bytes` after decompression.

    For such chunks, the HDF5 library crashes or returns unrelated memory. Chunks with a plugin
    filter are not decompressed; only the size of the compressed data is checked.

    Parameters
    ----------
    dataset : chunked dataset
    n_bytes : size of a decompressed chunk
    filters : numbers of the filters, in the order in which they are applied when writing
    """
    deflated: list[tuple[tuple[int, ...], int, int]] = []

    def check_valid(is_valid: bool, size: int) -> None:
        if not is_valid:
            raise ValueError(
                f"a chunk of {dataset.name} with {size} stored bytes does not contain "
                f"{n_bytes} bytes; the file is damaged: compute the features again"
            )

    def visit(chunk: Any) -> None:
        applied = [n for place, n in enumerate(filters) if not chunk.filter_mask >> place & 1]
        size = chunk.size - _CHECKSUM_BYTES * applied.count(_FLETCHER32)
        if _DEFLATE in applied:
            n_before = applied[: applied.index(_DEFLATE)].count(_FLETCHER32)
            n_after = applied.count(_FLETCHER32) - n_before
            deflated.append((chunk.chunk_offset, n_before, n_after))
        if any(number == _DEFLATE or number in _PLUGIN_FILTERS for number in applied):
            check_valid(0 < size <= 2 * n_bytes + 4096, chunk.size)
        else:
            check_valid(size == n_bytes, chunk.size)

    dataset.id.chunk_iter(visit)
    for offset, n_before, n_after in deflated:
        _, data = dataset.id.read_direct_chunk(offset)
        packed = data[: len(data) - _CHECKSUM_BYTES * n_after]
        check_valid(_is_inflated_to(packed, n_bytes + _CHECKSUM_BYTES * n_before), len(data))


def _is_inflated_to(data: bytes, n_bytes: int) -> bool:
    """Return whether zlib data have `n_bytes` after decompression.

    The result is also True for invalid data, for which the HDF5 library raises an error.
    """
    unpacker = zlib.decompressobj()
    try:
        n_found = len(unpacker.decompress(data, n_bytes + 1))
    except zlib.error:
        return True
    return n_found == n_bytes if unpacker.eof else n_found < n_bytes + 1


def count_missing_chunks(dataset: Any) -> tuple[int, int]:
    """Return the number of missing chunks and the number of all chunks of an HDF5 dataset.

    A contiguous dataset counts as one chunk.
    """
    if not math.prod(dataset.shape):
        return 0, 0
    if dataset.chunks is None:
        return int(dataset.id.get_storage_size() == 0), 1
    grid = zip(dataset.shape, dataset.chunks, strict=True)
    n_chunks = math.prod(-(-length // chunk) for length, chunk in grid)
    return n_chunks - dataset.id.get_num_chunks(), n_chunks


# --- child process ------------------------------------------------------------------------------

_LOCK = threading.Lock()  # one file at a time, as each needs a process


def check_in_subprocess(path: Path, read: Callable[[str], None]) -> None:
    """Raise ImageError if a child process hangs or dies when it reads a file.

    The result is cached until the file changes. On Windows nothing is checked.

    Parameters
    ----------
    path : feature file
    read : module-level function that reads the file; exceptions that it raises are ignored, as they
        are raised again when the file is opened in this process
    """
    if slide_process.USE_SUBPROCESS:
        _check_in_subprocess(path, path.absolute(), repr(file_key(path)), read)


@lru_cache(maxsize=100_000)
def _check_in_subprocess(
    path: Path, absolute_path: Path, cache_key: str, read: Callable[[str], None]
) -> None:
    try:
        with _LOCK:
            slide_process.call_in_subprocess(read, absolute_path)
    except slide_process.SlideFormatError:
        pass
    except slide_process.SlideTimeoutError as error:
        raise ImageError(
            f"{path}: the HDF5 library did not read the file in time; it is damaged, or the disk "
            "is too slow: copy the file to a faster disk, or compute the features again"
        ) from error
    except slide_process.SlideProcessDiedError as error:
        raise ImageError(
            f"{path}: the file is damaged and crashes the HDF5 library; compute the features again"
        ) from error
