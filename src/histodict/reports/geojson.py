"""Outlines for QuPath: GeoJSON in level-0 pixels.

QuPath reads a FeatureCollection whose features are polygons with
`properties = {"objectType": "annotation" | "detection", "classification": {"name", "color"},
"measurements": {...}}`. Its coordinates count from the slide's own origin, so the offset of a
slide's bounds is added.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from ..pipeline import BLANK, PatchMap
from .files import written_whole
from .overlay import COLOURS


def patch_features(
    patch_map: PatchMap, classes: list[str], offset: tuple[int, int]
) -> list[dict[str, Any]]:
    """One detection per patch on tissue, with its class and margin."""
    features = []
    for row, column in np.argwhere(patch_map.winners != BLANK):
        place = int(patch_map.winners[row, column])
        margin = float(patch_map.margins[row, column, place])
        features.append(
            {
                "type": "Feature",
                "id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"patch {row} {column}")),
                "geometry": {
                    "type": "Polygon",
                    "coordinates": [_ring(patch_map, int(row), int(column), offset)],
                },
                "properties": {
                    "objectType": "detection",
                    "classification": {
                        "name": classes[place],
                        "color": [int(value) for value in COLOURS[place % len(COLOURS)]],
                    },
                    "measurements": {"margin": margin},
                },
            }
        )
    return features


def save_geojson(path: Path, features: list[dict[str, Any]]) -> None:
    with written_whole(path) as partial:
        collection = {"type": "FeatureCollection", "features": features}
        partial.write_text(json.dumps(collection, ensure_ascii=False), encoding="utf-8")


def _ring(patch_map: PatchMap, row: int, column: int, offset: tuple[int, int]) -> list[list[float]]:
    x, y = patch_map.grid.corner(row, column)
    side = patch_map.grid.patch_side
    left, top = x + offset[0], y + offset[1]
    right, bottom = left + side, top + side
    return [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
