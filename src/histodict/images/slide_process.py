"""Slides and HDF5 files opened in child processes, which a damaged file may kill.

Any number of threads read a `Slide` from a `SlideProcess`. When the slide is closed, the process
waits for the next one. When a process dies, the request is repeated once in a new one, and a second
death is reported as an error of the file. Answers are waited for REPLY_TIMEOUT_S at most. Where
sockets cannot be sent to another process (Windows), slides are read in this one.
"""

from __future__ import annotations

import atexit
import json
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
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from .reduction import ResampleTile
from .slide_child import (
    DONE,
    NO_LIBRARY,
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
                [sys.executable, "-P", "-m", "histodict.images.slide_child"],
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
