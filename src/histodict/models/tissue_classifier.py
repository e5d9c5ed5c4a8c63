"""Classifier of whole images with a single model."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from ..annotations.annotation_file import AnnotationFile
from ..datasets.survey import sorted_by_content
from ..decision.atom_annotations import AtomAnnotations
from ..decision.threshold import add_change
from ..encoders import get_patch_features
from ..images.memory_image import ImageLike, image_cache_enabled
from ..methods.registry import get_method
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor
from ..utils.progress import Callback, no_callback
from .estimator import raise_no_predict_proba
from .image_classifier import ImageClassifier
from .image_pipeline import ImagePipeline, ImageScores, PatchRecorder, WholeImagePipeline
from .inputs import LabelledImages, TrainingImages, resolve_labelled
from .model_file import ModelData
from .patch_pipeline import PatchPipeline
from .recipe import Recipe
from .training_set import resolve_training_set


class TissueClassifier(ImageClassifier):
    """Classifier of whole images and slides that is fitted on labelled images.

    Parameters
    ----------
    recipe : Recipe or str, default="fast"
        Settings, or the name of a preset.
    method : str, optional
        Name of a method that replaces the method of the recipe; see `methods.registry`.
    random_state : int, default=0
        Seed. The same seed and images, in any order, give the same model.
    n_jobs : int, optional
        Number of threads; None uses all cores.
    cache : path, optional
        Folder that stores costly intermediate results of each image; None stores nothing.
    verbose : bool or int, default=False
        Whether to show progress bars on stderr.
    **settings
        Settings of the recipe or parameters of its method by name, such as ``n_atoms=100``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels. With two classes, positive scores stand for the second. Labels `y` are sorted
        as in scikit-learn; for a table or folder, the class that is not healthy comes last.
    class_names_ : list of str
        Class labels as text.
    model_ : ImagePipeline
        Fitted pipeline from an image file to its scores.
    threshold_shift_ : float
        Shift of the decision threshold since training, in units of the score.
    training_info_ : dict
        Record of the training.
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
        self.recipe = self._resolve_recipe(recipe, method, settings)
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
        """Fitted pipeline from an image file to its scores."""
        return self._model

    def _settings(self) -> dict[str, Any]:
        return self.recipe.setting_values()

    def _settings_of_preset(self) -> dict[str, Any]:
        preset, method = (self._init_params[name] for name in ("recipe", "method"))
        return self._resolve_recipe(preset, method, {}).setting_values()

    def fit(
        self,
        X: TrainingImages,
        y: Any = None,
        groups: Any = None,
        *,
        positive: str | None = None,
        callback: Callback | None = None,
        executor: Executor | None = None,
        start_from: TissueClassifier | None = None,
    ) -> Self:
        """Train the method, then fit the aggregator of patch statistics on the same images.

        Parameters
        ----------
        X : folder with a subfolder per class, CSV file, DataFrame with the same columns or
            `Manifest`, see `read_manifest`; or with `y`, a list of paths, arrays (height, width, 3)
            of uint8 or Pillow images, or an array (n_images, height, width, 3)
        y : labels of the images: text, integers or booleans; they replace the labels of a table
        groups : patient of each image; they replace the patients of a table
        positive : which of two classes has positive scores; None takes the class that is not
            healthy or, with `y`, the last in sorted order
        callback : receives the progress, instead of a progress bar
        executor : reads images and encodes patches in parallel; None uses threads
        start_from : model of the same recipe and classes whose dictionaries are trained further
            (warm start)

        Returns
        -------
        Self
        """
        training = resolve_training_set(X, y, groups, positive=positive, option="positive")
        fitted, start = copy(self), None
        with (
            training.write_files() as manifest,
            image_cache_enabled(),
            self._progress_callback(callback) as progress,
        ):
            manifest, labels = fitted._start_training(manifest, progress, executor)
            fitted.training_info_ |= training.training_info
            if start_from is not None:
                fitted.training_info_["started_from"] = start_from.training_info_
                start = start_from.model_
            fitted._model = fitted._build_pipeline()
            fitted.training_info_ |= fitted._model.fit_images(
                manifest, labels, progress, executor, start
            )
        return self._assign_fitted(fitted)

    def _build_pipeline(self) -> ImagePipeline:
        pipeline = PatchPipeline if self.recipe.is_patch_level else WholeImagePipeline
        return pipeline(self.recipe, self.class_names_, self.random_state, self.n_jobs, self.cache)

    def _score_image(
        self,
        path: ImageLike,
        mpp: float | None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> ImageScores:
        return self._model.score_image(path, mpp, callback, region_of_interest)

    @property
    def predict_proba(self) -> NoReturn:
        """Raise AttributeError, as only an `EnsembleClassifier` returns probabilities."""
        raise_no_predict_proba(self)

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
        changed.n_jobs, changed._model = n_jobs, self._model.with_jobs(n_jobs)
        return changed

    def with_recorders(self, recorders: Sequence[PatchRecorder]) -> Self:
        """Return a copy that passes the codes of patches to the first recorder."""
        changed = copy(self)
        changed._model = self._model.with_recorder(recorders[0])
        return changed

    def with_atom_annotations(self, annotations: AtomAnnotations, member_index: int = 0) -> Self:
        """Return a copy with these annotations of atoms; disabled atoms have no effect.

        Parameters
        ----------
        annotations : annotations of the atoms
        member_index : index of the estimator; only ensembles use it

        Returns
        -------
        Self
        """
        changed = copy(self)
        changed._model = self._model.with_atom_annotations(annotations)
        if annotations.disabled != self._model.atom_annotations.disabled:
            changed.training_info_ = add_change(self.training_info_, "atoms")
        return changed

    def refit_decision_rule(
        self, images: LabelledImages, member_index: int = 0, *, callback: Callback | None = None
    ) -> Self:
        """Return a copy whose aggregator is fitted again on labelled images.

        Parameters
        ----------
        images : labelled images, such as the training images
        member_index : index of the estimator; only ensembles use it
        callback : receives the progress

        Returns
        -------
        Self
        """
        manifest = resolve_labelled(images)
        unknown = sorted({r.label for r in manifest.records} - set(self.class_names_))
        if unknown:
            known = " and ".join(map(repr, self.class_names_))
            raise ValueError(
                f"{manifest.root}: the label {unknown[0]!r} is not a class of the model; its "
                f"classes are {known}. Correct the labels, or train again"
            )
        manifest = sorted_by_content(manifest)
        labels = np.array([self.class_names_.index(r.label) for r in manifest.records], np.int64)
        changed = copy(self)
        with self._progress_callback(callback) as progress:
            changed._model = self._model.refit_decision_rule(manifest.records, labels, progress)
        changed.threshold_shift_ = 0.0
        metadata = {"manifest_digest": manifest.digest(), "n_images": manifest.n_images}
        changed.training_info_ = add_change(self.training_info_, "refit", **metadata)
        return changed.with_tuning_images([record.path for record in manifest.records])

    def with_cache(self, cache: ArrayCache | None) -> Self:
        """Return a copy that uses another cache of feature vectors."""
        changed = copy(self)
        changed.cache, changed._model = cache, copy(self._model)
        changed._model.cache = cache
        return changed

    def fingerprint(self) -> list[Any]:
        """Return all settings that determine the fitted model for the same training images."""
        return [self.kind, *recipe_fingerprint(self.recipe), self.random_state]

    # --- model file -----------------------------------------------------------------------------

    def to_model_data(self) -> ModelData:
        """Convert the fitted model to the content of a model file."""
        return self._model.to_model_data(
            self.kind, {"shift": self.threshold_shift_}, self.training_info_
        )

    @classmethod
    def from_model_data(cls, content: ModelData, n_jobs: int | None) -> TissueClassifier:
        """Create a fitted model from the content of a model file."""
        seed = content.training_info["random_state"]
        model = cls(Recipe.from_dict(content.recipe), random_state=seed, n_jobs=n_jobs)
        model.class_names_ = [str(name) for name in content.classes]
        model.threshold_shift_ = float(content.decision_parameters["shift"])
        model.training_info_ = content.training_info
        model._model = model._build_pipeline()
        model._model.load_state(content, model._model.aggregator_schema())
        return model


def recipe_fingerprint(recipe: Recipe) -> list[Any]:
    """Return the settings of a recipe, its method's parameters, and the encoder's weight digest."""
    parameters = get_method(recipe.method).make_estimator(recipe.method_parameters).get_params()
    return [recipe.to_dict(), parameters, get_patch_features(recipe.features).weights_digest()]
