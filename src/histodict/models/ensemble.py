"""Several models that decide together, weighed by what they say of patients they have not seen.

Every recipe is tried in folds of the training patients; what comes of it puts the members' scores
on one scale, weighs them, and turns the mean of them into probabilities. A panel of one is a
calibrated model. Where a class has one patient there is nobody to ask about: all have the same say,
and there are no probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import Manifest
from ..decision.atom_annotations import AtomAnnotations
from ..decision.calibration import Calibration, ScoreCombination
from ..decision.threshold import carried_over
from ..images.memory_image import ImageLike
from ..images.pixel_size import MppLike
from ..images.source import ImageError
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor
from ..utils.progress import Callback, Progress, no_callback
from .cross_validation import (
    MemberEvaluation,
    RunCache,
    cross_validate_recipes,
    equal_weights,
    fit_combination,
    patient_folds,
    scores_or_none,
    temporary_cache,
    unevaluated_members,
)
from .image_pipeline import CodeCallback, ImagePipeline, ImageScores
from .inputs import AnnotationInput, LabelledImages, resolve_training_set
from .model_file import ModelData, array_specs
from .predictions import Predictions, probabilities
from .recipe import Recipe, ensemble_recipes, resolve_ensemble_recipe
from .tissue_classifier import ImageClassifier, TissueClassifier

if TYPE_CHECKING:
    from ..explain.explanation import ScoreContributions


class EnsembleClassifier(ImageClassifier):
    """Answers "which class?" by several models, and says how sure it is.

    Parameters
    ----------
    recipes : a `Recipe`, or the name of a preset: it decides together with other views of the
        tissue. A list of such: just these, and a list of one is a single model that also says how
        sure it is. The first one's map and atoms are shown
    method : the method to take in them, by name
    folds : of the training patients, in which the recipes are tried
    random_state, n_jobs, cache, verbose, settings : as of `TissueClassifier`

    Attributes, beside those of every `ImageClassifier`
    ----------
    members_ : trained models, in the order of the recipes; a recipe that could not be tried is out
    combination_ : how members' scores become one
    calibration_ : from that to probabilities; None where no patient was left to learn them on
    """

    kind: ClassVar[str] = "ensemble"
    estimators_: list[TissueClassifier]
    combination_: ScoreCombination
    calibration_: Calibration | None

    def __init__(
        self,
        recipes: Sequence[Recipe | str] | Recipe | str = "default",
        *,
        method: str | None = None,
        folds: int = 3,
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
        verbose: bool | int = False,
        **settings: Any,
    ) -> None:
        self.recipes = self._members_of(recipes, method, settings)
        self._store_params(
            settings,
            recipes=recipes,
            method=method,
            folds=folds,
            random_state=random_state,
            n_jobs=n_jobs,
            cache=cache,
            verbose=verbose,
        )
        self.folds, self.recipe = folds, self.recipes[0]
        self.random_state, self.n_jobs = random_state, n_jobs
        self.cache = ArrayCache(cache) if cache else None

    @property
    def model_(self) -> ImagePipeline:
        return self.estimators_[0].model_

    def _members_of(
        self,
        given: Sequence[Recipe | str] | Recipe | str,
        method: str | None,
        settings: dict[str, Any],
    ) -> list[Recipe]:
        if isinstance(given, Recipe | str):
            return ensemble_recipes(
                self._with_settings(resolve_ensemble_recipe(given, method, settings), settings)
            )
        if not given:
            raise ValueError("a panel is made of recipes, or of the name of a preset, not of none")
        return [
            self._with_settings(resolve_ensemble_recipe(one, method), settings) for one in given
        ]

    def fit(
        self,
        images: LabelledImages,
        *,
        positive: str | None = None,
        callback: Callback | None = None,
        executor: Executor | None = None,
        start_from: EnsembleClassifier | None = None,
    ) -> Self:
        """Hear every recipe on unseen patients, then train those that could be tried on all.

        With a cache, or images that are small enough, what several trainings need is made once.

        `images`, `positive`, `callback`, `executor` as of `TissueClassifier`. `start_from`: only a
        panel of one can go on from another.
        """
        manifest = resolve_training_set(images, positive, "positive")
        if start_from is not None and len(self.recipes) > 1:
            raise ValueError("a panel starts afresh: only a single model can go on from another")
        with self._progress_callback(callback) as watch:
            return self._assign_fitted(self._fit(manifest, watch, executor, start_from))

    def _fit(
        self,
        manifest: Manifest,
        watch: Callback,
        executor: Executor | None,
        start_from: EnsembleClassifier | None,
    ) -> Self:
        """Return a fitted copy."""
        learnt, start = copy(self), None
        manifest, _ = learnt._begin(manifest, watch, executor)
        splits, unheard = patient_folds(manifest, self.folds, self.random_state)
        learnt.training_info_["folds"] = len(splits)
        if unheard:
            learnt.training_info_["unheard"] = unheard
        if start_from is not None:
            start = start_from.estimators_[0]
            learnt.training_info_["started_from"] = start_from.training_info_
        own = self.cache.folder if self.cache else None
        with temporary_cache(own, manifest, executor) as cache:
            member = partial(self._member, cache=cache)
            heard = unevaluated_members(self.recipes, manifest)
            if splits:
                trials = RunCache(own / "runs" if own else None, inner=True)
                heard = cross_validate_recipes(
                    self.recipes, member, manifest, splits, trials, watch, executor
                )
            learnt.estimators_ = []
            able: list[MemberEvaluation] = []
            for place, hearing in enumerate(heard):
                watch(Progress("views", place, len(heard)))
                if hearing.failure:
                    continue
                there = executor if hearing.recipe.is_patch_level else None
                fit = member(hearing.recipe).fit
                try:
                    made = fit(manifest, callback=watch, executor=there, start_from=start)
                except ImageError as error:  # of a view that was not tried before
                    if not able:
                        raise
                    heard[place] = replace(hearing, failure=str(error))
                    continue
                learnt.estimators_.append(made)
                able.append(hearing)
            watch(Progress("views", len(heard), len(heard)))
            learnt._fit_combination(able, manifest, is_heard=bool(splits))
        weights = iter(learnt.combination_.weights.tolist())
        learnt.training_info_["estimators"] = [
            hearing.to_dict() | ({} if hearing.failure else {"weight": next(weights)})
            for hearing in heard
        ]
        learnt.estimators_ = [made.with_cache(self.cache) for made in learnt.estimators_]
        return learnt

    def _fit_combination(
        self, heard: list[MemberEvaluation], manifest: Manifest, *, is_heard: bool
    ) -> None:
        """By what was heard; else all the same, on the scale of what they say of these images."""
        if is_heard:
            self.combination_, self.calibration_ = fit_combination(heard, manifest)
        else:
            self.combination_, self.calibration_ = equal_weights(self.estimators_, manifest), None

    def _member(self, recipe: Recipe, cache: Path | None = None) -> TissueClassifier:
        return TissueClassifier(
            recipe, random_state=self.random_state, n_jobs=self.n_jobs, cache=cache
        )

    # --- answering ------------------------------------------------------------------------------

    def predict_proba(
        self, images: Any, *, mpp: MppLike = None, within: AnnotationInput | None = None
    ) -> NDArray[np.float64]:
        """Probabilities (n_images, n_classes) in the order of `classes_`; NaN where there is glass.

        `images`, `mpp` and `within` as in `predict`; one image is one row.
        """
        if self.calibration_ is None:
            raise ValueError(f"how sure it is cannot be known: {self.training_info_['unheard']}")
        answers = self._predict(images, mpp, within)
        several = answers if isinstance(answers, Predictions) else [answers]
        return probabilities(several, self.classes_)

    def _predict_scores(
        self,
        path: ImageLike,
        mpp: float | None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> ImageScores:
        first = self.estimators_[0]._predict_scores(path, mpp, callback, within)
        n_abstaining = 0 if self.n_estimators_ > 1 else None
        if first.scores is None:
            return replace(first, n_abstaining=n_abstaining)
        parts = np.full((self.n_estimators_, len(first.scores)), np.nan)
        parts[0] = first.scores
        for row, member in zip(parts[1:], self.estimators_[1:], strict=True):
            found = scores_or_none(member, path, mpp, callback, within)
            row[:] = np.nan if found is None else found
        if n_abstaining is not None:
            n_abstaining = int(np.isnan(parts[:, 0]).sum())
        return replace(first, scores=self.combination_.scores(parts), n_abstaining=n_abstaining)

    def _probabilities_and_prediction_set(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        if self.calibration_ is None:
            return {}, []
        chances = self.calibration_.probabilities(scores[None])
        kept = self.calibration_.prediction_set(chances, error_rate)[0]
        names = [name for name, k in zip(self.classes_, kept, strict=True) if k]
        return dict(zip(self.classes_, chances[0].tolist(), strict=True)), names

    @property
    def n_estimators_(self) -> int:
        return len(self.estimators_)

    @property
    def has_threshold(self) -> bool:
        return self.n_estimators_ == 1 and super().has_threshold

    def _invert_tanh(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.combination_.invert_tanh(scores + self.threshold_shift_)

    def _member_score(self, score: float) -> float:
        return (score - self.combination_.offset) * float(self.combination_.scales[0])

    @property
    def _member_score_gradient(self) -> float:
        """On the panel's scale; the others' say moves the whole map, as they tell no place."""
        return 1 / float(self.combination_.scales[0])

    def _describe_aggregation(self, value: float) -> str:
        if self.n_estimators_ == 1:
            return super()._describe_aggregation(value)
        return f"decided by a panel of {self.n_estimators_}; where, by the first of them"

    def _moved_by(self, shift: float) -> Self:
        """Here probabilities move with the scores, so it is the scores that are moved."""
        moved, offset = copy(self), self.combination_.offset - shift
        moved.combination_ = replace(self.combination_, offset=offset)
        return moved

    def with_jobs(self, n_jobs: int | None) -> Self:
        changed = copy(self)
        changed.n_jobs = n_jobs
        changed.estimators_ = [member.with_jobs(n_jobs) for member in self.estimators_]
        return changed

    def with_code_callback(self, codes_to: CodeCallback) -> Self:
        return self._with_member(0, self.estimators_[0].with_code_callback(codes_to))

    def with_atom_annotations(self, notes: AtomAnnotations, view: int = 0) -> Self:
        return self._with_member(view, self.estimators_[view].with_atom_annotations(notes))

    def refit_decision_rule(self, images: LabelledImages, view: int = 0, **how: Any) -> Self:
        return self._with_member(view, self.estimators_[view].refit_decision_rule(images, **how))

    def _with_member(self, view: int, member: TissueClassifier) -> Self:
        changed = copy(self)
        changed.estimators_ = [*self.estimators_[:view], member, *self.estimators_[view + 1 :]]
        pair = self.estimators_[view].training_info_, member.training_info_
        changed.training_info_ = carried_over(self.training_info_, *pair)
        return changed

    def score_contributions(self, *image: Any) -> list[ScoreContributions]:
        from ..explain.explanation import explain_ensemble

        return explain_ensemble(self, *image)

    def describe_decision(self) -> str:
        if self.n_estimators_ == 1:
            return super().describe_decision()
        return f"by a panel of {self.n_estimators_}; maps and atoms are those of the first"

    def fingerprint(self) -> list[Any]:
        """All that decides what it learns from the same images, before it has learnt."""
        members = [self._member(recipe).fingerprint() for recipe in self.recipes]
        return [self.kind, members, self.folds, self.random_state]

    # --- for a model file -----------------------------------------------------------------------

    def to_model_data(self) -> ModelData:
        members = [member.to_model_data() for member in self.estimators_]
        arrays = {"combination.scales": self.combination_.scales}
        arrays["combination.weights"] = self.combination_.weights
        if self.calibration_ is not None:
            found = asdict(self.calibration_)
            arrays |= {f"calibration.{name}": array for name, array in found.items()}
        return replace(
            members[0],
            kind=self.kind,
            decision_parameters={
                "shift": self.threshold_shift_,
                "offset": self.combination_.offset,
                "tanh_scale": self.combination_.tanh_scale,
            },
            training_info=self.training_info_,
            estimators=members,
            atom_annotations=[],
            arrays=arrays,
        )

    @classmethod
    def from_model_data(cls, content: ModelData, n_jobs: int | None) -> EnsembleClassifier:
        seed = content.training_info["random_state"]
        members = [
            TissueClassifier.from_model_data(member, n_jobs) for member in content.estimators
        ]
        recipes, folds = [member.recipe for member in members], content.training_info["folds"]
        panel = cls(recipes, folds=folds, random_state=seed, n_jobs=n_jobs)
        panel.classes_ = [str(name) for name in content.classes]
        panel.threshold_shift_ = float(content.decision_parameters["shift"])
        panel.estimators_, panel.training_info_ = members, content.training_info
        arrays, is_calibrated = content.arrays, "unheard" not in content.training_info
        parts = ("combination", "calibration") if is_calibrated else ("combination",)
        content.check_arrays(array_specs(*parts), {})
        say = [arrays[f"combination.{name}"] for name in ("scales", "weights")]
        numbers = [float(content.decision_parameters[name]) for name in ("offset", "tanh_scale")]
        panel.combination_ = ScoreCombination(say[0], say[1], *numbers)
        names = [f"calibration.{name}" for name in ("slopes", "offsets", "nonconformity_scores")]
        panel.calibration_ = Calibration(*(arrays[n] for n in names)) if is_calibrated else None
        return panel
