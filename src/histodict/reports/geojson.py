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

from ..execution.files import written_whole
from ..patches.patch_map import BLANK, COLOURS, PatchMap, Ring
from ..pipeline import Answer, Region


def features(answer: Answer, *, of_regions: bool) -> Iterator[str]:
    """What there is to draw of an answer, as JSON: its regions, or its patches."""
    if answer.patch_map is None:
        return iter(())
    if of_regions:
        return region_features(answer.regions, answer.patch_map)
    return patch_features(answer.patch_map)


def patch_features(patch_map: PatchMap) -> Iterator[str]:
    """One detection per patch on tissue, with its class and margin; a slide has a million.

    All that is the same of a class is written once, and put around every patch's numbers.
    """
    frames = [_frame(name, place) for place, name in enumerate(patch_map.classes)]
    grid, (x, y) = patch_map.grid, patch_map.offset
    side = grid.patch_side
    places, lefts = range(grid.n_columns), [grid.corner(0, n)[0] + x for n in range(grid.n_columns)]
    across = [(_number(left), _number(left + side)) for left in lefts]
    for row, winners in enumerate(patch_map.winners):
        margins = patch_map.margins[row].tolist()
        top = grid.corner(row, 0)[1] + y
        high, low = _number(top), _number(top + side)
        for place, winner in zip(places, winners.tolist(), strict=True):
            if winner == BLANK:
                continue
            left, right = across[place]
            before, between, after = frames[winner]
            yield (
                f"{before}[{left},{high}],[{right},{high}],[{right},{low}],[{left},{low}],"
                f"[{left},{high}]{between}{margins[place][winner]:.5g}{after}"
            )


def _frame(name: str, place: int) -> list[str]:
    """The text of a patch of a class before its ring, between this and the margin, and after it."""
    feature = _feature(
        {"type": "Polygon", "coordinates": [["RING"]]}, "detection", (name, place), {"margin": -1}
    )
    before, rest = _text(feature).split('"RING"', 1)
    return [before, *rest.rsplit("-1", 1)]


def _number(value: float) -> str:
    return _text(int(value) if float(value).is_integer() else value)


def region_features(regions: list[Region], patch_map: PatchMap) -> Iterator[str]:
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
        feature = _feature(geometry, "annotation", label, measurements)
        yield _text(feature | {"id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"region {number}"))})


def _feature(
    geometry: dict[str, Any],
    kind: str,
    label: tuple[str, int],
    measurements: dict[str, float],
) -> dict[str, Any]:
    """`label`: the class's name, and its place in the list of colours."""
    colour = [int(value) for value in COLOURS[label[1] % len(COLOURS)]]
    return {
        "type": "Feature",
        "geometry": geometry,
        "properties": {
            "objectType": kind,
            "classification": {"name": label[0], "color": colour},
            "measurements": measurements,
        },
    }


def save_geojson(path: Path, features: Iterable[str]) -> None:
    """Written one by one: as a whole, the outlines of a slide's patches fill gigabytes."""
    with written_whole(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.write('{"type":"FeatureCollection","features":[\n')
        for place, feature in enumerate(features):
            file.write(f",\n{feature}" if place else feature)
        file.write("\n]}\n")


def _text(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _shifted(ring: Ring, offset: tuple[int, int]) -> list[list[float]]:
    return [[x + offset[0], y + offset[1]] for x, y in ring]
