"""Scores of the test images with intervals by patient, and tests of differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..compare.patch_measures import OVERLAPS
from ..evaluation.answers import Repeat
from ..evaluation.comparison import paired_bootstrap
from ..evaluation.intervals import Metric, bootstrap_interval
from ..evaluation.proportions import MIN_PATIENTS, Proportion, mean_interval, proportion
from .travel import ClassFigure, Compared, Difference, Figures, Range

Rows = Sequence[Mapping[str, Any]]


def figures(classes: Sequence[str], rows: Rows, least: float | None = None) -> Figures:
    """Of rows with an answer.

    Parameters
    ----------
    least : minimum number of connected patches of a region, for models that find regions
    """
    shares = {name: share for name in classes if (share := _fraction(name, rows))}
    known = [shares[name] for name in classes if name in shares]
    # Images of unknown classes count in the mean; their predictions are always wrong.
    is_whole = {row["label"] for row in rows} == set(classes)
    balanced = mean_interval(known) if is_whole else None
    return {
        "classes": [_described(name, share) for name, share in shares.items()],
        "balanced": None if balanced is None else _range(*balanced),
        "few": [name for name, share in shares.items() if share.n_patients < MIN_PATIENTS],
        "overlap": {} if least is None else _overlaps(rows, least),
    }


def _fraction(name: str, rows: Rows) -> Proportion | None:
    """Return the proportion of correctly classified images of a class."""
    own = [row for row in rows if row["label"] == name]
    if not own:
        return None
    return proportion([row["answer"] == name for row in own], [row["patient"] for row in own])


def _described(name: str, share: Proportion) -> ClassFigure:
    low, high = share.low, share.high
    return {
        "name": name,
        "n_right": share.n_right,
        "n_images": share.n_images,
        "n_patients": share.n_patients,
        "interval": None if low is None or high is None else _range(low, high),
    }


def _range(low: float, high: float) -> Range:
    return {"low": low, "high": high}


def _overlaps(rows: Rows, least: float) -> dict[str, Range | None]:
    """Return intervals of pooled Dice and IoU, for regions of at least `least` patches."""
    place, known = round(least) - 1, [row.get("overlap") for row in rows]
    patients = np.array([str(row["patient"]) for row in rows])
    if not known or any(one is None or not 0 <= place < len(one) for one in known):
        return {}
    tables = np.array([[*one[place], 0] for one in known if one])
    repeat = Repeat(np.full(len(tables), "image"), patients, tables)
    return {name: _bootstrap(metric, repeat) for name, metric in OVERLAPS.items()}


def _bootstrap(metric: Metric, repeat: Repeat) -> Range | None:
    if len(set(repeat.patients)) < MIN_PATIENTS:
        return None
    try:
        found = bootstrap_interval(metric, [repeat])
    except ValueError:  # the metric is undefined on these patients or on nearly all draws
        return None
    return _range(found.low, found.high)


def describe_range(found: Range | None) -> str:
    """Describe an interval, or its absence."""
    if found is None:
        return "no interval can be given"
    return f"95 % interval by patient {found['low']:.2f} to {found['high']:.2f}"


# --- two models on the same images --------------------------------------------------------------


def difference(rows: Sequence[Compared], patients: Sequence[str]) -> Difference | None:
    """Return the increase of the proportion of correct images; None with too few patients."""
    if len(set(patients)) < MIN_PATIENTS:
        return None
    owners, images = np.array(patients), np.full(len(rows), "image")
    now, before = (
        Repeat(images, owners, np.array([row[key] == row["label"] for row in rows]))
        for key in ("answer", "answer_before")
    )
    found = paired_bootstrap(lambda _, is_right: float(np.mean(is_right)), [now], [before])
    return {"value": found.difference, "low": found.low, "high": found.high}
