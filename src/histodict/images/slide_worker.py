"""Child process that opens slides and HDF5 files, as libraries may abort or hang on damaged files.

The process serves one file at a time. `slide_reader` starts it and sends sockets over the control
socket (standard input), one for each reading thread; the threads share the library's cache of
tiles. A request is a length and JSON; a reply is a status, a length and bytes. The process ends
if the control socket is closed, if its parent ends, or after _MAX_IDLE_S without an open slide.
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

REQUEST_HEADER = struct.Struct("<I")
REPLY_HEADER = struct.Struct("<BQ")
DONE, FAILED, NO_LIBRARY, UNSUPPORTED = range(4)
_MAX_MESSAGE_LENGTH = 300
_CONTROL_TIMEOUT_S = 1.0
_MAX_IDLE_S = 60.0
# Memory limit: for the library's cache and directories, and for a decoded tile and its reduction in
# each socket.
_BASE_BYTES = 2**30
_CONNECTION_BYTES = 128 * 2**20


OPENSLIDE, OME_TIFF, OME_ZARR = "openslide", "ome-tiff", "ome-zarr"


def _open_slide(path: str, library: str) -> SlideBackend:
    """Open a slide; `library` is OPENSLIDE, OME_TIFF or OME_ZARR."""
    if library == OME_TIFF:
        from .ome_files import OmeTiff

        return OmeTiff(path)
    if library == OME_ZARR:
        from .ome_files import OmeZarr

        return OmeZarr(path)
    from .slide_backend import OpenSlideBackend

    return OpenSlideBackend(path)


def detect_library(path: str) -> str | None:
    """Return the identifier of the library that reads a TIFF as a slide; None if none does.

    OpenSlide is not used for OME-TIFF, as it reads only the first channel and the finest level.
    """
    from .ome_files import is_ome_tiff
    from .slide_backend import is_slide

    return OME_TIFF if is_ome_tiff(path) else OPENSLIDE if is_slide(path) else None


class SlideServer:
    """Handler of requests, with at most one open slide.

    `idle_since` is the time (`time.monotonic`) since which no slide is open; None if one is open.
    """

    def __init__(self) -> None:
        self._slide: SlideBackend | None = None
        self.idle_since: float | None = time.monotonic()

    def call(self, module: str, function: str, path: str) -> bytes:
        """Call a module-level function, by name, with a path and return its result as JSON."""
        return json.dumps(getattr(import_module(module), function)(path)).encode()

    def open(self, path: str, library: str) -> bytes:
        """Open a slide and return its metadata as JSON."""
        self.idle_since = None
        self._slide = _open_slide(path, library)
        return json.dumps(self._slide.metadata).encode()

    def read_tile(self, corner: list[int], tile_fields: list[Any]) -> bytes:
        """Return the resampled pixels of a tile as RGB bytes.

        Parameters
        ----------
        corner : (x, y) of the tile's upper left corner in level-0 pixels
        tile_fields : fields of a `ResampleTile`
        """
        level, x, y, width, height, shape, box = tile_fields
        tile = ResampleTile(level, x, y, width, height, tuple(shape), box and tuple(box))
        if self._slide is None:
            raise ValueError("no slide is open")
        return tile.resample(self._slide.read_region(corner, tile)).tobytes("raw", "RGB")

    def close(self) -> bytes:
        """Close the slide, start the idle time, and return an empty reply."""
        slide, self._slide = self._slide, None
        if slide is not None:
            slide.close()
        self.idle_since = time.monotonic()
        return b""

    def execute(self, name: str, *arguments: Any) -> tuple[int, bytes]:
        """Call a method of this class; return the status, and the result or an error message.

        `name` is the name of the method, and `arguments` are its arguments.
        """
        methods: dict[str, Callable[..., bytes]] = {
            "call": self.call,
            "open": self.open,
            "read_tile": self.read_tile,
            "close": self.close,
        }
        try:
            return DONE, methods[name](*arguments)
        except Exception as error:
            status = {MissingLibraryError: NO_LIBRARY, UnreadableContentError: UNSUPPORTED}.get(
                type(error), FAILED
            )
            reason = " ".join(str(error).split())  # messages may have several lines
            text = reason[:_MAX_MESSAGE_LENGTH] or type(error).__name__
            return status, text.encode(errors="backslashreplace")  # lone surrogates of JSON


def serve_connection(server: SlideServer, connection: socket.socket) -> None:
    """Serve requests one by one until the socket is closed."""
    with connection, connection.makefile("rb") as stream:
        while head := stream.read(REQUEST_HEADER.size):
            (length,) = REQUEST_HEADER.unpack(head)
            status, reply = server.execute(*json.loads(stream.read(length)))
            try:
                connection.sendall(REPLY_HEADER.pack(status, len(reply)))
                connection.sendall(reply)
            except OSError:  # the parent no longer waits
                return


def _limit_resources() -> None:
    """Limit the memory of the process, as damaged files may need any amount; disable core dumps."""
    import resource

    n_connections = max_connections()
    limit = _BASE_BYTES + n_connections * _CONNECTION_BYTES
    for kind, bound in ((resource.RLIMIT_DATA, limit), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        soft = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (soft, hard))


def max_connections() -> int:
    """Return the maximum number of sockets, and thus of concurrent reads."""
    return max(4, os.cpu_count() or 1)


def main() -> None:
    """Serve requests until the control socket closes, the parent ends or the idle time is over."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interruptions
    _limit_resources()
    parent = os.getppid()
    server = SlideServer()
    control = socket.socket(fileno=0)
    control.settimeout(_CONTROL_TIMEOUT_S)
    while os.getppid() == parent:
        since = server.idle_since
        if since is not None and time.monotonic() - since > _MAX_IDLE_S:
            break
        try:
            data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            continue
        if not data:
            break
        connection = socket.socket(fileno=descriptors[0])
        threading.Thread(target=serve_connection, args=(server, connection), daemon=True).start()
    os._exit(0)  # even while a thread reads


if __name__ == "__main__":
    main()
