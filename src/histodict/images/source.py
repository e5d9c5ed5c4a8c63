"""Common interface to the pixels of plain images and whole slides.

Positions and lengths are in level-0 pixels, those of the finest level, whatever the reduction.
Slides are read in pieces of the coarsest level that is fine enough; plain images are decoded as a
whole on first use.
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
from .region_reader import Pixels, RegionReader
from .resampling import ResampleTile
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
    """Image of any size; a context manager that closes it.

    Sources can be pickled and used after a fork.
    """

    @property
    def path(self) -> ImageLike:
        """File or in-memory image."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in level-0 pixels."""

    @property
    def mpp(self) -> float | None:
        """µm per level-0 pixel; None if unknown."""

    @property
    def offset(self) -> tuple[int, int]:
        """Position of (0, 0) in OpenSlide's coordinates; QuPath's coordinates begin there."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the source from its first read until it is closed."""

    @property
    def overview_downsample(self) -> float | None:
        """Downsample of a level that is fast to read as a whole; None without one."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        """Return a region, reduced: (round(height / downsample), round(width / downsample), 3).

        Each side has at least one pixel. Without reduction the pixels are those of the file. Pixels
        outside the image are white.

        Parameters
        ----------
        x, y : upper left corner in level-0 pixels
        width, height : size in level-0 pixels
        downsample : factor of the reduction, at least 1
        """

    def is_region_invariant(self, downsample: float) -> bool:
        """Return whether reduced pixels do not depend on the region that is read.

        This holds for regions aligned with the reduced pixels, if both the downsample of the level
        and the remaining reduction are whole numbers.
        """

    def thumbnail(self, longest_side: int) -> Pixels:
        """Return the whole image, reduced to this longest side; never enlarged."""

    def __enter__(self) -> ImageSource: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_image(path: ImageLike | str, mpp: float | None = None) -> ImageSource:
    """Open an image or slide, in a file or in memory; a feature file is a white image.

    Parameters
    ----------
    path : image in memory, or path of a file, whose suffix (any case) selects one of READERS
    mpp : µm per pixel; takes precedence over the file, which states it as a property of a slide or
        as the resolution of a TIFF between 0.05 and 20 µm; the dpi of JPEG and PNG are ignored, as
        they are arbitrary

    Raises
    ------
    ImageError
        If the image cannot be read.
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
            f"{path}: unsupported image format {path.suffix or 'none'!r}; supported "
            f"are {' '.join(sorted(READERS))}"
        )
    return reader(path, mpp)


Opener = Callable[[Path, float | None], ImageSource | None]
_OTHER_OPENERS: list[Opener] = []


def register_opener(opener: Opener) -> None:
    """Register a function that opens paths as its own kind of source, or returns None.

    It is called before the suffix is looked up, as the type of a file may depend on its content.
    """
    _OTHER_OPENERS.append(opener)


class InMemoryReader(RegionReader[DecodedImage]):
    """Base class of readers whose handle is the decoded image."""

    _bytes: int

    @property
    def memory_bytes(self) -> int:
        """Memory of the decoded image."""
        return self._bytes

    def _close(self, handle: DecodedImage) -> None:
        pass

    def _level(self, downsample: float) -> tuple[int, float]:
        return 0, 1.0

    def _read_tile(self, handle: DecodedImage, piece: ResampleTile) -> Pixels:
        region = handle.region(piece.x, piece.y, piece.width, piece.height)
        return np.array(piece.reduced(region))


class RasterReader(InMemoryReader):
    """Plain image file, decoded by Pillow."""

    path: Path

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        header = read_header(path)
        super().__init__(path, header.size, header.mpp if mpp is None else mpp)
        self._bytes = header.n_bytes

    def _open(self) -> DecodedImage:
        image = decode_cached(self.path, self._bytes)
        if image.size != self.size:
            raise ImageError(
                f"{self.path}: the image has {image.size[0]} x {image.size[1]} pixels, but "
                f"its header specifies {self.size[0]} x {self.size[1]}; save it again"
            )
        return image


class MemoryReader(InMemoryReader):
    """Image in memory."""

    def __init__(self, image: MemoryImage, mpp: float | None = None) -> None:
        super().__init__(image, image.picture.size, image.mpp if mpp is None else mpp)
        self._image, self._bytes = image.picture, image.n_bytes

    def _open(self) -> DecodedImage:
        return self._image


def _open_tiff(path: Path, mpp: float | None) -> ImageSource:
    """Open an OME-TIFF or a tiled TIFF as a slide, any other TIFF as a plain image."""
    return (select_slide_reader(path) or RasterReader)(path, mpp)


_SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".dcm")
_PLAIN = (".jpg", ".jpeg", ".png", ".bmp")
READERS: dict[str, Callable[[Path, float | None], ImageSource]] = {
    **dict.fromkeys(_SLIDES, SlideReader),
    **dict.fromkeys(_PLAIN, RasterReader),
    **dict.fromkeys((".tif", ".tiff"), _open_tiff),
    **dict.fromkeys(FOLDER_IMAGES, OmeZarrReader),
}
