"""Outlines for QuPath: GeoJSON in level-0 pixels.

QuPath reads a FeatureCollection whose features are polygons with
`properties = {"objectType": "annotation" | "detection", "classification": {"name", "color"},
"measurements": {...}}`. Its coordinates count from the slide's own origin, so the offset of a
slide's bounds is added.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..execution.files import written_whole
from ..patches.patch_map import COLOURS, PatchMap, Ring
from ..pipeline import Answer, Region


def features(answer: Answer, *, of_regions: bool) -> Iterator[dict[str, Any]]:
    """What there is to draw of an answer: its regions, or its patches."""
    if answer.patch_map is None:
        return iter(())
    if of_regions:
        return region_features(answer.regions, answer.patch_map)
    return patch_features(answer.patch_map)


def patch_features(patch_map: PatchMap) -> Iterator[dict[str, Any]]:
    """One detection per patch on tissue, with its class and margin; a slide has a million."""
    for row, column in map(np.ndarray.tolist, np.argwhere(patch_map.tissue)):
        place = int(patch_map.winners[row, column])
        margin = float(patch_map.margins[row, column, place])
        ring = _shifted(patch_map.patch_ring(row, column), patch_map.offset)
        yield _feature(
            f"patch {row} {column}",
            {"type": "Polygon", "coordinates": [ring]},
            "detection",
            (patch_map.classes[place], place),
            {"margin": margin},
        )


def region_features(regions: list[Region], patch_map: PatchMap) -> Iterator[dict[str, Any]]:
    """One annotation per region, with its number of patches, score and area."""
    for number, region in enumerate(regions):
        polygons = [
            [_shifted(ring, patch_map.offset) for ring in polygon] for polygon in region.polygons
        ]
        measurements = {"patches": region.n_patches, "score": region.score}
        if region.area_um2 is not None:
            measurements["area µm²"] = region.area_um2
        geometry: dict[str, Any] = {"type": "MultiPolygon", "coordinates": polygons}
        if len(polygons) == 1:
            geometry = {"type": "Polygon", "coordinates": polygons[0]}
        label = patch_map.classes[1], 1
        yield _feature(f"region {number}", geometry, "annotation", label, measurements)


def _feature(
    name: str,
    geometry: dict[str, Any],
    kind: str,
    label: tuple[str, int],
    measurements: dict[str, float],
) -> dict[str, Any]:
    """`label`: the class's name, and its place in the list of colours."""
    colour = [int(value) for value in COLOURS[label[1] % len(COLOURS)]]
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(uuid.NAMESPACE_OID, name)),
        "geometry": geometry,
        "properties": {
            "objectType": kind,
            "classification": {"name": label[0], "color": colour},
            "measurements": measurements,
        },
    }


def save_geojson(path: Path, features: Iterable[dict[str, Any]]) -> None:
    """Written one by one: as a whole, the outlines of a slide's patches fill gigabytes."""
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write('{"type": "FeatureCollection", "features": [')
        for place, feature in enumerate(features):
            file.write(",\n" if place else "\n")
            file.write(json.dumps(feature, ensure_ascii=False))
        file.write("\n]}\n")


def _shifted(ring: Ring, offset: tuple[int, int]) -> list[list[float]]:
    return [[x + offset[0], y + offset[1]] for x, y in ring]
