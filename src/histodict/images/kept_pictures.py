"""Decoded images that are looked at again soon: by steps of a training, by folds and by methods.

They are kept only while somebody says that images come again (`pictures_kept`): of use to nobody
else, they would take memory. First come, first kept: whoever goes round and round through more
images than there is room for finds those that fitted, which he would not if the newest drove out
the oldest.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..execution.memory import available_bytes
from .decoding import decode
from .in_memory import settled_key
from .picture import Picture

_MOST_BYTES = 384 * 2**20
_SHARE = 1 / 8  # of the memory that is free, at most


class _Kept:
    """Pictures by the key of their file, which changes with it."""

    def __init__(self) -> None:
        self.n_users = 0
        self._room = 0
        self._pictures: dict[str, Picture] = {}
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            if self.n_users == 0:
                free = available_bytes()
                self._room = _MOST_BYTES if free is None else min(_MOST_BYTES, int(free * _SHARE))
            self.n_users += 1

    def leave(self) -> None:
        with self._lock:
            self.n_users -= 1
            if self.n_users == 0:
                self._pictures.clear()

    def get(self, key: str) -> Picture | None:
        return self._pictures.get(key)

    def put(self, key: str, picture: Picture, n_bytes: int) -> None:
        with self._lock:
            if self.n_users and n_bytes <= self._room and key not in self._pictures:
                self._pictures[key] = picture
                self._room -= n_bytes


_KEPT = _Kept()


@contextmanager
def pictures_kept() -> Iterator[None]:
    """Within it images come again; the memory is given back at the end of the outermost one."""
    _KEPT.enter()
    try:
        yield
    finally:
        _KEPT.leave()


def keep_pictures() -> None:
    """From now on, in a process that works for another one, and ends with it."""
    if not _KEPT.n_users:
        _KEPT.enter()


def picture_of(path: Path, n_bytes: int) -> Picture:
    """All of an image, which takes so many bytes; decoded if it is not at hand."""
    key = repr(found) if _KEPT.n_users and (found := settled_key(path)) else ""
    picture = _KEPT.get(key) if key else None
    if picture is None:
        picture = decode(path)
        if key:
            _KEPT.put(key, picture, n_bytes)
    return picture
