"""What models made by some recipes say of training patients they have not seen.

They are many, and asked only for weights and for how sure one can be: they learn from a third of
the patches. Where a class has a single patient there is nobody to ask about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.calibration import Calibration
from ..decisions.combination import ScoreCombination
from ..decisions.image_rules import n_scores, predicted_class
from ..evaluation.metrics import auc, balanced_accuracy
from ..evaluation.protocols import k_folds
from ..evaluation.splits import Split, SplitError
from ..execution.executor import Executor
from ..execution.meanwhile import temporary_folder
from ..execution.progress import Callback, Progress, no_callback
from ..images.in_memory import estimated_bytes
from ..images.kept_pictures import image_cache_enabled
from ..images.manifest import Manifest
from ..images.readers import ImageError
from ..recipes import Recipe
from .trials import RunCache, TrainTestRun, UnfittedModel

_PATCH_FRACTION = 3
_MAX_BYTES = 500 * 2**20  # of image files: what a network sees of them takes several times as many


@dataclass(frozen=True)
class MemberEvaluation:
    """A recipe, and what models made by it said of training patients they had not seen.

    scores : (n_images, n_scores), NaN on glass
    value : how good they are; None where it could not be tried, or nobody is there to be asked of
    order : AUC
    failure : why it could not be tried; it does not sit on the panel then
    """

    recipe: Recipe
    scores: NDArray[np.float64]
    value: float | None = None
    order: float = 0.5
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        facts = {"recipe": self.recipe.to_dict(), "unseen": self.value}
        return facts | ({"failure": self.failure} if self.failure else {})


@contextmanager
def temporary_cache(
    folder: Path | None, manifest: Manifest, executor: Executor | None
) -> Iterator[Path | None]:
    """A folder for what several trainings need of an image: this one, else one for the time being.

    None where it would be too much, or others do the work: nobody would clear it away there.
    Images stay decoded meanwhile, as far as there is room.
    """
    n_bytes = sum(estimated_bytes(record.path) for record in manifest.records)
    with image_cache_enabled():
        if folder is not None or executor is not None or n_bytes > _MAX_BYTES:
            yield folder
            return
        with temporary_folder("histodict-panel-") as own:
            yield own


def patient_folds(manifest: Manifest, n_folds: int, random_state: int) -> tuple[list[Split], str]:
    """Folds by patient, fewer where there are too few patients; if none, why in words."""
    words = ""
    for n in range(n_folds, 1, -1):
        try:
            return list(k_folds(manifest, n, random_state=random_state)), ""
        except SplitError as error:
            words = str(error)
    return [], words


def min_patients_per_class(manifest: Manifest) -> int:
    """Patients of the class that has fewest."""
    pairs = {(record.label, record.patient) for record in manifest.records}
    return min(sum(label == name for label, _ in pairs) for name in manifest.classes)


def cross_validate_recipes(
    recipes: Sequence[Recipe],
    learner: Callable[[Recipe], UnfittedModel],
    manifest: Manifest,
    splits: Sequence[Split],
    trials: RunCache,
    callback: Callback,
    executor: Executor | None,
) -> list[MemberEvaluation]:
    """The first recipe has to work; another that cannot be tried says why."""
    n_trials, n_held = len(recipes) * len(splits), 0
    heard: list[MemberEvaluation] = []
    callback(Progress("unseen patients", 0, n_trials))
    for recipe in recipes:
        scores = _nothing(manifest)
        failure = ""
        for place, split in enumerate(splits):
            train, test = manifest.select(split.train), manifest.select(split.test)
            trial = TrainTestRun(learner(_with_fewer_patches(recipe)), train, test)
            try:
                scores[split.test] = trials.run(trial, executor).scores
            except ImageError as error:  # patches larger than an image, say
                if not heard:
                    raise
                failure = str(error)
                break
            callback(Progress("unseen patients", n_held + 1 + place, n_trials))
        n_held += len(splits)
        callback(Progress("unseen patients", n_held, n_trials))
        if failure:
            heard.append(MemberEvaluation(recipe, scores, failure=failure))
        else:
            heard.append(MemberEvaluation(recipe, scores, *score_predictions(scores, manifest)))
    return heard


def fit_combination(
    heard: Sequence[MemberEvaluation], manifest: Manifest
) -> tuple[ScoreCombination, Calibration]:
    """How the scores of those who were heard become one, and that one probabilities."""
    parts = np.stack([hearing.scores for hearing in heard], axis=1)
    seen = ~np.isnan(parts[:, 0]).any(axis=1)
    orders = np.array([hearing.order for hearing in heard])
    labels = np.array([manifest.classes.index(label) for label in manifest.labels])
    return ScoreCombination.fit(parts[seen], labels[seen], orders, min_patients_per_class(manifest))


def unevaluated_members(recipes: Sequence[Recipe], manifest: Manifest) -> list[MemberEvaluation]:
    """Of recipes that nobody is there to be asked about."""
    return [MemberEvaluation(recipe, _nothing(manifest)) for recipe in recipes]


def score_predictions(scores: NDArray[np.float64], manifest: Manifest) -> tuple[float, float]:
    """The mean of balanced accuracy and AUC, and AUC alone.

    One counts right answers, the other the right order; on few images either alone is coarse.
    """
    classes, labels = manifest.classes, np.array(manifest.labels)
    answers = ["" if np.isnan(row).any() else classes[predicted_class(row)] for row in scores]
    known = np.nan_to_num(scores)
    two = known.shape[1] == 1
    area = auc(labels, known[:, 0], positive=classes[1]) if two else auc(labels, known)
    return (balanced_accuracy(labels, np.array(answers)) + area) / 2, area


def _with_fewer_patches(recipe: Recipe) -> Recipe:
    return replace(recipe, patches_per_class=math.ceil(recipe.patches_per_class / _PATCH_FRACTION))


def _nothing(manifest: Manifest) -> NDArray[np.float64]:
    return np.full((len(manifest.records), n_scores(len(manifest.classes))), np.nan)


def equal_weights(members: Sequence[Any], manifest: Manifest) -> ScoreCombination:
    """Members with the same say, on the scale of what they say of the images they learnt from."""
    looks = [
        [scores_or_none(m, r.path, r.mpp, no_callback, r.region_of_interest) for m in members]
        for r in manifest.records
    ]
    silent = np.full(n_scores(len(members[0].classes_)), np.nan)
    parts = np.array([[silent if s is None else s for s in row] for row in looks])
    return ScoreCombination.equal(parts)


def scores_or_none(member: Any, *image: Any) -> NDArray[np.float64] | None:
    """A member's scores; None for an image that does not suit it, though the first read it."""
    try:
        return member._predict_scores(*image).scores
    except ImageError:
        return None
