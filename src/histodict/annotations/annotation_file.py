"""Outlines in a file, and what they are in an image: a region of its level-0 pixels.

GeoJSON as QuPath writes it, and as others write it for QuPath.

Where each peculiarity was learnt is in docs/annotations.md.

XML as ASAP, ImageScope and HALO write it; which of them it was, the first element tells.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from xml.etree import ElementTree

import numpy as np

from ..images.file_types import ImageError
from ..images.raster import check_readable_file
from ..utils.files import content_digest, file_key
from ..utils.validation import check_choice, hint
from .outlines import FIRST_PIXEL, SLIDE_CORNER, AnnotationPolygon, Annotations, RunLengthMask

# Of QuPath's objects, those that people do not draw; before 0.3 the type stood under "id".
_WRITTEN_BY = {"detection": "detections", "cell": "cells", "tile": "tiles", "root": "roots"}
_WRITTEN_BY |= {"PathDetectionObject": "detections", "PathCellObject": "cells"}
_WRITTEN_BY |= {"PathTileObject": "tiles", "PathRootObject": "roots"}
_NO_AREA = {"Point": "points", "MultiPoint": "points"}
_NO_AREA |= {"LineString": "lines", "MultiLineString": "lines"}


def read_geojson(path: Path, text: bytes) -> Annotations:
    """A FeatureCollection, an array of features, one feature, or a geometry alone."""
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ImageError(f"{path}: this is not GeoJSON ({error}); export it again") from error
    found = Annotations(path, FIRST_PIXEL)
    try:
        _add_all(found, content)
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ImageError(
            f"{path}: this is JSON, but not of features with a geometry ({error!r})"
        ) from error
    return found


def _add_all(found: Annotations, content: Any) -> None:
    if isinstance(content, dict) and "features" in content:
        content = content["features"]
    if isinstance(content, dict):
        content = [content if "geometry" in content else {"geometry": content}]
    for feature in content:
        _add_feature(found, feature)


def _add_feature(found: Annotations, feature: dict[str, Any]) -> None:
    properties = feature.get("properties") or {}
    kind = _WRITTEN_BY.get(_type_of(feature, properties))
    if kind is not None:
        found.skipped[kind] += kind != "roots"
    elif feature["geometry"] is None:
        found.skipped["annotations without a geometry"] += 1
    else:
        _add_geometry(found, _class_of(properties), feature["geometry"])
    for child in properties.get("childObjects") or properties.get("children") or ():
        _add_feature(found, child)


def _type_of(feature: dict[str, Any], properties: dict[str, Any]) -> str:
    names = ("objectType", "object_type", "type")
    said = [properties[name] for name in names if name in properties]
    return str([*said, feature.get("id", "")][0])


def _class_of(properties: dict[str, Any]) -> str | None:
    """The class's name; one below another is written as QuPath shows it, "Tumor: Positive"."""
    said = properties.get("classification")
    if not isinstance(said, dict):
        return str(said) if said else None
    names = said.get("names") or ([said["name"]] if said.get("name") else [])
    above = said.get("parentClass")
    while isinstance(above, dict) and above.get("name"):
        names, above = [above["name"], *names], above.get("parentClass")
    return ": ".join(map(str, names)) or None


def _add_geometry(found: Annotations, name: str | None, geometry: dict[str, Any]) -> None:
    kind = geometry["type"]
    if kind == "GeometryCollection":
        for part in geometry["geometries"]:
            _add_geometry(found, name, part)
    elif kind in _NO_AREA:
        found.skipped[_NO_AREA[kind]] += 1
    elif kind in ("Polygon", "MultiPolygon"):
        parts = geometry["coordinates"] if kind == "MultiPolygon" else [geometry["coordinates"]]
        for rings in parts:
            found.add(name, rings, "polygons")
    else:
        raise ImageError(f"{found.path}: a geometry of type {kind!r} is not known")


Element = ElementTree.Element
_N_CORNERS = 360  # of an ellipse


def read_xml(path: Path, text: bytes) -> Annotations:
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ImageError(f"{path}: this is not XML ({error}); export it again") from error
    read = _ROOTS.get(root.tag)
    if read is None:
        raise ImageError(
            f"{path}: begins with <{root.tag}>; annotations of ASAP begin with <ASAP_Annotations>, "
            "those of ImageScope with <Annotations>"
        )
    found = Annotations(path, SLIDE_CORNER)
    try:
        read(found, root)
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{path}: an annotation is not whole ({error!r})") from error
    return found


# --- ASAP ---------------------------------------------------------------------------------------

_ASAP_AREAS = ("polygon", "spline", "rectangle")


def _read_asap(found: Annotations, root: Element) -> None:
    for drawn in root.iter("Annotation"):
        kind = drawn.get("Type", "Polygon").lower()
        if kind not in _ASAP_AREAS:
            found.skipped[f"{kind} annotations"] += 1
            continue
        corners = sorted(drawn.iter("Coordinate"), key=lambda corner: int(corner.get("Order", 0)))
        group = drawn.get("PartOfGroup", "None")
        found.add(None if group == "None" else group, [_points(corners)], f"{kind} annotations")


# --- ImageScope, and HALO after it --------------------------------------------------------------


def _corners(points: list[list[float]]) -> list[list[float]]:
    """Of a rectangle, of which some write two corners and some four."""
    (left, top), (right, bottom) = np.min(points, axis=0), np.max(points, axis=0)
    box = [[left, top], [right, top], [right, bottom], [left, bottom]]
    return box if len(points) < 4 else points


def _ellipse(points: list[list[float]]) -> list[list[float]]:
    """In the upright rectangle around the points."""
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    angles = np.arange(_N_CORNERS) * 2 * np.pi / _N_CORNERS
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found: list[list[float]] = ((low + high) / 2 + around * (high - low) / 2).tolist()
    return found


def _polygon(points: list[list[float]]) -> list[list[float]]:
    return points


# By the region's type: of ImageScope a number, of HALO a word; others have no area.
_SHAPES: dict[str, Callable[[list[list[float]]], list[list[float]]]] = {
    **dict.fromkeys(("0", "polygon"), _polygon),
    **dict.fromkeys(("1", "rectangle"), _corners),
    **dict.fromkeys(("2", "ellipse"), _ellipse),
}


def _read_imagescope(found: Annotations, root: Element) -> None:
    found.mpp = float(root.get("MicronsPerPixel") or 0) or None
    for layer in root.iter("Annotation"):
        for region in layer.iter("Region"):
            shape = _SHAPES.get(region.get("Type", "0").lower())
            points = _points([*region.iter("Vertex"), *region.iter("V")])
            if shape is None or not points:
                found.skipped["arrows, rulers and the like"] += 1
                continue
            cuts = region.get("NegativeROA", "0") not in ("0", "")
            found.add(_layer_name(layer, region), [shape(points)], "regions", cuts=cuts)


def _layer_name(layer: Element, region: Element) -> str | None:
    """The layer's name, else its description, else the text at the region."""
    attributes = [a.get("Value", "") for a in layer.findall("Attributes/Attribute")]
    said = [layer.get("Name", ""), *attributes, region.get("Text", "")]
    return next((text.strip() for text in said if text.strip()), None)


def _points(elements: Iterable[Element]) -> list[list[float]]:
    """A comma for the decimal point is some countries' way."""
    return [[_number(each, name) for name in ("X", "Y")] for each in elements]


def _number(element: Element, name: str) -> float:
    return float(element.attrib[name].replace(",", "."))


_ROOTS: dict[str, Callable[[Annotations, Any], None]] = {
    "ASAP_Annotations": _read_asap,
    "Annotations": _read_imagescope,
}


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
    from ..images.source import open_image

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
