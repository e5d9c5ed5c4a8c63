"""The process that opens slides; on a damaged file a library may abort, and ends it alone.

It serves one slide at a time, on as many lines as threads read at once: they share the library's
cache of tiles. Orders come from `slide_process`, which started it. On the control socket (standard
input) it is sent the sockets of new lines; on a line an order is a length and JSON, the answer a
status, a length and bytes. It ends when the control socket does, when the parent has gone, and when
it has long had nothing open.
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
from typing import Any

from .opened_slide import NoLibraryError, OpenedSlide, UnfitError
from .reduction import Piece

ORDER = struct.Struct("<I")
ANSWER = struct.Struct("<BQ")
DONE, REFUSED, NO_LIBRARY, UNFIT = range(4)
_MOST_WORDS = 300
_TICK_S = 1.0
_IDLE_S = 60.0
# The library's cache and directories; and for each line a piece as it is decoded and reduced.
_BASE_BYTES = 2**30
_LINE_BYTES = 128 * 2**20


def _open_openslide(path: str) -> OpenedSlide:
    from .openslide_slide import OpenSlideSlide

    return OpenSlideSlide(path)


def _open_ome_tiff(path: str) -> OpenedSlide:
    from .ome_tiff import OmeTiff

    return OmeTiff(path)


def _open_ome_zarr(path: str) -> OpenedSlide:
    from .ome_zarr import OmeZarr

    return OmeZarr(path)


OPENSLIDE, OME_TIFF, OME_ZARR = "openslide", "ome-tiff", "ome-zarr"
# Who reads a slide, by name.
LIBRARIES: dict[str, Callable[[str], OpenedSlide]] = {
    OPENSLIDE: _open_openslide,
    OME_TIFF: _open_ome_tiff,
    OME_ZARR: _open_ome_zarr,
}


class OpenSlides:
    """What the libraries are asked; one slide is open at a time."""

    def __init__(self) -> None:
        self._slide: OpenedSlide | None = None
        self.idle_since: float | None = time.monotonic()

    def detect(self, path: str) -> bytes:
        """The library that takes a TIFF for a slide; null where none does.

        OpenSlide sees of an OME-TIFF but the first channel, and none of its levels.
        """
        from .ome_tiff import is_ome_tiff
        from .openslide_slide import is_slide

        found = OME_TIFF if is_ome_tiff(path) else OPENSLIDE if is_slide(path) else None
        return json.dumps(found).encode()

    def open(self, path: str, library: str) -> bytes:
        """What a slide says of itself."""
        self.idle_since = None
        self._slide = LIBRARIES[library](path)
        return json.dumps(self._slide.facts).encode()

    def piece(self, corner: list[int], fields: list[Any]) -> bytes:
        """The pixels of a piece, reduced; its corner is given in pixels of level 0."""
        level, x, y, width, height, shape, box = fields
        piece = Piece(level, x, y, width, height, tuple(shape), box and tuple(box))
        if self._slide is None:
            raise ValueError("no slide is open")
        return piece.reduced(self._slide.picture(corner, piece)).tobytes("raw", "RGB")

    def close(self) -> bytes:
        slide, self._slide = self._slide, None
        if slide is not None:
            slide.close()
        self.idle_since = time.monotonic()
        return b""

    def do(self, name: str, *arguments: Any) -> tuple[int, bytes]:
        """An order's status and answer; whatever the library raises travels as words."""
        orders: dict[str, Callable[..., bytes]] = {
            "detect": self.detect,
            "open": self.open,
            "piece": self.piece,
            "close": self.close,
        }
        try:
            return DONE, orders[name](*arguments)
        except Exception as error:
            status = {NoLibraryError: NO_LIBRARY, UnfitError: UNFIT}.get(type(error), REFUSED)
            words = " ".join(str(error).split())  # some have several lines
            return status, (words[:_MOST_WORDS] or type(error).__name__).encode()


def serve_line(slides: OpenSlides, line: socket.socket) -> None:
    """Orders and answers in turn, until the line is closed."""
    with line, line.makefile("rb") as orders:
        while head := orders.read(ORDER.size):
            (length,) = ORDER.unpack(head)
            status, answer = slides.do(*json.loads(orders.read(length)))
            try:
                line.sendall(ANSWER.pack(status, len(answer)))
                line.sendall(answer)
            except OSError:  # nobody waits for it any more
                return


def _limit_itself() -> None:
    """A damaged file may ask for any memory; and what is left of an abort is of no use."""
    import resource

    n_lines = most_lines()
    limit = _BASE_BYTES + n_lines * _LINE_BYTES
    for kind, bound in ((resource.RLIMIT_DATA, limit), (resource.RLIMIT_CORE, 0)):
        _, hard = resource.getrlimit(kind)
        soft = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
        resource.setrlimit(kind, (soft, hard))


def most_lines() -> int:
    """Lines at a time; network drives have slides, so more than one even for one core."""
    return max(4, os.cpu_count() or 1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption ends
    _limit_itself()
    parent = os.getppid()
    slides = OpenSlides()
    control = socket.socket(fileno=0)
    control.settimeout(_TICK_S)
    while os.getppid() == parent:
        since = slides.idle_since
        if since is not None and time.monotonic() - since > _IDLE_S:
            break
        try:
            data, lines, _, _ = socket.recv_fds(control, 1, 1)
        except TimeoutError:
            continue
        if not data:
            break
        line = socket.socket(fileno=lines[0])
        threading.Thread(target=serve_line, args=(slides, line), daemon=True).start()
    os._exit(0)  # also in the midst of a read


if __name__ == "__main__":
    main()
