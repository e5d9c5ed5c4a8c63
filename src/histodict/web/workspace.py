"""The workspace on disk: a folder per user, with small JSON files that are written atomically.

WORKSPACE/server.lock                held by the server that uses the workspace; it contains the
                                     address, process number and machine, and remains afterwards
WORKSPACE/thumbnails/                small pictures, made again when lost
WORKSPACE/users/NAME/token           the user's key
WORKSPACE/users/NAME/open.html       leads the browser to the user's link
WORKSPACE/users/NAME/data/ID/        a data set that was opened, and its corrections
WORKSPACE/users/NAME/jobs/ID/        a training: request, state, progress, model, results

Data files are read only if they lie in the folders that the server was started with.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from ..images.file_types import is_image_path, is_zarr
from ..images.source import READERS
from ..models.model_file import SUFFIX
from ..utils.files import atomic_write, lock_descriptor
from ..utils.text_io import read_checked_json, shorten

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_ID = re.compile(r"[0-9a-f]{12}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")
Kind = type | tuple[type, ...]


class DamagedFileError(ValueError):
    """A file of the workspace that does not hold what was written; the message names it."""


def read_json(path: Path, kind: Kind = object) -> Any:
    """The content of a file, which must be of this kind."""
    try:
        content = read_checked_json(path)
    except (OSError, ValueError) as error:
        raise damaged_file_error(path, shorten(error)) from error
    if not isinstance(content, kind):
        raise damaged_file_error(path, f"it holds a {type(content).__name__}")
    return content


def read_fields(path: Path, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """A JSON object that has at least these fields, each of its kind."""
    content: dict[str, Any] = read_json(path, dict)
    for name, kind in kinds.items():
        if name not in content or not isinstance(content[name], kind):
            raise damaged_file_error(path, f"{name} is missing or wrong")
    return content


def damaged_file_error(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(f"{path}: is damaged ({reason}); restore it, or remove it")


@cache
def log_once(words: str) -> None:
    """To whoever runs the server."""
    print(f"Warning: {words}", file=sys.stderr, flush=True)


def new_id() -> str:
    return secrets.token_hex(6)


def short_id(text: str) -> str:
    """The id of what goes by this name, the same each time."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def is_id(text: str) -> bool:
    """Whether this may be the name of a data set, image or job, and so part of a path."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True)
class UserWorkspace:
    """One person's part of the workspace; nothing of another user is reachable from it."""

    name: str
    folder: Path

    @classmethod
    def of(cls, workspace: Path, name: str) -> UserWorkspace:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"the user name {name!r} is not possible: use small letters, digits, - and _"
            )
        folder = workspace.resolve() / "users" / name
        for part in ("data", "jobs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        return cls(name, folder)

    def token(self) -> str:
        """The user's key, the same after a restart; only the owner of the files can read it.

        What is no key, such as an empty file, would open the door to anybody: it is made anew.
        """
        path = self.folder / "token"
        known = path.read_text("utf-8", errors="replace").strip() if path.is_file() else ""
        if not _TOKEN.fullmatch(known):
            known = secrets.token_urlsafe(24)
            _write_secret(path, known)
        return known

    def write_link(self, link: str) -> Path:
        """A file that leads a browser to the link; named on a command line, it tells nothing."""
        path = self.folder / "open.html"
        _write_secret(path, f'<meta http-equiv="refresh" content="0;url={escape(link)}">')
        return path


def _write_secret(path: Path, text: str) -> None:
    """For the owner's eyes only, from the first byte on."""
    with atomic_write(path) as partial:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)


# --- data folders ---------------------------------------------------------------------------------


_MAX_ENTRIES = 500


class ForbiddenFileError(PermissionError):
    """A file outside the folders, whatever its name or the links on the way to it say."""


class DataFolders:
    """Folders with all that lies below them; a link that leads out of them is outside."""

    def __init__(self, folders: Sequence[Path], hidden: Sequence[Path] = ()) -> None:
        """`hidden`: what may lie below them and is no data, such as other users' work."""
        self.folders = [folder.resolve() for folder in folders]
        self._hidden = [folder.resolve() for folder in hidden]
        for folder in self.folders:
            if not folder.is_dir():
                raise ValueError(f"{folder}: there is no such folder")

    def check(self, path: Path) -> Path:
        """The file's true place, if that is inside."""
        found = Path(os.path.realpath(path))
        if not self._is_inside(found):
            raise ForbiddenFileError(f"{path.name}: lies outside the data folders")
        return found

    def check_of_many(
        self, is_link: Callable[[str], bool] = os.path.islink
    ) -> Callable[[Path], None]:
        """`check` for thousands of files, now: where a folder lies is looked up once.

        `is_link`: of a file, where somebody knows it already.
        """

        @cache
        def true_place(folder: str) -> str:
            above, name = os.path.split(folder)
            if name in ("", os.pardir) or os.path.islink(folder):
                return os.path.realpath(folder)
            return os.path.join(true_place(above), name)

        is_inside = cache(lambda folder: self._is_inside(Path(true_place(folder))))

        def check(path: Path) -> None:
            text = str(path)
            if is_link(text) or not is_inside(os.path.dirname(text)):
                self.check(path)

        return check

    def _is_inside(self, path: Path) -> bool:
        is_hidden = any(path.is_relative_to(folder) for folder in self._hidden)
        return not is_hidden and any(path.is_relative_to(folder) for folder in self.folders)

    def find(self, place: int, inside: str) -> Path:
        """A file or folder below the folder at `place`."""
        if not 0 <= place < len(self.folders) or "\0" in inside:
            raise ForbiddenFileError("there is no such data folder")
        found = self.check(self.folders[place] / inside)
        if not found.exists():
            raise FileNotFoundError(f"{inside}: there is no such file or folder")
        return found

    def locate(self, path: Path) -> tuple[int, str]:
        """The reverse of `find`."""
        for place, folder in enumerate(self.folders):
            if path.is_relative_to(folder):
                return place, path.relative_to(folder).as_posix()
        raise ForbiddenFileError(f"{path.name}: lies outside the data folders")

    def listing(self, place: int, inside: str) -> dict[str, Any]:
        """Sub-folders, tables and models that may be chosen, and how many images lie here."""
        folder = self.find(place, inside)
        if not folder.is_dir():
            raise FileNotFoundError(f"{inside}: is not a folder")
        shown = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
        entries = [path for path in shown if self._is_inside(Path(os.path.realpath(path)))]
        return {
            "place": place,
            "inside": "" if folder == self.folders[place] else inside.strip("/"),
            "name": folder.name,
            "folders": [p.name for p in entries if _is_folder(p)][:_MAX_ENTRIES],
            "tables": [p.name for p in entries if p.suffix.lower() == ".csv"][:_MAX_ENTRIES],
            "models": [p.name for p in entries if p.suffix.lower() == SUFFIX][:_MAX_ENTRIES],
            "n_images": sum(is_image_path(p) and p.suffix.lower() in READERS for p in entries),
        }


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not is_zarr(path)


# --- lock -----------------------------------------------------------------------------------------


_LOCK_FILE = "server.lock"
_MAX_BYTES = 10_000


class WorkspaceInUseError(OSError):
    """Another server uses the workspace; the message names its address."""


@contextmanager
def locked_workspace(workspace: Path, address: str) -> Iterator[None]:
    """Hold the lock of a workspace for a server at `address`.

    Raises
    ------
    WorkspaceInUseError
        Another server holds the lock.
    """
    # Thumbnails, labels and models are private to the user of this machine.
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(workspace / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, workspace)
        owner = {"address": address, "process": os.getpid(), "machine": platform.node()}
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, workspace: Path) -> None:
    try:
        lock_descriptor(descriptor)
    except BlockingIOError as error:
        raise WorkspaceInUseError(
            f"{workspace}: another server uses this workspace{_owner_text(descriptor)}. Use "
            "that one, or stop it first. For a second server give another --workspace: two on one "
            "workspace would overwrite each other's work"
        ) from error
    except OSError as error:
        words = (
            f"{workspace}: this file system cannot lock files ({shorten(error)}): make sure that "
            "no other server uses this workspace, as they would overwrite each other's work"
        )
        print(f"Warning: {words}", file=sys.stderr, flush=True)


def _owner_text(descriptor: int) -> str:
    """Describe the server that holds the lock; empty if it is not known yet."""
    try:
        owner = json.loads(os.read(descriptor, _MAX_BYTES))
        where = f", {owner['address']} (process {owner['process']})"
        is_here = owner["machine"] == platform.node()
        return where if is_here else f"{where} on the machine {owner['machine']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ", which is just starting"
