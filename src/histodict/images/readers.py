"""One way to read pixels from plain images and from whole slides.

Places and lengths are level-0 pixels, those of the finest level, whatever the reduction. Slides
are read in pieces of the coarsest level that is fine enough; plain images whole, on first use.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..parameters import check_number, check_whole_number
from . import reduction
from .decoding import ImageError, check_file, decode, plausible_mpp, read_header
from .reduction import block_means, picture_of, pieces, resize, span

if TYPE_CHECKING:
    from openslide import OpenSlide
    from PIL import Image

__all__ = ["READERS", "ImageError", "ImageSource", "PlainReader", "SlideReader", "open_image"]

Pixels = NDArray[np.uint8]
Handle = TypeVar("Handle")

# A level of downsample 4.002, from a side that 4 does not divide, serves a reduction by 4.
_LEVEL_SLACK = 1.01
_FARTHEST = 2**40
# Of an open slide: OpenSlide keeps up to 32 MB of it, and its directory.
_SLIDE_BYTES = 48 * 2**20


class ImageSource(Protocol):
    """An image of any size; also a context manager that closes it. Safe to pickle and to fork."""

    @property
    def path(self) -> Path: ...

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in level-0 pixels."""

    @property
    def mpp(self) -> float | None:
        """µm per level-0 pixel, where known."""

    @property
    def offset(self) -> tuple[int, int]:
        """Where (0, 0) lies in the coordinates of OpenSlide and QuPath."""

    @property
    def held_bytes(self) -> int:
        """Memory that it takes once it has been read from, until it is closed."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        """A region (level-0 pixels), reduced: (round(height / downsample), …width, 3).

        Each side has at least one pixel. Without reduction the pixels are the file's own. Beyond
        the image everything is white.
        """

    def thumbnail(self, longest_side: int) -> Pixels:
        """The whole image, reduced to this longest side; never enlarged."""

    def __enter__(self) -> ImageSource: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_image(path: Path | str, mpp: float | None = None) -> ImageSource:
    """The image or slide in a file; raises ImageError if it cannot be read.

    Parameters
    ----------
    path : its suffix (any case) chooses among READERS
    mpp : µm per pixel; wins over what the file says. The file's own is a slide's property or a
        TIFF's resolution between 0.05 and 20 µm; dpi of JPEG and PNG mean nothing and are ignored.
    """
    path = Path(path)
    if mpp is not None:
        mpp = check_number("mpp", mpp, above=True)
    check_file(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ImageError(
            f"{path}: images ending in {path.suffix or 'nothing'!r} are not known; "
            f"known are {' '.join(sorted(READERS))}"
        )
    return reader(path, mpp)


class _Reader(ABC, Generic[Handle]):
    """Reduction, borders and handles; a subclass opens the file and copies pixels of a level."""

    def __init__(self, path: Path, size: tuple[int, int], mpp: float | None) -> None:
        self.path = path
        self.size = size
        self.mpp = mpp
        self.offset = (0, 0)
        # By process: a forked child must not use, nor close, the handle of its parent.
        self._handles: dict[int, Handle] = {}

    @property
    @abstractmethod
    def held_bytes(self) -> int: ...

    @abstractmethod
    def _open(self) -> Handle: ...

    @abstractmethod
    def _close(self, handle: Handle) -> None: ...

    @abstractmethod
    def _level(self, downsample: float) -> tuple[int, float]:
        """The level to reduce from, and its own downsample."""

    @abstractmethod
    def _copy(self, level: int, x: int, y: int, width: int, height: int) -> Image.Image:
        """A region in pixels of this level, as RGB; white beyond the image."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        x, y = (check_whole_number(name, at, -_FARTHEST) for name, at in (("x", x), ("y", y)))
        width = check_whole_number("width", width, 1)
        height = check_whole_number("height", height, 1)
        downsample = check_number("downsample", downsample, low=1)
        shape = max(1, round(height / downsample)), max(1, round(width / downsample))
        level, scale = self._level(downsample)
        box = tuple(edge / scale for edge in (x, y, x + width, y + height))
        return self._reduce(level, box, shape, tuple(side / scale for side in self.size))

    def thumbnail(self, longest_side: int) -> Pixels:
        longest_side = check_whole_number("longest_side", longest_side, 1)
        return self.read(0, 0, *self.size, max(1.0, max(self.size) / longest_side))

    def _reduce(
        self,
        level: int,
        box: tuple[float, ...],
        shape: tuple[int, int],
        limits: tuple[float, ...],
    ) -> Pixels:
        """A box (left, top, right, bottom) of a level as an image of this shape, in pieces."""
        steps = (box[3] - box[1]) / shape[0], (box[2] - box[0]) / shape[1]
        if (
            max(steps) > reduction.PIECE_PX
        ):  # reduce in two goes, or one output pixel would need too much
            finer = shape[0] * math.ceil(steps[0] / 64), shape[1] * math.ceil(steps[1] / 64)
            return resize(picture_of(self._reduce(level, box, finer, limits)), shape)
        pixels = np.empty((*shape, 3), np.uint8)
        for rows in pieces(shape[0], steps[0]):
            top, bottom = (box[1] + row * steps[0] for row in (rows.start, rows.stop))
            for columns in pieces(shape[1], steps[1]):
                left, right = (box[0] + at * steps[1] for at in (columns.start, columns.stop))
                part = pixels[rows, columns]
                part[:] = self._piece(level, (left, top, right, bottom), part.shape[:2], limits)
        return pixels

    def _piece(
        self,
        level: int,
        box: tuple[float, ...],
        shape: tuple[int, ...],
        limits: tuple[float, ...],
    ) -> Pixels:
        steps = (box[2] - box[0]) / shape[1], (box[3] - box[1]) / shape[0]
        whole = all(float(number).is_integer() for number in (*box, *steps))
        spans = [
            span(box[axis], box[axis + 2], 0 if whole else steps[axis], limits[axis])
            for axis in (0, 1)
        ]
        (x, right), (y, bottom) = spans
        picture = self._copy(level, x, y, right - x, bottom - y)
        if whole:
            return block_means(picture, int(steps[0]), int(steps[1]))
        return resize(picture, shape, (box[0] - x, box[1] - y, box[2] - x, box[3] - y))

    def _handle(self) -> Handle:
        process = os.getpid()
        handle = self._handles.get(process)
        if handle is None:
            # Two threads may both get here; the first to finish wins, the other handle is dropped.
            handle = self._handles.setdefault(process, self._open())
        return handle

    def close(self) -> None:
        """Let go of the file and its pixels; a later read opens it again."""
        handle = self._handles.pop(os.getpid(), None)
        if handle is not None:
            self._close(handle)

    def __enter__(self) -> ImageSource:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}


class PlainReader(_Reader[Pixels]):
    """A plain image file, decoded by Pillow; its handle is its pixels."""

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        header = read_header(path)
        super().__init__(path, header.size, header.mpp if mpp is None else mpp)

    @property
    def held_bytes(self) -> int:
        return 3 * self.size[0] * self.size[1]

    def _open(self) -> Pixels:
        pixels = decode(self.path)
        if pixels.shape[1::-1] != self.size:
            raise ImageError(
                f"{self.path}: has {pixels.shape[1]} x {pixels.shape[0]} pixels, but "
                f"{self.size[0]} x {self.size[1]} by its header; save it again"
            )
        return pixels

    def _close(self, handle: Pixels) -> None:
        pass

    def _level(self, downsample: float) -> tuple[int, float]:
        return 0, 1.0

    def _copy(self, level: int, x: int, y: int, width: int, height: int) -> Image.Image:
        inside = self._handle()[max(0, y) : max(0, y + height), max(0, x) : max(0, x + width)]
        if inside.shape[:2] == (height, width):
            return picture_of(inside)
        pixels = np.full((height, width, 3), 255, np.uint8)
        left, top = max(0, -x), max(0, -y)
        pixels[top : top + inside.shape[0], left : left + inside.shape[1]] = inside
        return picture_of(pixels)


class SlideReader(_Reader["OpenSlide"]):
    """A whole slide, read by OpenSlide; inside its bounds where it has some (MRXS)."""

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        super().__init__(path, (0, 0), mpp)
        slide = self._handle()
        properties = slide.properties
        self.offset = (
            int(properties.get("openslide.bounds-x", 0)),
            int(properties.get("openslide.bounds-y", 0)),
        )
        self.size = (
            int(properties.get("openslide.bounds-width", slide.dimensions[0])),
            int(properties.get("openslide.bounds-height", slide.dimensions[1])),
        )
        if mpp is None:
            names = ("openslide.mpp-x", "openslide.mpp-y")
            self.mpp = plausible_mpp([float(properties[n]) for n in names if n in properties])

    @property
    def held_bytes(self) -> int:
        return _SLIDE_BYTES

    @staticmethod
    def recognises(path: Path) -> bool:
        """Whether OpenSlide is there and takes this file for a slide."""
        try:
            vendor: str | None = _openslide(path).OpenSlide.detect_format(path)
        except ImageError:
            return False
        return vendor is not None

    def _open(self) -> OpenSlide:
        openslide = _openslide(self.path)
        try:
            slide: OpenSlide = openslide.OpenSlide(self.path)
        except (openslide.OpenSlideError, OSError) as error:
            raise ImageError(
                f"{self.path}: OpenSlide cannot open this slide ({error}); if the file came with a "
                "folder or with other files, they must lie beside it; else copy it again"
            ) from error
        return slide

    def _close(self, handle: OpenSlide) -> None:
        handle.close()

    def _level(self, downsample: float) -> tuple[int, float]:
        slide = self._handle()
        level = slide.get_best_level_for_downsample(downsample * _LEVEL_SLACK)
        return level, slide.level_downsamples[level]

    def _copy(self, level: int, x: int, y: int, width: int, height: int) -> Image.Image:
        from PIL import Image

        slide = self._handle()
        scale = slide.level_downsamples[level]
        corner = round(x * scale) + self.offset[0], round(y * scale) + self.offset[1]
        try:
            region = slide.read_region(corner, level, (width, height))
        except _openslide(self.path).OpenSlideError as error:
            raise ImageError(
                f"{self.path}: a part of the slide cannot be read ({error}); the file is damaged "
                "or its compression is not known to OpenSlide: copy it again, or convert it to a "
                "pyramidal TIFF"
            ) from error
        opacity = region.getchannel("A")
        if opacity.getextrema() == (255, 255):  # nearly always, and quicker
            return region.convert("RGB")
        white = Image.new("RGB", region.size, "white")
        white.paste(region, mask=opacity)
        return white


def _open_tiff(path: Path, mpp: float | None) -> ImageSource:
    """A TIFF in tiles is read as a slide, any other as a plain image."""
    return (SlideReader if SlideReader.recognises(path) else PlainReader)(path, mpp)


_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".dcm")
_PLAIN = (".jpg", ".jpeg", ".png", ".bmp")
READERS: dict[str, Callable[[Path, float | None], ImageSource]] = {
    **dict.fromkeys(_SLIDES, SlideReader),
    **dict.fromkeys(_PLAIN, PlainReader),
    **dict.fromkeys((".tif", ".tiff"), _open_tiff),
}


def _openslide(path: Path) -> ModuleType:
    try:
        import openslide
    except (ImportError, OSError) as error:  # OSError: the library behind the package is missing
        raise ImageError(
            f"{path}: slides are read with OpenSlide, which is not installed ({error}); "
            "run: pip install openslide-python openslide-bin"
        ) from error
    return openslide
