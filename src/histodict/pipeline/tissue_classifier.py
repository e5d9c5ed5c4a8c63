"""Which class is this image? One model: from labelled images to it, from an image to an answer."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from ..decisions.atom_notes import AtomAnnotations
from ..decisions.tuning import tuned
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, no_callback
from ..images.annotations.drawing import AnnotationFile
from ..images.in_memory import ImageLike
from ..images.kept_pictures import image_cache_enabled
from ..images.record_order import sorted_by_content
from ..methods.registry import get_method
from ..model_content import ModelData
from ..networks import get_patch_features
from ..recipes import Recipe
from .estimator import raise_no_predict_proba
from .image_classifier import ImageClassifier
from .image_model import CodeCallback, ImagePipeline, ImageScores
from .inputs import LabelledImages, resolve_labelled, resolve_training_set
from .patch_model import PatchPipeline
from .whole_image_model import WholeImagePipeline


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
