"""Annotations of an image with undo and redo, classes of a data set, and GeoJSON files.

sheets/IMAGE.json   {"shapes": […], "done": [change, …], "undone": [change, …]}
classes.json        name and colour of each class

A change is a pair (removed shapes, added shapes); undoing it exchanges the two. The undo history is
stored with the shapes. It is limited in size, but has at least the last change. Shapes refer to
their class by id, so that renaming a class does not change them.

Polygons are in level-0 pixels, also in the GeoJSON files, which have the format of QuPath.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import shapely
from numpy.typing import NDArray

from ...annotations.annotation_file import ImageGeometry, check_outlines_inside, read_geojson
from ...annotations.outlines import Annotations, Ring, find_self_intersections, is_too_complex
from ...patches.patch_map import class_rgb
from ...utils.files import atomic_write
from ...utils.text_io import pluralize, write_checked_json
from ..schema import Json
from ..workspace import JsonType, damaged_file_error, is_id, new_id, read_fields, read_json

Polygon = list[Ring]  # the outer ring, then its holes, each (n, 2) of x and y and not closed
Size = tuple[int, int]  # width, height
Box = tuple[NDArray[np.float64], NDArray[np.float64]]  # minimum (x, y) and maximum (x, y)

_N_DECIMALS = 1  # decimals to which corners are rounded
_GRID_STEP = 10.0**-_N_DECIMALS  # of corner coordinates
_MIN_AREA = 1.0  # of a polygon, in pixels
_PATH_TOLERANCE, _BORDER_TOLERANCE = 0.02, 0.01  # of simplification, in radii of the brush
_SEGMENTS_PER_PIECE = 50  # segments of a path that are buffered together
MAX_INTERSECTIONS = 10_000  # of the rings of a shape or a file; GEOS resolves them in about 1 s


def buffer_path(path: NDArray[np.float64], radius: float, size: Size) -> list[Polygon]:
    """Return the polygons that a round brush covers along a path (n, 2), clipped to the image.

    `size` is the (width, height) of the image; lengths are in level-0 pixels. The path is divided
    into parts whose buffers are united, as the buffer of a whole path that often crosses itself
    takes minutes.
    """
    line = shapely.LineString(path if len(path) > 1 else np.repeat(path, 2, axis=0))
    corners = shapely.get_coordinates(shapely.simplify(line, _PATH_TOLERANCE * radius))
    starts = range(0, len(corners) - 1, _SEGMENTS_PER_PIECE)
    pieces = [shapely.LineString(corners[i : i + _SEGMENTS_PER_PIECE + 1]) for i in starts]
    covered = shapely.union_all(shapely.buffer(pieces, radius))
    return _to_polygons(_clip(shapely.simplify(covered, _BORDER_TOLERANCE * radius), size))


def polygonize(rings: Sequence[Ring], size: Size) -> list[Polygon]:
    """Return valid polygons of the outer ring, which may cross itself, minus the holes.

    The corners of a valid polygon inside the image are only rounded. The list is empty if no area
    lies on the image.

    Parameters
    ----------
    rings : outer ring, then the holes
    size : (width, height) of the image, to which the polygons are clipped
    """
    outer, *holes = (_round_ring(ring) for ring in rings)
    if len(outer) < 3:
        return []
    polygon = [outer, *(hole for hole in holes if len(hole) > 2)]
    if sum(map(count_intersections, polygon)) > MAX_INTERSECTIONS:
        raise ValueError("the outline crosses itself too often: draw a simpler one")
    low, high = bounding_box([polygon])
    geometry = shapely.Polygon(outer, polygon[1:])
    if (low >= 0).all() and (high <= size).all() and geometry.is_valid:
        return [polygon]
    return _to_polygons(_clip(_make_valid(geometry), size))


def count_intersections(ring: Ring) -> float:
    """Count self-intersections of a ring up to MAX_INTERSECTIONS + 1; inf if it is too complex."""
    if is_too_complex(ring):
        return np.inf
    return len(find_self_intersections(ring, MAX_INTERSECTIONS + 1))


def subtract(polygons: Sequence[Polygon], subtracted: Sequence[Polygon]) -> list[Polygon] | None:
    """Return `polygons` without the area of `subtracted`; None if the two do not overlap."""
    box = bounding_box(subtracted)
    near = [_boxes_overlap(bounding_box([polygon]), box) for polygon in polygons]
    if not any(near):
        return None
    cutter = shapely.union_all(
        [_make_valid(shapely.Polygon(outer, holes)) for outer, *holes in subtracted]
    )
    unchanged, cut = list[Polygon](), list[Polygon]()
    for polygon, is_near in zip(polygons, near, strict=True):
        geometry = _make_valid(shapely.Polygon(polygon[0], polygon[1:])) if is_near else None
        if geometry is not None and shapely.relate_pattern(geometry, cutter, "T********"):
            cut += _to_polygons(shapely.difference(geometry, cutter, grid_size=_GRID_STEP))
        else:
            unchanged.append(polygon)
    return [*unchanged, *cut] if len(unchanged) < len(polygons) else None


def bounding_box(polygons: Sequence[Polygon]) -> Box:
    """Return the bounding box of polygons: minimum and maximum (x, y)."""
    outer = np.concatenate([rings[0] for rings in polygons])
    return outer.min(axis=0), outer.max(axis=0)


def compute_area(polygons: Sequence[Polygon]) -> float:
    """Return the area of polygons that do not cross themselves, in level-0 pixels."""
    return float(sum(shapely.Polygon(outer, holes).area for outer, *holes in polygons))


def _boxes_overlap(one: Box, other: Box) -> bool:
    (low, high), (low_other, high_other) = one, other
    return bool((low < high_other).all() and (low_other < high).all())


def _round_ring(ring: Ring) -> Ring:
    """Round the points of a ring to `_N_DECIMALS` decimals, and drop consecutive duplicates."""
    ring = np.asarray(np.round(ring, _N_DECIMALS), np.float64)
    return ring[(ring != np.roll(ring, 1, axis=0)).any(axis=1)]


def _make_valid(polygon: Any) -> Any:
    """Return a valid geometry with the area of a polygon, by the non-zero winding rule."""
    if polygon.is_valid:
        return polygon
    return shapely.make_valid(polygon, method="structure", keep_collapsed=False)


def _clip(geometry: Any, size: Size) -> Any:
    return shapely.intersection(geometry, shapely.box(0, 0, *size), grid_size=_GRID_STEP)


def _to_polygons(geometry: Any) -> list[Polygon]:
    """Return the polygons of a Shapely geometry that are not tiny, oriented as in RFC 7946."""
    parts = shapely.orient_polygons(shapely.get_parts(geometry))
    return [
        [shapely.get_coordinates(ring)[:-1] for ring in (part.exterior, *part.interiors)]
        for part in parts
        if part.geom_type == "Polygon" and part.area >= _MIN_AREA
    ]


_MAX_NAME_LENGTH = 60
_MAX_CLASSES = 40
_COLOUR = re.compile("#[0-9a-f]{6}")
_CLASSES_FILE = "classes.json"


@dataclass(frozen=True)
class AnnotationClass:
    """Annotation class of a data set; `colour` is a text #rrggbb."""

    id: str
    name: str
    colour: str

    @property
    def rgb(self) -> list[int]:
        """Colour as three integers from 0 to 255."""
        return [int(self.colour[start : start + 2], 16) for start in (1, 3, 5)]


def read_classes(folder: Path) -> list[AnnotationClass]:
    """Read the classes of a data set, in the order of their creation."""
    path = folder / _CLASSES_FILE
    rows: list[Any] = list(read_json(path, list)) if path.exists() else []
    try:
        classes = [AnnotationClass(**row) for row in rows]
        if not all(is_id(c.id) and _COLOUR.fullmatch(c.colour) and c.name for c in classes):
            raise TypeError("a class is incomplete")
    except TypeError as error:
        raise damaged_file_error(path, str(error)) from error
    return classes


def class_colours(folder: Path) -> dict[str, str]:
    """Read the colours (#rrggbb) of the classes of a data set, by name."""
    return {class_.name: class_.colour for class_ in read_classes(folder)}


def write_classes(folder: Path, classes: Sequence[AnnotationClass]) -> None:
    """Write the classes of a data set."""
    write_checked_json(folder / _CLASSES_FILE, [asdict(class_) for class_ in classes])


def find_class(classes: Sequence[AnnotationClass], class_id: object) -> AnnotationClass:
    """Return the class with this id; raise KeyError if there is none."""
    for class_ in classes:
        if class_.id == class_id:
            return class_
    raise KeyError("the class does not exist; it may have been removed. Reload the page")


def add_class(
    classes: Sequence[AnnotationClass], name: object, colour: object = None
) -> list[AnnotationClass]:
    """Return the classes with a new class, by default in the first unused colour."""
    if len(classes) >= _MAX_CLASSES:
        raise ValueError(f"the maximum is {_MAX_CLASSES} classes. Remove a class first")
    free = _first_unused_colour(classes) if colour is None else _validate_colour(colour)
    return [*classes, AnnotationClass(new_id(), _validate_name(name, classes), free)]


def update_class(
    classes: Sequence[AnnotationClass], class_id: object, body: Mapping[str, Any]
) -> list[AnnotationClass]:
    """Return the classes after a change of the class with this id.

    The values "name" and "colour" in `body` replace those of the class; absent values do not
    change.
    """
    old = find_class(classes, class_id)
    others = [class_ for class_ in classes if class_ is not old]
    name = _validate_name(body["name"], others) if "name" in body else old.name
    colour = _validate_colour(body["colour"]) if "colour" in body else old.colour
    new = replace(old, name=name, colour=colour)
    return [new if class_ is old else class_ for class_ in classes]


def has_name(class_: AnnotationClass, name: str) -> bool:
    """Return whether a class has this name, except for case, spaces and Unicode normalisation."""
    return class_.name.casefold() == _normalized_name(name).casefold()


def _normalized_name(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).split())


def _validate_name(name: object, others: Sequence[AnnotationClass]) -> str:
    if not isinstance(name, str):
        raise ValueError("the name of the class is empty")
    text = _normalized_name(name)
    if not 0 < len(text) <= _MAX_NAME_LENGTH:
        raise ValueError(f"the name of a class must have 1 to {_MAX_NAME_LENGTH} characters")
    invalid = [c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co")]
    if invalid:
        raise ValueError(f"the name of a class cannot contain {invalid[0]!a}: it is invisible")
    for other in others:
        if has_name(other, text):
            raise ValueError(f"the class {other.name!r} already exists: choose another name")
    return text


def _validate_colour(colour: object) -> str:
    text = str(colour).lower()
    if not _COLOUR.fullmatch(text):
        raise ValueError("the colour must have the form #rrggbb")
    return text


def _first_unused_colour(classes: Sequence[AnnotationClass]) -> str:
    taken = {colour.colour for colour in classes}
    # The first class is usually the positive one, which has the second, warm colour everywhere.
    offered = [to_hex(class_rgb(index)) for index in (1, 0, *range(2, _MAX_CLASSES))]
    return next((colour for colour in offered if colour not in taken), offered[len(classes)])


def to_hex(rgb: Sequence[int]) -> str:
    """Return a colour (red, green, blue from 0 to 255) as #rrggbb."""
    return "#" + "".join(f"{value:02x}" for value in rgb)


# --- annotations of an image ----------------------------------------------------------------------


_MAX_UNDO_STEPS = 100
MAX_SHAPES = 5000
MAX_CORNERS = 500_000
_MAX_HISTORY_CORNERS = 200_000  # of the history, which is written with every stroke
_FIELDS: dict[str, JsonType] = {"shapes": list, "done": list, "undone": list}


class Shape(TypedDict):
    """Annotated shape on an image.

    Attributes
    ----------
    id : id of the shape
    label : id of its class
    tool : drawing tool, or "file" if imported
    area : area in level-0 pixels
    polygons : list of polygons, which are lists of rings (the outer ring, then holes), which are
        lists of corners [x, y] in level-0 pixels
    """

    id: str
    label: str
    tool: str
    area: float
    polygons: list[list[list[list[float]]]]


Change = tuple[list[Shape], list[Shape]]  # removed shapes, added shapes
_SHAPE_FIELDS = Shape.__required_keys__


@dataclass(frozen=True)
class AnnotationStore:
    """Shapes of an image, changes that can be undone (latest last), and undone changes."""

    shapes: list[Shape]
    undo_stack: list[Change]
    redo_stack: list[Change]

    @classmethod
    def read(cls, folder: Path, image: str) -> AnnotationStore:
        """Read the annotations of an image (id) from the folder of its data set."""
        path = _annotation_file(folder, image)
        if not path.exists():
            return cls([], [], [])
        content = read_fields(path, _FIELDS)
        changes = [*content["done"], *content["undone"]]
        if not all(isinstance(c, list) and len(c) == 2 for c in changes):
            raise damaged_file_error(path, "a change is incomplete")
        shapes = [content["shapes"], *(part for change in changes for part in change)]
        if not all(
            isinstance(s, dict) and set(s) >= _SHAPE_FIELDS for part in shapes for s in part
        ):
            raise damaged_file_error(path, "a shape is incomplete")
        done, undone = ([(old, new) for old, new in content[name]] for name in ("done", "undone"))
        return cls(content["shapes"], done, undone)

    def write(self, folder: Path, image: str) -> None:
        """Write the annotations of an image (id) to the folder of its data set."""
        content = {"shapes": self.shapes, "done": self.undo_stack, "undone": self.redo_stack}
        write_checked_json(_annotation_file(folder, image), content)

    def with_change(self, removed: Sequence[Shape], added: Sequence[Shape]) -> AnnotationStore:
        """Return a copy without `removed` shapes, with `added` shapes, and with nothing to redo."""
        change = list(removed), list(added)
        shapes = _apply_change(self.shapes, change)
        _check_limits(shapes)
        return AnnotationStore(shapes, _truncate_history([*self.undo_stack, change]), [])

    def undo(self) -> AnnotationStore:
        """Return the annotations before the last change."""
        if not self.undo_stack:
            raise ValueError("there is nothing to undo")
        *done, (removed, added) = self.undo_stack
        shapes = _apply_change(self.shapes, (added, removed))
        return AnnotationStore(shapes, done, [*self.redo_stack, (removed, added)])

    def redo(self) -> AnnotationStore:
        """Return the annotations after redoing the last undone change."""
        if not self.redo_stack:
            raise ValueError("there is nothing to redo")
        *undone, change = self.redo_stack
        shapes = _apply_change(self.shapes, change)
        return AnnotationStore(shapes, [*self.undo_stack, change], undone)

    def find(self, shape_id: object) -> Shape:
        """Return the shape with this id; raise KeyError if there is none."""
        for shape in self.shapes:
            if shape["id"] == shape_id:
                return shape
        raise KeyError("the shape does not exist; it may have been removed. Reload the page")

    @property
    def class_ids(self) -> set[str]:
        """Ids of the classes of all shapes, including those in the history."""
        changes = (part for change in (*self.undo_stack, *self.redo_stack) for part in change)
        return {shape["label"] for part in (self.shapes, *changes) for shape in part}


def _annotation_file(folder: Path, image: str) -> Path:
    if not is_id(image):  # it becomes part of a path
        raise KeyError("the image does not exist")
    return folder / "sheets" / f"{image}.json"


def _apply_change(shapes: Sequence[Shape], change: Change) -> list[Shape]:
    removed, added = change
    removed_ids = {shape["id"] for shape in removed}
    return [*(shape for shape in shapes if shape["id"] not in removed_ids), *added]


def _truncate_history(changes: list[Change]) -> list[Change]:
    """Return the latest changes, as many as the limits permit, and at least one."""
    n_corners = np.cumsum([_count_corners(old) + _count_corners(new) for old, new in changes[::-1]])
    n_last = int(np.searchsorted(n_corners, _MAX_HISTORY_CORNERS, side="right"))
    return changes[-max(1, min(n_last, _MAX_UNDO_STEPS)) :]


def _count_corners(shapes: Sequence[Shape]) -> int:
    return sum(len(ring) for shape in shapes for rings in shape["polygons"] for ring in rings)


def _check_limits(shapes: Sequence[Shape]) -> None:
    if len(shapes) > MAX_SHAPES or _count_corners(shapes) > MAX_CORNERS:
        raise ValueError(
            f"the maximum per image is {MAX_SHAPES} shapes and {MAX_CORNERS} corners: "
            "remove some, or draw larger ones"
        )


def annotated_images(folder: Path) -> list[str]:
    """Return the ids of all images with an annotation file, even if it has no shapes."""
    paths = sorted((folder / "sheets").glob("*.json"))
    return [path.stem for path in paths if is_id(path.stem)]


def last_change_time(folder: Path, image: str) -> int:
    """Return the POSIX time (ns) of the last change of an image's annotations."""
    return _annotation_file(folder, image).stat().st_mtime_ns


def shape_polygons(shape: Shape) -> list[Polygon]:
    """Return the polygons of a shape, with rings as arrays (n, 2)."""
    return [[np.array(ring, float) for ring in rings] for rings in shape["polygons"]]


# Namespace of the ids of shapes in GeoJSON files, which are equal in every export.
_ID_NAMESPACE = uuid.UUID("6e0c6f52-5a1c-4f0e-9a53-6d6a1f0f7a11")
_MAX_FILE_NAME_LENGTH = 200  # characters of a file name in messages
_MAX_INTERSECTING_OUTLINES = 150  # self-intersecting outlines in a file


@dataclass(frozen=True)
class ImportedAnnotations:
    """Outlines of a GeoJSON file, colours (#rrggbb) by class name, and notes for the user."""

    annotations: Annotations
    colours: Mapping[str, str]
    notes: list[str]

    @classmethod
    def read(cls, name: str, data: bytes, image: ImageGeometry) -> ImportedAnnotations:
        """Read outlines for an image from a GeoJSON file with this name and content (`data`).

        Raises
        ------
        ValueError
            If the file is not GeoJSON, has no outlines, is too complex or belongs to another image.
        """
        path = Path(name[-_MAX_FILE_NAME_LENGTH:] or "the file")
        annotations = read_geojson(path, data)
        annotations.select_outlines()  # raises ValueError without outlines
        _check_counts(path, annotations)
        check_outlines_inside(path, annotations.outlines, image)
        _check_intersections(path, annotations)
        colours = _read_colours(json.loads(data.decode("utf-8-sig")))
        return cls(annotations, colours, annotations.notes())

    @property
    def names(self) -> list[str]:
        """Class names in the file, sorted."""
        return sorted(self.annotations.class_counts)

    def shapes(self, size: Size) -> Iterator[tuple[str, list[Polygon]]]:
        """Yield the class name and the polygons of each outline with an area on the image."""
        for outline in self.annotations.outlines:
            polygons = polygonize(outline.rings, size)
            if polygons:
                yield outline.name, polygons


def _check_counts(path: Path, imported: Annotations) -> None:
    """Raise ValueError if a file has too many outlines or corners."""
    n_corners = sum(len(ring) for outline in imported.outlines for ring in outline.rings)
    if len(imported.outlines) > MAX_SHAPES or n_corners > MAX_CORNERS:
        raise ValueError(
            f"{path}: {len(imported.outlines)} outlines with {n_corners} corners; the maximum per "
            f"image is {MAX_SHAPES} outlines and {MAX_CORNERS} corners: export fewer objects or "
            "simplify them"
        )


def _check_intersections(path: Path, imported: Annotations) -> None:
    """Raise ValueError if the outlines of a file have too many self-intersections."""
    n = len({id(outline) for outline, *_ in imported.self_intersections})
    n_places = sum(
        count_intersections(ring)
        for _, ring, _ in imported.self_intersections[:_MAX_INTERSECTING_OUTLINES]
    )
    if n > _MAX_INTERSECTING_OUTLINES or n_places > MAX_INTERSECTIONS:
        raise ValueError(
            f"{path}: {pluralize(n, 'self-intersecting outline')}, too many or too complex to "
            "fill: simplify them in the program they come from, or export fewer"
        )


def _read_colours(content: Any) -> dict[str, str]:
    """Return the colours (#rrggbb) in parsed GeoJSON by class name, in old or new QuPath format."""
    if isinstance(content, dict):
        content = content.get("features", [content])
    colours = {}
    for feature in content if isinstance(content, list) else ():
        classification = (feature.get("properties") or {}).get("classification")
        if not isinstance(classification, dict) or not classification.get("name"):
            continue
        colour, packed = classification.get("color"), classification.get("colorRGB")
        if type(packed) is int:
            colour = [packed >> 16 & 255, packed >> 8 & 255, packed & 255]
        if isinstance(colour, list) and len(colour) == 3 and all(map(_is_byte, colour)):
            colours[str(classification["name"])] = to_hex(colour)
    return colours


def _is_byte(value: Any) -> bool:
    return type(value) is int and 0 <= value < 256


def to_geojson(shapes: Sequence[Shape], classes: Sequence[AnnotationClass]) -> bytes:
    """Return shapes as GeoJSON in ASCII, because QuPath may assume the encoding of the system."""
    class_by_id = {class_.id: class_ for class_ in classes}
    features = [_geojson_feature(shape, class_by_id[shape["label"]]) for shape in shapes]
    text = ",\n".join(json.dumps(feature, separators=(",", ":")) for feature in features)
    return f'{{"type":"FeatureCollection","features":[\n{text}\n]}}\n'.encode("ascii")


def _geojson_feature(shape: Shape, class_: AnnotationClass) -> Json:
    polygons = [[[*ring, ring[0]] for ring in rings] for rings in shape["polygons"]]
    is_single = len(polygons) == 1
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(_ID_NAMESPACE, shape["id"])),
        "geometry": {
            "type": "Polygon" if is_single else "MultiPolygon",
            "coordinates": polygons[0] if is_single else polygons,
        },
        "properties": {
            "objectType": "annotation",
            "classification": {"name": class_.name, "color": class_.rgb},
            "metadata": {"annotated with": shape["tool"]},
        },
    }


def snapshot_annotations(folder: Path, image: str, data: bytes) -> Path:
    """Write GeoJSON `data` to a file that later edits do not change; return its path."""
    path = folder / "drawn" / f"{image}-{hashlib.sha256(data).hexdigest()[:16]}.geojson"
    if not path.is_file():
        with atomic_write(path) as partial:
            partial.write_bytes(data)
    return path
