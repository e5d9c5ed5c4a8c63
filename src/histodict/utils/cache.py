"""Caches on disk and in memory, and measurement of the available memory."""

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

_VERSION = 3  # version of the file format
_DIGEST_BYTES = 32
_BLOCK_BYTES = 1 << 20
_FILE_PATTERN = f"{'[0-9a-f]' * 2}/{'[0-9a-f]' * 32}.npy"

_LIMIT_VARIABLE = "HISTODICT_CACHE_GIB"
_DEFAULT_LIMIT_GIB = 20.0
_CLEANUP_FRACTION = 1 / 32  # fraction of the limit that is written between clean-ups
_REMAINING_FRACTION = 0.9  # fraction of the limit that a clean-up leaves

# Number of bytes that this process has written to each cache folder since the last clean-up.
_bytes_since_cleanup: dict[Path, int] = {}


class ArrayCache:
    """Cache of arrays on disk: `.npy` files, each followed by the SHA-256 of its bytes.

    Files are written atomically; a damaged file causes a warning and counts as missing. The folder
    is limited to about 20 GiB, or to the number of GiB in the environment variable
    HISTODICT_CACHE_GIB; the least recently read files are removed first.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def read(self, key: list[Any]) -> NDArray[Any] | None:
        """Return the array stored under a list of JSON values; None if missing or damaged."""
        path = self._make_path(key)
        try:
            with path.open("rb") as file:
                if _read_digest(file, path.stat().st_size - _DIGEST_BYTES) != file.read():
                    raise ValueError("checksum mismatch")
                file.seek(0)
                array: NDArray[Any] = np.load(file, allow_pickle=False)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError) as error:
            warnings.warn(
                f"{path}: the cached file is damaged and will be computed again ({error})",
                stacklevel=2,
            )
            return None
        with suppress(OSError):  # another user's file, or already removed
            os.utime(path)
        return array

    def write(self, key: list[Any], array: NDArray[Any]) -> None:
        """Store an array under a key, a list of JSON values."""
        with (
            atomic_write(self._make_path(key), durable=False) as partial,
            partial.open("w+b") as file,
        ):
            np.save(file, array, allow_pickle=False)
            size = file.tell()
            file.seek(0)
            file.write(_read_digest(file, size))
        self._clean_up_if_due(size + _DIGEST_BYTES)

    def _clean_up_if_due(self, n_bytes_written: int) -> None:
        """Evict old files at the first write, and each time 1/32 of the limit has been written."""
        limit = max_folder_bytes()
        is_known = self.folder in _bytes_since_cleanup
        _bytes_since_cleanup[self.folder] = (
            _bytes_since_cleanup.get(self.folder, 0) + n_bytes_written
        )
        if not is_known or _bytes_since_cleanup[self.folder] > limit * _CLEANUP_FRACTION:
            _bytes_since_cleanup[self.folder] = 0
            _evict(self.folder, limit)

    def _make_path(self, key: list[Any]) -> Path:
        digest = hashlib.sha256(json.dumps([_VERSION, *key]).encode()).hexdigest()
        return self.folder / digest[:2] / f"{digest[:32]}.npy"


def max_folder_bytes() -> float:
    """Return the maximum size of a cache folder in bytes.

    This is the number of GiB in HISTODICT_CACHE_GIB if it is set, otherwise about 20 GiB.
    """
    value = os.environ.get(_LIMIT_VARIABLE, _DEFAULT_LIMIT_GIB)
    try:
        gib = float(value)
    except ValueError:
        gib = -1.0
    if not gib >= 0:
        raise ValueError(f"{_LIMIT_VARIABLE} must be a size in GiB, not {value!r}")
    return gib * 2**30


def _evict(folder: Path, limit: float) -> None:
    """If the folder exceeds `limit` bytes, remove the least recently read arrays."""
    arrays = sorted(_list_arrays(folder))
    total = sum(size for _, size, _ in arrays)
    if total <= limit:
        return
    for _, size, path in arrays:
        with suppress(OSError):  # another user's file, or in use
            path.unlink(missing_ok=True)
            total -= size
        if total <= limit * _REMAINING_FRACTION:
            return


def _list_arrays(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """Yield the time of last use (ns), the size in bytes and the path of each array file."""
    for path in folder.glob(_FILE_PATTERN):
        with suppress(OSError):  # already removed
            stat = path.stat()
            yield stat.st_mtime_ns, stat.st_size, path


def _read_digest(file: BinaryIO, size: int) -> bytes:
    """Return the SHA-256 of the next `size` bytes of a file."""
    total = hashlib.sha256()
    while size > 0 and (block := file.read(min(size, _BLOCK_BYTES))):
        total.update(block)
        size -= len(block)
    return total.digest()


_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int | None:
    """Return the bytes that this process may still allocate; None if unknown.

    The limits are the free memory of the machine, the control groups of the process (containers,
    batch systems), and `ulimit -v`.
    """
    limits = [*_free_machine_memory(), *_free_cgroup_memory(), *_free_process_memory()]
    return max(0, min(limits)) if limits else None


def _free_machine_memory() -> Iterator[int]:
    kib = _read_number_table(_PROC / "meminfo").get("MemAvailable:")
    if kib is not None:
        yield kib * 1024
        return
    with suppress(AttributeError, ValueError, OSError):  # systems without these names
        yield os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _free_cgroup_memory() -> Iterator[int]:
    """Yield the free bytes of each control group of the process, for cgroup versions 1 and 2."""
    for folder, names in _cgroup_files():
        limit, used = (_read_number(folder / name) for name in names)
        if limit is not None and used is not None:
            # Inactive file pages count as used but are released on demand.
            stat = _read_number_table(folder / "memory.stat")
            yield limit - used + stat.get("inactive_file", stat.get("total_inactive_file", 0))


def _cgroup_files() -> Iterator[tuple[Path, tuple[str, str]]]:
    """Yield the folder of each control group, and the names of its files with limit and usage."""
    with suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text("utf-8").splitlines():
            number, kinds, group_path = line.split(":", 2)
            if number == "0":
                root, names = _CGROUPS, ("memory.max", "memory.current")
            elif "memory" in kinds.split(","):
                root = _CGROUPS / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            else:
                continue
            group = root / group_path.strip("/")
            for folder in (group, *group.parents):
                yield folder, names
                if folder == root:
                    break


def _free_process_memory() -> Iterator[int]:
    """Yield the bytes that `ulimit -v` leaves to this process, if there is such a limit."""
    with suppress(ImportError, OSError, KeyError):
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            yield limit - _read_number_table(_PROC / "self" / "status")["VmSize:"] * 1024


def _read_number_table(path: Path) -> dict[str, int]:
    """Parse the lines "name number …" of a file into a dict; empty if it cannot be read."""
    try:
        lines = [line.split() for line in path.read_text("utf-8").splitlines()]
    except OSError:
        return {}
    return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}


def _read_number(path: Path) -> int | None:
    """Read the number in a file; return None if the file is missing or contains "max"."""
    try:
        return int(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None


Value = TypeVar("Value")
Key = tuple[object, ...]


class LocksByKey:
    """Collection of one lock per key, so that work on different keys runs in parallel."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Key, tuple[threading.Lock, int]] = {}  # lock and number of its users

    @contextmanager
    def acquire(self, key: Key) -> Iterator[None]:
        """Return a context in which this thread holds the lock of a key."""
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
    """Thread-safe least-recently-used cache of at most `max_bytes` bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._key_locks = LocksByKey()

    def get(
        self,
        key: Key,
        compute: Callable[[], tuple[Value, int]],
        is_valid: Callable[[Value], bool] = lambda value: True,
    ) -> Value:
        """Return the value of a key; compute and store it if it is missing or invalid.

        Parameters
        ----------
        key : key of the value
        compute : function that returns the value and its size in bytes
        is_valid : function that returns whether a cached value may be used
        """
        value = self.find(key)
        if value is None or not is_valid(value):
            # One thread per key makes the value, so that tiles of a screen decode a file once.
            with self._key_locks.acquire(key):
                value = self.find(key)
                if value is None or not is_valid(value):
                    value, n_bytes = compute()
                    self.put(key, value, n_bytes)
        return value

    def find(self, key: Key) -> Value | None:
        """Return the value of a key; None if it is missing."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: Key, value: Value, n_bytes: int) -> None:
        """Store a value of `n_bytes` bytes.

        If the cache is full, remove the least recently used values.
        """
        with self._lock:
            self._bytes += n_bytes - self._entries.pop(key, (value, 0))[1]
            self._entries[key] = value, n_bytes
            while self._bytes > self._max_bytes and len(self._entries) > 1:
                self._bytes -= self._entries.popitem(last=False)[1][1]
