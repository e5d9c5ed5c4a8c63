"""GeoJSON as QuPath writes it, and as others write it for QuPath.

Where each peculiarity was learnt is in docs/annotations.md.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import ImageError
from .outlines import FIRST_PIXEL, Annotations

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
