"""The tables of an evaluation, from the answers of its trials.

How good regions are, patch by patch: of the patches on tissue, those of which half or more lies
in the true region against those in regions that were found.

Patches are counted image by image, so that patients can be drawn: whatever is measured follows from
sums of these counts.

How good the answers of a run are, where the truth of its images is known.

Intervals are by patient, as in `evaluate`; where there are too few patients for one, a value stands
alone and `note` says why.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.manifest import ImageRecord, Manifest
from ..decision.threshold import NOTE, describe_tuning, first_point, total_shift
from ..metrics import scores as metrics
from ..metrics.intervals import (
    Metric,
    UndefinedMetricError,
    bootstrap_interval,
    holm,
    paired_bootstrap,
)
from ..metrics.scores import RocCurve
from ..model_selection.protocols import Repeat, collect_repeats
from ..model_selection.splits import Split, cross_validated
from ..models import Model
from ..models.predictions import NO_TISSUE_LABEL
from ..models.region_detector import labelled_patch_mask, map_in_region, region_patch_mask
from ..patches.patch_map import PatchMap, label_regions
from ..utils.text_io import Row, failure_reason
from .runs import EvaluationResult

_N_BINS = 1000  # of patches' margins: their AUC is then right to three digits, however many
_N_TABLE = 4  # hits, misses, false alarms, rest
KINDS = "outside of regions", "inside of regions"


@dataclass(frozen=True)
class PatchEvaluation:
    """The patches of an image that are tissue: margins, truth and whether found, each (n,)."""

    margins: NDArray[np.float32]
    truth: NDArray[np.bool_]
    found: NDArray[np.bool_]

    @classmethod
    def of(cls, record: ImageRecord, patch_map: PatchMap, least: int) -> PatchEvaluation:
        """Against the record's mask or label; a region counts from `least` connected patches on."""
        tissue = labelled_patch_mask(record, patch_map)
        places, sizes = label_regions(patch_map.predicted_classes == 1)
        counts = np.concatenate([[False], sizes >= least])[places]
        truth = region_patch_mask(record, patch_map)
        return cls(patch_map.margins[..., 1][tissue], truth[tissue], counts[tissue])

    def table(self) -> NDArray[np.int64]:
        """Hits, misses, false alarms, rest."""
        kinds = [(t, f) for t in (self.truth, ~self.truth) for f in (self.found, ~self.found)]
        return np.array([int((truth & found).sum()) for truth, found in kinds])


def outlined_tables(record: ImageRecord, patch_map: PatchMap) -> dict[str, NDArray[np.int64]]:
    """Per class hits, misses, false alarms, rest, of patches on tissue that lie in an outline of
    any of the classes: of the others it is not known what they are.
    """
    truths = [map_in_region(record, name, patch_map) for name in patch_map.classes]
    known = np.any(truths, axis=0) & patch_map.tissue
    return {
        name: PatchEvaluation(
            patch_map.margins[..., place][known],
            truth[known],
            patch_map.predicted_classes[known] == place,
        ).table()
        for place, (name, truth) in enumerate(zip(patch_map.classes, truths, strict=True))
    }


def patch_counts(images: Sequence[PatchEvaluation]) -> NDArray[np.int64]:
    """(n_images, n): hits, misses, false alarms, rest; then patches by margin, in bins of about as
    many each, of the region and of the rest.
    """
    if not images:
        return np.zeros((0, _N_TABLE + 2), np.int64)
    margins = np.concatenate([judged.margins for judged in images])
    shares = np.linspace(0, 1, _N_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(margins, shares)) if len(margins) else np.zeros(0)
    return np.array([_counts(judged, edges) for judged in images])


def _counts(judged: PatchEvaluation, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    bins = np.searchsorted(edges, judged.margins, side="right")
    kinds = judged.truth, ~judged.truth
    by_margin = [np.bincount(bins[kind], minlength=len(edges) + 1) for kind in kinds]
    return np.concatenate([judged.table(), *by_margin])


def dice(table: NDArray[np.int64]) -> float | None:
    """Of hits, misses, false alarms, rest; None where no region is and none was found."""
    try:
        return PATCH_METRICS["Dice"](np.empty(0), table[None])
    except UndefinedMetricError:
        return None


def split_inside_outside(repeat: Repeat) -> Repeat:
    """A repeat of counts with a row for the patches inside of an image's regions and one for those
    outside, as far as there are any, labelled as such: draws of patients then have both.
    """
    n_bins = (repeat.predictions.shape[1] - _N_TABLE) // 2
    # The columns that count patches of the region.
    inside = np.repeat([True, False, True, False], [2, 2, n_bins, n_bins])
    counts = np.concatenate([repeat.predictions * ~inside, repeat.predictions * inside])
    labels = np.repeat(KINDS, len(repeat.predictions))
    some = counts.any(axis=1)
    return Repeat(labels[some], np.tile(repeat.patients, 2)[some], counts[some])


def patch_roc(counts: NDArray[np.int64]) -> RocCurve:
    """Of patches over all margins (bins of them), and where it works: in regions that count."""
    hits, misses, alarms, rest = counts[:, :_N_TABLE].sum(axis=0).tolist()
    inside, outside = np.split(counts[:, _N_TABLE:].sum(axis=0), 2)
    miss, below = (np.cumsum([0, *kind]) / max(1, kind.sum()) for kind in (inside, outside))
    operating = alarms / max(1, alarms + rest), misses / max(1, hits + misses)
    return RocCurve(1 - below, miss, operating)


def _fraction(
    part: tuple[int, ...], whole: tuple[int, ...], labels: NDArray[Any], counts: NDArray[np.int64]
) -> float:
    """A sum of hits, misses, false alarms and rest, each taken so many times, over another."""
    total = counts[:, :_N_TABLE].sum(axis=0)
    if not total @ whole:
        raise UndefinedMetricError("there are no patches of which to tell")
    return float(total @ part / (total @ whole))


def _binned_auc(labels: NDArray[Any], counts: NDArray[np.int64]) -> float:
    inside, outside = np.split(counts[:, _N_TABLE:].sum(axis=0), 2)
    if not inside.sum() or not outside.sum():
        raise UndefinedMetricError("AUC needs patches inside and outside of regions")
    below = np.cumsum(outside) - outside
    return float((inside * (below + outside / 2)).sum() / (inside.sum() * outside.sum()))


# Of counts (n_images, n) as above; the first is what methods are compared by.
PATCH_METRICS: dict[str, Metric] = {
    "AUC": _binned_auc,
    "Dice": partial(_fraction, (2, 0, 0, 0), (2, 1, 1, 0)),
    "sensitivity": partial(_fraction, (1, 0, 0, 0), (1, 1, 0, 0)),
    "specificity": partial(_fraction, (0, 0, 0, 1), (0, 0, 1, 1)),
}
# Of a class with its outlines, from the same counts.
OVERLAPS: dict[str, Metric] = {
    "Dice": PATCH_METRICS["Dice"],
    "IoU": partial(_fraction, (1, 0, 0, 0), (1, 1, 1, 0)),
}


N_DRAWS = 2000  # of patients, for every interval and comparison
# By name: of which kind of answers, and the metric.
Measures = dict[str, tuple[str, Callable[..., float]]]


def prediction_rows(manifest: Manifest, results: list[EvaluationResult]) -> list[Row]:
    rows = []
    for result in (result for result in results if not result.error):
        split = result.task.split
        chosen = manifest.select(split.test).records
        for i, (record, label) in enumerate(zip(chosen, result.predicted.labels, strict=True)):
            rows.append(
                {
                    "method": result.task.method,
                    "seed": result.task.seed,
                    "split": split.name,
                    "image": manifest.name(record),
                    "patient": record.patient,
                    "truth": record.label,
                    "label": label,
                    **_scores(result, i, record),
                }
            )
    return rows


def _scores(result: EvaluationResult, i: int, record: ImageRecord) -> Row:
    """Behind the i-th answer: its scores; of regions, the largest, and patches right and wrong."""
    said = result.predicted
    if said.min_patches is None:
        return {f"score_{k}": score for k, score in enumerate(said.scores[i])}
    table = patch_evaluation(result, i, record).table().tolist()
    names = "hits", "misses", "false_alarms", "rest"
    own = {"score": said.scores[i][0], "min_patches": said.min_patches}
    return own | dict(zip(names, table, strict=True))


def patch_evaluation(result: EvaluationResult, i: int, record: ImageRecord) -> PatchEvaluation:
    """The patches behind the i-th answer of a trial of regions."""
    patch_map, least = result.predicted.map_of(i), result.predicted.min_patches
    if patch_map is None or least is None:
        raise ValueError(f"{result.task.name}: has no map of {record.path}; delete its trial")
    return PatchEvaluation.of(record, patch_map, least)


def metric_table(
    repeats: Repeats, sizes: Sequence[int | None], methods: Sequence[str], measured: Measures
) -> list[Row]:
    rows = []
    for size in sizes:
        for method in methods:
            for name, (kind, metric) in measured.items():
                said = repeats.of(method, size, kind)
                interval = bootstrap_interval(
                    metric, said, n_replicates=N_DRAWS, cross_validated=repeats.cross_validated
                )
                spread = [metric(repeat.labels, repeat.predictions) for repeat in said]
                rows.append(
                    {
                        "method": method,
                        "n_per_class": size,
                        "metric": name,
                        "value": interval.value,
                        "low": interval.low,
                        "high": interval.high,
                        "spread_of_repeats": float(np.std(spread)),
                        "n_patients": interval.n_patients,
                        "n_repeats": len(said),
                    }
                )
    return rows


def comparison_table(
    repeats: Repeats, sizes: Sequence[int | None], methods: Sequence[str], measured: Measures
) -> list[Row]:
    """Of every method against the first, by the first measure; corrected for how many there are."""
    rows: list[Row] = []
    measure, (kind, metric) = next(iter(measured.items()))
    kind = "counts" if kind == "patches" else kind  # image by image, which are the same for all
    for size in sizes if len(methods) > 1 else ():
        first, *others = (repeats.of(name, size, kind) for name in methods)
        made = {
            name: paired_bootstrap(metric, first, other, n_replicates=N_DRAWS)
            for name, other in zip(methods[1:], others, strict=True)
        }
        corrected = holm([comparison.p_value for comparison in made.values()])
        for (name, comparison), p_value in zip(made.items(), corrected, strict=True):
            rows.append(
                {
                    "method": methods[0],
                    "against": name,
                    "n_per_class": size,
                    "metric": measure,
                    "difference": comparison.difference,
                    "low": comparison.low,
                    "high": comparison.high,
                    "p_value": comparison.p_value,
                    "p_holm": p_value,
                }
            )
    return rows


def metrics_for(classes: list[str], *, regions: bool = False) -> Measures:
    """What is measured, and on what: see `Repeats`. Methods are compared by the first."""
    if regions:
        return {name: ("patches", metric) for name, metric in PATCH_METRICS.items()}
    chosen: Measures = {
        "balanced accuracy": ("labels", metrics.balanced_accuracy),
        "AUC": ("scores", metrics.auc),
    }
    if len(classes) == 2:
        positive = classes[1]
        chosen["AUC"] = ("scores", partial(metrics.auc, positive=positive))
        chosen["sensitivity"] = ("labels", partial(metrics.sensitivity, positive=positive))
        chosen["specificity"] = ("labels", partial(metrics.specificity, positive=positive))
    return chosen


class Repeats:
    """What the methods answered, repeat by repeat over all seeds, put together once.

    kind : "labels" or "scores" of the images; of regions, "counts" of the patches, a row per image,
        or "patches", the same with a row for those inside of regions and one for those outside
    """

    def __init__(self, manifest: Manifest, results: Sequence[EvaluationResult]) -> None:
        self.manifest = manifest
        self.results = results
        self._computed: dict[tuple[str, int | None, str], list[Repeat]] = {}

    @cached_property
    def cross_validated(self) -> bool:
        """Whether a test patient of one split is a training patient of another."""
        return cross_validated(self.manifest, [result.task.split for result in self.results])

    def of(self, method: str, size: int | None, kind: str) -> list[Repeat]:
        key = method, size, kind
        if key not in self._computed:
            self._computed[key] = list(self._compute(method, size, kind))
        return self._computed[key]

    def _compute(self, method: str, size: int | None, kind: str) -> Iterator[Repeat]:
        if kind == "patches":
            yield from map(split_inside_outside, self.of(method, size, "counts"))
            return
        tasks = [(result, result.task) for result in self.results]
        own = [r for r, t in tasks if t.method == method and t.split.n_per_class == size]
        for seed in dict.fromkeys(result.task.seed for result in own):
            chosen = [result for result in own if result.task.seed == seed]
            splits = [result.task.split for result in chosen]
            if kind == "counts":
                yield from self._counts(chosen, splits)
            else:
                yield from collect_repeats(
                    self.manifest, splits, [_predictions(r, kind) for r in chosen]
                )

    def _counts(self, results: list[EvaluationResult], splits: list[Split]) -> list[Repeat]:
        """Draws of patients need no image of each class here, only patches."""
        records = [self.manifest.select(split.test).records for split in splits]
        seen = [
            [patch_evaluation(result, i, record) for i, record in enumerate(own)]
            for result, own in zip(results, records, strict=True)
        ]
        counts = patch_counts([image for own in seen for image in own])
        ends = np.cumsum([len(own) for own in seen])
        made = collect_repeats(self.manifest, splits, np.split(counts, ends[:-1]))
        return [replace(repeat, labels=np.full(len(repeat.labels), "image")) for repeat in made]


def _predictions(result: EvaluationResult, kind: str) -> NDArray[Any]:
    """An image of glass alone has no score; it counts as one on the border."""
    if kind == "labels":
        return np.array(result.predicted.labels)
    scores = np.nan_to_num(np.array(result.predicted.scores, dtype=np.float64))
    return scores[:, 0] if scores.shape[1] == 1 else scores


def timing_rows(results: list[EvaluationResult]) -> list[Row]:
    return [
        {
            "method": result.task.method,
            "seed": result.task.seed,
            "split": result.task.split.name,
            "n_train": len(result.task.split.train),
            "n_test": len(result.task.split.test),
            "train_seconds": result.predicted.seconds["train"],
            "test_seconds": result.predicted.seconds["test"],
            "peak_mib": result.predicted.peak_mib,
        }
        for result in results
        if not result.error
    ]


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
        answers = {"labels": _labels(judged), "scores": _image_scores(classes, judged)}
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


def _image_scores(classes: Sequence[str], rows: Sequence[Row]) -> NDArray[np.float64]:
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
