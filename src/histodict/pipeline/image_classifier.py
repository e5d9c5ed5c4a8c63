"""From the scores of an image to its answer: what all models share that say "which class?"."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, overload

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import ImageRule, check_scores, n_scores, winner
from ..decisions.operating_point import OperatingPoint
from ..decisions.tuning import tuned
from ..decisions.two_groups import are_two_groups
from ..decisions.unlabelled import better_threshold
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, ignore
from ..images.annotations.drawing import Drawing
from ..images.in_memory import ImageFile
from ..images.manifest import Manifest, Record
from ..images.pixel_size import GivenSize, Mpp
from ..parameters import hint
from ..patches.patch_map import PatchMap
from ..recipes import Recipe
from .answers import ImageAnswer
from .estimator import Estimator
from .image_model import ImageModel, Look
from .inputs import One, Several, Within
from .results import Answers
from .sizes import checked_training_images, data_notes, why_too_few_classes

_NO_LABEL = "no label"
_ROUNDING = 1e-9  # a line that moved by less has not moved


class ImageClassifier(Estimator):
    """A model that gives an image scores, and draws a line.

    Attributes
    ----------
    classes_ : names in order; with two, the second is the one that scores positive
    shift_ : how far from where it was learnt to decide it decides, in units of the score
    training_ : what is known of the training, for the record
    """

    table: ClassVar[str] = "predictions"
    columns: ClassVar[tuple[str, ...]] = ImageAnswer.COLUMNS
    finds_regions: ClassVar[Literal[False]] = False
    recipe: Recipe
    random_state: int
    cache: ArrayCache | None
    shift_: float

    @property
    def model_(self) -> ImageModel:
        """What judges the image's patches, or the image as a whole; of a panel, its first."""
        raise NotImplementedError

    def _look(
        self,
        path: ImageFile,
        mpp: float | None,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> Look:
        raise NotImplementedError

    def _own_score(self, score: float) -> float:
        """The score of `model_` behind a score."""
        return score

    @property
    def _own_scale(self) -> float:
        """By how much a score changes with that of `model_`, others' say left as it is."""
        return 1.0

    def _unbounded(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Scores on a scale without ends, where one group of images does not pile up at both."""
        return scores

    def _certainty(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        """Probabilities of the classes, and those that cannot be ruled out; empty if unknown."""
        return {}, []

    @property
    def rule_(self) -> ImageRule | None:
        """The rule over patches; None for a method of the whole image."""
        return self.model_.rule_

    # --- learning -------------------------------------------------------------------------------

    def _begin(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> tuple[Manifest, NDArray[np.int64]]:
        """Start the training record, with the images in order and the index of each class."""
        if executor is not None and not self.recipe.on_patches:
            raise ValueError(
                f"the method {self.recipe.method!r} looks at the image as a whole and trains on "
                "one machine: leave out the cluster"
            )
        classes = list(manifest.classes)
        if len(classes) < 2:
            raise ValueError(why_too_few_classes(manifest))
        manifest = checked_training_images(manifest, self.n_jobs, callback)
        self.classes_, self.shift_ = classes, 0.0
        self.training_ = {
            "manifest_digest": manifest.digest(),
            "n_images": manifest.n_images,
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
        } | data_notes(manifest)
        if any(record.within for record in manifest.records):
            self.training_["n_parts"] = len(manifest.records)
        return manifest, np.array([classes.index(record.label) for record in manifest.records])

    # --- answering ------------------------------------------------------------------------------

    @overload
    def predict(
        self, images: One, *, mpp: Mpp = ..., error_rate: float = ..., within: Within = ...
    ) -> ImageAnswer: ...
    @overload
    def predict(
        self, images: Several, *, mpp: Mpp = ..., error_rate: float = ..., within: Within = ...
    ) -> Answers[ImageAnswer]: ...
    @overload
    def predict(
        self, images: Any, *, mpp: Mpp = ..., error_rate: float = ..., within: Within = ...
    ) -> Any: ...

    def predict(
        self, images: Any, *, mpp: Mpp = None, error_rate: float = 0.1, within: Within = None
    ) -> Any:
        """Which class? An `ImageAnswer` for one image, `Answers` for several.

        Parameters
        ----------
        images : one image is the path of an image or slide, an array (height, width, 3) of uint8
            or a picture of Pillow; several are a list of such, a folder, a CSV file, a DataFrame or
            a `Manifest`
        mpp : µm per pixel of images of which neither the file nor a table says it; a `GivenSize`
            may also override what they say
        error_rate : how often the true class may be missing among an answer's candidates
        within : a file of outlines, or a folder of such files called like the images, or a
            `Drawing`: outside of them nothing is looked at
        """
        return self._predict(images, mpp, within, error_rate=error_rate)

    def answer(
        self,
        path: ImageFile | str,
        *,
        mpp: Mpp = None,
        error_rate: float = 0.1,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> ImageAnswer:
        """The answer for one image or slide: what `predict` asks for each, without a warning.

        The callback hears how far it is in a slide. Outside of `within` nothing is looked at.
        """
        self._check_fitted()
        path = Path(path) if isinstance(path, str) else path
        size = GivenSize.of(mpp).at(path)
        look = self._look(path, size.from_outside, callback, within)
        answer = self._judged(path, look, error_rate)
        return replace(answer, size=size.beside(self.model_.mpp_))

    def _judged(self, path: ImageFile, look: Look, error_rate: float) -> ImageAnswer:
        if look.scores is None:  # glass
            nothing = (np.nan,) * n_scores(len(self.classes_))
            answer = ImageAnswer(path, None, nothing, {}, self.threshold, 0, look.patch_map)
            return replace(answer, n_silent=look.n_silent, classes=tuple(self.classes_))
        chances, candidates = self._certainty(look.scores, error_rate)
        scores = look.scores - self.shift_
        check_scores(path, scores, np.array(list(chances.values())))
        patch_map = self._shown(look.patch_map, scores)
        value = self._value(float(scores.max()))
        return ImageAnswer(
            path,
            self.classes_[winner(scores)],
            tuple(scores.tolist()),
            patch_map.proportions if patch_map else {},
            self.threshold,
            patch_map.n_patches if patch_map else 0,
            patch_map,
            value,
            chances,
            candidates,
            look.n_silent,
            classes=tuple(self.classes_),
            grounds=self._grounds(value),
        )

    def _shown(self, patch_map: PatchMap | None, scores: NDArray[np.float64]) -> PatchMap | None:
        """The map as the image was decided, where the rule says how its score lies over patches."""
        parts = self.rule_.spread(patch_map.margins) if self.rule_ and patch_map else None
        if patch_map is None or parts is None:
            return patch_map
        return patch_map.centred(parts * self._own_scale, scores)

    def _grounds(self, value: float) -> str:
        if self.rule_ is None:
            return ""
        theta = self.threshold
        return self.rule_.grounds(self.classes_, None if theta is None else (value, theta))

    @property
    def n_members(self) -> int:
        """How many models decide together."""
        return 1

    def truth(self, record: Record) -> str:
        """What the record says the answer is."""
        return record.label

    def labels_at(self, record: Record, corners: NDArray[np.int64], side: float) -> list[str]:
        """Of patches with these corners (n, 2), what the record says they are: their image."""
        return [record.label or _NO_LABEL] * len(corners)

    # --- where it draws the line ----------------------------------------------------------------

    @property
    def has_theta(self) -> bool:
        """Whether one number of the patches decides, and so has a threshold θ."""
        return self.rule_ is not None and self.rule_.threshold is not None

    @property
    def threshold(self) -> float | None:
        """θ: the value of a one-number rule at which the answer changes; None if there is none."""
        return self.rule_value(0.0) if self.has_theta else None

    def rule_value(self, score: float) -> float:
        """What θ is compared with where a model has θ: the share of patches, or their margin."""
        assert self.rule_ is not None
        return self.rule_.value_at(self._own_score(score + self.shift_))

    def _value(self, score: float) -> float:
        return self.rule_value(score) if self.has_theta else score + self.shift_

    @property
    def operating_point(self) -> OperatingPoint | None:
        """Where two classes are told apart; None for more."""
        if self.threshold is not None and self.rule_ is not None:
            return OperatingPoint(self.rule_.name, self.threshold, self.rule_.rises)
        return OperatingPoint("score", self.shift_) if len(self.classes_) == 2 else None

    def with_operating_point(self, value: float) -> Self:
        """A copy that draws the line there; see `operating_point` for what the value is."""
        if not np.isfinite(value):
            raise ValueError("the operating point must be a number")
        return self.with_threshold(value if self.has_theta else value - self.shift_)

    def with_threshold(self, value: float) -> Self:
        """A copy that decides at another θ or, where there is none, at another score.

        Probabilities stay as they are: where to decide is a matter of what mistakes cost.
        """
        if len(self.classes_) != 2:
            raise ValueError("the operating point of a model of more than two classes is not moved")
        moved, before = copy(self), self.operating_point
        if self.threshold is not None:
            slope = self.rule_value(1.0) - self.threshold  # of the value, per unit of the score
            value = (value - self.threshold) / slope
        moved.shift_ = self.shift_ + value
        after = moved.operating_point
        assert before and after
        points = {"previous": before.value, "value": after.value}
        moved.training_ = tuned(self.training_, "manual", shift=value, **points)
        return moved

    def redrawn(self, answer: ImageAnswer) -> ImageAnswer:
        """What this model says of an image, from its answer before its line was moved.

        No image is read: what is compared with the line (`value`) stays as it is, and a map that
        is centred on the score moves with it.
        """
        value, patch_map, point = answer.value, answer.patch_map, self.operating_point
        if answer.label is None or value is None:
            return answer
        if point is not None:
            score, label = self._score_of(value), self.classes_[int(point.is_positive(value))]
            by = answer.score - score
            if abs(by) <= _ROUNDING:
                score, by = answer.score, 0.0
            if self.rule_ and patch_map and self.rule_.spread(patch_map.margins) is not None:
                patch_map = patch_map.cut_at(by)
            answer = replace(answer, label=label, scores=(score,), patch_map=patch_map)
        shares = patch_map.proportions if patch_map else {}
        grounds = self._grounds(value)
        return replace(answer, threshold=self.threshold, proportions=shares, grounds=grounds)

    def _score_of(self, value: float) -> float:
        """The reverse of `_value`, of two classes."""
        if self.threshold is None or self.rule_ is None:
            return value - self.shift_
        # Not from a line that may have been moved far away: there 1 is lost beside it.
        per_score = self.rule_.value_at(self._own_score(1.0)) - self.rule_.value_at(
            self._own_score(0.0)
        )
        return (value - self.threshold) / per_score

    def adapted_to(self, scores: Sequence[float], *, anyway: bool = False) -> Self:
        """A copy with a threshold that suits images to which this model gave these scores.

        No labels are needed, but images of both classes: see `decisions.unlabelled`. Scores of
        glass are NaN, and left out. Probabilities move with the scores; how often candidates hold
        the truth is then no longer known. Refused if the scores do not fall into two groups, as
        those of one class do not; `anyway`: it is your affair that there are both.
        """
        if len(self.classes_) != 2:
            raise ValueError("only a model of two classes has a threshold to adapt")
        known = np.array(scores, dtype=np.float64)
        known = known[~np.isnan(known)]
        shift = better_threshold(known)
        two = are_two_groups(self._unbounded(known))
        if not two and not anyway:
            raise ValueError(
                f"the scores of these {len(known)} images do not fall into two groups, so they may "
                "all be of one class, and a threshold moved by them would cut through it: give "
                f"more images, of both classes, or say {hint(python='anyway=True', cli='--anyway')}"
            )
        adapted = self._moved_by(shift)
        facts = {"n_images": len(known), "shift": shift} | ({} if two else {"two_groups": False})
        adapted.training_ = tuned(self.training_, "adapted", **facts)
        return adapted

    def _moved_by(self, shift: float) -> Self:
        moved = copy(self)
        moved.shift_ = self.shift_ + shift
        return moved

    def decision_words(self) -> str:
        """How it decides, for a model card."""
        if self.rule_ is None:
            return "from the image as a whole"
        at = "" if self.threshold is None else f", threshold {self.threshold:.3f}"
        return f"from the {self.rule_.name} of its patches{at}"
