"""Decoded images that are looked at again soon: by steps of a training, by folds and by methods.

They are kept only while somebody says that images come again (`image_cache_enabled`): of use to
nobody
else, they would take memory. First come, first kept: whoever goes round and round through more
images than there is room for finds those that fitted, which he would not if the newest drove out
the oldest.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..execution.memory import available_bytes
from .decoding import decode
from .errors import NoRoomError
from .in_memory import stable_cache_key
from .picture import DecodedImage

_MAX_BYTES = 384 * 2**20  # of a process
_MEMORY_FRACTION = 1 / 8  # of the memory that is free, for all processes of a run


class _ImageCache:
    """Pictures by the key of their file, which changes with it.

    A lock that its own thread may take again: whatever is thrown away meanwhile may come by here.
    """

    def __init__(self) -> None:
        self.n_users = 0
        self._run = ""
        self._budget = 0
        self._images: dict[str, DecodedImage] = {}
        self._lock = threading.RLock()

    def enter(self) -> None:
        room = _budget(1)
        with self._lock:
            if self.n_users == 0:
                self._budget = room
            self.n_users += 1

    def leave(self) -> None:
        with self._lock:
            self.n_users -= 1
            if self.n_users == 0:
                self._images.clear()

    def serve(self, run: str, n_processes: int) -> None:
        """From now on for this run, of so many processes; what was kept for another one goes."""
        if run == self._run:
            return
        room = _budget(n_processes)
        with self._lock:
            self.n_users += not self._run
            self._run, self._budget = run, room
            self._images.clear()

    def get(self, key: str) -> DecodedImage | None:
        return self._images.get(key)

    def put(self, key: str, picture: DecodedImage, n_bytes: int) -> None:
        with self._lock:
            if self.n_users and n_bytes <= self._budget and key not in self._images:
                self._images[key] = picture
                self._budget -= n_bytes

    def clear(self) -> bool:
        """Nothing more is kept; whether anything was."""
        with self._lock:
            had, self._budget = bool(self._images), 0
            self._images.clear()
            return had

    def renew_lock(self) -> None:
        """In a forked process: a thread that is not there may have held it."""
        self._lock = threading.RLock()


def _budget(n_processes: int) -> int:
    free = available_bytes()
    if free is None:
        return _MAX_BYTES // n_processes
    return min(_MAX_BYTES, int(free * _MEMORY_FRACTION / n_processes))


_CACHE = _ImageCache()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _CACHE.renew_lock())


@contextmanager
def image_cache_enabled() -> Iterator[None]:
    """Within it images come again; the memory is given back at the end of the outermost one."""
    _CACHE.enter()
    try:
        yield
    finally:
        _CACHE.leave()


def enable_worker_image_cache(run: str, n_processes: int) -> None:
    """In one of the processes that work for another one: until that begins another run, or they
    end, as they do some minutes after the last.
    """
    _CACHE.serve(run, n_processes)


def decode_cached(path: Path, n_bytes: int) -> DecodedImage:
    """All of an image, which takes so many bytes; decoded if it is not at hand."""
    key = repr(found) if _CACHE.n_users and (found := stable_cache_key(path)) else ""
    picture = _CACHE.get(key) if key else None
    if picture is None:
        try:
            picture = decode(path)
        except NoRoomError:
            if not _CACHE.clear():
                raise
            picture = decode(path)
        if key:
            _CACHE.put(key, picture, n_bytes)
    return picture
