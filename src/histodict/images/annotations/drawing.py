"""Outlines in a file, and what they are in an image: a region of its level-0 pixels."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...execution.files import content_digest, file_key
from ...parameters import check_choice, hint
from ..decoding import check_readable_file
from ..errors import ImageError
from .geojson import read_geojson
from .outlines import FIRST_PIXEL, AnnotationPolygon, Annotations
from .runs import RunLengthMask
from .xml_files import read_xml

FORMATS: dict[str, Callable[[Path, bytes], Annotations]] = {
    ".geojson": read_geojson,
    ".json": read_geojson,
    ".xml": read_xml,
    ".annotations": read_xml,
}
# How a file's numbers are meant: pixels, counted from where the program that writes the format
# counts from; pixels from the slide's corner, whatever the format; µm from the first pixel.
PIXELS, SLIDE, MICRONS = "pixels", "slide", "um"
COORDINATES = (PIXELS, SLIDE, MICRONS)
_MAX_BYTES = 2**30  # of a file, unpacked
_OVERHANG = 0.1  # of the image's side, by which an outline may reach beyond it
_MAX_OUTSIDE = 0.1  # by which pixel sizes may differ
_ENDINGS = (".gz",)


class ImageGeometry(Protocol):
    """The part of an image source that is needed here."""

    @property
    def path(self) -> Any: ...

    @property
    def size(self) -> tuple[int, int]: ...

    @property
    def mpp(self) -> float | None: ...

    @property
    def offset(self) -> tuple[int, int]: ...


@dataclass(frozen=True)
class AnnotationFile:
    """Outlines in a file: those of these classes, or all; and how its numbers are meant.

    image : what they were drawn on, where they are laid over a feature file of it
    """

    path: Path
    names: tuple[str, ...] = ()
    coordinates: str = PIXELS
    image: Path | None = None

    def __post_init__(self) -> None:
        check_choice("coordinates", self.coordinates, COORDINATES)

    def of(self, *names: str) -> AnnotationFile:
        """The outlines of these classes alone."""
        return replace(self, names=names)

    def read(self) -> Annotations:
        """All of the file; once as long as it stays as it is."""
        check_readable_file(self.path)
        return _read(self.path, repr(file_key(self.path)))

    def region(self, image: ImageGeometry, *, may_lack: bool = False) -> RunLengthMask:
        """What the outlines cover of an image; refused if those of the file do not fit it.

        `may_lack`: nothing, where the file has outlines, but none of these classes.
        """
        found, first = self.read(), self._first_pixel(image)
        chosen = found.of(() if may_lack else self.names)
        outlines = [self._placed(found, outline, image, first) for outline in chosen]
        check_outlines_inside(self.path, outlines, image)
        own = [o for o in outlines if not self.names or o.name in self.names]
        return RunLengthMask.of(own, image.size)

    def notes(self) -> list[str]:
        """What there is to say of the file; nothing of one that cannot be read, who asks is told"""
        try:
            return self.read().notes()
        except (ImageError, OSError):
            return []

    def fingerprint(self) -> list[Any]:
        """All that decides what they are, whatever the file is called."""
        own = [content_digest(self.path), list(self.names), self.coordinates]
        begins = _begins(self.image, repr(file_key(self.image))) if self.image else (0, 0)
        return [*own, list(begins)] if any(begins) else own

    def _first_pixel(self, image: ImageGeometry) -> tuple[int, int]:
        """Where the first pixel lies, among places as `image` counts them: feature files of others
        count from the slide's corner.
        """
        if self.image is None:
            return 0, 0
        x, y = _begins(self.image, repr(file_key(self.image)))
        return x - image.offset[0], y - image.offset[1]

    def _placed(
        self,
        found: Annotations,
        outline: AnnotationPolygon,
        image: ImageGeometry,
        first: tuple[int, int],
    ) -> AnnotationPolygon:
        """In level-0 pixels of the image."""
        if self.coordinates == MICRONS:
            if image.mpp is None:
                option = hint(python="mpp=…", cli="--mpp")
                raise ImageError(
                    f"{self.path}: its numbers are µm, and the pixel size of {image.path} is not "
                    f"known: give it with {option} or in a column mpp"
                )
            return replace(outline, rings=tuple(ring / image.mpp + first for ring in outline.rings))
        if found.mpp and image.mpp and abs(image.mpp / found.mpp - 1) > _MAX_OUTSIDE:
            raise ImageError(
                f"{self.path}: was drawn on an image of {found.mpp:g} µm per pixel, and "
                f"{image.path} has {image.mpp:g}: they are not of the same image, or of another "
                "level of it"
            )
        if self.coordinates == PIXELS and found.origin == FIRST_PIXEL:
            return replace(outline, rings=tuple(ring + first for ring in outline.rings))
        return replace(outline, rings=tuple(ring - image.offset for ring in outline.rings))


def check_outlines_inside(
    path: Path, outlines: Sequence[AnnotationPolygon], image: ImageGeometry
) -> None:
    """Refuses outlines that do not lie in the image, by the name of their file."""
    size = np.array(image.size)
    boxes = [(o.rings[0].min(axis=0), o.rings[0].max(axis=0)) for o in outlines if not o.is_hole]
    off = [
        (low, high)
        for low, high in boxes
        if (low >= size).any()
        or (high <= 0).any()
        or (low < -_OVERHANG * size).any()
        or (high > (1 + _OVERHANG) * size).any()
    ]
    if off:
        (left, top), (right, bottom) = off[0]
        how = hint(
            python="say so with coordinates=…",
            cli="say so with --coordinates",
            web="bring them in on the command line",
        )
        raise ImageError(
            f"{path}: {len(off)} of {len(boxes)} outlines lie outside of {image.path}, or "
            f"reach far beyond it: one goes from ({left:.0f}, {top:.0f}) to ({right:.0f}, "
            f"{bottom:.0f}), and the image has {size[0]} x {size[1]} pixels. Are they of "
            "another image, or of another level of it? If its numbers are µm, or count from "
            f"the slide's corner, {how}"
        )


def image_stem(path: Path) -> str:
    """The name of the image that a file of annotations is for; empty if it is no such file."""
    name = path.name
    for ending in _ENDINGS:
        if name.lower().endswith(ending):
            name = name[: -len(ending)]
    known = Path(name).suffix.lower() in FORMATS
    return Path(name).stem if known else ""


@lru_cache(maxsize=100_000)
def _begins(image: Path, state: str) -> tuple[int, int]:
    """Where an image's first pixel lies on its slide."""
    from ..readers import open_image

    with open_image(image) as source:
        return source.offset


@lru_cache(maxsize=32)
def _read(path: Path, state: str) -> Annotations:
    if not image_stem(path):
        raise ImageError(
            f"{path}: annotations ending in {path.suffix or 'nothing'!r} are not known; known are "
            f"{' '.join(FORMATS)}, also packed (.gz)"
        )
    packed = path.suffix.lower() == ".gz"
    read = FORMATS[(Path(path.stem) if packed else path).suffix.lower()]
    return read(path, _content(path, packed=packed))


def _content(path: Path, *, packed: bool) -> bytes:
    with path.open("rb") as file:
        try:
            unpacked = gzip.GzipFile(fileobj=file) if packed else file
            content = unpacked.read(_MAX_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ImageError(f"{path}: cannot be unpacked ({error}); copy it again") from error
    if len(content) > _MAX_BYTES:
        raise ImageError(f"{path}: has more than {_MAX_BYTES // 2**20} MiB; export fewer objects")
    return content
