"""Which class is this image? From labelled images to a model, from an image to an answer."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.calibration import Calibration
from ..decisions.image_rules import Evidence, ImageRule, winner
from ..evaluation.protocols import k_folds
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, ignore
from ..images.manifest import Manifest
from ..methods.registry import method_entry
from ..recipes import Recipe, preset
from .patch_model import PatchMap, PatchModel, PatchSource
from .whole_image_model import WholeImageModel


@dataclass(frozen=True)
class ImageAnswer:
    """The answer for one image; `label` is None where there is only glass.

    scores : one number for two classes, positive for the second; else one per class
    probabilities, candidates : where the model is calibrated, of each class, and the classes that
        cannot be ruled out; more or fewer than one means an uncertain answer
    A method that looks at the image as a whole leaves no proportions, threshold or map.
    """

    path: Path
    label: str | None
    scores: tuple[float, ...]
    proportions: dict[str, float] = field(default_factory=dict)
    threshold: float | None = None
    n_patches: int = 0
    patch_map: PatchMap | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    candidates: list[str] = field(default_factory=list)

    @property
    def score(self) -> float:
        """For two classes, positive for the second; for more, the highest."""
        return max(self.scores)


class TissueClassifier:
    """Answers "which class?" for whole images, from labelled images.

    Parameters
    ----------
    recipe : a `Recipe`, or the name of a preset
    method : the method to take in the preset, by name; see `methods.registry`
    random_state : seed; the same seed and images give the same model
    n_jobs : threads; None for all cores
    cache : folder for what is costly to compute of an image; None keeps nothing

    Attributes
    ----------
    classes_ : names in order; with two, the second is the one that scores positive
    model_ : what judges the image's patches, or the image as a whole
    rule_ : the fitted `ImageRule` over patches; None for a method of the whole image
    calibration_ : from scores to probabilities; None without `rule_folds`
    training_ : what is known of the training, for the record
    """

    classes_: list[str]
    model_: PatchModel | WholeImageModel
    rule_: ImageRule | None
    calibration_: Calibration | None
    training_: dict[str, Any]

    def __init__(
        self,
        recipe: Recipe | str = "default",
        *,
        method: str | None = None,
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.recipe = preset(recipe, method) if isinstance(recipe, str) else recipe
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = ArrayCache(cache) if cache else None

    def fit(
        self,
        manifest: Manifest,
        *,
        callback: Callback = ignore,
        executor: Executor | None = None,
        start_from: TissueClassifier | None = None,
    ) -> TissueClassifier:
        """Train the method, then fit the rule for patches on the same images.

        `executor` reads the images and codes their patches; None: threads. `start_from`: a model
        of the same recipe and classes; its dictionaries are gone on from (a warm start).
        """
        if start_from is not None and self.recipe.candidates > 1:
            raise ValueError(
                "a model to start from fixes the settings: take its recipe, not the preset auto"
            )
        classes = list(manifest.classes)
        if len(classes) < 2:
            raise ValueError(f"images of at least two classes are needed; there are: {classes}")
        labels = np.array([classes.index(record.label) for record in manifest.records])
        self.classes_ = classes
        self.calibration_ = None
        self.training_ = {
            "manifest_digest": manifest.digest(),
            "n_images": len(manifest.records),
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
        }
        if start_from is not None:
            self.training_["started_from"] = start_from.training_
        if self.recipe.candidates > 1:
            self._choose_recipe(manifest, callback)
        if method_entry(self.recipe.method).features is None:
            self._fit_patches(manifest, labels, callback, executor, start_from)
        elif start_from is not None:
            raise ValueError(f"the method {self.recipe.method!r} cannot go on from another model")
        elif executor is not None:
            raise ValueError(
                f"the method {self.recipe.method!r} looks at the image as a whole and trains on "
                "one machine: leave out the cluster"
            )
        else:
            self.model_ = WholeImageModel(self.recipe, self.random_state, self.n_jobs, self.cache)
            self.model_.fit(manifest.records, labels, callback)
            self.rule_ = None
        return self

    def predict(
        self, path: Path | str, *, mpp: float | None = None, error_rate: float = 0.1
    ) -> ImageAnswer:
        """The answer for an image or slide; mpp overrides its pixel size.

        `error_rate`: how often the true class may be missing among the answer's candidates.
        """
        path = Path(path)
        if isinstance(self.model_, WholeImageModel):
            scores = self.model_.scores(path, mpp)
            if scores is None:
                return ImageAnswer(path, None, (np.nan,) * _n_scores(self.classes_))
            return ImageAnswer(path, self.classes_[winner(scores)], tuple(scores.tolist()))
        assert self.rule_ is not None
        patch_map, evidence = self.model_.judge(path, mpp)
        threshold = self.rule_.threshold
        if evidence.n_patches == 0:
            nothing = (np.nan,) * len(self.rule_.bias)
            return ImageAnswer(path, None, nothing, threshold=threshold, patch_map=patch_map)
        scores = self.rule_.scores(evidence)
        chances, candidates = self._certainty(scores, error_rate)
        return ImageAnswer(
            path,
            self.classes_[winner(scores)],
            tuple(scores.tolist()),
            dict(zip(self.classes_, evidence.proportions.tolist(), strict=True)),
            threshold,
            evidence.n_patches,
            patch_map,
            chances,
            candidates,
        )

    def _certainty(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        """Probabilities of the classes, and those that cannot be ruled out; empty if unknown."""
        if self.calibration_ is None:
            return {}, []
        chances = self.calibration_.probabilities(scores[None])
        kept = self.calibration_.candidates(chances, error_rate)[0]
        names = [name for name, k in zip(self.classes_, kept, strict=True) if k]
        return dict(zip(self.classes_, chances[0].tolist(), strict=True)), names

    def _choose_recipe(self, manifest: Manifest, callback: Callback) -> None:
        """Take the best of some recipes for these patients, and keep what was tried."""
        from .tuning import candidates, choose_recipe

        base = replace(self.recipe, candidates=0)
        trials = choose_recipe(
            manifest,
            candidates(base, self.recipe.candidates, self.random_state),
            random_state=self.random_state,
            n_jobs=self.n_jobs,
            cache=self.cache.folder if self.cache else None,
            callback=callback,
        )
        self.recipe = trials[0].recipe
        self.training_["tried"] = [trial.to_dict() for trial in trials]

    def _fit_patches(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: TissueClassifier | None,
    ) -> None:
        model = PatchModel(self.recipe, self.classes_, self.random_state, self.n_jobs, self.cache)
        everything = list(range(len(labels)))
        start = model.start(start_from.model_) if start_from else None
        self.training_["n_patches"] = _fit(
            model, manifest, labels, everything, callback, executor, start
        )
        if self.recipe.rule_folds > 1:
            evidence = _unseen_evidence(model, manifest, labels, callback, executor)
        else:
            evidence = model.judge_all(manifest.records, _evidence, callback, executor)
        self.model_ = model
        seen = np.array([e.n_patches > 0 for e in evidence])
        evidence = [e for e in evidence if e.n_patches]
        self.rule_ = ImageRule.fit(self.recipe.rule, evidence, labels[seen])
        if self.recipe.rule_folds > 1:
            scores = np.stack([self.rule_.scores(e) for e in evidence])
            self.calibration_ = Calibration.fit(scores, labels[seen])


def _n_scores(classes: list[str]) -> int:
    return 1 if len(classes) == 2 else len(classes)


def _fit(
    model: PatchModel,
    manifest: Manifest,
    labels: NDArray[np.int64],
    places: list[int],
    callback: Callback,
    executor: Executor | None,
    start_from: PatchModel | None = None,
) -> int:
    sources = [PatchSource(manifest.records[i], int(labels[i])) for i in places]
    return model.fit(sources, callback, executor, start_from)


def _unseen_evidence(
    model: PatchModel,
    manifest: Manifest,
    labels: NDArray[np.int64],
    callback: Callback,
    executor: Executor | None,
) -> list[Evidence]:
    """Of every image, from a model like this that did not see its patient."""
    evidence: dict[int, Evidence] = {}
    for split in k_folds(manifest, model.recipe.rule_folds, random_state=model.random_state):
        other = copy(model)
        _fit(other, manifest, labels, split.train, callback, executor)
        records = [manifest.records[i] for i in split.test]
        found = other.judge_all(records, _evidence, callback, executor)
        evidence |= zip(split.test, found, strict=True)
    return [evidence[i] for i in range(len(labels))]


def _evidence(place: int, patch_map: PatchMap, evidence: Evidence) -> Evidence:
    return evidence
