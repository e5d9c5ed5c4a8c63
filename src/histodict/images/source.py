"""One way to read pixels from plain images and from whole slides.

Places and lengths are level-0 pixels, those of the finest level, whatever the reduction. Slides
are read in pieces of the coarsest level that is fine enough; plain images whole, on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from ..utils.validation import check_number
from .file_types import FOLDER_IMAGES, ImageError
from .memory_image import ImageLike, MemoryImage, decode_cached
from .raster import DecodedImage, check_readable_file, read_header
from .resampling import Pixels, RegionReader, ResampleTile
from .slide_reader import (
    FOLDER_FORMATS,
    OmeTiffReader,
    OmeZarrReader,
    SlideReader,
    select_slide_reader,
)

__all__ = [
    "FOLDER_FORMATS",
    "READERS",
    "ImageError",
    "ImageSource",
    "OmeTiffReader",
    "OmeZarrReader",
    "RasterReader",
    "SlideReader",
    "open_image",
    "register_opener",
]


class ImageSource(Protocol):
    """An image of any size; also a context manager that closes it. Safe to pickle and to fork."""

    @property
    def path(self) -> ImageLike: ...

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in level-0 pixels."""

    @property
    def mpp(self) -> float | None:
        """µm per level-0 pixel, where known."""

    @property
    def offset(self) -> tuple[int, int]:
        """Where (0, 0) lies in the coordinates of OpenSlide; those of QuPath begin there, too."""

    @property
    def memory_bytes(self) -> int:
        """Memory that it takes once it has been read from, until it is closed."""

    @property
    def overview_downsample(self) -> float | None:
        """The downsample of a level at which all of it is soon read; None where there is none."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        """A region (level-0 pixels), reduced: (round(height / downsample), …width, 3).

        Each side has at least one pixel. Without reduction the pixels are the file's own. Beyond
        the image everything is white.
        """

    def is_region_invariant(self, downsample: float) -> bool:
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


def open_image(path: ImageLike | str, mpp: float | None = None) -> ImageSource:
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
    for open_other in _OTHER_OPENERS:
        source = open_other(path, mpp)
        if source is not None:
            return source
    check_readable_file(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise ImageError(
            f"{path}: images ending in {path.suffix or 'nothing'!r} are not known; "
            f"known are {' '.join(sorted(READERS))}"
        )
    return reader(path, mpp)


Opener = Callable[[Path, float | None], ImageSource | None]
_OTHER_OPENERS: list[Opener] = []


def register_opener(opener: Opener) -> None:
    """Add a function that opens paths with its own kind of source, or returns None.

    It is tried before the suffix is looked up, as the type of a file may depend on its content.
    """
    _OTHER_OPENERS.append(opener)


class InMemoryReader(RegionReader[DecodedImage]):
    """An image whose handle is all of its pixels."""

    _bytes: int

    @property
    def memory_bytes(self) -> int:
        return self._bytes

    def _close(self, handle: DecodedImage) -> None:
        pass

    def _level(self, downsample: float) -> tuple[int, float]:
        return 0, 1.0

    def _read_tile(self, piece: ResampleTile) -> Pixels:
        picture = self._open_handle().region(piece.x, piece.y, piece.width, piece.height)
        return np.array(piece.reduced(picture))


class RasterReader(InMemoryReader):
    """A plain image file, decoded by Pillow."""

    path: Path

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        header = read_header(path)
        super().__init__(path, header.size, header.mpp if mpp is None else mpp)
        self._bytes = header.n_bytes

    def _open(self) -> DecodedImage:
        picture = decode_cached(self.path, self._bytes)
        if picture.size != self.size:
            raise ImageError(
                f"{self.path}: has {picture.size[0]} x {picture.size[1]} pixels, but "
                f"{self.size[0]} x {self.size[1]} by its header; save it again"
            )
        return picture


class MemoryReader(InMemoryReader):
    """An image in memory; there is nothing to open."""

    def __init__(self, image: MemoryImage, mpp: float | None = None) -> None:
        super().__init__(image, image.picture.size, image.mpp if mpp is None else mpp)
        self._image, self._bytes = image.picture, image.n_bytes

    def _open(self) -> DecodedImage:
        return self._image


def _open_tiff(path: Path, mpp: float | None) -> ImageSource:
    """An OME-TIFF, or a TIFF in tiles, is read as a slide, any other as a plain image."""
    return (select_slide_reader(path) or RasterReader)(path, mpp)


_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".dcm")
_PLAIN = (".jpg", ".jpeg", ".png", ".bmp")
READERS: dict[str, Callable[[Path, float | None], ImageSource]] = {
    **dict.fromkeys(_SLIDES, SlideReader),
    **dict.fromkeys(_PLAIN, RasterReader),
    **dict.fromkeys((".tif", ".tiff"), _open_tiff),
    **dict.fromkeys(FOLDER_IMAGES, OmeZarrReader),
}
