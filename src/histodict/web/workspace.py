"""Workspace folder of a server: users, tokens, lock; and the data folders that users may read.

Each user has a folder of small JSON files that are written atomically.

WORKSPACE/server.lock                locked by the server that uses the workspace; contains its
                                     address, process number and machine, and is not deleted
WORKSPACE/thumbnails/                thumbnails, recreated if missing
WORKSPACE/users/NAME/token           token of the user
WORKSPACE/users/NAME/open.html       redirects a browser to the user's link
WORKSPACE/users/NAME/data/ID/        data set that was opened, with its corrections
WORKSPACE/users/NAME/jobs/ID/        training: request, state, progress, model, results

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
from ..utils.files import atomic_write, lock_descriptor
from ..utils.text_io import read_checked_json, shorten
from .schema import Json

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_ID = re.compile(r"[0-9a-f]{12}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")
JsonType = type | tuple[type, ...]  # type of a JSON value, as for isinstance


class DamagedFileError(ValueError):
    """Exception for an unreadable or inconsistent file of the workspace."""


def read_json(path: Path, json_type: JsonType = object) -> Any:
    """Return the content of a JSON file after verifying its checksum.

    Raises
    ------
    DamagedFileError
        If the file cannot be read or its content is not of type `json_type`.
    """
    try:
        content = read_checked_json(path)
    except (OSError, ValueError) as error:
        raise damaged_file_error(path, shorten(error)) from error
    if not isinstance(content, json_type):
        raise damaged_file_error(path, f"it contains a {type(content).__name__}")
    return content


def read_fields(path: Path, field_types: Mapping[str, JsonType]) -> Json:
    """Return the JSON object in a file after verifying its checksum.

    Parameters
    ----------
    path : JSON file
    field_types : type or types of each required field, by name

    Raises
    ------
    DamagedFileError
        If the file cannot be read, or a field is missing or has another type.
    """
    content: Json = read_json(path, dict)
    for name, json_type in field_types.items():
        if name not in content or not isinstance(content[name], json_type):
            raise damaged_file_error(path, f"{name} is missing or wrong")
    return content


def damaged_file_error(path: Path, reason: str) -> DamagedFileError:
    """Return the error for a damaged file."""
    return DamagedFileError(f"{path}: is damaged ({reason}). Restore or remove it")


@cache
def warn_once(message: str) -> None:
    """Print a warning on the server's console, once per message."""
    print(f"Warning: {message}", file=sys.stderr, flush=True)


def new_id() -> str:
    """Return a random id of 12 hexadecimal digits."""
    return secrets.token_hex(6)


def short_id(text: str) -> str:
    """Return the id of a text: the first 12 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:12]


def is_id(text: str) -> bool:
    """Return whether a text is a valid id, and thus safe as part of a path."""
    return _ID.fullmatch(text) is not None


@dataclass(frozen=True)
class UserWorkspace:
    """Folder of a user in the workspace, with the user's data sets and jobs."""

    name: str
    folder: Path

    @classmethod
    def open(cls, workspace: Path, name: str) -> UserWorkspace:
        """Return the folder of a user in a workspace; create it if it does not exist."""
        if not _NAME.fullmatch(name):
            raise ValueError(f"invalid user name {name!r}: use lower-case letters, digits, - and _")
        folder = workspace.resolve() / "users" / name
        for part in ("data", "jobs"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        return cls(name, folder)

    def token(self) -> str:
        """Return the user's secret token from its file; create it if missing or invalid."""
        path = self.folder / "token"
        token = path.read_text("utf-8", errors="replace").strip() if path.is_file() else ""
        if not _TOKEN.fullmatch(token):
            token = secrets.token_urlsafe(24)
            _write_secret(path, token)
        return token

    def write_link(self, link: str) -> Path:
        """Write an HTML file that redirects to the link, and return its path.

        A browser can be started with this path without revealing the token on a command line.
        """
        path = self.folder / "open.html"
        _write_secret(path, f'<meta http-equiv="refresh" content="0;url={escape(link)}">')
        return path


def _write_secret(path: Path, text: str) -> None:
    """Write a text file that only the owner of this process can read."""
    with atomic_write(path) as partial:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)


# --- data folders ---------------------------------------------------------------------------------


_MAX_ENTRIES = 500  # of each kind, listed for a folder


class ForbiddenFileError(PermissionError):
    """Exception for a file that, after links are resolved, is outside the data folders."""


class DataFolders:
    """Data folders that users may read; links that lead outside are forbidden."""

    def __init__(self, folders: Sequence[Path], hidden: Sequence[Path] = ()) -> None:
        """Resolve the folders.

        Parameters
        ----------
        folders : data folders
        hidden : subfolders that users may not read, such as workspaces of other users
        """
        self.folders = [folder.resolve() for folder in folders]
        self._hidden = [folder.resolve() for folder in hidden]
        for folder in self.folders:
            if not folder.is_dir():
                raise ValueError(f"{folder}: no such folder")

    def resolve(self, path: Path) -> Path:
        """Return the resolved path; raise ForbiddenFileError if it is outside the data folders."""
        resolved = Path(os.path.realpath(path))
        if not self._is_inside(resolved):
            raise ForbiddenFileError(f"{path.name}: lies outside the data folders")
        return resolved

    def make_cached_check(
        self, is_link: Callable[[str], bool] = os.path.islink
    ) -> Callable[[Path], None]:
        """Return a faster check of many files than `resolve`, which resolves each folder only once.

        Parameters
        ----------
        is_link : function that returns whether a path is a symbolic link
        """

        @cache
        def resolved_folder(folder: str) -> str:
            parent, name = os.path.split(folder)
            if name in ("", os.pardir) or os.path.islink(folder):
                return os.path.realpath(folder)
            return os.path.join(resolved_folder(parent), name)

        is_inside = cache(lambda folder: self._is_inside(Path(resolved_folder(folder))))

        def check(path: Path) -> None:
            text = str(path)
            if is_link(text) or not is_inside(os.path.dirname(text)):
                self.resolve(path)

        return check

    def _is_inside(self, path: Path) -> bool:
        is_hidden = any(path.is_relative_to(folder) for folder in self._hidden)
        return not is_hidden and any(path.is_relative_to(folder) for folder in self.folders)

    def find(self, folder_index: int, relative_path: str) -> Path:
        """Return the resolved path of a file or folder in the data folder with this index."""
        if not 0 <= folder_index < len(self.folders) or "\0" in relative_path:
            raise ForbiddenFileError("the data folder does not exist")
        resolved = self.resolve(self.folders[folder_index] / relative_path)
        if not resolved.exists():
            raise FileNotFoundError(f"{relative_path}: file or folder not found")
        return resolved

    def locate(self, path: Path) -> tuple[int, str]:
        """Return (index of the data folder, path relative to it), the inverse of `find`."""
        for index, folder in enumerate(self.folders):
            if path.is_relative_to(folder):
                return index, path.relative_to(folder).as_posix()
        raise ForbiddenFileError(f"{path.name}: lies outside the data folders")

    def list_folder(self, folder_index: int, relative_path: str) -> Json:
        """Return the contents of a folder: names of subfolders, tables (.csv) and models, as JSON.

        Images are only counted.
        """
        folder = self.find(folder_index, relative_path)
        if not folder.is_dir():
            raise FileNotFoundError(f"{relative_path}: is not a folder")
        visible = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
        entries = [path for path in visible if self._is_inside(Path(os.path.realpath(path)))]
        from ..models.model_file import MODEL_SUFFIX  # slow, and workers start without it

        return {
            "folder_index": folder_index,
            "relative_path": ""
            if folder == self.folders[folder_index]
            else relative_path.strip("/"),
            "name": folder.name,
            "folders": [p.name for p in entries if _is_folder(p)][:_MAX_ENTRIES],
            "tables": [p.name for p in entries if p.suffix.lower() == ".csv"][:_MAX_ENTRIES],
            "models": [p.name for p in entries if p.suffix.lower() == MODEL_SUFFIX][:_MAX_ENTRIES],
            "n_images": sum(is_image_path(p) and p.suffix.lower() in READERS for p in entries),
        }


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not is_zarr(path)


# --- lock -----------------------------------------------------------------------------------------


_LOCK_FILE = "server.lock"
_MAX_LOCK_BYTES = 10_000


class WorkspaceInUseError(OSError):
    """Exception for a workspace that is locked by another server."""


@contextmanager
def lock_workspace(workspace: Path, address: str) -> Iterator[None]:
    """Lock a workspace for the server at `address` (a URL); create the folder if it is missing.

    Raises
    ------
    WorkspaceInUseError
        If another server holds the lock.
    """
    # Thumbnails, labels and models are private to the user of this machine.
    workspace.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(workspace / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _lock(descriptor, workspace)
        server = {"address": address, "process": os.getpid(), "machine": platform.node()}
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(server).encode())
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, workspace: Path) -> None:
    try:
        lock_descriptor(descriptor)
    except BlockingIOError as error:
        raise WorkspaceInUseError(
            f"{workspace}: another server uses this workspace{_describe_server(descriptor)}. Use "
            "that server, or stop it first. A second server needs another --workspace, as two "
            "servers would overwrite each other's files"
        ) from error
    except OSError as error:
        message = (
            f"{workspace}: this file system cannot lock files ({shorten(error)}). Make sure that "
            "no other server uses this workspace, as two servers would overwrite each other's "
            "files"
        )
        print(f"Warning: {message}", file=sys.stderr, flush=True)


def _describe_server(descriptor: int) -> str:
    """Return a description of the server that has locked the workspace, from the lock file."""
    try:
        server = json.loads(os.read(descriptor, _MAX_LOCK_BYTES))
        address = f", {server['address']} (process {server['process']})"
        is_here = server["machine"] == platform.node()
        return address if is_here else f"{address} on the machine {server['machine']}"
    except (OSError, ValueError, KeyError, TypeError):
        return ", which is starting"
