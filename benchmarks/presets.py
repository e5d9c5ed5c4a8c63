"""Accuracy of the presets on every set, with the original colours and those of other scanners.

    python -m benchmarks.presets --output presets --jobs 16
    python -m benchmarks.presets --output presets --presets embeddings+stain=reinhard --sets ucsb
    python -m benchmarks.presets --output presets --tables
    python -m benchmarks.presets --output presets --presets default --sets lung --check

Models are trained on half of the patients (lung: on ten images of each class) and tested on the
others; then on the same test images with other colours, changed in the same way for all images of a
test, as in another laboratory. Presets have no information about these colours.

The members of an ensemble are trained once, even if several presets contain them, and combined as
by the ensemble. The results equal those of the ensemble, which --check verifies by training some.
`HISTODICT_DATA` is the folder of the sets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from histodict.datasets.manifest import Manifest
from histodict.decision.aggregation import count_scores, predicted_class
from histodict.decision.calibration import Calibration
from histodict.metrics.scores import balanced_accuracy, expected_calibration_error
from histodict.model_selection.protocols import learning_curve_splits
from histodict.model_selection.splits import Split
from histodict.models import Plan, TissueClassifier
from histodict.models.cross_validation import (
    MemberEvaluation,
    RunCache,
    cross_validate_recipes,
    evaluate_scores,
    fit_combination,
    patient_folds,
)
from histodict.models.recipe import Recipe
from histodict.utils.progress import no_callback

from .machine import describe_machine
from .other_scanners import PLAIN, kinds_of_test, test_images
from .report import print_machine
from .result_store import (
    NOTHING,
    Done,
    Results,
    add_options,
    area,
    manifest_of,
    mean_shown,
    print_table,
    results_of_model,
    run_or_load,
    scores_of,
    sides,
    two_folds,
)

_REPEATS = {"ucsb": 5, "glas": 5, "lung": 5, "lymphoma": 5}
_PER_CLASS = {"lung": 10}
_FOLDS = 3  # of an ensemble
_ERROR_RATE = 0.1  # of prediction sets
# Members' scores (n_images, n_members, n_scores) to (n_images, n_scores).
Decide = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def plan_of(text: str) -> Plan:
    """Parse PRESET+NAME=VALUE+…, or PRESET:METHOD for another method."""
    name, *changes = text.split("+")
    preset, _, method = name.partition(":")
    pairs = (change.split("=") for change in changes)
    return Plan.named(preset, method or None).parse_settings({key: value for key, value in pairs})


@cache
def splits_of(name: str) -> tuple[Manifest, list[Split]]:
    manifest = manifest_of(name)
    if name in _PER_CLASS:
        return manifest, list(
            learning_curve_splits(manifest, [_PER_CLASS[name]], n_repeats=_REPEATS[name])
        )
    return manifest, two_folds(manifest, _REPEATS[name])


# --- members ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """One recipe on one split: out-of-fold scores of training patients, and test scores."""

    recipe: Recipe
    set_name: str
    place: int
    kinds: tuple[str, ...]
    cache: Path = field(repr=False)  # does not affect the results

    @property
    def name(self) -> str:
        text = json.dumps(self.recipe.to_dict(), sort_keys=True)
        return f"{self.set_name}-{self.place}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def cost(self) -> float:
        return len(splits_of(self.set_name)[0].records)

    def work(self) -> Results:
        manifest, splits = splits_of(self.set_name)
        train, test = sides(manifest, splits[self.place])

        def learner(recipe: Recipe) -> TissueClassifier:
            return TissueClassifier(recipe, n_jobs=1, cache=self.cache)

        times = [time.perf_counter()]
        inner = patient_folds(train, _FOLDS, 0)[0]
        evaluated = cross_validate_recipes(
            [self.recipe], learner, train, inner, RunCache(None, is_inner=True), no_callback, None
        )
        times.append(time.perf_counter())
        model = learner(self.recipe).fit(train)
        times.append(time.perf_counter())
        abstaining = np.full(count_scores(len(manifest.classes)), np.nan)
        output = {}
        for kind in self.kinds:
            summaries = [
                model._score_image(image, record.mpp).scores
                for image, record in test_images(test, kind)
            ]
            output[kind] = [
                (abstaining if found is None else found).tolist() for found in summaries
            ]
        return {
            "recipe": self.recipe.to_dict(),
            "seconds": dict(zip(("out_of_fold", "train"), np.diff(times).tolist(), strict=True)),
            "out_of_fold": evaluated[0].scores.tolist(),
            "scores": output,
        }


@dataclass(frozen=True)
class Study:
    """Presets and sets; kinds : kinds of test images, of which the first is unchanged."""

    presets: list[str]
    sets: list[str]
    kinds: tuple[str, ...]
    cache: Path

    def member(self, recipe: Recipe, set_name: str, place: int) -> Member:
        return Member(recipe, set_name, place, self.kinds, self.cache)

    def pieces(self) -> list[Member]:
        """Return the members of all presets without duplicates."""
        members = (
            self.member(recipe, name, place)
            for text in self.presets
            for recipe in plan_of(text).recipes
            for name in self.sets
            for place in range(len(splits_of(name)[1]))
        )
        return list({member.name: member for member in members}.values())


# --- ensembles ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanResults:
    """Results of a plan on a set: by kind and split, and mean seconds of a training."""

    results: dict[str, list[Results]]
    seconds: float


def put_together(
    plan: Plan | _Some, found: Sequence[Results], train: Manifest
) -> tuple[Decide, Calibration | None]:
    """Return the function that combines member scores, and the calibration of an ensemble."""
    if plan.is_single_model:
        return (lambda parts: parts[:, 0]), None
    evaluated = []
    for recipe, results in zip(plan.recipes, found, strict=True):
        scores = np.array(results["out_of_fold"], dtype=float)
        evaluated.append(MemberEvaluation(recipe, scores, *evaluate_scores(scores, train)))
    combination, calibration = fit_combination(evaluated, train)
    return combination.scores, calibration


def plan_results(plan: Plan | _Some, study: Study, name: str, done: Done) -> PlanResults | None:
    """Return the results of a plan on a set; None if a member is missing."""
    manifest, splits = splits_of(name)
    results: dict[str, list[Results]] = {kind: [] for kind in study.kinds}
    seconds = []
    for place, split in enumerate(splits):
        names = [study.member(recipe, name, place).name for recipe in plan.recipes]
        if any(piece not in done.found for piece in names):
            return None
        found = [done.found[piece] for piece in names]
        train, test = sides(manifest, split)
        decide, calibration = put_together(plan, found, train)
        for kind in study.kinds:
            parts = np.stack([np.array(own["scores"][kind], dtype=float) for own in found], axis=1)
            scores = decide(parts)
            own_results = results_of(scores, manifest.classes, test, split)
            results[kind].append(own_results | _certainty(scores, calibration))
        steps = ("train",) if plan.is_single_model else ("train", "out_of_fold")
        seconds.append(sum(own["seconds"][step] for own in found for step in steps))
    return PlanResults(results, float(np.mean(seconds)))


def results_of(
    scores: NDArray[np.float64], classes: list[str], test: Manifest, split: Split
) -> Results:
    """Return results as `result_store.results_of_model` does, from scores."""
    labels = ["" if np.isnan(row).any() else classes[predicted_class(row)] for row in scores]
    return {
        "repeat": split.repeat,
        "classes": classes,
        "truth": test.labels,
        "patients": test.patients,
        "labels": labels,
        "scores": scores.tolist(),
    }


def _certainty(scores: NDArray[np.float64], calibration: Calibration | None) -> Results:
    """Return the probabilities and prediction sets of images with tissue."""
    if calibration is None:
        return {}
    probabilities = calibration.probabilities(np.nan_to_num(scores))
    return {
        "probabilities": probabilities,
        "prediction_sets": calibration.prediction_set(probabilities, _ERROR_RATE),
    }


def print_certainty(study: Study, done: Done) -> None:
    """Print calibration errors and coverage of prediction sets on the unchanged test images."""
    rows = []
    for text, name in product(study.presets, study.sets):
        made = plan_results(plan_of(text), study, name, done)
        results = [own for own in made.results[PLAIN] if "probabilities" in own] if made else []
        if not results:
            continue
        classes = results[0]["classes"]
        probabilities, stored = (
            np.concatenate([own[key] for own in results])
            for key in ("probabilities", "prediction_sets")
        )
        truth = [label for own in results for label in own["truth"]]
        places = np.array([classes.index(label) for label in truth])
        output = probabilities[:, 1] if len(classes) == 2 else probabilities
        error = expected_calibration_error(truth, output, positive=classes[1])
        shares = stored[np.arange(len(places)), places].mean(), (stored.sum(axis=1) == 1).mean()
        rows.append([f"`{text}`", name, str(len(places)), *(f"{x:.3f}" for x in (error, *shares))])
    heads = "preset", "set", "predictions", "calibration error", "coverage"
    print_table([*heads, "single predictions"], rows)


def print_tables(study: Study, done: Done) -> None:
    rows = []
    for text, name in product(study.presets, study.sets):
        made = plan_results(plan_of(text), study, name, done)
        cells = [NOTHING] * 5
        if made is not None:
            cells = [
                cell for kinds in (study.kinds[:1], study.kinds[1:]) for cell in _cells(made, kinds)
            ]
            cells.append(f"{made.seconds:.0f}")
        rows.append([f"`{text}`", name, *cells])
    shifted = "other scanners: balanced accuracy", "AUC"
    print_table(["preset", "set", "balanced accuracy", "AUC", *shifted, "seconds"], rows)


def print_without(study: Study, done: Done) -> None:
    """Print the balanced accuracy of ensembles without one of their members."""
    rows = []
    for text in study.presets:
        plan = plan_of(text)
        for left_out in plan.recipes if plan.ensemble else []:
            rest = _Some(tuple(recipe for recipe in plan.recipes if recipe != left_out))
            made = [plan_results(rest, study, name, done) for name in study.sets]
            cells = [
                " / ".join(
                    _cells(own, kinds)[0].split()[0] for kinds in (study.kinds[:1], study.kinds[1:])
                )
                if own
                else NOTHING
                for own in made
            ]
            name = f"{left_out.method}, {left_out.features}, stain {left_out.stain}"
            rows.append([f"`{text}` without {name}, 1/{left_out.downsample:g}", *cells])
    print_table(["original / other scanners", *study.sets], rows)


@dataclass(frozen=True)
class _Some:
    """Subset of the members of an ensemble."""

    recipes: tuple[Recipe, ...]
    is_single_model: bool = False


def _cells(made: PlanResults, kinds: Sequence[str]) -> list[str]:
    """Return balanced accuracy with its interval, and AUC; several kinds count as repeats."""
    results = [
        own | {"repeat": (place, own["repeat"])}
        for place, kind in enumerate(kinds)
        for own in made.results[kind]
    ]
    if not results:
        return [NOTHING] * 2
    areas = [area([own])(own["truth"], scores_of(own)) for own in results]
    return [mean_shown(balanced_accuracy, results), f"{np.mean(areas):.3f}"]


def check(study: Study, done: Done) -> None:
    """Train the model of the first split, and compare its scores with the combined ones."""
    for text, name in product(study.presets, study.sets):
        plan = plan_of(text)
        made = plan_results(plan, study, name, done)
        if made is None:
            continue
        manifest, splits = splits_of(name)
        train, test = sides(manifest, splits[0])
        scores = results_of_model(plan.build_model(cache=study.cache).fit(train), test, splits[0])[
            "scores"
        ]
        apart = np.abs(np.array(scores) - np.array(made.results[PLAIN][0]["scores"]))
        print(f"{text} {name}: its scores differ by {np.nanmax(apart):.1e} at most", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", default="default,pixels,fast,embeddings")
    parser.add_argument("--sets", default=",".join(_REPEATS))
    parser.add_argument("--scanners", type=int, default=2, help="number of simulated scanners")
    parser.add_argument("--check", action="store_true", help="compare with trained ensembles")
    add_options(parser)
    options = parser.parse_args()
    kinds = kinds_of_test(options.scanners)
    study = Study(
        options.presets.split(","), options.sets.split(","), kinds, options.output / "cache"
    )
    print_machine(describe_machine())
    done = run_or_load(study.pieces(), options)
    if options.check:
        check(study, done)
    print_tables(study, done)
    print_certainty(study, done)
    print_without(study, done)
    sys.exit(done.report_status())


if __name__ == "__main__":
    # Other processes unpickle tasks by the name of this module, which is not __main__.
    from benchmarks.presets import main as by_name

    by_name()
