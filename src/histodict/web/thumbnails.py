"""Small pictures of images, kept on disk so that a large set opens at once the second time."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

from ..execution.files import written_whole
from ..images.manifest import Record
from ..images.readers import open_image
from ..reports.pictures import encode_jpeg

_SIDE = 220


class Thumbnails:
    """Thumbnails by the image's place, size and time of change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks = [threading.Lock() for _ in range(16)]

    def path(self, record: Record) -> Path:
        """The thumbnail's file, made if it is not there."""
        state = record.path.stat()
        what = f"{record.path} {state.st_size} {state.st_mtime_ns}"
        name = hashlib.sha256(what.encode()).hexdigest()[:24]
        path = self._folder / name[:2] / f"{name}.jpg"
        with self._locks[int(name[0], 16)]:  # two threads must not write the same file
            if not path.is_file():
                with open_image(record.path, record.mpp) as source:
                    data = encode_jpeg(source.thumbnail(_SIDE))
                with written_whole(path) as partial:
                    partial.write_bytes(data)
        return path
