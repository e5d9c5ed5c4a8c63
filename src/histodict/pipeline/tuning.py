"""Choosing a recipe on the training patients alone: inner folds by patient, successive halving.

Many recipes are tried on a part of the folds, the better half on more of them, and so on; the last
ones are compared on all folds. What is asked is how well patients that a recipe was not trained on
are told apart: the mean of balanced accuracy (right answers) and AUC (right order), because on few
images either alone is coarse.

Reference: Jamieson, Talwalkar, "Non-stochastic best arm identification and hyperparameter
optimization", AISTATS 2016.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.protocols import k_folds
from ..evaluation.splits import Split
from ..execution.progress import Callback, Progress, ignore
from ..images.manifest import Manifest
from ..methods.registry import MEAN_VECTOR, method_entry
from ..networks import is_network
from ..parameters import check_whole_number
from ..recipes import Recipe
from .unseen import how_good, unseen_scores

_N_FOLDS = 3
# Another recipe must be better than the one to start from by so much: inner folds are few.
_WORTH = 0.02
Change = dict[str, Any]
# What may differ from the recipe to start from; settings that go together stand together.
PIXEL_CHOICES: tuple[tuple[Change, ...], ...] = (
    (  # how much of the tissue a vector shows, and how finely
        {"downsample": 1.0, "patch_px": 16, "stride_px": 24, "context": 4},
        {"downsample": 2.0, "patch_px": 16, "stride_px": None, "context": 2},
        {"downsample": 1.0, "patch_px": 20, "stride_px": None, "context": 1},
        {"downsample": 2.0, "patch_px": 20, "stride_px": None, "context": 1},
    ),
    (  # how far colours count
        {"stain": "reinhard", "vectors": "centred"},
        {"stain": "reinhard", "vectors": "rgb"},
        {"stain": "none", "vectors": "rgb"},
        {"stain": "macenko", "vectors": "centred"},
        {
            "stain": "reinhard",
            "vectors": "channel-centred",
            "penalty": 0.2,
        },  # else some codes are empty
    ),
    ({"rule": "margin"}, {"rule": "margin-and-codes"}),
    ({"penalty": 0.4}, {"penalty": 0.2}),
)
# A method that looks at the image as a whole has no patches to vary.
IMAGE_CHOICES: tuple[tuple[Change, ...], ...] = (
    ({"downsample": 2.0}, {"downsample": 1.0}, {"downsample": 4.0}),
    ({"stain": "reinhard"}, {"stain": "none"}, {"stain": "macenko"}),
)
NETWORK_CHOICES: tuple[tuple[Change, ...], ...] = (
    ({"downsample": 1.0}, {"downsample": 2.0}),
    ({"stain": "reinhard"}, {"stain": "none"}, {"stain": "macenko"}),
    ({"rule": "proportion"}, {"rule": "margin"}, {"rule": "margin-and-codes"}),
    ({"components": 200}, {"components": 100}),
)


@dataclass(frozen=True)
class Trial:
    """A recipe and its values on the folds it was tried on."""

    recipe: Recipe
    values: tuple[float, ...]
    failure: str = ""  # why it could not be tried; its value counts as 0 then

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    def to_dict(self) -> dict[str, Any]:
        facts = {"recipe": self.recipe.to_dict(), "values": list(self.values)}
        return facts | ({"failure": self.failure} if self.failure else {})

    @property
    def spread(self) -> float:
        return float(np.std(self.values))


def candidates(base: Recipe, n_candidates: int, random_state: int) -> list[Recipe]:
    """The recipe itself, those with one group changed, then others at random; each once."""
    check_whole_number("candidates", n_candidates, 1)
    groups = _choices(base)
    single = [change for group in groups for change in group]
    mixed = [_merged(changes) for changes in product(*groups)]
    order = np.random.default_rng(random_state).permutation(len(mixed))
    found = [base]
    for change in [*single, *(mixed[place] for place in order)]:
        recipe = base.with_known(change)
        if recipe not in found:
            found.append(recipe)
    return found[:n_candidates]


def _choices(base: Recipe) -> tuple[tuple[Change, ...], ...]:
    """What may change, in groups."""
    if method_entry(base.method).features not in (None, MEAN_VECTOR):
        return IMAGE_CHOICES
    return NETWORK_CHOICES if is_network(base.vectors) else PIXEL_CHOICES


def _merged(changes: Sequence[Change]) -> Change:
    return {name: value for change in changes for name, value in change.items()}


def choose_recipe(
    manifest: Manifest,
    recipes: Sequence[Recipe],
    *,
    random_state: int = 0,
    n_jobs: int | None = None,
    cache: Path | None = None,
    callback: Callback = ignore,
) -> list[Trial]:
    """The recipes, best first; those that were tried on more folds come before the others.

    The first recipe given is tried on all folds, and stays the best unless another is clearly
    better. With a cache, values that were found before are read: a run that was stopped goes on.
    """
    splits = list(k_folds(manifest, _N_FOLDS, random_state=random_state))
    trials = [Trial(recipe, ()) for recipe in recipes]
    total = _n_trainings(len(trials))
    done = 0
    beaten: list[Trial] = []
    for split in splits:
        tried = []
        for place, trial in enumerate(trials):
            value, failure = 0.0, ""
            try:
                value = _value(manifest, split, trial.recipe, random_state, n_jobs, cache)
            except ValueError as error:  # patches larger than an image, say
                if place == 0:  # what was asked for has to work
                    raise
                failure = str(error)
            tried.append(Trial(trial.recipe, (*trial.values, value), failure or trial.failure))
            done += 1
            callback(Progress("tune", done, total))
        first, *others = tried
        others.sort(key=lambda trial: -trial.mean)
        keep = max(1, len(tried) // 2) if split is not splits[-1] else len(others)
        trials, beaten = [first, *others[:keep]], others[keep:] + beaten
    return _in_order(trials) + beaten


def _in_order(trials: list[Trial]) -> list[Trial]:
    """Best first; the recipe to start from, the first one here, comes before its equals."""
    first, *others = trials
    better = [trial for trial in others if trial.mean > first.mean + _WORTH]
    return [*better, first, *others[len(better) :]]


def _n_trainings(n_recipes: int) -> int:
    total, n = 0, n_recipes
    for _ in range(_N_FOLDS):
        total += n
        n = min(n, 1 + max(1, n // 2))
    return total


def _value(
    manifest: Manifest,
    split: Split,
    recipe: Recipe,
    random_state: int,
    n_jobs: int | None,
    cache: Path | None,
) -> float:
    scores = unseen_scores(manifest, split, recipe, random_state, n_jobs, cache)
    test = manifest.select(split.test)
    return how_good(scores, test.labels, manifest.classes)
