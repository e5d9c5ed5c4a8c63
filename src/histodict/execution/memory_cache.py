"""Caches in memory: the least recently used values are removed when there is no room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Value = TypeVar("Value")
Key = tuple[object, ...]


class LocksByKey:
    """One lock per key, so that work on different keys does not wait for each other."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Key, tuple[threading.Lock, int]] = {}  # and the number of its users

    @contextmanager
    def held(self, key: Key) -> Iterator[None]:
        with self._guard:
            lock, n_users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, n_users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, n_users = self._locks.pop(key)
                if n_users > 1:
                    self._locks[key] = lock, n_users - 1


class LRUCache(Generic[Value]):
    """Least-recently-used cache of at most `most_bytes`; safe to use from threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._making = LocksByKey()

    def get(
        self,
        key: Key,
        make: Callable[[], tuple[Value, int]],
        is_good: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """Return the value of a key; make it if it is missing or no longer good.

        `make` returns the value and its number of bytes.
        """
        found = self.find(key)
        if found is None or not is_good(found):
            # Else the tiles of one screen would all decode the same file.
            with self._making.held(key):
                found = self.find(key)
                if found is None or not is_good(found):
                    found, n_bytes = make()
                    self.put(key, found, n_bytes)
        return found

    def find(self, key: Key) -> Value | None:
        """Return the value of a key; None if it is missing."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def put(self, key: Key, value: Value, n_bytes: int) -> None:
        """Store a value; the newest is kept even if it alone is too large, as it is in use."""
        with self._lock:
            self._bytes += n_bytes - self._held.pop(key, (value, 0))[1]
            self._held[key] = value, n_bytes
            while self._bytes > self._most and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]
