"""Base class of models that classify whole images."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import ImageRecord, Manifest
from ..decision.aggregation import Aggregator, check_scores, count_scores, predicted_class
from ..decision.threshold import DecisionThreshold, adapted_threshold, add_change, is_bimodal
from ..images.memory_image import ImageLike
from ..images.pixel_size import MppLike, PixelSizeOption
from ..patches.patch_map import PatchMap
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor
from ..utils.progress import Callback, no_callback
from ..utils.validation import hint
from .estimator import ImageEstimator, as_predictions
from .image_pipeline import ImagePipeline, ImageScores
from .inputs import (
    ManyImages,
    RegionOfInterest,
    SingleImage,
    check_and_sort_images,
    too_few_classes_message,
    training_data_info,
)
from .predictions import ImagePrediction, Predictions
from .recipe import Recipe

_NO_LABEL = "no label"
_SHIFT_TOLERANCE = 1e-9  # smaller shifts of the score are rounding errors


class ImageClassifier(ImageEstimator):
    """Base class of models that classify whole images; see `TissueClassifier`."""

    table_name: ClassVar[str] = "predictions"
    columns: ClassVar[tuple[str, ...]] = ImagePrediction.COLUMNS
    finds_regions: ClassVar[Literal[False]] = False
    recipe: Recipe
    random_state: int
    cache: ArrayCache | None
    threshold_shift_: float

    @property
    def model_(self) -> ImagePipeline:
        """Pipeline that scores an image; for an ensemble, the pipeline of its first estimator."""
        raise NotImplementedError

    def _score_image(
        self,
        path: ImageLike,
        mpp: float | None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> ImageScores:
        """Return the scores of an image; arguments as in `ImagePipeline.score_image`."""
        raise NotImplementedError

    def _member_score(self, score: float) -> float:
        """Return the score of `model_` that corresponds to a score of this model."""
        return score

    @property
    def _member_score_gradient(self) -> float:
        """Derivative of this model's score with respect to the score of `model_`."""
        return 1.0

    def _invert_tanh(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scores without the tanh that an ensemble applies; a single model applies none."""
        return scores

    def _probabilities_and_prediction_set(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        """Return the probability by class and the prediction set; both empty if not calibrated."""
        return {}, []

    @property
    def aggregator_(self) -> Aggregator | None:
        """Aggregator of patch statistics; None for methods of the whole image."""
        return self.model_.aggregator_

    # --- training -------------------------------------------------------------------------------

    def _start_training(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> tuple[Manifest, NDArray[np.int64]]:
        """Set classes and training record; return the sorted images and their class indices."""
        if executor is not None and not self.recipe.is_patch_level:
            raise ValueError(
                f"the method {self.recipe.method!r} uses whole images and trains on one machine "
                "only. Leave out the cluster"
            )
        classes = list(manifest.classes)
        if len(classes) < 2:
            raise ValueError(too_few_classes_message(manifest))
        manifest = check_and_sort_images(manifest, self.recipe, self.n_jobs, callback)
        self.class_names_, self.threshold_shift_ = classes, 0.0
        self.training_info_ = {
            "manifest_digest": manifest.digest(),
            "n_images": manifest.n_images,
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
        } | training_data_info(manifest)
        if any(record.region_of_interest for record in manifest.records):
            self.training_info_["n_parts"] = len(manifest.records)
        return manifest, np.array([classes.index(record.label) for record in manifest.records])

    # --- prediction -----------------------------------------------------------------------------

    @overload
    def predict(
        self,
        X: SingleImage,
        *,
        mpp: MppLike = ...,
        error_rate: float = ...,
        region_of_interest: RegionOfInterest = ...,
    ) -> ImagePrediction: ...
    @overload
    def predict(
        self,
        X: ManyImages,
        *,
        mpp: MppLike = ...,
        error_rate: float = ...,
        region_of_interest: RegionOfInterest = ...,
    ) -> Predictions[ImagePrediction]: ...
    @overload
    def predict(
        self,
        X: Any,
        *,
        mpp: MppLike = ...,
        error_rate: float = ...,
        region_of_interest: RegionOfInterest = ...,
    ) -> Any: ...

    def predict(
        self,
        X: Any,
        *,
        mpp: MppLike = None,
        error_rate: float = 0.1,
        region_of_interest: RegionOfInterest = None,
    ) -> Any:
        """Return an `ImagePrediction` for a single image, or `Predictions` for several.

        Parameters
        ----------
        X : path of an image or slide, array (height, width, 3) of uint8 or Pillow image; or
            several images as a list, folder, CSV file, DataFrame or `Manifest`
        mpp : pixel size (µm) of images for which neither file nor table gives one; a
            `PixelSizeOption` can also replace known pixel sizes
        error_rate : accepted rate at which the prediction set does not contain the true class
        region_of_interest : file with outlines, folder of such files named like the images, or
            `AnnotationFile`; patches outside of the outlines are ignored

        Returns
        -------
        ImagePrediction or Predictions
            For NumPy and scikit-learn, `Predictions` are the array of the most likely classes.
        """
        return self._predict(X, mpp, region_of_interest, error_rate=error_rate)

    def decision_function(
        self, X: Any, *, mpp: MppLike = None, region_of_interest: RegionOfInterest = None
    ) -> NDArray[np.float64]:
        """Return the scores of the images, in the order of `classes_`.

        Parameters
        ----------
        X : as in `predict`
        mpp : pixel size (µm), as in `predict`
        region_of_interest : outlines, as in `predict`

        Returns
        -------
        ndarray of shape (n_images,) or (n_images, n_classes)
            With two classes, one score per image, positive for the second class; with more, one per
            class. NaN for images without tissue. A single image counts as a list of one.
        """
        predictions = as_predictions(self._predict(X, mpp, region_of_interest))
        n_columns = count_scores(len(self.class_names_))
        scores = np.array([p.scores for p in predictions], np.float64).reshape(-1, n_columns)
        return scores[:, 0] if n_columns == 1 else scores

    def predict_one(
        self,
        path: ImageLike | str,
        *,
        mpp: MppLike = None,
        error_rate: float = 0.1,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> ImagePrediction:
        """Return the prediction for one image without the warnings that `predict` gives.

        Parameters
        ----------
        path : path, array or Pillow image
        mpp : pixel size (µm) if the file gives none, or `PixelSizeOption`
        error_rate : accepted rate at which the prediction set does not contain the true class
        callback : receives the progress within a slide
        region_of_interest : outlines; patches outside of these are ignored

        Returns
        -------
        ImagePrediction
        """
        self._check_fitted()
        path = Path(path) if isinstance(path, str) else path
        size = PixelSizeOption.from_mpp(mpp).resolve(path)
        image_scores = self._score_image(path, size.user_mpp, callback, region_of_interest)
        prediction = self._make_prediction(path, image_scores, error_rate)
        return replace(prediction, size=size.with_assumed_mpp(self.model_.mpp_))

    def _make_prediction(
        self, path: ImageLike, image_scores: ImageScores, error_rate: float
    ) -> ImagePrediction:
        """Return the prediction for an image with these scores."""
        if image_scores.scores is None:  # no tissue
            no_scores = (np.nan,) * count_scores(len(self.class_names_))
            prediction = ImagePrediction(
                path, None, no_scores, {}, self.threshold, 0, image_scores.patch_map
            )
            return replace(
                prediction, n_abstaining=image_scores.n_abstaining, classes=tuple(self.class_names_)
            )
        probabilities, prediction_set = self._probabilities_and_prediction_set(
            image_scores.scores, error_rate
        )
        scores = image_scores.scores - self.threshold_shift_
        check_scores(path, scores, np.array(list(probabilities.values())))
        patch_map = self._centre_patch_map(image_scores.patch_map, scores)
        value = self._decision_value(float(scores.max()))
        return ImagePrediction(
            path,
            self.class_names_[predicted_class(scores)],
            tuple(scores.tolist()),
            patch_map.proportions if patch_map else {},
            self.threshold,
            patch_map.n_patches if patch_map else 0,
            patch_map,
            value,
            probabilities,
            prediction_set,
            image_scores.n_abstaining,
            classes=tuple(self.class_names_),
            decision_text=self._describe_aggregation(value),
        )

    def _centre_patch_map(
        self, patch_map: PatchMap | None, scores: NDArray[np.float64]
    ) -> PatchMap | None:
        """Return the patch map of an image with these scores.

        If the aggregator is a mean over patches, the margins are shifted so that their mean is the
        score of the image. Otherwise the map is returned unchanged.
        """
        patch_scores = (
            self.aggregator_.patch_score_map(patch_map.margins)
            if self.aggregator_ and patch_map
            else None
        )
        if patch_map is None or patch_scores is None:
            return patch_map
        return patch_map.centre_on_score(patch_scores * self._member_score_gradient, scores)

    def _describe_aggregation(self, value: float) -> str:
        """Return a text on how the aggregator compares the decision value with the threshold.

        The text is empty for methods of the whole image.
        """
        if self.aggregator_ is None:
            return ""
        threshold = self.threshold
        return self.aggregator_.describe_decision(
            self.class_names_, None if threshold is None else (value, threshold)
        )

    @property
    def n_estimators_(self) -> int:
        """Number of models that are combined."""
        return 1

    def true_label(self, record: ImageRecord) -> str:
        """Return the true label of an image from its record."""
        return record.label

    def patch_labels(
        self, record: ImageRecord, corners: NDArray[np.int64], side: float
    ) -> list[str]:
        """Return the label of the image once for each of n patches.

        Only the number of `corners` (n, 2) is used; region detectors also need their values and the
        `side` of the patches.
        """
        return [record.label or _NO_LABEL] * len(corners)

    # --- decision threshold ---------------------------------------------------------------------

    @property
    def has_threshold(self) -> bool:
        """Whether the aggregator compares a single number per image with a threshold."""
        return self.aggregator_ is not None and self.aggregator_.threshold is not None

    @property
    def threshold(self) -> float | None:
        """Threshold of the decision value; None unless `has_threshold`."""
        return self.score_to_decision_value(0.0) if self.has_threshold else None

    def score_to_decision_value(self, score: float) -> float:
        """Return the decision value that corresponds to a score of an image.

        The decision value is the number that is compared with `threshold`, such as a fraction of
        patches or a mean margin.
        """
        assert self.aggregator_ is not None
        return self.aggregator_.feature_value_at(self._member_score(score + self.threshold_shift_))

    def _decision_value(self, score: float) -> float:
        """Return the decision value that corresponds to a score.

        Unless `has_threshold`, this is the score before `threshold_shift_` was subtracted.
        """
        return (
            self.score_to_decision_value(score)
            if self.has_threshold
            else score + self.threshold_shift_
        )

    @property
    def decision_threshold(self) -> DecisionThreshold | None:
        """Decision threshold between two classes; None for more than two classes.

        It is the threshold of the decision value or, unless `has_threshold`, a threshold of the
        score.
        """
        if self.threshold is not None and self.aggregator_ is not None:
            return DecisionThreshold(
                self.aggregator_.name, self.threshold, self.aggregator_.higher_is_positive
            )
        return (
            DecisionThreshold("score", self.threshold_shift_)
            if len(self.class_names_) == 2
            else None
        )

    def with_threshold(self, threshold: float) -> Self:
        """Return a copy with another decision threshold; probabilities do not change.

        Parameters
        ----------
        threshold : decision threshold on the scale of `decision_threshold`

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            If the model has more than two classes.
        """
        if not np.isfinite(threshold):
            raise ValueError("the decision threshold must be a finite number")
        if len(self.class_names_) != 2:
            raise ValueError("only a model of two classes has a decision threshold")
        changed, previous = copy(self), self.decision_threshold
        if self.threshold is not None:
            # Decision value per unit of score.
            slope = self.score_to_decision_value(1.0) - self.threshold
            shift = (threshold - self.threshold) / slope
        else:
            shift = threshold - self.threshold_shift_
        changed.threshold_shift_ = self.threshold_shift_ + shift
        current = changed.decision_threshold
        assert previous and current
        values = {"previous": previous.value, "value": current.value}
        changed.training_info_ = add_change(self.training_info_, "manual", shift=shift, **values)
        return changed

    def apply_threshold(self, prediction: ImagePrediction) -> ImagePrediction:
        """Apply this model's decision threshold to a prediction, without reading the image again.

        Parameters
        ----------
        prediction : prediction of this model with another threshold

        Returns
        -------
        ImagePrediction
        """
        value, patch_map = prediction.decision_value, prediction.patch_map
        threshold = self.decision_threshold
        if prediction.top_label is None or value is None:
            return prediction
        if threshold is not None:
            score = self._decision_value_to_score(value)
            label = self.class_names_[int(threshold.is_positive(value))]
            shift = prediction.score - score
            if abs(shift) <= _SHIFT_TOLERANCE:
                score, shift = prediction.score, 0.0
            if (
                self.aggregator_
                and patch_map
                and self.aggregator_.patch_score_map(patch_map.margins) is not None
            ):
                patch_map = patch_map.threshold(shift)
            prediction = replace(prediction, top_label=label, scores=(score,), patch_map=patch_map)
        proportions = patch_map.proportions if patch_map else {}
        decision_text = self._describe_aggregation(value)
        return replace(
            prediction,
            threshold=self.threshold,
            proportions=proportions,
            decision_text=decision_text,
        )

    def _decision_value_to_score(self, value: float) -> float:
        """Return the score that has this decision value; the inverse of `_decision_value`."""
        if self.threshold is None or self.aggregator_ is None:
            return value - self.threshold_shift_
        # The slope is computed at score 0: near a large threshold, rounding could remove the 1.
        slope = self.aggregator_.feature_value_at(
            self._member_score(1.0)
        ) - self.aggregator_.feature_value_at(self._member_score(0.0))
        return (value - self.threshold) / slope

    def adapt_threshold(self, scores: Sequence[float], *, force: bool = False) -> Self:
        """Return a copy with a decision threshold that is adapted to scores of unlabelled images.

        Probabilities change with the scores; the error rate of prediction sets is not guaranteed.

        Parameters
        ----------
        scores : scores of this model for images of both classes; NaN (no tissue) is ignored
        force : whether to adapt the threshold even if the scores do not form two groups

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            If the scores do not form two groups, unless `force`.
        """
        if len(self.class_names_) != 2:
            raise ValueError("only a model of two classes has a decision threshold to adapt")
        known = np.array(scores, dtype=np.float64)
        known = known[~np.isnan(known)]
        shift = adapted_threshold(known)
        has_two_groups = is_bimodal(self._invert_tanh(known))
        if not has_two_groups and not force:
            raise ValueError(
                f"the scores of these {len(known)} images do not form two groups: there are too "
                "few images, they are all of one class, or the model does not separate their "
                "classes. An adapted threshold may be wrong. Add images of both classes, or adapt "
                "anyway with "
                f"{hint(python='force=True', cli='--force')}"
            )
        adapted = self._with_score_shift(shift)
        metadata = {"n_images": len(known), "shift": shift} | (
            {} if has_two_groups else {"two_groups": False}
        )
        adapted.training_info_ = add_change(self.training_info_, "adapted", **metadata)
        return adapted

    def _with_score_shift(self, shift: float) -> Self:
        """Return a copy whose scores are lower by `shift`."""
        changed = copy(self)
        changed.threshold_shift_ = self.threshold_shift_ + shift
        return changed

    def describe_decision(self) -> str:
        """Return a description of the decision for a model card.

        Returns
        -------
        str
        """
        if self.aggregator_ is None:
            return "from the whole image"
        threshold_text = "" if self.threshold is None else f", threshold {self.threshold:.3f}"
        return f"from the {self.aggregator_.name} of its patches{threshold_text}"
