"""Data sets that a user has opened, and what the user corrected in them.

A correction is a new label for an image, that it is left out, or a rectangle in it with a class.
The files of the data folder stay as they are: corrections live in the workspace and are applied to
the manifest.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..execution.files import written_whole
from ..execution.sealed import write_sealed
from ..images.manifest import Manifest, Record
from ..images.masks import RegionMask
from ..images.pixel_size import PixelSize
from ..images.readers import open_image
from .about import About
from .class_list import drawn_colours
from .data_sources import DataSources, Listing
from .folders import DataFolders
from .travel import Correction
from .workspace import (
    DamagedFileError,
    User,
    damage,
    is_id,
    new_id,
    read_json,
    say_once,
    short_id,
)

_LONGEST_MARK = 4096
_SHORTEST_MARK = 40
_LONGEST_MASK = 4096
_CORRECTION = Correction.__required_keys__
_CHANGING = threading.Lock()  # one change after another
MASK_CLASSES = ("no region", "region")


@dataclass(frozen=True)
class Dataset:
    """Images under a short name; `folder` holds what the app keeps about them."""

    id: str
    source: Path
    sources: DataSources
    listing: Listing
    folder: Path
    about: About
    is_bare: bool = False  # the labels of its images are left aside, to draw on them

    @property
    def name(self) -> str:
        return name_of(self.source, self.is_bare)

    @property
    def manifest(self) -> Manifest:
        """Its images; of two classes the one to be found is the one that the user chose."""
        return replace(self.listing.manifest, positive=self.about.positive)

    def size_of(self, record: Record) -> PixelSize:
        """Of an image's pixels, by its table, its file or the user; reads the file's header."""
        return self.about.given(record.mpp).at(record.path)

    @property
    def is_labelled(self) -> bool:
        return any(record.label or record.is_mapped for record in self.manifest.records)

    @property
    def colours(self) -> dict[str, str]:
        """Of classes that were made here to draw with, by name; labels have the usual colours."""
        return {} if self.is_labelled else drawn_colours(self.folder)

    @property
    def mark_classes(self) -> list[str]:
        """What a rectangle may be marked as; in a set with masks, as part of a region or not."""
        if any(record.mask for record in self.manifest.records):
            return list(MASK_CLASSES)
        return self.manifest.classes

    def image(self, image_id: str) -> Record:
        """An image of the set, to be read now: its true place is checked."""
        record = self.listing.by_id.get(image_id)
        if record is None:
            raise KeyError("there is no such image in this data set")
        return self.sources.check(record)

    def corrections(self) -> list[Correction]:
        path = self.folder / "corrections.json"
        found: list[Correction] = list(read_json(path, list)) if path.exists() else []
        if not all(isinstance(c, dict) and set(c) >= _CORRECTION for c in found):
            raise damage(path, "a correction is not whole")
        return found


def name_of(source: Path, is_bare: bool) -> str:
    return f"{source.name}{', to draw on' * is_bare}"


def id_of(source: Path, is_bare: bool = False) -> str:
    """The same folder or table is another set where its labels are left aside."""
    return short_id(f"{source}{chr(0) * is_bare}")  # which is no letter of a path


def open_dataset(
    user: User, sources: DataSources, source: Path, *, is_bare: bool = False
) -> Dataset:
    """Read a folder or table and remember it; all its files must lie in the data folders."""
    source = sources.folders.check(source)
    dataset = _load(user, sources, source, is_bare=is_bare)
    write_sealed(dataset.folder / "source.json", str(source))
    return dataset


def find_dataset(
    user: User, sources: DataSources, dataset_id: str, image: str | None = None
) -> Dataset:
    """A data set opened before, as its files are now; `image`: only this one need be."""
    source = find_source(user, sources.folders, dataset_id)
    return _load(user, sources, source, image, is_bare=dataset_id == id_of(source, True))


def find_source(user: User, folders: DataFolders, dataset_id: str) -> Path:
    """The folder or table of a data set opened before; its images are not looked at."""
    path = user.folder / "data" / dataset_id / "source.json"
    if not is_id(dataset_id) or not path.is_file():
        raise KeyError("there is no such data set: open it on the data page")
    return folders.check(Path(read_json(path, str)))


def known_sources(user: User, folders: DataFolders) -> dict[str, Path]:
    """The data sets opened before whose files may still be read."""
    found = {}
    for path in sorted((user.folder / "data").glob("*/source.json")):
        try:
            source = Path(read_json(path, str))
        except DamagedFileError as error:
            say_once(str(error))
            continue
        if source.exists() and any(source.is_relative_to(f) for f in folders.folders):
            found[path.parent.name] = source
    return found


def _load(
    user: User,
    sources: DataSources,
    source: Path,
    image: str | None = None,
    *,
    is_bare: bool,
) -> Dataset:
    dataset_id = id_of(source, is_bare)
    folder = user.folder / "data" / dataset_id
    listing = sources.listing(source, image, is_bare=is_bare)
    return Dataset(dataset_id, source, sources, listing, folder, About.read(folder), is_bare)


def say_of(dataset: Dataset, body: Mapping[str, Any], known: Manifest | None = None) -> None:
    """Write down what the user says of the set, beside what was said before.

    `known`: its images with their classes, where these are not their labels.
    """
    with _CHANGING:
        before = About.read(dataset.folder)  # another request may have said more since
        before.changed(body, known or dataset.manifest).write(dataset.folder)


# --- corrections --------------------------------------------------------------------------------


def add_correction(
    dataset: Dataset, image_id: str, label: str | None, box: list[int] | None
) -> None:
    """A new label for the image, or for a box (left, top, right, bottom) in it; an image that
    gets none is left out.
    """
    record = dataset.image(image_id)
    known = dataset.manifest.classes if box is None else dataset.mark_classes
    is_left_out = label is None and box is None
    if label not in known and not is_left_out:
        raise ValueError(f"the class {label!r} is not among {known}")
    box = box and _check_box(record, box)
    with _CHANGING:
        kept = dataset.corrections()
        if box is None:
            kept = [c for c in kept if c["image"] != image_id or c["box"] is not None]
        if box is not None or label != record.label:
            name = dataset.manifest.name(record)
            kept.append(Correction(id=new_id(), image=image_id, name=name, label=label, box=box))
        write_sealed(dataset.folder / "corrections.json", kept)


def remove_correction(dataset: Dataset, correction_id: str) -> None:
    with _CHANGING:
        kept = [c for c in dataset.corrections() if c["id"] != correction_id]
        write_sealed(dataset.folder / "corrections.json", kept)


def _check_box(record: Record, box: list[int]) -> list[int]:
    with open_image(record.path, record.mpp) as source:
        size = source.size
    box = [min(max(int(x), 0), end) for x, end in zip(box, 2 * size, strict=True)]
    sides = box[2] - box[0], box[3] - box[1]
    if min(sides) < _SHORTEST_MARK or max(sides) > _LONGEST_MARK:
        raise ValueError(
            f"mark between {_SHORTEST_MARK} and {_LONGEST_MARK} pixels of the image on each side; "
            f"this is {sides[0]} x {sides[1]}"
        )
    return box


def corrected(dataset: Dataset) -> Manifest:
    """The manifest to learn from: labels as corrected, marked regions as masks or cut-outs.

    Where an image has a mask a marked rectangle is painted into it, as region or as none. Without
    masks it becomes an image of its own, of the same patient.
    """
    records = dict(dataset.listing.by_id)
    for record in records.values():  # they are read by the worker, which knows no data folders
        dataset.sources.check(record)
    further = []
    for correction in dataset.corrections():
        image, label, box = correction["image"], correction["label"], correction["box"]
        mark = dataset.folder / "marks" / f"{correction['id']}.png"
        if image not in records:  # the file has gone since
            continue
        if label is None:
            del records[image]
        elif box is None:
            records[image] = replace(records[image], label=label)
        elif records[image].mask is not None:
            _paint(mark, records[image], box, label == MASK_CLASSES[1])
            records[image] = replace(records[image], mask=mark)
        else:
            if not mark.is_file():
                _cut_out(mark, records[image], box)
            # The cut-out is a PNG, which says nothing of its pixels: the image does.
            mpp = dataset.size_of(records[image]).mpp
            further.append(replace(records[image], path=mark, label=label, mpp=mpp))
    return replace(dataset.manifest, records=(*records.values(), *further))


def relabelled(dataset: Dataset) -> Manifest:
    """The images of the set, their labels as corrected, without those that are left out."""
    labels = {image: record.label for image, record in dataset.listing.by_id.items()}
    told = labels | {c["image"]: c["label"] for c in dataset.corrections() if c["box"] is None}
    records = (
        record if label == record.label else replace(record, label=label)
        for image, record in dataset.listing.by_id.items()
        if (label := told[image]) is not None
    )
    return replace(dataset.manifest, records=tuple(records))


def _cut_out(path: Path, record: Record, box: list[int]) -> None:
    left, top, right, bottom = box
    with open_image(record.path, record.mpp) as source:
        _write_png(path, source.read(left, top, right - left, bottom - top))


def _paint(path: Path, record: Record, box: list[int], is_region: bool) -> None:
    """A copy of the image's mask with the box painted."""
    with open_image(record.path, record.mpp) as source:
        size = source.size
    assert record.mask is not None
    region = RegionMask.read(record.mask, size).region
    factor = max(1, -(-max(region.shape) // _LONGEST_MASK))
    region = region[::factor, ::factor].copy()
    scale = region.shape[1] / size[0], region.shape[0] / size[1]
    left, right = (round(x * scale[0]) for x in box[::2])
    top, bottom = (round(y * scale[1]) for y in box[1::2])
    region[top:bottom, left:right] = is_region
    _write_png(path, region.astype(np.uint8) * 255)


def _write_png(path: Path, pixels: NDArray[np.uint8]) -> None:
    with written_whole(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")
