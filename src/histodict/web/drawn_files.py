"""Shapes as files: GeoJSON in and out, as QuPath writes it, in level-0 pixels."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..execution.files import atomic_write
from ..execution.texts import pluralize
from ..images.annotations.drawing import ImageGeometry, check_outlines_inside
from ..images.annotations.geojson import read_geojson
from ..images.annotations.outlines import Annotations
from .sheets import MAX_CORNERS, MAX_SHAPES, AnnotationClass, Shape, hex_of
from .strokes import MAX_INTERSECTIONS, Polygon, Size, count_intersections, polygonize

_OWN_PROPERTY = uuid.UUID("6e0c6f52-5a1c-4f0e-9a53-6d6a1f0f7a11")  # shapes keep their id in QuPath
_MAX_NAMED = 200  # letters of a file's name
_MAX_CROSSINGS = 150  # outlines that cross themselves, in a file


@dataclass(frozen=True)
class ImportedAnnotations:
    """What a file holds: outlines with the names of classes, and their colours."""

    found: Annotations
    colours: Mapping[str, str]
    notes: list[str]

    @classmethod
    def read(cls, name: str, data: bytes, image: ImageGeometry) -> ImportedAnnotations:
        """Refuses what is no GeoJSON, or of another image."""
        path = Path(name[-_MAX_NAMED:] or "the file")
        found = read_geojson(path, data)
        found.of()  # refuses what holds no outline
        _check_size(path, found)
        check_outlines_inside(path, found.outlines, image)
        _check_crossings(path, found)
        return cls(found, _colours(json.loads(data.decode("utf-8-sig"))), found.notes())

    @property
    def names(self) -> list[str]:
        return sorted(self.found.names)

    def shapes(self, size: Size) -> Iterator[tuple[str, list[Polygon]]]:
        for outline in self.found.outlines:
            polygons = polygonize(outline.rings, size)
            if polygons:
                yield outline.name, polygons


def _check_size(path: Path, found: Annotations) -> None:
    """Refuse too many outlines or corners before any computation."""
    n_corners = sum(len(ring) for outline in found.outlines for ring in outline.rings)
    if len(found.outlines) > MAX_SHAPES or n_corners > MAX_CORNERS:
        raise ValueError(
            f"{path}: {len(found.outlines)} outlines with {n_corners} corners; the maximum per "
            f"image is {MAX_SHAPES} outlines and {MAX_CORNERS} corners: export fewer objects or "
            "simplify them"
        )


def _check_crossings(path: Path, found: Annotations) -> None:
    """Refuse self-intersecting outlines that would take too long to fill."""
    n = len({id(outline) for outline, *_ in found.crossings})
    n_places = sum(count_intersections(ring) for _, ring, _ in found.crossings[:_MAX_CROSSINGS])
    if n > _MAX_CROSSINGS or n_places > MAX_INTERSECTIONS:
        raise ValueError(
            f"{path}: {pluralize(n, 'self-intersecting outline')}, too many or too complex to "
            "fill: "
            "simplify them in the program that drew them, or export fewer"
        )


def _colours(content: Any) -> dict[str, str]:
    """Of classes by name, as far as the file says; three numbers, or one before QuPath 0.4."""
    if isinstance(content, dict):
        content = content.get("features", [content])
    found = {}
    for feature in content if isinstance(content, list) else ():
        said = (feature.get("properties") or {}).get("classification")
        if not isinstance(said, dict) or not said.get("name"):
            continue
        colour, packed = said.get("color"), said.get("colorRGB")
        if type(packed) is int:
            colour = [packed >> 16 & 255, packed >> 8 & 255, packed & 255]
        if isinstance(colour, list) and len(colour) == 3 and all(map(_is_byte, colour)):
            found[str(said["name"])] = hex_of(colour)
    return found


def _is_byte(value: Any) -> bool:
    return type(value) is int and 0 <= value < 256


def geojson(shapes: Sequence[Shape], classes: Sequence[AnnotationClass]) -> bytes:
    """In ASCII: some versions of QuPath take a file for one in the letters of the system."""
    known = {one.id: one for one in classes}
    features = [_feature(shape, known[shape["label"]]) for shape in shapes]
    text = ",\n".join(json.dumps(feature, separators=(",", ":")) for feature in features)
    return f'{{"type":"FeatureCollection","features":[\n{text}\n]}}\n'.encode("ascii")


def _feature(shape: Shape, own: AnnotationClass) -> dict[str, Any]:
    polygons = [[[*ring, ring[0]] for ring in rings] for rings in shape["polygons"]]
    one = len(polygons) == 1
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(_OWN_PROPERTY, shape["id"])),
        "geometry": {
            "type": "Polygon" if one else "MultiPolygon",
            "coordinates": polygons[0] if one else polygons,
        },
        "properties": {
            "objectType": "annotation",
            "classification": {"name": own.name, "color": own.rgb},
            "metadata": {"drawn with": shape["tool"]},
        },
    }


def snapshot_annotations(folder: Path, image: str, data: bytes) -> Path:
    """A file that stays as it is whatever is drawn from now on: trainings learn from it."""
    path = folder / "drawn" / f"{image}-{hashlib.sha256(data).hexdigest()[:16]}.geojson"
    if not path.is_file():
        with atomic_write(path) as partial:
            partial.write_bytes(data)
    return path
