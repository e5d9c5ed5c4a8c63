"""Weighted ensemble of classifiers, calibrated on out-of-fold predictions of training patients."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import Manifest
from ..decision.atom_annotations import AtomAnnotations
from ..decision.calibration import Calibration, ScoreCombination
from ..decision.threshold import add_member_changes
from ..images.memory_image import ImageLike
from ..images.pixel_size import MppLike
from ..images.source import ImageError
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor
from ..utils.progress import Callback, Progress, no_callback
from ..utils.text_io import pluralize
from .cross_validation import (
    MemberEvaluation,
    RunCache,
    cross_validate_recipes,
    fit_combination,
    fit_equal_weights,
    patient_folds,
    temporary_cache,
    try_score_image,
    unevaluated_members,
)
from .ensemble_recipes import ensemble_recipes, resolve_ensemble_recipe
from .estimator import as_predictions, available_if
from .image_classifier import ImageClassifier
from .image_pipeline import ImagePipeline, ImageScores, PatchRecorder
from .inputs import AnnotationInput, LabelledImages, TrainingImages
from .model_file import ModelData, array_specs
from .predictions import probability_array
from .recipe import Recipe
from .tissue_classifier import TissueClassifier
from .training_set import resolve_training_set


def _no_probabilities_reason(model: EnsembleClassifier) -> str:
    """Return the reason why a model has no probabilities.

    The text is empty if the model has probabilities or is not fitted.
    """
    reason = model.__dict__.get("training_info_", {}).get("uncalibrated_reason", "")
    return f"this model is not calibrated: {reason}" if reason else ""


def _missing_groups_warning(n_images: int) -> str:
    """Return the text of the warning that the patients of `n_images` images are unknown."""
    return (
        f"{pluralize(n_images, 'image')} without groups: each image counts as its own patient. "
        "If several images are of one patient, the probabilities and prediction sets of this "
        "model are too confident. In cross-validation, scikit-learn passes groups to fit after "
        "sklearn.set_config(enable_metadata_routing=True) and model.set_fit_request(groups=True)"
    )


def _fit_members(
    build_member: Callable[[Recipe], TissueClassifier],
    evaluations: Sequence[MemberEvaluation],
    manifest: Manifest,
    progress: Callback,
    executor: Executor | None,
    start_from: TissueClassifier | None,
) -> tuple[list[TissueClassifier], list[MemberEvaluation]]:
    """Fit an estimator for each recipe whose cross-validation did not fail.

    Parameters
    ----------
    build_member : function that returns the unfitted estimator of a recipe
    evaluations : out-of-fold evaluation of each recipe
    manifest : training images
    progress : receives the progress
    executor : runs the training of methods that classify patches in parallel; None uses threads
    start_from : fitted model whose dictionaries are trained further; None initialises new ones

    Returns
    -------
    estimators : fitted estimators
    evaluations : the evaluations, with the error messages of recipes that could not be fitted

    Raises
    ------
    ImageError
        If no estimator can be fitted.
    """
    estimators: list[TissueClassifier] = []
    results: list[MemberEvaluation] = []
    for i, evaluation in enumerate(evaluations):
        progress(Progress("members", i, len(evaluations)))
        results.append(evaluation)
        if evaluation.failure:
            continue
        try:
            estimator = build_member(evaluation.recipe).fit(
                manifest,
                callback=progress,
                executor=executor if evaluation.recipe.is_patch_level else None,
                start_from=start_from,
            )
        except ImageError as error:  # possible if the recipe was not evaluated before
            if not estimators:
                raise
            results[i] = replace(evaluation, failure=str(error))
        else:
            estimators.append(estimator)
    progress(Progress("members", len(evaluations), len(evaluations)))
    return estimators, results


class EnsembleClassifier(ImageClassifier):
    """Weighted ensemble of `TissueClassifier` models with calibrated probabilities.

    Every recipe is evaluated by cross-validation over patients. The out-of-fold scores determine
    the scale and weight of each estimator, the decision threshold and the calibration. Then every
    recipe is trained on all images.

    Parameters
    ----------
    recipes : Recipe, str or sequence of these, default="default"
        A single recipe, or the name of a preset, is combined with variations of it (see
        `ensemble_recipes`). A sequence is used without variations; a sequence of one
        recipe gives one calibrated model.
    method : str, optional
        Name of a method that replaces the method of all recipes; see `methods.registry`.
    folds : int, default=3
        Number of cross-validation folds over the training patients.
    random_state : int, default=0
        Seed. The same seed and images, in any order, give the same model.
    n_jobs : int, optional
        Number of threads; None uses all cores.
    cache : path, optional
        Folder that stores costly intermediate results of each image; None stores nothing.
    verbose : bool or int, default=False
        Whether to show progress bars on stderr.
    **settings
        Settings of the recipes or parameters of their method by name, such as ``n_atoms=100``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels. With two classes, positive scores stand for the second; see
        `TissueClassifier`.
    class_names_ : list of str
        Class labels as text.
    estimators_ : list of TissueClassifier
        Fitted models in the order of the recipes, without recipes that failed. The first
        provides the maps and atoms.
    n_estimators_ : int
        Number of fitted models.
    model_ : ImagePipeline
        Pipeline of the first estimator.
    combination_ : ScoreCombination
        Scales and weights that combine the scores of the estimators.
    calibration_ : Calibration or None
        Map from combined scores to probabilities; None if cross-validation was impossible.
    threshold_shift_ : float
        Shift of the decision threshold since training, in units of the score.
    training_info_ : dict
        Record of the training.

    Notes
    -----
    Cross-validation needs at least two patients per class. Otherwise estimators are weighted
    equally, and the model gives no probabilities.

    References
    ----------
    Platt, "Probabilistic outputs for support vector machines", 1999.

    Vovk, Gammerman, Shafer, "Algorithmic learning in a random world", 2005.
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
        self.recipes = self._resolve_recipes(recipes, method, settings)
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
        """Pipeline of the first estimator."""
        return self.estimators_[0].model_

    def _resolve_recipes(
        self,
        recipes: Sequence[Recipe | str] | Recipe | str,
        method: str | None,
        settings: dict[str, Any],
    ) -> list[Recipe]:
        """Return the recipes of all estimators for these arguments of the constructor."""
        if isinstance(recipes, Recipe | str):
            return ensemble_recipes(
                self._with_settings(resolve_ensemble_recipe(recipes, method, settings), settings)
            )
        if not recipes:
            raise ValueError(
                "recipes is empty: an ensemble needs one or more recipes, or the name of a preset"
            )
        return [
            self._with_settings(resolve_ensemble_recipe(item, method), settings) for item in recipes
        ]

    def fit(
        self,
        X: TrainingImages,
        y: Any = None,
        groups: Any = None,
        *,
        positive: str | None = None,
        callback: Callback | None = None,
        executor: Executor | None = None,
        start_from: EnsembleClassifier | None = None,
    ) -> Self:
        """Evaluate all recipes by cross-validation, then train those without errors on all images.

        With a cache or few images, intermediate results are computed once for all trainings.

        Parameters
        ----------
        X, y : images and labels, see `TissueClassifier.fit`
        groups : patient of each image; images of one patient are never in different folds. If it is
            None, each image of a list counts as one patient, with a warning
        positive : which of two classes has positive scores, see `TissueClassifier.fit`
        callback : receives the progress, instead of a progress bar
        executor : reads images and encodes patches in parallel; None uses threads
        start_from : fitted ensemble of a single model whose dictionaries are trained further (warm
            start)

        Returns
        -------
        Self
        """
        training = resolve_training_set(X, y, groups, positive=positive, option="positive")
        if not training.has_patients:
            warnings.warn(_missing_groups_warning(len(training.manifest.records)), stacklevel=2)
        if start_from is not None and len(self.recipes) > 1:
            raise ValueError(
                "start_from: training can only be resumed from a single model, not from an "
                "ensemble of several. Leave out start_from, or use one recipe"
            )
        with training.write_files() as manifest, self._progress_callback(callback) as progress:
            fitted = self._fit(manifest, progress, executor, start_from)
        fitted.training_info_ |= training.training_info
        return self._assign_fitted(fitted)

    def _fit(
        self,
        manifest: Manifest,
        progress: Callback,
        executor: Executor | None,
        start_from: EnsembleClassifier | None,
    ) -> Self:
        """Fit a copy of the model on a manifest and return the copy."""
        fitted, start = copy(self), None
        manifest, _ = fitted._start_training(manifest, progress, executor)
        splits, no_folds_reason = patient_folds(manifest, self.folds, self.random_state)
        fitted.training_info_["folds"] = len(splits)
        if no_folds_reason:
            fitted.training_info_["uncalibrated_reason"] = no_folds_reason
        if start_from is not None:
            start = start_from.estimators_[0]
            fitted.training_info_["started_from"] = start_from.training_info_
        folder = self.cache.folder if self.cache else None
        with temporary_cache(folder, manifest, executor) as cache:
            member = partial(self._build_member, cache=cache)
            evaluations = unevaluated_members(self.recipes, manifest)
            if splits:
                runs = RunCache(folder / "runs" if folder else None, is_inner=True)
                evaluations = cross_validate_recipes(
                    self.recipes, member, manifest, splits, runs, progress, executor
                )
            fitted.estimators_, evaluations = _fit_members(
                member, evaluations, manifest, progress, executor, start
            )
            trained = [evaluation for evaluation in evaluations if not evaluation.failure]
            fitted._fit_combination(trained, manifest, is_evaluated=bool(splits))
        weights = iter(fitted.combination_.weights.tolist())
        fitted.training_info_["estimators"] = [
            evaluation.to_dict() | ({} if evaluation.failure else {"weight": next(weights)})
            for evaluation in evaluations
        ]
        fitted.estimators_ = [estimator.with_cache(self.cache) for estimator in fitted.estimators_]
        return fitted

    def _fit_combination(
        self, evaluations: list[MemberEvaluation], manifest: Manifest, *, is_evaluated: bool
    ) -> None:
        """Set weights and calibration of the ensemble.

        If `is_evaluated`, both are fitted to the out-of-fold scores in `evaluations`. Otherwise the
        estimators have equal weights, and there is no calibration.
        """
        if is_evaluated:
            self.combination_, self.calibration_ = fit_combination(evaluations, manifest)
        else:
            self.combination_, self.calibration_ = (
                fit_equal_weights(self.estimators_, manifest),
                None,
            )

    def _build_member(self, recipe: Recipe, cache: Path | None = None) -> TissueClassifier:
        """Return the unfitted estimator of a recipe."""
        return TissueClassifier(
            recipe, random_state=self.random_state, n_jobs=self.n_jobs, cache=cache
        )

    # --- prediction -----------------------------------------------------------------------------

    @available_if(_no_probabilities_reason)
    def predict_proba(
        self, X: Any, *, mpp: MppLike = None, region_of_interest: AnnotationInput | None = None
    ) -> NDArray[np.float64]:
        """Return calibrated probabilities of the classes, in the order of `classes_`.

        Parameters
        ----------
        X : as in `predict`
        mpp : pixel size (µm), as in `predict`
        region_of_interest : outlines, as in `predict`

        Returns
        -------
        ndarray of shape (n_images, n_classes)
            NaN for images without tissue. A single image gives one row.

        Raises
        ------
        AttributeError
            If the ensemble is not calibrated; ``hasattr(model, "predict_proba")`` is then false.
        """
        return probability_array(
            as_predictions(self._predict(X, mpp, region_of_interest)), self.class_names_
        )

    def _score_image(
        self,
        path: ImageLike,
        mpp: float | None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> ImageScores:
        first = self.estimators_[0]._score_image(path, mpp, callback, region_of_interest)
        n_abstaining = 0 if self.n_estimators_ > 1 else None
        if first.scores is None:
            return replace(first, n_abstaining=n_abstaining)
        scores = np.full((self.n_estimators_, len(first.scores)), np.nan)
        scores[0] = first.scores
        for row, member in zip(scores[1:], self.estimators_[1:], strict=True):
            member_scores = try_score_image(member, path, mpp, callback, region_of_interest)
            row[:] = np.nan if member_scores is None else member_scores
        if n_abstaining is not None:
            n_abstaining = int(np.isnan(scores[:, 0]).sum())
        return replace(first, scores=self.combination_.scores(scores), n_abstaining=n_abstaining)

    def _probabilities_and_prediction_set(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        if self.calibration_ is None:
            return {}, []
        probabilities = self.calibration_.probabilities(scores[None])
        in_set = self.calibration_.prediction_set(probabilities, error_rate)[0]
        names = [
            name for name, is_in_set in zip(self.class_names_, in_set, strict=True) if is_in_set
        ]
        return dict(zip(self.class_names_, probabilities[0].tolist(), strict=True)), names

    @property
    def n_estimators_(self) -> int:
        """Number of fitted models."""
        return len(self.estimators_)

    @property
    def has_threshold(self) -> bool:
        """Whether the ensemble has a single estimator, and this one has a decision threshold."""
        return self.n_estimators_ == 1 and super().has_threshold

    def _invert_tanh(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.combination_.invert_tanh(scores + self.threshold_shift_)

    def _member_score(self, score: float) -> float:
        return (score - self.combination_.offset) * float(self.combination_.scales[0])

    @property
    def _member_score_gradient(self) -> float:
        """Derivative of the ensemble's score with respect to the score of the first estimator."""
        return 1 / float(self.combination_.scales[0])

    def _describe_aggregation(self, value: float) -> str:
        if self.n_estimators_ == 1:
            return super()._describe_aggregation(value)
        return f"from an ensemble of {self.n_estimators_} models; positions from the first model"

    def _with_score_shift(self, shift: float) -> Self:
        """Return a copy whose scores are lower by `shift`, with the corresponding probabilities."""
        shifted, offset = copy(self), self.combination_.offset - shift
        shifted.combination_ = replace(self.combination_, offset=offset)
        return shifted

    def with_jobs(self, n_jobs: int | None) -> Self:
        """Return a copy that uses `n_jobs` threads.

        Parameters
        ----------
        n_jobs : number of threads; None uses all cores

        Returns
        -------
        Self
        """
        changed = copy(self)
        changed.n_jobs = n_jobs
        changed.estimators_ = [member.with_jobs(n_jobs) for member in self.estimators_]
        return changed

    def with_recorders(self, recorders: Sequence[PatchRecorder]) -> Self:
        """Return a copy in which estimator i passes the codes of patches to `recorders[i]`."""
        changed = copy(self)
        changed.estimators_ = list(self.estimators_)
        for index, recorder in enumerate(recorders):
            changed.estimators_[index] = self.estimators_[index].with_recorders([recorder])
        return changed

    def with_atom_annotations(self, annotations: AtomAnnotations, member_index: int = 0) -> Self:
        """Return a copy in which the atoms of one estimator have these annotations.

        Parameters
        ----------
        annotations : annotations of the atoms
        member_index : index of the estimator

        Returns
        -------
        Self
        """
        member = self.estimators_[member_index].with_atom_annotations(annotations)
        return self._replace_member(member_index, member)

    def refit_decision_rule(
        self, images: LabelledImages, member_index: int = 0, *, callback: Callback | None = None
    ) -> Self:
        """Return a copy in which the aggregator of one estimator is fitted again.

        Parameters
        ----------
        images : labelled images, such as the training images
        member_index : index of the estimator
        callback : receives the progress

        Returns
        -------
        Self
        """
        member = self.estimators_[member_index].refit_decision_rule(images, callback=callback)
        return self._replace_member(member_index, member)

    def _replace_member(self, index: int, member: TissueClassifier) -> Self:
        """Return a copy in which `member` replaces the estimator at `index`.

        New changes in the training record of `member` are added to the record of the ensemble.
        """
        changed = copy(self)
        changed.estimators_ = [*self.estimators_[:index], member, *self.estimators_[index + 1 :]]
        records = self.estimators_[index].training_info_, member.training_info_
        changed.training_info_ = add_member_changes(self.training_info_, *records)
        return changed

    def describe_decision(self) -> str:
        """Return a description of the decision for a model card.

        Returns
        -------
        str
        """
        if self.n_estimators_ == 1:
            return super().describe_decision()
        n = self.n_estimators_
        return f"combined from {n} models; maps and the page of atoms show the first one"

    def fingerprint(self) -> list[Any]:
        """Return all settings that determine the fitted model for the same training images."""
        members = [self._build_member(recipe).fingerprint() for recipe in self.recipes]
        return [self.kind, members, self.folds, self.random_state]

    # --- model file -----------------------------------------------------------------------------

    def to_model_data(self) -> ModelData:
        """Convert the fitted model to the content of a model file."""
        members = [member.to_model_data() for member in self.estimators_]
        arrays = {"combination.scales": self.combination_.scales}
        arrays["combination.weights"] = self.combination_.weights
        if self.calibration_ is not None:
            fields = asdict(self.calibration_)
            arrays |= {f"calibration.{name}": array for name, array in fields.items()}
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
        """Create a fitted model from the content of a model file."""
        seed = content.training_info["random_state"]
        members = [
            TissueClassifier.from_model_data(member, n_jobs) for member in content.estimators
        ]
        recipes, folds = [member.recipe for member in members], content.training_info["folds"]
        ensemble = cls(recipes, folds=folds, random_state=seed, n_jobs=n_jobs)
        ensemble.class_names_ = [str(name) for name in content.classes]
        ensemble.threshold_shift_ = float(content.decision_parameters["shift"])
        ensemble.estimators_, ensemble.training_info_ = members, content.training_info
        arrays, is_calibrated = content.arrays, "uncalibrated_reason" not in content.training_info
        prefixes = ("combination", "calibration") if is_calibrated else ("combination",)
        content.check_arrays(array_specs(*prefixes), {})
        combination = [arrays[f"combination.{name}"] for name in ("scales", "weights")]
        numbers = [float(content.decision_parameters[name]) for name in ("offset", "tanh_scale")]
        ensemble.combination_ = ScoreCombination(combination[0], combination[1], *numbers)
        names = [f"calibration.{name}" for name in ("slopes", "offsets", "nonconformity_scores")]
        ensemble.calibration_ = Calibration(*(arrays[n] for n in names)) if is_calibrated else None
        return ensemble
