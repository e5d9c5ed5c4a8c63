"""Annotation files: outlines in GeoJSON or XML, and their masks on images.

The formats are GeoJSON of QuPath and compatible programs, and XML of ASAP, ImageScope and HALO; the
root element identifies the program. tests/annotations/outline_files.py lists the sources of
these formats.
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

# Types of QuPath objects that are not annotations; before QuPath 0.3, "id" contained the type.
_IGNORED_OBJECT_KINDS = {
    "detection": "detections",
    "cell": "cells",
    "tile": "tiles",
    "root": "roots",
}
_IGNORED_OBJECT_KINDS |= {"PathDetectionObject": "detections", "PathCellObject": "cells"}
_IGNORED_OBJECT_KINDS |= {"PathTileObject": "tiles", "PathRootObject": "roots"}
_KINDS_WITHOUT_AREA = {"Point": "points", "MultiPoint": "points"}
_KINDS_WITHOUT_AREA |= {"LineString": "lines", "MultiLineString": "lines"}


def read_geojson(path: Path, text: bytes) -> Annotations:
    """Read outlines from GeoJSON: a FeatureCollection, array of features, feature or geometry.

    Raises
    ------
    ImageError
        If the text is not GeoJSON or contains an unknown type of geometry.
    """
    try:
        content = json.loads(text.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ImageError(
            f"{path}: invalid GeoJSON ({error}); export the annotations again"
        ) from error
    annotations = Annotations(path, FIRST_PIXEL)
    try:
        _add_features(annotations, content)
    except (TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ImageError(
            f"{path}: JSON without GeoJSON features that have a geometry ({error!r})"
        ) from error
    return annotations


def _add_features(annotations: Annotations, content: Any) -> None:
    if isinstance(content, dict) and "features" in content:
        content = content["features"]
    if isinstance(content, dict):
        content = [content if "geometry" in content else {"geometry": content}]
    for feature in content:
        _add_feature(annotations, feature)


def _add_feature(annotations: Annotations, feature: dict[str, Any]) -> None:
    """Add a feature and its child objects, or count the feature as skipped."""
    properties = feature.get("properties") or {}
    kind = _IGNORED_OBJECT_KINDS.get(_object_type(feature, properties))
    if kind is not None:
        annotations.skipped[kind] += kind != "roots"
    elif feature["geometry"] is None:
        annotations.skipped["annotations without a geometry"] += 1
    else:
        _add_geometry(annotations, _class_name(properties), feature["geometry"])
    for child in properties.get("childObjects") or properties.get("children") or ():
        _add_feature(annotations, child)


def _object_type(feature: dict[str, Any], properties: dict[str, Any]) -> str:
    names = ("objectType", "object_type", "type")
    values = [properties[name] for name in names if name in properties]
    return str([*values, feature.get("id", "")][0])


def _class_name(properties: dict[str, Any]) -> str | None:
    """Return the class name of a feature; None if it is unclassified.

    Names of derived classes are formatted as in QuPath, such as "Tumor: Positive".
    """
    classification = properties.get("classification")
    if not isinstance(classification, dict):
        return str(classification) if classification else None
    names = classification.get("names") or (
        [classification["name"]] if classification.get("name") else []
    )
    parent = classification.get("parentClass")
    while isinstance(parent, dict) and parent.get("name"):
        names, parent = [parent["name"], *names], parent.get("parentClass")
    return ": ".join(map(str, names)) or None


def _add_geometry(annotations: Annotations, name: str | None, geometry: dict[str, Any]) -> None:
    kind = geometry["type"]
    if kind == "GeometryCollection":
        for part in geometry["geometries"]:
            _add_geometry(annotations, name, part)
    elif kind in _KINDS_WITHOUT_AREA:
        annotations.skipped[_KINDS_WITHOUT_AREA[kind]] += 1
    elif kind in ("Polygon", "MultiPolygon"):
        parts = geometry["coordinates"] if kind == "MultiPolygon" else [geometry["coordinates"]]
        for rings in parts:
            annotations.add(name, rings, "polygons")
    else:
        raise ImageError(f"{annotations.path}: unknown geometry type {kind!r}")


Element = ElementTree.Element
_N_CORNERS = 360  # of a polygon that approximates an ellipse


def read_xml(path: Path, text: bytes) -> Annotations:
    """Read outlines from XML of ASAP, ImageScope or HALO.

    Raises
    ------
    ImageError
        If the text is not XML of these programs, or if an annotation is incomplete.
    """
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise ImageError(f"{path}: invalid XML ({error}); export the annotations again") from error
    read = _READERS_BY_ROOT.get(root.tag)
    if read is None:
        raise ImageError(
            f"{path}: unknown root element <{root.tag}>; supported are <ASAP_Annotations> "
            "(ASAP) and <Annotations> (ImageScope, HALO)"
        )
    annotations = Annotations(path, SLIDE_CORNER)
    try:
        read(annotations, root)
    except (KeyError, ValueError, TypeError) as error:
        if isinstance(error, ImageError):
            raise
        raise ImageError(f"{path}: an annotation is incomplete ({error!r})") from error
    return annotations


# --- ASAP ---------------------------------------------------------------------------------------

_ASAP_AREAS = ("polygon", "spline", "rectangle")


def _read_asap(annotations: Annotations, root: Element) -> None:
    for annotation in root.iter("Annotation"):
        kind = annotation.get("Type", "Polygon").lower()
        if kind not in _ASAP_AREAS:
            annotations.skipped[f"{kind} annotations"] += 1
            continue
        corners = sorted(
            annotation.iter("Coordinate"), key=lambda corner: int(corner.get("Order", 0))
        )
        group = annotation.get("PartOfGroup", "None")
        annotations.add(
            None if group == "None" else group, [_read_points(corners)], f"{kind} annotations"
        )


# --- ImageScope and HALO ------------------------------------------------------------------------


def _to_rectangle(points: list[list[float]]) -> list[list[float]]:
    """Return the four corners of a rectangle; `points` are these or two opposite corners."""
    (left, top), (right, bottom) = np.min(points, axis=0), np.max(points, axis=0)
    box = [[left, top], [right, top], [right, bottom], [left, bottom]]
    return box if len(points) < 4 else points


def _to_ellipse(points: list[list[float]]) -> list[list[float]]:
    """Return a polygon that approximates the ellipse in the bounding box of the points."""
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    angles = np.arange(_N_CORNERS) * 2 * np.pi / _N_CORNERS
    around = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points_on_ellipse: list[list[float]] = ((low + high) / 2 + around * (high - low) / 2).tolist()
    return points_on_ellipse


def _to_polygon(points: list[list[float]]) -> list[list[float]]:
    return points


# By type of region, a number in ImageScope and a word in HALO; other types have no area.
_SHAPE_POLYGONS: dict[str, Callable[[list[list[float]]], list[list[float]]]] = {
    **dict.fromkeys(("0", "polygon"), _to_polygon),
    **dict.fromkeys(("1", "rectangle"), _to_rectangle),
    **dict.fromkeys(("2", "ellipse"), _to_ellipse),
}


def _read_imagescope(annotations: Annotations, root: Element) -> None:
    annotations.mpp = float(root.get("MicronsPerPixel") or 0) or None
    for layer in root.iter("Annotation"):
        for region in layer.iter("Region"):
            shape = _SHAPE_POLYGONS.get(region.get("Type", "0").lower())
            points = _read_points([*region.iter("Vertex"), *region.iter("V")])
            if shape is None or not points:
                annotations.skipped["arrows, rulers and similar objects"] += 1
                continue
            is_hole = region.get("NegativeROA", "0") not in ("0", "")
            annotations.add(_layer_name(layer, region), [shape(points)], "regions", is_hole=is_hole)


def _layer_name(layer: Element, region: Element) -> str | None:
    """Return the class name of a region; None if the file states none.

    It is the first of these texts that is not empty: the name of the layer, its attributes, and the
    text of the region.
    """
    attributes = [a.get("Value", "") for a in layer.findall("Attributes/Attribute")]
    names = [layer.get("Name", ""), *attributes, region.get("Text", "")]
    return next((name.strip() for name in names if name.strip()), None)


def _read_points(elements: Iterable[Element]) -> list[list[float]]:
    """Return [x, y] of each element, also if numbers have decimal commas."""
    return [[_read_number(each, name) for name in ("X", "Y")] for each in elements]


def _read_number(element: Element, name: str) -> float:
    return float(element.attrib[name].replace(",", "."))


_READERS_BY_ROOT: dict[str, Callable[[Annotations, Any], None]] = {
    "ASAP_Annotations": _read_asap,
    "Annotations": _read_imagescope,
}


FORMATS: dict[str, Callable[[Path, bytes], Annotations]] = {
    ".geojson": read_geojson,
    ".json": read_geojson,
    ".xml": read_xml,
    ".annotations": read_xml,
}
# Unit and origin of coordinates: pixels from the origin that the format defines, pixels from the
# corner of the slide, or µm from the upper left pixel of the image.
PIXELS, SLIDE, MICRONS = "pixels", "slide", "um"
COORDINATES = (PIXELS, SLIDE, MICRONS)
_MAX_FILE_BYTES = 2**30  # maximum size of a decompressed file
_MAX_OVERHANG = 0.1  # maximum distance of an outline beyond the image, relative to the image's side
_MPP_TOLERANCE = 0.1  # maximum relative difference of pixel sizes
_COMPRESSION_SUFFIXES = (".gz",)


class ImageGeometry(Protocol):
    """Properties of an image that determine the position of outlines on it."""

    @property
    def path(self) -> Any:
        """File or in-memory image."""

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in level-0 pixels."""

    @property
    def mpp(self) -> float | None:
        """µm per level-0 pixel; None if unknown."""

    @property
    def offset(self) -> tuple[int, int]:
        """(x, y) of the image's upper left pixel in OpenSlide's level-0 coordinates."""


@dataclass(frozen=True)
class AnnotationFile:
    """Annotation file and the classes whose outlines are used.

    Attributes
    ----------
    path : annotation file
    names : names of the classes; empty for all classes
    coordinates : unit and origin of the coordinates: "pixels" from the origin that the file format
        defines, "slide" (pixels from the corner of the slide) or "um" (µm)
    image : annotated image if the outlines are used with a feature file of it; otherwise None
    """

    path: Path
    names: tuple[str, ...] = ()
    coordinates: str = PIXELS
    image: Path | None = None

    def __post_init__(self) -> None:
        check_choice("coordinates", self.coordinates, COORDINATES)

    def with_classes(self, *names: str) -> AnnotationFile:
        """Return the same annotation file, restricted to outlines of these classes.

        Parameters
        ----------
        *names : names of the classes; without names, all classes are used

        Returns
        -------
        AnnotationFile
        """
        return replace(self, names=names)

    def read(self) -> Annotations:
        """Read the outlines of all classes; results are cached until the file changes.

        Returns
        -------
        Annotations

        Raises
        ------
        ImageError
            If the file cannot be read.
        """
        check_readable_file(self.path)
        return _read_cached(self.path, repr(file_key(self.path)))

    def region_mask(self, image: ImageGeometry, *, allow_missing: bool = False) -> RunLengthMask:
        """Return the mask of the pixels of an image that the outlines enclose.

        Parameters
        ----------
        image : image to which the outlines belong
        allow_missing : whether to return an empty mask, instead of raising ImageError, if no
            outline has one of the classes

        Returns
        -------
        RunLengthMask

        Raises
        ------
        ImageError
            If the file cannot be read or its outlines do not fit the image.
        """
        annotations, first_pixel = self.read(), self._first_pixel(image)
        chosen = annotations.select_outlines(() if allow_missing else self.names)
        outlines = [
            self._to_image_pixels(annotations, outline, image, first_pixel) for outline in chosen
        ]
        check_outlines_inside(self.path, outlines, image)
        selected = [o for o in outlines if not self.names or o.name in self.names]
        return RunLengthMask.from_outlines(selected, image.size)

    def notes(self) -> list[str]:
        """Return warnings about the content of the file; an empty list if it cannot be read.

        Returns
        -------
        list of str
        """
        try:
            return self.read().notes()
        except (ImageError, OSError):
            return []

    def fingerprint(self) -> list[Any]:
        """Return values that change if the outlines change, but not if the file is renamed.

        Returns
        -------
        list
            JSON-serialisable values: digest of the content, classes, coordinates, and the offset of
            `image` if it is not (0, 0).
        """
        content = [content_digest(self.path), list(self.names), self.coordinates]
        offset = _read_offset(self.image, repr(file_key(self.image))) if self.image else (0, 0)
        return [*content, list(offset)] if any(offset) else content

    def _first_pixel(self, image: ImageGeometry) -> tuple[int, int]:
        """Return (x, y) of the annotated image's upper left pixel in level-0 pixels of `image`.

        It differs from (0, 0) if `image` is a feature file with positions relative to the corner of
        the slide.
        """
        if self.image is None:
            return 0, 0
        x, y = _read_offset(self.image, repr(file_key(self.image)))
        return x - image.offset[0], y - image.offset[1]

    def _to_image_pixels(
        self,
        annotations: Annotations,
        outline: AnnotationPolygon,
        image: ImageGeometry,
        first_pixel: tuple[int, int],
    ) -> AnnotationPolygon:
        """Return an outline in level-0 pixels of `image`; `first_pixel` is from `_first_pixel`."""
        if self.coordinates == MICRONS:
            if image.mpp is None:
                option = hint(python="mpp=…", cli="--mpp")
                raise ImageError(
                    f"{self.path}: the coordinates are in µm, but the pixel size of "
                    f"{image.path} is not known; set it with {option} or in a column 'mpp'"
                )
            return replace(
                outline, rings=tuple(ring / image.mpp + first_pixel for ring in outline.rings)
            )
        if annotations.mpp and image.mpp and abs(image.mpp / annotations.mpp - 1) > _MPP_TOLERANCE:
            raise ImageError(
                f"{self.path}: was made on an image with {annotations.mpp:g} µm per pixel, "
                f"but {image.path} has {image.mpp:g}; use the annotations of this image and "
                "level"
            )
        if self.coordinates == PIXELS and annotations.origin == FIRST_PIXEL:
            return replace(outline, rings=tuple(ring + first_pixel for ring in outline.rings))
        return replace(outline, rings=tuple(ring - image.offset for ring in outline.rings))


def check_outlines_inside(
    path: Path, outlines: Sequence[AnnotationPolygon], image: ImageGeometry
) -> None:
    """Raise ImageError if outlines are outside an image or extend far beyond it.

    Parameters
    ----------
    path : annotation file, for messages
    outlines : outlines in level-0 pixels
    image : image to which the outlines belong
    """
    size = np.array(image.size)
    boxes = [(o.rings[0].min(axis=0), o.rings[0].max(axis=0)) for o in outlines if not o.is_hole]
    outside = [
        (low, high)
        for low, high in boxes
        if (low >= size).any()
        or (high <= 0).any()
        or (low < -_MAX_OVERHANG * size).any()
        or (high > (1 + _MAX_OVERHANG) * size).any()
    ]
    if outside:
        (left, top), (right, bottom) = outside[0]
        advice = hint(
            python="set coordinates=…",
            cli="set --coordinates",
            web="import them on the command line with --coordinates",
        )
        raise ImageError(
            f"{path}: {len(outside)} of {len(boxes)} outlines are outside {image.path} or "
            f"extend far beyond it; one ranges from ({left:.0f}, {top:.0f}) to ({right:.0f}, "
            f"{bottom:.0f}), but the image has {size[0]} x {size[1]} pixels. Check that they "
            "belong to this image and to level 0. If the coordinates are in µm or relative "
            f"to the corner of the slide, {advice}"
        )


def image_stem(path: Path) -> str:
    """Return the name of an annotation file without its suffixes; "" for other types of files."""
    name = path.name
    for ending in _COMPRESSION_SUFFIXES:
        if name.lower().endswith(ending):
            name = name[: -len(ending)]
    known = Path(name).suffix.lower() in FORMATS
    return Path(name).stem if known else ""


@lru_cache(maxsize=100_000)
def _read_offset(image: Path, state: str) -> tuple[int, int]:
    """Return `ImageSource.offset` of an image; `state` is its file key, for the cache."""
    from ..images.source import open_image

    with open_image(image) as source:
        return source.offset


@lru_cache(maxsize=32)
def _read_cached(path: Path, state: str) -> Annotations:
    if not image_stem(path):
        raise ImageError(
            f"{path}: unsupported annotation format {path.suffix or 'none'!r}; supported are "
            f"{' '.join(FORMATS)}, also compressed (.gz)"
        )
    is_compressed = path.suffix.lower() == ".gz"
    read = FORMATS[(Path(path.stem) if is_compressed else path).suffix.lower()]
    return read(path, _read_content(path, is_compressed=is_compressed))


def _read_content(path: Path, *, is_compressed: bool) -> bytes:
    """Return the content of a file, decompressed if it is gzip.

    Raise ImageError if the file is damaged or too large.
    """
    with path.open("rb") as file:
        try:
            unpacked = gzip.GzipFile(fileobj=file) if is_compressed else file
            content = unpacked.read(_MAX_FILE_BYTES + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ImageError(f"{path}: cannot be decompressed ({error}); copy it again") from error
    if len(content) > _MAX_FILE_BYTES:
        raise ImageError(
            f"{path}: larger than {_MAX_FILE_BYTES // 2**20} MiB; export fewer objects"
        )
    return content
