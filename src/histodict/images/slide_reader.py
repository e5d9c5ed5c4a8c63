"""Slide readers, and the child processes that open slides and HDF5 files.

A damaged file may crash the process that opens it. A `SlideProcess` serves one open `Slide` to any
number of threads; after the slide is closed, it waits for the next one. If a process dies, the
request is repeated once in a new process; if that dies too, the file is reported as damaged.
A reply that takes longer than REPLY_TIMEOUT_S is an error. If sockets cannot be sent to another
process (Windows), slides are read in the main process.
"""

from __future__ import annotations

import atexit
import bisect
import json
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..utils.files import file_size
from ..utils.missing_chunks import check_missing_chunks
from ..utils.validation import install_command
from .file_types import SCALE_WITHOUT_UNIT, ImageError
from .raster import MAX_COMPRESSION_RATIO, plausible_mpp
from .region_reader import Pixels, RegionReader
from .resampling import ResampleTile
from .slide_worker import (
    DONE,
    FAILED,
    NO_LIBRARY,
    OME_TIFF,
    OME_ZARR,
    OPENSLIDE,
    REPLY_HEADER,
    REQUEST_HEADER,
    UNSUPPORTED,
    SlideServer,
    detect_library,
    max_connections,
)

USE_SUBPROCESS = hasattr(socket, "send_fds")
# Network drives are slow, and the file server of a scanner may be in standby.
REPLY_TIMEOUT_S = 120
_MAX_IDLE_PROCESSES = 2  # number of processes without an open slide

Bytes = NDArray[np.uint8]
Result = TypeVar("Result")


class SlideFormatError(Exception):
    """Exception raised if the slide library rejects the file; the message states the reason."""


class UnsupportedSlideError(Exception):
    """Exception raised if an undamaged slide is unsupported; the message states why."""


class MissingSlideLibraryError(Exception):
    """Exception raised if the library that reads the slide is not installed."""


class SlideProcessDiedError(Exception):
    """Exception raised if the child process in which the slide is open has ended."""


class SlideTimeoutError(SlideProcessDiedError):
    """Exception raised if the child process did not reply in time and was killed."""


class _SlideHost(Protocol):
    """Interface of the process in which a slide is open: `SlideProcess` or `_MainProcess`."""

    @property
    def is_reusable(self) -> bool: ...

    def request(self, name: str, *arguments: Any) -> Bytes: ...

    def end(self) -> None: ...


class SlideProcess:
    """Child process that runs `slide_worker`, and the sockets connected to the process."""

    def __init__(self) -> None:
        self.is_suspect = False  # True after an error or an interrupted request: not used again
        self._control, remote = socket.socketpair()
        with remote:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "histodict.images.slide_worker"],
                stdin=remote.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | _child_environment(),
            )
        self._free: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._slots = threading.Semaphore(max_connections())
        _RUNNING_PROCESSES.add(self)

    @property
    def pid(self) -> int:
        """Process identifier."""
        return self._process.pid

    @property
    def is_reusable(self) -> bool:
        """Whether another slide may be opened after the open one is closed."""
        return not self.is_suspect and not self._busy

    def request(self, name: str, *arguments: Any) -> Bytes:
        """Call the method `name` of `SlideServer` in the process and return the result."""
        with self._slots:
            status, reply = self._send_and_receive(json.dumps([name, *arguments]).encode())
        # A decoder that failed may have damaged the memory of the process.
        self.is_suspect |= name in ("read_tile", "call") and status == FAILED
        return _check_reply(status, reply)

    def _send_and_receive(self, message: bytes) -> tuple[int, Bytes]:
        """Send an encoded request; return the status and the content of the reply."""
        try:
            with self._connection() as connection:
                # Unlike `settimeout`, this lets the kernel receive the reply while threads compute.
                wait = struct.pack("ll", REPLY_TIMEOUT_S, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
                connection.sendall(REQUEST_HEADER.pack(len(message)) + message)
                status, length = REPLY_HEADER.unpack(_receive(connection, REPLY_HEADER.size).data)
                return status, _receive(connection, length)
        except (OSError, EOFError) as error:
            raise self._kill_and_make_error(error) from error

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """Yield a socket for one request; it is closed after an error or interruption."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = self._new_connection()
        self._busy.add(connection)
        try:
            yield connection
            self._free.append(connection)
        except BaseException:
            self.is_suspect = True
            connection.close()
            raise
        finally:
            self._busy.discard(connection)

    def _new_connection(self) -> socket.socket:
        connection, remote = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"+"], [remote.fileno()])
        except OSError:
            connection.close()
            raise
        finally:
            remote.close()
        return connection

    def _kill_and_make_error(self, error: Exception) -> SlideProcessDiedError:
        """Kill the process and return an exception with the reason why there is no reply."""
        if isinstance(error, BlockingIOError):
            self.end()
            return SlideTimeoutError(f"did not respond within {REPLY_TIMEOUT_S} s")
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            code = None
        self.end()
        return SlideProcessDiedError(_describe_exit(code, error))

    def end(self) -> None:
        """Kill the process, which has no state to save."""
        self.is_suspect = True
        _RUNNING_PROCESSES.discard(self)
        self._process.kill()
        self._process.wait()
        self._control.close()
        while self._free:
            self._free.pop().close()

    def close_inherited_sockets(self) -> None:
        """Close the sockets in a forked child, as they belong to the parent."""
        for connection in (self._control, *self._free, *self._busy):
            connection.close()


def _child_environment() -> dict[str, str]:
    return {
        # The child process imports the same packages.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        # glibc: threads share freed memory, which halves the memory of the process.
        "MALLOC_ARENA_MAX": "1",
    }


class _MainProcess:
    """Slide libraries in the main process, for systems without child processes."""

    def __init__(self) -> None:
        self._server = SlideServer()

    @property
    def is_reusable(self) -> bool:
        return False

    def request(self, name: str, *arguments: Any) -> Bytes:
        status, reply = self._server.execute(name, *arguments)
        return _check_reply(status, np.frombuffer(bytearray(reply), np.uint8))

    def end(self) -> None:
        self._server.close()


def _check_reply(status: int, reply: Bytes) -> Bytes:
    """Return `reply` if `status` is DONE; otherwise raise the exception for this status."""
    if status == DONE:
        return reply
    errors = {NO_LIBRARY: MissingSlideLibraryError, UNSUPPORTED: UnsupportedSlideError}
    raise errors.get(status, SlideFormatError)(reply.tobytes().decode("utf-8", "replace"))


def _receive(connection: socket.socket, length: int) -> Bytes:
    buffer = np.empty(length, np.uint8)
    memory, n_received = buffer.data, 0
    while n_received < length:
        n_new = connection.recv_into(memory[n_received:], 0, socket.MSG_WAITALL)
        if n_new == 0:
            raise EOFError("connection closed")
        n_received += n_new
    return buffer


def _describe_exit(code: int | None, error: Exception) -> str:
    if code is None:
        return f"could not be reached: {error}"
    if code == -signal.SIGKILL:
        return "was killed by signal 9, possibly because memory ran out"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


# --- idle processes -----------------------------------------------------------------------------

_RUNNING_PROCESSES: set[SlideProcess] = set()
_IDLE_PROCESSES: list[_SlideHost] = []


def _acquire_process(*, start_new: bool = False) -> _SlideHost:
    """Return an idle process, or start one if there is none or if `start_new`."""
    if not USE_SUBPROCESS:
        return _MainProcess()
    while _IDLE_PROCESSES and not start_new:
        with suppress(IndexError):  # another thread was faster
            return _IDLE_PROCESSES.pop()
    return SlideProcess()


def _release_process(process: _SlideHost) -> None:
    """Close the slide of a process, and keep the process for another slide or end it."""
    if process.is_reusable and len(_IDLE_PROCESSES) < _MAX_IDLE_PROCESSES:
        with suppress(
            SlideProcessDiedError, SlideFormatError, UnsupportedSlideError, MissingSlideLibraryError
        ):
            process.request("close")
            _IDLE_PROCESSES.append(process)
            return
    process.end()


def end_idle_processes() -> None:
    """End the processes without an open slide."""
    while _IDLE_PROCESSES:
        _IDLE_PROCESSES.pop().end()


@atexit.register
def end_all_processes() -> None:
    """End all child processes."""
    for process in list(_RUNNING_PROCESSES):
        process.end()


def _drop_inherited_processes() -> None:
    """Close the connections to the child processes of the parent, in a forked child."""
    for process in _RUNNING_PROCESSES:
        process.close_inherited_sockets()
    _RUNNING_PROCESSES.clear()
    _IDLE_PROCESSES.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited_processes)


def detect_slide_library(path: Path) -> str | None:
    """Return the identifier of the library that reads a file as a slide; None if none does."""
    return call_in_subprocess(detect_library, path)


def call_in_subprocess(function: Callable[[str], Result], path: Path) -> Result:
    """Call a module-level function with a path in a child process, and return its result."""
    process, reply = _request_with_retry("call", function.__module__, function.__name__, str(path))
    _release_process(process)
    result: Result = json.loads(reply.tobytes())
    return result


def _request_with_retry(*request: str) -> tuple[_SlideHost, Bytes]:
    """Send a request to a process, and return the process and its reply.

    If the process dies, the request is sent to a new process, which is then returned.
    """
    process = _acquire_process()
    try:
        return process, _request_or_release(process, *request)
    except SlideTimeoutError:
        raise
    except SlideProcessDiedError:
        process = _acquire_process(start_new=True)
        return process, _request_or_release(process, *request)


def _request_or_release(process: _SlideHost, name: str, *arguments: Any) -> Bytes:
    """Send a request and return the reply; release the process if the request fails."""
    try:
        return process.request(name, *arguments)
    except BaseException:
        _release_process(process)
        raise


class Slide:
    """Slide that is open in a child process until this object is no longer referenced.

    For `metadata` see `SlideBackend`.
    """

    def __init__(self, path: Path, library: str) -> None:
        self._open_request = ("open", str(path), library)
        self._lock = threading.Lock()
        process, reply = _request_with_retry(*self._open_request)
        self.metadata: dict[str, Any] = json.loads(reply.tobytes())
        self._host = [process]
        self.close = weakref.finalize(self, _close_slide, self._host, os.getpid())

    def read_tile(self, corner: tuple[int, int], tile: ResampleTile) -> Bytes:
        """Return the resampled pixels (height, width, 3) of a tile.

        Parameters
        ----------
        corner : (x, y) of the tile's upper left corner in level-0 pixels
        tile : rectangle of a level, and how to resample it
        """
        request = ("read_tile", corner, tile)
        process = self._host[0]
        try:
            reply = process.request(*request)
        except SlideTimeoutError:
            raise
        except SlideProcessDiedError:
            reply = self._reopen(process).request(*request)
        return reply.reshape(*tile.shape, 3)

    def _reopen(self, dead: _SlideHost) -> _SlideHost:
        """Open the slide in a new process instead of the `dead` one, and return the new process.

        If several threads used the `dead` process, only the first one starts a new process.
        """
        with self._lock:
            if self._host[0] is dead:
                process = _acquire_process(start_new=True)
                reply = _request_or_release(process, *self._open_request)
                if json.loads(reply.tobytes()) != self.metadata:
                    _release_process(process)
                    raise SlideFormatError(
                        "the file was replaced by another slide while it was read"
                    )
                self._host[0] = process
            return self._host[0]


def _close_slide(host: list[_SlideHost], pid: int) -> None:
    """Close the slide in the only element of `host`, unless this is not the process `pid`."""
    if pid == os.getpid():  # not in a forked process, which has a copy
        _release_process(host[0])


FOLDER_FORMATS = (".mrxs",)  # the data are in a folder named like the file
_MULTI_FILE_SUFFIXES = (*FOLDER_FORMATS, ".dcm", ".vms", ".vmu")
# A level of downsample 4.002 (a side is not a multiple of 4) may be used for a reduction by 4.
_DOWNSAMPLE_TOLERANCE = 1.01
# Memory of an open slide: a process of 30 MB, OpenSlide's cache of 32 MB and its directory, and
# 48 MB of individually decoded tiles.
_SLIDE_BYTES = 128 * 2**20
# Range of overview levels: at most 1/64 of the pixels of level 0, and cells are still visible.
_OVERVIEW_DOWNSAMPLES = (8.0, 20.0)
# A coarsest level of at most this many bytes is accepted for any file size.
_ALWAYS_ALLOWED_BYTES = 50_000_000


class SlideReader(RegionReader[Slide]):
    """Reader of a whole slide with OpenSlide, cropped to the bounds if the slide states them.

    Attributes
    ----------
    library : identifier of the library in `slide_worker`
    name : name of the library, for messages
    install : command that installs the library, for messages
    missing_chunks : number of missing chunks of an OME-Zarr
    scale_without_unit : scale of an OME-Zarr whose axes lack a unit, as text; None for other images
    """

    path: Path
    library: ClassVar[str] = OPENSLIDE
    name: ClassVar[str] = "OpenSlide"
    install: ClassVar[str] = "pip install openslide-python openslide-bin"

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        super().__init__(path, (0, 0), mpp)
        metadata = self._open_handle().metadata
        self.missing_chunks, n_chunks = metadata.get("missing_chunks", (0, 0))
        self._downsamples: list[float] = metadata["downsamples"]
        try:
            self.offset, self.size = _read_bounds(metadata["size"], metadata["properties"])
            stated_mpp = _read_mpp(metadata["properties"])
            if not (min(self.size) > 0 and 0 < min(self._downsamples) < math.inf):
                raise ValueError("no pixels")
        except ValueError as error:
            self.close()
            raise ImageError(
                f"{path}: the slide has invalid sizes in its metadata ({error}); copy it again"
            ) from error
        self.mpp = stated_mpp if mpp is None else mpp
        self.scale_without_unit = metadata["properties"].get(SCALE_WITHOUT_UNIT)
        _check_level_size(path, metadata["level_sizes"][-1])
        error_message = check_missing_chunks(path, self.missing_chunks, n_chunks)
        if error_message:
            self.close()
            raise ImageError(error_message)

    @property
    def memory_bytes(self) -> int:
        """Memory of an open slide in bytes."""
        return _SLIDE_BYTES

    @property
    def overview_downsample(self) -> float | None:
        """Downsample of a level that is fast to read as a whole; None if there is none."""
        low, high = _OVERVIEW_DOWNSAMPLES
        return max((each for each in self._downsamples if low <= each <= high), default=None)

    def _open(self) -> Slide:
        with self._convert_errors(
            f"{self.name} cannot open this slide",
            (
                "if the slide has several files, place all of them in the same folder; otherwise "
                "copy it again"
            ),
        ):
            return Slide(self.path, self.library)

    def _close(self, handle: Slide) -> None:
        handle.close()

    def _select_level(self, downsample: float) -> tuple[int, float]:
        level = max(
            0, bisect.bisect_right(self._downsamples, downsample * _DOWNSAMPLE_TOLERANCE) - 1
        )
        return level, self._downsamples[level]

    def _read_tile(self, handle: Slide, tile: ResampleTile) -> Pixels:
        scale = self._downsamples[tile.level]
        corner = round(tile.x * scale) + self.offset[0], round(tile.y * scale) + self.offset[1]
        with self._convert_errors(
            "part of the slide cannot be read",
            (
                f"the file is damaged or {self.name} does not support its compression; copy it "
                "again, or convert it to a pyramidal TIFF"
            ),
        ):
            return handle.read_tile(corner, tile)

    @contextmanager
    def _convert_errors(self, failure: str, advice: str) -> Iterator[None]:
        try:
            with _convert_errors(self.path, failure, advice):
                yield
        except MissingSlideLibraryError as error:
            raise ImageError(
                f"{self.path}: reading needs {self.name}, which is not installed ({error}). "
                f"Run: {self.install}"
            ) from error


class OmeTiffReader(SlideReader):
    """Reader of OME-TIFF with tifffile."""

    library = OME_TIFF
    name = "tifffile"
    install = "pip install tifffile"


class OmeZarrReader(SlideReader):
    """Reader of OME-Zarr folders with zarr."""

    library = OME_ZARR
    name = "zarr"
    install = install_command("ome")


_READERS = {reader.library: reader for reader in (SlideReader, OmeTiffReader, OmeZarrReader)}


def select_slide_reader(path: Path) -> type[SlideReader] | None:
    """Return the reader class of a TIFF that is a slide; None for any other file."""
    try:
        with _convert_errors(path, "OpenSlide cannot read this file", "copy it again"):
            found = detect_slide_library(path)
    except MissingSlideLibraryError:
        return None
    return None if found is None else _READERS[found]


@contextmanager
def _convert_errors(path: Path, failure: str, advice: str) -> Iterator[None]:
    """Convert exceptions of slide processes to ImageError with the path, failure and advice."""
    try:
        yield
    except UnsupportedSlideError as error:
        raise ImageError(f"{path}: {error}") from error
    except SlideFormatError as error:
        raise ImageError(f"{path}: {failure} ({error}); {advice}") from error
    except SlideProcessDiedError as error:
        raise ImageError(f"{path}: {failure} (the reading process {error}); {advice}") from error
    except OSError as error:
        raise ImageError(
            f"{path}: {failure} (the reading process cannot be started: {error})"
        ) from error


def _read_bounds(
    size: tuple[int, int], properties: dict[str, str]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the bounds of a slide, (x, y) and (width, height), in level-0 pixels."""
    defaults = {"x": 0, "y": 0, "width": size[0], "height": size[1]}
    x, y, width, height = (
        int(properties.get(f"openslide.bounds-{name}", value)) for name, value in defaults.items()
    )
    return (x, y), (width, height)


def _read_mpp(properties: dict[str, str]) -> float | None:
    names = ("openslide.mpp-x", "openslide.mpp-y")
    return plausible_mpp([float(properties[name]) for name in names if name in properties])


def _check_level_size(path: Path, level_size: tuple[int, int]) -> None:
    """Raise ImageError if the coarsest level has more pixels than the file can contain.

    The header is damaged then, and reading even a thumbnail would take too long.
    """
    if path.suffix.lower() in _MULTI_FILE_SUFFIXES:
        return
    n_bytes = file_size(path)
    if 3 * math.prod(level_size) > max(MAX_COMPRESSION_RATIO * n_bytes, _ALWAYS_ALLOWED_BYTES):
        raise ImageError(
            f"{path}: the coarsest level has {level_size[0]} x {level_size[1]} pixels according "
            f"to the header, more than {n_bytes} bytes can contain; the file is damaged; copy "
            "it again"
        )
