"""Which class is this image? One model: from labelled images to it, from an image to an answer.

From the scores of an image to its answer: what all models share that say "which class?".
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, overload

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import ImageRecord, Manifest
from ..datasets.survey import sorted_by_content
from ..decision.aggregation import Aggregator, check_scores, n_scores, predicted_class
from ..decision.atom_annotations import AtomAnnotations
from ..decision.threshold import (
    DecisionThreshold,
    image_fingerprints,
    is_bimodal,
    tuned,
    unlabelled_threshold,
)
from ..encoders import get_patch_features
from ..images.memory_image import ImageLike, image_cache_enabled
from ..images.pixel_size import MppLike, PixelSizeOption
from ..methods.registry import get_method
from ..patches.patch_map import PatchMap
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor
from ..utils.progress import Callback, no_callback
from ..utils.validation import hint
from .estimator import ImageEstimator, raise_no_predict_proba
from .image_pipeline import CodeCallback, ImagePipeline, ImageScores, WholeImagePipeline
from .inputs import (
    LabelledImages,
    ManyImages,
    RegionOfInterest,
    SingleImage,
    checked_training_images,
    data_notes,
    resolve_labelled,
    resolve_training_set,
    why_too_few_classes,
)
from .model_file import ModelData
from .patch_pipeline import PatchPipeline
from .predictions import ImagePrediction, Predictions
from .recipe import Recipe

_NO_LABEL = "no label"
_ROUNDING = 1e-9  # a line that moved by less has not moved


class ImageClassifier(ImageEstimator):
    """A model that gives an image scores, and draws a line.

    Attributes
    ----------
    classes_ : names in order; with two, the second is the one that scores positive
    shift_ : how far from where it was learnt to decide it decides, in units of the score
    training_ : what is known of the training, for the record
    """

    table: ClassVar[str] = "predictions"
    columns: ClassVar[tuple[str, ...]] = ImagePrediction.COLUMNS
    finds_regions: ClassVar[Literal[False]] = False
    recipe: Recipe
    random_state: int
    cache: ArrayCache | None
    threshold_shift_: float

    @property
    def model_(self) -> ImagePipeline:
        """What judges the image's patches, or the image as a whole; of a panel, its first."""
        raise NotImplementedError

    def _predict_scores(
        self,
        path: ImageLike,
        mpp: float | None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> ImageScores:
        raise NotImplementedError

    def _member_score(self, score: float) -> float:
        """The score of `model_` behind a score."""
        return score

    @property
    def _member_score_gradient(self) -> float:
        """By how much a score changes with that of `model_`, others' say left as it is."""
        return 1.0

    def _invert_tanh(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores on a scale without ends, where one group of images does not pile up at both."""
        return scores

    def _probabilities_and_prediction_set(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        """Probabilities of the classes, and those that cannot be ruled out; empty if unknown."""
        return {}, []

    @property
    def aggregator_(self) -> Aggregator | None:
        """The rule over patches; None for a method of the whole image."""
        return self.model_.aggregator_

    # --- learning -------------------------------------------------------------------------------

    def _begin(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> tuple[Manifest, NDArray[np.int64]]:
        """Start the training record, with the images in order and the index of each class."""
        if executor is not None and not self.recipe.is_patch_level:
            raise ValueError(
                f"the method {self.recipe.method!r} looks at the image as a whole and trains on "
                "one machine: leave out the cluster"
            )
        classes = list(manifest.classes)
        if len(classes) < 2:
            raise ValueError(why_too_few_classes(manifest))
        manifest = checked_training_images(manifest, self.n_jobs, callback)
        self.classes_, self.threshold_shift_ = classes, 0.0
        self.training_info_ = {
            "manifest_digest": manifest.digest(),
            "n_images": manifest.n_images,
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
            "images": image_fingerprints(record.path for record in manifest.records),
        } | data_notes(manifest)
        if any(record.region_of_interest for record in manifest.records):
            self.training_info_["n_parts"] = len(manifest.records)
        return manifest, np.array([classes.index(record.label) for record in manifest.records])

    # --- answering ------------------------------------------------------------------------------

    @overload
    def predict(
        self,
        images: SingleImage,
        *,
        mpp: MppLike = ...,
        error_rate: float = ...,
        within: RegionOfInterest = ...,
    ) -> ImagePrediction: ...
    @overload
    def predict(
        self,
        images: ManyImages,
        *,
        mpp: MppLike = ...,
        error_rate: float = ...,
        within: RegionOfInterest = ...,
    ) -> Predictions[ImagePrediction]: ...
    @overload
    def predict(
        self,
        images: Any,
        *,
        mpp: MppLike = ...,
        error_rate: float = ...,
        within: RegionOfInterest = ...,
    ) -> Any: ...

    def predict(
        self,
        images: Any,
        *,
        mpp: MppLike = None,
        error_rate: float = 0.1,
        within: RegionOfInterest = None,
    ) -> Any:
        """Which class? An `ImagePrediction` for one image, `Answers` for several.

        Parameters
        ----------
        images : one image is the path of an image or slide, an array (height, width, 3) of uint8
            or a picture of Pillow; several are a list of such, a folder, a CSV file, a DataFrame or
            a `Manifest`
        mpp : µm per pixel of images of which neither the file nor a table says it; a
        `PixelSizeOption`
            may also override what they say
        error_rate : how often the true class may be missing among an answer's candidates
        within : a file of outlines, or a folder of such files called like the images, or a
            `AnnotationFile`: outside of them nothing is looked at
        """
        return self._predict(images, mpp, within, error_rate=error_rate)

    def predict_one(
        self,
        path: ImageLike | str,
        *,
        mpp: MppLike = None,
        error_rate: float = 0.1,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> ImagePrediction:
        """The answer for one image or slide: what `predict` asks for each, without a warning.

        The callback hears how far it is in a slide. Outside of `within` nothing is looked at.
        """
        self._check_fitted()
        path = Path(path) if isinstance(path, str) else path
        size = PixelSizeOption.of(mpp).at(path)
        look = self._predict_scores(path, size.is_user_given, callback, within)
        answer = self._make_prediction(path, look, error_rate)
        return replace(answer, size=size.assuming(self.model_.mpp_))

    def _make_prediction(
        self, path: ImageLike, look: ImageScores, error_rate: float
    ) -> ImagePrediction:
        if look.scores is None:  # glass
            nothing = (np.nan,) * n_scores(len(self.classes_))
            answer = ImagePrediction(path, None, nothing, {}, self.threshold, 0, look.patch_map)
            return replace(answer, n_abstaining=look.n_abstaining, classes=tuple(self.classes_))
        chances, candidates = self._probabilities_and_prediction_set(look.scores, error_rate)
        scores = look.scores - self.threshold_shift_
        check_scores(path, scores, np.array(list(chances.values())))
        patch_map = self._centre_patch_map(look.patch_map, scores)
        value = self._value(float(scores.max()))
        return ImagePrediction(
            path,
            self.classes_[predicted_class(scores)],
            tuple(scores.tolist()),
            patch_map.proportions if patch_map else {},
            self.threshold,
            patch_map.n_patches if patch_map else 0,
            patch_map,
            value,
            chances,
            candidates,
            look.n_abstaining,
            classes=tuple(self.classes_),
            decision_text=self._describe_aggregation(value),
        )

    def _centre_patch_map(
        self, patch_map: PatchMap | None, scores: NDArray[np.float64]
    ) -> PatchMap | None:
        """The map as the image was decided, where the rule says how its score lies over patches."""
        parts = (
            self.aggregator_.patch_score_map(patch_map.margins)
            if self.aggregator_ and patch_map
            else None
        )
        if patch_map is None or parts is None:
            return patch_map
        return patch_map.centre_on_score(parts * self._member_score_gradient, scores)

    def _describe_aggregation(self, value: float) -> str:
        if self.aggregator_ is None:
            return ""
        theta = self.threshold
        return self.aggregator_.describe(self.classes_, None if theta is None else (value, theta))

    @property
    def n_estimators_(self) -> int:
        """How many models decide together."""
        return 1

    def true_label(self, record: ImageRecord) -> str:
        """What the record says the answer is."""
        return record.label

    def patch_labels(
        self, record: ImageRecord, corners: NDArray[np.int64], side: float
    ) -> list[str]:
        """Of patches with these corners (n, 2), what the record says they are: their image."""
        return [record.label or _NO_LABEL] * len(corners)

    # --- where it draws the line ----------------------------------------------------------------

    @property
    def has_threshold(self) -> bool:
        """Whether one number of the patches decides, and so has a threshold θ."""
        return self.aggregator_ is not None and self.aggregator_.threshold is not None

    @property
    def threshold(self) -> float | None:
        """θ: the value of a one-number rule at which the answer changes; None if there is none."""
        return self.threshold_scale_value(0.0) if self.has_threshold else None

    def threshold_scale_value(self, score: float) -> float:
        """What θ is compared with where a model has θ: the share of patches, or their margin."""
        assert self.aggregator_ is not None
        return self.aggregator_.value_at(self._member_score(score + self.threshold_shift_))

    def _value(self, score: float) -> float:
        return (
            self.threshold_scale_value(score)
            if self.has_threshold
            else score + self.threshold_shift_
        )

    @property
    def decision_threshold(self) -> DecisionThreshold | None:
        """Where two classes are told apart; None for more."""
        if self.threshold is not None and self.aggregator_ is not None:
            return DecisionThreshold(
                self.aggregator_.name, self.threshold, self.aggregator_.higher_is_positive
            )
        return (
            DecisionThreshold("score", self.threshold_shift_) if len(self.classes_) == 2 else None
        )

    def with_threshold(self, value: float) -> Self:
        """Return a copy with another decision threshold; probabilities stay as they are.

        Parameters
        ----------
        value : on the scale of `decision_threshold`
        """
        if not np.isfinite(value):
            raise ValueError("the decision threshold must be a finite number")
        if len(self.classes_) != 2:
            raise ValueError("only a model of two classes has a decision threshold")
        moved, before = copy(self), self.decision_threshold
        if self.threshold is not None:
            slope = (
                self.threshold_scale_value(1.0) - self.threshold
            )  # of the value per unit of score
            value = (value - self.threshold) / slope
        else:
            value -= self.threshold_shift_
        moved.threshold_shift_ = self.threshold_shift_ + value
        after = moved.decision_threshold
        assert before and after
        points = {"previous": before.value, "value": after.value}
        moved.training_info_ = tuned(self.training_info_, "manual", shift=value, **points)
        return moved

    def apply_threshold(self, answer: ImagePrediction) -> ImagePrediction:
        """What this model says of an image, from its answer before its line was moved.

        No image is read: what is compared with the line (`value`) stays as it is, and a map that
        is centred on the score moves with it.
        """
        value, patch_map, point = answer.value, answer.patch_map, self.decision_threshold
        if answer.label is None or value is None:
            return answer
        if point is not None:
            score, label = self._score_of(value), self.classes_[int(point.is_positive(value))]
            by = answer.score - score
            if abs(by) <= _ROUNDING:
                score, by = answer.score, 0.0
            if (
                self.aggregator_
                and patch_map
                and self.aggregator_.patch_score_map(patch_map.margins) is not None
            ):
                patch_map = patch_map.threshold(by)
            answer = replace(answer, label=label, scores=(score,), patch_map=patch_map)
        shares = patch_map.proportions if patch_map else {}
        grounds = self._describe_aggregation(value)
        return replace(answer, threshold=self.threshold, proportions=shares, decision_text=grounds)

    def _score_of(self, value: float) -> float:
        """The reverse of `_value`, of two classes."""
        if self.threshold is None or self.aggregator_ is None:
            return value - self.threshold_shift_
        # Not from a line that may have been moved far away: there 1 is lost beside it.
        per_score = self.aggregator_.value_at(self._member_score(1.0)) - self.aggregator_.value_at(
            self._member_score(0.0)
        )
        return (value - self.threshold) / per_score

    def adapt_threshold(self, scores: Sequence[float], *, force: bool = False) -> Self:
        """A copy with a threshold that suits images to which this model gave these scores.

        No labels are needed, but images of both classes: see `decisions.unlabelled`. Scores of
        glass are NaN, and left out. Probabilities move with the scores; how often candidates hold
        the truth is then no longer known. Refused if the scores do not fall into two groups, as
        those of one class do not; `force`: skip this check.
        """
        if len(self.classes_) != 2:
            raise ValueError("only a model of two classes has a threshold to adapt")
        known = np.array(scores, dtype=np.float64)
        known = known[~np.isnan(known)]
        shift = unlabelled_threshold(known)
        two = is_bimodal(self._invert_tanh(known))
        if not two and not force:
            raise ValueError(
                f"the scores of these {len(known)} images do not fall into two groups, so they may "
                "all be of one class, and a threshold moved by them would cut through it: give "
                f"more images, of both classes, or say {hint(python='force=True', cli='--force')}"
            )
        adapted = self._moved_by(shift)
        facts = {"n_images": len(known), "shift": shift} | ({} if two else {"two_groups": False})
        adapted.training_info_ = tuned(self.training_info_, "adapted", **facts)
        return adapted

    def _moved_by(self, shift: float) -> Self:
        moved = copy(self)
        moved.threshold_shift_ = self.threshold_shift_ + shift
        return moved

    def describe_decision(self) -> str:
        """How it decides, for a model card."""
        if self.aggregator_ is None:
            return "from the image as a whole"
        at = "" if self.threshold is None else f", threshold {self.threshold:.3f}"
        return f"from the {self.aggregator_.name} of its patches{at}"


class TissueClassifier(ImageClassifier):
    """Answers "which class?" for whole images, from labelled images.

    Parameters
    ----------
    recipe : a `Recipe`, or the name of a preset
    method : the method to take in it, by name; see `methods.registry`
    random_state : seed; the same seed and images, in any order, give the same model
    n_jobs : threads; None for all cores
    cache : folder for what is costly to compute of an image; None keeps nothing
    verbose : whether to show progress bars on stderr
    settings : of the recipe or its method, by name, such as n_atoms=100

    Attributes, beside those of every `ImageClassifier`
    ----------
    model_ : what judges the image's patches, or the image as a whole
    """

    kind: ClassVar[str] = "tissue-classifier"
    _model: ImagePipeline

    def __init__(
        self,
        recipe: Recipe | str = "fast",
        *,
        method: str | None = None,
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
        verbose: bool | int = False,
        **settings: Any,
    ) -> None:
        self.recipe = self._recipe_of(recipe, method, settings)
        self.recipes = [self.recipe]
        self._store_params(
            settings,
            recipe=recipe,
            method=method,
            random_state=random_state,
            n_jobs=n_jobs,
            cache=cache,
            verbose=verbose,
        )
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = ArrayCache(cache) if cache else None

    @property
    def model_(self) -> ImagePipeline:
        return self._model

    def _settings(self) -> dict[str, Any]:
        return self.recipe.values()

    def fit(
        self,
        images: LabelledImages,
        *,
        positive: str | None = None,
        callback: Callback | None = None,
        executor: Executor | None = None,
        start_from: TissueClassifier | None = None,
    ) -> Self:
        """Train the method, then fit the rule for patches on the same images.

        `images`: a folder with a sub-folder per class, a CSV file, a DataFrame of the same columns,
        or a `Manifest`: see `read_manifest`. `positive`: of two classes the one to be found, which
        scores above 0; None: the one that is not healthy by its name. `callback` hears how far it
        is, in place of the bar. `executor` reads the images and codes their patches; None: threads.
        `start_from`: a model of the same recipe and classes; its dictionaries are gone on from (a
        warm start).
        """
        manifest = resolve_training_set(images, positive, "positive")
        learnt, start = copy(self), None
        with image_cache_enabled(), self._progress_callback(callback) as watch:
            manifest, labels = learnt._begin(manifest, watch, executor)
            if start_from is not None:
                learnt.training_info_["started_from"] = start_from.training_info_
                start = start_from.model_
            learnt._model = learnt._new_model()
            learnt.training_info_ |= learnt._model.fit_images(
                manifest, labels, watch, executor, start
            )
        return self._assign_fitted(learnt)

    def _new_model(self) -> ImagePipeline:
        kind = PatchPipeline if self.recipe.is_patch_level else WholeImagePipeline
        return kind(self.recipe, self.classes_, self.random_state, self.n_jobs, self.cache)

    def _predict_scores(
        self,
        path: ImageLike,
        mpp: float | None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> ImageScores:
        return self._model.score_image(path, mpp, callback, within)

    @property
    def predict_proba(self) -> NoReturn:
        """Only a `EnsembleClassifier` has it."""
        raise_no_predict_proba(self)

    def with_jobs(self, n_jobs: int | None) -> Self:
        changed = copy(self)
        changed.n_jobs, changed._model = n_jobs, self._model.with_jobs(n_jobs)
        return changed

    def with_code_callback(self, codes_to: CodeCallback) -> Self:
        changed = copy(self)
        changed._model = self._model.with_code_callback(codes_to)
        return changed

    def with_atom_annotations(self, notes: AtomAnnotations, view: int = 0) -> Self:
        changed = copy(self)
        changed._model = self._model.with_atom_annotations(notes)
        if notes.disabled != self._model.atom_annotations.disabled:
            changed.training_info_ = tuned(self.training_info_, "atoms")
        return changed

    def refit_decision_rule(
        self, images: LabelledImages, view: int = 0, *, callback: Callback | None = None
    ) -> Self:
        manifest = resolve_labelled(images)
        strange = sorted({r.label for r in manifest.records} - set(self.classes_))
        if strange:
            known = " and ".join(map(repr, self.classes_))
            raise ValueError(f"{manifest.root}: the model knows {known}, not {strange[0]!r}")
        manifest = sorted_by_content(manifest)
        labels = np.array([self.classes_.index(r.label) for r in manifest.records], np.int64)
        changed = copy(self)
        with self._progress_callback(callback) as watch:
            changed._model = self._model.refit_decision_rule(manifest.records, labels, watch)
        changed.threshold_shift_ = 0.0
        facts = {"manifest_digest": manifest.digest(), "n_images": manifest.n_images}
        changed.training_info_ = tuned(self.training_info_, "refit", **facts)
        return changed.tuned_on([record.path for record in manifest.records])

    def with_cache(self, cache: ArrayCache | None) -> Self:
        """The same model, which keeps what is costly of an image there."""
        changed = copy(self)
        changed.cache, changed._model = cache, copy(self._model)
        changed._model.cache = cache
        return changed

    def fingerprint(self) -> list[Any]:
        """All that decides what it learns from the same images, before it has learnt."""
        return [self.kind, *recipe_fingerprint(self.recipe), self.random_state]

    # --- for a model file -----------------------------------------------------------------------

    def to_model_data(self) -> ModelData:
        return self._model.content(self.kind, {"shift": self.threshold_shift_}, self.training_info_)

    @classmethod
    def from_model_data(cls, content: ModelData, n_jobs: int | None) -> TissueClassifier:
        seed = content.training_info["random_state"]
        model = cls(Recipe.from_dict(content.recipe), random_state=seed, n_jobs=n_jobs)
        model.classes_ = [str(name) for name in content.classes]
        model.threshold_shift_ = float(content.decision_parameters["shift"])
        model.training_info_ = content.training_info
        model._model = model._new_model()
        model._model.load_state(content, model._model.aggregator_schema())
        return model


def recipe_fingerprint(recipe: Recipe) -> list[Any]:
    """A recipe, the parameters it leaves to its method, and the weights behind its vectors."""
    parameters = get_method(recipe.method).make(recipe.method_parameters).get_params()
    return [recipe.to_dict(), parameters, get_patch_features(recipe.features).weights()]
