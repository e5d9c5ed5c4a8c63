"""Base class of all models, with the interface of scikit-learn's estimators; plots of atoms."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from html import escape
from inspect import signature
from pathlib import Path
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    NoReturn,
    ParamSpec,
    Self,
    TypeVar,
    overload,
)

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import ImageRecord
from ..decision.atom_annotations import AtomAnnotations
from ..decision.threshold import add_tuning_images
from ..images.memory_image import ImageLike
from ..images.pixel_size import MppLike, PixelSizeOption
from ..metrics.scores import balanced_accuracy
from ..patches.rendering import atom_mosaic
from ..utils.progress import Callback, Progress, no_callback, progress_bar
from ..utils.validation import check_setting_names, check_type, check_whole_number
from .class_labels import TEXT, NamedLabels, labels_from_names
from .image_pipeline import ImagePipeline, PatchRecorder
from .inputs import (
    AnnotationInput,
    LabelledImages,
    TrainingImages,
    resolve_inputs,
    resolve_labelled,
    warn_assumed_pixel_sizes,
)
from .model_file import ModelData, load_model_of_kind, write_model_data
from .predictions import Predictions
from .recipe import Recipe, resolve_recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..explain.explanation import Explanation

    class BaseEstimator:  # scikit-learn is untyped: attributes of models would all be Any
        """Type stub of `sklearn.base.BaseEstimator`."""

        def __sklearn_tags__(self) -> Any:
            """Return the tags of the estimator."""

        def set_fit_request(self, *, groups: bool | str | None = ...) -> Self:
            """Request metadata for `fit`."""

else:
    from sklearn.base import BaseEstimator

_NO_DEFAULT = object()
# Parameters that are stored as attributes of the same name.
_ATTRIBUTE_PARAMETERS = ("region", "folds", "random_state", "n_jobs", "verbose")


class ImageEstimator(BaseEstimator):
    """Base class of all models: parameters, files, predictions, and plots of the atoms.

    The first argument of a constructor is a recipe or the name of a preset, and `**settings` are
    changes of the recipe. As the constructor derives recipes from its arguments, `get_params`
    returns the stored arguments, not attributes of the same names.
    """

    kind: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    finds_regions: ClassVar[bool]
    model_: Any  # pipeline that scores an image; for an ensemble, that of the first estimator
    recipes: list[Recipe]  # of all estimators
    class_names_: list[str]
    training_info_: dict[str, Any]
    n_jobs: int | None
    verbose: bool | int
    _init_params: dict[str, Any]

    # --- parameters -----------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the constructor by name.

        Parameters
        ----------
        deep : whether to include all settings of the recipe, such as ``n_atoms``

        Returns
        -------
        dict
        """
        current = {
            name: getattr(self, name) for name in _ATTRIBUTE_PARAMETERS if name in self._init_params
        }
        return (self._settings() if deep else {}) | self._init_params | current

    def set_params(self, **params: Any) -> Self:
        """Set parameters of the model.

        Changes of `n_jobs` and `verbose` take effect at once, other changes with the next fit.

        Parameters
        ----------
        **params : arguments of the constructor, or settings of the recipe

        Returns
        -------
        Self
        """
        new_params = self.get_params(deep=False) | params
        type(self)(**new_params)  # raises errors before anything has changed
        self.__init__(**new_params)  # type: ignore[misc]
        if "n_jobs" in params and self.__sklearn_is_fitted__():
            self.__dict__ |= self.with_jobs(self.n_jobs).__dict__
        return self

    def _settings(self) -> dict[str, Any]:
        """Return all settings of the recipe by name; empty if there are several recipes."""
        return {}

    def _store_params(self, settings: dict[str, Any], **arguments: Any) -> None:
        """Store the arguments of the constructor unchanged."""
        check_type("verbose", arguments["verbose"], "bool | int")
        self._init_params = arguments | settings
        self.verbose = arguments["verbose"]

    def _with_settings(self, recipe: Recipe, settings: dict[str, Any]) -> Recipe:
        """Return a copy of the recipe with changed settings; raise an error for unknown names."""
        if not settings:
            return recipe
        init_names = [name for name in signature(type(self)).parameters if name != "settings"]
        check_setting_names(settings, {*init_names, *recipe.setting_names()})
        return recipe.replace_settings(settings)

    def _resolve_recipe(
        self, recipe: Recipe | str, method: str | None, settings: dict[str, Any]
    ) -> Recipe:
        """Return the recipe for the arguments of the constructor."""
        resolved = resolve_recipe(recipe, method, regions=self.finds_regions)
        return self._with_settings(resolved, settings)

    def _html_repr(self) -> str:
        """Return the HTML that notebooks show instead of scikit-learn's diagram."""
        parts = [type(self).__name__, "not fitted"]
        if self.__sklearn_is_fitted__():
            info = self.training_info_
            n_patients = info["n_patients"] if info.get("has_patients", True) else "unknown"
            parts[1] = (
                f"{' / '.join(self.class_names_)}, trained on {info['n_images']} images of "
                f"{n_patients} patients; {self.describe_decision()}"
            )
        head, text, code = map(escape, (*parts, repr(self)))
        return f"<div><b>{head}</b>: {text}<br><code>{code}</code></div>"

    def __repr__(self) -> str:
        """Return the constructor call of the model, without arguments equal to the defaults."""
        defaults = {name: p.default for name, p in signature(type(self)).parameters.items()}
        (_, preset), *others = self.get_params(deep=False).items()
        in_preset = self._settings_of_preset()
        parts = [] if preset is None else [repr(preset)]
        parts += [
            f"{name}={value!r}"
            for name, value in others
            if repr(value) != repr(in_preset.get(name, defaults.get(name, _NO_DEFAULT)))
        ]
        return f"{type(self).__name__}({', '.join(parts)})"

    def _settings_of_preset(self) -> dict[str, Any]:
        """Return all settings of the recipe before `**settings` are applied, by name."""
        return {}

    def __sklearn_tags__(self) -> Any:
        """Return the tags of a classifier whose input is a list of images."""
        from sklearn.utils import ClassifierTags

        tags = super().__sklearn_tags__()
        tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.input_tags.two_d_array, tags.input_tags.one_d_array = False, True
        tags.input_tags.string = True
        return tags

    @property
    def classes_(self) -> NDArray[Any]:
        """Class labels, with the type of the labels that the model was fitted on."""
        try:
            names = self.class_names_
        except AttributeError:
            raise AttributeError("classes_ is available after fit") from None
        return labels_from_names(names, self._label_type)

    @property
    def _label_type(self) -> str:
        return str(self.training_info_.get("label_type", TEXT))

    # --- methods of the subclasses --------------------------------------------------------------

    def with_jobs(self, n_jobs: int | None) -> Self:
        """Return a copy that uses `n_jobs` threads."""
        raise NotImplementedError

    def with_recorders(self, recorders: Sequence[PatchRecorder]) -> Self:
        """Return a copy in which estimator i passes the codes of patches to `recorders[i]`."""
        raise NotImplementedError

    def with_atom_annotations(self, annotations: AtomAnnotations, member_index: int = 0) -> Self:
        """Return a copy with these annotations of atoms.

        Disabled atoms have no effect on predictions, as if they were not part of the dictionary.
        Nothing is trained again.

        Parameters
        ----------
        annotations : annotations of the atoms
        member_index : index of the estimator in an ensemble
        """
        raise NotImplementedError

    def refit_decision_rule(
        self, images: LabelledImages, member_index: int = 0, *, callback: Callback | None = None
    ) -> Self:
        """Return a copy with aggregator and decision threshold fitted again on labelled images.

        This is useful after atoms were disabled, which can favour one class. Dictionaries do not
        change; neither do the weights and the calibration of an ensemble.

        Parameters
        ----------
        images : labelled images, such as the training images
        member_index : index of the estimator in an ensemble
        callback : receives the progress
        """
        raise ValueError("a region detector has no decision rule for image classes to fit again")

    def with_tuning_images(self, images: Iterable[Path]) -> Self:
        """Return a copy whose training record lists these images as tuning images.

        Call it on the result of `with_threshold`, `adapt_threshold` or `with_atom_annotations`, so
        that scores on the images with which the change was chosen are marked as tuned.

        Parameters
        ----------
        images : paths of the images

        Returns
        -------
        Self
        """
        changed = copy(self)
        changed.training_info_ = add_tuning_images(self.training_info_, images)
        return changed

    def explain(
        self,
        image: ImageLike | str,
        *,
        mpp: MppLike = None,
        region_of_interest: AnnotationFile | None = None,
        callback: Callback = no_callback,
    ) -> Explanation:
        """Return the prediction for one image with contributions of atoms that sum to its score.

        Parameters
        ----------
        image : path, array or Pillow image
        mpp : pixel size (µm) if the file gives none
        region_of_interest : outlines; patches outside of these are ignored
        callback : receives the progress within a slide

        Returns
        -------
        Explanation
        """
        from ..explain.explanation import explain

        self._check_fitted()
        return explain(
            self, image, mpp=mpp, region_of_interest=region_of_interest, callback=callback
        )

    def describe_decision(self) -> str:
        """Return a description of the decision for a model card."""
        raise NotImplementedError

    def true_label(self, record: ImageRecord) -> str:
        """Return the true label of an image from its record."""
        raise NotImplementedError

    def predict_one(
        self,
        path: ImageLike | str,
        *,
        mpp: MppLike = None,
        callback: Callback = no_callback,
        region_of_interest: AnnotationFile | None = None,
    ) -> Any:
        """Return the prediction for one image without the warnings that `predict` gives."""
        raise NotImplementedError

    def to_model_data(self) -> ModelData:
        """Convert the fitted model to the content of a model file."""
        raise NotImplementedError

    @classmethod
    def from_model_data(cls, content: ModelData, n_jobs: int | None) -> Self:
        """Create a fitted model from the content of a model file; `n_jobs` None uses all cores."""
        raise NotImplementedError

    # --- prediction -----------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "training_info_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError(
                "this model is not fitted: call fit, or load a fitted model with histodict.load"
            )

    def _assign_fitted(self, fitted: Self) -> Self:
        """Copy the attributes of a fitted copy to this model and return it."""
        self.__dict__ |= fitted.__dict__
        return self

    def _progress_callback(
        self, callback: Callback | None = None
    ) -> AbstractContextManager[Callback]:
        """Return a context manager that yields a function to report progress to.

        This is `callback`. If it is None, a verbose model shows a progress bar, and any other model
        shows nothing.
        """
        if callback is None and self.verbose:
            return progress_bar()
        return nullcontext(callback or no_callback)

    def _predict(
        self,
        images: Any,
        mpp: MppLike,
        region_of_interest: AnnotationInput | None = None,
        **options: Any,
    ) -> Any:
        """Return a prediction if `images` is a single image, or else `Predictions`.

        `options` are passed to `predict_one`.
        """
        self._check_fitted()
        inputs = resolve_inputs(images, region_of_interest)
        for message in inputs.skipped:
            warnings.warn(message, stacklevel=3)  # attributed to the caller of predict
        predictions, default_size = [], PixelSizeOption.from_mpp(mpp)
        with self._progress_callback() as callback:
            callback(Progress("predict", 0, len(inputs.images)))
            for i, (image, table_mpp, annotations) in enumerate(inputs.images):
                size = default_size.with_table_mpp(table_mpp)
                prediction = self.predict_one(
                    image, mpp=size, callback=callback, region_of_interest=annotations, **options
                )
                predictions.append(prediction)
                callback(Progress("predict", i + 1, len(inputs.images)))
        warn_assumed_pixel_sizes(predictions, self)
        if inputs.is_single:
            return predictions[0]
        return Predictions(predictions, self.columns, self._label_type)

    def score(self, X: TrainingImages, y: Any = None) -> float:
        """Return the balanced accuracy on labelled images: the mean recall of the classes.

        Images without tissue count as wrong.

        Parameters
        ----------
        X : as in `fit`
        y : labels of a list of images

        Returns
        -------
        float
        """
        self._check_fitted()
        if y is None:
            manifest = resolve_labelled(X)
            predictions = self._predict(manifest, None)
            truth = [self.true_label(record) for record in manifest.records]
        else:
            truth = NamedLabels.from_labels(y).names
            predictions = as_predictions(self._predict(X, None))
            if len(truth) != len(predictions):
                raise ValueError(f"X has {len(predictions)} images, and y {len(truth)} labels")
        return float(balanced_accuracy(np.array(truth), np.array(predictions.top_labels)))

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: Path | str) -> Path:
        """Write the model to a file, which is replaced if it exists.

        Parameters
        ----------
        path : file in an existing folder

        Returns
        -------
        Path
            The file.

        Raises
        ------
        ValueError
            If the model cannot be stored, for example because of non-finite values.
        """
        self._check_fitted()
        content = self.to_model_data()
        try:
            self.from_model_data(content, None)
        except ValueError as error:
            raise ValueError(
                f"{path}: the model was not saved, because its content is invalid: {error}"
            ) from error
        return write_model_data(content, Path(path))

    @classmethod
    def load(
        cls, path: Path | str, *, n_jobs: int | None = None, trust_weights: bool = False
    ) -> Self:
        """Read a model of this class from a file; `histodict.load` reads models of any class.

        Parameters
        ----------
        path : model file
        n_jobs : number of threads; None uses all cores
        trust_weights : whether to download or open the encoder weights that the file names

        Returns
        -------
        Self
        """
        model: Self = load_model_of_kind({cls.kind: cls}, Path(path), n_jobs, trust_weights)
        return model

    # --- atoms ----------------------------------------------------------------------------------

    def plot_atoms(self, n_atoms: int = 20, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
        """Plot the first atoms of every class as images.

        Most methods sort the atoms by decreasing usage. Atoms of encoder features are not images;
        the command `histodict atoms` shows patches that use them.

        Parameters
        ----------
        n_atoms : number of atoms per class
        axes : matplotlib axes, one per class; None makes a figure

        Returns
        -------
        sequence of matplotlib axes

        Raises
        ------
        ValueError
            If atoms are not images.
        """
        self._check_fitted()
        return plot_atoms(self, n_atoms, axes)


_Model = TypeVar("_Model")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def available_if(
    reason: Callable[[_Model], str],
) -> Callable[
    [Callable[Concatenate[_Model, _Arguments], _Result]], _AvailableIf[_Model, _Arguments, _Result]
]:
    """Return a decorator for a method that exists only if `reason(model)` is an empty text.

    Otherwise, access to the method raises AttributeError with this text as its message. With
    `sklearn.utils.metaestimators.available_if`, the condition is a boolean.
    """
    return lambda method: _AvailableIf(reason, method)


class _AvailableIf(Generic[_Model, _Arguments, _Result]):
    """Descriptor of a method that exists only if `reason(model)` is an empty text."""

    def __init__(
        self,
        reason: Callable[[_Model], str],
        method: Callable[Concatenate[_Model, _Arguments], _Result],
    ) -> None:
        self._reason = reason
        self.func = method
        self.__doc__ = method.__doc__

    @overload
    def __get__(
        self, model: None, cls: type
    ) -> Callable[Concatenate[_Model, _Arguments], _Result]: ...
    @overload
    def __get__(self, model: _Model, cls: type) -> Callable[_Arguments, _Result]: ...
    def __get__(self, model: _Model | None, cls: type) -> Any:
        if model is None:
            return self.func
        reason = self._reason(model)
        if reason:
            raise AttributeError(reason)
        return MethodType(self.func, model)


def as_predictions(result: Any) -> Predictions[Any]:
    """Return the result of `predict` as `Predictions`, even if it is for a single image."""
    return result if isinstance(result, Predictions) else Predictions([result])


def raise_no_predict_proba(model: ImageEstimator) -> NoReturn:
    """Raise AttributeError: `predict_proba` exists in `EnsembleClassifier` only."""
    raise AttributeError(
        f"{type(model).__name__} has scores, but no probabilities. For probabilities, fit an "
        "EnsembleClassifier, for example EnsembleClassifier(['fast']), which calibrates them on "
        "unseen patients"
    )


_ATOMS_PER_ROW = 10


def plot_atoms(model: Any, n_atoms: int, axes: Sequence[Axes] | None) -> Sequence[Axes]:
    """Plot atoms of a fitted model; see `ImageEstimator.plot_atoms`."""
    check_whole_number("n_atoms", n_atoms, 1)
    pipeline: ImagePipeline = model.model_
    classes, atoms = model.class_names_, pipeline.atoms()
    if atoms is None:
        raise ValueError(pipeline.no_atoms_reason())
    if atoms.patch_px is None:
        raise ValueError(
            f"the atoms of {pipeline.recipe.features} vectors cannot be shown as pictures. The "
            "command `histodict atoms` shows the patches that use them"
        )
    if axes is None:
        from matplotlib import pyplot

        axes = list(pyplot.subplots(len(classes), 1, squeeze=False)[1][:, 0])
    for index, (name, ax) in enumerate(zip(classes, axes, strict=True)):
        class_atoms = atoms.signed_atoms[atoms.classes == index]
        ax.imshow(atom_mosaic(class_atoms, atoms.patch_px, n_atoms, min(n_atoms, _ATOMS_PER_ROW)))
        ax.set_title(
            f"{name}: {min(n_atoms, len(class_atoms))} of {len(class_atoms)} atoms",
            parse_math=False,
        )
        ax.set_axis_off()
    return axes
