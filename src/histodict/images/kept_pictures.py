"""Decoded images that are looked at again soon: by steps of a training, by folds and by methods.

They are kept only while somebody says that images come again (`pictures_kept`): of use to nobody
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
from .in_memory import settled_key
from .picture import Picture

_MOST_BYTES = 384 * 2**20  # of a process
_SHARE = 1 / 8  # of the memory that is free, for all processes of a run


class _Kept:
    """Pictures by the key of their file, which changes with it.

    A lock that its own thread may take again: whatever is thrown away meanwhile may come by here.
    """

    def __init__(self) -> None:
        self.n_users = 0
        self._run = ""
        self._room = 0
        self._pictures: dict[str, Picture] = {}
        self._lock = threading.RLock()

    def enter(self) -> None:
        room = _room(1)
        with self._lock:
            if self.n_users == 0:
                self._room = room
            self.n_users += 1

    def leave(self) -> None:
        with self._lock:
            self.n_users -= 1
            if self.n_users == 0:
                self._pictures.clear()

    def serve(self, run: str, n_processes: int) -> None:
        """From now on for this run, of so many processes; what was kept for another one goes."""
        if run == self._run:
            return
        room = _room(n_processes)
        with self._lock:
            self.n_users += not self._run
            self._run, self._room = run, room
            self._pictures.clear()

    def get(self, key: str) -> Picture | None:
        return self._pictures.get(key)

    def put(self, key: str, picture: Picture, n_bytes: int) -> None:
        with self._lock:
            if self.n_users and n_bytes <= self._room and key not in self._pictures:
                self._pictures[key] = picture
                self._room -= n_bytes

    def give_up(self) -> bool:
        """Nothing more is kept; whether anything was."""
        with self._lock:
            had, self._room = bool(self._pictures), 0
            self._pictures.clear()
            return had

    def renew_lock(self) -> None:
        """In a forked process: a thread that is not there may have held it."""
        self._lock = threading.RLock()


def _room(n_processes: int) -> int:
    free = available_bytes()
    if free is None:
        return _MOST_BYTES // n_processes
    return min(_MOST_BYTES, int(free * _SHARE / n_processes))


_KEPT = _Kept()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _KEPT.renew_lock())


@contextmanager
def pictures_kept() -> Iterator[None]:
    """Within it images come again; the memory is given back at the end of the outermost one."""
    _KEPT.enter()
    try:
        yield
    finally:
        _KEPT.leave()


def keep_pictures(run: str, n_processes: int) -> None:
    """In one of the processes that work for another one: until that begins another run, or they
    end, as they do some minutes after the last.
    """
    _KEPT.serve(run, n_processes)


def picture_of(path: Path, n_bytes: int) -> Picture:
    """All of an image, which takes so many bytes; decoded if it is not at hand."""
    key = repr(found) if _KEPT.n_users and (found := settled_key(path)) else ""
    picture = _KEPT.get(key) if key else None
    if picture is None:
        try:
            picture = decode(path)
        except NoRoomError:
            if not _KEPT.give_up():
                raise
            picture = decode(path)
        if key:
            _KEPT.put(key, picture, n_bytes)
    return picture
