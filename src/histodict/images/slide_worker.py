"""Child process that opens slides and HDF5 files, on which a library may abort or hang.

The process serves one file at a time. `slide_reader` starts it and sends sockets over the control
socket (standard input), one for each reading thread; the threads share the library's cache of
tiles. On a socket, a request is a length and JSON; a reply is a status, a length and bytes. The
process ends with its control socket or its parent, or after a time without an open slide.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .file_types import MissingLibraryError, SlideBackend, UnreadableContentError
from .resampling import ResampleTile

ORDER = struct.Struct("<I")
REPLY = struct.Struct("<BQ")
DONE, REFUSED, NO_LIBRARY, UNFIT = range(4)
_MAX_MESSAGE = 300
_TICK_S = 1.0
_IDLE_S = 60.0
# Memory of the library's cache and directories; for each socket, of a decoded piece and its
# reduction.
_BASE_BYTES = 2**30
_CONNECTION_BYTES = 128 * 2**20


OPENSLIDE, OME_TIFF, OME_ZARR = "openslide", "ome-tiff", "ome-zarr"


def _open_slide(path: str, library: str) -> SlideBackend:
    if library == OME_TIFF:
        from .ome_files import OmeTiff

        return OmeTiff(path)
    if library == OME_ZARR:
        from .ome_files import OmeZarr

        return OmeZarr(path)
    from .slide_backend import OpenSlideBackend

    return OpenSlideBackend(path)


def detect_library(path: str) -> str | None:
    """Return the library that reads a TIFF as a slide; None if there is none.

    OME-TIFF is not read by OpenSlide, which reads only its first channel and none of its levels.
    """
    from .ome_files import is_ome_tiff
    from .slide_backend import is_slide

    return OME_TIFF if is_ome_tiff(path) else OPENSLIDE if is_slide(path) else None


class SlideServer:
    """Server of requests to the slide libraries, with at most one open slide."""

    def __init__(self) -> None:
        self._slide: SlideBackend | None = None
        self.idle_since: float | None = time.monotonic()

    def call(self, module: str, function: str, path: str) -> bytes:
        """Call a function of a module with a path and return its result as JSON."""
        return json.dumps(getattr(import_module(module), function)(path)).encode()

    def open(self, path: str, library: str) -> bytes:
        """Open a slide and return its metadata as JSON."""
        self.idle_since = None
        self._slide = _open_slide(path, library)
        return json.dumps(self._slide.metadata).encode()

    def piece(self, corner: list[int], fields: list[Any]) -> bytes:
        """Return the resampled pixels of a rectangle of a level.

        Parameters
        ----------
        corner : upper left corner in level-0 pixels
        fields : fields of a `ResampleTile`
        """
        level, x, y, width, height, shape, box = fields
        piece = ResampleTile(level, x, y, width, height, tuple(shape), box and tuple(box))
        if self._slide is None:
            raise ValueError("no slide is open")
        return piece.reduced(self._slide.picture(corner, piece)).tobytes("raw", "RGB")

    def close(self) -> bytes:
        """Close the slide and start the idle time."""
        slide, self._slide = self._slide, None
        if slide is not None:
            slide.close()
        self.idle_since = time.monotonic()
        return b""

    def do(self, name: str, *arguments: Any) -> tuple[int, bytes]:
        """Execute a request; return its status, and its result or the error message."""
        orders: dict[str, Callable[..., bytes]] = {
            "call": self.call,
            "open": self.open,
            "piece": self.piece,
            "close": self.close,
        }
        try:
            return DONE, orders[name](*arguments)
        except Exception as error:
            status = {MissingLibraryError: NO_LIBRARY, UnreadableContentError: UNFIT}.get(
                type(error), REFUSED
            )
            reason = " ".join(str(error).split())  # messages may have several lines
            return status, (reason[:_MAX_MESSAGE] or type(error).__name__).encode()


def serve_connection(server: SlideServer, connection: socket.socket) -> None:
    """Serve requests one by one until the socket is closed."""
    with connection, connection.makefile("rb") as orders:
        while head := orders.read(ORDER.size):
            (length,) = ORDER.unpack(head)
            status, reply = server.do(*json.loads(orders.read(length)))
            try:
                connection.sendall(REPLY.pack(status, len(reply)))
                connection.sendall(reply)
            except OSError:  # the parent no longer waits
                return


def _limit_resources() -> None:
    """Limit memory, of which a damaged file may require any amount, and disable core dumps."""
    import resource

    n_connections = max_connections()
    limit = _BASE_BYTES + n_connections * _CONNECTION_BYTES
    for kind, bound in ((resource.RLIMIT_DATA, limit), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        soft = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (soft, hard))


def max_connections() -> int:
    """Return the maximum number of sockets, and thus of concurrent reads; at least 4."""
    return max(4, os.cpu_count() or 1)


def main() -> None:
    """Serve requests until the control socket closes, the parent ends or the idle time is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interruptions
    _limit_resources()
    parent = os.getppid()
    server = SlideServer()
    control = socket.socket(fileno=0)
    control.settimeout(_TICK_S)
    while os.getppid() == parent:
        since = server.idle_since
        if since is not None and time.monotonic() - since > _IDLE_S:
            break
        try:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            continue
        if not data:
            break
        connection = socket.socket(fileno=descriptors[0])
        threading.Thread(target=serve_connection, args=(server, connection), daemon=True).start()
    os._exit(0)  # even during a read


if __name__ == "__main__":
    main()
