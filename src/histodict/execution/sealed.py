"""JSON files with a checksum.

    {"sha256": "…", "content": …}

The SHA-256 is computed over the text of the content, so any changed byte is detected before the
content is parsed.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from .files import atomic_write
from .texts import parse_json

_BEGIN, _BETWEEN, _END = '{"sha256": "', '", "content": ', "}"
_CHARACTERS = 64


def write_checked_json(path: Path, content: Any) -> None:
    """Write a file atomically, in ASCII because file names may not be valid UTF-8."""
    with atomic_write(path) as partial:
        partial.write_text(_with_checksum(json.dumps(content, default=os.fspath)), encoding="ascii")


def read_checked_json(path: Path) -> Any:
    """Return the content of a file after verifying its checksum.

    Raises
    ------
    ValueError : the checksum is missing or does not match the content
    OSError : the file cannot be read
    """
    text = path.read_text(encoding="utf-8")
    body = text[len(_BEGIN) + _CHARACTERS + len(_BETWEEN) : -len(_END)]
    if text != _with_checksum(body):
        raise ValueError("its content is not what was written")
    return parse_json(body, allow_nan=True)


def _with_checksum(body: str) -> str:
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_BEGIN}{digest}{_BETWEEN}{body}{_END}"
