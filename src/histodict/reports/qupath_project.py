"""A folder that QuPath opens as a project: the images of a run, the classes and their colours.

    FOLDER/project.qpproj                  the images, each with what was said of it
    FOLDER/classifiers/classes.json        the classes
    FOLDER/data/N/thumbnail.jpg            of image N
    FOLDER/scripts/import-outlines.groovy  brings in the outlines, which lie in ../geojson

Objects lie in files that only QuPath can write (.qpdata, serialised Java); hence the script. What
is there stays: QuPath may have written to the folder since. docs/qupath.md names the sources.
"""

from __future__ import annotations

import json
import time
import uuid
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from ..execution.files import atomic_write
from ..images.readers import SlideReader, open_image
from ..patches.patch_map import class_rgb

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
    entries = {_label(entry).get(_KEY): entry for entry in project["images"]}
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
        entry["metadata"] = _label(entry) | image.label
    _save_classes(folder / "classifiers" / "classes.json", classes)
    script = files("histodict.reports").joinpath(_SCRIPT).read_text("utf-8")
    _write(folder / "scripts" / _SCRIPT, script)
    now = {"uri": _uri(place), "modifyTimestamp": _milliseconds()}
    _write(place, json.dumps(project | now, indent=2))


def _label(entry: Json) -> Json:
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
