"""What stands between a method and an image file: of patches, or of the image as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..decisions.atom_evidence import AtomReference
from ..decisions.atom_notes import AtomAnnotations
from ..decisions.image_rules import Aggregator, PatchStatistics
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, no_callback
from ..images.annotations.drawing import AnnotationFile
from ..images.feature_file import FeatureMetadata, common_metadata
from ..images.in_memory import ImageLike
from ..images.manifest import ImageRecord, Manifest
from ..images.survey import common_size
from ..learnt_arrays import ArraySpec
from ..methods.registry import get_method
from ..model_content import ModelData
from ..networks import get_patch_features
from ..patches.patch_map import PatchMap
from ..recipes import Recipe

# Hears of patches as they are judged: their rows and columns on the grid (n, 2), and their codes.
CodeCallback = Callable[[NDArray[np.int64], csr_array], None]


@dataclass(frozen=True)
class ImageScores:
    """What a model saw in an image: its scores, None on glass, and what they rest on."""

    scores: NDArray[np.float64] | None
    patch_map: PatchMap | None = None
    patch_statistics: PatchStatistics | None = None
    n_abstaining: int | None = None


@dataclass(frozen=True)
class AtomTable:
    """The atoms that codes are over, where the method has such: D (n, n_features), their classes.

    `patch_px` is the side of the pictures that they are; None for vectors that are no pictures.
    `signs`: in which training patches of its class use an atom.
    """

    D: NDArray[Any]
    classes: NDArray[np.int64]
    patch_px: int | None
    signs: NDArray[np.float64]

    def digest(self, atom: int) -> str:
        """Tells an atom from those of other models that go by the same label."""
        numbers = np.ascontiguousarray(self.D[atom], "<f4").tobytes()
        return hashlib.sha256(numbers).hexdigest()[:16]

    @property
    def with_usage_sign(self) -> NDArray[Any]:
        """The atoms as they are to be drawn: turned round where they are used so."""
        return self.D * self.signs[:, None].astype(self.D.dtype)


class ImagePipeline:
    """A method with everything between it and an image file.

    Attributes
    ----------
    method_ : the trained method
    mpp_ : pixel size of the training images, where all have the same
    origin_ : of feature files, how their vectors were made; None where it learnt from images
    rule_ : from the patches' answers to the image's; None for a method of the whole image
    codes_to : who hears of the codes of an image's patches, which nobody keeps
    notes : what people have said of its atoms
    typical_ : per class what its training patches say, atom by atom; empty for a method of the
        whole image
    """

    method_: Any
    mpp_: float | None
    feature_metadata_: FeatureMetadata | None = None
    aggregator_: Aggregator | None = None
    code_callback: CodeCallback | None = None
    atom_annotations: AtomAnnotations = AtomAnnotations()
    class_reference_: Sequence[AtomReference] = ()

    def __init__(
        self,
        recipe: Recipe,
        classes: list[str],
        random_state: int,
        n_jobs: int | None,
        cache: ArrayCache | None = None,
    ) -> None:
        self.recipe = recipe
        self.classes = classes
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = cache

    def fit_images(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: ImagePipeline | None,
    ) -> dict[str, Any]:
        """Learn to score images; what there is to say of the training, for the record."""
        raise NotImplementedError

    def _check_training_files(self, records: Sequence[ImageRecord]) -> None:
        """What the training images must have in common; a ValueError says what they have not."""
        self.feature_metadata_ = common_metadata(record.path for record in records)
        given = get_patch_features(self.recipe.features).is_precomputed
        # The pixel size decides how an image is cut, and others have done that.
        self.mpp_ = None if given else common_size(records, self.recipe.mpp)

    def score_image(
        self,
        path: ImageLike,
        mpp: float | None = None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> ImageScores:
        """The callback hears how far it is in a slide; outside of `within` nothing is looked at."""
        raise NotImplementedError

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors as the method sees them."""
        return vectors

    def atoms(self) -> AtomTable | None:
        """The method's atoms, where it has such that belong to classes."""
        return None

    def no_atoms_reason(self) -> str:
        return f"the method {self.recipe.method!r} looks at the image as a whole: it has no atoms"

    def with_atom_annotations(self, notes: AtomAnnotations) -> Self:
        """The same model with these notes of its atoms; those that are off no longer take part."""
        raise ValueError(self.no_atoms_reason())

    def refit_decision_rule(
        self, records: Sequence[ImageRecord], labels: NDArray[np.int64], callback: Callback
    ) -> Self:
        """The same model whose rule, from patches to an answer, is of these images."""
        raise ValueError(f"the method {self.recipe.method!r} has no rule of its own to fit again")

    def with_jobs(self, n_jobs: int | None) -> Self:
        """The same model, on so many threads."""
        changed = copy(self)
        changed.n_jobs = n_jobs
        return changed

    def with_code_callback(self, codes_to: CodeCallback) -> Self:
        """The same model; whoever asks for it hears of all codes of an image, chunk by chunk."""
        changed = copy(self)
        changed.code_callback = codes_to
        return changed

    def make_method(self) -> Any:
        return get_method(self.recipe.method).make(
            self.recipe.method_parameters, random_state=self.random_state, n_jobs=self.n_jobs
        )

    # --- for a model file -----------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was learnt, by name."""
        method = self.method_
        names = method.fitted_arrays
        return {f"method.{name}": np.asarray(getattr(method, name)) for name in names}

    def content(self, kind: str, decision: dict[str, float], training: dict[str, Any]) -> ModelData:
        """What a file holds of a model of this kind that decides so."""
        return ModelData(
            kind=kind,
            classes=self.classes,
            recipe=self.recipe.to_dict(),
            mpp=self.mpp_,
            n_features=self.method_.n_features_in_,
            weights=get_patch_features(self.recipe.features).weights(),
            decision_parameters=decision,
            training_info=training
            | ({"vectors": self.feature_metadata_.to_dict()} if self.feature_metadata_ else {}),
            atom_annotations=self.atom_annotations.to_list(),
            arrays=self.arrays(),
        )

    def array_schema(self) -> dict[str, ArraySpec]:
        """What the arrays beside those of the method must be."""
        return {}

    def aggregator_schema(self) -> dict[str, ArraySpec]:
        """What the arrays of its rule over patches must be; a whole image needs none."""
        return {}

    def load_state(self, content: ModelData, others: Mapping[str, ArraySpec] | None = None) -> None:
        """The reverse of `content`; `others`: arrays that are not this model's own affair."""
        self.mpp_ = content.mpp
        told = content.training_info.get("vectors")
        self.feature_metadata_ = FeatureMetadata.from_dict(told) if told else None
        self.recipe.check_method()
        method = get_method(self.recipe.method).load()(**self.recipe.method_parameters)
        declared = {f"method.{name}": what for name, what in method.fitted_arrays.items()}
        content.check_arrays(
            declared | self.array_schema() | dict(others or {}), self._sizes(method)
        )
        for name in method.fitted_arrays:
            setattr(method, name, content.arrays[f"method.{name}"])
        method.classes_ = np.arange(len(self.classes))
        method.n_features_in_ = content.n_features
        self.method_ = method

    def _sizes(self, method: Any) -> dict[str, int | str]:
        """Numbers in the arrays' shapes that are known before there are arrays."""
        return {}
