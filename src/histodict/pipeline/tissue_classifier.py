"""Which class is this image? One model: from labelled images to it, from an image to an answer."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, ClassVar, Self

from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, ignore
from ..images.manifest import Manifest
from ..methods.registry import method_entry
from ..model_content import ModelContent
from ..networks import vectors_named
from ..recipes import Recipe, preset
from .image_classifier import ImageClassifier
from .image_model import ImageModel, Look
from .patch_model import PatchModel
from .whole_image_model import WholeImageModel


class TissueClassifier(ImageClassifier):
    """Answers "which class?" for whole images, from labelled images.

    Parameters
    ----------
    recipe : a `Recipe`, or the name of a preset
    method : the method to take in the preset, by name; see `methods.registry`
    random_state : seed; the same seed and images give the same model
    n_jobs : threads; None for all cores
    cache : folder for what is costly to compute of an image; None keeps nothing

    Attributes, beside those of every `ImageClassifier`
    ----------
    model_ : what judges the image's patches, or the image as a whole
    """

    kind: ClassVar[str] = "tissue-classifier"

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

    @property
    def model_(self) -> ImageModel:
        return self._model

    def fit(
        self,
        manifest: Manifest,
        *,
        callback: Callback = ignore,
        executor: Executor | None = None,
        start_from: TissueClassifier | None = None,
    ) -> Self:
        """Train the method, then fit the rule for patches on the same images.

        `executor` reads the images and codes their patches; None: threads. `start_from`: a model
        of the same recipe and classes; its dictionaries are gone on from (a warm start).
        """
        labels = self._begin(manifest, callback, executor)
        start = None
        if start_from is not None:
            self.training_["started_from"] = start_from.training_
            start = start_from.model_
        self._model = self._new_model()
        self.training_ |= self._model.fit_images(manifest, labels, callback, executor, start)
        return self

    def _new_model(self) -> ImageModel:
        kind = PatchModel if self.recipe.on_patches else WholeImageModel
        return kind(self.recipe, self.classes_, self.random_state, self.n_jobs, self.cache)

    def _look(self, path: Path, mpp: float | None) -> Look:
        return self._model.look(path, mpp)

    def with_jobs(self, n_jobs: int | None) -> Self:
        changed = copy(self)
        changed.n_jobs, changed._model = n_jobs, self._model.with_jobs(n_jobs)
        return changed

    def decided_by(self) -> list[Any]:
        """All that decides what it learns from the same images, before it has learnt."""
        return [self.kind, *recipe_facts(self.recipe), self.random_state]

    # --- for a model file -----------------------------------------------------------------------

    def content(self) -> ModelContent:
        return self._model.content(self.kind, {"shift": self.shift_}, self.training_)

    @classmethod
    def of_content(cls, content: ModelContent, n_jobs: int | None) -> TissueClassifier:
        seed = content.training["random_state"]
        model = cls(Recipe.from_dict(content.recipe), random_state=seed, n_jobs=n_jobs)
        model.classes_ = [str(name) for name in content.classes]
        model.shift_ = float(content.decision["shift"])
        model.training_ = content.training
        model._model = model._new_model()
        model._model.restore(content, model._model.rule_arrays())
        return model


def recipe_facts(recipe: Recipe) -> list[Any]:
    """A recipe, the parameters it leaves to its method, and the weights behind its vectors."""
    parameters = method_entry(recipe.method).make(recipe.method_parameters).get_params()
    return [recipe.to_dict(), parameters, vectors_named(recipe.vectors).weights()]
