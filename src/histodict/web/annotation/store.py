"""Annotations of an image with undo and redo, and the classes of a data set.

sheets/IMAGE.json   {"shapes": […], "done": [change, …], "undone": [change, …]}
classes.json        name and colour of each class

A change is a pair (removed shapes, added shapes); undoing it exchanges the two. The undo history is
stored with the shapes and survives a restart. Its length is limited by its size, with at least one
step. Shapes refer to their class by id, so that renaming a class does not touch them.

Geometry of what users draw on an image: polygons in level-0 pixels.

Shapes as files: GeoJSON in and out, as QuPath writes it, in level-0 pixels.
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
from ...annotations.outlines import Annotations, Ring, find_self_intersections, is_tangled
from ...patches.patch_map import class_rgb
from ...utils.files import atomic_write
from ...utils.text_io import pluralize, write_checked_json
from ..workspace import damaged_file_error, is_id, new_id, read_fields, read_json

Polygon = list[Ring]  # the outer ring, then its holes, each (n, 2) of x and y and not closed
Size = tuple[int, int]
Box = tuple[NDArray[np.float64], NDArray[np.float64]]  # least and greatest x and y

_DIGITS = 1  # of corners, in pixels
_GRID = 10.0**-_DIGITS
_MIN_AREA = 1.0  # of a piece that is left over
_PATH_TOLERANCE, _BORDER_TOLERANCE = 0.02, 0.01  # of the radius of a brush
_PIECE = 50  # sides of a path that are buffered together
MAX_INTERSECTIONS = 10_000  # of the rings of a shape or a file; GEOS resolves them in about 1 s


def buffer_path(path: NDArray[np.float64], radius: float, size: Size) -> list[Polygon]:
    """Return what a round brush covers along a path (n, 2), inside an image of this size.

    The path is buffered in pieces, which are united: a single buffer of a path that often crosses
    itself takes minutes.
    """
    line = shapely.LineString(path if len(path) > 1 else np.repeat(path, 2, axis=0))
    corners = shapely.get_coordinates(shapely.simplify(line, _PATH_TOLERANCE * radius))
    starts = range(0, len(corners) - 1, _PIECE)
    pieces = [shapely.LineString(corners[start : start + _PIECE + 1]) for start in starts]
    painted = shapely.union_all(shapely.buffer(pieces, radius))
    return _polygons_of(_inside(shapely.simplify(painted, _BORDER_TOLERANCE * radius), size))


def polygonize(rings: Sequence[Ring], size: Size) -> list[Polygon]:
    """Return what the first ring encloses, also where it crosses itself, less the other rings.

    A valid polygon keeps its corners. The list is empty if there is no area on the image.
    """
    outer, *holes = (_tidied(ring) for ring in rings)
    if len(outer) < 3:
        return []
    polygon = [outer, *(hole for hole in holes if len(hole) > 2)]
    if sum(map(count_intersections, polygon)) > MAX_INTERSECTIONS:
        raise ValueError("the line crosses itself too often: draw a simpler one")
    low, high = box_of([polygon])
    drawn = shapely.Polygon(outer, polygon[1:])
    if (low >= 0).all() and (high <= size).all() and drawn.is_valid:
        return [polygon]
    return _polygons_of(_inside(_valid(drawn), size))


def count_intersections(ring: Ring) -> float:
    """Return how often a ring crosses itself, counted up to more than MAX_INTERSECTIONS."""
    if is_tangled(ring):
        return np.inf
    return len(find_self_intersections(ring, MAX_INTERSECTIONS + 1))


def subtract(polygons: Sequence[Polygon], taken: Sequence[Polygon]) -> list[Polygon] | None:
    """Subtract polygons from others; None if they do not overlap."""
    near = [_meet(box_of([polygon]), box_of(taken)) for polygon in polygons]
    if not any(near):
        return None
    cutter = shapely.union_all([_valid(shapely.Polygon(outer, holes)) for outer, *holes in taken])
    kept, cut = list[Polygon](), list[Polygon]()
    for polygon, is_near in zip(polygons, near, strict=True):
        before = _valid(shapely.Polygon(polygon[0], polygon[1:])) if is_near else None
        if before is not None and shapely.relate_pattern(before, cutter, "T********"):
            cut += _polygons_of(shapely.difference(before, cutter, grid_size=_GRID))
        else:
            kept.append(polygon)
    return [*kept, *cut] if len(kept) < len(polygons) else None


def box_of(polygons: Sequence[Polygon]) -> Box:
    """Return the corners around polygons, the least and the greatest x and y."""
    outer = np.concatenate([rings[0] for rings in polygons])
    return outer.min(axis=0), outer.max(axis=0)


def area(polygons: Sequence[Polygon]) -> float:
    """Return the area of polygons that do not cross themselves, in level-0 pixels."""
    return float(sum(shapely.Polygon(outer, holes).area for outer, *holes in polygons))


def _meet(one: Box, other: Box) -> bool:
    (low, high), (low_other, high_other) = one, other
    return bool((low < high_other).all() and (low_other < high).all())


def _tidied(ring: Ring) -> Ring:
    """Round to the grid, and drop points that repeat the one before."""
    ring = np.asarray(np.round(ring, _DIGITS), np.float64)
    return ring[(ring != np.roll(ring, 1, axis=0)).any(axis=1)]


def _valid(polygon: Any) -> Any:
    """Return a valid geometry of all that is enclosed, by the non-zero winding rule."""
    if polygon.is_valid:
        return polygon
    return shapely.make_valid(polygon, method="structure", keep_collapsed=False)


def _inside(geometry: Any, size: Size) -> Any:
    return shapely.intersection(geometry, shapely.box(0, 0, *size), grid_size=_GRID)


def _polygons_of(geometry: Any) -> list[Polygon]:
    """Return the polygons of a geometry; outer rings have a positive area, as RFC 7946 asks."""
    parts = shapely.orient_polygons(shapely.get_parts(geometry))
    return [
        [shapely.get_coordinates(ring)[:-1] for ring in (part.exterior, *part.interiors)]
        for part in parts
        if part.geom_type == "Polygon" and part.area >= _MIN_AREA
    ]


_LONGEST_NAME = 60
_MAX_CLASSES = 40
_COLOUR = re.compile("#[0-9a-f]{6}")
_FILE = "classes.json"


@dataclass(frozen=True)
class AnnotationClass:
    """`colour`: as #rrggbb."""

    id: str
    name: str
    colour: str

    @property
    def rgb(self) -> list[int]:
        return [int(self.colour[place : place + 2], 16) for place in (1, 3, 5)]


def read_classes(folder: Path) -> list[AnnotationClass]:
    """In the order in which they were made."""
    path = folder / _FILE
    found: list[Any] = list(read_json(path, list)) if path.exists() else []
    try:
        classes = [AnnotationClass(**row) for row in found]
        if not all(is_id(c.id) and _COLOUR.fullmatch(c.colour) and c.name for c in classes):
            raise TypeError("a class is not whole")
    except TypeError as error:
        raise damaged_file_error(path, str(error)) from error
    return classes


def class_colours(folder: Path) -> dict[str, str]:
    """By name."""
    return {one.name: one.colour for one in read_classes(folder)}


def write_classes(folder: Path, classes: Sequence[AnnotationClass]) -> None:
    write_checked_json(folder / _FILE, [asdict(one) for one in classes])


def class_named(classes: Sequence[AnnotationClass], class_id: object) -> AnnotationClass:
    for one in classes:
        if one.id == class_id:
            return one
    raise KeyError("there is no such class: it may have been removed meanwhile")


def with_class(
    classes: Sequence[AnnotationClass], name: object, colour: object = None
) -> list[AnnotationClass]:
    """The classes and a new one; without a colour it gets the next of those that are easy to tell
    apart.
    """
    if len(classes) >= _MAX_CLASSES:
        raise ValueError(f"there can be {_MAX_CLASSES} classes at most")
    free = _free_colour(classes) if colour is None else _checked_colour(colour)
    return [*classes, AnnotationClass(new_id(), _checked_name(name, classes), free)]


def changed_class(
    classes: Sequence[AnnotationClass], class_id: object, body: Mapping[str, Any]
) -> list[AnnotationClass]:
    """With another name or colour."""
    old = class_named(classes, class_id)
    others = [one for one in classes if one is not old]
    name = _checked_name(body["name"], others) if "name" in body else old.name
    colour = _checked_colour(body["colour"]) if "colour" in body else old.colour
    new = replace(old, name=name, colour=colour)
    return [new if one is old else one for one in classes]


def is_called(one: AnnotationClass, name: str) -> bool:
    """Names that differ in case, in blanks or in how an accent is written are one."""
    return one.name.casefold() == _plain(name).casefold()


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).split())


def _checked_name(name: object, others: Sequence[AnnotationClass]) -> str:
    if not isinstance(name, str):
        raise ValueError("a class needs a name")
    text = _plain(name)
    if not 0 < len(text) <= _LONGEST_NAME:
        raise ValueError(f"a class's name has from 1 to {_LONGEST_NAME} letters")
    odd = [letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Co")]
    if odd:
        raise ValueError(f"a class's name cannot hold {odd[0]!a}: it could not be read")
    for one in others:
        if is_called(one, text):
            raise ValueError(f"there is a class {one.name!r} already: take another name")
    return text


def _checked_colour(colour: object) -> str:
    text = str(colour).lower()
    if not _COLOUR.fullmatch(text):
        raise ValueError("a colour is written as #rrggbb")
    return text


def _free_colour(classes: Sequence[AnnotationClass]) -> str:
    taken = {one.colour for one in classes}
    # What one looks for is named first, and is warm everywhere: the second of the colours.
    offered = [hex_of(class_rgb(place)) for place in (1, 0, *range(2, _MAX_CLASSES))]
    return next((one for one in offered if one not in taken), offered[len(classes)])


def hex_of(rgb: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in rgb)


# --- annotations of an image ---------------------------------------------------------------------


_MAX_CHANGES = 100
MAX_SHAPES = 5000
MAX_CORNERS = 500_000
_MAX_KEPT_CORNERS = 200_000  # of all changes together: with each stroke they are written, too
_FIELDS: dict[str, Any] = {"shapes": list, "done": list, "undone": list}


class Shape(TypedDict):
    """`polygons`: of rings, the outer one and its holes, of corners [x, y] in level-0 pixels.

    `label`: a class's id; `tool`: what it was drawn with; `area`: in pixels.
    """

    id: str
    label: str
    tool: str
    area: float
    polygons: list[list[list[list[float]]]]


Change = tuple[list[Shape], list[Shape]]
_SHAPE = Shape.__required_keys__


@dataclass(frozen=True)
class AnnotationStore:
    """The shapes on an image, what was done last, and what was undone."""

    shapes: list[Shape]
    done: list[Change]
    undone: list[Change]

    @classmethod
    def read(cls, folder: Path, image: str) -> AnnotationStore:
        path = _file(folder, image)
        if not path.exists():
            return cls([], [], [])
        found = read_fields(path, _FIELDS)
        changes = [*found["done"], *found["undone"]]
        if not all(isinstance(c, list) and len(c) == 2 for c in changes):
            raise damaged_file_error(path, "a change is not whole")
        shapes = [found["shapes"], *(part for change in changes for part in change)]
        if not all(isinstance(s, dict) and set(s) >= _SHAPE for part in shapes for s in part):
            raise damaged_file_error(path, "a shape is not whole")
        done, undone = ([(old, new) for old, new in found[name]] for name in ("done", "undone"))
        return cls(found["shapes"], done, undone)

    def write(self, folder: Path, image: str) -> None:
        content = {"shapes": self.shapes, "done": self.done, "undone": self.undone}
        write_checked_json(_file(folder, image), content)

    def changed(self, removed: Sequence[Shape], added: Sequence[Shape]) -> AnnotationStore:
        """After a change; what was undone before cannot be done again."""
        change = list(removed), list(added)
        shapes = _applied(self.shapes, change)
        _check_limits(shapes)
        return AnnotationStore(shapes, _within_limits([*self.done, change]), [])

    def undo(self) -> AnnotationStore:
        if not self.done:
            raise ValueError("there is nothing to take back")
        *done, (removed, added) = self.done
        shapes = _applied(self.shapes, (added, removed))
        return AnnotationStore(shapes, done, [*self.undone, (removed, added)])

    def redo(self) -> AnnotationStore:
        if not self.undone:
            raise ValueError("there is nothing to do again")
        *undone, change = self.undone
        return AnnotationStore(_applied(self.shapes, change), [*self.done, change], undone)

    def find(self, shape_id: object) -> Shape:
        for shape in self.shapes:
            if shape["id"] == shape_id:
                return shape
        raise KeyError("there is no such shape: it may have been removed meanwhile")

    @property
    def labels(self) -> set[str]:
        """Classes of what is drawn, and of what could come back."""
        changes = (part for change in (*self.done, *self.undone) for part in change)
        return {shape["label"] for part in (self.shapes, *changes) for shape in part}


def _file(folder: Path, image: str) -> Path:
    if not is_id(image):  # it becomes part of a path
        raise KeyError("there is no such image")
    return folder / "sheets" / f"{image}.json"


def _applied(shapes: Sequence[Shape], change: Change) -> list[Shape]:
    removed, added = change
    gone = {shape["id"] for shape in removed}
    return [*(shape for shape in shapes if shape["id"] not in gone), *added]


def _within_limits(changes: list[Change]) -> list[Change]:
    """The last of them, which take no more than they may; the very last stays whatever it takes."""
    n_corners = np.cumsum([_n_corners(old) + _n_corners(new) for old, new in changes[::-1]])
    n_kept = int(np.searchsorted(n_corners, _MAX_KEPT_CORNERS, side="right"))
    return changes[-max(1, min(n_kept, _MAX_CHANGES)) :]


def _n_corners(shapes: Sequence[Shape]) -> int:
    return sum(len(ring) for shape in shapes for rings in shape["polygons"] for ring in rings)


def _check_limits(shapes: Sequence[Shape]) -> None:
    if len(shapes) > MAX_SHAPES or _n_corners(shapes) > MAX_CORNERS:
        raise ValueError(
            f"the maximum per image is {MAX_SHAPES} shapes and {MAX_CORNERS} corners: "
            "remove some, or draw larger ones"
        )


def annotated_images(folder: Path) -> list[str]:
    """Images on which something was drawn, by id; it may have been removed since."""
    found = sorted((folder / "sheets").glob("*.json"))
    return [path.stem for path in found if is_id(path.stem)]


def last_change(folder: Path, image: str) -> int:
    """When something was drawn on it last, in nanoseconds."""
    return _file(folder, image).stat().st_mtime_ns


def polygons_of(shape: Shape) -> list[Polygon]:
    return [[np.array(ring, float) for ring in rings] for rings in shape["polygons"]]


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
