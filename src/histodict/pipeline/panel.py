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
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..decisions.atom_notes import AtomNotes
from ..decisions.calibration import Calibration
from ..decisions.combination import Combination
from ..decisions.tuning import carried_over
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, Progress, ignore
from ..images.annotations.drawing import Drawing
from ..images.in_memory import ImageFile
from ..images.manifest import Manifest
from ..images.pixel_size import Mpp
from ..images.readers import ImageError
from ..model_content import ModelContent, arrays_of
from ..recipes import Recipe
from .hearing import (
    Hearing,
    all_the_same,
    hear,
    kept_meanwhile,
    not_heard,
    scores_if_it_can,
    unseen_splits,
    weighed,
)
from .image_classifier import ImageClassifier
from .image_model import CodesTo, ImageModel, Look
from .inputs import Drawn, Labelled, to_learn
from .results import Answers, probabilities
from .spoken import Spoken, speak_together
from .tissue_classifier import TissueClassifier
from .trials import Trials
from .views import panel_recipe, views


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
    calibration_ : from that to probabilities; None where no patient was left to learn them on
    """

    kind: ClassVar[str] = "panel"
    members_: list[TissueClassifier]
    combination_: Combination
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
        self.folds, self.recipe = folds, self.recipes[0]
        self.random_state, self.n_jobs = random_state, n_jobs
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
            return views(self._with_settings(panel_recipe(given, method, settings), settings))
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

        With a cache, or images that are small enough, what several trainings need is made once.

        `images`, `positive`, `callback`, `executor` as of `TissueClassifier`. `start_from`: only a
        panel of one can go on from another.
        """
        manifest = to_learn(images, positive, "positive")
        if start_from is not None and len(self.recipes) > 1:
            raise ValueError("a panel starts afresh: only a single model can go on from another")
        with self._progress_callback(callback) as watch:
            return self._become(self._fit(manifest, watch, executor, start_from))

    def _fit(
        self,
        manifest: Manifest,
        watch: Callback,
        executor: Executor | None,
        start_from: Panel | None,
    ) -> Self:
        """Return a fitted copy."""
        learnt, start = copy(self), None
        manifest, _ = learnt._begin(manifest, watch, executor)
        splits, unheard = unseen_splits(manifest, self.folds, self.random_state)
        learnt.training_["folds"] = len(splits)
        if unheard:
            learnt.training_["unheard"] = unheard
        if start_from is not None:
            start = start_from.members_[0]
            learnt.training_["started_from"] = start_from.training_
        own = self.cache.folder if self.cache else None
        with kept_meanwhile(own, manifest, executor) as cache:
            member = partial(self._member, cache=cache)
            heard = not_heard(self.recipes, manifest)
            if splits:
                trials = Trials(own / "trials" if own else None, inner=True)
                heard = hear(self.recipes, member, manifest, splits, trials, watch, executor)
            learnt.members_ = []
            able: list[Hearing] = []
            for place, hearing in enumerate(heard):
                watch(Progress("views", place, len(heard)))
                if hearing.failure:
                    continue
                there = executor if hearing.recipe.on_patches else None
                fit = member(hearing.recipe).fit
                try:
                    made = fit(manifest, callback=watch, executor=there, start_from=start)
                except ImageError as error:  # of a view that was not tried before
                    if not able:
                        raise
                    heard[place] = replace(hearing, failure=str(error))
                    continue
                learnt.members_.append(made)
                able.append(hearing)
            watch(Progress("views", len(heard), len(heard)))
            learnt._weigh(able, manifest, is_heard=bool(splits))
        weights = iter(learnt.combination_.weights.tolist())
        learnt.training_["members"] = [
            hearing.to_dict() | ({} if hearing.failure else {"weight": next(weights)})
            for hearing in heard
        ]
        learnt.members_ = [made.with_cache(self.cache) for made in learnt.members_]
        return learnt

    def _weigh(self, heard: list[Hearing], manifest: Manifest, *, is_heard: bool) -> None:
        """By what was heard; else all the same, on the scale of what they say of these images."""
        if is_heard:
            self.combination_, self.calibration_ = weighed(heard, manifest)
        else:
            self.combination_, self.calibration_ = all_the_same(self.members_, manifest), None

    def _member(self, recipe: Recipe, cache: Path | None = None) -> TissueClassifier:
        return TissueClassifier(
            recipe, random_state=self.random_state, n_jobs=self.n_jobs, cache=cache
        )

    # --- answering ------------------------------------------------------------------------------

    def predict_proba(
        self, images: Any, *, mpp: Mpp = None, within: Drawn | None = None
    ) -> NDArray[np.float64]:
        """Probabilities (n_images, n_classes) in the order of `classes_`; NaN where there is glass.

        `images`, `mpp` and `within` as in `predict`; one image is one row.
        """
        if self.calibration_ is None:
            raise ValueError(f"how sure it is cannot be known: {self.training_['unheard']}")
        answers = self._predict(images, mpp, within)
        several = answers if isinstance(answers, Answers) else [answers]
        return probabilities(several, self.classes_)

    def _look(
        self,
        path: ImageFile,
        mpp: float | None,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> Look:
        first = self.members_[0]._look(path, mpp, callback, within)
        n_silent = 0 if self.n_members > 1 else None
        if first.scores is None:
            return replace(first, n_silent=n_silent)
        parts = np.full((self.n_members, len(first.scores)), np.nan)
        parts[0] = first.scores
        for row, member in zip(parts[1:], self.members_[1:], strict=True):
            found = scores_if_it_can(member, path, mpp, callback, within)
            row[:] = np.nan if found is None else found
        if n_silent is not None:
            n_silent = int(np.isnan(parts[:, 0]).sum())
        return replace(first, scores=self.combination_.scores(parts), n_silent=n_silent)

    def _certainty(
        self, scores: NDArray[np.float64], error_rate: float
    ) -> tuple[dict[str, float], list[str]]:
        if self.calibration_ is None:
            return {}, []
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

    def _unbounded(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.combination_.unbent(scores + self.shift_)

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
        moved, offset = copy(self), self.combination_.offset - shift
        moved.combination_ = replace(self.combination_, offset=offset)
        return moved

    def with_jobs(self, n_jobs: int | None) -> Self:
        changed = copy(self)
        changed.n_jobs = n_jobs
        changed.members_ = [member.with_jobs(n_jobs) for member in self.members_]
        return changed

    def with_codes_to(self, codes_to: CodesTo) -> Self:
        return self._with_member(0, self.members_[0].with_codes_to(codes_to))

    def with_notes(self, notes: AtomNotes, view: int = 0) -> Self:
        return self._with_member(view, self.members_[view].with_notes(notes))

    def with_line(self, images: Labelled, view: int = 0, **how: Any) -> Self:
        return self._with_member(view, self.members_[view].with_line(images, **how))

    def _with_member(self, view: int, member: TissueClassifier) -> Self:
        changed = copy(self)
        changed.members_ = [*self.members_[:view], member, *self.members_[view + 1 :]]
        pair = self.members_[view].training_, member.training_
        changed.training_ = carried_over(self.training_, *pair)
        return changed

    def spoken(self, *image: Any) -> list[Spoken]:
        return speak_together(self, *image)

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
        arrays = {"combination.scales": self.combination_.scales}
        arrays["combination.weights"] = self.combination_.weights
        if self.calibration_ is not None:
            found = asdict(self.calibration_)
            arrays |= {f"calibration.{name}": array for name, array in found.items()}
        return replace(
            members[0],
            kind=self.kind,
            decision={
                "shift": self.shift_,
                "offset": self.combination_.offset,
                "bend": self.combination_.bend,
            },
            training=self.training_,
            members=members,
            atoms=[],
            arrays=arrays,
        )

    @classmethod
    def of_content(cls, content: ModelContent, n_jobs: int | None) -> Panel:
        seed = content.training["random_state"]
        members = [TissueClassifier.of_content(member, n_jobs) for member in content.members]
        recipes, folds = [member.recipe for member in members], content.training["folds"]
        panel = cls(recipes, folds=folds, random_state=seed, n_jobs=n_jobs)
        panel.classes_ = [str(name) for name in content.classes]
        panel.shift_ = float(content.decision["shift"])
        panel.members_, panel.training_ = members, content.training
        arrays, is_calibrated = content.arrays, "unheard" not in content.training
        parts = ("combination", "calibration") if is_calibrated else ("combination",)
        content.check_arrays(arrays_of(*parts), {})
        say = [arrays[f"combination.{name}"] for name in ("scales", "weights")]
        numbers = [float(content.decision[name]) for name in ("offset", "bend")]
        panel.combination_ = Combination(say[0], say[1], *numbers)
        names = [f"calibration.{name}" for name in ("slopes", "offsets", "misfits")]
        panel.calibration_ = Calibration(*(arrays[n] for n in names)) if is_calibrated else None
        return panel
