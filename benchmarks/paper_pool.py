"""Run all trainings of `histodict reproduce` on several sets in parallel.

    python -m benchmarks.paper_pool --output paper --jobs 16
    histodict reproduce all --data ucsb-breast --per-class 10 --output paper      # uses the results

`reproduce` runs one experiment after the other, each as long as its longest training, and trains
the models of its curves one by one. This script runs the trainings of all experiments on all sets
in parallel, the longest first. It stores them in OUTPUT/DATA/runs and models, where `reproduce`
with the same options finds them. A training that several experiments share runs once. `--tables`
prints the state and CPU time. Options that change settings must be equal for both programs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from histodict.evaluation import load_or_train_model
from histodict.evaluation.runs import EvaluationTask
from histodict.model_selection.protocols import learning_curve_splits
from histodict.models import Plan
from histodict.models.cross_validation import RunCache, TrainTestRun, UnfittedModel
from histodict.models.image_pipeline import WholeImagePipeline
from histodict.paper import ExperimentOptions, Setting
from histodict.paper.accuracy import training_sizes
from histodict.paper.image_sets import load_datasets
from histodict.paper.setting import DICTIONARY_METHODS
from histodict.utils.cache import ArrayCache
from histodict.utils.parallel import ExecutionOptions

from . import report
from . import result_store as store
from .machine import describe_machine
from .result_store import Results

# Training images per class: as in the paper, if there are enough.
SETS = "lc25000-lung:20,ucsb-breast:10,glas-colon:20"
SWEEPS = {"training-patches": "patches_per_class", "bases-count": "n_atoms"}
WHAT = ("accuracy", *SWEEPS, "training-images")


@dataclass(frozen=True)
class ReproduceOptions:
    """Options of `reproduce` for one set."""

    data: str
    per_class: int
    methods: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    output: Path = field(repr=False)

    def setting(self) -> Setting:
        """Return the setting that `reproduce` uses."""
        (dataset,) = load_datasets(self.data)
        folder = self.output / dataset.name
        choice = ExperimentOptions(
            self.methods, settings=dict(self.settings), per_class=self.per_class
        )
        return Setting(
            dataset,
            folder,
            options=choice,
            execution=ExecutionOptions(n_jobs=1, cache=folder / "cache"),
        )


def create_tasks(setting: Setting, what: str) -> list[EvaluationTask]:
    """Return the trainings of an experiment; `confusion` and `roc` use those of `accuracy`."""
    if what == "accuracy":
        return setting.tasks(setting.compared_plans(), setting.splits)
    if what == "training-images":
        sizes = training_sizes(setting.images, 1, setting.sizes.n_image_sizes)
        return setting.tasks(setting.compared_plans(), learning_curve_splits(setting.images, sizes))
    steps = setting.sizes.patches if what == "training-patches" else setting.sizes.bases
    plans = {
        f"{method} {size}": setting.plan(method, **{SWEEPS[what]: size})
        for method in setting.choose_methods(
            DICTIONARY_METHODS, DICTIONARY_METHODS, "these have such sizes"
        )
        for size in steps
    }
    return setting.tasks(plans, setting.splits)


@dataclass(frozen=True)
class Training:
    """One task of an experiment on a set."""

    request: ReproduceOptions
    what: str
    method: str
    split: str
    cost: float = field(repr=False)  # CPU seconds on an arm64 core (benchmarks/README.md)

    @property
    def name(self) -> str:
        return f"{self.request.data}-{self.what}-{self.method}-{self.split}".replace(
            ",", ""
        ).replace(" ", "-")

    def work(self) -> Results:
        """Store the predictions, and the model of methods that have curves and bases."""
        setting = self.request.setting()
        (task,) = (
            task
            for task in create_tasks(setting, self.what)
            if (task.method, task.split.name) == (self.method, self.split)
        )
        train_test = task.create_run(setting.images, setting.execution)
        if self.what == "accuracy" and self.method in DICTIONARY_METHODS:
            learner = _StoringModel(train_test.model, task, setting)
            train_test = TrainTestRun(
                learner, train_test.train, train_test.test, train_test.adapts_threshold
            )
        output = RunCache((setting.folder / "runs").absolute()).run(train_test)
        right = np.mean(np.array(output.labels) == np.array(train_test.test.labels))
        return {"seconds": output.seconds, "accuracy": float(right)}


@dataclass(frozen=True)
class _StoringModel:
    """Unfitted model that stores the fitted one in the file used for curves and bases."""

    model: UnfittedModel
    task: EvaluationTask
    setting: Setting

    @property
    def recipe(self) -> Any:
        return self.model.recipe

    def fingerprint(self) -> list[Any]:
        return self.model.fingerprint()

    def fit(self, images: Any, **options: Any) -> Any:
        folder = self.setting.folder / "models"
        return load_or_train_model(self.task, self.setting.images, folder, self.setting.execution)


@dataclass(frozen=True)
class Features:
    """Features of a part of the images of a set, computed before the trainings that use them."""

    request: ReproduceOptions
    method: str
    part: int

    @property
    def name(self) -> str:
        return f"{self.request.data}-features-{self.method}-{self.part}"

    def work(self) -> Results:
        setting = self.request.setting()
        plan = setting.plan(self.method)
        model = WholeImagePipeline(plan.recipe, setting.images.classes, 0, 1)
        model.cache = ArrayCache(setting.folder / "cache")
        records = setting.images.records[self.part :: _PARTS]
        found = model._feature_vectors({record.path: record.mpp for record in records}, None)
        return {"images": len(found)}


_PARTS = 8  # of the images of a set
_WITH_FEATURES = ("wndcharm",)

# CPU seconds of training at the paper's size, and of predicting 1,000 patches.
_SECONDS = {
    "dfdl": (126, 0.2),
    "lcksvd": (304, 0.2),
    "fddl": (647, 0.2),
    "nayak": (372, 0.1),
    "src-image": (1, 0.1),
    "shirc": (1, 2.2),
    "wndcharm": (5, 0.0),  # without its features
}


def cost_of(task: EvaluationTask) -> float:
    """Estimate the CPU seconds of a training, which grow with the number of atoms."""
    recipe = task.plan.recipe
    training, prediction = _SECONDS.get(recipe.method, (100, 0.2))
    full = 1000 if recipe.method == "nayak" else 500
    atoms = (recipe.method_parameters.get("n_atoms") or full) / full
    if not recipe.is_patch_level:
        return training
    n_images = len(task.split.train) + len(task.split.test)
    share = recipe.patches_per_class / 10_000
    return training * share * max(atoms, 0.1) ** 1.2 + prediction * n_images


def trainings(request: ReproduceOptions, what: Sequence[str]) -> Iterator[Training]:
    """Yield the distinct trainings of all experiments on a set."""
    setting = request.setting()
    seen: list[tuple[Plan, list[int]]] = []
    for experiment in what:
        for task in create_tasks(setting, experiment):
            if (task.plan, task.split.train) not in seen:
                seen.append((task.plan, task.split.train))
                yield Training(request, experiment, task.method, task.split.name, cost_of(task))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", default=SETS, help="SET:IMAGES_PER_CLASS,…")
    parser.add_argument("--what", default=",".join(WHAT), help="experiments")
    parser.add_argument("--methods", default="", help="default: those of each experiment")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    store.add_options(parser)
    options = parser.parse_args()
    what = options.what.split(",")
    output = options.output.absolute()
    methods = tuple(options.methods.split(",")) if options.methods else ()
    settings = tuple(sorted(tuple(pair.split("=", 1)) for pair in options.set))
    sets = [
        ReproduceOptions(data, int(number), methods, settings, output)
        for data, _, number in (text.partition(":") for text in options.sets.split(","))
    ]
    pieces = [piece for requested in sets for piece in trainings(requested, what)]
    features = [
        Features(requested, method, part)
        for requested in sets
        for method in _WITH_FEATURES
        if not methods or method in methods
        for part in range(_PARTS)
    ]
    options.output = output / "pool"
    report.print_machine(describe_machine())
    done = store.run_or_load(features, options)
    done |= store.run_or_load(pieces, options)
    rows = []
    for requested in sets:
        for experiment in what:
            own = [
                piece for piece in pieces if (piece.request, piece.what) == (requested, experiment)
            ]
            there = [piece for piece in own if piece.name in done.found]
            minutes = sum(done.seconds[piece.name] for piece in there) / 60
            left = sum(piece.cost for piece in own if piece not in there) / 60
            counts = f"{len(there)} of {len(own)}"
            rows.append((requested.data, experiment, counts, f"{minutes:.0f}", f"{left:.0f}"))
    store.print_table(("set", "experiment", "finished", "CPU minutes", "left, about"), rows)
    sys.exit(done.report_status())


if __name__ == "__main__":
    main()
