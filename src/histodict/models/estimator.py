"""What all kinds of model have in common for those who write Python: as scikit-learn has it.

Atoms on matplotlib's axes.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from html import escape
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import numpy as np
from sklearn.exceptions import NotFittedError

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import ImageRecord
from ..decision.atom_annotations import AtomAnnotations
from ..decision.threshold import with_images
from ..images.memory_image import ImageLike
from ..images.pixel_size import MppLike, PixelSizeOption
from ..metrics.scores import balanced_accuracy
from ..patches.rendering import atom_mosaic
from ..utils.progress import Callback, Progress, no_callback, progress_bar
from ..utils.validation import check_kind, check_names, check_whole_number
from .image_pipeline import CodeCallback, ImagePipeline
from .inputs import (
    AnnotationInput,
    LabelledImages,
    resolve_inputs,
    resolve_labelled,
    warn_assumed_pixel_sizes,
)
from .model_file import ModelData, load_model_of_kind, write_model_data
from .predictions import Predictions
from .recipe import Recipe, resolve_recipe

if TYPE_CHECKING:
    from matplotlib.axes import Axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..explain.explanation import Explanation, ScoreContributions

    class BaseEstimator:  # scikit-learn has no types: all attributes of models would be Any
        pass

else:
    from sklearn.base import BaseEstimator

# Parameters that are kept as they are given, under their own names.
_PLAIN = ("region", "folds", "random_state", "n_jobs", "verbose")


class ImageEstimator(BaseEstimator):
    """Base class of all models: parameters, files, predictions, and plots of the atoms.

    Constructors take settings of the recipe as `**settings`, and resolve presets, so that
    `get_params` returns the stored arguments rather than attributes of the same names.
    """

    kind: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]
    finds_regions: ClassVar[bool]
    model_: Any  # what judges the image; of a panel, its first
    recipes: list[Recipe]  # of all models that decide together
    classes_: list[str]
    training_info_: dict[str, Any]
    n_jobs: int | None
    verbose: bool | int
    _init_params: dict[str, Any]

    # --- parameters -----------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the constructor's arguments; if `deep`, also all settings of the recipe."""
        now = {name: getattr(self, name) for name in _PLAIN if name in self._init_params}
        return (self._settings() if deep else {}) | self._init_params | now

    def set_params(self, **params: Any) -> Self:
        """Change parameters; a fitted model stays as it is until the next fit.

        Of a fitted model, only `n_jobs` and `verbose` take effect at once.
        """
        wanted = self.get_params(deep=False) | params
        type(self)(**wanted)  # refused before anything has changed
        self.__init__(**wanted)  # type: ignore[misc]
        if "n_jobs" in params and self.__sklearn_is_fitted__():
            self.__dict__ |= self.with_jobs(self.n_jobs).__dict__
        return self

    def _settings(self) -> dict[str, Any]:
        """All settings by name, where there is one recipe."""
        return {}

    def _store_params(self, settings: dict[str, Any], **own: Any) -> None:
        """Remember what the constructor was given, as it was given."""
        check_kind("verbose", own["verbose"], "bool | int")
        self._init_params = own | settings
        self.verbose = own["verbose"]

    def _with_settings(self, recipe: Recipe, settings: dict[str, Any]) -> Recipe:
        """The recipe with settings by name; near names are also those of the constructor."""
        if not settings:
            return recipe
        own = [name for name in signature(type(self)).parameters if name != "settings"]
        check_names(settings, {*own, *recipe.settings()})
        return recipe.replace_settings(settings)

    def _recipe_of(
        self, given: Recipe | str, method: str | None, settings: dict[str, Any]
    ) -> Recipe:
        found = resolve_recipe(given, method, regions=self.finds_regions)
        return self._with_settings(found, settings)

    def _html_repr(self) -> str:
        """HTML for notebooks, in place of scikit-learn's diagram."""
        facts = [type(self).__name__, "has learnt nothing yet"]
        if self.__sklearn_is_fitted__():
            facts[1] = (
                f"{' / '.join(self.classes_)}, learnt from {self.training_info_['n_images']} "
                "images of "
                f"{self.training_info_['n_patients']} patients; {self.describe_decision()}"
            )
        head, text, code = map(escape, (*facts, repr(self)))
        return f"<div><b>{head}</b>: {text}<br><code>{code}</code></div>"

    # --- what each kind does in its own way -----------------------------------------------------

    def with_jobs(self, n_jobs: int | None) -> Self:
        """The same model, on so many threads."""
        raise NotImplementedError

    def with_code_callback(self, codes_to: CodeCallback) -> Self:
        """The same model; the listener hears of the codes behind its map, chunk by chunk."""
        raise NotImplementedError

    def with_atom_annotations(self, notes: AtomAnnotations, view: int = 0) -> Self:
        """The same model with these notes of its atoms, of a panel those of its view at this place.

        Atoms that are switched off take part no longer, as if they had never been: nothing is
        learnt again.
        """
        raise NotImplementedError

    def refit_decision_rule(
        self, images: LabelledImages, view: int = 0, *, callback: Callback | None = None
    ) -> Self:
        """The same model, its line between the classes fitted again on labelled images.

        Atoms that are switched off leave one class weaker than the other; the line of a model that
        had them is then in the wrong place. Dictionaries stay as they are. `images` should be those
        of training, or others of their kind; `view`: of a panel, which one: the weights and the
        calibration of the whole stay as they are.
        """
        raise ValueError("it finds regions: there is no line between classes of images to fit")

    def tuned_on(self, images: Iterable[Path]) -> Self:
        """Return a copy with these images added to the last change of the decision.

        Call it on the result of `with_threshold`, `adapt_threshold` or `with_notes`, with the
        images that were used for the change, so that scores on these images are marked as tuned.
        """
        changed = copy(self)
        changed.training_info_ = with_images(self.training_info_, images)
        return changed

    def score_contributions(
        self,
        path: ImageLike,
        mpp: float | None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> list[ScoreContributions]:
        """What the models that decide together say of an image, the one that is shown first."""
        from ..explain.explanation import explain_model

        own = explain_model(self.model_, path, mpp, callback, within)
        return [] if own is None else [own]

    def explain(
        self,
        image: ImageLike | str,
        *,
        mpp: MppLike = None,
        within: AnnotationFile | None = None,
        callback: Callback = no_callback,
    ) -> Explanation:
        """The answer for one image in parts of the model's atoms, which add up to its score."""
        from ..explain.explanation import explain

        self._check_fitted()
        return explain(self, image, mpp=mpp, within=within, callback=callback)

    def describe_decision(self) -> str:
        """How it decides, for a model card."""
        raise NotImplementedError

    def true_label(self, record: ImageRecord) -> str:
        """What the record says the answer is."""
        raise NotImplementedError

    def predict_one(
        self,
        path: ImageLike | str,
        *,
        mpp: MppLike = None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> Any:
        """The answer for one image or slide: what `predict` asks for each."""
        raise NotImplementedError

    def to_model_data(self) -> ModelData:
        raise NotImplementedError

    @classmethod
    def from_model_data(cls, content: ModelData, n_jobs: int | None) -> Self:
        raise NotImplementedError

    # --- answers --------------------------------------------------------------------------------

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "training_info_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this model has learnt nothing yet: call fit first, or load one")

    def _assign_fitted(self, learnt: Self) -> Self:
        """Take over what a copy has learnt: a fit that fails leaves the model as it was."""
        self.__dict__ |= learnt.__dict__
        return self

    def _progress_callback(
        self, callback: Callback | None = None
    ) -> AbstractContextManager[Callback]:
        """Return a context with the callback given, else with progress bars if verbose."""
        if callback is None and self.verbose:
            return progress_bar()
        return nullcontext(callback or no_callback)

    def _predict(
        self, images: Any, mpp: MppLike, within: AnnotationInput | None = None, **how: Any
    ) -> Any:
        """One answer for one image; `Answers` for several."""
        self._check_fitted()
        found = resolve_inputs(images, within)
        for words in found.skipped:
            warnings.warn(words, stacklevel=3)  # to whoever called predict
        answers, given = [], PixelSizeOption.of(mpp)
        with self._progress_callback() as callback:
            callback(Progress("answer", 0, len(found.images)))
            for place, (image, table_mpp, inside) in enumerate(found.images):
                size = given.with_table(table_mpp)
                answer = self.predict_one(image, mpp=size, callback=callback, within=inside, **how)
                answers.append(answer)
                callback(Progress("answer", place + 1, len(found.images)))
        warn_assumed_pixel_sizes(answers, self)
        return answers[0] if found.is_one else Predictions(answers, self.columns)

    def score(self, images: LabelledImages) -> float:
        """Balanced accuracy over labelled images: the mean over classes of the share right.

        `images` as in `fit`. An image in which no tissue was found counts as wrong.
        """
        self._check_fitted()
        manifest = resolve_labelled(images)
        answers = self._predict(manifest, None)
        truth = [self.true_label(record) for record in manifest.records]
        return float(balanced_accuracy(np.array(truth), np.array(answers.labels)))

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: Path | str) -> Path:
        """Write the model; the folder must exist, an old file is replaced.

        Refuses what could not be read again, such as a dictionary that is not of finite numbers.
        """
        self._check_fitted()
        content = self.to_model_data()
        try:
            self.from_model_data(content, None)
        except ValueError as error:
            raise ValueError(
                f"{path}: this model is not saved, as it is broken: {error}"
            ) from error
        return write_model_data(content, Path(path))

    @classmethod
    def load(
        cls, path: Path | str, *, n_jobs: int | None = None, trust_weights: bool = False
    ) -> Self:
        """Read a model of this kind; `histodict.load` reads any, and says more."""
        model: Self = load_model_of_kind({cls.kind: cls}, Path(path), n_jobs, trust_weights)
        return model

    # --- atoms ----------------------------------------------------------------------------------

    def plot_atoms(self, n_atoms: int = 20, axes: Sequence[Axes] | None = None) -> Sequence[Axes]:
        """The first atoms of every class as pictures; matplotlib's axes, one per class.

        Most methods have their most used atoms first. Atoms of vectors that are no pictures are
        refused: `histodict atoms` shows the patches that use them.
        """
        pass

        self._check_fitted()
        return plot_atoms(self, n_atoms, axes)


def raise_no_predict_proba(model: ImageEstimator) -> NoReturn:
    """What to do for probabilities; as an AttributeError, so that `hasattr` tells."""
    raise AttributeError(
        f"{type(model).__name__} gives scores, which are not probabilities: fit an "
        "EnsembleClassifier, which "
        "learns them on unseen patients; EnsembleClassifier(['fast']) is one such model"
    )


_ACROSS = 10


def plot_atoms(model: Any, n_atoms: int, axes: Sequence[Axes] | None) -> Sequence[Axes]:
    """Per class of a fitted model the first `n_atoms` atoms, on these axes or on new ones."""
    check_whole_number("n_atoms", n_atoms, 1)
    own_model: ImagePipeline = model.model_
    classes, atoms = model.classes_, own_model.atoms()
    if atoms is None:
        raise ValueError(own_model.no_atoms_reason())
    if atoms.patch_px is None:
        raise ValueError(
            f"the atoms of {own_model.recipe.features} vectors are no pictures: the command "
            "`histodict atoms` shows the patches that use them"
        )
    if axes is None:
        from matplotlib import pyplot

        axes = list(pyplot.subplots(len(classes), 1, squeeze=False)[1][:, 0])
    for place, (name, ax) in enumerate(zip(classes, axes, strict=True)):
        own = atoms.with_usage_sign[atoms.classes == place]
        ax.imshow(atom_mosaic(own, atoms.patch_px, n_atoms, min(n_atoms, _ACROSS)))
        ax.set_title(f"{name}: {min(n_atoms, len(own))} of {len(own)} atoms", parse_math=False)
        ax.set_axis_off()
    return axes
