"""Annotations of an image with undo and redo, and the classes of a data set.

sheets/IMAGE.json   {"shapes": […], "done": [change, …], "undone": [change, …]}
classes.json        name and colour of each class

A change is a pair (removed shapes, added shapes); undoing it exchanges the two. The undo history is
stored with the shapes and survives a restart. Its length is limited by its size, with at least one
step. Shapes refer to their class by id, so that renaming a class does not touch them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ..execution.sealed import write_checked_json
from ..patches.patch_map import class_rgb
from .strokes import Polygon
from .workspace import damaged_file_error, is_id, new_id, read_fields, read_json

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
