"""What the app keeps on disk: a folder per user, with small JSON files that are whole or absent.

WORKSPACE/server.lock                held by the server that uses the workspace
WORKSPACE/thumbnails/                small pictures, made again when lost
WORKSPACE/users/NAME/token           the user's key
WORKSPACE/users/NAME/open.html       leads the browser to the user's link
WORKSPACE/users/NAME/data/ID/        a data set that was opened, and its corrections
WORKSPACE/users/NAME/jobs/ID/        a training: request, state, progress, model, results
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from ..execution.files import written_whole
from ..execution.sealed import read_sealed
from ..execution.texts import one_line

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_ID = re.compile(r"[0-9a-f]{12}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")
Kind = type | tuple[type, ...]


class DamagedFileError(ValueError):
    """A file of the workspace that does not hold what was written; the message names it."""


def read_json(path: Path, kind: Kind = object) -> Any:
    """The content of a file, which must be of this kind."""
    try:
        content = read_sealed(path)
    except (OSError, ValueError) as error:
        raise damage(path, one_line(error)) from error
    if not isinstance(content, kind):
        raise damage(path, f"it holds a {type(content).__name__}")
    return content


def read_fields(path: Path, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """A JSON object that has at least these fields, each of its kind."""
    content: dict[str, Any] = read_json(path, dict)
    for name, kind in kinds.items():
        if name not in content or not isinstance(content[name], kind):
            raise damage(path, f"{name} is missing or wrong")
    return content


def damage(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(f"{path}: is damaged ({reason}); restore it, or remove it")


@cache
def say_once(words: str) -> None:
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
class User:
    """One person's part of the workspace; nothing of another user is reachable from it."""

    name: str
    folder: Path

    @classmethod
    def of(cls, workspace: Path, name: str) -> User:
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
    with written_whole(path) as partial:
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
