"""The tables of an evaluation, from the answers of its trials."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation import metrics
from ..evaluation.answers import Repeat, gather
from ..evaluation.comparison import holm, paired_bootstrap
from ..evaluation.intervals import bootstrap_interval
from ..evaluation.splits import Splits
from ..execution.tables import Row
from ..images.manifest import Manifest
from .checks import tested_classes
from .tasks import Result

N_DRAWS = 2000  # of patients, for every interval and comparison


def answer_rows(manifest: Manifest, results: list[Result]) -> list[Row]:
    rows = []
    for result in (result for result in results if not result.error):
        split = result.task.split
        chosen = manifest.select(split.test).records
        said = result.answered
        for record, label, scores in zip(chosen, said.labels, said.scores, strict=True):
            rows.append(
                {
                    "method": result.task.method,
                    "seed": result.task.seed,
                    "split": split.name,
                    "image": manifest.name(record),
                    "patient": record.patient,
                    "truth": record.label,
                    "label": label,
                    **{f"score_{i}": score for i, score in enumerate(scores)},
                }
            )
    return rows


def values(manifest: Manifest, splits: Splits, good: dict[str, list[Result]]) -> list[Row]:
    classes = tested_classes(manifest, splits)
    rows = []
    for size in dict.fromkeys(split.n_per_class for split in splits):
        for method, results in good.items():
            for name, (kind, metric) in metrics_for(classes).items():
                repeats = repeats_of(manifest, results, method, size, kind)
                interval = bootstrap_interval(metric, repeats, n_replicates=N_DRAWS)
                spread = [metric(repeat.labels, repeat.answers) for repeat in repeats]
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
                        "n_repeats": len(repeats),
                    }
                )
    return rows


def comparisons(manifest: Manifest, splits: Splits, good: dict[str, list[Result]]) -> list[Row]:
    """Balanced accuracy of every method against the first, corrected for how many there are."""
    rows: list[Row] = []
    names = list(good)
    for size in dict.fromkeys(split.n_per_class for split in splits):
        if len(names) < 2:
            continue
        first = repeats_of(manifest, good[names[0]], names[0], size, "labels")
        made = {}
        for name in names[1:]:
            other = repeats_of(manifest, good[name], name, size, "labels")
            made[name] = paired_bootstrap(
                metrics.balanced_accuracy, first, other, n_replicates=N_DRAWS
            )
        corrected = holm([comparison.p_value for comparison in made.values()])
        for (name, comparison), p_value in zip(made.items(), corrected, strict=True):
            rows.append(
                {
                    "method": names[0],
                    "against": name,
                    "n_per_class": size,
                    "metric": "balanced accuracy",
                    "difference": comparison.difference,
                    "low": comparison.low,
                    "high": comparison.high,
                    "p_value": comparison.p_value,
                    "p_holm": p_value,
                }
            )
    return rows


def metrics_for(classes: list[str]) -> dict[str, tuple[str, Callable[..., float]]]:
    """What is measured, and on what: "labels" or "scores"."""
    chosen: dict[str, tuple[str, Callable[..., float]]] = {
        "balanced accuracy": ("labels", metrics.balanced_accuracy),
        "AUC": ("scores", metrics.auc),
    }
    if len(classes) == 2:
        positive = classes[1]
        chosen["AUC"] = ("scores", partial(metrics.auc, positive=positive))
        chosen["sensitivity"] = ("labels", partial(metrics.sensitivity, positive=positive))
        chosen["specificity"] = ("labels", partial(metrics.specificity, positive=positive))
    return chosen


def repeats_of(
    manifest: Manifest, results: list[Result], method: str, size: int | None, kind: str
) -> list[Repeat]:
    own = [r for r in results if r.task.method == method and r.task.split.n_per_class == size]
    seeds = list(dict.fromkeys(result.task.seed for result in own))
    repeats = []
    for seed in seeds:
        chosen = [result for result in own if result.task.seed == seed]
        answers = [_answers(result, kind) for result in chosen]
        repeats += gather(manifest, [result.task.split for result in chosen], answers)
    return repeats


def _answers(result: Result, kind: str) -> NDArray[Any]:
    """An image of glass alone has no score; it counts as one on the border."""
    if kind == "labels":
        return np.array(result.answered.labels)
    scores = np.nan_to_num(np.array(result.answered.scores, dtype=np.float64))
    return scores[:, 0] if scores.shape[1] == 1 else scores


def timing_rows(results: list[Result]) -> list[Row]:
    return [
        {
            "method": result.task.method,
            "seed": result.task.seed,
            "split": result.task.split.name,
            "n_train": len(result.task.split.train),
            "n_test": len(result.task.split.test),
            "train_seconds": result.answered.seconds["train"],
            "test_seconds": result.answered.seconds["test"],
            "peak_mib": result.answered.peak_mib,
        }
        for result in results
        if not result.error
    ]
