"""Lazy reader of .npz files that checks the size of arrays before reading them."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .feature_sizes import check_whole

_SUFFIX = ".npy"
_KINDS = (ZIP_STORED, ZIP_DEFLATED)  # the file determines the memory that LZMA takes
_MAX_HEADER_BYTES = 10_000
_MAX_VALUE_BYTES = 2**20


class NpzArray:
    """Array that is read whole at the first access."""

    def __init__(self, file: ZipFile, member: ZipInfo, file_bytes: int) -> None:
        self._file, self._member, self._file_bytes = file, member, file_bytes
        if member.compress_type not in _KINDS:
            raise ValueError(f"{member.filename} is compressed by a method other than deflate")
        with file.open(member) as stream:
            # The length that the header states for itself may be gigabytes.
            head = BytesIO(stream.read(_MAX_HEADER_BYTES))
        self.shape, self._is_fortran, self.dtype = _header(head)
        self._start = head.tell()
        self.n_bytes = math.prod(self.shape) * self.dtype.itemsize
        if self.dtype.hasobject or self._start + self.n_bytes != member.file_size:
            raise ValueError(f"{member.filename} does not have the length that its header states")
        self._values: NDArray[Any] | None = None

    def __getitem__(self, index: Any) -> NDArray[Any]:
        if self._values is None:
            try:
                self._values = self._read()
            except (zlib.error, EOFError, BadZipFile) as error:
                raise ValueError(f"{self._member.filename} is damaged: {error}") from error
        found: NDArray[Any] = self._values[index]
        return found

    def _read(self) -> NDArray[Any]:
        check_whole(self._member.filename, self.n_bytes, self._file_bytes)
        with self._file.open(self._member) as stream:
            stream.read(self._start)
            data = stream.read(self.n_bytes)
            if len(data) != self.n_bytes or stream.read(1):  # the end verifies the checksum
                raise ValueError(f"{self._member.filename} is cut short")
        values: NDArray[Any] = np.frombuffer(data, self.dtype)
        is_fortran = self._is_fortran
        return values.reshape(self.shape[::-1]).T if is_fortran else values.reshape(self.shape)


class NpzFile(Mapping[str, NpzArray]):
    """Open .npz file; arrays are checked when they are accessed."""

    def __init__(self, path: Path) -> None:
        self._n_bytes = path.stat().st_size
        self._file = ZipFile(path)
        self._members = {
            member.filename.removesuffix(_SUFFIX): member
            for member in self._file.infolist()
            if member.filename.endswith(_SUFFIX)
        }

    def __getitem__(self, name: str) -> NpzArray:
        return NpzArray(self._file, self._members[name], self._n_bytes)

    def value(self, name: str) -> NDArray[Any]:
        """Return a small array, such as an attribute."""
        array = self[name]
        if array.n_bytes > _MAX_VALUE_BYTES:
            raise ValueError(f"{name} is too large for an attribute")
        return array[...]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(stream)
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"version {version} of the .npy format is not supported")
    shape, is_fortran, dtype = read(stream, max_header_size=_MAX_HEADER_BYTES)
    if any(length < 0 for length in shape):
        raise ValueError("a negative length")
    return shape, is_fortran, dtype
