"""Text input and output: tables, JSON, checked JSON, and formatting of messages.

Tables are written as CSV and as Parquet. Checked JSON files have a checksum:

    {"sha256": "…", "content": …}

The SHA-256 covers the text of the content, so any changed byte is detected before parsing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .files import atomic_write

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


def column_names(rows: Sequence[Row], columns: Sequence[str] = ()) -> list[str]:
    """Return `columns`, followed by the other columns that occur in any row."""
    return list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))


def write_table(path: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Write a table to two files, path.csv and path.parquet; missing values are empty cells.

    `columns` are the first columns of the table; they are written even if there are no rows.
    """
    write_csv(path.with_suffix(".csv"), rows, columns)
    import pyarrow.parquet

    with atomic_write(path.with_suffix(".parquet")) as partial:
        pyarrow.parquet.write_table(_make_table(rows, columns), partial)


def write_csv(path: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Write rows to a CSV file; for `columns` see `column_names`."""
    import pyarrow.csv

    with atomic_write(path) as partial:
        pyarrow.csv.write_csv(_make_table(rows, columns), partial)


def _make_table(rows: Sequence[Row], columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    names = column_names(rows, columns)
    return pa.table({name: [row.get(name) for row in rows] for name in names})


_MAX_NESTING = 50  # levels of nested lists and dicts; valid files have less than ten
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
MAX_LINES = 10  # lines of a list in a message
_MAX_CHARACTERS = 500  # longer values are shortened in messages
_END_CHARACTERS = 150  # characters of the start and of the end of a shortened value
_MAX_LISTED_NAMES = 5  # names listed in a message; the others are counted


def parse_json(text: str | bytes, *, allow_nan: bool = False) -> Any:
    """Return the value of a JSON text.

    Raise ValueError if the text is invalid or nested too deeply, or if it contains NaN or Infinity
    although `allow_nan` is False.
    """
    try:
        value = json.loads(text, parse_constant=None if allow_nan else _raise_not_a_number)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    _check_depth(value)
    return value


def read_json(path: Path, what: str) -> Any:
    """Return the content of a JSON file.

    Raise ValueError if the file is missing or damaged. The message contains `what`, a description
    of the expected content.
    """
    try:
        return parse_json(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ValueError(f"{path}: file not found; expected {what}") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not {what}, or damaged ({shorten(error)})") from error


def shorten(value: object) -> str:
    """Format a value as one line for a message; "…" replaces the middle of a long text."""
    text = " ".join(str(value).split())
    return (
        text
        if len(text) <= _MAX_CHARACTERS
        else f"{text[:_END_CHARACTERS]} … {text[-_END_CHARACTERS:]}"
    )


def printable(text: str) -> str:
    r"""Return text with invalid UTF-8 and control characters escaped, for output on a terminal.

    Bytes of file names that are not UTF-8, and control characters other than tabs and line ends,
    are escaped as `\\xe9`.
    """
    try:
        data = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # lone surrogates that encode no byte
        data = text.encode("utf-8", "backslashreplace")
    text = data.decode("utf-8", "backslashreplace")
    return _CONTROL_CHARACTERS.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def limit_lines(lines: Sequence[str], suffix: str = "") -> list[str]:
    """Return the first ten lines and, if there are more, a line "and N more".

    Parameters
    ----------
    lines : lines of text
    suffix : text that is appended to "and N more", such as ": see table.csv"
    """
    n_more = len(lines) - MAX_LINES
    if n_more <= 0:
        return list(lines)
    return [*lines[:MAX_LINES], f"and {n_more} more{suffix}"]


def _raise_not_a_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number")


def _check_depth(value: Any) -> None:
    """Raise ValueError if lists and dicts are nested more than `_MAX_NESTING` levels deep."""
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_NESTING):
        values = [each.values() if isinstance(each, dict) else each for each in containers]
        containers = [
            element for each in values for element in each if isinstance(element, dict | list)
        ]
        if not containers:
            return
    raise ValueError(f"JSON is nested more than {_MAX_NESTING} levels deep")


def pluralize(n: int, noun: str) -> str:
    """Return a number with its noun: "1 image", "2 images"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def percent(fraction: float) -> str:
    """Format a fraction in percent; values below 1 % get more digits, so that only 0 is "0 %"."""
    value = 100 * fraction
    return f"{value:.0f} %" if value >= 1 or value == 0 else f"{value:.1g} %"


def relative_name(root: Path, path: Path) -> str:
    """Return `path` relative to `root` (unchanged if outside of it), with forward slashes."""
    text, above = str(path), f"{root}{os.sep}"
    if text.startswith(above):  # fast path for thousands of names
        return text[len(above) :].replace(os.sep, "/")
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def truncated_list(names: Sequence[str]) -> str:
    """Return the first five names as text, separated by commas, and the number of the others."""
    n_more = len(names) - _MAX_LISTED_NAMES
    rest = f" and {n_more} more" if n_more > 0 else ""
    return ", ".join(map(shorten, names[:_MAX_LISTED_NAMES])) + rest


# Errors whose message is written for the user.
EXPECTED_ERRORS = (ValueError, OSError, ImportError)
_PACKAGE = Path(__file__).parents[1]


def failure_reason(error: Exception) -> str:
    """Describe an error of one item of a batch in one line.

    For errors of unexpected type, the line includes type and source locations, so that the cause
    can be found without a traceback.

    Raises
    ------
    BrokenExecutor
        If `error` is of this type: worker processes have ended, which concerns all items.
    """
    from concurrent.futures import BrokenExecutor

    if isinstance(error, BrokenExecutor):
        raise error
    if isinstance(error, MemoryError):
        detail = shorten(error) or "allocation failed"
        return f"not enough memory ({detail}); close other programs and run the command again"
    if isinstance(error, EXPECTED_ERRORS):
        return str(error) or type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    package_frames = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    locations = [
        f"{_short_path(frame.filename)}:{frame.lineno} ({frame.name})"
        for frame in (*package_frames[-1:], *frames[-1:])
    ]
    where = ", ".join(dict.fromkeys(locations))
    return (
        f"unexpected {type(error).__name__}: {shorten(error)} [at {where}]. The file may be "
        "damaged; if it is not, report this line as a bug of histodict"
    )


def _short_path(filename: str) -> str:
    """Return the folder name and the file name of a path."""
    return "/".join(Path(filename).parts[-2:])


_BEFORE_DIGEST, _BEFORE_CONTENT, _AFTER_CONTENT = '{"sha256": "', '", "content": ', "}"
_DIGEST_CHARACTERS = 64


def write_checked_json(path: Path, content: Any) -> None:
    """Write a checked JSON file atomically, in ASCII, as file names may be invalid UTF-8."""
    with atomic_write(path) as partial:
        partial.write_text(_with_checksum(json.dumps(content, default=os.fspath)), encoding="ascii")


def read_checked_json(path: Path) -> Any:
    """Return the content of a checked JSON file after verifying its checksum.

    Raises
    ------
    ValueError
        If the checksum is missing or does not match the content.
    OSError
        If the file cannot be read.
    """
    text = path.read_text(encoding="utf-8")
    start = len(_BEFORE_DIGEST) + _DIGEST_CHARACTERS + len(_BEFORE_CONTENT)
    body = text[start : -len(_AFTER_CONTENT)]
    if text != _with_checksum(body):
        raise ValueError("checksum mismatch")
    return parse_json(body, allow_nan=True)


def _with_checksum(body: str) -> str:
    """Return the text of a checked JSON file whose content is the JSON text `body`."""
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{_BEFORE_DIGEST}{digest}{_BEFORE_CONTENT}{body}{_AFTER_CONTENT}"
