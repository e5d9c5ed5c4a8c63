"""One way to read pixels from plain images and from whole slides.

Places and lengths are level-0 pixels, those of the finest level, whatever the reduction. Slides
are read in pieces of the coarsest level that is fine enough; plain images whole, on first use.
"""

from __future__ import annotations

import bisect
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from ..parameters import check_number
from .blank_sheet import BlankSheet
from .decoding import (
    MOST_SQUEEZED,
    check_file,
    decode,
    plausible_mpp,
    read_header,
)
from .errors import ImageError
from .feature_file import is_feature_file
from .in_memory import ImageFile, MemoryImage
from .picture import Picture
from .reduction import Piece
from .region_reader import Pixels, RegionReader
from .slide_process import NoSlideLibraryError, Slide, SlideLostError, SlideRefusedError, detect

__all__ = [
    "IN_OWN_FOLDER",
    "READERS",
    "ImageError",
    "ImageSource",
    "PlainReader",
    "SlideReader",
    "open_image",
]

# A level of downsample 4.002, from a side that 4 does not divide, serves a reduction by 4.
_LEVEL_SLACK = 1.01
# Of an open slide: OpenSlide keeps up to 32 MB of it, and its directory, in a process of 30 MB; of
# JPEG tiles 48 MB are kept.
_SLIDE_BYTES = 128 * 2**20
# Reading all of such a level takes a 64th of the time at most, and single cells can be seen in it.
_LOW_LEVELS = (8.0, 20.0)
# Pixels of a coarsest level that are read whatever the file says.
_ALWAYS_BYTES = 50_000_000


class ImageSource(Protocol):
    """An image of any size; also a context manager that closes it. Safe to pickle and to fork."""

    @property
    def path(self) -> ImageFile: ...

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

    @property
    def low_level(self) -> float | None:
        """The downsample of a level at which all of it is soon read; None where there is none."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        """A region (level-0 pixels), reduced: (round(height / downsample), …width, 3).

        Each side has at least one pixel. Without reduction the pixels are the file's own. Beyond
        the image everything is white.
        """

    def cuts_alike(self, downsample: float) -> bool:
        """Whether a reduced pixel is the same in every region that has it, if that begins on one.

        So it is where the reduction is by a whole number, of a level that is one, too.
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


def open_image(path: ImageFile | str, mpp: float | None = None) -> ImageSource:
    """The image or slide in a file, or in memory; raises ImageError if it cannot be read.

    Of a feature file, a white sheet.

    Parameters
    ----------
    path : its suffix (any case) chooses among READERS
    mpp : µm per pixel; wins over what the file says. The file's own is a slide's property or a
        TIFF's resolution between 0.05 and 20 µm; dpi of JPEG and PNG mean nothing and are ignored.
    """
    if mpp is not None:
        mpp = check_number("mpp", mpp, above=True)
    if isinstance(path, MemoryImage):
        return MemoryReader(path, mpp)
    path = Path(path)
    if is_feature_file(path):
        return BlankSheet(path, mpp)
    check_file(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ImageError(
            f"{path}: images ending in {path.suffix or 'nothing'!r} are not known; "
            f"known are {' '.join(sorted(READERS))}"
        )
    return reader(path, mpp)


class _PictureReader(RegionReader[Picture]):
    """An image whose handle is all of its pixels."""

    _bytes: int

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def _close(self, handle: Picture) -> None:
        pass

    def _level(self, downsample: float) -> tuple[int, float]:
        return 0, 1.0

    def _piece(self, piece: Piece) -> Pixels:
        picture = self._handle().region(piece.x, piece.y, piece.width, piece.height)
        return np.array(piece.reduced(picture))


class PlainReader(_PictureReader):
    """A plain image file, decoded by Pillow."""

    path: Path

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        header = read_header(path)
        super().__init__(path, header.size, header.mpp if mpp is None else mpp)
        self._bytes = header.n_bytes

    def _open(self) -> Picture:
        picture = decode(self.path)
        if picture.size != self.size:
            raise ImageError(
                f"{self.path}: has {picture.size[0]} x {picture.size[1]} pixels, but "
                f"{self.size[0]} x {self.size[1]} by its header; save it again"
            )
        return picture


class MemoryReader(_PictureReader):
    """An image in memory; there is nothing to open."""

    def __init__(self, image: MemoryImage, mpp: float | None = None) -> None:
        super().__init__(image, image.picture.size, image.mpp if mpp is None else mpp)
        self._picture, self._bytes = image.picture, image.n_bytes

    def _open(self) -> Picture:
        return self._picture


class SlideReader(RegionReader[Slide]):
    """A whole slide, read by OpenSlide; inside its bounds where it has some (MRXS)."""

    path: Path

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        super().__init__(path, (0, 0), mpp)
        facts = self._handle().facts
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
        _check_proportions(path, facts["level_sizes"][-1])

    @property
    def held_bytes(self) -> int:
        return _SLIDE_BYTES

    @property
    def low_level(self) -> float | None:
        low, high = _LOW_LEVELS
        return max((each for each in self._downsamples if low <= each <= high), default=None)

    @staticmethod
    def recognises(path: Path) -> bool:
        """Whether OpenSlide is there and takes this file for a slide."""
        try:
            with _in_words(path, "OpenSlide cannot look at this file"):
                return detect(path)
        except _NoOpenSlideError:
            return False

    def _open(self) -> Slide:
        with _in_words(
            self.path,
            "OpenSlide cannot open this slide",
            "if the file came with a folder or with other files, they must lie beside it; "
            "else copy it again",
        ):
            return Slide(self.path)

    def _close(self, handle: Slide) -> None:
        handle.close()

    def _level(self, downsample: float) -> tuple[int, float]:
        level = max(0, bisect.bisect_right(self._downsamples, downsample * _LEVEL_SLACK) - 1)
        return level, self._downsamples[level]

    def _piece(self, piece: Piece) -> Pixels:
        scale = self._downsamples[piece.level]
        corner = round(piece.x * scale) + self.offset[0], round(piece.y * scale) + self.offset[1]
        slide = self._handle()
        with _in_words(
            self.path,
            "a part of the slide cannot be read",
            "the file is damaged or its compression is not known to OpenSlide: copy it again, or "
            "convert it to a pyramidal TIFF",
        ):
            return slide.piece(corner, piece)


class _NoOpenSlideError(ImageError):
    """OpenSlide is not installed."""


@contextmanager
def _in_words(path: Path, what: str, advice: str = "copy it again") -> Iterator[None]:
    """Whatever becomes of a slide in the process that has it open, as an error that names it."""
    try:
        yield
    except NoSlideLibraryError as error:
        raise _NoOpenSlideError(
            f"{path}: slides are read with OpenSlide, which is not installed ({error}); "
            "run: pip install openslide-python openslide-bin"
        ) from error
    except SlideRefusedError as error:
        raise ImageError(f"{path}: {what} ({error}); {advice}") from error
    except SlideLostError as error:
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
    if 3 * math.prod(coarsest) > max(MOST_SQUEEZED * os.path.getsize(path), _ALWAYS_BYTES):
        raise ImageError(
            f"{path}: says that its coarsest level has {coarsest[0]} x {coarsest[1]} pixels, more "
            f"than {os.path.getsize(path)} bytes can hold; the file is damaged: copy it again"
        )


def _open_tiff(path: Path, mpp: float | None) -> ImageSource:
    """A TIFF in tiles is read as a slide, any other as a plain image."""
    return (SlideReader if SlideReader.recognises(path) else PlainReader)(path, mpp)


IN_OWN_FOLDER = (".mrxs",)  # the slide's data lie in a folder of its name, beside the file
_IN_SEVERAL_FILES = (*IN_OWN_FOLDER, ".dcm", ".vms", ".vmu")
_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".dcm")
_PLAIN = (".jpg", ".jpeg", ".png", ".bmp")
READERS: dict[str, Callable[[Path, float | None], ImageSource]] = {
    **dict.fromkeys(_SLIDES, SlideReader),
    **dict.fromkeys(_PLAIN, PlainReader),
    **dict.fromkeys((".tif", ".tiff"), _open_tiff),
}
