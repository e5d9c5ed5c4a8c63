"""What was used last, as long as there is room for it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Value = TypeVar("Value")
Key = tuple[object, ...]


class KeyLocks:
    """A lock for every key: who works on one thing waits for nobody who works on another."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Key, tuple[threading.Lock, int]] = {}  # with how many hold or want it

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


class BytesCache(Generic[Value]):
    """The values used last, of at most so many bytes together; safe to use from threads."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._making = KeyLocks()

    def get(
        self,
        key: Key,
        make: Callable[[], tuple[Value, int]],
        is_good: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """The value under this key; one that is not there, or not good any more, is made.

        `make` gives the value and its number of bytes.
        """
        found = self.find(key)
        if found is None or not is_good(found):
            # Or the tiles of one screen would all decode the same file.
            with self._making.held(key):
                found = self.find(key)
                if found is None or not is_good(found):
                    found, n_bytes = make()
                    self._put(key, found, n_bytes)
        return found

    def find(self, key: Key) -> Value | None:
        """The value under this key, if it is there."""
        with self._lock:
            if key not in self._held:
                return None
            self._held.move_to_end(key)
            return self._held[key][0]

    def _put(self, key: Key, value: Value, n_bytes: int) -> None:
        """The newest stays even if it alone is too large: it is in use."""
        with self._lock:
            self._bytes += n_bytes - self._held.pop(key, (value, 0))[1]
            self._held[key] = value, n_bytes
            while self._bytes > self._most and len(self._held) > 1:
                self._bytes -= self._held.popitem(last=False)[1][1]
