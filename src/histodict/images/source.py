"""Common interface to the pixels of plain images and whole slides.

Positions and lengths are in pixels of level 0, the finest level. Slides are read tile by tile from
the coarsest level that is fine enough. Plain images are decoded as a whole on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np

from ..utils.validation import check_number
from .file_types import FOLDER_IMAGE_SUFFIXES, ImageError
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
    """Interface of image readers, which are context managers that close the image.

    Readers can be pickled and used after a fork.
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
        """(x, y) of the upper left pixel in OpenSlide's level-0 coordinates."""

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes that the image occupies from its first read until it is closed."""

    @property
    def overview_downsample(self) -> float | None:
        """Downsample of a level that is fast to read as a whole; None if there is none."""

    def read(self, x: int, y: int, width: int, height: int, downsample: float = 1.0) -> Pixels:
        """Return a region, reduced by `downsample`.

        Pixels outside the image are white.

        Parameters
        ----------
        x, y : upper left corner in level-0 pixels
        width, height : size in level-0 pixels
        downsample : factor of the reduction, at least 1; with 1, the region is not reduced

        Returns
        -------
        pixels : (round(height / downsample), round(width / downsample), 3), at least one pixel each
        """

    def is_region_invariant(self, downsample: float) -> bool:
        """Return whether a pixel of a reduced region is the same in any region that contains it.

        Only regions whose corners are multiples of `downsample` are compared. The result is True if
        both the downsample of the level that is read and the remaining reduction are whole numbers.
        """

    def thumbnail(self, longest_side: int) -> Pixels:
        """Return the whole image, reduced so that no side has more than `longest_side` pixels.

        A smaller image is returned in its own size.
        """

    def __enter__(self) -> ImageSource: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_image(path: ImageLike | str, mpp: float | None = None) -> ImageSource:
    """Open an image, a slide or a feature file.

    A feature file has no pixels, and is read as a white image.

    Parameters
    ----------
    path : in-memory image or file; the suffix of a file (in any case) determines the reader
    mpp : µm per level-0 pixel; None to read it from the properties of a slide or the resolution of
        a TIFF (0.05 to 20 µm). The dpi of JPEG and PNG are ignored, as they are arbitrary.

    Returns
    -------
    ImageSource

    Raises
    ------
    ImageError
        If the image cannot be read.
    """
    if mpp is not None:
        mpp = check_number("mpp", mpp, exclusive=True)
    if isinstance(path, MemoryImage):
        return MemoryImageReader(path, mpp)
    path = Path(path)
    for opener in _REGISTERED_OPENERS:
        source = opener(path, mpp)
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


OpenFunction = Callable[[Path, float | None], ImageSource | None]
_REGISTERED_OPENERS: list[OpenFunction] = []


def register_opener(opener: OpenFunction) -> None:
    """Register a function that `open_image` calls before it looks up the suffix of a file.

    Parameters
    ----------
    opener : function of a path and a pixel size (None to read it from the file); it returns the
        open image, or None if it does not open files of this type
    """
    _REGISTERED_OPENERS.append(opener)


class DecodedImageReader(RegionReader[DecodedImage]):
    """Base class of readers that decode the whole image at once."""

    _n_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Memory of the decoded image in bytes."""
        return self._n_bytes

    def _close(self, handle: DecodedImage) -> None:
        pass

    def _select_level(self, downsample: float) -> tuple[int, float]:
        return 0, 1.0

    def _read_tile(self, handle: DecodedImage, tile: ResampleTile) -> Pixels:
        region = handle.region(tile.x, tile.y, tile.width, tile.height)
        return np.array(tile.resample(region))


class RasterReader(DecodedImageReader):
    """Reader of a plain image file, decoded by Pillow."""

    path: Path

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        header = read_header(path)
        super().__init__(path, header.size, header.mpp if mpp is None else mpp)
        self._n_bytes = header.n_bytes

    def _open(self) -> DecodedImage:
        image = decode_cached(self.path, self._n_bytes)
        if image.size != self.size:
            raise ImageError(
                f"{self.path}: the image has {image.size[0]} x {image.size[1]} pixels, but "
                f"its header specifies {self.size[0]} x {self.size[1]}; save it again"
            )
        return image


class MemoryImageReader(DecodedImageReader):
    """Reader of an in-memory image."""

    def __init__(self, image: MemoryImage, mpp: float | None = None) -> None:
        super().__init__(image, image.decoded.size, image.mpp if mpp is None else mpp)
        self._image, self._n_bytes = image.decoded, image.n_bytes

    def _open(self) -> DecodedImage:
        return self._image


def _open_tiff(path: Path, mpp: float | None) -> ImageSource:
    """Open a TIFF as a slide if a slide library reads it, otherwise as a plain image."""
    return (select_slide_reader(path) or RasterReader)(path, mpp)


_SLIDE_SUFFIXES = (".svs", ".ndpi", ".mrxs", ".scn", ".bif", ".vms", ".vmu", ".svslide", ".dcm")
_PLAIN_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
READERS: dict[str, Callable[[Path, float | None], ImageSource]] = {
    **dict.fromkeys(_SLIDE_SUFFIXES, SlideReader),
    **dict.fromkeys(_PLAIN_SUFFIXES, RasterReader),
    **dict.fromkeys((".tif", ".tiff"), _open_tiff),
    **dict.fromkeys(FOLDER_IMAGE_SUFFIXES, OmeZarrReader),
}
