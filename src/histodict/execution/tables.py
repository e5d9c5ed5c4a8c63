"""Tables on disk: the same rows as CSV, to look at, and as Parquet, to go on with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from .files import written_whole

Row = dict[str, Any]


def column_names(rows: Sequence[Row], columns: Sequence[str] = ()) -> list[str]:
    """`columns` first, then all others that a row has."""
    return list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))


def write_table(path: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """path.csv and path.parquet; a column that a row lacks is empty there.

    `columns` come first, and are there even without rows.
    """
    names = column_names(rows, columns)
    table = pa.table({name: [row.get(name) for row in rows] for name in names})
    with written_whole(path.with_suffix(".csv")) as partial:
        pyarrow.csv.write_csv(table, partial)
    with written_whole(path.with_suffix(".parquet")) as partial:
        pyarrow.parquet.write_table(table, partial)
