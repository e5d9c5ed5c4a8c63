"""Trials: a model learns from some patients and answers for others; each is held once.

A finished trial is a file whose name changes with all that decides the answers, so that a run that
was stopped goes on where it was, and never takes up what was made otherwise. One that cannot be
read is held again.

FOLDER/KEY.json     the answers
FOLDER/KEY/N.npz    the patch map behind the wrong answer for the N-th image tested; of regions,
                    behind every answer, as they are measured patch by patch

What models made by some recipes say of training patients they have not seen.

They are many, and asked only for weights and for how sure one can be: they learn from a third of
the patches. Where a class has a single patient there is nobody to ask about.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import warnings
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
from ..decision.aggregation import n_scores, predicted_class
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
from ..utils.text_io import read_checked_json, write_checked_json
from .predictions import NO_TISSUE_LABEL, ImagePrediction, RegionPrediction
from .recipe import Recipe

# What decides the bits of a result beside the settings; reports name these versions, too.
PACKAGES = ("histodict", "numpy", "scipy", "scikit-learn", "numba", "pillow")

_FORM = 3  # increased when the same settings and images give another model


class UnfittedModel(Protocol):
    """A model that has not learnt yet."""

    @property
    def recipe(self) -> Recipe: ...

    def fingerprint(self) -> list[Any]: ...

    def fit(
        self,
        images: Manifest,
        *,
        callback: Callback | None = None,
        executor: Executor | None = None,
    ) -> Any: ...


@dataclass(frozen=True)
class TrainTestRun:
    """`model` learns from `train` and answers for `test`.

    adapts : its threshold is then adapted to the test images, whose labels are not looked at
    """

    model: UnfittedModel
    train: Manifest
    test: Manifest
    adapts: bool = False

    @cached_property
    def key(self) -> str:
        """The same for the same work; other images, settings, weights or versions: another.

        Asked for once: it reads all images.
        """
        train, test = (
            list(map(training_content, side.records)) for side in (self.train, self.test)
        )
        train.sort(key=json.dumps)  # `fit` sorts its images
        versions = [version(name) for name in PACKAGES]
        learning = [self.model.fingerprint(), _FORM, train, self.train.classes]
        decided_by = [*learning, test, self.adapts, versions]
        text = json.dumps(decided_by, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class RunPredictions:
    """The answers of a trial, in the order of the test images.

    scores : per image one number for two classes, positive for the second; else one per class; of
        regions, the patches of the largest
    min_patches : of regions, the connected patches from which one counts; else None
    probabilities : per image one per class; none where the model is not calibrated
    prediction_sets : per image the classes that cannot be excluded at an error rate of 0.1
    maps : folder with the patch maps of the images it got wrong, or of all; map_digests : of its
        files
    """

    labels: list[str]
    scores: list[list[float]]
    probabilities: list[list[float]]
    prediction_sets: list[list[str]]
    seconds: dict[str, float]
    peak_mib: float | None = None
    min_patches: int | None = None
    map_digests: dict[str, str] = field(default_factory=dict)
    maps: Path | None = field(default=None, compare=False)

    def map_of(self, place: int) -> PatchMap | None:
        """The map of an image; whole-image methods have none, nor have right answers of classes."""
        file = self.maps / f"{place}.npz" if self.maps else None
        if file is None or not file.is_file():
            return None
        try:
            return PatchMap.load(file)
        except ValueError as error:
            warnings.warn(f"{error}: a map that is damaged is not shown", stacklevel=2)
            return None


class RunCache:
    """Holds trials, and keeps what came of them in a folder; None keeps nothing.

    inner : they are held inside another trial, of which alone a report tells: no maps are kept, and
        the peak of memory is left to the other
    """

    def __init__(self, folder: Path | None, *, inner: bool = False) -> None:
        self.folder = folder
        self.inner = inner

    def load_cached(self, trial: TrainTestRun) -> RunPredictions | None:
        """What is kept of this trial; nothing if that is damaged."""
        if self.folder is None:
            return None
        file = self.folder / f"{trial.key}.json"
        try:
            found = RunPredictions(**read_checked_json(file), maps=file.with_suffix(""))
            if len(found.labels) != len(trial.test.records):
                raise ValueError("it has answers for other images")
            for name, digest in found.map_digests.items():
                if content_digest(file.with_suffix("") / name) != digest:
                    raise ValueError(f"{file.with_suffix('') / name} is another file")
        except (OSError, TypeError, ValueError, AttributeError) as error:
            if not file.exists():
                return None
            warnings.warn(f"{file}: is damaged and made anew ({error})", stacklevel=2)
            return None
        return found

    def run(self, trial: TrainTestRun, executor: Executor | None = None) -> RunPredictions:
        """The answers, found or made."""
        found = self.load_cached(trial)
        if found is not None:
            return found
        if not self.inner:
            _forget_peak_memory()
        made, kept_maps = _run(trial, executor)
        if not self.inner:
            made = replace(made, peak_mib=_peak_memory())
        if self.folder is None:
            return made
        maps = self.folder / trial.key
        for place, patch_map in ({} if self.inner else kept_maps).items():
            patch_map.save(maps / f"{place}.npz")
            made.map_digests[f"{place}.npz"] = content_digest(maps / f"{place}.npz")
        content = {k: v for k, v in asdict(made).items() if k != "maps"}
        write_checked_json(maps.with_suffix(".json"), content)  # last: with it, it is finished
        return replace(made, maps=maps)


def _run(
    trial: TrainTestRun, executor: Executor | None
) -> tuple[RunPredictions, dict[int, PatchMap]]:
    """The answers, and the maps that are kept."""
    started = time.perf_counter()
    # A method of the whole image trains here, whatever works elsewhere.
    model = trial.model.fit(
        trial.train, executor=executor if trial.model.recipe.is_patch_level else None
    )
    trained = time.perf_counter()
    answers = _predictions(model, trial.test)
    if trial.adapts:
        # Whether there are two groups is not asked: a split has images of both classes.
        model = model.adapt_threshold([answer.score for answer in answers], force=True)
        answers = _predictions(model, trial.test)
    seconds = {"train": trained - started, "test": time.perf_counter() - trained}
    kept_maps = {
        place: answer.patch_map
        for place, (answer, record) in enumerate(zip(answers, trial.test.records, strict=True))
        if (model.finds_regions or answer.label != record.label) and answer.patch_map is not None
    }
    said = _of_regions(model, answers) if model.finds_regions else _of_classes(answers)
    labels = [answer.label or NO_TISSUE_LABEL for answer in answers]
    return RunPredictions(labels=labels, seconds=seconds, **said), kept_maps


def _of_classes(answers: list[ImagePrediction]) -> dict[str, Any]:
    return {
        "scores": [list(answer.scores) for answer in answers],
        "probabilities": [list(answer.probabilities.values()) for answer in answers],
        "prediction_sets": [answer.prediction_set for answer in answers],
    }


def _of_regions(model: Any, answers: list[RegionPrediction]) -> dict[str, Any]:
    """How sure the model is, is not known of regions."""
    nothing: list[list[Any]] = [[] for _ in answers]
    return {
        "scores": [[float(answer.score)] for answer in answers],
        "probabilities": nothing,
        "prediction_sets": nothing,
        "min_patches": model.min_patches_,
    }


def _predictions(model: Any, test: Manifest) -> list[Any]:
    return [
        model.predict_one(r.path, mpp=PixelSizeOption(table=r.mpp), within=r.region_of_interest)
        for r in test.records
    ]


# --- memory of this process, where the system tells ---------------------------------------------


def _forget_peak_memory() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "utf-8")


def _peak_memory() -> float | None:
    try:
        status = Path("/proc/self/status").read_text("utf-8")
    except OSError:
        return None
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) / 1024 if found else None


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
