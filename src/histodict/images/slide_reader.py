"""Slides: regions of them from pieces of a level, which another process reads.

Slides and HDF5 files opened in child processes, which a damaged file may kill.

Any number of threads read a `Slide` from a `SlideProcess`. When the slide is closed, the process
waits for the next one. When a process dies, the request is repeated once in a new one, and a second
death is reported as an error of the file. Answers are waited for REPLY_TIMEOUT_S at most. Where
sockets cannot be sent to another process (Windows), slides are read in this one.
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
from .file_types import ImageError
from .raster import MAX_COMPRESSION_RATIO, plausible_mpp
from .resampling import Pixels, RegionReader, ResampleTile
from .slide_backend import SCALE_WITHOUT_UNIT
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
# In seconds: network drives are slow, and a scanner's file server may be asleep.
REPLY_TIMEOUT_S = 120
_MAX_IDLE = 2

Bytes = NDArray[np.uint8]
Result = TypeVar("Result")


class SlideFormatError(Exception):
    """The library refuses the file, with this reason."""


class UnsupportedSlideError(Exception):
    """The slide is undamaged but of an unsupported kind, which the message describes."""


class MissingSlideLibraryError(Exception):
    """The library that reads the slide is not installed."""


class SlideProcessDiedError(Exception):
    """The process with the slide has ended, as the message describes."""


class SlideTimeoutError(SlideProcessDiedError):
    """The process gave no answer and was ended."""


class _Opener(Protocol):
    @property
    def reusable(self) -> bool: ...

    def request(self, name: str, *arguments: Any) -> Bytes: ...

    def end(self) -> None: ...


class SlideProcess:
    """Child process and the sockets to it."""

    def __init__(self) -> None:
        self.is_suspect = False  # by a damaged file, or by an answer that was not waited for
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "histodict.images.slide_worker"],
                stdin=theirs.fileno(),
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
        return self._process.pid

    @property
    def reusable(self) -> bool:
        """Whether another slide may be opened after this one is closed."""
        return not self.is_suspect and not self._busy

    def request(self, name: str, *arguments: Any) -> Bytes:
        """Return the bytes of an answer; wait while all sockets are in use."""
        with self._slots:
            status, answer = self._over_connection(json.dumps([name, *arguments]).encode())
        # An error of a decoder may have damaged the memory of the process.
        self.is_suspect |= name in ("piece", "call") and status == REFUSED
        return _checked(status, answer)

    def _over_connection(self, order: bytes) -> tuple[int, Bytes]:
        try:
            with self._connection() as line:
                # Unlike `settimeout`, the kernel gathers a whole answer while threads compute.
                wait = struct.pack("ll", REPLY_TIMEOUT_S, 0)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
                line.sendall(ORDER.pack(len(order)) + order)
                status, length = REPLY.unpack(_received(line, REPLY.size).data)
                return status, _received(line, length)
        except (OSError, EOFError) as error:
            raise self._lost(error) from error

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        """Yield a socket for one request; after an error or interruption it is not used again."""
        try:
            line = self._free.pop()
        except IndexError:
            line = self._new_connection()
        self._busy.add(line)
        try:
            yield line
            self._free.append(line)
        except BaseException:
            self.is_suspect = True
            line.close()
            raise
        finally:
            self._busy.discard(line)

    def _new_connection(self) -> socket.socket:
        line, theirs = socket.socketpair()
        try:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        except OSError:
            line.close()
            raise
        finally:
            theirs.close()
        return line

    def _lost(self, error: Exception) -> SlideProcessDiedError:
        """Return why there is no answer; end the process."""
        if isinstance(error, BlockingIOError):
            self.end()
            return SlideTimeoutError(f"gave no answer for {REPLY_TIMEOUT_S} s")
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
        """Close the sockets, in a forked process, as they belong to its parent."""
        for line in (self._control, *self._free, *self._busy):
            line.close()


def _environment() -> dict[str, str]:
    return {
        # The child imports the same packages.
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        # glibc: threads share freed memory, which halves the memory of the process.
        "MALLOC_ARENA_MAX": "1",
    }


class _InThisProcess:
    """The libraries in this process."""

    def __init__(self) -> None:
        self._slides = SlideServer()

    @property
    def reusable(self) -> bool:
        return False

    def request(self, name: str, *arguments: Any) -> Bytes:
        status, answer = self._slides.do(name, *arguments)
        return _checked(status, np.frombuffer(bytearray(answer), np.uint8))

    def end(self) -> None:
        self._slides.close()


def _checked(status: int, answer: Bytes) -> Bytes:
    if status == DONE:
        return answer
    kinds = {NO_LIBRARY: MissingSlideLibraryError, UNFIT: UnsupportedSlideError}
    raise kinds.get(status, SlideFormatError)(answer.tobytes().decode("utf-8", "replace"))


def _received(line: socket.socket, length: int) -> Bytes:
    buffer = np.empty(length, np.uint8)
    view, n_got = buffer.data, 0
    while n_got < length:
        got = line.recv_into(view[n_got:], 0, socket.MSG_WAITALL)
        if got == 0:
            raise EOFError("it closed the line")
        n_got += got
    return buffer


def _describe_exit(code: int | None, error: Exception) -> str:
    if code is None:
        return f"could not be reached ({error})"
    if code == -signal.SIGKILL:
        return "died (signal 9), perhaps for want of memory"
    return f"died (signal {-code})" if code < 0 else f"ended (code {code})"


# --- idle processes -----------------------------------------------------------------------------

_LIVING: set[SlideProcess] = set()
_IDLE: list[_Opener] = []


def _leased(*, new: bool = False) -> _Opener:
    """Return a process without a slide."""
    if not USE_SUBPROCESS:
        return _InThisProcess()
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
    """End the processes without a slide."""
    while _IDLE:
        _IDLE.pop().end()


@atexit.register
def end_all() -> None:
    """End all processes."""
    for process in list(_LIVING):
        process.end()


def _forget_all() -> None:
    for process in _LIVING:
        process.forget()
    _LIVING.clear()
    _IDLE.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


def detect(path: Path) -> str | None:
    """Return the library that reads a file as a slide; None if there is none."""
    return call(detect_library, path)


def call(function: Callable[[str], Result], path: Path) -> Result:
    """Call a function of a module with a path in a child process; return its result from JSON."""
    opener, answer = _request_with_retry("call", function.__module__, function.__name__, str(path))
    _release(opener)
    found: Result = json.loads(answer.tobytes())
    return found


def _request_with_retry(*order: str) -> tuple[_Opener, Bytes]:
    """Return an answer and the process that gave it; the second attempt is in a new process."""
    opener = _leased()
    try:
        return opener, _request_or_release(opener, *order)
    except SlideTimeoutError:
        raise
    except SlideProcessDiedError:
        opener = _leased(new=True)
        return opener, _request_or_release(opener, *order)


def _request_or_release(opener: _Opener, name: str, *arguments: Any) -> Bytes:
    try:
        return opener.request(name, *arguments)
    except BaseException:
        _release(opener)
        raise


class Slide:
    """Open slide, for the process that opened it; it is closed when it is no longer referenced."""

    def __init__(self, path: Path, library: str) -> None:
        self._order = ("open", str(path), library)
        self._lock = threading.Lock()
        opener, facts = _request_with_retry(*self._order)
        self.metadata: dict[str, Any] = json.loads(facts.tobytes())
        self._opener = [opener]
        self.close = weakref.finalize(self, _let_go, self._opener, os.getpid())

    def piece(self, corner: tuple[int, int], piece: ResampleTile) -> Bytes:
        """Return pixels (height, width, 3) of a piece, whose corner is in pixels of level 0."""
        order = ("piece", corner, piece)
        opener = self._opener[0]
        try:
            answer = opener.request(*order)
        except SlideTimeoutError:
            raise
        except SlideProcessDiedError:
            answer = self._reopened(opener).request(*order)
        return answer.reshape(*piece.shape, 3)

    def _reopened(self, lost: _Opener) -> _Opener:
        """Return a new process with the slide open, which the first thread starts."""
        with self._lock:
            if self._opener[0] is lost:
                opener = _leased(new=True)
                facts = _request_or_release(opener, *self._order)
                if json.loads(facts.tobytes()) != self.metadata:
                    _release(opener)
                    raise SlideFormatError("it was replaced by another slide while it was read")
                self._opener[0] = opener
            return self._opener[0]


def _let_go(opener: list[_Opener], owner: int) -> None:
    if owner == os.getpid():  # a forked process has only a copy
        _release(opener[0])


FOLDER_FORMATS = (".mrxs",)  # the slide's data lie in a folder of its name, beside the file
_IN_SEVERAL_FILES = (*FOLDER_FORMATS, ".dcm", ".vms", ".vmu")
# A level of downsample 4.002, from a side that 4 does not divide, serves a reduction by 4.
_LEVEL_SLACK = 1.01
# Of an open slide: OpenSlide keeps up to 32 MB of it, and its directory, in a process of 30 MB; of
# tiles that are decoded one by one 48 MB are kept.
_SLIDE_BYTES = 128 * 2**20
# Reading all of such a level takes a 64th of the time at most, and single cells can be seen in it.
_LOW_LEVELS = (8.0, 20.0)
# Pixels of a coarsest level that are read whatever the file says.
_ALWAYS_BYTES = 50_000_000


class SlideReader(RegionReader[Slide]):
    """A whole slide, read by OpenSlide; inside its bounds where it has some (MRXS).

    library : who reads it, of those that `slide_child` knows; name, package : in words
    scale_without_unit : scale of an OME-Zarr without units, as text; mpp is then unknown
    """

    path: Path
    library: ClassVar[str] = OPENSLIDE
    name: ClassVar[str] = "OpenSlide"
    package: ClassVar[str] = "openslide-python openslide-bin"

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        super().__init__(path, (0, 0), mpp)
        facts = self._open_handle().metadata
        self.missing_chunks, n_chunks = facts.get("missing_chunks", (0, 0))
        self._downsamples: list[float] = facts["downsamples"]
        try:
            self.offset, self.size = _bounds(facts["size"], facts["properties"])
            own = _mpp_of(facts["properties"])
            if not (min(self.size) > 0 and 0 < min(self._downsamples) < math.inf):
                raise ValueError("no pixels")
        except ValueError as error:
            self.close()
            raise ImageError(
                f"{path}: what this slide says of its size makes no sense ({error}); copy it again"
            ) from error
        self.mpp = own if mpp is None else mpp
        self.scale_without_unit = facts["properties"].get(SCALE_WITHOUT_UNIT)
        _check_proportions(path, facts["level_sizes"][-1])
        refused = check_missing_chunks(path, self.missing_chunks, n_chunks)
        if refused:
            self.close()
            raise ImageError(refused)

    @property
    def memory_bytes(self) -> int:
        return _SLIDE_BYTES

    @property
    def overview_downsample(self) -> float | None:
        low, high = _LOW_LEVELS
        return max((each for each in self._downsamples if low <= each <= high), default=None)

    def _open(self) -> Slide:
        with self._describe_error(
            f"{self.name} cannot open this slide",
            "if the file came with a folder or with other files, they must lie beside it; "
            "else copy it again",
        ):
            return Slide(self.path, self.library)

    def _close(self, handle: Slide) -> None:
        handle.close()

    def _level(self, downsample: float) -> tuple[int, float]:
        level = max(0, bisect.bisect_right(self._downsamples, downsample * _LEVEL_SLACK) - 1)
        return level, self._downsamples[level]

    def _read_tile(self, piece: ResampleTile) -> Pixels:
        scale = self._downsamples[piece.level]
        corner = round(piece.x * scale) + self.offset[0], round(piece.y * scale) + self.offset[1]
        slide = self._open_handle()
        with self._describe_error(
            "a part of the slide cannot be read",
            f"the file is damaged or its compression is not known to {self.name}: copy it again, "
            "or convert it to a pyramidal TIFF",
        ):
            return slide.piece(corner, piece)

    @contextmanager
    def _describe_error(self, what: str, advice: str) -> Iterator[None]:
        try:
            with _describe_error(self.path, what, advice):
                yield
        except MissingSlideLibraryError as error:
            raise ImageError(
                f"{self.path}: such slides are read with {self.name}, which is not installed "
                f"({error}); run: pip install {self.package}"
            ) from error


class OmeTiffReader(SlideReader):
    """An OME-TIFF, read by tifffile."""

    library = OME_TIFF
    name = "tifffile"
    package = "tifffile"


class OmeZarrReader(SlideReader):
    """A folder that is an OME-Zarr, read by zarr."""

    library = OME_ZARR
    name = "zarr"
    package = "'histodict[ome]'"


_READERS = {reader.library: reader for reader in (SlideReader, OmeTiffReader, OmeZarrReader)}


def select_slide_reader(path: Path) -> type[SlideReader] | None:
    """The reader of a TIFF that is a slide; None of any other file."""
    try:
        with _describe_error(path, "OpenSlide cannot look at this file", "copy it again"):
            found = detect(path)
    except MissingSlideLibraryError:
        return None
    return None if found is None else _READERS[found]


@contextmanager
def _describe_error(path: Path, what: str, advice: str) -> Iterator[None]:
    """Whatever becomes of a slide in the process that has it open, as an error that names it."""
    try:
        yield
    except UnsupportedSlideError as error:
        raise ImageError(f"{path}: {error}") from error
    except SlideFormatError as error:
        raise ImageError(f"{path}: {what} ({error}); {advice}") from error
    except SlideProcessDiedError as error:
        raise ImageError(f"{path}: {what} (the process that read it {error}); {advice}") from error
    except OSError as error:
        raise ImageError(
            f"{path}: {what} (no process can be started to read it: {error})"
        ) from error


def _bounds(
    size: tuple[int, int], properties: dict[str, str]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where a slide's pixels begin, and how many there are across and down."""
    whole = {"x": 0, "y": 0, "width": size[0], "height": size[1]}
    x, y, width, height = (
        int(properties.get(f"openslide.bounds-{name}", value)) for name, value in whole.items()
    )
    return (x, y), (width, height)


def _mpp_of(properties: dict[str, str]) -> float | None:
    names = ("openslide.mpp-x", "openslide.mpp-y")
    return plausible_mpp([float(properties[name]) for name in names if name in properties])


def _check_proportions(path: Path, coarsest: tuple[int, int]) -> None:
    """Refuse a slide of which even the thumbnail would take for ever: its sizes are damaged."""
    if path.suffix.lower() in _IN_SEVERAL_FILES:
        return
    n_bytes = file_bytes(path)
    if 3 * math.prod(coarsest) > max(MAX_COMPRESSION_RATIO * n_bytes, _ALWAYS_BYTES):
        raise ImageError(
            f"{path}: says that its coarsest level has {coarsest[0]} x {coarsest[1]} pixels, more "
            f"than {n_bytes} bytes can hold; the file is damaged: copy it again"
        )
