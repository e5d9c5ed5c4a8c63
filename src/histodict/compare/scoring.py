"""How good the answers of a run are, where the truth of its images is known.

Intervals are by patient, as in `evaluate`; where there are too few patients for one, a value stands
alone and `note` says why.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.tuning import NOTE, describe_tuning, first_point, total_shift
from ..evaluation.answers import Repeat
from ..evaluation.intervals import Metric, bootstrap_interval
from ..execution.failures import failure_reason
from ..execution.tables import Row
from ..images.manifest import ImageRecord
from ..patches.patch_map import PatchMap
from ..pipeline import Model
from ..pipeline.answers import NO_TISSUE_LABEL
from .measures import N_DRAWS, metrics_for
from .patch_measures import (
    OVERLAPS,
    PATCH_METRICS,
    PatchEvaluation,
    outlined_tables,
    patch_counts,
    split_inside_outside,
)

# What is known of an image, the file of its map, and how many connected patches make a region.
ScoredMap = tuple[ImageRecord, Path, int]


def score_rows(classes: Sequence[str], rows: Sequence[Row]) -> dict[str, Any] | None:
    """Of rows with a truth; None if there are none. A truth that is no class is only counted."""
    known = [row for row in rows if "truth" in row]
    judged = [row for row in known if row["truth"] in classes]
    if not known:
        return None
    others = Counter(row["truth"] for row in known if row["truth"] not in classes)
    scores = {
        "n_images": len(judged),
        "n_patients": len({row["patient"] for row in judged}),
        "other_labels": dict(sorted(others.items())),
        "metrics": {},
        "confusion": _confusion(classes, judged),
    }
    if judged:
        labels, patients = (np.array([row[k] for row in judged]) for k in ("truth", "patient"))
        answers = {"labels": _labels(judged), "scores": _scores(classes, judged)}
        scores["metrics"] = {
            name: _measured(metric, Repeat(labels, patients, answers[kind]))
            for name, (kind, metric) in metrics_for(list(classes)).items()
        }
    return scores


def tuned_scores(model: Model, rows: Sequence[Row], n_tuned: int) -> dict[str, Any]:
    """Return a note about tuning for scores on the tuning images, with the untuned scores.

    Parameters
    ----------
    rows : predictions of images whose true class is a class of the model
    n_tuned : number of these images that the model was tuned on
    """
    as_trained = _untuned(model, rows)
    found = score_rows(model.classes_, as_trained) if as_trained else None
    return {
        "n_images": n_tuned,
        "note": NOTE,
        "changes": describe_tuning(model.training_info_),
        "untuned": found["metrics"] if found else None,
    }


def _untuned(model: Model, rows: Sequence[Row]) -> list[Row] | None:
    """Return the predictions of the untuned model; None if they cannot be restored."""
    of_regions = model.finds_regions
    point = first_point(model.training_info_) if of_regions else 0.0
    shift = 0.0 if of_regions else total_shift(model.training_info_)
    if point is None or shift is None or len(model.classes_) != 2:
        return None
    as_trained = []
    for row in rows:
        if row["score"] is not None and row["label"] != NO_TISSUE_LABEL:
            score = row["score"] + shift
            is_positive = score >= point if of_regions else score > point
            row = row | {"score": score, "label": model.classes_[int(is_positive)]}
        as_trained.append(row)
    return as_trained


def _confusion(classes: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Per true class how often each was answered; glass is an answer, too."""
    counts = Counter((row["truth"], row["label"]) for row in rows)
    said = list(dict.fromkeys([*classes, *(row["label"] for row in rows)]))
    return [{"truth": t} | {label: counts[t, label] for label in said} for t in classes]


def _labels(rows: Sequence[Row]) -> NDArray[Any]:
    return np.array([row["label"] for row in rows])


def _scores(classes: Sequence[str], rows: Sequence[Row]) -> NDArray[np.float64]:
    """An image of glass has no score; it counts as one on the border."""
    if len(classes) == 2:
        return np.array([row["score"] or 0.0 for row in rows])
    return np.array([[row[f"score_{name}"] or 0.0 for name in classes] for row in rows])


def _measured(metric: Metric, repeat: Repeat) -> dict[str, Any]:
    """The value, with its interval if there are patients enough; `note` where something lacks."""
    try:
        value = metric(repeat.labels, repeat.predictions)
    except ValueError as error:
        return {"value": None, "low": None, "high": None, "note": str(error)}
    try:
        found = bootstrap_interval(metric, [repeat], n_replicates=N_DRAWS)
    except ValueError as error:
        return {"value": value, "low": None, "high": None, "note": str(error)}
    return {"value": found.value, "low": found.low, "high": found.high}


# --- regions, patch by patch --------------------------------------------------------------------


def score_patches(images: Iterable[ScoredMap]) -> dict[str, Any]:
    """Patches of all images against their masks or labels; nothing where there are none."""
    found = [
        (image[0], judged) for image in images if (judged := _patch_evaluation_or_none(*image))
    ]
    counts = patch_counts([judged for _, judged in found])
    if not counts.any():
        return {}
    records = [record for record, _ in found]
    labels, patients = (np.array([getattr(r, k) for r in records]) for k in ("label", "patient"))
    repeat = split_inside_outside(Repeat(labels, patients, counts))
    return {name: _measured(metric, repeat) for name, metric in PATCH_METRICS.items()}


def score_outlined(images: Iterable[ScoredMap]) -> dict[str, Any]:
    """Overlap of each class with its outlines, over patches that lie in an outline of any class.

    Images without outlines say nothing of patches.
    """
    tables: dict[str, list[tuple[ImageRecord, NDArray[np.int64]]]] = {}
    for record, file, _ in images:
        if record.annotations is None:
            continue
        try:
            found = outlined_tables(record, PatchMap.load(file))
        except Exception as error:
            _warn_excluded(record, error)
            continue
        for name, table in found.items():
            tables.setdefault(name, []).append((record, table))
    return {
        f"{measure} {name}": _measured(metric, _repeat(own))
        for name, own in tables.items()
        if any(table[:2].any() for _, table in own)
        for measure, metric in OVERLAPS.items()
    }


def _repeat(own: Sequence[tuple[ImageRecord, NDArray[np.int64]]]) -> Repeat:
    """Draws of patients need no image of each class here, only patches."""
    patients = np.array([record.patient for record, _ in own])
    return Repeat(np.full(len(own), "image"), patients, np.array([table for _, table in own]))


def merge_patch_scores(
    scores: dict[str, Any] | None, patches: dict[str, Any]
) -> dict[str, Any] | None:
    """Scores of images, where there are any, with those of their patches, where there are any."""
    if not patches:
        return scores
    nothing = {"n_images": 0, "n_patients": 0, "other_labels": {}, "metrics": {}, "confusion": []}
    return (scores or nothing) | {"patches": patches}


def _patch_evaluation_or_none(
    record: ImageRecord, file: Path, least: int
) -> PatchEvaluation | None:
    """An image of an earlier run may be elsewhere by now: it is named, and left out."""
    try:
        return PatchEvaluation.of(record, PatchMap.load(file), least)
    except Exception as error:
        _warn_excluded(record, error)
        return None


def _warn_excluded(record: ImageRecord, error: Exception) -> None:
    words = f"{record.path}: excluded from patch scores ({failure_reason(error)})"
    warnings.warn(words, stacklevel=3)
