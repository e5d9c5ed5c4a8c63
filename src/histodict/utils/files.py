"""Files that are complete or not there, and whether one is still the same.

Exclusive file locks, released by the operating system when the process ends.

A folder that is one image, as one thing: how large it is, and whether it is still the same.

A folder for the time being, which does not stay behind for ever if its process is killed.

Whether a result can be written, asked before the work that makes it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

from .dicom_header import SUFFIX, files_of_series

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_FAR = 2**30  # Windows makes locked bytes unreadable to others: lock one beyond the content


def lock_descriptor(descriptor: int) -> None:
    """Lock an open file without waiting.

    Raises
    ------
    BlockingIOError
        Another process, or another descriptor of this one, holds the lock.
    OSError
        The file system has no locks.
    """
    if sys.platform == "win32":
        os.lseek(descriptor, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(str(error)) from error
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


# A slide may lie in a hundred thousand files, and every tile of the page asks for its state. A look
# that took long holds for some times as long, so that looking takes a small part of the time.
_LONG_S = 0.05
_CACHE_SECONDS = 10
_MAX_KEPT = 1000


@dataclass(frozen=True)
class _CachedListing:
    state: tuple[int, int, int]
    valid_until: float


_CACHE: dict[str, _CachedListing] = {}


def folder_signature(folder: str) -> tuple[int, int, int]:
    """Bytes of all files, when the last was changed, and a number that changes with any of them.

    Whatever a file's name, size or times are: see `stat_signature`.
    """
    start = time.monotonic()
    kept = _CACHE.get(folder)
    if kept is not None and start < kept.valid_until:
        return kept.state
    state = _list(folder)
    took = time.monotonic() - start
    if took > _LONG_S:
        while len(_CACHE) >= _MAX_KEPT:
            _CACHE.pop(next(iter(_CACHE)), None)
        _CACHE[folder] = _CachedListing(state, start + (1 + _CACHE_SECONDS) * took)
    return state


def _list(folder: str) -> tuple[int, int, int]:
    n_bytes = newest = 0
    total = hashlib.sha256()
    for name, *sizes in files_inside(folder):
        n_bytes += sizes[0]
        newest = max(newest, sizes[2])
        total.update(repr([name, *sizes]).encode("utf-8", "surrogateescape"))
    return n_bytes, newest, int.from_bytes(total.digest()[:8], "big")


def folder_digest(folder: str) -> str:
    """SHA-256 of the contents and names of all files, wherever the folder lies."""
    total = hashlib.sha256()
    for name, *_ in files_inside(folder):
        with open(os.path.join(folder, name), "rb") as file:
            own = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(repr([name, own]).encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def files_inside(folder: str, above: str = "") -> Iterator[tuple[str, int, int, int]]:
    """Every file below a folder by name, with its size, time of modification and of change.

    Folders that are links are not entered: they may lead in a circle.
    """
    with os.scandir(os.path.join(folder, above)) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{above}/{entry.name}" if above else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from files_inside(folder, name)
        elif entry.is_file():
            state = entry.stat()
            yield name, state.st_size, state.st_mtime_ns, state.st_ctime_ns


# What reading a damaged .npz file may raise; OSError is of a place that no file has.
NPZ_ERRORS = (
    *(KeyError, TypeError, ValueError, EOFError, NotImplementedError),
    *(BadZipFile, zlib.error, OSError),
)
# What a run that was killed leaves behind, and after how many seconds nobody writes to it any more.
_PARTIAL = re.compile(r"\.[0-9a-f]+\.partial\..+")
_STALE_S = 24 * 3600
# Of a name's suffix; with more, the partial file's name could be longer than a name may be.
_MAX_BYTES = 32
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEARLY_FULL = 2**20
# Slides of which the file that is named is but the index of others in its folder.
_INDEXES = (SUFFIX, ".vms", ".vmu")
_N_PIECES, _PIECE_BYTES = 16, 2**16  # of a file's content, for `sampled_digest`
_STORES = (".zarr",)  # folders that stand for a file
# On Windows nobody can replace a file that somebody else has open, if only to look for viruses.
_LOCKED_ERRORS = os.name == "nt"
_LOCK_WAIT_S = (0.01, 0.03, 0.1, 0.3, 1.0)


class WriteError(OSError):
    """A file cannot be written; the message says which one, and why."""


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """A name to write to, in the same folder; on success the file gets its final name.

    The name is new each time, so that any number of threads and processes may write the same file:
    the last one stays. If the path is a link, its target is replaced; a device or pipe is
    refused. If `durable`, the content is on the disk before the file has its name, and the name
    when this returns; what can be made again need not wait for that.
    """
    path = true_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _sweep(path.parent)
    # Not made here: a writer that wrote elsewhere must fail, not leave an empty file.
    partial = path.with_name(f".{secrets.token_hex(8)}.partial{_ending(path)}")
    try:
        with add_path_to_errors(path):
            yield partial
            if durable:
                _flush(partial, os.O_RDWR)
        with suppress(OSError):  # an empty folder in its place is in nobody's way
            path.rmdir()
        _replace(partial, path)
        with suppress(OSError):  # not every system lets one open or flush a folder
            if durable:
                _flush(path.parent, os.O_RDONLY)
    finally:
        with suppress(OSError):
            partial.unlink()


def true_file(path: Path) -> Path:
    """Return the path to write to, the target of a link; refuse devices and pipes."""
    try:
        found = path.stat()
    except FileNotFoundError:
        found = None
    except OSError as error:  # such as a cycle of links
        raise WriteError(
            f"{path}: cannot be written ({error.strerror}); give another name"
        ) from error
    if found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise WriteError(f"{path}: is a device or a pipe; give the name of a file")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _replace(partial: Path, path: Path) -> None:
    """Give the file its final name, where others may be reading the one that has it."""
    for wait in _LOCK_WAIT_S if _LOCKED_ERRORS else ():
        try:
            os.replace(partial, path)
            return
        except PermissionError:
            time.sleep(wait)
    os.replace(partial, path)


def _ending(path: Path) -> str:
    """The suffix, which tells some writers what to write."""
    short = 1 < len(os.fsencode(path.suffix)) <= _MAX_BYTES
    return path.suffix if short else ".file"


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Gives a name to errors of writers that have none, and knows a full disk when it sees one."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in _FULL or shutil.disk_usage(path.parent).free < _NEARLY_FULL:
            words = f"{path}: cannot be written, for the disk is full: make room and try again"
            raise WriteError(words) from error
        if isinstance(error, OSError) and error.filename is None:
            raise WriteError(f"{path}: cannot be written ({error})") from error
        raise


def _flush(path: Path, access: int) -> None:
    descriptor = os.open(path, access)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@cache  # once per process: to list a folder for each of its files would take longer and longer
def _sweep(folder: Path) -> None:
    """Removes what runs that were killed a day ago or more left in a folder."""
    for path in folder.glob(".*.partial.*"):
        with suppress(OSError):  # another process was faster, or it is another user's file
            if _PARTIAL.fullmatch(path.name) and time.time() - path.stat().st_mtime > _STALE_S:
                path.unlink()


def stat_signature(path: Path) -> tuple[int, ...]:
    """What one look at the disk tells; changes when links lead to another file, or it was changed.

    What was written under the same size and time of modification still has another time of change,
    which nobody can set. The numbers of device and file come first. Another machine, or this one
    after a restart, may count them otherwise: what is kept on disk goes by its `file_key`. Of a
    folder that is an image all its files count.
    """
    found = os.stat(path)
    sizes = folder_signature(str(path)) if stat.S_ISDIR(found.st_mode) else _sizes(found)
    return found.st_dev, found.st_ino, *sizes


def _sizes(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def file_key(path: Path) -> list[Any]:
    """Changes when the file is another one, or was changed; the same on all machines that see it.

    One look at the disk will do: after each, a thread of a busy server waits for its turn.
    """
    device, number, *sizes = stat_signature(path)
    states = [[p.name, *_sizes(p.stat())] for p in _temporary_path(path)]
    return [_resolved_path(str(path.absolute()), device, number), *sizes, *states]


def key_of_files(paths: Iterable[Path]) -> list[Any]:
    """Changes when any of these is another file, was changed, or is there no more.

    As `file_key` of each; but what lies beside them is looked at once, not for each of them.
    """
    own: list[Any] = []
    homes: dict[Path, None] = {}
    for path in paths:
        try:
            device, number, *sizes = stat_signature(path)
        except FileNotFoundError:
            own.append(None)
            continue
        own.append([_resolved_path(str(path.absolute()), device, number), *sizes])
        home = _owner_process(path)
        if home is not None:
            homes[home] = None
    beside = [[p.name, *_sizes(p.stat())] for home in homes for p in _files_in(home)]
    return [own, beside]


@lru_cache(maxsize=100_000)
def _resolved_path(path: str, device: int, number: int) -> str:
    """Where all links lead; to find out takes a look at every folder of the path.

    It is done once, as long as the path leads to the same file.
    """
    return os.path.realpath(path)


def exists(path: Path) -> bool:
    """Whether it is a file, or a folder that stands for one."""
    try:
        return path.is_file() or (path.suffix.lower() in _STORES and path.is_dir())
    except OSError:  # a name that no system would take
        return False


def _temporary_path(path: Path) -> list[Path]:
    """The other files of a slide that lies in several."""
    if path.suffix.lower() == SUFFIX:
        return files_of_series(path)
    home = _owner_process(path)
    return [] if home is None else [other for other in _files_in(home) if other != path]


def _owner_process(path: Path) -> Path | None:
    """Where the other files of a slide are that lies in several."""
    kind = path.suffix.lower()
    if kind == ".mrxs":
        return path.with_suffix("")
    return path.parent if kind in _INDEXES else None


def _files_in(folder: Path) -> list[Path]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [file for file in files if os.path.isfile(file)]


def file_bytes(path: Path) -> int:
    """How large a file is, or all files of a folder together."""
    return stat_signature(path)[2]


def modification_time(path: Path) -> float:
    """When a file, or any file of a folder, was changed: seconds, as `time.time` has them."""
    found = os.stat(path)
    is_folder = stat.S_ISDIR(found.st_mode)
    return (folder_signature(str(path))[1] if is_folder else found.st_ctime_ns) / 1e9


def content_digest(path: Path) -> str:
    """SHA-256 of a file; read once as long as its size and its times stay as they are.

    Of a folder that is an image all files are read. Of a slide that lies in several files the
    others count by their names, sizes and times.
    """
    own = _digest(str(path.absolute()), *stat_signature(path))
    others = [[p.name, *_sizes(p.stat())[:2]] for p in _temporary_path(path)]
    return hashlib.sha256(f"{own} {others}".encode()).hexdigest() if others else own


def sampled_digest(path: Path) -> str:
    """Return the SHA-256 of a file's size and of 16 evenly spaced pieces of 64 KiB.

    Files up to 1 MiB are read whole. Different large files may have the same digest, so it orders
    files but does not identify them: see `content_digest`. The digest of a folder covers the names
    and sizes of its files and the first bytes of 16 of them. Empty for a file that cannot be read,
    and for pipes and devices, which are never opened.
    """
    try:
        if not (path.is_file() or path.is_dir()):
            return ""
        return _sampled(str(path.absolute()), *stat_signature(path))
    except OSError:  # errors are reported when it is opened
        return ""


@lru_cache(maxsize=100_000)
def _sampled(path: str, *state: int) -> str:
    total = hashlib.sha256()
    if os.path.isdir(path):
        names = [(name, sizes[0]) for name, *sizes in files_inside(path)]
        total.update(repr(names).encode("utf-8", "surrogateescape"))
        for name, _ in names[:: max(1, len(names) // _N_PIECES)][:_N_PIECES]:
            with open(os.path.join(path, name), "rb") as file:
                total.update(file.read(_PIECE_BYTES))
        return total.hexdigest()
    n_bytes = os.path.getsize(path)
    total.update(repr(n_bytes).encode())
    with open(path, "rb") as file:
        if n_bytes <= _N_PIECES * _PIECE_BYTES:
            total.update(file.read())
        else:
            for piece in range(_N_PIECES):
                file.seek((n_bytes - _PIECE_BYTES) * piece // (_N_PIECES - 1))
                total.update(file.read(_PIECE_BYTES))
    return total.hexdigest()


@lru_cache(maxsize=100_000)
def _digest(path: str, *state: int) -> str:
    if os.path.isdir(path):
        return folder_digest(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_NEW_S = 60  # so young a folder may belong to somebody who has not locked it yet


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """A temporary folder whose name begins so; those that killed processes left are removed.

    Whoever works in one holds a lock on it, which the system lifts however the process ends. Other
    machines that share the folder may not see the lock: names tell which machine's it is.
    """
    own = f"{prefix}{platform.node()}-"
    _remove_abandoned(own)
    with tempfile.TemporaryDirectory(prefix=own) as name, ExitStack() as stack:
        with suppress(OSError):  # some file systems know no locks: then nobody gets one to sweep
            stack.enter_context(_locked(Path(name)))
        yield Path(name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises BlockingIOError if somebody else holds it."""
    if (
        sys.platform == "win32"
    ):  # folders cannot be locked, so those of killed processes are not removed
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        lock_descriptor(handle)
        yield
    finally:
        os.close(handle)


def _remove_abandoned(prefix: str) -> None:
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # In use, another user's, or gone by now.
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _NEW_S:
                with _locked(folder):
                    shutil.rmtree(folder, ignore_errors=True)


class OutputError(ValueError):
    """What was named cannot be written to; the message says why, and what to do."""


def check_writable_file(path: Path) -> None:
    """Refuses a name under which no file can be written: a folder's, or in none that is there."""
    try:
        path = true_file(path)
    except WriteError as error:
        raise OutputError(str(error)) from error
    if path.is_dir():
        raise OutputError(f"{path}: is a folder; give the name of a file, such as {path / 'NAME'}")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist: make it first")
    _check_writable(path, path.parent)


def check_writable_folder(path: Path) -> None:
    """Refuses a name that cannot become a folder of results; folders above it are made."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not there.is_dir():
        raise OutputError(f"{path}: {there} is a file; give the name of a folder")
    _check_writable(path, there)


def check_disk_space(path: Path, n_bytes: int) -> None:
    """Refuses a disk that has less room than what will be written is likely to take."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(there).free
    if free < n_bytes:
        raise OutputError(
            f"{path}: about {format_bytes(n_bytes)} will be written, and the disk has "
            f"{format_bytes(free)} "
            "left: make room, or write elsewhere"
        )


def _check_writable(path: Path, folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{path}: nothing can be written to the folder {folder} ({error.strerror or error}): "
            "choose another, or ask for the right to write there"
        ) from error


def format_bytes(n_bytes: int) -> str:
    """1.6 GB, or 310 MB."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"
