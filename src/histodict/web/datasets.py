"""Data sets that a user has opened: settings, corrections and the index of images.

A correction is a new label for an image, its exclusion, or a rectangle in it with a class. The
files of the data folder are never changed: settings (`about.json`) and corrections
(`corrections.json`) lie in the workspace, and are applied to the manifest.

Each request for a tile looks up its image, and listing thousands of images takes a good part of a
second. The index is therefore kept until the table, or a folder, has changed. For a single image
only the folders on the way to it are checked.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ..datasets.annotated import RegionMask
from ..datasets.folder_layout import FOLDER, FolderEntry, find_images, read_class_folders, walk
from ..datasets.manifest import (
    MANIFEST_NAME,
    ImageRecord,
    Manifest,
    ManifestError,
    from_folder,
    read_manifest,
)
from ..datasets.record import guess_positive_class
from ..images.pixel_size import PixelSize, PixelSizeOption
from ..images.source import open_image
from ..utils.cache import LRUCache
from ..utils.files import atomic_write
from ..utils.text_io import relative_name, truncated_list, write_checked_json
from .annotation.store import class_colours
from .schema import Correction
from .workspace import (
    DamagedFileError,
    DataFolders,
    ForbiddenFileError,
    UserWorkspace,
    damaged_file_error,
    is_id,
    log_once,
    new_id,
    read_fields,
    read_json,
    short_id,
)

_FIELDS: dict[str, Any] = {
    "positive": (str, type(None)),
    "mpp": (int, float, type(None)),
    "learn_from": list,
}
_MIN_MPP, _LARGEST_MPP = 1e-4, 1000.0


@dataclass(frozen=True)
class DatasetSettings:
    """None: nothing was said.

    positive : of two classes the one to be found
    mpp : µm per pixel of images of which neither a table nor the file says it
    learn_from : patients who are learnt from and never kept for testing
    """

    positive: str | None = None
    mpp: float | None = None
    learn_from: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / "about.json"
        if not path.exists():
            return cls()
        found = read_fields(path, _FIELDS)
        if not _are_names(found["learn_from"]):
            raise damaged_file_error(path, "learn_from is wrong")
        return cls(found["positive"], found["mpp"], tuple(found["learn_from"]))

    def write(self, folder: Path) -> None:
        write_checked_json(folder / "about.json", asdict(self))

    def changed(self, body: Mapping[str, Any], manifest: Manifest) -> DatasetSettings:
        """With what a request says; a field that it does not have stays as it is."""
        positive, mpp = body.get("positive", self.positive), body.get("mpp", self.mpp)
        if positive is not None and "positive" in body:
            manifest.with_positive(str(positive))  # refuses what is no class
        if mpp is not None:
            if type(mpp) not in (int, float) or not _MIN_MPP <= mpp < _LARGEST_MPP:
                raise ValueError(
                    "the pixel size must be a number of µm, at least "
                    f"{_MIN_MPP:g} and below {_LARGEST_MPP:g}"
                )
            mpp = float(mpp)
        moved = body.get("learn_from", list(self.learn_from))
        if not _are_names(moved) or (
            "learn_from" in body and not set(moved) <= set(manifest.patients)
        ):
            raise ValueError("learn_from must be patients of this set")
        return DatasetSettings(
            None if positive is None else str(positive), mpp, tuple(sorted(set(moved)))
        )

    def is_set(self, table_mpp: float | None) -> PixelSizeOption:
        """What is said of an image's pixel size outside its file."""
        return PixelSizeOption(default=self.mpp).with_table(table_mpp)


def _are_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def class_to_be_found(classes: Sequence[str], chosen: str | None) -> dict[str, Any] | None:
    """Of two classes, in their order, the one to be found, and how that is known."""
    if len(classes) != 2:
        return None
    if chosen in classes:
        how = "chosen"
    else:
        how = "by its name" if guess_positive_class(classes) else "unknown"
    return {"name": classes[1], "how": how}


# --- data sets -----------------------------------------------------------------------------------


_MAX_LABEL = 4096
_MIN_LABEL = 40
_LONGEST_MASK = 4096
_CORRECTION = Correction.__required_keys__
_CHANGING = threading.Lock()  # one change after another
MASK_CLASSES = ("no region", "region")


@dataclass(frozen=True)
class Dataset:
    """Images under a short name; `folder` holds what the app keeps about them."""

    id: str
    source: Path
    sources: DatasetIndexCache
    listing: DatasetIndex
    folder: Path
    about: DatasetSettings
    is_bare: bool = False  # the labels of its images are left aside, to draw on them

    @property
    def name(self) -> str:
        return name_of(self.source, self.is_bare)

    @property
    def manifest(self) -> Manifest:
        """Its images; of two classes the one to be found is the one that the user chose."""
        return replace(self.listing.manifest, positive=self.about.positive)

    def size_of(self, record: ImageRecord) -> PixelSize:
        """Of an image's pixels, by its table, its file or the user; reads the file's header."""
        return self.about.is_set(record.mpp).at(record.path)

    @property
    def is_labelled(self) -> bool:
        return any(record.label or record.is_mapped for record in self.manifest.records)

    @property
    def colours(self) -> dict[str, str]:
        """Of classes that were made here to draw with, by name; labels have the usual colours."""
        return {} if self.is_labelled else class_colours(self.folder)

    @property
    def set_classes(self) -> list[str]:
        """What a rectangle may be marked as; in a set with masks, as part of a region or not."""
        if any(record.mask for record in self.manifest.records):
            return list(MASK_CLASSES)
        return self.manifest.classes

    def image(self, image_id: str) -> ImageRecord:
        """An image of the set, to be read now: its true place is checked."""
        record = self.listing.by_id.get(image_id)
        if record is None:
            raise KeyError("there is no such image in this data set")
        return self.sources.check(record)

    def corrections(self) -> list[Correction]:
        path = self.folder / "corrections.json"
        found: list[Correction] = list(read_json(path, list)) if path.exists() else []
        if not all(isinstance(c, dict) and set(c) >= _CORRECTION for c in found):
            raise damaged_file_error(path, "a correction is not whole")
        return found


def name_of(source: Path, is_bare: bool) -> str:
    return f"{source.name}{', to draw on' * is_bare}"


def id_of(source: Path, is_bare: bool = False) -> str:
    """The same folder or table is another set where its labels are left aside."""
    return short_id(f"{source}{chr(0) * is_bare}")  # which is no letter of a path


def open_dataset(
    user: UserWorkspace, sources: DatasetIndexCache, source: Path, *, is_bare: bool = False
) -> Dataset:
    """Read a folder or table and remember it; all its files must lie in the data folders."""
    source = sources.folders.check(source)
    dataset = _load(user, sources, source, is_bare=is_bare)
    write_checked_json(dataset.folder / "source.json", str(source))
    return dataset


def find_dataset(
    user: UserWorkspace, sources: DatasetIndexCache, dataset_id: str, image: str | None = None
) -> Dataset:
    """A data set opened before, as its files are now; `image`: only this one need be."""
    source = find_source(user, sources.folders, dataset_id)
    return _load(user, sources, source, image, is_bare=dataset_id == id_of(source, True))


def find_source(user: UserWorkspace, folders: DataFolders, dataset_id: str) -> Path:
    """The folder or table of a data set opened before; its images are not looked at."""
    path = user.folder / "data" / dataset_id / "source.json"
    if not is_id(dataset_id) or not path.is_file():
        raise KeyError("there is no such data set: open it on the data page")
    return folders.check(Path(read_json(path, str)))


def source_names(user: UserWorkspace, folders: DataFolders) -> dict[str, Path]:
    """The data sets opened before whose files may still be read."""
    found = {}
    for path in sorted((user.folder / "data").glob("*/source.json")):
        try:
            source = Path(read_json(path, str))
        except DamagedFileError as error:
            log_once(str(error))
            continue
        if source.exists() and any(source.is_relative_to(f) for f in folders.folders):
            found[path.parent.name] = source
    return found


def _load(
    user: UserWorkspace,
    sources: DatasetIndexCache,
    source: Path,
    image: str | None = None,
    *,
    is_bare: bool,
) -> Dataset:
    dataset_id = id_of(source, is_bare)
    folder = user.folder / "data" / dataset_id
    listing = sources.listing(source, image, is_bare=is_bare)
    return Dataset(
        dataset_id, source, sources, listing, folder, DatasetSettings.read(folder), is_bare
    )


def update_settings(
    dataset: Dataset, body: Mapping[str, Any], known: Manifest | None = None
) -> None:
    """Write down what the user says of the set, beside what was said before.

    `known`: its images with their classes, where these are not their labels.
    """
    with _CHANGING:
        before = DatasetSettings.read(dataset.folder)  # another request may have said more since
        before.changed(body, known or dataset.manifest).write(dataset.folder)


# --- corrections --------------------------------------------------------------------------------


def add_correction(
    dataset: Dataset, image_id: str, label: str | None, box: list[int] | None
) -> None:
    """A new label for the image, or for a box (left, top, right, bottom) in it; an image that
    gets none is left out.
    """
    record = dataset.image(image_id)
    known = dataset.manifest.classes if box is None else dataset.set_classes
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
        write_checked_json(dataset.folder / "corrections.json", kept)


def remove_correction(dataset: Dataset, correction_id: str) -> None:
    with _CHANGING:
        kept = [c for c in dataset.corrections() if c["id"] != correction_id]
        write_checked_json(dataset.folder / "corrections.json", kept)


def _check_box(record: ImageRecord, box: list[int]) -> list[int]:
    with open_image(record.path, record.mpp) as source:
        size = source.size
    box = [min(max(int(x), 0), end) for x, end in zip(box, 2 * size, strict=True)]
    sides = box[2] - box[0], box[3] - box[1]
    if min(sides) < _MIN_LABEL or max(sides) > _MAX_LABEL:
        raise ValueError(
            f"mark between {_MIN_LABEL} and {_MAX_LABEL} pixels of the image on each side; "
            f"this is {sides[0]} x {sides[1]}"
        )
    return box


def training_manifest(dataset: Dataset) -> Manifest:
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


def relabelled_manifest(dataset: Dataset) -> Manifest:
    """The images of the set, their labels as corrected, without those that are left out."""
    labels = {image: record.label for image, record in dataset.listing.by_id.items()}
    told = labels | {c["image"]: c["label"] for c in dataset.corrections() if c["box"] is None}
    records = (
        record if label == record.label else replace(record, label=label)
        for image, record in dataset.listing.by_id.items()
        if (label := told[image]) is not None
    )
    return replace(dataset.manifest, records=tuple(records))


def _cut_out(path: Path, record: ImageRecord, box: list[int]) -> None:
    left, top, right, bottom = box
    with open_image(record.path, record.mpp) as source:
        _write_png(path, source.read(left, top, right - left, bottom - top))


def _paint(path: Path, record: ImageRecord, box: list[int], is_region: bool) -> None:
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
    with atomic_write(path) as partial:
        Image.fromarray(pixels).save(partial, format="PNG")


# --- index of images ------------------------------------------------------------------------------


RECORD_BYTES = 1000  # about what a record takes in memory
_MAX_BYTES = 256 * 2**20
# File systems count time in steps of up to two seconds. What has changed within the last one may
# change once more and look the same: it is listed anew until then.
_STEP = 2.0
READ_ONLY = ": these images have no labels, and are learnt from by what is drawn on them"

State = tuple[int, int, int] | None


@dataclass(frozen=True)
class DatasetIndex:
    """Images in their order and by id, and the files and folders that say which there are.

    names : of the images, by id
    """

    manifest: Manifest
    by_id: dict[str, ImageRecord]
    names: dict[str, str]
    watched: dict[Path, State]
    was_settled: bool  # when it was made: a change from then on shows

    @cached_property
    def described(self) -> bytes:
        """The images as JSON for the page, which asks for them again and again."""
        images = [
            {
                "id": id_,
                "name": self.names[id_],
                "label": record.label,
                "patient": record.patient,
                "masked": record.mask is not None,
            }
            for id_, record in self.by_id.items()
        ]
        return json.dumps(images, separators=(",", ":")).encode("ascii")

    def bare(self) -> DatasetIndex:
        """The same images, as if nobody knew what they show: to be drawn on."""
        by_id = {
            id_: replace(record, label="", mask=None, annotations=None)
            for id_, record in self.by_id.items()
        }
        words = f"{self.manifest.root}: what is known of them is left aside{READ_ONLY}"
        manifest = Manifest(tuple(by_id.values()), (words,), self.manifest.root)
        return DatasetIndex(manifest, by_id, self.names, self.watched, self.was_settled)

    def is_current(self, image: str | None = None) -> bool:
        """Whether the images are still these; or whether the one of this id still is the same."""
        watched = list(self.watched)
        if image in self.by_id:  # folders on the way to it, or the table
            watched = [p for p in self.by_id[image].path.parents if p in self.watched] or watched
        return self.was_settled and all(_state(path) == self.watched[path] for path in watched)


class DatasetIndexCache:
    """Folders and tables that lie in the data folders, as they are now."""

    def __init__(self, folders: DataFolders) -> None:
        self.folders = folders
        self._cache: LRUCache[DatasetIndex] = LRUCache(_MAX_BYTES)

    def listing(
        self, source: Path, image: str | None = None, *, is_bare: bool = False
    ) -> DatasetIndex:
        """The images as they are now; or of which this one is as it is now.

        `is_bare`: their labels, masks and outlines are left aside.
        """

        def read() -> tuple[DatasetIndex, int]:
            found, n_bytes = self._read(source)
            return (found.bare() if is_bare else found), n_bytes

        return self._cache.get((source, is_bare), read, lambda kept: kept.is_current(image))

    def _read(self, source: Path) -> tuple[DatasetIndex, int]:
        """List the images; all must lie in the data folders. Of a folder a link may lead out, which
        is left out and named; a table is refused that asks for what lies elsewhere.
        """
        begun = time.time()
        manifest, watched, links = _list_images(source, self.folders)
        manifest = self._inside(manifest, links)
        names = [manifest.name(record) for record in manifest.records]
        ids = [short_id(name) for name in names]
        by_id = dict(zip(ids, manifest.records, strict=True))
        newest = max(state[1] if state else 0 for state in watched.values())
        was_settled = begun - newest / 1e9 > _STEP
        named = dict(zip(ids, names, strict=True))
        return DatasetIndex(manifest, by_id, named, watched, was_settled), RECORD_BYTES * len(by_id)

    def _inside(self, manifest: Manifest, links: Container[str] | None) -> Manifest:
        """`links`: which files of a folder are; None: nobody has looked, it is a table."""
        is_link = os.path.islink if links is None else links.__contains__
        check, records, outside = self.folders.check_of_many(is_link), [], []
        for record in manifest.records:
            try:
                for path in record.files:
                    check(path)
                records.append(record)
            except ForbiddenFileError as error:
                outside.append((manifest.name(record), error))
        if not outside:
            return manifest
        if not records or links is None:
            raise outside[0][1]
        names = truncated_list([name for name, _ in outside])
        words = f"{manifest.root}: left out, as they lie outside the data folders: {names}"
        return replace(manifest, records=tuple(records), warnings=(*manifest.warnings, words))

    def check(self, record: ImageRecord) -> ImageRecord:
        """The record; refuses an image outside the data folders; ask each time before it is read.

        A link that lay inside when the images were listed may lead elsewhere by now.
        """
        for path in record.files:
            self.folders.check(path)
        return record


def _list_images(
    source: Path, folders: DataFolders
) -> tuple[Manifest, dict[Path, State], Container[str] | None]:
    """A labelled set, or, where labels do not tell two classes apart, its images to look at.

    With them what they depend on, as it was before: a table, or folders whose entries count; and,
    of folders, which files are links.
    """
    table = source / MANIFEST_NAME if source.is_dir() else source
    if table.is_file() or not source.is_dir():
        folders.check(table)
        watched = _watch([table])
        return _from_table(table), watched, None
    watched, below = _walk(source)
    links = {str(entry.path) for entry in below if entry.is_link}
    reason = "there are no folders of two or more classes"
    try:
        manifest = from_folder(source, below)
        if len(manifest.classes) > 1:
            return manifest, watched, links
    except ManifestError as error:
        images, _ = find_images(source, below)
        if not images:
            raise
        if _has_classes(source, below):
            reason = str(error).removeprefix(f"{source}: ")
    return _visible(source, below, reason), watched, links


def _walk(folder: Path) -> tuple[dict[Path, State], list[FolderEntry]]:
    """All that lies below, and the folders there, each as it was before anybody looked into it."""
    watched, below = _watch([folder]), []
    for entry in walk(folder):
        if entry.kind == FOLDER:
            watched[entry.path] = _state(entry.path)
        below.append(entry)
    return watched, below


def _has_classes(folder: Path, below: list[FolderEntry]) -> bool:
    try:
        return bool(read_class_folders(folder, below).locations)
    except ManifestError:  # splits and classes side by side
        return True


def _from_table(table: Path) -> Manifest:
    """With labels or masks; a table that has none at all is of images to look at."""
    try:
        return read_manifest(table)
    except ManifestError:
        manifest = read_manifest(table, labelled=False)
        if any(record.label or record.is_mapped for record in manifest.records):
            raise
    words = f"{table}: there is no column for the label{READ_ONLY}"
    return replace(manifest, warnings=(words,))


def _visible(folder: Path, below: list[FolderEntry], reason: str) -> Manifest:
    images, others = find_images(folder, below)
    records = tuple(ImageRecord(path, "", relative_name(folder, path)) for path in images)
    warnings = [f"{folder}: {reason}{READ_ONLY}"]
    if others:
        names = truncated_list([relative_name(folder, path) for path in others])
        warnings.append(f"{folder}: left out, as no format that is read, or as masks: {names}")
    return Manifest(records, tuple(warnings), folder)


def _watch(paths: list[Path]) -> dict[Path, State]:
    return {path: _state(path) for path in paths}


def _state(path: Path) -> State:
    """Differs after a change of the file, or of a folder's entries; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
