"""Several models that decide together, weighed by what they say of patients they have not seen.

Every recipe is tried in folds of the training patients; what comes of it puts the members' scores
on one scale, and turns the mean of them into probabilities. A panel of one is a calibrated model.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..decisions.calibration import Calibration
from ..decisions.combination import Combination
from ..decisions.image_rules import n_scores, winner
from ..evaluation.metrics import auc, balanced_accuracy
from ..evaluation.protocols import k_folds
from ..evaluation.splits import Split, SplitError
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, Progress
from ..images.in_memory import ImageFile
from ..images.manifest import Manifest
from ..images.pixel_size import Mpp
from ..images.readers import ImageError
from ..model_content import ModelContent, arrays_of
from ..recipes import Recipe
from .image_classifier import ImageClassifier
from .image_model import ImageModel, Look
from .inputs import Labelled, to_learn
from .results import Answers, probabilities
from .tissue_classifier import TissueClassifier
from .trials import Trial, Trials
from .views import panel_recipe, views


@dataclass(frozen=True)
class Hearing:
    """A recipe, and what models made by it said of training patients they had not seen.

    scores : (n_images, n_scores), NaN on glass
    failure : why it could not be tried; it does not sit on the panel then
    """

    recipe: Recipe
    scores: NDArray[np.float64]
    value: float | None
    failure: str = ""

    def to_dict(self) -> dict[str, Any]:
        facts = {"recipe": self.recipe.to_dict(), "unseen": self.value}
        return facts | ({"failure": self.failure} if self.failure else {})


class Panel(ImageClassifier):
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
    calibration_ : from that to probabilities
    """

    kind: ClassVar[str] = "panel"
    members_: list[TissueClassifier]
    combination_: Combination
    calibration_: Calibration

    def __init__(
        self,
        recipes: Sequence[Recipe | str] | Recipe | str = "auto",
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
        self._take(
            settings,
            recipes=recipes,
            method=method,
            folds=folds,
            random_state=random_state,
            n_jobs=n_jobs,
            cache=cache,
            verbose=verbose,
        )
        self.folds = folds
        self.recipe = self.recipes[0]
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = ArrayCache(cache) if cache else None

    @property
    def model_(self) -> ImageModel:
        return self.members_[0].model_

    def _members_of(
        self,
        given: Sequence[Recipe | str] | Recipe | str,
        method: str | None,
        settings: dict[str, Any],
    ) -> list[Recipe]:
        if isinstance(given, Recipe | str):
            return views(self._with_settings(panel_recipe(given, method), settings))
        if not given:
            raise ValueError("a panel is made of recipes, or of the name of a preset, not of none")
        return [self._with_settings(panel_recipe(one, method), settings) for one in given]

    def fit(
        self,
        images: Labelled,
        *,
        positive: str | None = None,
        callback: Callback | None = None,
        executor: Executor | None = None,
        start_from: Panel | None = None,
    ) -> Self:
        """Hear every recipe on unseen patients, then train those that could be tried on all.

        `images`, `positive`, `callback`, `executor` as of `TissueClassifier`. `start_from`: only a
        panel of one can go on from another.
        """
        manifest, watch = to_learn(images, positive, "positive"), self._watch(callback)
        if start_from is not None and len(self.recipes) > 1:
            raise ValueError("a panel starts afresh: only a single model can go on from another")
        learnt, start = copy(self), None
        labels = learnt._begin(manifest, watch, executor)
        learnt.training_["folds"] = self.folds
        if start_from is not None:
            start = start_from.members_[0]
            learnt.training_["started_from"] = start_from.training_
        # First of all: there may be too few patients to ask about.
        heard = self._hear(manifest, watch, executor)
        learnt.training_["members"] = [hearing.to_dict() for hearing in heard]
        able = [hearing for hearing in heard if not hearing.failure]
        learnt.members_ = []
        for hearing in able:
            there = executor if hearing.recipe.on_patches else None
            fit = self._member(hearing.recipe).fit
            learnt.members_.append(fit(manifest, callback=watch, executor=there, start_from=start))
        parts = np.stack([hearing.scores for hearing in able], axis=1)
        seen = ~np.isnan(parts[:, 0]).any(axis=1)
        learnt.combination_, learnt.calibration_ = Combination.fit(parts[seen], labels[seen])
        return self._become(learnt)

    def _member(self, recipe: Recipe) -> TissueClassifier:
        return TissueClassifier(
            recipe,
            random_state=self.random_state,
            n_jobs=self.n_jobs,
            cache=self.cache.folder if self.cache else None,
        )

    # --- unseen patients ------------------------------------------------------------------------

    def _hear(
        self, manifest: Manifest, callback: Callback, executor: Executor | None
    ) -> list[Hearing]:
        """The first recipe has to work; another that cannot be tried says why."""
        splits = self._splits(manifest)
        n_trials, n_held = len(self.recipes) * len(splits), 0
        heard: list[Hearing] = []
        callback(Progress("unseen patients", 0, n_trials))
        for recipe in self.recipes:
            scores = np.full((len(manifest.records), n_scores(len(manifest.classes))), np.nan)
            failure = ""
            for place, split in enumerate(splits):
                try:
                    scores[split.test] = self._unseen(recipe, manifest, split, executor)
                except ImageError as error:  # patches larger than an image, say
                    if not heard:
                        raise
                    failure = str(error)
                    break
                callback(Progress("unseen patients", n_held + 1 + place, n_trials))
            n_held += len(splits)
            callback(Progress("unseen patients", n_held, n_trials))
            value = None if failure else how_good(scores, manifest)
            heard.append(Hearing(recipe, scores, value, failure))
        return heard

    def _splits(self, manifest: Manifest) -> list[Split]:
        try:
            return list(k_folds(manifest, self.folds, random_state=self.random_state))
        except SplitError as error:
            raise ValueError(
                f"answers cannot be checked on unseen patients ({error}): with so few, take a "
                "preset without a panel, such as default, and calibration_folds=0"
            ) from error

    def _unseen(
        self, recipe: Recipe, manifest: Manifest, split: Split, executor: Executor | None
    ) -> NDArray[np.float64]:
        """(n_test_images, n_scores); NaN on glass."""
        train, test = manifest.select(split.train), manifest.select(split.test)
        trials = Trials(self.cache.folder / "trials" if self.cache else None, inner=True)
        trial = Trial(self._member(recipe), train, test)
        return np.array(trials.hold(trial, executor).scores, dtype=np.float64)

    # --- answering ------------------------------------------------------------------------------

    def predict_proba(self, images: Any, *, mpp: Mpp = None) -> NDArray[np.float64]:
        """Probabilities (n_images, n_classes) in the order of `classes_`; NaN where there is glass.

        `images` and `mpp` as in `predict`; one image is one row.
        """
        answers = self._predict(images, mpp)
        several = answers if isinstance(answers, Answers) else [answers]
        return probabilities(several, self.classes_)

    def _look(self, path: ImageFile, mpp: float | None) -> Look:
        first = self.members_[0]._look(path, mpp)
        n_silent = 0 if self.n_members > 1 else None
        if first.scores is None:
            return replace(first, n_silent=n_silent)
        parts = np.full((self.n_members, len(first.scores)), np.nan)
        parts[0] = first.scores
        for row, member in zip(parts[1:], self.members_[1:], strict=True):
            found = _look_if_it_can(member, path, mpp)
            row[:] = np.nan if found is None else found
        if n_silent is not None:
            n_silent = int(np.isnan(parts[:, 0]).sum())
        return replace(first, scores=self.combination_.scores(parts), n_silent=n_silent)

    def _certainty(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        chances = self.calibration_.probabilities(scores[None])
        kept = self.calibration_.candidates(chances, error_rate)[0]
        names = [name for name, k in zip(self.classes_, kept, strict=True) if k]
        return dict(zip(self.classes_, chances[0].tolist(), strict=True)), names

    @property
    def n_members(self) -> int:
        return len(self.members_)

    @property
    def has_theta(self) -> bool:
        return self.n_members == 1 and super().has_theta

    def _own_score(self, score: float) -> float:
        return (score - self.combination_.offset) * float(self.combination_.scales[0])

    @property
    def _own_scale(self) -> float:
        """On the panel's scale; the others' say moves the whole map, as they tell no place."""
        return 1 / float(self.combination_.scales[0])

    def _grounds(self, value: float) -> str:
        if self.n_members == 1:
            return super()._grounds(value)
        return f"decided by a panel of {self.n_members}; where, by the first of them"

    def _moved_by(self, shift: float) -> Self:
        """Here probabilities move with the scores, so it is the scores that are moved."""
        moved = copy(self)
        offset = self.combination_.offset - shift
        moved.combination_ = replace(self.combination_, offset=offset)
        return moved

    def with_jobs(self, n_jobs: int | None) -> Self:
        changed = copy(self)
        changed.n_jobs = n_jobs
        changed.members_ = [member.with_jobs(n_jobs) for member in self.members_]
        return changed

    def decision_words(self) -> str:
        if self.n_members == 1:
            return super().decision_words()
        return f"by a panel of {self.n_members}; maps and atoms are those of the first"

    def decided_by(self) -> list[Any]:
        """All that decides what it learns from the same images, before it has learnt."""
        members = [self._member(recipe).decided_by() for recipe in self.recipes]
        return [self.kind, members, self.folds, self.random_state]

    # --- for a model file -----------------------------------------------------------------------

    def content(self) -> ModelContent:
        members = [member.content() for member in self.members_]
        arrays = {f"calibration.{k}": v for k, v in asdict(self.calibration_).items()}
        return replace(
            members[0],
            kind=self.kind,
            decision={"shift": self.shift_, "offset": self.combination_.offset},
            training=self.training_,
            members=members,
            arrays=arrays | {"combination.scales": self.combination_.scales},
        )

    @classmethod
    def of_content(cls, content: ModelContent, n_jobs: int | None) -> Panel:
        seed = content.training["random_state"]
        members = [TissueClassifier.of_content(member, n_jobs) for member in content.members]
        recipes, folds = [member.recipe for member in members], content.training["folds"]
        panel = cls(recipes, folds=folds, random_state=seed, n_jobs=n_jobs)
        panel.members_ = members
        panel.classes_ = [str(name) for name in content.classes]
        panel.shift_ = float(content.decision["shift"])
        panel.training_ = content.training
        content.check_arrays(arrays_of("combination", "calibration"), {})
        arrays = content.arrays
        scales, offset = arrays["combination.scales"], float(content.decision["offset"])
        panel.combination_ = Combination(scales, offset)
        names = ("slopes", "offsets", "misfits")
        panel.calibration_ = Calibration(*(arrays[f"calibration.{name}"] for name in names))
        return panel


def _look_if_it_can(
    member: TissueClassifier, path: ImageFile, mpp: float | None
) -> NDArray[np.float64] | None:
    """A member's scores; None for an image that does not suit it, though the first read it."""
    try:
        return member._look(path, mpp).scores
    except ImageError:
        return None


def how_good(scores: NDArray[np.float64], manifest: Manifest) -> float:
    """The mean of balanced accuracy and AUC: on few images either alone is coarse.

    One counts right answers, the other the right order.
    """
    classes, labels = manifest.classes, np.array(manifest.labels)
    answers = ["" if np.isnan(row).any() else classes[winner(row)] for row in scores]
    known = np.nan_to_num(scores)
    two = known.shape[1] == 1
    area = auc(labels, known[:, 0], positive=classes[1]) if two else auc(labels, known)
    return (balanced_accuracy(labels, np.array(answers)) + area) / 2
