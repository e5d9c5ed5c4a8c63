"""GeoJSON outlines and projects for QuPath.

QuPath reads a FeatureCollection whose features are polygons in level-0 pixels, with
`properties = {"objectType": "annotation" | "detection", "classification": {"name", "color"},
"measurements": {...}}`. QuPath and this package both measure positions from the bounds of a slide
(MRXS), so that no offset is added.

A project contains the images of a run, the classes and their colours:

    FOLDER/project.qpproj                  images with their predictions
    FOLDER/classifiers/classes.json        classes
    FOLDER/data/N/thumbnail.jpg            thumbnail of image N
    FOLDER/scripts/import-outlines.groovy  script that imports the outlines in ../geojson

Only QuPath can write its object files (.qpdata, serialised Java), which makes the script
necessary. Existing entries are kept, as QuPath may have changed them.
tests/export/test_qupath_project.py lists the sources.
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

_AREA_NAME = json.dumps("area µm²")


@dataclass(frozen=True)
class GeoJSONOptions:
    """Options of the output for QuPath.

    Attributes
    ----------
    outline_patches : whether to outline each patch instead of connected patches of the same class
    is_compressed : whether files are compressed with gzip; QuPath 0.4 and later reads these
    with_project : whether a project of all images is written
    """

    outline_patches: bool = False
    is_compressed: bool = False
    with_project: bool = False

    @property
    def suffix(self) -> str:
        """Suffix of the GeoJSON files."""
        return ".geojson.gz" if self.is_compressed else ".geojson"

    @property
    def fingerprint(self) -> list[bool]:
        """Options that change the GeoJSON file of an image."""
        return [self.outline_patches, self.is_compressed]


def geojson_features(
    prediction: Prediction, *, outline_regions: bool, outline_patches: bool = False
) -> Iterator[str]:
    """Yield the GeoJSON features of a prediction.

    Parameters
    ----------
    prediction : prediction of an image
    outline_regions : whether to outline the detected regions instead of the areas of each class
    outline_patches : whether to outline each patch; takes precedence over `outline_regions`
    """
    if prediction.patch_map is None:
        return iter(())
    if outline_patches:
        return patch_features(prediction.patch_map)
    if outline_regions:
        return region_features(prediction.regions, prediction.patch_map)
    return area_features(prediction.patch_map)


def score_name(class_name: str) -> str:
    """Return the QuPath measurement name of a class score.

    The value is the margin of a patch, or the mean margin of an area.
    """
    return f"{class_name}: score"


def usage_name(concept: str) -> str:
    """Return the QuPath measurement name of the usage of a concept.

    The value of an area is the fraction of its patches that use the concept.
    """
    return f"{concept}: use"


def patch_features(patch_map: PatchMap) -> Iterator[str]:
    """Yield each patch on tissue as a GeoJSON detection, with its class scores and concepts.

    A slide may have a million patches. The text common to a class is formatted once.
    """
    templates = [_patch_template(name, index) for index, name in enumerate(patch_map.classes)]
    template = ",".join(f"{_format_text(score_name(name))}:%.5g" for name in patch_map.classes)
    grid, side = patch_map.grid, patch_map.grid.patch_side
    lefts = [grid.corner(0, column)[0] for column in range(grid.n_columns)]
    across = [(_round(left), _round(patch_map.clip(left + side, 0, side))) for left in lefts]
    for row, predicted in enumerate(patch_map.predicted_classes):
        top = grid.corner(row, 0)[1]
        high, low = _round(top), _round(patch_map.clip(top + side, 1, side))
        scores, is_finite = patch_map.margins[row].tolist(), np.isfinite(patch_map.margins[row])
        all_finite = is_finite.all(axis=1).tolist()
        uses = [(name, used[row].tolist()) for name, used in patch_map.concepts.items()]
        for index in np.flatnonzero(predicted != NO_TISSUE).tolist():
            left, right = across[index]
            ring = left, high, right, high, right, low, left, low, left, high
            margins = tuple(scores[index])
            values = (
                template % margins
                if all_finite[index]
                else _format_scores(patch_map.classes, margins)
            )
            if uses:
                values = ",".join(
                    filter(None, [values, _format_usages({n: u[index] for n, u in uses})])
                )
            yield templates[predicted[index]] % (*ring, values)


def _patch_template(name: str, class_index: int) -> str:
    """Return a %-format of the GeoJSON features of patches of a class.

    The values are ten ring coordinates, and the measurements as text.
    """
    ring = ",".join(["[%s,%s]"] * 5)
    label = _classification(name, class_index).replace("%", "%%")
    return _feature(f'{{"type":"Polygon","coordinates":[[{ring}]]}}', "detection", label, "%s")


def _format_text(name: str) -> str:
    return _ascii_json(name).replace("%", "%%")


def area_features(patch_map: PatchMap) -> Iterator[str]:
    """Yield each area of connected patches of one class as a GeoJSON detection.

    Measurements are the mean class scores, the size and the usage of concepts.
    """
    grid = patch_map.grid
    across, down = ([_round(at) for at in lines] for lines in patch_map.cell_lines())

    def to_json(ring: NDArray[np.int32]) -> str:
        return ",".join([f"[{across[x]},{down[y]}]" for x, y in ring.tolist()])

    for class_index, name in enumerate(patch_map.classes):
        label = _classification(name, class_index)
        for area in patch_map.areas(class_index):
            geometry = _geometry([[to_json(ring) for ring in polygon] for polygon in area.polygons])
            area_px = area.n_patches * grid.step**2
            measurements = _format_measurements(
                patch_map, area.margins, area.n_patches, area_px, area.concept_usage
            )
            yield _feature(geometry, "detection", label, measurements)


def region_features(regions: list[DetectedRegion], patch_map: PatchMap) -> Iterator[str]:
    """Yield each detected region as a GeoJSON annotation of the positive (second) class."""
    label = _classification(patch_map.classes[1], 1)
    for region in regions:
        scores = [-region.score, region.score]
        sizes = region.n_patches, region.area_px
        measurements = _format_measurements(patch_map, scores, *sizes, region.concept_usage)
        rings = [[_format_ring(ring) for ring in polygon] for polygon in region.polygons]
        yield _feature(_geometry(rings), "annotation", label, measurements)


def _format_measurements(
    patch_map: PatchMap,
    scores: Sequence[float],
    n_patches: int,
    area_px: float,
    usage: Mapping[str, float],
) -> str:
    parts = [
        _format_scores(patch_map.classes, scores),
        _format_usages(usage),
        f'"patches":{n_patches}',
    ]
    if patch_map.mpp:
        parts.append(f"{_AREA_NAME}:{area_px * patch_map.mpp**2:.7g}")
    return ",".join(filter(None, parts))


def _format_scores(classes: Sequence[str], scores: Sequence[float]) -> str:
    """Format the finite scores as measurements; JSON has no infinity and no NaN."""
    pairs = zip(classes, scores, strict=True)
    return ",".join(f"{_ascii_json(score_name(n))}:{s:.5g}" for n, s in pairs if math.isfinite(s))


def _format_usages(usage: Mapping[str, float]) -> str:
    return ",".join(
        f"{_ascii_json(usage_name(name))}:{float(fraction):.5g}" for name, fraction in usage.items()
    )


def _format_ring(ring: Ring) -> str:
    return ",".join([f"[{_round(x)},{_round(y)}]" for x, y in ring])


def _geometry(polygons: list[list[str]]) -> str:
    """Return a GeoJSON Polygon or, for several polygons, MultiPolygon.

    Each polygon is a list of its rings, formatted as coordinates.
    """
    shapes = [f"[[{'],['.join(rings)}]]" for rings in polygons]
    if len(shapes) == 1:
        return f'{{"type":"Polygon","coordinates":{shapes[0]}}}'
    return f'{{"type":"MultiPolygon","coordinates":[{",".join(shapes)}]}}'


def _classification(name: str, class_index: int) -> str:
    """Return the classification of an object as JSON; the index of the class gives the colour."""
    return _ascii_json({"name": name, "color": class_rgb(class_index)})


def _feature(geometry: str, kind: str, label: str, measurements: str) -> str:
    return (
        f'{{"type":"Feature","geometry":{geometry},"properties":{{"objectType":"{kind}",'
        f'"classification":{label},"measurements":{{{measurements}}}}}}}'
    )


def save_geojson(path: Path, features: Iterable[str]) -> None:
    """Write features to a GeoJSON file one by one, to save memory."""
    with atomic_write(path) as partial, _open_output(partial) as file:
        file.write(b'{"type":"FeatureCollection","features":[\n')
        for index, feature in enumerate(features):
            file.write(f",\n{feature}".encode() if index else feature.encode())
        file.write(b"\n]}\n")


@contextmanager
def _open_output(path: Path) -> Iterator[IO[bytes]]:
    """Return a context that yields a file for writing, compressed if the suffix is .gz.

    Compressed files contain no name and time, so that equal content gives equal bytes.
    """
    with path.open("wb") as file:
        if path.suffix != ".gz":
            yield file
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as compressed:
            yield compressed  # type: ignore[misc]


def _ascii_json(content: Any) -> str:
    """Return JSON text in ASCII, as QuPath may read files in the encoding of the system."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _round(value: float) -> float:
    """Round to two decimals; return whole numbers as int, without a decimal point in JSON."""
    return int(value) if value == int(value) else round(value, 2)


_SCRIPT_NAME = "import-outlines.groovy"
_METADATA_KEY = "histodict"  # metadata key of an entry: key of the image's files in the run
_PROJECT_VERSION = "0.4.0"  # oldest version of QuPath with this project format
_THUMBNAIL_PX = 800
_OPENSLIDE = "qupath.lib.images.servers.openslide.OpenslideServerBuilder"
_BIO_FORMATS = "qupath.lib.images.servers.bioformats.BioFormatsServerBuilder"

Json = dict[str, Any]


@dataclass(frozen=True)
class ProjectImage:
    """Image of a run, to be added to a project.

    Attributes
    ----------
    path : image
    key : name of its files in the results folder
    metadata : metadata shown in the image list of the project
    """

    path: Path
    key: str
    metadata: dict[str, str]


def save_project(folder: Path, classes: Sequence[str], images: Sequence[ProjectImage]) -> None:
    """Create a QuPath project, or add missing images and classes to an existing one.

    Images that cannot be opened are left out with a warning.

    Parameters
    ----------
    folder : folder of the project
    classes : classes of the model
    images : images of the run
    """
    path = folder / "project.qpproj"
    project = _read_json(path, "images") or _new_project()
    entries = {_entry_metadata(entry).get(_METADATA_KEY): entry for entry in project["images"]}
    for image in images:
        if image.key not in entries:
            try:
                entries[image.key] = _new_entry(folder, image, project["lastID"] + 1)
            except (ValueError, OSError) as error:
                warnings.warn(f"not added to {path}: {error}", stacklevel=3)
                continue
            project["images"].append(entries[image.key])
            project["lastID"] += 1
        entry = entries[image.key]
        entry["metadata"] = _entry_metadata(entry) | image.metadata
    _save_classes(folder / "classifiers" / "classes.json", classes)
    script = files("histodict.export").joinpath(_SCRIPT_NAME).read_text("utf-8")
    _write_text(folder / "scripts" / _SCRIPT_NAME, script)
    update = {"uri": _uri(path), "modifyTimestamp": _now_in_ms()}
    _write_text(path, json.dumps(project | update, indent=2))


def _entry_metadata(entry: Json) -> Json:
    metadata: Json = entry.get("metadata") or {}
    return metadata


def _new_project() -> Json:
    return {
        "version": _PROJECT_VERSION,
        "createTimestamp": _now_in_ms(),
        "modifyTimestamp": 0,
        "uri": "",
        "lastID": 0,
        "images": [],
    }


def _new_entry(folder: Path, image: ProjectImage, number: int) -> Json:
    with open_image(image.path) as source:
        is_slide = isinstance(source, SlideReader)
        thumbnail = Image.fromarray(source.thumbnail(min(_THUMBNAIL_PX, max(source.size))))
    with atomic_write(folder / "data" / str(number) / "thumbnail.jpg") as partial:
        thumbnail.save(partial, format="JPEG")
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
        "metadata": {_METADATA_KEY: image.key},
    }


def _save_classes(path: Path, classes: Sequence[str]) -> None:
    """Add missing classes to a file; others keep their colours, which may be edited in QuPath."""
    content = _read_json(path, "pathClasses") or {"pathClasses": []}
    known = {entry.get("name") for entry in content["pathClasses"]}
    new = [{"name": name, "color": _java_rgb(class_rgb(n))} for n, name in enumerate(classes)]
    content["pathClasses"] += [entry for entry in new if entry["name"] not in known]
    _write_text(path, json.dumps(content, indent=2))


def _java_rgb(rgb: tuple[int, int, int]) -> int:
    """Return an opaque colour as a signed 32-bit integer of Java."""
    red, green, blue = rgb
    return (red << 16 | green << 8 | blue) - (1 << 24)


def _read_json(path: Path, list_name: str) -> Json | None:
    """Return the content of a JSON file of a project; None if the file is missing.

    The entry `list_name` must be a list of objects; otherwise the file is damaged and raises
    ValueError.
    """
    if not path.exists():
        return None
    with suppress(ValueError, TypeError, KeyError):
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content[list_name], list) and all(
            isinstance(entry, dict) for entry in content[list_name]
        ):
            return content | ({"lastID": _last_id(content)} if list_name == "images" else {})
    raise ValueError(
        f"{path}: is damaged or not part of a QuPath project; nothing was added. Restore the "
        "file (from QuPath's project.qpproj.backup) or remove its folder, and run the command "
        "again"
    )


def _last_id(project: Json) -> int:
    return max([int(project.get("lastID", 0)), *(int(e["entryID"]) for e in project["images"])])


def _uri(path: Path) -> str:
    """Return a file URI as Java writes it, with one slash."""
    return path.absolute().as_uri().replace("file:///", "file:/", 1)


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")


def _now_in_ms() -> int:
    return round(time.time() * 1000)
