"""Train-test runs with a cache, and out-of-fold evaluation of recipes for ensembles.

A completed run is stored under a hash of everything that determines its predictions, so that an
interrupted evaluation resumes and outdated results are never used. Unreadable runs are repeated.

FOLDER/KEY.json     predictions; KEY is the hash
FOLDER/KEY/N.npz    patch map of test image N: of wrongly predicted images for classifiers, of all
                    images for region detectors, which are evaluated patch by patch

Out-of-fold scores of training patients determine weights and calibration of an ensemble. At least
two patients per class are needed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..datasets.manifest import Manifest
from ..datasets.survey import training_content
from ..decision.aggregation import count_scores, predicted_class
from ..decision.calibration import Calibration, ScoreCombination
from ..images.memory_image import estimated_bytes, image_cache_enabled
from ..images.pixel_size import PixelSizeOption
from ..images.source import ImageError
from ..metrics.scores import auc, balanced_accuracy
from ..model_selection.protocols import k_folds
from ..model_selection.splits import Split, SplitError
from ..patches.patch_map import PatchMap
from ..utils.files import content_digest, temporary_folder
from ..utils.parallel import Executor
from ..utils.progress import Callback, Progress, no_callback
from ..utils.text_io import read_checked_json, truncated_list, write_checked_json
from .predictions import NO_TISSUE_LABEL, ImagePrediction, RegionPrediction
from .recipe import Recipe

# Packages whose versions are part of the hash of a run and are listed in reports.
PACKAGES = ("histodict", "numpy", "scipy", "scikit-learn", "numba", "pillow")

_ALGORITHM_VERSION = 3  # increased when the same settings and images give another model


class UnfittedModel(Protocol):
    """Interface of unfitted models."""

    @property
    def recipe(self) -> Recipe:
        """Settings of the model."""

    def fingerprint(self) -> list[Any]:
        """Return all settings that determine the fitted model."""

    def fit(
        self, X: Manifest, *, callback: Callback | None = None, executor: Executor | None = None
    ) -> Any:
        """Return the model fitted on the images `X`."""


@dataclass(frozen=True)
class TrainTestRun:
    """Specification of a run: a model, its training images and its test images.

    Attributes
    ----------
    model : unfitted model
    train : training images
    test : test images
    adapts_threshold : whether the decision threshold is adapted to the scores of the test images,
        without their labels
    """

    model: UnfittedModel
    train: Manifest
    test: Manifest
    adapts_threshold: bool = False

    @cached_property
    def key(self) -> str:
        """Hash of the images, settings, encoder weights and package versions of the run."""
        train, test = (
            list(map(training_content, manifest.records)) for manifest in (self.train, self.test)
        )
        train.sort(key=json.dumps)  # the order does not matter, as `fit` sorts its images
        versions = [version(name) for name in PACKAGES]
        training = [self.model.fingerprint(), _ALGORITHM_VERSION, train, self.train.classes]
        fingerprint = [*training, test, self.adapts_threshold, versions]
        text = json.dumps(fingerprint, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class RunPredictions:
    """Predictions of a run, in the order of the test images.

    Attributes
    ----------
    labels : predicted class of each image
    scores : for each image, one score per class; with two classes, a single score, which is
        positive for the second class; for region detectors, the number of patches of the largest
        region
    probabilities : for each image, the probability of each class; empty lists if the model is not
        calibrated
    prediction_sets : for each image, the classes that cannot be excluded at an error rate of 0.1
    seconds : durations by stage, "train" and "test"
    peak_mib : peak memory of the process in MiB; None if unknown
    min_patches : minimum number of connected patches of a region; None for classifiers
    map_digests : SHA-256 of each patch map file, by file name
    map_folder : folder of the patch map files; None if no maps are stored
    """

    labels: list[str]
    scores: list[list[float]]
    probabilities: list[list[float]]
    prediction_sets: list[list[str]]
    seconds: dict[str, float]
    peak_mib: float | None = None
    min_patches: int | None = None
    map_digests: dict[str, str] = field(default_factory=dict)
    map_folder: Path | None = field(default=None, compare=False)

    def load_map(self, index: int) -> PatchMap | None:
        """Return the stored patch map of the test image with this index; None if there is none."""
        file = self.map_folder / f"{index}.npz" if self.map_folder else None
        if file is None or not file.is_file():
            return None
        try:
            return PatchMap.load(file)
        except ValueError as error:
            warnings.warn(f"{error}. The damaged map is not shown", stacklevel=2)
            return None


class RunCache:
    """Cache of the predictions of train-test runs in a folder.

    Attributes
    ----------
    folder : folder of the cache; None stores nothing
    is_inner : whether the runs are part of another run, as in nested cross-validation. If True, no
        patch maps are stored, and the memory is not measured
    """

    def __init__(self, folder: Path | None, *, is_inner: bool = False) -> None:
        self.folder = folder
        self.is_inner = is_inner

    def load_cached(self, train_test_run: TrainTestRun) -> RunPredictions | None:
        """Return the stored predictions of a run; None if they are missing or damaged."""
        if self.folder is None:
            return None
        file = self.folder / f"{train_test_run.key}.json"
        try:
            cached = RunPredictions(**read_checked_json(file), map_folder=file.with_suffix(""))
            if len(cached.labels) != len(train_test_run.test.records):
                raise ValueError("it contains predictions of other images")
            for name, digest in cached.map_digests.items():
                if content_digest(file.with_suffix("") / name) != digest:
                    raise ValueError(f"{file.with_suffix('') / name} was changed")
        except (OSError, TypeError, ValueError, AttributeError) as error:
            if not file.exists():
                return None
            warnings.warn(
                f"{file}: damaged predictions in the cache are computed again ({error})",
                stacklevel=2,
            )
            return None
        return cached

    def run(self, train_test_run: TrainTestRun, executor: Executor | None = None) -> RunPredictions:
        """Return the predictions of a run.

        If they are in the cache, they are read. Otherwise the run is executed, and its predictions
        are stored unless the cache has no folder.
        """
        cached = self.load_cached(train_test_run)
        if cached is not None:
            return cached
        if not self.is_inner:
            _reset_peak_memory()
        predictions, patch_maps = _fit_and_predict(train_test_run, executor)
        if not self.is_inner:
            predictions = replace(predictions, peak_mib=_peak_memory())
        if self.folder is None:
            return predictions
        maps = self.folder / train_test_run.key
        for index, patch_map in ({} if self.is_inner else patch_maps).items():
            patch_map.save(maps / f"{index}.npz")
            predictions.map_digests[f"{index}.npz"] = content_digest(maps / f"{index}.npz")
        content = {k: v for k, v in asdict(predictions).items() if k != "map_folder"}
        write_checked_json(maps.with_suffix(".json"), content)  # last: marks the run as complete
        return replace(predictions, map_folder=maps)


def _fit_and_predict(
    train_test_run: TrainTestRun, executor: Executor | None
) -> tuple[RunPredictions, dict[int, PatchMap]]:
    """Execute a run; return its predictions and, by image index, the patch maps to store."""
    started = time.perf_counter()
    # Methods of the whole image train in this process only.
    model = train_test_run.model.fit(
        train_test_run.train,
        executor=executor if train_test_run.model.recipe.is_patch_level else None,
    )
    trained = time.perf_counter()
    predictions = _predict_images(model, train_test_run.test)
    if train_test_run.adapts_threshold:
        # No test for two groups is needed: the test images of a split have both classes.
        model = model.adapt_threshold([prediction.score for prediction in predictions], force=True)
        predictions = _predict_images(model, train_test_run.test)
    seconds = {"train": trained - started, "test": time.perf_counter() - trained}
    maps = {
        index: prediction.patch_map
        for index, (prediction, record) in enumerate(
            zip(predictions, train_test_run.test.records, strict=True)
        )
        if (model.finds_regions or prediction.top_label != record.label)
        and prediction.patch_map is not None
    }
    fields = (
        _region_fields(model, predictions)
        if model.finds_regions
        else _classification_fields(predictions)
    )
    labels = [prediction.top_label or NO_TISSUE_LABEL for prediction in predictions]
    return RunPredictions(labels=labels, seconds=seconds, **fields), maps


def _classification_fields(predictions: list[ImagePrediction]) -> dict[str, Any]:
    """Return the fields of `RunPredictions` that are specific to a classifier."""
    return {
        "scores": [list(prediction.scores) for prediction in predictions],
        "probabilities": [list(prediction.probabilities.values()) for prediction in predictions],
        "prediction_sets": [prediction.prediction_set for prediction in predictions],
    }


def _region_fields(model: Any, predictions: list[RegionPrediction]) -> dict[str, Any]:
    """Return the fields of `RunPredictions` that are specific to a region detector."""
    empty: list[list[Any]] = [[] for _ in predictions]
    return {
        "scores": [[float(prediction.score)] for prediction in predictions],
        "probabilities": empty,
        "prediction_sets": empty,
        "min_patches": model.min_patches_,
    }


def _predict_images(model: Any, test: Manifest) -> list[Any]:
    return [
        model.predict_one(
            r.path, mpp=PixelSizeOption(table=r.mpp), region_of_interest=r.region_of_interest
        )
        for r in test.records
    ]


# --- peak memory of this process (Linux only) ---------------------------------------------------


def _reset_peak_memory() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "utf-8")


def _peak_memory() -> float | None:
    """Return the peak memory in MiB since the last reset; None if unknown."""
    try:
        status = Path("/proc/self/status").read_text("utf-8")
    except OSError:
        return None
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) / 1024 if match else None


_PATCH_REDUCTION = 3  # runs use 1/3 of the training patches to save time
_MAX_CACHED_BYTES = 500 * 2**20  # of image files; encoder features take several times as much


@dataclass(frozen=True)
class MemberEvaluation:
    """Out-of-fold scores of one recipe.

    Attributes
    ----------
    recipe : settings of the models
    scores : (n_images, n_scores), NaN for images without tissue and before the evaluation
    performance : mean of balanced accuracy and `auc`; None if not evaluated or failed
    auc : area under the ROC curve; 0.5 if not evaluated or failed
    failure : error message of a failed recipe, which is excluded from the ensemble
    """

    recipe: Recipe
    scores: NDArray[np.float64]
    performance: float | None = None
    auc: float = 0.5
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the evaluation as a JSON object for the training record.

        The keys are "recipe", "unseen" (the performance) and, for a failed recipe, "failure".
        """
        values = {"recipe": self.recipe.to_dict(), "unseen": self.performance}
        return values | ({"failure": self.failure} if self.failure else {})


@contextmanager
def temporary_cache(
    folder: Path | None, manifest: Manifest, executor: Executor | None
) -> Iterator[Path | None]:
    """Yield the folder in which several trainings cache intermediate results.

    If `folder` is None, a temporary folder is used and removed at the end; but for a large image
    set, or with an executor, whose workers cannot remove a temporary folder, None is yielded. In
    the context, decoded images are cached in memory.
    """
    n_bytes = sum(estimated_bytes(record.path) for record in manifest.records)
    with image_cache_enabled():
        if folder is not None or executor is not None or n_bytes > _MAX_CACHED_BYTES:
            yield folder
            return
        with temporary_folder("histodict-ensemble-") as temporary:
            yield temporary


def patient_folds(manifest: Manifest, n_folds: int, random_state: int) -> tuple[list[Split], str]:
    """Split the patients into folds, fewer than `n_folds` if there are too few patients.

    Returns
    -------
    folds : list of Split; empty if two folds are impossible
    reason : reason why two folds are impossible; empty if there are folds
    """
    reason = ""
    for n in range(n_folds, 1, -1):
        try:
            return list(k_folds(manifest, n, random_state=random_state)), ""
        except SplitError as error:
            reason = str(error)
    single = sorted(name for name, n in _patients_per_class(manifest).items() if n == 1)
    if single:
        noun = "class" if len(single) == 1 else "each of the classes"
        reason = (
            f"{noun} {truncated_list([*map(repr, single)])} has only one patient, so no "
            "out-of-fold predictions are possible; train with at least two patients per class"
        )
    return [], reason


def min_patients_per_class(manifest: Manifest) -> int:
    """Return the number of patients of the class with the fewest patients."""
    return min(_patients_per_class(manifest).values())


def _patients_per_class(manifest: Manifest) -> Counter[str]:
    """Return the number of patients of each class."""
    pairs = {(record.label, record.patient) for record in manifest.records if record.label}
    return Counter(label for label, _ in pairs)


def cross_validate_recipes(
    recipes: Sequence[Recipe],
    build_model: Callable[[Recipe], UnfittedModel],
    manifest: Manifest,
    splits: Sequence[Split],
    cache: RunCache,
    callback: Callback,
    executor: Executor | None,
) -> list[MemberEvaluation]:
    """Return out-of-fold scores of every recipe, in the order of `recipes`.

    If the first recipe fails with ImageError, the error is raised. For any other recipe, the error
    message is stored in its evaluation.

    Parameters
    ----------
    recipes : recipes to evaluate
    build_model : function that returns the unfitted model of a recipe
    manifest : training images
    splits : folds over the patients
    cache : cache of the runs
    callback : receives the progress
    executor : runs the training of methods that classify patches in parallel; None uses threads
    """
    n_runs, n_done = len(recipes) * len(splits), 0
    evaluations: list[MemberEvaluation] = []
    callback(Progress("cross-validation", 0, n_runs))
    for recipe in recipes:
        scores = _missing_scores(manifest)
        failure = ""
        for i, split in enumerate(splits):
            train, test = manifest.select(split.train), manifest.select(split.test)
            run = TrainTestRun(build_model(_reduced_recipe(recipe)), train, test)
            try:
                scores[split.test] = cache.run(run, executor).scores
            except ImageError as error:  # for example patches larger than an image
                if not evaluations:
                    raise
                failure = str(error)
                break
            callback(Progress("cross-validation", n_done + 1 + i, n_runs))
        n_done += len(splits)
        callback(Progress("cross-validation", n_done, n_runs))
        if failure:
            evaluations.append(MemberEvaluation(recipe, scores, failure=failure))
        else:
            evaluations.append(MemberEvaluation(recipe, scores, *evaluate_scores(scores, manifest)))
    return evaluations


def fit_combination(
    evaluations: Sequence[MemberEvaluation], manifest: Manifest
) -> tuple[ScoreCombination, Calibration]:
    """Fit weights and calibration of an ensemble to out-of-fold scores.

    Returns
    -------
    combination : scales and weights of the models
    calibration : map from combined scores to probabilities
    """
    scores = np.stack([evaluation.scores for evaluation in evaluations], axis=1)
    is_scored = ~np.isnan(scores[:, 0]).any(axis=1)
    aucs = np.array([evaluation.auc for evaluation in evaluations])
    labels = np.array([manifest.classes.index(label) for label in manifest.labels])
    return ScoreCombination.fit(
        scores[is_scored], labels[is_scored], aucs, min_patients_per_class(manifest)
    )


def unevaluated_members(recipes: Sequence[Recipe], manifest: Manifest) -> list[MemberEvaluation]:
    """Return evaluations without scores, for training sets that cannot be split into folds."""
    return [MemberEvaluation(recipe, _missing_scores(manifest)) for recipe in recipes]


def evaluate_scores(scores: NDArray[np.float64], manifest: Manifest) -> tuple[float, float]:
    """Return the mean of balanced accuracy and AUC, and the AUC.

    With few images, the mean has more distinct values than either metric. Images whose row in
    `scores` (n_images, n_scores) is NaN count as wrong.
    """
    classes, labels = manifest.classes, np.array(manifest.labels)
    predicted = ["" if np.isnan(row).any() else classes[predicted_class(row)] for row in scores]
    known = np.nan_to_num(scores)
    is_binary = known.shape[1] == 1
    auc_score = auc(labels, known[:, 0], positive=classes[1]) if is_binary else auc(labels, known)
    return (balanced_accuracy(labels, np.array(predicted)) + auc_score) / 2, auc_score


def _reduced_recipe(recipe: Recipe) -> Recipe:
    """Return a copy of a recipe with fewer training patches."""
    return replace(recipe, patches_per_class=math.ceil(recipe.patches_per_class / _PATCH_REDUCTION))


def _missing_scores(manifest: Manifest) -> NDArray[np.float64]:
    """Return an array of NaN in the shape of the scores (n_images, n_scores)."""
    return np.full((len(manifest.records), count_scores(len(manifest.classes))), np.nan)


def fit_equal_weights(members: Sequence[Any], manifest: Manifest) -> ScoreCombination:
    """Return a combination of fitted models with equal weights.

    The scale of each model is fitted to its scores of the training images in `manifest`.
    """
    rows = [
        [try_score_image(m, r.path, r.mpp, no_callback, r.region_of_interest) for m in members]
        for r in manifest.records
    ]
    missing = np.full(count_scores(len(members[0].class_names_)), np.nan)
    scores = np.array([[missing if s is None else s for s in row] for row in rows])
    return ScoreCombination.with_equal_weights(scores)


def try_score_image(member: Any, *arguments: Any) -> NDArray[np.float64] | None:
    """Return the scores of an estimator for an image; None without tissue or after an ImageError.

    `arguments` are those of `_score_image` in their order: path, pixel size, callback and region
    of interest.
    """
    try:
        return member._score_image(*arguments).scores
    except ImageError:
        return None
