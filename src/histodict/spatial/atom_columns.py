"""What is known of a model's atoms, as columns of a table of them: from `histodict atoms`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..execution.tables import Row
from ..images.csv_file import csv_rows

# By the name of a fact, its column; see `pipeline.atom_facts.AtomFacts`.
_NUMBERS = {
    "n_patients": "n_patients",
    "of_patients": "of_patients",
    "auc": "auc",
    "auc_low": "auc_low",
    "auc_high": "auc_high",
    "seeds": "stability_seeds",
    "halves": "stability_halves",
    **{
        name: name
        for level in ("site", "patient", "slide")
        for name in (f"leak_{level}", f"leak_{level}_low", f"leak_{level}_high")
    },
}
_YES, _NO = ("true", "1"), ("false", "0", "")


def read_facts(path: Path) -> list[Row]:
    """The table that `histodict atoms --csv` wrote."""
    (_, header), *lines = csv_rows(path) or [(0, [])]
    rows: list[Row] = [dict(zip(header, cells, strict=False)) for _, cells in lines]
    if not rows or not {"label", "auc", "is_leak"} <= set(rows[0]):
        raise ValueError(f"{path}: is no table of atoms, as `histodict atoms --csv` writes it")
    return rows


def check_facts(facts: Sequence[Row], labels: Sequence[str]) -> None:
    """Refuses facts of other atoms than those that go by these labels."""
    if facts and [row["label"] for row in facts] != list(labels):
        raise ValueError(
            f"the facts are of {len(facts)} atoms, from {facts[0]['label']} to "
            f"{facts[-1]['label']}; the model has {len(labels)}, from {labels[0]} to {labels[-1]}: "
            "write them anew with `histodict atoms --csv`"
        )


def fact_columns(facts: Sequence[Row], labels: Sequence[str]) -> dict[str, Any]:
    """A column per fact, NaN where it is not known; none without facts."""
    check_facts(facts, labels)
    if not facts:
        return {}
    found: dict[str, Any] = {
        column: np.array([_number(row.get(name)) for row in facts])
        for name, column in _NUMBERS.items()
    }
    return found | {"is_leak": np.array([_is_yes(row["is_leak"]) for row in facts])}


def _number(value: Any) -> float:
    return np.nan if value in (None, "") else float(value)


def _is_yes(value: Any) -> bool:
    text = str(value).lower()
    if text not in (*_YES, *_NO):
        raise ValueError(f"is_leak: must be true or false, not {value!r}")
    return text in _YES
