"""JSON files of finished work that tell whether they are still what was written.

    {"sha256": "…", "content": …}

The digest is that of the content's text, as it stands in the file: one flipped bit is noticed
wherever it is, before anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from .files import written_whole

_BEGIN, _BETWEEN, _END = '{"sha256": "', '", "content": ', "}"
_LETTERS = 64


def write_sealed(path: Path, content: Any) -> None:
    """Complete or not there. In ASCII, for names may hold bytes that are no characters."""
    with written_whole(path) as partial:
        partial.write_text(_sealed(json.dumps(content, default=os.fspath)), encoding="ascii")


def read_sealed(path: Path) -> Any:
    """What was written; a ValueError says that it is not, and an OSError that there is nothing."""
    text = path.read_text(encoding="utf-8")
    body = body_of(text)
    if body is None:
        raise ValueError("it has no digest of its content: an earlier version wrote it, or nobody")
    return json.loads(body)


def body_of(text: str) -> str | None:
    """The content's text, checked; None of what was never sealed."""
    if not text.startswith(_BEGIN):
        return None
    body = text[len(_BEGIN) + _LETTERS + len(_BETWEEN) : -len(_END)]
    if text != _sealed(body):
        raise ValueError("its content is not what was written")
    return body


def _sealed(body: str) -> str:
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_BEGIN}{digest}{_BETWEEN}{body}{_END}"
