"""What the app keeps on disk: a folder per user, with small JSON files that are whole or absent.

WORKSPACE/thumbnails/                small pictures, made again when lost
WORKSPACE/users/NAME/token           the user's key, where the server asks for one
WORKSPACE/users/NAME/data/ID/        a data set that was opened, and its corrections
WORKSPACE/users/NAME/jobs/ID/        a training: request, state, progress, model, results
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..execution.files import written_whole

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32}")
_ID = re.compile(r"[0-9a-f]{12}")


def read_json(path: Path) -> Any:
    """What `write_json` wrote; a ValueError names a file that is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is damaged ({error}): remove it, or bring it back") from error


def read_if_whole(path: Path, kind: type[Any]) -> Any:
    """The same; None if it is not there, or if it is damaged or of another kind, which is said."""
    if not path.exists():
        return None
    try:
        found = read_json(path)
        if not isinstance(found, kind):
            raise ValueError(f"{path}: is damaged (it holds a {type(found).__name__})")
    except ValueError as error:
        warnings.warn(f"{error}; it is taken for missing", stacklevel=2)
        return None
    return found


def write_json(path: Path, content: Any) -> None:
    with written_whole(path) as partial:
        text = json.dumps(content, ensure_ascii=False, default=os.fspath)  # paths as text
        partial.write_text(text, encoding="utf-8")


def new_id() -> str:
    return secrets.token_hex(6)


def short_id(text: str) -> str:
    """The id of what goes by this name, the same each time."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


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
        """The user's key, the same after a restart; only the owner of the files can read it."""
        path = self.folder / "token"
        kept = path.read_text(errors="replace").strip() if path.is_file() else ""
        if _TOKEN.fullmatch(kept):  # an empty one, of a disk that was full, would let everybody in
            return kept
        with written_whole(path) as partial:
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_urlsafe(24))
        return path.read_text()
