"""Tables on disk: the same rows as CSV, to look at, and as Parquet, to go on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from .files import atomic_write

Row = dict[str, Any]


def column_names(rows: Sequence[Row], columns: Sequence[str] = ()) -> list[str]:
    """`columns` first, then all others that a row has."""
    return list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))


def write_table(path: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """path.csv and path.parquet; a column that a row lacks is empty there.

    `columns` come first, and are there even without rows.
    """
    write_csv(path.with_suffix(".csv"), rows, columns)
    with atomic_write(path.with_suffix(".parquet")) as partial:
        pyarrow.parquet.write_table(_table(rows, columns), partial)


def write_csv(path: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """The first of the two alone, by this name."""
    with atomic_write(path) as partial:
        pyarrow.csv.write_csv(_table(rows, columns), partial)


def _table(rows: Sequence[Row], columns: Sequence[str]) -> pa.Table:
    names = column_names(rows, columns)
    return pa.table({name: [row.get(name) for row in rows] for name in names})
