"""Tables of an evaluation: metrics of images and of patches, comparisons and timing.

Regions are evaluated by patches: tissue patches of which at least half lies in the true region are
compared with patches in detected regions. Patches are counted per image, so that patients can be
resampled; all metrics are computed from sums of these counts.

Intervals are by patient, as in `evaluate`. With too few patients there is no interval, and `note`
states why.
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
from ..datasets.record import count_patients
from ..decision.aggregation import score_columns
from ..decision.threshold import TUNED_IMAGES_NOTE, describe_tuning, original_threshold, total_shift
from ..metrics.intervals import (
    Metric,
    UndefinedMetricError,
    bootstrap_interval,
    few_patients_warning,
    holm,
    paired_bootstrap,
)
from ..metrics.scores import RocCurve, auc, balanced_accuracy, sensitivity, specificity
from ..model_selection.protocols import Repeat, collect_repeats
from ..model_selection.splits import Split, is_cross_validated
from ..models import Model
from ..models.inputs import find_patches_in_region, labelled_patch_mask, region_patch_mask
from ..models.predictions import NO_TISSUE_LABEL
from ..patches.patch_map import PatchMap
from ..patches.region_borders import label_regions
from ..utils.text_io import Row, failure_reason
from .runs import EvaluationResult

_N_BINS = 1000  # bins of margins, which give the AUC to three digits
_N_COUNTS = 4  # true positives, false negatives, false positives, true negatives
TISSUE_KINDS = "outside of regions", "inside of regions"  # of the true region


@dataclass(frozen=True)
class PatchEvaluation:
    """Evaluation of the tissue patches of an image against its true region.

    Attributes
    ----------
    margins : (n_patches,), margin of each patch for the class of the region
    truth : (n_patches,), whether at least half of the patch lies in the true region
    detected : (n_patches,), whether the patch lies in a detected region
    """

    margins: NDArray[np.float32]
    truth: NDArray[np.bool_]
    detected: NDArray[np.bool_]

    @classmethod
    def from_map(
        cls, record: ImageRecord, patch_map: PatchMap, min_patches: int
    ) -> PatchEvaluation:
        """Compare a patch map with the mask or label of an image.

        Parameters
        ----------
        record : image with its mask or label
        patch_map : predictions of the patches
        min_patches : minimum number of connected patches of a detected region
        """
        tissue = labelled_patch_mask(record, patch_map)
        region_labels, sizes = label_regions(patch_map.predicted_classes == 1)
        is_counted = np.concatenate([[False], sizes >= min_patches])[region_labels]
        truth = region_patch_mask(record, patch_map)
        return cls(patch_map.margins[..., 1][tissue], truth[tissue], is_counted[tissue])

    def confusion_counts(self) -> NDArray[np.int64]:
        """Return counts of true positives, false negatives, false positives, true negatives."""
        kinds = [(t, d) for t in (self.truth, ~self.truth) for d in (self.detected, ~self.detected)]
        return np.array([int((truth & detected).sum()) for truth, detected in kinds])


def count_in_outlines(record: ImageRecord, patch_map: PatchMap) -> dict[str, NDArray[np.int64]]:
    """Return the confusion counts (TP, FN, FP, TN) by class name.

    Only tissue patches inside an outline count, as the true class of the others is unknown.
    """
    masks = [find_patches_in_region(record, name, patch_map) for name in patch_map.classes]
    known = np.any(masks, axis=0) & patch_map.tissue
    return {
        name: PatchEvaluation(
            patch_map.margins[..., class_index][known],
            mask[known],
            patch_map.predicted_classes[known] == class_index,
        ).confusion_counts()
        for class_index, (name, mask) in enumerate(zip(patch_map.classes, masks, strict=True))
    }


def count_patches(images: Sequence[PatchEvaluation]) -> NDArray[np.int64]:
    """Return the patch counts of each image, (n_images, 4 + 2 n_bins).

    The columns are TP, FN, FP and TN, then a histogram of the margins of patches in the true
    region, and one of the other patches. Bins are quantiles of the margins of all images.
    """
    if not images:
        return np.zeros((0, _N_COUNTS + 2), np.int64)
    margins = np.concatenate([image.margins for image in images])
    levels = np.linspace(0, 1, _N_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(margins, levels)) if len(margins) else np.zeros(0)
    return np.array([_image_counts(image, edges) for image in images])


def _image_counts(image: PatchEvaluation, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    bins = np.searchsorted(edges, image.margins, side="right")
    kinds = image.truth, ~image.truth
    by_margin = [np.bincount(bins[kind], minlength=len(edges) + 1) for kind in kinds]
    return np.concatenate([image.confusion_counts(), *by_margin])


def dice(counts: NDArray[np.int64]) -> float | None:
    """Return the Dice coefficient from TP, FN, FP, TN; None if the first three are 0."""
    try:
        return PATCH_METRICS["Dice"](np.empty(0), counts[None])
    except UndefinedMetricError:
        return None


def split_inside_outside(repeat: Repeat) -> Repeat:
    """Return a repeat with separate patch counts inside and outside of the true region.

    The two kinds of rows have different labels, so that the stratified bootstrap draws both. Rows
    without patches are omitted.
    """
    n_bins = (repeat.predictions.shape[1] - _N_COUNTS) // 2
    # Columns that count patches of the region.
    inside = np.repeat([True, False, True, False], [2, 2, n_bins, n_bins])
    counts = np.concatenate([repeat.predictions * ~inside, repeat.predictions * inside])
    labels = np.repeat(TISSUE_KINDS, len(repeat.predictions))
    is_nonempty = counts.any(axis=1)
    return Repeat(
        labels[is_nonempty], np.tile(repeat.patients, 2)[is_nonempty], counts[is_nonempty]
    )


def patch_roc(counts: NDArray[np.int64]) -> RocCurve:
    """Return the ROC curve of patches from `count_patches`.

    `RocCurve.operating` contains the rates of the detected regions.
    """
    tp, fn, fp, tn = counts[:, :_N_COUNTS].sum(axis=0).tolist()
    inside, outside = np.split(counts[:, _N_COUNTS:].sum(axis=0), 2)
    false_negative_rate, specificity = (
        np.cumsum([0, *kind]) / max(1, kind.sum()) for kind in (inside, outside)
    )
    operating_point = fp / max(1, fp + tn), fn / max(1, tp + fn)
    return RocCurve(1 - specificity, false_negative_rate, operating_point)


def _ratio(
    numerator: tuple[int, ...],
    denominator: tuple[int, ...],
    labels: NDArray[Any],
    counts: NDArray[np.int64],
) -> float:
    """Return the ratio of two weighted sums of TP, FN, FP and TN.

    `numerator` and `denominator` are the weights; `functools.partial` with both gives a `Metric`.
    `counts` are from `count_patches`; `labels` is not used.
    """
    total = counts[:, :_N_COUNTS].sum(axis=0)
    if not total @ denominator:
        raise UndefinedMetricError("there are no patches with a known class")
    return float(total @ numerator / (total @ denominator))


def _binned_auc(labels: NDArray[Any], counts: NDArray[np.int64]) -> float:
    inside, outside = np.split(counts[:, _N_COUNTS:].sum(axis=0), 2)
    if not inside.sum() or not outside.sum():
        raise UndefinedMetricError("AUC needs patches inside and outside of regions")
    n_lower = np.cumsum(outside) - outside
    return float((inside * (n_lower + outside / 2)).sum() / (inside.sum() * outside.sum()))


# Metrics of `count_patches`; the first is used for the comparisons.
PATCH_METRICS: dict[str, Metric] = {
    "AUC": _binned_auc,
    "Dice": partial(_ratio, (2, 0, 0, 0), (2, 1, 1, 0)),
    "sensitivity": partial(_ratio, (1, 0, 0, 0), (1, 1, 0, 0)),
    "specificity": partial(_ratio, (0, 0, 0, 1), (0, 0, 1, 1)),
}
# Metrics of one class against its outlines, from the same counts.
OVERLAP_METRICS: dict[str, Metric] = {
    "Dice": PATCH_METRICS["Dice"],
    "IoU": partial(_ratio, (1, 0, 0, 0), (1, 1, 1, 0)),
}

N_REPLICATES = 2000  # bootstrap replicates of every interval and comparison
# Metrics by name: kind of predictions, as in `Repeats`, and function.
Metrics = dict[str, tuple[str, Callable[..., float]]]


def prediction_rows(manifest: Manifest, results: list[EvaluationResult]) -> list[Row]:
    """Return a table row per test image of each successful run."""
    rows = []
    for result in (result for result in results if not result.error):
        split = result.task.split
        chosen, classes = manifest.select(split.test).records, manifest.select(split.train).classes
        for i, (record, label) in enumerate(zip(chosen, result.predictions.labels, strict=True)):
            rows.append(
                {
                    "method": result.task.method,
                    "seed": result.task.seed,
                    "split": split.name,
                    "image": manifest.name(record),
                    "patient": record.patient,
                    "truth": record.label,
                    "label": label,
                    **score_columns(classes, result.predictions.scores[i]),
                    **_region_columns(result, i, record),
                }
            )
    return rows


def _region_columns(result: EvaluationResult, i: int, record: ImageRecord) -> Row:
    """Return TP, FN, FP and TN of the i-th image as table columns; none for classifiers."""
    predictions = result.predictions
    if predictions.min_patches is None:
        return {}
    table = evaluate_patches(result, i, record).confusion_counts().tolist()
    names = "hits", "misses", "false_alarms", "rest"
    return {"min_patches": predictions.min_patches} | dict(zip(names, table, strict=True))


def evaluate_patches(result: EvaluationResult, i: int, record: ImageRecord) -> PatchEvaluation:
    """Evaluate the patches of the i-th test image of a run that detects regions."""
    patch_map, min_patches = result.predictions.load_map(i), result.predictions.min_patches
    if patch_map is None or min_patches is None:
        raise ValueError(f"{result.task.name} has no map of {record.path}. Delete the cached run")
    return PatchEvaluation.from_map(record, patch_map, min_patches)


def metric_table(
    repeats: Repeats, sizes: Sequence[int | None], methods: Sequence[str], metrics: Metrics
) -> list[Row]:
    """Return a table row with value and interval for each training set size, method and metric.

    `sizes` are numbers of training images per class, or None if the protocol sets none.
    """
    rows, shares_patients = [], repeats.cross_validated
    for size in sizes:
        for method in methods:
            for name, (kind, metric) in metrics.items():
                tested = repeats.select(method, size, kind)
                interval = bootstrap_interval(
                    metric, tested, n_replicates=N_REPLICATES, cross_validated=shares_patients
                )
                spread = [metric(repeat.labels, repeat.predictions) for repeat in tested]
                rows.append(
                    {
                        "method": method,
                        "n_per_class": size,
                        "metric": name,
                        "value": interval.value,
                        "low": interval.low,
                        "high": interval.high,
                        "spread_of_repeats": float(np.std(spread)) if len(spread) > 1 else None,
                        "n_patients": interval.n_patients,
                        "n_repeats": len(tested),
                    }
                )
    return rows


def comparison_table(
    repeats: Repeats, sizes: Sequence[int | None], methods: Sequence[str], metrics: Metrics
) -> list[Row]:
    """Return a table row per comparison of the first method with another one, by the first metric.

    Comparisons are paired by patient; p-values are corrected by Holm's method. See `metric_table`
    for the parameters.
    """
    rows: list[Row] = []
    metric_name, (kind, metric) = next(iter(metrics.items()))
    kind = "counts" if kind == "patches" else kind  # rows are images, equal for all methods
    for size in sizes if len(methods) > 1 else ():
        first, *others = (repeats.select(name, size, kind) for name in methods)
        comparisons = {
            name: paired_bootstrap(metric, first, other, n_replicates=N_REPLICATES)
            for name, other in zip(methods[1:], others, strict=True)
        }
        corrected = holm([comparison.p_value for comparison in comparisons.values()])
        for (name, comparison), p_value in zip(comparisons.items(), corrected, strict=True):
            rows.append(
                {
                    "method": methods[0],
                    "against": name,
                    "n_per_class": size,
                    "metric": metric_name,
                    "difference": comparison.difference,
                    "low": comparison.low,
                    "high": comparison.high,
                    "p_value": comparison.p_value,
                    "p_holm": p_value,
                }
            )
    return rows


def select_metrics(classes: list[str], *, regions: bool = False) -> Metrics:
    """Return the metrics for images of these classes, or for patches if `regions` is True."""
    if regions:
        return {name: ("patches", metric) for name, metric in PATCH_METRICS.items()}
    chosen: Metrics = {"balanced accuracy": ("labels", balanced_accuracy), "AUC": ("scores", auc)}
    if len(classes) == 2:
        positive = classes[1]
        chosen["AUC"] = ("scores", partial(auc, positive=positive))
        chosen["sensitivity"] = ("labels", partial(sensitivity, positive=positive))
        chosen["specificity"] = ("labels", partial(specificity, positive=positive))
    return chosen


class Repeats:
    """Predictions of all methods by repeat and seed, collected at first use.

    The kind of predictions is "labels" or "scores" of images; for regions, "counts" of patches with
    one row per image, or "patches" with separate rows inside and outside of regions.
    """

    def __init__(self, manifest: Manifest, results: Sequence[EvaluationResult]) -> None:
        self.manifest = manifest
        self.results = results
        self._computed: dict[tuple[str, int | None, str], list[Repeat]] = {}

    @cached_property
    def cross_validated(self) -> bool:
        """Whether a test patient of one split is a training patient of another."""
        return is_cross_validated(self.manifest, [result.task.split for result in self.results])

    def select(self, method: str, size: int | None, prediction_kind: str) -> list[Repeat]:
        """Return the repeats of a method.

        Parameters
        ----------
        method : name of the plan
        size : number of training images per class; None if the protocol sets none
        prediction_kind : kind of predictions: "labels", "scores", "counts" or "patches"
        """
        if (key := (method, size, prediction_kind)) not in self._computed:
            self._computed[key] = list(self._iterate_repeats(method, size, prediction_kind))
        return self._computed[key]

    def _iterate_repeats(
        self, method: str, size: int | None, prediction_kind: str
    ) -> Iterator[Repeat]:
        if prediction_kind == "patches":
            yield from map(split_inside_outside, self.select(method, size, "counts"))
            return
        tasks = [(result, result.task) for result in self.results]
        of_method = [r for r, t in tasks if t.method == method and t.split.n_per_class == size]
        for seed in dict.fromkeys(result.task.seed for result in of_method):
            chosen = [result for result in of_method if result.task.seed == seed]
            splits = [result.task.split for result in chosen]
            if prediction_kind == "counts":
                yield from self._patch_counts(chosen, splits)
            else:
                yield from collect_repeats(
                    self.manifest, splits, [_select_predictions(r, prediction_kind) for r in chosen]
                )

    def _patch_counts(self, results: list[EvaluationResult], splits: list[Split]) -> list[Repeat]:
        """Return patch counts per image as repeats; equal labels prevent stratified resampling."""
        records = [self.manifest.select(split.test).records for split in splits]
        evaluations = [
            [evaluate_patches(result, i, record) for i, record in enumerate(of_split)]
            for result, of_split in zip(results, records, strict=True)
        ]
        counts = count_patches([image for of_split in evaluations for image in of_split])
        ends = np.cumsum([len(of_split) for of_split in evaluations])
        repeats = collect_repeats(self.manifest, splits, np.split(counts, ends[:-1]))
        return [replace(repeat, labels=np.full(len(repeat.labels), "image")) for repeat in repeats]


def _select_predictions(result: EvaluationResult, prediction_kind: str) -> NDArray[Any]:
    """Return the predicted "labels" or the "scores" of a run; without tissue, scores are 0."""
    if prediction_kind == "labels":
        return np.array(result.predictions.labels)
    scores = np.nan_to_num(np.array(result.predictions.scores, dtype=np.float64))
    return scores[:, 0] if scores.shape[1] == 1 else scores


def timing_rows(results: list[EvaluationResult]) -> list[Row]:
    """Return a table row with time and memory of each successful run."""
    return [
        {
            "method": result.task.method,
            "seed": result.task.seed,
            "split": result.task.split.name,
            "n_train": len(result.task.split.train),
            "n_test": len(result.task.split.test),
            "train_seconds": result.predictions.seconds["train"],
            "test_seconds": result.predictions.seconds["test"],
            "peak_mib": result.predictions.peak_mib,
        }
        for result in results
        if not result.error
    ]


# Record of an image, file of its patch map, and minimum size of a region in patches.
ScoredMap = tuple[ImageRecord, Path, int]


def score_predictions(classes: Sequence[str], rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return metrics of the predictions of images; None if no image has a true label.

    `rows` has a table row per image. Images whose true label is not in `classes` are only counted.
    The result has "metrics" (value and interval by name), "confusion" (rows of the matrix), numbers
    of images and patients, and "few_patients" (a warning).
    """
    known = [row for row in rows if "truth" in row]
    evaluated = [row for row in known if row["truth"] in classes]
    if not known:
        return None
    others = Counter(row["truth"] for row in known if row["truth"] not in classes)
    n_patients, n_without = count_patients((row["patient"], row["path"]) for row in evaluated)
    scores = {
        "n_images": len(evaluated),
        "n_patients": n_patients,
        "n_images_without_patient": n_without,
        "other_labels": dict(sorted(others.items())),
        "metrics": {},
        "confusion": _confusion_rows(classes, evaluated),
    }
    if evaluated:
        labels, patients = (np.array([row[k] for row in evaluated]) for k in ("truth", "patient"))
        predictions = {
            "labels": _predicted_labels(evaluated),
            "scores": _image_scores(classes, evaluated),
        }
        scores["metrics"] = {
            name: _metric_with_interval(metric, Repeat(labels, patients, predictions[kind]))
            for name, (kind, metric) in select_metrics(list(classes)).items()
        }
        scores["few_patients"] = few_patients_warning(labels, patients)
    return scores


def score_before_tuning(model: Model, rows: Sequence[Row], n_tuned: int) -> dict[str, Any]:
    """Return the metrics that a tuned model had before tuning ("untuned"), and notes.

    Metrics of a tuned model on images that were used for tuning are too optimistic.

    Parameters
    ----------
    model : tuned model
    rows : predictions of images whose true class is a class of the model
    n_tuned : number of these images that the model was tuned on
    """
    as_trained = _undo_tuning(model, rows)
    scores = score_predictions(model.class_names_, as_trained) if as_trained else None
    return {
        "n_images": n_tuned,
        "note": TUNED_IMAGES_NOTE,
        "changes": describe_tuning(model.training_info_),
        "untuned": scores["metrics"] if scores else None,
    }


def _undo_tuning(model: Model, rows: Sequence[Row]) -> list[Row] | None:
    """Return the predictions (rows) of the untuned model; None if they cannot be restored."""
    of_regions = model.finds_regions
    threshold = original_threshold(model.training_info_) if of_regions else 0.0
    shift = 0.0 if of_regions else total_shift(model.training_info_)
    if threshold is None or shift is None or len(model.class_names_) != 2:
        return None
    as_trained = []
    for row in rows:
        if row["score"] is not None and row["top_label"] != NO_TISSUE_LABEL:
            score = row["score"] + shift
            is_positive = score >= threshold if of_regions else score > threshold
            row = row | {"score": score, "top_label": model.class_names_[int(is_positive)]}
        as_trained.append(row)
    return as_trained


def _confusion_rows(classes: Sequence[str], rows: Sequence[Row]) -> list[Row]:
    """Return a row per true class with the number of images by predicted label."""
    counts = Counter((row["truth"], row["top_label"]) for row in rows)
    labels = list(dict.fromkeys([*classes, *(row["top_label"] for row in rows)]))
    return [{"truth": t} | {label: counts[t, label] for label in labels} for t in classes]


def _predicted_labels(rows: Sequence[Row]) -> NDArray[Any]:
    return np.array([row["top_label"] for row in rows])


def _image_scores(classes: Sequence[str], rows: Sequence[Row]) -> NDArray[np.float64]:
    """Return the scores of the images, which are 0 for images without tissue."""
    if len(classes) == 2:
        return np.array([row["score"] or 0.0 for row in rows])
    return np.array([[row[f"score_{name}"] or 0.0 for name in classes] for row in rows])


def _metric_with_interval(metric: Metric, repeat: Repeat) -> dict[str, Any]:
    """Return "value", "low" and "high" of a metric; if one is undefined, None and a "note"."""
    try:
        value = metric(repeat.labels, repeat.predictions)
    except ValueError as error:
        return {"value": None, "low": None, "high": None, "note": str(error)}
    try:
        interval = bootstrap_interval(metric, [repeat], n_replicates=N_REPLICATES)
    except ValueError as error:
        return {"value": value, "low": None, "high": None, "note": str(error)}
    return {"value": interval.value, "low": interval.low, "high": interval.high}


# --- patch scores -------------------------------------------------------------------------------


def score_patches(images: Iterable[ScoredMap]) -> dict[str, Any]:
    """Return metrics of patches against masks or labels, with intervals; {} without patches."""
    evaluated = [
        (image[0], evaluation)
        for image in images
        if (evaluation := _patch_evaluation_or_none(*image))
    ]
    counts = count_patches([evaluation for _, evaluation in evaluated])
    if not counts.any():
        return {}
    records = [record for record, _ in evaluated]
    labels, patients = (np.array([getattr(r, k) for r in records]) for k in ("label", "patient"))
    repeat = split_inside_outside(Repeat(labels, patients, counts))
    return {name: _metric_with_interval(metric, repeat) for name, metric in PATCH_METRICS.items()}


def score_overlap(images: Iterable[ScoredMap]) -> dict[str, Any]:
    """Return Dice and IoU of predicted patches and outlines, with intervals, for each class.

    Only patches inside an outline of any class count. Images without outlines are ignored.
    """
    tables: dict[str, list[tuple[ImageRecord, NDArray[np.int64]]]] = {}
    for record, file, _ in images:
        if record.annotations is None:
            continue
        try:
            image_tables = count_in_outlines(record, PatchMap.load(file))
        except Exception as error:
            _warn_excluded(record, error)
            continue
        for name, table in image_tables.items():
            tables.setdefault(name, []).append((record, table))
    return {
        f"{metric_name} {name}": _metric_with_interval(metric, _single_repeat(class_tables))
        for name, class_tables in tables.items()
        if any(table[:2].any() for _, table in class_tables)
        for metric_name, metric in OVERLAP_METRICS.items()
    }


def _single_repeat(pairs: Sequence[tuple[ImageRecord, NDArray[np.int64]]]) -> Repeat:
    """Return pairs (image, counts) as a repeat; equal labels prevent stratified resampling."""
    patients = np.array([record.patient for record, _ in pairs])
    return Repeat(np.full(len(pairs), "image"), patients, np.array([counts for _, counts in pairs]))


def merge_patch_scores(
    scores: dict[str, Any] | None, patches: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the metrics of images and of patches in one dict; None if there are neither."""
    if not patches:
        return scores
    nothing = {"n_images": 0, "n_patients": 0, "other_labels": {}, "metrics": {}, "confusion": []}
    nothing |= {"n_images_without_patient": 0}
    return (scores or nothing) | {"patches": patches}


def _patch_evaluation_or_none(
    record: ImageRecord, file: Path, min_patches: int
) -> PatchEvaluation | None:
    """Evaluate the patches of an image; warn and return None if its map or mask cannot be read."""
    try:
        return PatchEvaluation.from_map(record, PatchMap.load(file), min_patches)
    except Exception as error:
        _warn_excluded(record, error)
        return None


def _warn_excluded(record: ImageRecord, error: Exception) -> None:
    message = f"{record.path}: excluded from patch scores ({failure_reason(error)})"
    warnings.warn(message, stacklevel=3)
