"""The images of folders and tables: listed once, and again as soon as the files there have changed.

Every tile asks for its image. Listing thousands of images takes a good part of a second; to see
that nothing has changed takes a look at the table, or at the folders. There may be thousands of
these, too: for a single image only those on the way to it are looked at.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Container
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..execution.memory_cache import BytesCache
from ..images.layout import FOLDER, Entry, class_folders, images_below, walk
from ..images.manifest import (
    MANIFEST_NAME,
    Manifest,
    ManifestError,
    Record,
    from_folder,
    read_manifest,
)
from ..images.records import name_in, some_of
from .folders import DataFolders, ForbiddenFileError
from .workspace import short_id

RECORD_BYTES = 1000  # about what a record takes in memory
_MOST_BYTES = 256 * 2**20
# File systems count time in steps of up to two seconds. What has changed within the last one may
# change once more and look the same: it is listed anew until then.
_STEP = 2.0
ONLY_LOOK = ": these images have no labels, and are learnt from by what is drawn on them"

State = tuple[int, int, int] | None


@dataclass(frozen=True)
class Listing:
    """Images in their order and by id, and the files and folders that say which there are.

    names : of the images, by id
    """

    manifest: Manifest
    by_id: dict[str, Record]
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

    def bare(self) -> Listing:
        """The same images, as if nobody knew what they show: to be drawn on."""
        by_id = {
            id_: replace(record, label="", mask=None, drawn=None)
            for id_, record in self.by_id.items()
        }
        words = f"{self.manifest.root}: what is known of them is left aside{ONLY_LOOK}"
        manifest = Manifest(tuple(by_id.values()), (words,), self.manifest.root)
        return Listing(manifest, by_id, self.names, self.watched, self.was_settled)

    def is_current(self, image: str | None = None) -> bool:
        """Whether the images are still these; or whether the one of this id still is the same."""
        watched = list(self.watched)
        if image in self.by_id:  # folders on the way to it, or the table
            watched = [p for p in self.by_id[image].path.parents if p in self.watched] or watched
        return self.was_settled and all(_state(path) == self.watched[path] for path in watched)


class DataSources:
    """Folders and tables that lie in the data folders, as they are now."""

    def __init__(self, folders: DataFolders) -> None:
        self.folders = folders
        self._kept: BytesCache[Listing] = BytesCache(_MOST_BYTES)

    def listing(self, source: Path, image: str | None = None, *, is_bare: bool = False) -> Listing:
        """The images as they are now; or of which this one is as it is now.

        `is_bare`: their labels, masks and outlines are left aside.
        """

        def read() -> tuple[Listing, int]:
            found, n_bytes = self._read(source)
            return (found.bare() if is_bare else found), n_bytes

        return self._kept.get((source, is_bare), read, lambda kept: kept.is_current(image))

    def _read(self, source: Path) -> tuple[Listing, int]:
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
        return Listing(manifest, by_id, named, watched, was_settled), RECORD_BYTES * len(by_id)

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
        names = some_of([name for name, _ in outside])
        words = f"{manifest.root}: left out, as they lie outside the data folders: {names}"
        return replace(manifest, records=tuple(records), warnings=(*manifest.warnings, words))

    def check(self, record: Record) -> Record:
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
        images, _ = images_below(source, below)
        if not images:
            raise
        if _has_classes(source, below):
            reason = str(error).removeprefix(f"{source}: ")
    return _to_look_at(source, below, reason), watched, links


def _walk(folder: Path) -> tuple[dict[Path, State], list[Entry]]:
    """All that lies below, and the folders there, each as it was before anybody looked into it."""
    watched, below = _watch([folder]), []
    for entry in walk(folder):
        if entry.kind == FOLDER:
            watched[entry.path] = _state(entry.path)
        below.append(entry)
    return watched, below


def _has_classes(folder: Path, below: list[Entry]) -> bool:
    try:
        return bool(class_folders(folder, below).places)
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
    words = f"{table}: there is no column for the label{ONLY_LOOK}"
    return replace(manifest, warnings=(words,))


def _to_look_at(folder: Path, below: list[Entry], reason: str) -> Manifest:
    images, others = images_below(folder, below)
    records = tuple(Record(path, "", name_in(folder, path)) for path in images)
    warnings = [f"{folder}: {reason}{ONLY_LOOK}"]
    if others:
        names = some_of([name_in(folder, path) for path in others])
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
