"""Data sets that a user has opened: settings, corrections and the index of images.

A correction is a new label for an image, its exclusion, or a rectangle in it with a class. Settings
(`about.json`) and corrections (`corrections.json`) are stored in the workspace and applied to the
manifest; files in the data folders are never changed.

Every request for a tile looks up its image, and listing thousands of images can take a second. The
index is cached until the table or a folder changes. For one image, only its folders are checked.
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
from .schema import Correction, Json
from .workspace import (
    DamagedFileError,
    DataFolders,
    ForbiddenFileError,
    JsonType,
    UserWorkspace,
    damaged_file_error,
    is_id,
    new_id,
    read_fields,
    read_json,
    short_id,
    warn_once,
)

_FIELDS: dict[str, JsonType] = {
    "positive": (str, type(None)),
    "mpp": (int, float, type(None)),
    "learn_from": list,
}
_MIN_MPP, _MAX_MPP = 1e-4, 1000.0


@dataclass(frozen=True)
class DatasetSettings:
    """Settings of a data set by the user.

    Attributes
    ----------
    positive : positive class, if there are two classes; None if not chosen
    mpp : µm per pixel of images whose table and file give none; None if not set
    learn_from : patients that are used for training only, never for testing
    """

    positive: str | None = None
    mpp: float | None = None
    learn_from: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the settings from the folder of a data set."""
        path = folder / "about.json"
        if not path.exists():
            return cls()
        fields = read_fields(path, _FIELDS)
        if not _is_text_list(fields["learn_from"]):
            raise damaged_file_error(path, "learn_from is not a list of patients")
        return cls(fields["positive"], fields["mpp"], tuple(fields["learn_from"]))

    def write(self, folder: Path) -> None:
        """Write the settings to the folder of a data set."""
        write_checked_json(folder / "about.json", asdict(self))

    def with_changes(self, body: Mapping[str, Any], manifest: Manifest) -> DatasetSettings:
        """Return a copy with the settings in a request body, validated against a manifest."""
        positive, mpp = body.get("positive", self.positive), body.get("mpp", self.mpp)
        if positive is not None and "positive" in body:
            manifest.with_positive(str(positive))  # checks the class
        if mpp is not None:
            if type(mpp) not in (int, float) or not _MIN_MPP <= mpp < _MAX_MPP:
                raise ValueError(
                    "the pixel size must be a number of µm, at least "
                    f"{_MIN_MPP:g} and below {_MAX_MPP:g}"
                )
            mpp = float(mpp)
        learn_from = body.get("learn_from", list(self.learn_from))
        if not _is_text_list(learn_from) or (
            "learn_from" in body and not set(learn_from) <= set(manifest.patients)
        ):
            raise ValueError("learn_from must contain patients of this data set")
        return DatasetSettings(
            None if positive is None else str(positive), mpp, tuple(sorted(set(learn_from)))
        )

    def pixel_size_option(self, table_mpp: float | None) -> PixelSizeOption:
        """Return the pixel size option of an image; `table_mpp` is µm per pixel in its table."""
        return PixelSizeOption(default=self.mpp).with_table_mpp(table_mpp)


def _is_text_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def positive_class_to_json(classes: Sequence[str], chosen: str | None) -> Json | None:
    """Return name and origin of the positive class as JSON; None unless there are two classes."""
    if len(classes) != 2:
        return None
    if chosen in classes:
        origin = "chosen"
    else:
        origin = "by its name" if guess_positive_class(classes) else "unknown"
    return {"name": classes[1], "how": origin}


# --- data sets ------------------------------------------------------------------------------------


_MAX_BOX_SIDE = 4096
_MIN_BOX_SIDE = 40
_MAX_MASK_SIDE = 4096
_CORRECTION_FIELDS = Correction.__required_keys__
_WRITE_LOCK = threading.Lock()  # serialises changes
MASK_CLASSES = ("no region", "region")


@dataclass(frozen=True)
class Dataset:
    """Data set that a user has opened: a folder or table of images, with settings."""

    id: str
    source: Path  # folder or table of the images
    indexes: DatasetIndexCache  # cache with the indexes of all data sets of the server
    index: DatasetIndex  # index of this data set
    folder: Path  # folder of settings and corrections, in the workspace
    settings: DatasetSettings
    ignores_labels: bool = False  # whether it was opened without labels, to annotate the images

    @property
    def name(self) -> str:
        """Name of the data set."""
        return dataset_name(self.source, self.ignores_labels)

    @property
    def manifest(self) -> Manifest:
        """Manifest of the images, with the positive class chosen by the user."""
        return replace(self.index.manifest, positive=self.settings.positive)

    def pixel_size(self, record: ImageRecord) -> PixelSize:
        """Return the pixel size of an image, from its table, its file or the user's setting."""
        return self.settings.pixel_size_option(record.mpp).resolve(record.path)

    @property
    def is_labelled(self) -> bool:
        """Whether any image has a label, a mask or annotations."""
        return any(record.label or record.has_regions for record in self.manifest.records)

    @property
    def class_colours(self) -> dict[str, str]:
        """Colours (#rrggbb) of annotation classes by name; empty for labelled images."""
        return {} if self.is_labelled else class_colours(self.folder)

    @property
    def correction_classes(self) -> list[str]:
        """Classes for labelled rectangles: `MASK_CLASSES` if images have masks, or else labels."""
        if any(record.mask for record in self.manifest.records):
            return list(MASK_CLASSES)
        return self.manifest.classes

    def find_image(self, image_id: str) -> ImageRecord:
        """Return the record of the image with this id, after a check of its path."""
        record = self.index.by_id.get(image_id)
        if record is None:
            raise KeyError("the image does not exist in this data set")
        return self.indexes.check_record(record)

    def corrections(self) -> list[Correction]:
        """Return the corrections by the user."""
        path = self.folder / "corrections.json"
        found: list[Correction] = list(read_json(path, list)) if path.exists() else []
        if not all(isinstance(c, dict) and set(c) >= _CORRECTION_FIELDS for c in found):
            raise damaged_file_error(path, "a correction is incomplete")
        return found


def dataset_name(source: Path, ignores_labels: bool) -> str:
    """Return the displayed name of the data set of a folder or table."""
    return f"{source.name}{', without labels' * ignores_labels}"


def make_dataset_id(source: Path, ignores_labels: bool = False) -> str:
    """Return the id of a data set, which differs for a folder that is opened without its labels."""
    return short_id(f"{source}{chr(0) * ignores_labels}")  # NUL cannot occur in a path


def open_dataset(
    user: UserWorkspace, indexes: DatasetIndexCache, source: Path, *, ignores_labels: bool = False
) -> Dataset:
    """Open a folder or table in the data folders as a data set, and store its path for the user."""
    source = indexes.folders.resolve(source)
    dataset = _load(user, indexes, source, ignores_labels=ignores_labels)
    write_checked_json(dataset.folder / "source.json", str(source))
    return dataset


def find_dataset(
    user: UserWorkspace, indexes: DatasetIndexCache, dataset_id: str, image: str | None = None
) -> Dataset:
    """Return an opened data set; with `image` (an id), check only its folders for changes."""
    source = find_source(user, indexes.folders, dataset_id)
    ignores_labels = dataset_id == make_dataset_id(source, True)
    return _load(user, indexes, source, image, ignores_labels=ignores_labels)


def find_source(user: UserWorkspace, folders: DataFolders, dataset_id: str) -> Path:
    """Return the folder or table of a data set that the user has opened."""
    path = user.folder / "data" / dataset_id / "source.json"
    if not is_id(dataset_id) or not path.is_file():
        raise KeyError("the data set does not exist: open it on the data page")
    return folders.resolve(Path(read_json(path, str)))


def opened_sources(user: UserWorkspace, folders: DataFolders) -> dict[str, Path]:
    """Return the folders and tables that the user has opened and may still read, by data set id."""
    sources = {}
    for path in sorted((user.folder / "data").glob("*/source.json")):
        try:
            source = Path(read_json(path, str))
        except DamagedFileError as error:
            warn_once(str(error))
            continue
        if source.exists() and any(source.is_relative_to(f) for f in folders.folders):
            sources[path.parent.name] = source
    return sources


def _load(
    user: UserWorkspace,
    indexes: DatasetIndexCache,
    source: Path,
    image: str | None = None,
    *,
    ignores_labels: bool,
) -> Dataset:
    dataset_id = make_dataset_id(source, ignores_labels)
    folder = user.folder / "data" / dataset_id
    index = indexes.get_index(source, image, ignores_labels=ignores_labels)
    settings = DatasetSettings.read(folder)
    return Dataset(dataset_id, source, indexes, index, folder, settings, ignores_labels)


def update_settings(
    dataset: Dataset, body: Mapping[str, Any], validation_manifest: Manifest | None = None
) -> None:
    """Store settings from a request body, validated against a manifest (default: of `dataset`)."""
    with _WRITE_LOCK:
        # Another request may have changed the settings in the meantime.
        settings = DatasetSettings.read(dataset.folder)
        settings.with_changes(body, validation_manifest or dataset.manifest).write(dataset.folder)


# --- corrections ----------------------------------------------------------------------------------


def add_correction(
    dataset: Dataset, image_id: str, label: str | None, box: list[int] | None
) -> None:
    """Store the class of an image, or of a box in it; a label of None excludes the image.

    `box` is left, top, right, bottom in level-0 pixels.
    """
    record = dataset.find_image(image_id)
    classes = dataset.manifest.classes if box is None else dataset.correction_classes
    is_left_out = label is None and box is None
    if label not in classes and not is_left_out:
        raise ValueError(f"the class {label!r} is not among {classes}")
    box = box and _check_box(record, box)
    with _WRITE_LOCK:
        entries = dataset.corrections()
        if box is None:
            entries = [c for c in entries if c["image"] != image_id or c["box"] is not None]
        if box is not None or label != record.label:
            name = dataset.manifest.name(record)
            entries.append(Correction(id=new_id(), image=image_id, name=name, label=label, box=box))
        write_checked_json(dataset.folder / "corrections.json", entries)


def remove_correction(dataset: Dataset, correction_id: str) -> None:
    """Remove the correction with this id."""
    with _WRITE_LOCK:
        remaining = [c for c in dataset.corrections() if c["id"] != correction_id]
        write_checked_json(dataset.folder / "corrections.json", remaining)


def _check_box(record: ImageRecord, box: list[int]) -> list[int]:
    with open_image(record.path, record.mpp) as source:
        size = source.size
    box = [min(max(int(x), 0), end) for x, end in zip(box, 2 * size, strict=True)]
    sides = box[2] - box[0], box[3] - box[1]
    if min(sides) < _MIN_BOX_SIDE or max(sides) > _MAX_BOX_SIDE:
        raise ValueError(
            f"the sides of a region must be between {_MIN_BOX_SIDE} and {_MAX_BOX_SIDE} pixels; "
            f"this region has {sides[0]} x {sides[1]}"
        )
    return box


def training_manifest(dataset: Dataset) -> Manifest:
    """Return the images for training with all corrections applied, as files in the workspace.

    A labelled rectangle is painted into a copy of the mask of the image. If there is no mask, the
    rectangle is cropped to a further image of the same patient, at the end of the manifest.
    """
    records = dict(dataset.index.by_id)
    for record in records.values():  # the worker, which reads them, does not know the data folders
        dataset.indexes.check_record(record)
    crops = []
    for correction in dataset.corrections():
        image, label, box = correction["image"], correction["label"], correction["box"]
        file = dataset.folder / "marks" / f"{correction['id']}.png"
        if image not in records:  # the file is missing now
            continue
        if label is None:
            del records[image]
        elif box is None:
            records[image] = replace(records[image], label=label)
        elif records[image].mask is not None:
            _write_painted_mask(file, records[image], box, label == MASK_CLASSES[1])
            records[image] = replace(records[image], mask=file)
        else:
            if not file.is_file():
                _write_crop(file, records[image], box)
            # A PNG has no pixel size, so that of the image is stored.
            mpp = dataset.pixel_size(records[image]).mpp
            crops.append(replace(records[image], path=file, label=label, mpp=mpp))
    return replace(dataset.manifest, records=(*records.values(), *crops))


def relabelled_manifest(dataset: Dataset) -> Manifest:
    """Return the images with corrected labels, without excluded images and rectangles."""
    labels = {image: record.label for image, record in dataset.index.by_id.items()}
    corrected = labels | {c["image"]: c["label"] for c in dataset.corrections() if c["box"] is None}
    records = (
        record if label == record.label else replace(record, label=label)
        for image, record in dataset.index.by_id.items()
        if (label := corrected[image]) is not None
    )
    return replace(dataset.manifest, records=tuple(records))


def _write_crop(path: Path, record: ImageRecord, box: list[int]) -> None:
    left, top, right, bottom = box
    with open_image(record.path, record.mpp) as source:
        _write_png(path, source.read(left, top, right - left, bottom - top))


def _write_painted_mask(path: Path, record: ImageRecord, box: list[int], is_region: bool) -> None:
    """Write a copy of an image's mask, with the box (level-0 pixels) set to `is_region`."""
    with open_image(record.path, record.mpp) as source:
        size = source.size
    assert record.mask is not None
    region = RegionMask.read(record.mask, size).region
    factor = max(1, -(-max(region.shape) // _MAX_MASK_SIDE))
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


RECORD_BYTES = 1000  # approximate memory per record
_MAX_CACHE_BYTES = 256 * 2**20
# Resolution of time stamps: a file changed within this time may change again without a new one.
_TIMESTAMP_RESOLUTION = 2.0  # seconds
NO_LABELS_NOTE = ": these images have no labels; they are trained from annotations"

FileState = tuple[int, int, int] | None


@dataclass(frozen=True)
class DatasetIndex:
    """Index of the images of a data set, with the file states that reveal later changes.

    Attributes
    ----------
    manifest : images in their order
    by_id : images by id
    names : names of the images by id
    file_states : size and time stamps of the table or, without a table, of all folders, by path
    are_states_final : whether any later change of these files alters a time stamp
    """

    manifest: Manifest
    by_id: dict[str, ImageRecord]
    names: dict[str, str]
    file_states: dict[Path, FileState]
    are_states_final: bool

    @cached_property
    def images_json(self) -> bytes:
        """JSON array of the images for the page, encoded in ASCII."""
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

    def without_labels(self) -> DatasetIndex:
        """Return the index of the same images without labels, masks and annotations."""
        by_id = {
            id_: replace(record, label="", mask=None, annotations=None)
            for id_, record in self.by_id.items()
        }
        note = f"{self.manifest.root}: existing labels are ignored{NO_LABELS_NOTE}"
        manifest = Manifest(tuple(by_id.values()), (note,), self.manifest.root)
        return DatasetIndex(manifest, by_id, self.names, self.file_states, self.are_states_final)

    def is_current(self, image: str | None = None) -> bool:
        """Return whether the index, or the entry of the image with id `image`, is up to date."""
        paths = list(self.file_states)
        if image in self.by_id:  # only its parent folders, or the table
            parents = self.by_id[image].path.parents
            paths = [path for path in parents if path in self.file_states] or paths
        states = self.file_states
        return self.are_states_final and all(_file_state(path) == states[path] for path in paths)


class DatasetIndexCache:
    """Cache of data set indexes by folder or table; an index is read again after changes."""

    def __init__(self, folders: DataFolders) -> None:
        self.folders = folders
        self._cache: LRUCache[DatasetIndex] = LRUCache(_MAX_CACHE_BYTES)

    def get_index(
        self, source: Path, image: str | None = None, *, ignores_labels: bool = False
    ) -> DatasetIndex:
        """Return the index of `source`; with `image` (id), check only its folders for changes."""

        def read() -> tuple[DatasetIndex, int]:
            index, n_bytes = self._read(source)
            return (index.without_labels() if ignores_labels else index), n_bytes

        key = source, ignores_labels
        return self._cache.get(key, read, lambda cached: cached.is_current(image))

    def _read(self, source: Path) -> tuple[DatasetIndex, int]:
        """Read a folder or table; return the index and its approximate memory in bytes."""
        started = time.time()
        manifest, file_states, links = _list_images(source, self.folders)
        manifest = self._exclude_forbidden(manifest, links)
        names = [manifest.name(record) for record in manifest.records]
        ids = [short_id(name) for name in names]
        by_id = dict(zip(ids, manifest.records, strict=True))
        newest = max(state[1] if state else 0 for state in file_states.values())
        are_states_final = started - newest / 1e9 > _TIMESTAMP_RESOLUTION
        names_by_id = dict(zip(ids, names, strict=True))
        index = DatasetIndex(manifest, by_id, names_by_id, file_states, are_states_final)
        return index, RECORD_BYTES * len(by_id)

    def _exclude_forbidden(self, manifest: Manifest, links: Container[str] | None) -> Manifest:
        """Return the manifest without the images outside the data folders, with a warning.

        Raise ForbiddenFileError instead if none remain, or if the source is a table (no `links`).
        """
        is_link = os.path.islink if links is None else links.__contains__
        check, records, outside = self.folders.make_cached_check(is_link), [], []
        for record in manifest.records:
            try:
                list(map(check, record.files))
                records.append(record)
            except ForbiddenFileError as error:
                outside.append((manifest.name(record), error))
        if not outside:
            return manifest
        if not records or links is None:
            raise outside[0][1]
        names = truncated_list([name for name, _ in outside])
        warning = f"{manifest.root}: skipped, as they lie outside the data folders: {names}"
        return replace(manifest, records=tuple(records), warnings=(*manifest.warnings, warning))

    def check_record(self, record: ImageRecord) -> ImageRecord:
        """Return the record; raise ForbiddenFileError if a file is outside the data folders."""
        for path in record.files:
            self.folders.resolve(path)
        return record


def _list_images(
    source: Path, folders: DataFolders
) -> tuple[Manifest, dict[Path, FileState], Container[str] | None]:
    """Return manifest, file states before reading, and symbolic links of a folder or table.

    For a table, the links are None.
    """
    table = source / MANIFEST_NAME if source.is_dir() else source
    if table.is_file() or not source.is_dir():
        folders.resolve(table)
        file_states = {table: _file_state(table)}
        return _read_table(table), file_states, None
    file_states, entries = _walk(source)
    links = {str(entry.path) for entry in entries if entry.is_link}
    reason = "there are not two or more folders with images, one per class"
    try:
        manifest = from_folder(source, entries)
        if len(manifest.classes) > 1:
            return manifest, file_states, links
    except ManifestError as error:
        images, _ = find_images(source, entries)
        if not images:
            raise
        if _has_class_folders(source, entries):
            reason = str(error).removeprefix(f"{source}: ")
    return _unlabelled_manifest(source, entries, reason), file_states, links


def _walk(folder: Path) -> tuple[dict[Path, FileState], list[FolderEntry]]:
    """Return the state of each folder before it was read, and all entries of the folders."""
    file_states, entries = {folder: _file_state(folder)}, []
    for entry in walk(folder):
        if entry.kind == FOLDER:
            file_states[entry.path] = _file_state(entry.path)
        entries.append(entry)
    return file_states, entries


def _has_class_folders(folder: Path, entries: list[FolderEntry]) -> bool:
    try:
        return bool(read_class_folders(folder, entries).images)
    except ManifestError:  # splits and classes side by side
        return True


def _read_table(table: Path) -> Manifest:
    """Read a table of images, which may have neither labels nor masks."""
    try:
        return read_manifest(table)
    except ManifestError:
        manifest = read_manifest(table, labelled=False)
        if any(record.label or record.has_regions for record in manifest.records):
            raise
    note = f"{table}: the table has no label column{NO_LABELS_NOTE}"
    return replace(manifest, warnings=(note,))


def _unlabelled_manifest(folder: Path, entries: list[FolderEntry], reason: str) -> Manifest:
    images, skipped = find_images(folder, entries)
    records = tuple(ImageRecord(path, "", relative_name(folder, path)) for path in images)
    warnings = [f"{folder}: {reason}{NO_LABELS_NOTE}"]
    if skipped:
        names = truncated_list([relative_name(folder, path) for path in skipped])
        warnings.append(f"{folder}: skipped masks and files of unsupported formats: {names}")
    return Manifest(records, tuple(warnings), folder)


def _file_state(path: Path) -> FileState:
    """Return size, modification and change time (ns) of a file or folder; None if missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
