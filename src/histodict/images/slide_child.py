"""The process that opens slides; on a damaged file the slide library may abort, and ends it alone.

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
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .jpeg_tiles import OpenTiles
from .reduction import Piece, over_white

if TYPE_CHECKING:
    from openslide import OpenSlide
    from PIL import Image

ORDER = struct.Struct("<I")
ANSWER = struct.Struct("<BQ")
DONE, REFUSED, NO_LIBRARY = range(3)
_MOST_WORDS = 300
# Of the first regions made of tiles this much is read by OpenSlide as well.
_N_COMPARED = 8
_COMPARED_PX = 512
_TICK_S = 1.0
_IDLE_S = 60.0
# The library's cache and directories; and for each line a piece as it is decoded and reduced.
_BASE_BYTES = 2**30
_LINE_BYTES = 128 * 2**20


class OpenSlides:
    """What the library is asked; one slide is open at a time."""

    def __init__(self) -> None:
        self._slide: OpenSlide | None = None
        self._tiles: OpenTiles | None = None
        self._n_compared: Counter[int] = Counter()  # by level, what was seen to be the same
        self.idle_since: float | None = time.monotonic()

    def detect(self, path: str) -> bytes:
        """Whether the library takes a file for a slide."""
        import openslide

        return json.dumps(openslide.OpenSlide.detect_format(path) is not None).encode()

    def open(self, path: str) -> bytes:
        """What a slide says of itself."""
        import openslide

        self.idle_since = None
        slide = self._slide = openslide.OpenSlide(path)
        vendor = slide.properties.get("openslide.vendor", "")
        self._tiles = OpenTiles(path, vendor, slide.level_dimensions)
        facts = {
            "size": slide.dimensions,
            "level_sizes": slide.level_dimensions,
            "downsamples": slide.level_downsamples,
            "properties": dict(slide.properties),
        }
        return json.dumps(facts).encode()

    def piece(self, corner: list[int], fields: list[Any]) -> bytes:
        """The pixels of a piece, reduced; its corner is given in pixels of level 0."""
        level, x, y, width, height, shape, box = fields
        piece = Piece(level, x, y, width, height, tuple(shape), box and tuple(box))
        if self._slide is None:
            raise ValueError("no slide is open")
        region = self._from_tiles(corner, piece)
        if region is None:
            region = self._read(corner, piece)
        return piece.reduced(region).tobytes("raw", "RGB")

    def _read(self, corner: list[int], piece: Piece) -> Image.Image:
        assert self._slide is not None
        size = (piece.width, piece.height)
        return over_white(self._slide.read_region((corner[0], corner[1]), piece.level, size))

    def _from_tiles(self, corner: list[int], piece: Piece) -> Image.Image | None:
        """The region from tiles decoded one by one; None where that cannot be done."""
        from PIL import Image

        assert self._slide is not None
        tiles = self._tiles and self._tiles.levels.get(piece.level)
        scale = self._slide.level_downsamples[piece.level]
        if not tiles or corner != [piece.x * scale, piece.y * scale]:
            return None  # or between two pixels of the level, which OpenSlide mixes
        try:
            pixels = tiles.region(piece.x, piece.y, piece.width, piece.height)
        except (ValueError, OSError, MemoryError):  # what is wrong is for OpenSlide to say
            return None
        if self._n_compared[piece.level] < _N_COMPARED and not self._compare(corner, piece, pixels):
            return None
        return Image.frombuffer("RGBX", (piece.width, piece.height), pixels, "raw", "RGBX", 0, 1)

    def _compare(self, corner: list[int], piece: Piece, pixels: NDArray[np.uint8]) -> bool:
        """Whether OpenSlide's pixels are the same; if not, this level's tiles serve no more."""
        part = piece._replace(
            width=min(piece.width, _COMPARED_PX), height=min(piece.height, _COMPARED_PX)
        )
        expected = np.asarray(self._read(corner, part))
        if not np.array_equal(pixels[: part.height, : part.width, :3], expected):
            if self._tiles is not None:
                self._tiles.levels.pop(piece.level, None)
            return False
        self._n_compared[piece.level] += 1
        return True

    def close(self) -> bytes:
        slide, self._slide = self._slide, None
        tiles, self._tiles = self._tiles, None
        self._n_compared.clear()
        if tiles is not None:
            tiles.close()
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
            import openslide  # noqa: F401
        except (ImportError, OSError) as error:  # OSError: the library behind it is missing
            return NO_LIBRARY, str(error).encode()
        try:
            return DONE, orders[name](*arguments)
        except Exception as error:
            words = " ".join(str(error).split())  # some have several lines
            return REFUSED, (words[:_MOST_WORDS] or type(error).__name__).encode()


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
