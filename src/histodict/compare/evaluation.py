"""Methods against each other on the same splits: values with intervals, and paired comparisons.

FOLDER/splits.json              which image was trained on and tested on, to be used again
FOLDER/trials/                  one file per training, which is not done again while it is there;
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..evaluation.answers import Repeat
from ..evaluation.split_file import save_splits, splits_digest
from ..evaluation.splits import Splits
from ..execution.files import written_whole
from ..execution.tables import Row, write_table
from ..execution.work import Work
from ..images.manifest import Manifest
from ..pipeline.plan import Plan
from ..pipeline.trials import PACKAGES
from .checks import check_measurable, check_sizes, tested_classes
from .measures import N_DRAWS, answer_rows, comparisons, repeats_of, timing_rows, values
from .tasks import Result, Task, run_tasks


@dataclass(frozen=True)
class Evaluation:
    """Everything that was measured; `rows` of the tables, and the answers behind them."""

    manifest: Manifest
    splits: Splits
    plans: dict[str, Plan]
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
        """The classes that were tested; of two, the second is the one to be found."""
        return tested_classes(self.manifest, self.splits)

    @property
    def methods(self) -> list[str]:
        """Those that worked on every split, in the order asked for: the ones in the tables."""
        return list(_complete(self.results, list(self.plans)))

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
        return repeats_of(self.manifest, self.results, method, size, kind)


def evaluate(
    manifest: Manifest,
    plans: Mapping[str, Plan],
    splits: Splits,
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    work: Work = Work(),  # noqa: B008 (it is frozen)
) -> Evaluation:
    """Run what is not there yet, and write the files above."""
    check_measurable(manifest, splits)
    check_sizes(manifest, plans.values())
    folder.mkdir(parents=True, exist_ok=True)
    save_splits(splits, folder / "splits.json")
    work = replace(work, cache=work.cache or folder / "cache")
    results = run_plans(manifest, plans, splits, folder / "trials", seeds, work)
    good = _complete(results, list(plans))
    done = Evaluation(
        manifest,
        splits,
        dict(plans),
        list(seeds),
        results,
        values(manifest, splits, good),
        comparisons(manifest, splits, good),
        timing_rows(results),
    )
    write_table(folder / "answers", answer_rows(manifest, results), ("method", "seed", "split"))
    write_table(folder / "results", done.values, ("method", "n_per_class", "metric", "value"))
    write_table(folder / "comparisons", done.comparisons, ("method", "against"))
    write_table(folder / "timing", done.timing, ("method", "seed", "split"))
    with written_whole(folder / "provenance.json") as partial_file:
        partial_file.write_text(json.dumps(provenance(done), indent=1), encoding="utf-8")
    return done


def run_plans(
    manifest: Manifest,
    plans: Mapping[str, Plan],
    splits: Splits,
    folder: Path,
    seeds: Sequence[int],
    work: Work,
) -> list[Result]:
    """Every plan on every split with every seed; what `folder` has of it is not done again."""
    tasks = [
        Task(name, plan, split, seed)
        for seed in seeds
        for split in splits
        for name, plan in plans.items()
    ]
    return run_tasks(manifest, tasks, folder, work)


def _complete(results: list[Result], methods: list[str]) -> dict[str, list[Result]]:
    """By method, those of which every trial worked: a mean over the others would flatter."""
    failed = {result.task.method for result in results if result.error}
    return {
        name: [result for result in results if result.task.method == name]
        for name in methods
        if name not in failed
    }


def provenance(done: Evaluation) -> dict[str, Any]:
    """What it takes to do it again."""
    return {
        "manifest_digest": done.manifest.digest(),
        "n_images": len(done.manifest.records),
        "left_out": list(done.manifest.left_out),
        "n_patients": len(set(done.manifest.patients)),
        "splits_digest": splits_digest(done.splits),
        "protocol": dict(done.splits.protocol),
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
