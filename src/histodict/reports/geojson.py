"""Outlines for QuPath: GeoJSON in level-0 pixels.

QuPath reads a FeatureCollection whose features are polygons with
`properties = {"objectType": "annotation" | "detection", "classification": {"name", "color"},
"measurements": {...}}`. It shows a slide from its bounds on (MRXS), as it is read here: nothing is
added to positions. docs/qupath.md says where this was learnt.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..execution.files import atomic_write
from ..patches.patch_map import NO_TISSUE, PatchMap, Ring, class_rgb
from ..pipeline import DetectedRegion, Prediction

_AREA = json.dumps("area µm²")


@dataclass(frozen=True)
class GeoJSONOptions:
    """What is written for QuPath.

    of_patches : every patch on its own, instead of areas of neighbours of one class
    gzipped : outlines compressed, which QuPath reads from 0.4 on
    with_project : a project of all images, too
    """

    of_patches: bool = False
    gzipped: bool = False
    with_project: bool = False

    @property
    def ending(self) -> str:
        """Of the outlines' names."""
        return ".geojson.gz" if self.gzipped else ".geojson"

    @property
    def form(self) -> list[bool]:
        """What decides an image's files."""
        return [self.of_patches, self.gzipped]


def geojson_features(
    answer: Prediction, *, of_regions: bool, of_patches: bool = False
) -> Iterator[str]:
    """What there is to draw of an answer, as JSON: its patches, its regions, or areas of a class"""
    if answer.patch_map is None:
        return iter(())
    if of_patches:
        return patch_features(answer.patch_map)
    if of_regions:
        return region_features(answer.regions, answer.patch_map)
    return area_features(answer.patch_map)


def score_name(class_name: str) -> str:
    """The measurement of a class: margin of a patch, or mean of an area's."""
    return f"{class_name}: score"


def usage_column(concept: str) -> str:
    """The measurement of a named concept: whether a patch uses it, or the share of an area's."""
    return f"{concept}: use"


def patch_features(patch_map: PatchMap) -> Iterator[str]:
    """One detection per patch on tissue, with each class's score and which named concepts it uses;
    a slide has a million.

    All that is the same of a class is written once, and filled in for every patch.
    """
    texts = [_patch_text(name, place) for place, name in enumerate(patch_map.classes)]
    measured = ",".join(f"{_escaped(score_name(name))}:%.5g" for name in patch_map.classes)
    grid, side = patch_map.grid, patch_map.grid.patch_side
    lefts = [grid.corner(0, column)[0] for column in range(grid.n_columns)]
    across = [(_short(left), _short(patch_map.clip(left + side, 0, side))) for left in lefts]
    for row, winners in enumerate(patch_map.predicted_classes):
        top = grid.corner(row, 0)[1]
        high, low = _short(top), _short(patch_map.clip(top + side, 1, side))
        scores, is_finite = patch_map.margins[row].tolist(), np.isfinite(patch_map.margins[row])
        all_finite = is_finite.all(axis=1).tolist()
        uses = [(name, used[row].tolist()) for name, used in patch_map.concepts.items()]
        for place in np.flatnonzero(winners != NO_TISSUE).tolist():
            left, right = across[place]
            ring = left, high, right, high, right, low, left, low, left, high
            own = tuple(scores[place])
            known = measured % own if all_finite[place] else _scores(patch_map.classes, own)
            if uses:
                known = ",".join(
                    filter(None, [known, _usage_measurements({n: u[place] for n, u in uses})])
                )
            yield texts[winners[place]] % (*ring, known)


def _patch_text(name: str, place: int) -> str:
    """A patch of a class, with ten numbers of its ring and its measurements to be filled in."""
    ring = ",".join(["[%s,%s]"] * 5)
    label = _label(name, place).replace("%", "%%")
    return _feature(f'{{"type":"Polygon","coordinates":[[{ring}]]}}', "detection", label, "%s")


def _escaped(name: str) -> str:
    return _text(name).replace("%", "%%")


def area_features(patch_map: PatchMap) -> Iterator[str]:
    """One detection per area of neighbours of one class, with the mean of each class's scores."""
    grid = patch_map.grid
    across, down = ([_short(at) for at in lines] for lines in patch_map.cell_lines())

    def written(ring: NDArray[np.int32]) -> str:
        return ",".join([f"[{across[x]},{down[y]}]" for x, y in ring.tolist()])

    for place, name in enumerate(patch_map.classes):
        label = _label(name, place)
        for area in patch_map.areas(place):
            geometry = _geometry([[written(ring) for ring in each] for each in area.polygons])
            area_px = area.n_patches * grid.step**2
            measured = _measured(patch_map, area.margins, area.n_patches, area_px, area.atom_usage)
            yield _feature(geometry, "detection", label, measured)


def region_features(regions: list[DetectedRegion], patch_map: PatchMap) -> Iterator[str]:
    """One annotation per region: of two classes, of which it is the second."""
    label = _label(patch_map.classes[1], 1)
    for region in regions:
        scores = [-region.score, region.score]
        sizes = region.n_patches, region.area_px
        measured = _measured(patch_map, scores, *sizes, region.atom_usage)
        rings = [[_ring(ring) for ring in polygon] for polygon in region.polygons]
        yield _feature(_geometry(rings), "annotation", label, measured)


def _measured(
    patch_map: PatchMap,
    scores: Sequence[float],
    n_patches: int,
    area_px: float,
    use: Mapping[str, float],
) -> str:
    known = [_scores(patch_map.classes, scores), _usage_measurements(use), f'"patches":{n_patches}']
    if patch_map.mpp:
        known.append(f"{_AREA}:{area_px * patch_map.mpp**2:.7g}")
    return ",".join(filter(None, known))


def _scores(classes: Sequence[str], scores: Sequence[float]) -> str:
    """Without what is no number: JSON has no word for it."""
    known = zip(classes, scores, strict=True)
    return ",".join(f"{_text(score_name(n))}:{s:.5g}" for n, s in known if math.isfinite(s))


def _usage_measurements(use: Mapping[str, float]) -> str:
    return ",".join(
        f"{_text(usage_column(name))}:{float(share):.5g}" for name, share in use.items()
    )


def _ring(ring: Ring) -> str:
    return ",".join([f"[{_short(x)},{_short(y)}]" for x, y in ring])


def _geometry(polygons: list[list[str]]) -> str:
    """Of polygons whose rings are written."""
    shapes = [f"[[{'],['.join(rings)}]]" for rings in polygons]
    if len(shapes) == 1:
        return f'{{"type":"Polygon","coordinates":{shapes[0]}}}'
    return f'{{"type":"MultiPolygon","coordinates":[{",".join(shapes)}]}}'


def _label(name: str, place: int) -> str:
    """Of a class, whose place is that of its colour."""
    return _text({"name": name, "color": class_rgb(place)})


def _feature(geometry: str, kind: str, label: str, measured: str) -> str:
    return (
        f'{{"type":"Feature","geometry":{geometry},"properties":{{"objectType":"{kind}",'
        f'"classification":{label},"measurements":{{{measured}}}}}}}'
    )


def save_geojson(path: Path, features: Iterable[str]) -> None:
    """Written one by one: as a whole, the outlines of a slide's patches fill gigabytes."""
    with atomic_write(path) as partial, _opened(partial) as file:
        file.write(b'{"type":"FeatureCollection","features":[\n')
        for place, feature in enumerate(features):
            file.write(f",\n{feature}".encode() if place else feature.encode())
        file.write(b"\n]}\n")


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """Compressed if the name says so; without name and time, so that the same has the same bytes"""
    with path.open("wb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
            yield compressed  # type: ignore[misc]


def _text(content: Any) -> str:
    """In ASCII: some versions of QuPath take a file for one in the letters of the system."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _short(value: float) -> float:
    """A whole number without its point; else to a hundredth of a pixel, as QuPath writes it."""
    return int(value) if value == int(value) else round(value, 2)
