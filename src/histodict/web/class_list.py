"""The classes that a user has made for a data set: name and colour, in `classes.json` beside it.

Shapes name their class by its id, so that a class can be renamed without touching them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..execution.sealed import write_sealed
from ..patches.patch_map import rgb_of
from .workspace import damage, is_id, new_id, read_json

_LONGEST_NAME = 60
_MOST_CLASSES = 40
_COLOUR = re.compile("#[0-9a-f]{6}")
_FILE = "classes.json"


@dataclass(frozen=True)
class DrawnClass:
    """`colour`: as #rrggbb."""

    id: str
    name: str
    colour: str

    @property
    def rgb(self) -> list[int]:
        return [int(self.colour[place : place + 2], 16) for place in (1, 3, 5)]


def read_classes(folder: Path) -> list[DrawnClass]:
    """In the order in which they were made."""
    path = folder / _FILE
    found: list[Any] = list(read_json(path, list)) if path.exists() else []
    try:
        classes = [DrawnClass(**row) for row in found]
        if not all(is_id(c.id) and _COLOUR.fullmatch(c.colour) and c.name for c in classes):
            raise TypeError("a class is not whole")
    except TypeError as error:
        raise damage(path, str(error)) from error
    return classes


def drawn_colours(folder: Path) -> dict[str, str]:
    """By name."""
    return {one.name: one.colour for one in read_classes(folder)}


def write_classes(folder: Path, classes: Sequence[DrawnClass]) -> None:
    write_sealed(folder / _FILE, [asdict(one) for one in classes])


def class_named(classes: Sequence[DrawnClass], class_id: object) -> DrawnClass:
    for one in classes:
        if one.id == class_id:
            return one
    raise KeyError("there is no such class: it may have been removed meanwhile")


def with_class(
    classes: Sequence[DrawnClass], name: object, colour: object = None
) -> list[DrawnClass]:
    """The classes and a new one; without a colour it gets the next of those that are easy to tell
    apart.
    """
    if len(classes) >= _MOST_CLASSES:
        raise ValueError(f"there can be {_MOST_CLASSES} classes at most")
    free = _free_colour(classes) if colour is None else _checked_colour(colour)
    return [*classes, DrawnClass(new_id(), _checked_name(name, classes), free)]


def changed_class(
    classes: Sequence[DrawnClass], class_id: object, body: Mapping[str, Any]
) -> list[DrawnClass]:
    """With another name or colour."""
    old = class_named(classes, class_id)
    others = [one for one in classes if one is not old]
    name = _checked_name(body["name"], others) if "name" in body else old.name
    colour = _checked_colour(body["colour"]) if "colour" in body else old.colour
    new = replace(old, name=name, colour=colour)
    return [new if one is old else one for one in classes]


def is_called(one: DrawnClass, name: str) -> bool:
    """Names that differ in case, in blanks or in how an accent is written are one."""
    return one.name.casefold() == _plain(name).casefold()


def _plain(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).split())


def _checked_name(name: object, others: Sequence[DrawnClass]) -> str:
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


def _free_colour(classes: Sequence[DrawnClass]) -> str:
    taken = {one.colour for one in classes}
    # What one looks for is named first, and is warm everywhere: the second of the colours.
    offered = [hex_of(rgb_of(place)) for place in (1, 0, *range(2, _MOST_CLASSES))]
    return next((one for one in offered if one not in taken), offered[len(classes)])


def hex_of(rgb: Sequence[int]) -> str:
    return "#" + "".join(f"{value:02x}" for value in rgb)
