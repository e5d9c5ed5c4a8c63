"""XML as ASAP, ImageScope and HALO write it; which of them it was, the first element tells."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from ..errors import ImageError
from .outlines import SLIDE_CORNER, Annotations

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
