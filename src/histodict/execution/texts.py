"""Text that others wrote, as values: whatever it is, a ValueError says what is wrong with it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_MAX_LEVELS = 50  # of lists in lists: nothing of ours has ten
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MAX_LINES = 10  # of a list in a message
_MAX_CHARACTERS, _MAX_SHOWN = (
    500,
    150,
)  # in a message; of more than that, at the start and at the end
_MAX_NAMED = 5  # names listed in a message; the others are counted


def parse_json(text: str | bytes, *, allow_nan: bool = False) -> Any:
    """Parse JSON of limited depth; without `allow_nan` NaN and Infinity are errors."""
    try:
        value = json.loads(text, parse_constant=None if allow_nan else _refuse)
    except RecursionError:
        raise ValueError("lists within lists without end") from None
    _check_depth(value)
    return value


def read_json(path: Path, what: str) -> Any:
    """A file of JSON; the message of a ValueError says which, and that it is not `what`."""
    try:
        return parse_json(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; {what} is expected") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not {what}, or a damaged one ({shorten(error)})") from error


def shorten(words: object) -> str:
    """An error's words, or others, as a part of a message: what they quote may be long."""
    text = " ".join(str(words).split())
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_SHOWN]} … {text[-_MAX_SHOWN:]}"


def printable(text: str) -> str:
    """Return text that is valid UTF-8 and has no control sequences for a terminal.

    Bytes of file names that are not UTF-8, and control characters other than tabs and line ends,
    are escaped as `\\xe9`.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # lone surrogates that encode no byte
        data = text.encode("utf-8", "backslashreplace")
    text = data.decode("utf-8", "backslashreplace")
    return _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def first_of(lines: Sequence[str], where: str = "") -> list[str]:
    """Return the first ten lines, then the number of the others and where they are listed."""
    n_more = len(lines) - MAX_LINES
    if n_more <= 0:
        return list(lines)
    return [*lines[:MAX_LINES], f"and {n_more} more{where}"]


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _check_depth(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_LEVELS):
        parts = [part.values() if isinstance(part, dict) else part for part in level]
        level = [inner for part in parts for inner in part if isinstance(inner, dict | list)]
        if not level:
            return
    raise ValueError(f"lists within lists, more than {_MAX_LEVELS} deep")


def pluralize(n: int, noun: str) -> str:
    """`1 image`, `2 images`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def percent(share: float) -> str:
    """Of small shares more places: 0 % is none at all."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 1 or value == 0 else f"{value:.1g} %"


def relative_name(root: Path, path: Path) -> str:
    """Return a path relative to a folder, with forward slashes."""
    text, above = str(path), f"{root}{os.sep}"
    if text.startswith(above):  # most are, and there are thousands
        return text[len(above) :].replace(os.sep, "/")
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def truncated_list(names: Sequence[str]) -> str:
    """Return the first names, comma-separated, and the number of the others."""
    rest = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(map(shorten, names[:_MAX_NAMED])) + rest
