"""Files: locks, signatures and digests, atomic writes, temporary folders, checks of outputs.

A folder that is one image, such as a Zarr store, is handled like a file.
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

from .dicom_header import DICOM_SUFFIX, find_other_series_files

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_LOCKED_BYTE = 2**30  # position beyond the content, as Windows makes locked bytes unreadable


def lock_descriptor(descriptor: int) -> None:
    """Lock an open file without waiting.

    Raises
    ------
    BlockingIOError
        If the file is locked by another process or through another descriptor.
    OSError
        If the file system has no locks.
    """
    if sys.platform == "win32":
        os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(str(error)) from error
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


# A slide may have a hundred thousand files, and every tile of the web page needs its signature. A
# signature that takes long to compute is cached for ten times this duration.
_MIN_CACHED_DURATION_S = 0.05
_CACHE_FACTOR = 10
_MAX_CACHED_SIGNATURES = 1000


@dataclass(frozen=True)
class _CachedSignature:
    signature: tuple[int, int, int]
    valid_until: float  # of `time.monotonic`


_SIGNATURES: dict[str, _CachedSignature] = {}


def folder_signature(folder: str) -> tuple[int, int, int]:
    """Return a signature of a folder: total size in bytes, last modification in ns, and a hash.

    The hash covers names, sizes and times of all files; see `stat_signature`.
    """
    start = time.monotonic()
    cached = _SIGNATURES.get(folder)
    if cached is not None and start < cached.valid_until:
        return cached.signature
    signature = _compute_signature(folder)
    duration = time.monotonic() - start
    if duration > _MIN_CACHED_DURATION_S:
        while len(_SIGNATURES) >= _MAX_CACHED_SIGNATURES:
            _SIGNATURES.pop(next(iter(_SIGNATURES)), None)
        _SIGNATURES[folder] = _CachedSignature(signature, start + (1 + _CACHE_FACTOR) * duration)
    return signature


def _compute_signature(folder: str) -> tuple[int, int, int]:
    n_bytes = newest = 0
    total = hashlib.sha256()
    for name, *sizes in iter_files(folder):
        n_bytes += sizes[0]
        newest = max(newest, sizes[2])
        total.update(repr([name, *sizes]).encode("utf-8", "surrogateescape"))
    return n_bytes, newest, int.from_bytes(total.digest()[:8], "big")


def folder_digest(folder: str) -> str:
    """Return the SHA-256 of the relative names and the contents of all files in a folder."""
    total = hashlib.sha256()
    for name, *_ in iter_files(folder):
        with open(os.path.join(folder, name), "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(repr([name, digest]).encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def iter_files(folder: str, subfolder: str = "") -> Iterator[tuple[str, int, int, int]]:
    """Yield (name, size, mtime_ns, ctime_ns) of every file in a folder and its subfolders.

    Names are relative to `folder`. If `subfolder` is not empty, only its files are listed. Links to
    folders are not followed, as they may form cycles.
    """
    with os.scandir(os.path.join(folder, subfolder)) as iterator:
        entries = sorted(iterator, key=lambda entry: entry.name)
    for entry in entries:
        name = f"{subfolder}/{entry.name}" if subfolder else entry.name
        if entry.is_dir(follow_symlinks=False):
            yield from iter_files(folder, name)
        elif entry.is_file():
            state = entry.stat()
            yield name, state.st_size, state.st_mtime_ns, state.st_ctime_ns


# Errors of damaged .npz files; OSError is raised for seeks outside the file.
NPZ_ERRORS = (
    *(KeyError, TypeError, ValueError, EOFError, NotImplementedError),
    *(BadZipFile, zlib.error, OSError),
)
# Names of files left by killed runs, and the minimum age in seconds at which they are removed.
_PARTIAL_PATTERN = re.compile(r"\.[0-9a-f]+\.partial\..+")
_STALE_S = 24 * 3600
# Maximum length of a suffix, so that the name of the partial file is not too long.
_MAX_SUFFIX_BYTES = 32
_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_FULL_DISK_BYTES = 2**20
# Suffixes of slides that consist of several files of one folder.
_INDEX_SUFFIXES = (DICOM_SUFFIX, ".vms", ".vmu")
_N_BLOCKS, _BLOCK_BYTES = 16, 2**16  # blocks of a file that `sampled_digest` reads
_FOLDER_IMAGE_SUFFIXES = (".zarr",)  # folders that count as files
# On Windows, files that are open elsewhere, such as in a virus scanner, cannot be replaced.
_IS_WINDOWS = os.name == "nt"
_RETRY_WAITS_S = (0.01, 0.03, 0.1, 0.3, 1.0)


class WriteError(OSError):
    """Exception raised if a file cannot be written; the message names the file and the reason."""


@contextmanager
def atomic_write(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Return a context that yields a temporary path, and renames this file to `path` on success.

    The temporary name is unique, so that several threads and processes may write the same path; the
    last writer replaces the others' files. If `path` is a link, its target is replaced; if it is a
    device or a pipe, WriteError is raised. If `durable`, the content is flushed to disk before
    renaming, and the folder afterwards; this is not needed for files that can be recomputed.
    """
    path = resolve_output_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale_partials(path.parent)
    # Not created here, so that a writer that writes elsewhere fails and leaves no empty file.
    partial = path.with_name(f".{secrets.token_hex(8)}.partial{_partial_suffix(path)}")
    try:
        with add_path_to_errors(path):
            yield partial
            if durable:
                _flush_to_disk(partial, os.O_RDWR)
        with suppress(OSError):  # replaces an empty folder
            path.rmdir()
        _replace_with_retries(partial, path)
        with suppress(OSError):  # not supported on every system
            if durable:
                _flush_to_disk(path.parent, os.O_RDONLY)
    finally:
        with suppress(OSError):
            partial.unlink()


def resolve_output_path(path: Path) -> Path:
    """Resolve links in a path to write to; raise WriteError if it is a device or a pipe."""
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    except OSError as error:  # such as a cycle of links
        raise WriteError(
            f"{path}: cannot be written ({error.strerror}); choose another name"
        ) from error
    if status is not None and not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise WriteError(f"{path}: is a device or a pipe; give the name of a regular file")
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _replace_with_retries(partial: Path, path: Path) -> None:
    """Rename `partial` to `path`; on Windows, retry while other programs read `path`."""
    for wait in _RETRY_WAITS_S if _IS_WINDOWS else ():
        try:
            os.replace(partial, path)
            return
        except PermissionError:
            time.sleep(wait)
    os.replace(partial, path)


def _partial_suffix(path: Path) -> str:
    """Return the suffix of the temporary file for `path`, as writers may choose formats by it.

    This is the suffix of `path`, or ".file" if `path` has no suffix or a very long one.
    """
    is_short = 1 < len(os.fsencode(path.suffix)) <= _MAX_SUFFIX_BYTES
    return path.suffix if is_short else ".file"


@contextmanager
def add_path_to_errors(path: Path) -> Iterator[None]:
    """Return a context that converts write errors to WriteError with the path and the reason."""
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in _FULL_DISK_ERRORS or shutil.disk_usage(path.parent).free < _FULL_DISK_BYTES:
            message = (
                f"{path}: cannot be written because the disk is full; free some space and try again"
            )
            raise WriteError(message) from error
        if isinstance(error, OSError) and error.filename is None:
            raise WriteError(f"{path}: cannot be written ({error})") from error
        raise


def _flush_to_disk(path: Path, access: int) -> None:
    descriptor = os.open(path, access)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@cache  # once per process, as listing a folder for each of its files would be slow
def _remove_stale_partials(folder: Path) -> None:
    """Remove partial files of killed runs from a folder if they are older than a day."""
    for path in folder.glob(".*.partial.*"):
        with suppress(OSError):  # already removed, or another user's file
            if (
                _PARTIAL_PATTERN.fullmatch(path.name)
                and time.time() - path.stat().st_mtime > _STALE_S
            ):
                path.unlink()


def stat_signature(path: Path) -> tuple[int, ...]:
    """Return device, inode, size in bytes, mtime and ctime in ns of a file, to detect changes.

    Links are followed. The ctime, which cannot be set, reveals new content of the same size and
    modification time. Device and inode numbers may differ on other machines or after a restart; use
    `file_key` for keys on disk. The size and times of a folder are those of `folder_signature`.
    """
    status = os.stat(path)
    sizes = folder_signature(str(path)) if stat.S_ISDIR(status.st_mode) else _size_and_times(status)
    return status.st_dev, status.st_ino, *sizes


def _size_and_times(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def file_key(path: Path) -> list[Any]:
    """Return a cache key that changes if the file changes, and is the same on all machines.

    `stat` is called only once per file, as each call may block a thread of a busy server.
    """
    device, number, *sizes = stat_signature(path)
    states = [[p.name, *_size_and_times(p.stat())] for p in _companion_files(path)]
    return [_resolved_path(str(path.absolute()), device, number), *sizes, *states]


def files_key(paths: Iterable[Path]) -> list[Any]:
    """Return a cache key of several files that changes if one of them changes or is removed.

    This is faster than `file_key` for each file, as the other files of a slide that consists of
    several files are listed only once.
    """
    keys: list[Any] = []
    folders: dict[Path, None] = {}
    for path in paths:
        try:
            device, number, *sizes = stat_signature(path)
        except FileNotFoundError:
            keys.append(None)
            continue
        keys.append([_resolved_path(str(path.absolute()), device, number), *sizes])
        folder = _companion_folder(path)
        if folder is not None:
            folders[folder] = None
    companions = [
        [p.name, *_size_and_times(p.stat())] for folder in folders for p in _list_files(folder)
    ]
    return [keys, companions]


@lru_cache(maxsize=100_000)
def _resolved_path(path: str, device: int, number: int) -> str:
    """Return the path with all links resolved.

    As this accesses every parent folder, results are cached by path, device and inode number.
    """
    return os.path.realpath(path)


def exists(path: Path) -> bool:
    """Return whether a path is an existing file, or a folder that counts as a file (Zarr)."""
    try:
        return path.is_file() or (path.suffix.lower() in _FOLDER_IMAGE_SUFFIXES and path.is_dir())
    except OSError:  # an invalid name
        return False


def _companion_files(path: Path) -> list[Path]:
    """Return the other files of the slide of a file; empty if the slide is a single file."""
    if path.suffix.lower() == DICOM_SUFFIX:
        return find_other_series_files(path)
    folder = _companion_folder(path)
    return [] if folder is None else [other for other in _list_files(folder) if other != path]


def _companion_folder(path: Path) -> Path | None:
    """Return the folder with the other files of a slide; None if the slide is a single file."""
    suffix = path.suffix.lower()
    if suffix == ".mrxs":
        return path.with_suffix("")
    return path.parent if suffix in _INDEX_SUFFIXES else None


def _list_files(folder: Path) -> list[Path]:
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    return [file for file in files if os.path.isfile(file)]


def file_size(path: Path) -> int:
    """Return the size of a file, or of all files of a folder, in bytes."""
    return stat_signature(path)[2]


def modification_time(path: Path) -> float:
    """Return the time of the last change of a file or Zarr folder in seconds since the epoch."""
    status = os.stat(path)
    is_folder = stat.S_ISDIR(status.st_mode)
    return (folder_signature(str(path))[1] if is_folder else status.st_ctime_ns) / 1e9


def content_digest(path: Path) -> str:
    """Return the SHA-256 of a file, cached until its size or times change.

    For an image that is a folder, the digest covers the names and contents of all its files. For a
    slide of several files, it also covers name, size and modification time of the other files.
    """
    digest = _cached_digest(str(path.absolute()), *stat_signature(path))
    others = [[p.name, *_size_and_times(p.stat())[:2]] for p in _companion_files(path)]
    return hashlib.sha256(f"{digest} {others}".encode()).hexdigest() if others else digest


def sampled_digest(path: Path) -> str:
    """Return the SHA-256 of a file's size and of 16 evenly spaced blocks of 64 KiB.

    Files up to 1 MiB are read as a whole. Different large files may have the same digest, so it
    can order files but not identify them; see `content_digest`. The digest of a folder covers the
    names and sizes of its files and the first 64 KiB of 16 files. The digest is empty for files
    that cannot be read, and for pipes and devices, which are never opened.
    """
    try:
        if not (path.is_file() or path.is_dir()):
            return ""
        return _cached_sampled_digest(str(path.absolute()), *stat_signature(path))
    except OSError:  # errors are reported when it is opened
        return ""


@lru_cache(maxsize=100_000)
def _cached_sampled_digest(path: str, *state: int) -> str:
    total = hashlib.sha256()
    if os.path.isdir(path):
        names = [(name, sizes[0]) for name, *sizes in iter_files(path)]
        total.update(repr(names).encode("utf-8", "surrogateescape"))
        for name, _ in names[:: max(1, len(names) // _N_BLOCKS)][:_N_BLOCKS]:
            with open(os.path.join(path, name), "rb") as file:
                total.update(file.read(_BLOCK_BYTES))
        return total.hexdigest()
    n_bytes = os.path.getsize(path)
    total.update(repr(n_bytes).encode())
    with open(path, "rb") as file:
        if n_bytes <= _N_BLOCKS * _BLOCK_BYTES:
            total.update(file.read())
        else:
            for block in range(_N_BLOCKS):
                file.seek((n_bytes - _BLOCK_BYTES) * block // (_N_BLOCKS - 1))
                total.update(file.read(_BLOCK_BYTES))
    return total.hexdigest()


@lru_cache(maxsize=100_000)
def _cached_digest(path: str, *state: int) -> str:
    if os.path.isdir(path):
        return folder_digest(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_MIN_ABANDONED_AGE_S = 60  # younger folders may not be locked yet


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Return a context that yields a temporary folder whose name begins with `prefix`.

    Temporary folders that killed processes have left are removed first. A process locks its folder;
    the lock ends with the process. The machine's name is appended to `prefix`, as other machines
    that share the directory may not see the lock.
    """
    machine_prefix = f"{prefix}{platform.node()}-"
    _remove_abandoned_folders(machine_prefix)
    with tempfile.TemporaryDirectory(prefix=machine_prefix) as name, ExitStack() as stack:
        with suppress(OSError):  # without locks, such folders are never removed
            stack.enter_context(_lock_folder(Path(name)))
        yield Path(name)


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Return a context that locks a folder; raise BlockingIOError if it is already locked."""
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


def _remove_abandoned_folders(prefix: str) -> None:
    if sys.platform == "win32":
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        # In use, another user's, or already removed.
        with suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _MIN_ABANDONED_AGE_S:
                with _lock_folder(folder):
                    shutil.rmtree(folder, ignore_errors=True)


class OutputError(ValueError):
    """Exception raised if an output path is unusable; the message states the reason and remedy."""


def check_writable_file(path: Path) -> None:
    """Raise OutputError if a file cannot be created or replaced; parents need not exist."""
    existing = next(folder for folder in path.absolute().parents if folder.exists())
    if not existing.is_dir():
        raise OutputError(f"{path}: {existing} is a file, not a folder; choose another path")
    try:
        path = resolve_output_path(path)
    except WriteError as error:
        raise OutputError(str(error)) from error
    if path.is_dir():
        raise OutputError(f"{path}: is a folder; give the name of a file, such as {path / 'NAME'}")
    _check_writable(path, existing)


def check_writable_folder(path: Path) -> None:
    """Raise OutputError if files cannot be written to a folder, which need not exist."""
    existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        raise OutputError(f"{path}: {existing} is a file; give the name of a folder")
    _check_writable(path, existing)


def check_disk_space(path: Path, n_bytes: int) -> None:
    """Raise OutputError if less than `n_bytes` are free on the disk of a path."""
    existing = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < n_bytes:
        raise OutputError(
            f"{path}: needs about {format_bytes(n_bytes)}, but the disk has "
            f"{format_bytes(free)} free; free some space or choose another disk"
        )


def _check_writable(path: Path, folder: Path) -> None:
    """Raise OutputError, with `path` in the message, unless files can be created in `folder`."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"{path}: the folder {folder} is not writable ({error.strerror or error}); choose "
            "another folder or change its permissions"
        ) from error


def format_bytes(n_bytes: int) -> str:
    """Return a size as text, such as "1.6 GB" or "310 MB"."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"
