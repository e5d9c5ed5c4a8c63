"""What is known of a model's atoms, as columns of a table of them: from `histodict atoms`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..decisions.atom_notes import AtomAnnotations
from ..execution.tables import Row
from ..images.csv_file import read_csv_rows
from ..pipeline.image_model import AtomTable

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
        for name in (
            f"variance_share_{level}",
            f"variance_share_{level}_low",
            f"variance_share_{level}_high",
        )
    },
}
_YES, _NO = ("true", "1"), ("false", "0", "")


def read_atom_statistics(path: Path) -> list[Row]:
    """The table that `histodict atoms --csv` wrote."""
    (_, header), *lines = read_csv_rows(path) or [(0, [])]
    rows: list[Row] = [dict(zip(header, cells, strict=False)) for _, cells in lines]
    if not rows or not {"digest", "disabled", "auc", "is_site_confounded"} <= set(rows[0]):
        raise ValueError(f"{path}: is no table of atoms, as `histodict atoms --csv` writes it")
    return rows


def check_statistics(facts: Sequence[Row], atoms: AtomTable, notes: AtomAnnotations) -> None:
    """Refuses facts of another model, and of one in which other atoms were off."""
    if not facts:
        return
    anew = "write them anew with `histodict atoms --csv`"
    own = [atoms.digest(atom) for atom in range(len(atoms.D))]
    if [row["digest"] for row in facts] != own:
        raise ValueError(f"the facts are of other atoms than this model's {len(own)}: {anew}")
    if [
        place for place, row in enumerate(facts) if _is_yes("disabled", row["disabled"])
    ] != notes.disabled:
        raise ValueError(f"the facts are of this model with other atoms switched off: {anew}")


def statistics_columns(
    facts: Sequence[Row], atoms: AtomTable, notes: AtomAnnotations
) -> dict[str, Any]:
    """A column per fact, NaN where it is not known; none without facts."""
    check_statistics(facts, atoms, notes)
    if not facts:
        return {}
    found: dict[str, Any] = {
        column: np.array([_number(row.get(name)) for row in facts])
        for name, column in _NUMBERS.items()
    }
    return found | {
        "is_site_confounded": np.array(
            [_is_yes("is_site_confounded", row["is_site_confounded"]) for row in facts]
        )
    }


def _number(value: Any) -> float:
    return np.nan if value in (None, "") else float(value)


def _is_yes(name: str, value: Any) -> bool:
    text = str(value).lower()
    if text not in (*_YES, *_NO):
        raise ValueError(f"{name}: must be true or false, not {value!r}")
    return text in _YES
