"""Which class is this image? From labelled images to a model, from an image to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.calibration import Calibration
from ..decisions.image_rules import Evidence, ImageRule, n_scores, winner
from ..decisions.panel import Panel
from ..decisions.unlabelled import better_threshold
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, ignore
from ..images.manifest import Manifest
from ..images.readers import ImageError
from ..methods.registry import method_entry
from ..recipes import Recipe, preset
from .patch_model import PatchMap, PatchModel, PatchSource
from .whole_image_model import WholeImageModel

if TYPE_CHECKING:
    from .panel import Member


@dataclass(frozen=True)
class ImageAnswer:
    """The answer for one image; `label` is None where there is only glass.

    scores : one number for two classes, positive for the second; else one per class
    probabilities, candidates : where the model is calibrated, of each class, and the classes that
        cannot be ruled out; more or fewer than one means an uncertain answer
    n_silent : members of a panel that could not judge this image
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
    n_silent: int = 0

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
    others_ : the other members of the panel, trained; what follows is about all together
    panel_ : how members' scores become one; None without `calibration_folds`
    calibration_ : from scores to probabilities; None without `calibration_folds`
    shift_ : how far from where both classes are equally likely it decides, in units of the score
    training_ : what is known of the training, for the record
    """

    classes_: list[str]
    model_: PatchModel | WholeImageModel
    rule_: ImageRule | None
    others_: list[TissueClassifier]
    panel_: Panel | None
    calibration_: Calibration | None
    shift_: float
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
        if start_from is not None and (self.recipe.candidates > 1 or self.recipe.panel):
            raise ValueError(
                "a model to start from fixes the settings of one model: set candidates=0 and "
                "panel=false"
            )
        classes = list(manifest.classes)
        if len(classes) < 2:
            raise ValueError(f"images of at least two classes are needed; there are: {classes}")
        labels = np.array([classes.index(record.label) for record in manifest.records])
        self.classes_ = classes
        self.others_, self.panel_, self.calibration_, self.shift_ = [], None, None, 0.0
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
        asked = self._ask_members(manifest, callback, executor)
        self._fit_own(manifest, labels, callback, executor, start_from)
        if asked:
            self._fit_others(asked, manifest, labels, callback, executor)
        return self

    def _fit_own(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: TissueClassifier | None,
    ) -> None:
        if method_entry(self.recipe.method).features is None:
            self._fit_patches(manifest, labels, callback, executor, start_from)
            return
        if start_from is not None:
            raise ValueError(f"the method {self.recipe.method!r} cannot go on from another model")
        if executor is not None:
            raise ValueError(
                f"the method {self.recipe.method!r} looks at the image as a whole and trains on "
                "one machine: leave out the cluster"
            )
        self.model_ = WholeImageModel(self.recipe, self.random_state, self.n_jobs, self.cache)
        self.model_.fit(manifest.records, labels, callback)
        self.rule_ = None

    def predict(
        self, path: Path | str, *, mpp: float | None = None, error_rate: float = 0.1
    ) -> ImageAnswer:
        """The answer for an image or slide; mpp overrides its pixel size.

        `error_rate`: how often the true class may be missing among the answer's candidates.
        """
        path = Path(path)
        own, patch_map, evidence = self._look(path, mpp)
        if own is None:  # glass
            nothing = (np.nan,) * n_scores(len(self.classes_))
            return ImageAnswer(path, None, nothing, {}, self.threshold, 0, patch_map)
        parts = np.full((1 + len(self.others_), len(own)), np.nan)
        parts[0] = own
        for row, other in zip(parts[1:], self.others_, strict=True):
            found = other._look_if_it_can(path, mpp)
            row[:] = np.nan if found is None else found
        scores = self.panel_.scores(parts) if self.panel_ else own
        chances, candidates = self._certainty(scores, error_rate)
        scores = scores - self.shift_
        shares = evidence.proportions.tolist() if evidence else []
        return ImageAnswer(
            path,
            self.classes_[winner(scores)],
            tuple(scores.tolist()),
            dict(zip(self.classes_, shares, strict=bool(shares))),
            self.threshold,
            evidence.n_patches if evidence else 0,
            patch_map,
            chances,
            candidates,
            int(np.isnan(parts[:, 0]).sum()),
        )

    def _look(
        self, path: Path, mpp: float | None
    ) -> tuple[NDArray[np.float64] | None, PatchMap | None, Evidence | None]:
        """This model's own scores, None on glass, and what they rest on."""
        if isinstance(self.model_, WholeImageModel):
            return self.model_.scores(path, mpp), None, None
        assert self.rule_ is not None
        patch_map, evidence = self.model_.judge(path, mpp)
        return self.rule_.scores(evidence) if evidence.n_patches else None, patch_map, evidence

    def _look_if_it_can(self, path: Path, mpp: float | None) -> NDArray[np.float64] | None:
        """A member's scores; None for an image that does not suit it, though the first read it."""
        try:
            return self._look(path, mpp)[0]
        except ImageError:
            return None

    @property
    def threshold(self) -> float | None:
        """θ: the value of a one-number rule at which the answer changes; None if there is none."""
        if self.rule_ is None or self.others_ or self.rule_.threshold is None:
            return None
        return self.rule_value(0.0)

    def rule_value(self, score: float) -> float:
        """What θ is compared with where a model has θ: the share of patches, or their margin."""
        assert self.rule_ is not None
        score += self.shift_
        if self.panel_ is not None:
            score = (score - self.panel_.offset) * float(self.panel_.scales[0])
        return float((score - self.rule_.bias[0]) / self.rule_.weights[0, 0])

    def with_threshold(self, value: float) -> TissueClassifier:
        """A copy that decides at another θ or, where there is none, at another score.

        Probabilities stay as they are: where to decide is a matter of what mistakes cost.
        """
        if len(self.classes_) != 2:
            raise ValueError("the operating point of a model of more than two classes is not moved")
        moved = copy(self)
        if self.threshold is not None:
            slope = self.rule_value(1.0) - self.threshold  # of the value, per unit of the score
            value = (value - self.threshold) / slope
        moved.shift_ = self.shift_ + value
        return moved

    def adapted_to(self, scores: Sequence[float]) -> TissueClassifier:
        """A copy with a threshold that suits images to which this model gave these scores.

        No labels are needed, but images of both classes: see `decisions.unlabelled`. Scores of
        glass are NaN, and left out. Probabilities move with the scores; how often candidates hold
        the truth is then no longer known.
        """
        if len(self.classes_) != 2:
            raise ValueError("only a model of two classes has a threshold to adapt")
        known = np.array(scores, dtype=np.float64)
        known = known[~np.isnan(known)]
        shift = better_threshold(known)
        adapted = copy(self)
        panel = self.panel_ or Panel(np.ones(1))
        adapted.panel_ = replace(panel, offset=panel.offset - shift)
        adapted.training_ = self.training_ | {
            "adapted": {"n_images": len(known), "threshold": shift}
        }
        return adapted

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

        folds = self.recipe.calibration_folds
        base = replace(self.recipe, candidates=0, calibration_folds=0)
        trials = choose_recipe(
            manifest,
            candidates(base, self.recipe.candidates, self.random_state),
            random_state=self.random_state,
            n_jobs=self.n_jobs,
            cache=self.cache.folder if self.cache else None,
            callback=callback,
        )
        self.recipe = replace(trials[0].recipe, calibration_folds=folds)
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
        sources = [
            PatchSource(record, label)
            for record, label in zip(manifest.records, labels.tolist(), strict=True)
        ]
        start = model.start(start_from.model_) if start_from else None
        self.training_["n_patches"] = model.fit(sources, callback, executor, start)
        evidence = model.judge_all(manifest.records, _evidence, callback, executor)
        self.model_ = model
        seen = np.array([e.n_patches > 0 for e in evidence])
        evidence = [e for e in evidence if e.n_patches]
        self.rule_ = ImageRule.fit(self.recipe.rule, evidence, labels[seen])

    def _ask_members(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> list[Member]:
        """What this model and the others of its panel say of unseen patients.

        First of all: there may be too few patients to ask about.
        """
        from .panel import ask_members, members

        if self.recipe.calibration_folds < 2:
            return []
        asked = ask_members(
            manifest,
            members(self.recipe),
            self.recipe.calibration_folds,
            random_state=self.random_state,
            n_jobs=self.n_jobs,
            cache=self.cache.folder if self.cache else None,
            callback=callback,
            executor=executor,
        )
        self.training_["members"] = [member.to_dict() for member in asked]
        return asked

    def _fit_others(
        self,
        asked: list[Member],
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
    ) -> None:
        """Train the other members; learn from what was said how far scores can be trusted."""
        able = [member for member in asked if not member.failure]
        for member in able[1:]:
            other = TissueClassifier(
                member.recipe,
                random_state=self.random_state,
                n_jobs=self.n_jobs,
                cache=self.cache.folder if self.cache else None,
            )
            patches = method_entry(member.recipe.method).features is None
            other.fit(manifest, callback=callback, executor=executor if patches else None)
            self.others_.append(other)
        parts = np.stack([member.scores for member in able], axis=1)
        seen = ~np.isnan(parts[:, 0]).any(axis=1)
        self.panel_, self.calibration_ = Panel.fit(parts[seen], labels[seen])


def _evidence(place: int, patch_map: PatchMap, evidence: Evidence) -> Evidence:
    return evidence
