"""A DataFrame as the lines of a CSV file, without asking for the library that made it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Protocol

FRAME_NAME = "DataFrame"  # in messages, where a file's name would stand


class Frame(Protocol):
    """What pandas and Polars have in common."""

    @property
    def columns(self) -> Iterable[Any]: ...

    def __getitem__(self, name: Any, /) -> Any: ...


def is_dataframe(source: object) -> bool:
    return hasattr(source, "columns") and hasattr(source, "__getitem__")


def dataframe_rows(frame: Frame) -> list[tuple[int, list[str]]]:
    """(line, cells) of the header, then of every row; rows are counted from 0."""
    if not is_dataframe(frame):
        raise TypeError(
            "images with labels are given as a folder, a CSV file, a DataFrame or a Manifest, not "
            f"as {type(frame).__name__}"
        )
    cells = zip(*([_text(cell) for cell in column] for column in _columns(frame)), strict=True)
    header = [str(name) for name in frame.columns]
    return [(-1, header), *((line, list(row)) for line, row in enumerate(cells))]


def _columns(frame: Frame) -> list[Any]:
    """In their order. In pandas two may have one name, under which there is a table of both."""
    if hasattr(frame, "items"):
        return [column for _, column in frame.items()]
    return [frame[name] for name in frame.columns]


def _text(cell: Any) -> str:
    """A cell as a CSV file has it: nothing for what is missing, 7 for the 7.0 beside a gap."""
    if isinstance(cell, os.PathLike):
        return os.fspath(cell)
    # NaN and NaT are not even equal to themselves; NA of pandas has no truth at all.
    if cell is None or type(cell).__name__ == "NAType" or cell != cell:
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)
