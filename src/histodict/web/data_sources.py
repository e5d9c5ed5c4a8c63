"""The images of folders and tables: listed once, and again as soon as the files there have changed.

Every tile asks for its image. Listing thousands of images takes a good part of a second; to see
that nothing has changed takes a look at the table, or at the folders.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ..images.layout import images_below
from ..images.manifest import MANIFEST_NAME, Manifest, ManifestError, Record, read_manifest
from .bytes_cache import BytesCache
from .folders import DataFolders
from .workspace import short_id

RECORD_BYTES = 1000  # about what a record takes in memory
_MOST_BYTES = 256 * 2**20
# File systems count time in steps of up to two seconds. What has changed within the last one may
# change once more and look the same: it is listed anew until then.
_STEP = 2.0

State = tuple[int, int, int] | None


@dataclass(frozen=True)
class Listing:
    """Images in their order and by id, and the files and folders that say which there are."""

    manifest: Manifest
    by_id: dict[str, Record]
    watched: dict[Path, State]
    was_settled: bool  # when it was made: a change from then on shows

    @property
    def is_current(self) -> bool:
        return self.was_settled and all(_state(p) == state for p, state in self.watched.items())


class DataSources:
    """Folders and tables that lie in the data folders, as they are now."""

    def __init__(self, folders: DataFolders) -> None:
        self.folders = folders
        self._kept: BytesCache[Listing] = BytesCache(_MOST_BYTES)

    def listing(self, source: Path) -> Listing:
        return self._kept.get((source,), lambda: self._read(source), lambda kept: kept.is_current)

    def _read(self, source: Path) -> tuple[Listing, int]:
        """List the images; all must lie in the data folders."""
        manifest, watched = _list_images(source, self.folders)
        for record in manifest.records:
            self.check(record)
        by_id = {short_id(manifest.name(record)): record for record in manifest.records}
        newest = max(state[1] if state else 0 for state in watched.values())
        was_settled = time.time() - newest / 1e9 > _STEP
        return Listing(manifest, by_id, watched, was_settled), RECORD_BYTES * len(by_id)

    def check(self, record: Record) -> Record:
        """The record; refuses an image outside the data folders; ask each time before it is read.

        A link that lay inside when the images were listed may lead elsewhere by now.
        """
        for path in (record.path, record.mask):
            if path is not None:
                self.folders.check(path)
        return record


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
        watched = _watch([source, *(path for path in source.glob("[!.]*") if path.is_dir())])
        return read_manifest(source), watched
    except ManifestError:
        watched = _watch([Path(folder) for folder, _, _ in os.walk(source)])
        images = images_below(source)[0] if source.is_dir() else []
        if not images:
            raise
    records = tuple(Record(path, "", path.relative_to(source).as_posix()) for path in images)
    words = f"{source.name}: no classes were found, so these images can be looked at, not learnt"
    return Manifest(records, (words,), source), watched


def _watch(paths: list[Path]) -> dict[Path, State]:
    return {path: _state(path) for path in paths}


def _state(path: Path) -> State:
    """Differs after a change of the file, or of a folder's entries; None: it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
