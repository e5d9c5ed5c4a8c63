"""The tables of an evaluation, from the answers of its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation import metrics
from ..evaluation.answers import Repeat, collect_repeats
from ..evaluation.comparison import holm, paired_bootstrap
from ..evaluation.intervals import bootstrap_interval
from ..evaluation.splits import Split, cross_validated
from ..execution.tables import Row
from ..images.manifest import ImageRecord, Manifest
from .patch_measures import PATCH_METRICS, PatchEvaluation, patch_counts, split_inside_outside
from .tasks import EvaluationResult

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
