"""Annotation files as each program and version writes them, written by hand.

Sources of the layouts:

QuPath 0.2     object type under `id`; an array of features (QuPathTypeAdapters.java, legacy ids)
QuPath 0.3     `object_type`, `colorRGB`, `parentClass`, measurements as a list (pull requests 698
               and 1071 of qupath/qupath)
QuPath 0.4     `objectType`, `id` is a UUID, `color` of three numbers, `name` or `names`,
               measurements by name (also NaN), `isEllipse`, `childObjects` (pull request 1099,
               QuPathTypeAdapters.java, ROITypeAdapters.java)
QuPath 0.5     as 0.4, with `metadata`
QuPath, all    FeatureCollection only on request; no `classification` without a class, or only its
               name; two decimals (PathIO.GeoJsonExportOptions, ROITypeAdapters.java)
QuPath, MRXS   coordinates begin at the bounds of the slide, except with --no-crop (issues 820 and
               1278 of qupath/qupath)
HALO, MRXS     coordinates begin at the corner of the slide (issue 160 of NKI-AI/dlup)
ASAP           corners have an `Order`; group `None` is no group (test files of NKI-AI/dlup)
ImageScope     `NegativeROA` subtracts; `Type` 1 is a rectangle, 2 an ellipse, with two or four
               corners (files and readers on GitHub; not tried with ImageScope)
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Points = list[list[float]]


def box(left: float, top: float, right: float, bottom: float) -> Points:
    return [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]


def feature(name: str | None, *rings: Points, version: str = "0.6", **more: Any) -> dict[str, Any]:
    """Return a polygon as written by this version of QuPath."""
    geometry = {"type": "Polygon", "coordinates": [list(ring) for ring in rings]}
    properties: dict[str, Any] = {}
    if version == "0.2":
        return {
            "type": "Feature",
            "id": "PathAnnotationObject",
            "geometry": geometry,
            "properties": {"classification": {"name": name, "colorRGB": -3670016}},
        }
    properties["object_type" if version == "0.3" else "objectType"] = "annotation"
    if name is not None:
        properties["classification"] = classification(name, version)
    if version == "0.3":
        properties |= {"isLocked": False, "measurements": []}
    else:
        # Empty measurements are written as NaN, which is not valid JSON.
        properties |= {"isLocked": True, "measurements": {"Area µm^2": float("nan")}}
    if version in ("0.5", "0.6"):
        properties["metadata"] = {"ANNOTATION_DESCRIPTION": "by hand"}
    identity = {} if version == "0.3" else {"id": "0f0d2a5c-1f5e-4a39-9b2a-8f1f0b6f7a10"}
    own = {"type": "Feature", **identity, "geometry": geometry, "properties": properties}
    return own | {"properties": properties | more}


def classification(name: str, version: str) -> dict[str, Any]:
    """ "Tumor: Positive" is a derived class."""
    first, *below = name.split(": ")
    if version == "0.3":
        found: dict[str, Any] = {"name": first, "colorRGB": -3670016}
        for part in below:
            found = {"parentClass": found, "name": part, "colorRGB": -3657166}
        return found
    names = {"names": [first, *below]} if below else {"name": first}
    return names | {"color": [200, 0, 0]}


def write_geojson(path: Path, content: Any) -> Path:
    text = json.dumps(content, ensure_ascii=False).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def collection(*features: dict[str, Any]) -> dict[str, Any]:
    return {"type": "FeatureCollection", "features": list(features)}


def write_asap(path: Path, outlines: Iterable[tuple[str, str, Points]]) -> Path:
    """Write (group, type, points) of each outline; corners are listed in any order."""
    annotated = []
    for number, (group, kind, points) in enumerate(outlines):
        corners = [
            f'<Coordinate Order="{i}" X="{x}" Y="{y}" />' for i, (x, y) in enumerate(points[:-1])
        ]
        head = f'Name="Annotation {number}" Type="{kind}" PartOfGroup="{group}" Color="#F4FA58"'
        inside = "".join(reversed(corners))
        annotated.append(f"<Annotation {head}><Coordinates>{inside}</Coordinates></Annotation>")
    groups = '<AnnotationGroups><Group Name="Tumor" PartOfGroup="None" /></AnnotationGroups>'
    inside = f"<Annotations>{''.join(annotated)}</Annotations>{groups}"
    text = f"<ASAP_Annotations>{inside}</ASAP_Annotations>"
    path.write_text(f'<?xml version="1.0"?>\n{text}', encoding="utf-8")
    return path


def write_imagescope(path: Path, layers: dict[str, list[dict[str, Any]]], mpp: str = "") -> Path:
    """Write the regions of each layer: points, and other attributes by name."""
    text = ""
    for number, (name, regions) in enumerate(layers.items(), start=1):
        inside = ""
        for region in regions:
            own = {"Type": "0", "NegativeROA": "0", "Text": ""} | region
            points = own.pop("points")
            head = " ".join(f'{key}="{value}"' for key, value in own.items())
            corners = "".join(f'<Vertex X="{x}" Y="{y}" Z="0" />' for x, y in points)
            inside += f"<Region {head}><Attributes /><Vertices>{corners}</Vertices></Region>"
        text += (
            f'<Annotation Id="{number}" Name="{name}" LineColor="65280"><Attributes>'
            f'<Attribute Name="Description" Id="0" Value="" /></Attributes>'
            f"<Regions><RegionAttributeHeaders />{inside}</Regions></Annotation>"
        )
    path.write_text(f'<Annotations MicronsPerPixel="{mpp}">{text}</Annotations>', encoding="utf-8")
    return path
