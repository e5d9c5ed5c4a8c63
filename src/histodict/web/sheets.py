"""What is drawn on an image, and the way back: one file per image, whole or absent.

sheets/IMAGE.json   {"shapes": […], "done": [change, …], "undone": [change, …]}

A change is a pair (shapes taken away, shapes added), so that taking it back is the same with the
two exchanged. The way back is kept with the shapes: it is there after a restart, too. It leads back
as many steps as there is room for, and one at least.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from ..execution.sealed import write_sealed
from .strokes import Polygon
from .workspace import damage, is_id, read_fields

_MOST_CHANGES = 100
MOST_SHAPES = 5000
MOST_CORNERS = 500_000
_MOST_KEPT_CORNERS = 200_000  # of all changes together: with each stroke they are written, too
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
class Sheet:
    """The shapes on an image, what was done last, and what was undone."""

    shapes: list[Shape]
    done: list[Change]
    undone: list[Change]

    @classmethod
    def read(cls, folder: Path, image: str) -> Sheet:
        path = _file(folder, image)
        if not path.exists():
            return cls([], [], [])
        found = read_fields(path, _FIELDS)
        changes = [*found["done"], *found["undone"]]
        if not all(isinstance(c, list) and len(c) == 2 for c in changes):
            raise damage(path, "a change is not whole")
        shapes = [found["shapes"], *(part for change in changes for part in change)]
        if not all(isinstance(s, dict) and set(s) >= _SHAPE for part in shapes for s in part):
            raise damage(path, "a shape is not whole")
        done, undone = ([(old, new) for old, new in found[name]] for name in ("done", "undone"))
        return cls(found["shapes"], done, undone)

    def write(self, folder: Path, image: str) -> None:
        content = {"shapes": self.shapes, "done": self.done, "undone": self.undone}
        write_sealed(_file(folder, image), content)

    def changed(self, removed: Sequence[Shape], added: Sequence[Shape]) -> Sheet:
        """After a change; what was undone before cannot be done again."""
        change = list(removed), list(added)
        shapes = _applied(self.shapes, change)
        _check_room(shapes)
        return Sheet(shapes, _with_room([*self.done, change]), [])

    def undo(self) -> Sheet:
        if not self.done:
            raise ValueError("there is nothing to take back")
        *done, (removed, added) = self.done
        shapes = _applied(self.shapes, (added, removed))
        return Sheet(shapes, done, [*self.undone, (removed, added)])

    def redo(self) -> Sheet:
        if not self.undone:
            raise ValueError("there is nothing to do again")
        *undone, change = self.undone
        return Sheet(_applied(self.shapes, change), [*self.done, change], undone)

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


def _with_room(changes: list[Change]) -> list[Change]:
    """The last of them, which take no more than they may; the very last stays whatever it takes."""
    n_corners = np.cumsum([_n_corners(old) + _n_corners(new) for old, new in changes[::-1]])
    n_kept = int(np.searchsorted(n_corners, _MOST_KEPT_CORNERS, side="right"))
    return changes[-max(1, min(n_kept, _MOST_CHANGES)) :]


def _n_corners(shapes: Sequence[Shape]) -> int:
    return sum(len(ring) for shape in shapes for rings in shape["polygons"] for ring in rings)


def _check_room(shapes: Sequence[Shape]) -> None:
    if len(shapes) > MOST_SHAPES or _n_corners(shapes) > MOST_CORNERS:
        raise ValueError(
            f"the maximum per image is {MOST_SHAPES} shapes and {MOST_CORNERS} corners: "
            "remove some, or draw larger ones"
        )


def images_with_sheets(folder: Path) -> list[str]:
    """Images on which something was drawn, by id; it may have been removed since."""
    found = sorted((folder / "sheets").glob("*.json"))
    return [path.stem for path in found if is_id(path.stem)]


def last_change(folder: Path, image: str) -> int:
    """When something was drawn on it last, in nanoseconds."""
    return _file(folder, image).stat().st_mtime_ns


def polygons_of(shape: Shape) -> list[Polygon]:
    return [[np.array(ring, float) for ring in rings] for rings in shape["polygons"]]
