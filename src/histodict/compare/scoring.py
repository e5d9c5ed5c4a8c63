"""How good the answers of a run are, where the truth of its images is known.

Intervals are by patient, as in `evaluate`; where there are too few patients for one, a value stands
alone and `note` says why.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation.answers import Repeat
from ..evaluation.intervals import Metric, bootstrap_interval
from ..execution.tables import Row
from ..images.manifest import Record
from ..patches.outlines import label_regions
from ..patches.patch_map import PatchMap
from ..pipeline.region_detector import true_patches
from .measures import N_DRAWS, metrics_for

_Judged = tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], str]
_N_BINS = 1000  # of patches' margins: their AUC is then right to three digits, however many


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
        value = metric(repeat.labels, repeat.answers)
    except ValueError as error:
        return {"value": None, "low": None, "high": None, "note": str(error)}
    try:
        found = bootstrap_interval(metric, [repeat], n_replicates=N_DRAWS)
    except ValueError as error:
        return {"value": value, "low": None, "high": None, "note": str(error)}
    return {"value": found.value, "low": found.low, "high": found.high}


# --- regions, patch by patch --------------------------------------------------------------------


def score_patches(images: Iterable[tuple[Record, Path, int]]) -> dict[str, Any]:
    """Patches of all images against their masks or labels; nothing where there are none.

    Of each image the file of its map and how many connected patches make a region: a patch is found
    if it lies in a region that counts. AUC is of the patches' margins.
    """
    found = [judged for image in images if (judged := _judged_if_there(*image)) is not None]
    if not any(len(margins) for margins, _, _, _ in found):
        return {}
    edges = _edges([margins for margins, _, _, _ in found])
    counts = np.array([_counts(margins, t, p, edges) for margins, t, p, _ in found])
    patients = np.array([patient for _, _, _, patient in found])
    repeat = Repeat(_strata([truth for _, truth, _, _ in found]), patients, counts)
    return {name: _measured(metric, repeat) for name, metric in _PATCH_METRICS.items()}


def _strata(truths: list[NDArray[np.bool_]]) -> NDArray[Any]:
    """What every draw of patients must have some of, so that it has patches of both kinds.

    Where most images are of both, any draw has; else it takes images with a region and without.
    """
    if np.mean([truth.any() and not truth.all() for truth in truths]) >= 0.5:
        return np.full(len(truths), "an image")
    return np.array(["with a region" if truth.any() else "without" for truth in truths])


def _judged_if_there(record: Record, file: Path, least: int) -> _Judged | None:
    """An image of an earlier run may be elsewhere by now: it is named, and left out."""
    try:
        return _judged(record, PatchMap.load(file), least)
    except (ValueError, OSError) as error:
        words = f"{record.path}: is left out of the scores of patches ({error})"
        warnings.warn(words, stacklevel=2)
        return None


def _judged(record: Record, patch_map: PatchMap, least: int) -> _Judged:
    """Margins, truth and whether they were found, of the patches on tissue; and whose they are."""
    tissue = patch_map.tissue
    places, sizes = label_regions(patch_map.winners == 1)
    counts = np.concatenate([[False], sizes >= least])
    truth = true_patches(record, patch_map)
    margins = patch_map.margins[..., 1]
    return margins[tissue], truth[tissue], counts[places][tissue], record.patient


def _edges(margins: list[NDArray[np.float32]]) -> NDArray[np.float64]:
    """Between bins of about as many patches each."""
    shares = np.linspace(0, 1, _N_BINS + 1)[1:-1]
    return np.unique(np.quantile(np.concatenate(margins), shares))


def _counts(
    margins: NDArray[np.float32],
    truth: NDArray[np.bool_],
    found: NDArray[np.bool_],
    edges: NDArray[np.float64],
) -> NDArray[np.int64]:
    """Hits, misses, false alarms, rest; then patches by margin, of the region and of the rest."""
    table = [(truth & found).sum(), (truth & ~found).sum(), (~truth & found).sum()]
    bins = np.searchsorted(edges, margins, side="right")
    by_margin = [np.bincount(bins[kind], minlength=len(edges) + 1) for kind in (truth, ~truth)]
    return np.concatenate([[*table, (~truth & ~found).sum()], *by_margin])


def _share(
    part: tuple[int, ...], whole: tuple[int, ...], labels: NDArray[Any], counts: NDArray[np.int64]
) -> float:
    """A sum of hits, misses, false alarms and rest, each taken so many times, over another."""
    total = counts[:, :4].sum(axis=0)
    if not total @ whole:
        raise ValueError("there are no patches of which to tell")
    return float(total @ part / (total @ whole))


def _binned_auc(labels: NDArray[Any], counts: NDArray[np.int64]) -> float:
    inside, outside = np.split(counts[:, 4:].sum(axis=0), 2)
    if not inside.sum() or not outside.sum():
        raise ValueError("AUC needs patches inside and outside of regions")
    below = np.cumsum(outside) - outside
    return float((inside * (below + outside / 2)).sum() / (inside.sum() * outside.sum()))


_PATCH_METRICS: dict[str, Metric] = {
    "AUC": _binned_auc,
    "Dice": partial(_share, (2, 0, 0, 0), (2, 1, 1, 0)),
    "sensitivity": partial(_share, (1, 0, 0, 0), (1, 1, 0, 0)),
    "specificity": partial(_share, (0, 0, 0, 1), (0, 0, 1, 1)),
}
