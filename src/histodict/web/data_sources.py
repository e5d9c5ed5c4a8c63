"""The images of folders and tables: listed once, and again as soon as the files there have changed.

Every tile asks for its image. Listing thousands of images takes a good part of a second; to see
that nothing has changed takes a look at the table, or at the folders.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from ..batch import find_images
from ..images.manifest import MANIFEST_NAME, Manifest, ManifestError, Record, read_manifest
from .bytes_cache import BytesCache
from .folders import DataFolders

RECORD_BYTES = 1000  # about what a record takes in memory
_MOST_BYTES = 256 * 2**20
# File systems count time in steps of up to two seconds. What has changed within the last one may
# change once more and look the same: it is listed anew until then.
_STEP = 2.0

State = tuple[int, int, int] | None


def image_id_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Listing:
    """Images in their order and by id, and the files and folders that say which there are."""

    manifest: Manifest
    by_id: dict[str, Record]
    watched: dict[Path, State]

    @property
    def is_current(self) -> bool:
        return all(_state(path) == state for path, state in self.watched.items())

    @property
    def is_settled(self) -> bool:
        """Whether a change from now on would show."""
        newest = max(state[1] if state else 0 for state in self.watched.values())
        return time.time() - newest / 1e9 > _STEP


class DataSources:
    """Folders and tables that lie in the data folders, as they are now."""

    def __init__(self, folders: DataFolders) -> None:
        self.folders = folders
        self._kept: BytesCache[Listing] = BytesCache(_MOST_BYTES)
        self._reading = threading.Lock()

    def listing(self, source: Path) -> Listing:
        found = self._known(source)
        if found is None:
            with self._reading:  # or the tiles of one screen would all read the same table
                found = self._known(source) or self._read(source)
        return found

    def _known(self, source: Path) -> Listing | None:
        found = self._kept.get((source,))
        return found if found is not None and found.is_current else None

    def _read(self, source: Path) -> Listing:
        """List the images; all must lie in the data folders."""
        manifest, watched = _list_images(source, self.folders)
        for record in manifest.records:
            self.check(record)
        by_id = {image_id_of(manifest.name(record)): record for record in manifest.records}
        found = Listing(manifest, by_id, watched)
        if found.is_settled:
            self._kept.put((source,), found, RECORD_BYTES * len(by_id))
        return found

    def check(self, record: Record) -> None:
        """Refuses an image outside the data folders; ask each time before it is read.

        A link that lay inside when the images were listed may lead elsewhere by now.
        """
        for path in (record.path, record.mask):
            if path is not None:
                self.folders.check(path)


def _list_images(source: Path, folders: DataFolders) -> tuple[Manifest, dict[Path, State]]:
    """A labelled set, or, where a folder has no classes, its images to look at.

    With them what they depend on, as it was before: a table, or folders whose entries count.
    """
    table = source / MANIFEST_NAME if source.is_dir() else source
    if table.is_file():
        folders.check(table)
        watched = _watch([table])
        return read_manifest(source), watched
    try:
        watched = _watch([source, *_class_folders(source)])
        return read_manifest(source), watched
    except ManifestError:
        watched = _watch([Path(folder) for folder, _, _ in os.walk(source)])
        images = find_images([source]) if source.is_dir() else []
        if not images:
            raise
    records = tuple(Record(path, "", path.relative_to(source).as_posix()) for path in images)
    words = f"{source.name}: no classes were found, so these images can be looked at, not learnt"
    return Manifest(records, (words,), source), watched


def _class_folders(source: Path) -> list[Path]:
    entries = source.iterdir() if source.is_dir() else ()
    return [path for path in entries if path.is_dir() and not path.name.startswith(".")]


def _watch(paths: list[Path]) -> dict[Path, State]:
    return {path: _state(path) for path in paths}


def _state(path: Path) -> State:
    """Differs after a change of the file, or of a folder's entries; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
