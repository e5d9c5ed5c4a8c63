"""Slide readers, and the child processes that open slides and HDF5 files for them.

A damaged file may crash the process that opens it. Any number of threads read a `Slide` from a
`SlideProcess`. When the slide is closed, the process waits for the next one. When a process dies,
the request is repeated once in a new one, and a second death is reported as an error of the file.
Replies are awaited for at most REPLY_TIMEOUT_S. If sockets cannot be sent to another process
(Windows), slides are read in the main process.
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

from ..utils.files import file_bytes
from ..utils.missing_chunks import check_missing_chunks
from ..utils.validation import install_command
from .file_types import SCALE_WITHOUT_UNIT, ImageError
from .raster import MAX_COMPRESSION_RATIO, plausible_mpp
from .region_reader import Pixels, RegionReader
from .resampling import ResampleTile
from .slide_worker import (
    DONE,
    NO_LIBRARY,
    OME_TIFF,
    OME_ZARR,
    OPENSLIDE,
    ORDER,
    REFUSED,
    REPLY,
    UNFIT,
    SlideServer,
    detect_library,
    max_connections,
)

USE_SUBPROCESS = hasattr(socket, "send_fds")
# In seconds: network drives are slow, and a scanner's file server may be in standby.
REPLY_TIMEOUT_S = 120
_MAX_IDLE = 2

Bytes = NDArray[np.uint8]
Result = TypeVar("Result")


class SlideFormatError(Exception):
    """Exception raised if the library rejects the file, for the reason in the message."""


class UnsupportedSlideError(Exception):
    """Exception raised if an undamaged slide is unsupported; the message states why."""


class MissingSlideLibraryError(Exception):
    """Exception raised if the library that reads the slide is not installed."""


class SlideProcessDiedError(Exception):
    """Exception raised if the process with the slide has ended."""


class SlideTimeoutError(SlideProcessDiedError):
    """Exception raised if the process did not reply in time and was killed."""


class _Opener(Protocol):
    @property
    def reusable(self) -> bool: ...

    def request(self, name: str, *arguments: Any) -> Bytes: ...

    def end(self) -> None: ...


class SlideProcess:
    """Child process and the sockets to it."""

    def __init__(self) -> None:
        self.is_suspect = False  # after a damaged file, or an abandoned reply
        self._control, remote = socket.socketpair()
        with remote:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "histodict.images.slide_worker"],
                stdin=remote.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | _environment(),
            )
        self._free: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._slots = threading.Semaphore(max_connections())
        _LIVING.add(self)

    @property
    def pid(self) -> int:
        """Process identifier."""
        return self._process.pid

    @property
    def reusable(self) -> bool:
        """Whether another slide may be opened after this one is closed."""
        return not self.is_suspect and not self._busy

    def request(self, name: str, *arguments: Any) -> Bytes:
        """Send a request to the process and return its reply; wait while all sockets are in use."""
        with self._slots:
            status, reply = self._exchange(json.dumps([name, *arguments]).encode())
        # An error of a decoder may have damaged the memory of the process.
        self.is_suspect |= name in ("piece", "call") and status == REFUSED
        return _check_reply(status, reply)

    def _exchange(self, message: bytes) -> tuple[int, Bytes]:
        try:
            with self._connection() as connection:
                # Unlike `settimeout`, this lets the kernel collect the reply while threads compute.
                wait = struct.pack("ll", REPLY_TIMEOUT_S, 0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
                connection.sendall(ORDER.pack(len(message)) + message)
                status, length = REPLY.unpack(_receive(connection, REPLY.size).data)
                return status, _receive(connection, length)
        except (OSError, EOFError) as error:
            raise self._lost_error(error) from error

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """Yield a socket for one request; after an error or interruption it is discarded."""
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

    def _lost_error(self, error: Exception) -> SlideProcessDiedError:
        """Kill the process and return the reason why there is no reply."""
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
        _LIVING.discard(self)
        self._process.kill()
        self._process.wait()
        self._control.close()
        while self._free:
            self._free.pop().close()

    def forget(self) -> None:
        """Close the sockets after a fork in the new process, as they belong to its parent."""
        for connection in (self._control, *self._free, *self._busy):
            connection.close()


def _environment() -> dict[str, str]:
    return {
        # The child process imports the same packages.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        # glibc: threads share freed memory, which halves the memory of the process.
        "MALLOC_ARENA_MAX": "1",
    }


class _MainProcess:
    """Slide libraries in the main process."""

    def __init__(self) -> None:
        self._server = SlideServer()

    @property
    def reusable(self) -> bool:
        return False

    def request(self, name: str, *arguments: Any) -> Bytes:
        status, reply = self._server.do(name, *arguments)
        return _check_reply(status, np.frombuffer(bytearray(reply), np.uint8))

    def end(self) -> None:
        self._server.close()


def _check_reply(status: int, reply: Bytes) -> Bytes:
    if status == DONE:
        return reply
    errors = {NO_LIBRARY: MissingSlideLibraryError, UNFIT: UnsupportedSlideError}
    raise errors.get(status, SlideFormatError)(reply.tobytes().decode("utf-8", "replace"))


def _receive(connection: socket.socket, length: int) -> Bytes:
    buffer = np.empty(length, np.uint8)
    memory, n_got = buffer.data, 0
    while n_got < length:
        n_new = connection.recv_into(memory[n_got:], 0, socket.MSG_WAITALL)
        if n_new == 0:
            raise EOFError("connection closed")
        n_got += n_new
    return buffer


def _describe_exit(code: int | None, error: Exception) -> str:
    if code is None:
        return f"could not be reached: {error}"
    if code == -signal.SIGKILL:
        return "was killed by signal 9, possibly because memory ran out"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


# --- idle processes -----------------------------------------------------------------------------

_LIVING: set[SlideProcess] = set()
_IDLE: list[_Opener] = []


def _lease(*, new: bool = False) -> _Opener:
    """Return a process without an open slide."""
    if not USE_SUBPROCESS:
        return _MainProcess()
    while _IDLE and not new:
        with suppress(IndexError):  # another thread was faster
            return _IDLE.pop()
    return SlideProcess()


def _release(opener: _Opener) -> None:
    if opener.reusable and len(_IDLE) < _MAX_IDLE:
        with suppress(
            SlideProcessDiedError, SlideFormatError, UnsupportedSlideError, MissingSlideLibraryError
        ):
            opener.request("close")
            _IDLE.append(opener)
            return
    opener.end()


def end_idle() -> None:
    """End the processes without an open slide."""
    while _IDLE:
        _IDLE.pop().end()


@atexit.register
def end_all() -> None:
    """End all processes."""
    for process in list(_LIVING):
        process.end()


def _forget_processes() -> None:
    for process in _LIVING:
        process.forget()
    _LIVING.clear()
    _IDLE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_processes)


def detect(path: Path) -> str | None:
    """Return the library that reads the file as a slide; None if there is none."""
    return call(detect_library, path)


def call(function: Callable[[str], Result], path: Path) -> Result:
    """Call a module-level function with a path in a child process, and return its result."""
    opener, reply = _request_with_retry("call", function.__module__, function.__name__, str(path))
    _release(opener)
    result: Result = json.loads(reply.tobytes())
    return result


def _request_with_retry(*order: str) -> tuple[_Opener, Bytes]:
    """Return a reply and its process; the second attempt is in a new process."""
    opener = _lease()
    try:
        return opener, _request_or_release(opener, *order)
    except SlideTimeoutError:
        raise
    except SlideProcessDiedError:
        opener = _lease(new=True)
        return opener, _request_or_release(opener, *order)


def _request_or_release(opener: _Opener, name: str, *arguments: Any) -> Bytes:
    try:
        return opener.request(name, *arguments)
    except BaseException:
        _release(opener)
        raise


class Slide:
    """Slide that is open in a child process; closed when this object is no longer referenced."""

    def __init__(self, path: Path, library: str) -> None:
        self._order = ("open", str(path), library)
        self._lock = threading.Lock()
        opener, reply = _request_with_retry(*self._order)
        self.metadata: dict[str, Any] = json.loads(reply.tobytes())
        self._opener = [opener]
        self.close = weakref.finalize(self, _close_slide, self._opener, os.getpid())

    def piece(self, corner: tuple[int, int], piece: ResampleTile) -> Bytes:
        """Return the pixels (height, width, 3) of a rectangle of a level, resampled.

        Parameters
        ----------
        corner : upper left corner in level-0 pixels
        piece : the rectangle, and how to resample it
        """
        order = ("piece", corner, piece)
        opener = self._opener[0]
        try:
            reply = opener.request(*order)
        except SlideTimeoutError:
            raise
        except SlideProcessDiedError:
            reply = self._reopen(opener).request(*order)
        return reply.reshape(*piece.shape, 3)

    def _reopen(self, lost: _Opener) -> _Opener:
        """Return a new process with the slide open, which the first thread starts."""
        with self._lock:
            if self._opener[0] is lost:
                opener = _lease(new=True)
                reply = _request_or_release(opener, *self._order)
                if json.loads(reply.tobytes()) != self.metadata:
                    _release(opener)
                    raise SlideFormatError(
                        "the file was replaced by another slide while it was read"
                    )
                self._opener[0] = opener
            return self._opener[0]


def _close_slide(opener: list[_Opener], pid: int) -> None:
    if pid == os.getpid():  # not in a forked process, which has a copy
        _release(opener[0])


FOLDER_FORMATS = (".mrxs",)  # with the data in a folder of the same name beside the file
_IN_SEVERAL_FILES = (*FOLDER_FORMATS, ".dcm", ".vms", ".vmu")
# A level of downsample 4.002, from a side that is not a multiple of 4, fits a reduction by 4.
_LEVEL_SLACK = 1.01
# Memory of an open slide: a process of 30 MB, OpenSlide's cache of 32 MB and its directory, and
# 48 MB of individually decoded tiles.
_SLIDE_BYTES = 128 * 2**20
# Downsamples of overview levels: fast to read (1/64 of the time at most), with visible cells.
_LOW_LEVELS = (8.0, 20.0)
# A coarsest level of at most this size is accepted for any size of the file.
_ALWAYS_BYTES = 50_000_000


class SlideReader(RegionReader[Slide]):
    """Whole slide, read by OpenSlide; only the part inside its bounds if it has some (MRXS).

    Attributes
    ----------
    library : identifier of the library in `slide_worker`
    name, install : the library and the command that installs it, for messages
    missing_chunks : number of chunks of an OME-Zarr that were not written
    scale_without_unit : scale of an OME-Zarr without units, as text; mpp is then unknown
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
            self.offset, self.size = _bounds(metadata["size"], metadata["properties"])
            stated_mpp = _mpp_of(metadata["properties"])
            if not (min(self.size) > 0 and 0 < min(self._downsamples) < math.inf):
                raise ValueError("no pixels")
        except ValueError as error:
            self.close()
            raise ImageError(
                f"{path}: the slide has invalid sizes in its metadata ({error}); copy it again"
            ) from error
        self.mpp = stated_mpp if mpp is None else mpp
        self.scale_without_unit = metadata["properties"].get(SCALE_WITHOUT_UNIT)
        _check_proportions(path, metadata["level_sizes"][-1])
        error_message = check_missing_chunks(path, self.missing_chunks, n_chunks)
        if error_message:
            self.close()
            raise ImageError(error_message)

    @property
    def memory_bytes(self) -> int:
        """Memory of an open slide."""
        return _SLIDE_BYTES

    @property
    def overview_downsample(self) -> float | None:
        """Downsample of a level that is fast to read as a whole; None without one."""
        low, high = _LOW_LEVELS
        return max((each for each in self._downsamples if low <= each <= high), default=None)

    def _open(self) -> Slide:
        with self._describe_error(
            f"{self.name} cannot open this slide",
            (
                "if the slide has several files, place all of them in the same folder; otherwise "
                "copy it again"
            ),
        ):
            return Slide(self.path, self.library)

    def _close(self, handle: Slide) -> None:
        handle.close()

    def _level(self, downsample: float) -> tuple[int, float]:
        level = max(0, bisect.bisect_right(self._downsamples, downsample * _LEVEL_SLACK) - 1)
        return level, self._downsamples[level]

    def _read_tile(self, handle: Slide, piece: ResampleTile) -> Pixels:
        scale = self._downsamples[piece.level]
        corner = round(piece.x * scale) + self.offset[0], round(piece.y * scale) + self.offset[1]
        with self._describe_error(
            "part of the slide cannot be read",
            (
                f"the file is damaged or {self.name} does not support its compression; copy it "
                "again, or convert it to a pyramidal TIFF"
            ),
        ):
            return handle.piece(corner, piece)

    @contextmanager
    def _describe_error(self, what: str, advice: str) -> Iterator[None]:
        try:
            with _describe_error(self.path, what, advice):
                yield
        except MissingSlideLibraryError as error:
            raise ImageError(
                f"{self.path}: reading needs {self.name}, which is not installed ({error}). "
                f"Run: {self.install}"
            ) from error


class OmeTiffReader(SlideReader):
    """OME-TIFF, read by tifffile."""

    library = OME_TIFF
    name = "tifffile"
    install = "pip install tifffile"


class OmeZarrReader(SlideReader):
    """OME-Zarr folder, read by zarr."""

    library = OME_ZARR
    name = "zarr"
    install = install_command("ome")


_READERS = {reader.library: reader for reader in (SlideReader, OmeTiffReader, OmeZarrReader)}


def select_slide_reader(path: Path) -> type[SlideReader] | None:
    """Return the reader class of a TIFF that is a slide; None for any other file."""
    try:
        with _describe_error(path, "OpenSlide cannot read this file", "copy it again"):
            found = detect(path)
    except MissingSlideLibraryError:
        return None
    return None if found is None else _READERS[found]


@contextmanager
def _describe_error(path: Path, what: str, advice: str) -> Iterator[None]:
    """Convert errors of the process with the slide to ImageError, which names the file."""
    try:
        yield
    except UnsupportedSlideError as error:
        raise ImageError(f"{path}: {error}") from error
    except SlideFormatError as error:
        raise ImageError(f"{path}: {what} ({error}); {advice}") from error
    except SlideProcessDiedError as error:
        raise ImageError(f"{path}: {what} (the reading process {error}); {advice}") from error
    except OSError as error:
        raise ImageError(
            f"{path}: {what} (the reading process cannot be started: {error})"
        ) from error


def _bounds(
    size: tuple[int, int], properties: dict[str, str]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the position of a slide's first pixel, and its width and height."""
    defaults = {"x": 0, "y": 0, "width": size[0], "height": size[1]}
    x, y, width, height = (
        int(properties.get(f"openslide.bounds-{name}", value)) for name, value in defaults.items()
    )
    return (x, y), (width, height)


def _mpp_of(properties: dict[str, str]) -> float | None:
    names = ("openslide.mpp-x", "openslide.mpp-y")
    return plausible_mpp([float(properties[name]) for name in names if name in properties])


def _check_proportions(path: Path, coarsest: tuple[int, int]) -> None:
    """Refuse a slide whose coarsest level is too large for its file, as its sizes are damaged.

    Even its thumbnail would take too long to read.
    """
    if path.suffix.lower() in _IN_SEVERAL_FILES:
        return
    n_bytes = file_bytes(path)
    if 3 * math.prod(coarsest) > max(MAX_COMPRESSION_RATIO * n_bytes, _ALWAYS_BYTES):
        raise ImageError(
            f"{path}: the coarsest level has {coarsest[0]} x {coarsest[1]} pixels according "
            f"to the header, more than {n_bytes} bytes can contain; the file is damaged; copy "
            "it again"
        )
