"""Methods against each other on the same splits: values with intervals, and paired comparisons.

FOLDER/splits.json              which image was trained on and tested on, to be used again
FOLDER/cells/                   one file per training, which is not done again while it is there;
                                beside it the patch maps of what was answered wrongly
FOLDER/answers.csv, .parquet    one row per method, seed, split and test image
FOLDER/results.csv, .parquet    per method: metrics with 95 % intervals by patient
FOLDER/comparisons.csv, …       every method against the first one, paired by patient
FOLDER/timing.csv, .parquet     seconds and memory per training
FOLDER/provenance.json          data, splits, seeds, recipes, versions
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation import metrics
from ..evaluation.answers import Repeat, gather
from ..evaluation.comparison import holm, paired_bootstrap
from ..evaluation.intervals import bootstrap_interval
from ..evaluation.split_file import save_splits, splits_digest
from ..evaluation.splits import Splits
from ..execution.executor import Executor
from ..execution.files import written_whole
from ..execution.progress import Callback, ignore
from ..execution.tables import Row, write_table
from ..images.manifest import Manifest
from ..recipes import Recipe
from .cells import Cell, Result, run_cells
from .checks import check_measurable, tested_classes

N_DRAWS = 2000  # of patients, for every interval and comparison


@dataclass(frozen=True)
class Evaluation:
    """Everything that was measured; `rows` of the tables, and the answers behind them."""

    manifest: Manifest
    splits: Splits
    recipes: dict[str, Recipe]
    seeds: list[int]
    results: list[Result]
    values: list[Row]
    comparisons: list[Row]
    timing: list[Row]

    @property
    def failures(self) -> list[Result]:
        return [result for result in self.results if result.error]

    @property
    def classes(self) -> list[str]:
        """The classes that were tested, sorted; of two, the second counts as positive."""
        return tested_classes(self.manifest, self.splits)

    @property
    def methods(self) -> list[str]:
        """Those that worked on every split, in the order asked for: the ones in the tables."""
        return list(_complete(self.results, list(self.recipes)))

    def sizes(self) -> list[int | None]:
        """The training images per class that were asked for, in order; [None] if none were."""
        return list(dict.fromkeys(split.n_per_class for split in self.splits))

    @property
    def shown_size(self) -> int | None:
        """The largest of the sizes, where a report shows one of them."""
        return max(self.sizes(), key=lambda size: size or 0)

    def value(self, method: str, metric: str, size: int | None) -> Row:
        """The row of `values` with a method's figure."""
        wanted = (method, metric, size)
        rows = self.values
        return next(r for r in rows if (r["method"], r["metric"], r["n_per_class"]) == wanted)

    def repeats(self, method: str, size: int | None, kind: str) -> list[Repeat]:
        """A method's answers, `kind` "labels" or "scores", repeat by repeat, over all seeds."""
        return _repeats(self.manifest, self.results, method, size, kind)


def evaluate(
    manifest: Manifest,
    recipes: dict[str, Recipe],
    splits: Splits,
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    n_jobs: int | None = None,
    cache: Path | None = None,
    callback: Callback = ignore,
    executor: Executor | None = None,
) -> Evaluation:
    """Run what is not there yet, and write the files above.

    `executor` takes a training at a time; None: `n_jobs` processes here.
    """
    check_measurable(manifest, splits)
    folder.mkdir(parents=True, exist_ok=True)
    save_splits(splits, folder / "splits.json")
    cells = [
        Cell(name, recipe, split, seed)
        for seed in seeds
        for split in splits
        for name, recipe in recipes.items()
    ]
    results = run_cells(
        manifest,
        cells,
        folder / "cells",
        n_jobs=n_jobs,
        cache=cache or folder / "cache",
        callback=callback,
        executor=executor,
    )
    good = _complete(results, list(recipes))
    done = Evaluation(
        manifest,
        splits,
        recipes,
        list(seeds),
        results,
        _values(manifest, splits, good),
        _comparisons(manifest, splits, good),
        [_timing_row(result) for result in results if not result.error],
    )
    write_table(folder / "answers", _answer_rows(manifest, results), ("method", "seed", "split"))
    write_table(folder / "results", done.values, ("method", "n_per_class", "metric", "value"))
    write_table(folder / "comparisons", done.comparisons, ("method", "against"))
    write_table(folder / "timing", done.timing, ("method", "seed", "split"))
    with written_whole(folder / "provenance.json") as partial_file:
        partial_file.write_text(json.dumps(provenance(done), indent=1), encoding="utf-8")
    return done


def _complete(results: list[Result], methods: list[str]) -> dict[str, list[Result]]:
    """By method, those of which every cell worked: a mean over the others would flatter."""
    failed = {result.cell.method for result in results if result.error}
    return {
        name: [result for result in results if result.cell.method == name]
        for name in methods
        if name not in failed
    }


# --- tables -------------------------------------------------------------------------------------


def _answer_rows(manifest: Manifest, results: list[Result]) -> list[Row]:
    rows = []
    for result in results:
        split = result.cell.split
        chosen = manifest.select(split.test).records
        for record, label, scores in zip(chosen, result.labels, result.scores, strict=False):
            rows.append(
                {
                    "method": result.cell.method,
                    "seed": result.cell.seed,
                    "split": split.name,
                    "image": manifest.name(record),
                    "patient": record.patient,
                    "truth": record.label,
                    "label": label,
                    **{f"score_{i}": score for i, score in enumerate(scores)},
                }
            )
    return rows


def _values(manifest: Manifest, splits: Splits, good: dict[str, list[Result]]) -> list[Row]:
    classes = tested_classes(manifest, splits)
    rows = []
    for size in dict.fromkeys(split.n_per_class for split in splits):
        for method, results in good.items():
            for name, (kind, metric) in metrics_for(classes).items():
                repeats = _repeats(manifest, results, method, size, kind)
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


def _comparisons(manifest: Manifest, splits: Splits, good: dict[str, list[Result]]) -> list[Row]:
    """Balanced accuracy of every method against the first, corrected for how many there are."""
    rows: list[Row] = []
    names = list(good)
    for size in dict.fromkeys(split.n_per_class for split in splits):
        if len(names) < 2:
            continue
        first = _repeats(manifest, good[names[0]], names[0], size, "labels")
        made = {}
        for name in names[1:]:
            other = _repeats(manifest, good[name], name, size, "labels")
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
        chosen["sensitivity"] = ("labels", partial(metrics.sensitivity, positive=positive))
        chosen["specificity"] = ("labels", partial(metrics.specificity, positive=positive))
    return chosen


def _repeats(
    manifest: Manifest, results: list[Result], method: str, size: int | None, kind: str
) -> list[Repeat]:
    own = [r for r in results if r.cell.method == method and r.cell.split.n_per_class == size]
    seeds = list(dict.fromkeys(result.cell.seed for result in own))
    repeats = []
    for seed in seeds:
        chosen = [result for result in own if result.cell.seed == seed]
        answers = [_answers(result, kind) for result in chosen]
        repeats += gather(manifest, [result.cell.split for result in chosen], answers)
    return repeats


def _answers(result: Result, kind: str) -> NDArray[Any]:
    """An image of glass alone has no score; it counts as one on the border."""
    if kind == "labels":
        return np.array(result.labels)
    scores = np.nan_to_num(np.array(result.scores, dtype=np.float64))
    return scores[:, 0] if scores.shape[1] == 1 else scores


def _timing_row(result: Result) -> Row:
    return {
        "method": result.cell.method,
        "seed": result.cell.seed,
        "split": result.cell.split.name,
        "n_train": len(result.cell.split.train),
        "n_test": len(result.cell.split.test),
        "train_seconds": result.seconds["train"],
        "test_seconds": result.seconds["test"],
        "peak_mib": result.peak_mib,
    }


def provenance(done: Evaluation) -> dict[str, Any]:
    """What it takes to do it again."""
    packages = ("histodict", "numpy", "scipy", "scikit-learn", "numba")
    return {
        "manifest_digest": done.manifest.digest(),
        "n_images": len(done.manifest.records),
        "n_patients": len(set(done.manifest.patients)),
        "splits_digest": splits_digest(done.splits),
        "protocol": dict(done.splits.protocol),
        "kept_apart": sorted({split.by for split in done.splits}),
        "seeds": done.seeds,
        "draws_of_patients": N_DRAWS,
        "recipes": {name: recipe.to_dict() for name, recipe in done.recipes.items()},
        "versions": {name: version(name) for name in packages},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "failures": [
            {"method": cell.method, "seed": cell.seed, "split": cell.split.name, "error": error}
            for cell, error in ((result.cell, result.error) for result in done.failures)
        ],
    }
