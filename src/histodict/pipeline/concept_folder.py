"""What is known of concepts, in a folder: made once, named by people, used with a few labels.

concepts.safetensors   atoms and usage, with what they were made with; not made again
concepts.csv           a row per concept; the column `name` is for people, and is kept
usage.csv              a row per image: the share of its patches that use each concept
answers.csv            where some images have labels: a row per image, and because of what
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ..execution.files import atomic_write
from ..execution.tables import Row
from ..execution.texts import parse_json
from ..images.csv_file import read_csv_rows
from ..model_file import digest, serialize
from .concepts import ConceptDictionary, ConceptUsage

FILE, TABLE, USAGE, PREDICTIONS = "concepts.safetensors", "concepts.csv", "usage.csv", "answers.csv"
_FORM = 1  # goes up when the file is written otherwise
_KEY, _DIGEST = "histodict", "sha256"


def write_concepts(
    folder: Path, concepts: ConceptDictionary, usage: ConceptUsage, settings: dict[str, Any]
) -> None:
    arrays = {f"concepts.{k}": v for k, v in asdict(concepts).items()}
    arrays |= {f"usage.{k}": v for k, v in asdict(usage).items()}
    with atomic_write(folder / FILE) as partial:
        partial.write_bytes(serialize({"concepts": _FORM, "settings": settings}, arrays))


def read_concepts(folder: Path) -> tuple[ConceptDictionary, ConceptUsage, dict[str, Any]] | None:
    """What the folder holds, and what it was made with; None if it holds no concepts yet."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="numpy") as opened:
            header = parse_json((opened.metadata() or {})[_KEY])
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        if header.pop(_DIGEST) != digest(header, arrays) or header["concepts"] != _FORM:
            raise ValueError("its digest or form does not fit")
        made = [
            _part(kind, name, arrays)
            for kind, name in ((ConceptDictionary, "concepts"), (ConceptUsage, "usage"))
        ]
        return made[0], made[1], header["settings"]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: is damaged, or has another format ({error}): remove it to learn again"
        ) from error


def _part(kind: Any, name: str, arrays: dict[str, NDArray[Any]]) -> Any:
    own = {k.partition(".")[2]: v for k, v in arrays.items() if k.startswith(f"{name}.")}
    return kind(**own)


def check_settings_match(folder: Path, before: dict[str, Any], today: dict[str, Any]) -> None:
    """Refuses a folder of concepts that were made otherwise."""
    plain = json.loads(json.dumps(today))
    others = sorted(k for k in plain.keys() | before.keys() if plain.get(k) != before.get(k))
    if others:
        raise ValueError(
            f"{folder}: holds concepts that were made otherwise ({', '.join(others)} differ): "
            "choose another folder (--output), or remove it"
        )


def names_in(folder: Path, n_atoms: int) -> list[str]:
    """What people called the concepts; those without a name are numbered."""
    names = [f"concept {place + 1}" for place in range(n_atoms)]
    file = folder / TABLE
    if not file.exists():
        return names
    (_, header), *lines = read_csv_rows(file) or [(0, [])]
    rows = [dict(zip(header, cells, strict=False)) for _, cells in lines]
    try:
        given = {int(row["concept"]): row["name"].strip() for row in rows}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: must have the columns concept and name, a number and a word ({error})"
        ) from error
    wrong = sorted(set(given) - set(range(1, n_atoms + 1)))
    if wrong:
        raise ValueError(f"{file}: there is no concept {wrong[0]}; there are 1 to {n_atoms}")
    return [given.get(place + 1) or name for place, name in enumerate(names)]


def concept_rows(
    concepts: ConceptDictionary,
    usage: ConceptUsage,
    names: list[str],
    patients: list[str],
    images: list[str],
) -> list[Row]:
    """A row per concept; the images that use it most are of different patients."""
    rows = []
    for place, name in enumerate(names):
        shares = usage.fractions[:, place]
        most: dict[str, str] = {}
        for image in np.argsort(-shares, kind="stable").tolist():
            most.setdefault(patients[image], images[image])
        recurs = concepts.recurrence[place]
        rows.append(
            {
                "concept": place + 1,
                "name": "" if name == f"concept {place + 1}" else name,
                "share": round(float(np.average(shares, weights=usage.patches)), 4),
                "patients": len({p for p, s in zip(patients, shares, strict=True) if s >= 0.01}),
                "recurrence": None if np.isnan(recurs) else round(float(recurs), 3),
                "most_in": "; ".join(list(most.values())[:3]),
            }
        )
    return rows


def usage_rows(
    usage: ConceptUsage, names: list[str], patients: list[str], images: list[str]
) -> list[Row]:
    """A row per image: the share of its patches that use each concept."""
    taken = ("image", "patient", "patches")
    columns = [
        name if names.count(name) == 1 and name not in taken else f"{name} (concept {i + 1})"
        for i, name in enumerate(names)
    ]
    if len(set(columns)) < len(columns):
        raise ValueError("two concepts would have the same column: give them other names")
    return [
        {"image": image, "patient": patient, "patches": int(n)}
        | dict(zip(columns, np.round(shares, 4).tolist(), strict=True))
        for image, patient, n, shares in zip(
            images, patients, usage.patches, usage.fractions, strict=True
        )
    ]
