"""Tables as spreadsheets save them: comma, semicolon or tabulator, UTF-8 with or without BOM."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from .records import ManifestError


def read_csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError(
            f"{path}: the text is not UTF-8 ({error}); save it as 'CSV UTF-8'"
        ) from error
    header = text.lstrip().partition("\n")[0]
    separator = max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise ManifestError(f"{path}, line {reader.line_num}: {error}") from error
