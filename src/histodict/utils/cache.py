"""Arrays that are costly to make, kept on disk under all that decides their numbers.

How much memory may still be taken, before it is taken.

Caches in memory: the least recently used values are removed when there is no room.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from .files import atomic_write

_FORM = 3  # of the files
_DIGEST = 32  # bytes
_PART = 1 << 20
_NAMES = f"{'[0-9a-f]' * 2}/{'[0-9a-f]' * 32}.npy"

_LIMIT_VARIABLE = "HISTODICT_CACHE_GIB"
_LIMIT_GIB = 20.0
_CLEANUP_INTERVAL = 1 / 32  # of the limit: after so much was written, the folder is looked at
_FREE_FRACTION = 0.9  # of the limit is what it is made smaller to

# Bytes that this process has written into each folder since it looked at it last.
_written: dict[Path, int] = {}


class ArrayCache:
    """One file per array: a `.npy` file with the SHA-256 of its bytes behind it.

    It is complete or not there; a damaged one is named in a warning and counts as not there. The
    folder holds about 20 GiB at most, or as many as the environment variable HISTODICT_CACHE_GIB
    says: of more, what was not read for longest goes.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def read(self, key: list[Any]) -> NDArray[Any] | None:
        path = self._file(key)
        try:
            with path.open("rb") as file:
                if _digest(file, path.stat().st_size - _DIGEST) != file.read():
                    raise ValueError("its content is not what was written")
                file.seek(0)
                array: NDArray[Any] = np.load(file, allow_pickle=False)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError) as error:
            warnings.warn(f"{path}: is damaged and made anew ({error})", stacklevel=2)
            return None
        with suppress(OSError):  # of somebody else, or gone by now
            os.utime(path)
        return array

    def write(self, key: list[Any], array: NDArray[Any]) -> None:
        with (
            atomic_write(self._file(key), durable=False) as partial,
            partial.open("w+b") as file,
        ):
            np.save(file, array, allow_pickle=False)
            size = file.tell()
            file.seek(0)
            file.write(_digest(file, size))
        self._stay_small(size + _DIGEST)

    def _stay_small(self, n_new: int) -> None:
        """Look at the folder with the first array, and then now and again."""
        limit = max_bytes()
        known = self.folder in _written
        _written[self.folder] = _written.get(self.folder, 0) + n_new
        if not known or _written[self.folder] > limit * _CLEANUP_INTERVAL:
            _written[self.folder] = 0
            _evict(self.folder, limit)

    def _file(self, key: list[Any]) -> Path:
        digest = hashlib.sha256(json.dumps([_FORM, *key]).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[:32]}.npy"


def max_bytes() -> float:
    """That a folder may hold."""
    given = os.environ.get(_LIMIT_VARIABLE, _LIMIT_GIB)
    try:
        gib = float(given)
    except ValueError:
        gib = -1.0
    if not gib >= 0:
        raise ValueError(f"{_LIMIT_VARIABLE} must be a number of GiB, not {given!r}")
    return gib * 2**30


def _evict(folder: Path, limit: float) -> None:
    """Remove the arrays that were not read for longest, if there is more than the limit."""
    found = sorted(_arrays(folder))
    total = sum(size for _, size, _ in found)
    if total <= limit:
        return
    for _, size, path in found:
        with suppress(OSError):  # somebody else's, or in use where that forbids it
            path.unlink(missing_ok=True)
            total -= size
        if total <= limit * _FREE_FRACTION:
            return


def _arrays(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """When each was used last, its size, and where it is."""
    for path in folder.glob(_NAMES):
        with suppress(OSError):  # gone by now
            stat = path.stat()
            yield stat.st_mtime_ns, stat.st_size, path


def _digest(file: BinaryIO, size: int) -> bytes:
    """SHA-256 of the next bytes of a file, so many; it then stands behind them."""
    total = hashlib.sha256()
    while size > 0 and (part := file.read(min(size, _PART))):
        total.update(part)
        size -= len(part)
    return total.digest()


_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Bytes that this process may still take, by all limits it is under; None where nobody says.

    What the machine has free; what the process's control groups, as of a container or of a batch
    system, leave it; and what `ulimit -v` does.
    """
    found = [*_of_machine(), *_of_groups(), *_of_process()]
    return max(0, min(found)) if found else None


def _of_machine() -> Iterator[int]:
    kib = _table(_PROC / "meminfo").get("MemAvailable:")
    if kib is not None:
        yield kib * 1024
        return
    with suppress(AttributeError, ValueError, OSError):  # systems without these names
        yield os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _of_groups() -> Iterator[int]:
    """What each group above the process leaves; the files of both versions of control groups."""
    for folder, names in _groups():
        limit, used = (_number(folder / name) for name in names)
        if limit is not None and used is not None:
            # Pages of files that nobody uses count as used, and are given up on demand.
            stat = _table(folder / "memory.stat")
            yield limit - used + stat.get("inactive_file", stat.get("total_inactive_file", 0))


def _groups() -> Iterator[tuple[Path, tuple[str, str]]]:
    with suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text("utf-8").splitlines():
            number, kinds, place = line.split(":", 2)
            if number == "0":
                root, names = _CGROUPS, ("memory.max", "memory.current")
            elif "memory" in kinds.split(","):
                root = _CGROUPS / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            group = root / place.strip("/")
            for folder in (group, *group.parents):
                yield folder, names
                if folder == root:
                    break


def _of_process() -> Iterator[int]:
    with suppress(ImportError, OSError, KeyError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            yield limit - _table(_PROC / "self" / "status")["VmSize:"] * 1024


def _table(path: Path) -> dict[str, int]:
    """The lines "name number …" of a file; none if it is not there."""
    try:
        lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _number(path: Path) -> int | None:
    """The number in a file; None if it is not there, or says "max"."""
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


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
