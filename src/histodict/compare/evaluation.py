"""Methods against each other on the same splits: values with intervals, and paired comparisons.

FOLDER/splits.json              which image was trained on and tested on, to be used again
FOLDER/runs/                    one file per training, which is not done again while it is there;
                                beside it the patch maps of what was answered wrongly, or of all
                                where regions were looked for
FOLDER/answers.csv, .parquet    one row per method, seed, split and test image
FOLDER/results.csv, .parquet    per method: metrics with 95 % intervals by patient; of regions, of
                                their patches
FOLDER/comparisons.csv, …       every method against the first one, paired by patient
FOLDER/timing.csv, .parquet     seconds and memory per training
FOLDER/provenance.json          data, splits, seeds, recipes, versions
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..evaluation.answers import Repeat
from ..evaluation.confounding import Association, find_confounders
from ..evaluation.split_file import save_splits, splits_digest
from ..evaluation.splits import Splits
from ..execution.files import atomic_write
from ..execution.tables import Row, write_table
from ..execution.work import ExecutionOptions
from ..images.manifest import Manifest
from ..pipeline.plan import Plan
from ..pipeline.region_truth import region_classes
from ..pipeline.trials import PACKAGES
from .checks import check_measurable, check_sizes, tested_classes
from .measures import (
    N_DRAWS,
    Measures,
    Repeats,
    comparison_table,
    metric_table,
    metrics_for,
    prediction_rows,
    timing_rows,
)
from .tasks import EvaluationResult, EvaluationTask, run_tasks


@dataclass(frozen=True)
class Evaluation:
    """Everything that was measured; `rows` of the tables, and the answers behind them.

    region : what was looked for in the images, whose classes are then those with and without it
    confounders : properties of the images that are associated with the class
    """

    manifest: Manifest
    splits: Splits
    plans: dict[str, Plan]
    seeds: list[int]
    results: list[EvaluationResult]
    values: list[Row]
    comparisons: list[Row]
    timing: list[Row]
    region: str | None = None
    confounders: list[Association] = field(default_factory=list)

    @property
    def failures(self) -> list[EvaluationResult]:
        return [result for result in self.results if result.error]

    @property
    def classes(self) -> list[str]:
        """The classes that were tested; of two, the second is the one to be found."""
        if self.region is not None:
            return region_classes(self.manifest, self.region)
        return tested_classes(self.manifest, self.splits)

    @property
    def measures(self) -> Measures:
        """What is measured, by name; the first is what methods are compared by."""
        return metrics_for(self.classes, regions=self.region is not None)

    @property
    def main_measure(self) -> str:
        return next(iter(self.measures))

    @property
    def methods(self) -> list[str]:
        """Those that worked on every split, in the order asked for: the ones in the tables.

        A mean over the splits on which another one worked would flatter it.
        """
        failed = {result.task.method for result in self.results if result.error}
        return [name for name in self.plans if name not in failed]

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
        """A method's answers, repeat by repeat over all seeds; `kind` as `Repeats` has it."""
        return self.gathered.of(method, size, kind)

    @cached_property
    def gathered(self) -> Repeats:
        return Repeats(self.manifest, self.results)


def evaluate(
    manifest: Manifest,
    plans: Mapping[str, Plan],
    splits: Splits,
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    work: ExecutionOptions = ExecutionOptions(),  # noqa: B008 (it is frozen)
    region: str | None = None,
) -> Evaluation:
    """Run what is not there yet, and write the files above.

    `region`: what is looked for in the images, in place of telling their classes apart; they are
    labelled as `labelled_by_region` does.
    """
    check_measurable(manifest, splits, region)
    check_sizes(manifest, plans.values())
    folder.mkdir(parents=True, exist_ok=True)
    save_splits(splits, folder / "splits.json")
    work = replace(work, cache=work.cache or folder / "cache")
    tasks = tasks_of(plans, splits, seeds, region)
    results = run_tasks(manifest, tasks, folder / "runs", work)
    done = Evaluation(
        manifest, splits, dict(plans), list(seeds), results, [], [], timing_rows(results), region
    )
    done.confounders.extend(find_confounders(manifest))
    # First: whatever cannot be measured of them, the answers are there.
    write_table(folder / "answers", prediction_rows(manifest, results), ("method", "seed", "split"))
    write_table(folder / "timing", done.timing, ("method", "seed", "split"))
    measured = done.gathered, done.sizes(), done.methods, done.measures
    done.values.extend(metric_table(*measured))
    done.comparisons.extend(comparison_table(*measured))
    write_table(folder / "results", done.values, ("method", "n_per_class", "metric", "value"))
    write_table(folder / "comparisons", done.comparisons, ("method", "against"))
    with atomic_write(folder / "provenance.json") as partial_file:
        partial_file.write_text(json.dumps(provenance(done), indent=1), encoding="utf-8")
    return done


def run_evaluation(
    manifest: Manifest,
    plans: Mapping[str, Plan],
    splits: Splits,
    folder: Path,
    seeds: Sequence[int],
    work: ExecutionOptions,
) -> list[EvaluationResult]:
    """Every plan on every split with every seed; what `folder` has of it is not done again."""
    return run_tasks(manifest, tasks_of(plans, splits, seeds), folder, work)


def tasks_of(
    plans: Mapping[str, Plan], splits: Splits, seeds: Sequence[int], region: str | None = None
) -> list[EvaluationTask]:
    return [
        EvaluationTask(name, plan, split, seed, region)
        for seed in seeds
        for split in splits
        for name, plan in plans.items()
    ]


def provenance(done: Evaluation) -> dict[str, Any]:
    """What it takes to do it again."""
    return {
        "manifest_digest": done.manifest.digest(),
        "n_images": len(done.manifest.records),
        "left_out": list(done.manifest.skipped),
        "n_patients": len(set(done.manifest.patients)),
        "splits_digest": splits_digest(done.splits),
        "protocol": dict(done.splits.protocol),
        **({"region": done.region} if done.region else {}),
        "confounders": [asdict(found) for found in done.confounders],
        "kept_apart": sorted({split.by for split in done.splits}),
        "seeds": done.seeds,
        "draws_of_patients": N_DRAWS,
        "recipes": {name: plan.to_dict() for name, plan in done.plans.items()},
        "versions": {name: version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "failures": [
            {"method": task.method, "seed": task.seed, "split": task.split.name, "error": error}
            for task, error in ((result.task, result.error) for result in done.failures)
        ],
    }
