"""Outlines for QuPath: GeoJSON in level-0 pixels.

QuPath reads a FeatureCollection whose features are polygons with
`properties = {"objectType": "annotation" | "detection", "classification": {"name", "color"},
"measurements": {...}}`. It shows a slide from its bounds on (MRXS), as it is read here: nothing is
added to positions. docs/qupath.md says where this was learnt.

A folder that QuPath opens as a project: the images of a run, the classes and their colours.

    FOLDER/project.qpproj                  the images, each with what was said of it
    FOLDER/classifiers/classes.json        the classes
    FOLDER/data/N/thumbnail.jpg            of image N
    FOLDER/scripts/import-outlines.groovy  brings in the outlines, which lie in ../geojson

Objects lie in files that only QuPath can write (.qpdata, serialised Java); hence the script. What
is there stays: QuPath may have written to the folder since. docs/qupath.md names the sources.
"""

from __future__ import annotations

import gzip
import json
import math
import time
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..images.source import SlideReader, open_image
from ..models import DetectedRegion, Prediction
from ..patches.patch_map import NO_TISSUE, PatchMap, Ring, class_rgb
from ..utils.files import atomic_write

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


_SCRIPT = "import-outlines.groovy"
_KEY = "histodict"  # in an entry's metadata: which files of the run are the image's
_FORMAT = "0.4.0"  # the oldest version of QuPath whose projects look like this
_THUMBNAIL_PX = 800
_OPENSLIDE = "qupath.lib.images.servers.openslide.OpenslideServerBuilder"
_BIO_FORMATS = "qupath.lib.images.servers.bioformats.BioFormatsServerBuilder"

Json = dict[str, Any]


@dataclass(frozen=True)
class ProjectImage:
    """An image of a run.

    key : names its files in the run's folder
    said : what the project's list shows of it, by name
    """

    path: Path
    key: str
    label: dict[str, str]


def save_project(folder: Path, classes: Sequence[str], images: Sequence[ProjectImage]) -> None:
    """Makes the project, or adds to one that is there what it lacks.

    A warning names images that cannot be opened any more, and so are not added.
    """
    place = folder / "project.qpproj"
    project = _read(place, "images") or _new_project()
    entries = {_class_label(entry).get(_KEY): entry for entry in project["images"]}
    for image in images:
        if image.key not in entries:
            try:
                entries[image.key] = _new_entry(folder, image, project["lastID"] + 1)
            except (ValueError, OSError) as error:
                warnings.warn(f"left out of {place}: {error}", stacklevel=3)
                continue
            project["images"].append(entries[image.key])
            project["lastID"] += 1
        entry = entries[image.key]
        entry["metadata"] = _class_label(entry) | image.label
    _save_classes(folder / "classifiers" / "classes.json", classes)
    script = files("histodict.export").joinpath(_SCRIPT).read_text("utf-8")
    _write(folder / "scripts" / _SCRIPT, script)
    now = {"uri": _uri(place), "modifyTimestamp": _milliseconds()}
    _write(place, json.dumps(project | now, indent=2))


def _class_label(entry: Json) -> Json:
    found: Json = entry.get("metadata") or {}
    return found


def _new_project() -> Json:
    return {
        "version": _FORMAT,
        "createTimestamp": _milliseconds(),
        "modifyTimestamp": 0,
        "uri": "",
        "lastID": 0,
        "images": [],
    }


def _new_entry(folder: Path, image: ProjectImage, number: int) -> Json:
    with open_image(image.path) as source:
        is_slide = isinstance(source, SlideReader)
        picture = Image.fromarray(source.thumbnail(min(_THUMBNAIL_PX, max(source.size))))
    with atomic_write(folder / "data" / str(number) / "thumbnail.jpg") as partial:
        picture.save(partial, format="JPEG")
    return {
        "serverBuilder": {
            "builderType": "uri",
            "providerClassName": _OPENSLIDE if is_slide else _BIO_FORMATS,
            "uri": _uri(image.path),
            "args": [] if is_slide else ["--series", "0"],
        },
        "entryID": number,
        "randomizedName": str(uuid.uuid5(uuid.NAMESPACE_OID, image.key)),
        "imageName": image.path.name,
        "metadata": {_KEY: image.key},
    }


def _save_classes(place: Path, classes: Sequence[str]) -> None:
    """Classes that are there keep their colours, which may have been chosen in QuPath."""
    found = _read(place, "pathClasses") or {"pathClasses": []}
    known = {each.get("name") for each in found["pathClasses"]}
    own = [{"name": name, "color": _packed(class_rgb(n))} for n, name in enumerate(classes)]
    found["pathClasses"] += [each for each in own if each["name"] not in known]
    _write(place, json.dumps(found, indent=2))


def _packed(rgb: tuple[int, int, int]) -> int:
    """Opaque, in the 32 bits of Java's whole numbers, which have a sign."""
    red, green, blue = rgb
    return (red << 16 | green << 8 | blue) - (1 << 24)


def _read(place: Path, part: str) -> Json | None:
    """What lies there, with a list under this name; None where there is nothing."""
    if not place.exists():
        return None
    with suppress(ValueError, TypeError, KeyError):
        found = json.loads(place.read_text(encoding="utf-8"))
        if isinstance(found[part], list) and all(isinstance(each, dict) for each in found[part]):
            return found | ({"lastID": _last_id(found)} if part == "images" else {})
    raise ValueError(
        f"{place}: is no part of a QuPath project, or is damaged; nothing was added to it: restore "
        "it (QuPath keeps project.qpproj.backup) or remove its folder, and run this again"
    )


def _last_id(project: Json) -> int:
    return max([int(project.get("lastID", 0)), *(int(e["entryID"]) for e in project["images"])])


def _uri(path: Path) -> str:
    """As Java writes it, with one slash."""
    return path.absolute().as_uri().replace("file:///", "file:/", 1)


def _write(place: Path, text: str) -> None:
    with atomic_write(place) as partial:
        partial.write_text(text, encoding="utf-8")


def _milliseconds() -> int:
    return round(time.time() * 1000)
