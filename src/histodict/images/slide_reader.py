"""Slides: regions of them from pieces of a level, which another process reads."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from ..execution.files import file_bytes
from ..execution.missing_chunks import check_missing_chunks
from .decoding import MAX_COMPRESSION_RATIO, plausible_mpp
from .errors import ImageError
from .opened_slide import SCALE_WITHOUT_UNIT
from .reduction import ResampleTile
from .region_reader import Pixels, RegionReader
from .slide_child import OME_TIFF, OME_ZARR, OPENSLIDE
from .slide_process import (
    MissingSlideLibraryError,
    Slide,
    SlideFormatError,
    SlideProcessDiedError,
    UnsupportedSlideError,
    detect,
)

FOLDER_FORMATS = (".mrxs",)  # the slide's data lie in a folder of its name, beside the file
_IN_SEVERAL_FILES = (*FOLDER_FORMATS, ".dcm", ".vms", ".vmu")
# A level of downsample 4.002, from a side that 4 does not divide, serves a reduction by 4.
_LEVEL_SLACK = 1.01
# Of an open slide: OpenSlide keeps up to 32 MB of it, and its directory, in a process of 30 MB; of
# tiles that are decoded one by one 48 MB are kept.
_SLIDE_BYTES = 128 * 2**20
# Reading all of such a level takes a 64th of the time at most, and single cells can be seen in it.
_LOW_LEVELS = (8.0, 20.0)
# Pixels of a coarsest level that are read whatever the file says.
_ALWAYS_BYTES = 50_000_000


class SlideReader(RegionReader[Slide]):
    """A whole slide, read by OpenSlide; inside its bounds where it has some (MRXS).

    library : who reads it, of those that `slide_child` knows; name, package : in words
    scale_without_unit : scale of an OME-Zarr without units, as text; mpp is then unknown
    """

    path: Path
    library: ClassVar[str] = OPENSLIDE
    name: ClassVar[str] = "OpenSlide"
    package: ClassVar[str] = "openslide-python openslide-bin"

    def __init__(self, path: Path, mpp: float | None = None) -> None:
        super().__init__(path, (0, 0), mpp)
        facts = self._open_handle().metadata
        self.missing_chunks, n_chunks = facts.get("missing_chunks", (0, 0))
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
        self.scale_without_unit = facts["properties"].get(SCALE_WITHOUT_UNIT)
        _check_proportions(path, facts["level_sizes"][-1])
        refused = check_missing_chunks(path, self.missing_chunks, n_chunks)
        if refused:
            self.close()
            raise ImageError(refused)

    @property
    def memory_bytes(self) -> int:
        return _SLIDE_BYTES

    @property
    def overview_downsample(self) -> float | None:
        low, high = _LOW_LEVELS
        return max((each for each in self._downsamples if low <= each <= high), default=None)

    def _open(self) -> Slide:
        with self._describe_error(
            f"{self.name} cannot open this slide",
            "if the file came with a folder or with other files, they must lie beside it; "
            "else copy it again",
        ):
            return Slide(self.path, self.library)

    def _close(self, handle: Slide) -> None:
        handle.close()

    def _level(self, downsample: float) -> tuple[int, float]:
        level = max(0, bisect.bisect_right(self._downsamples, downsample * _LEVEL_SLACK) - 1)
        return level, self._downsamples[level]

    def _read_tile(self, piece: ResampleTile) -> Pixels:
        scale = self._downsamples[piece.level]
        corner = round(piece.x * scale) + self.offset[0], round(piece.y * scale) + self.offset[1]
        slide = self._open_handle()
        with self._describe_error(
            "a part of the slide cannot be read",
            f"the file is damaged or its compression is not known to {self.name}: copy it again, "
            "or convert it to a pyramidal TIFF",
        ):
            return slide.piece(corner, piece)

    @contextmanager
    def _describe_error(self, what: str, advice: str) -> Iterator[None]:
        try:
            with _describe_error(self.path, what, advice):
                yield
        except MissingSlideLibraryError as error:
            raise ImageError(
                f"{self.path}: such slides are read with {self.name}, which is not installed "
                f"({error}); run: pip install {self.package}"
            ) from error


class OmeTiffReader(SlideReader):
    """An OME-TIFF, read by tifffile."""

    library = OME_TIFF
    name = "tifffile"
    package = "tifffile"


class OmeZarrReader(SlideReader):
    """A folder that is an OME-Zarr, read by zarr."""

    library = OME_ZARR
    name = "zarr"
    package = "'histodict[ome]'"


_READERS = {reader.library: reader for reader in (SlideReader, OmeTiffReader, OmeZarrReader)}


def select_slide_reader(path: Path) -> type[SlideReader] | None:
    """The reader of a TIFF that is a slide; None of any other file."""
    try:
        with _describe_error(path, "OpenSlide cannot look at this file", "copy it again"):
            found = detect(path)
    except MissingSlideLibraryError:
        return None
    return None if found is None else _READERS[found]


@contextmanager
def _describe_error(path: Path, what: str, advice: str) -> Iterator[None]:
    """Whatever becomes of a slide in the process that has it open, as an error that names it."""
    try:
        yield
    except UnsupportedSlideError as error:
        raise ImageError(f"{path}: {error}") from error
    except SlideFormatError as error:
        raise ImageError(f"{path}: {what} ({error}); {advice}") from error
    except SlideProcessDiedError as error:
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
    n_bytes = file_bytes(path)
    if 3 * math.prod(coarsest) > max(MAX_COMPRESSION_RATIO * n_bytes, _ALWAYS_BYTES):
        raise ImageError(
            f"{path}: says that its coarsest level has {coarsest[0]} x {coarsest[1]} pixels, more "
            f"than {n_bytes} bytes can hold; the file is damaged: copy it again"
        )
