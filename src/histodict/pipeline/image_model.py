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

from ..decisions.atom_evidence import AtomEvidence
from ..decisions.atom_notes import AtomNotes
from ..decisions.image_rules import Evidence, ImageRule
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, ignore
from ..images.annotations.drawing import Drawing
from ..images.feature_file import Origin, common_origin
from ..images.in_memory import ImageFile
from ..images.manifest import Manifest, Record
from ..images.pixel_size import common_size
from ..learnt_arrays import Learnt
from ..methods.registry import method_entry
from ..model_content import ModelContent
from ..networks import vectors_named
from ..patches.patch_map import PatchMap
from ..recipes import Recipe

# Hears of patches as they are judged: their rows and columns on the grid (n, 2), and their codes.
CodesTo = Callable[[NDArray[np.int64], csr_array], None]


@dataclass(frozen=True)
class Look:
    """What a model saw in an image: its scores, None on glass, and what they rest on."""

    scores: NDArray[np.float64] | None
    patch_map: PatchMap | None = None
    evidence: Evidence | None = None
    n_silent: int | None = None


@dataclass(frozen=True)
class Atoms:
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
    def as_used(self) -> NDArray[Any]:
        """The atoms as they are to be drawn: turned round where they are used so."""
        return self.D * self.signs[:, None].astype(self.D.dtype)


class ImageModel:
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
    origin_: Origin | None = None
    rule_: ImageRule | None = None
    codes_to: CodesTo | None = None
    notes: AtomNotes = AtomNotes()
    typical_: Sequence[AtomEvidence] = ()

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
        start_from: ImageModel | None,
    ) -> dict[str, Any]:
        """Learn to score images; what there is to say of the training, for the record."""
        raise NotImplementedError

    def _look_at_files(self, records: Sequence[Record]) -> None:
        """What the training images must have in common; a ValueError says what they have not."""
        self.origin_ = common_origin(record.path for record in records)
        given = vectors_named(self.recipe.vectors).are_given
        # The pixel size decides how an image is cut, and others have done that.
        self.mpp_ = None if given else common_size(records, self.recipe.mpp)

    def look(
        self,
        path: ImageFile,
        mpp: float | None = None,
        callback: Callback = ignore,
        within: Drawing | None = None,
    ) -> Look:
        """The callback hears how far it is in a slide; outside of `within` nothing is looked at."""
        raise NotImplementedError

    def project(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Vectors as the method sees them."""
        return vectors

    def atoms(self) -> Atoms | None:
        """The method's atoms, where it has such that belong to classes."""
        return None

    def why_no_atoms(self) -> str:
        return f"the method {self.recipe.method!r} looks at the image as a whole: it has no atoms"

    def with_notes(self, notes: AtomNotes) -> Self:
        """The same model with these notes of its atoms; those that are off no longer take part."""
        raise ValueError(self.why_no_atoms())

    def with_line(
        self, records: Sequence[Record], labels: NDArray[np.int64], callback: Callback
    ) -> Self:
        """The same model whose rule, from patches to an answer, is of these images."""
        raise ValueError(f"the method {self.recipe.method!r} has no rule of its own to fit again")

    def with_jobs(self, n_jobs: int | None) -> Self:
        """The same model, on so many threads."""
        changed = copy(self)
        changed.n_jobs = n_jobs
        return changed

    def with_codes_to(self, codes_to: CodesTo) -> Self:
        """The same model; whoever asks for it hears of all codes of an image, chunk by chunk."""
        changed = copy(self)
        changed.codes_to = codes_to
        return changed

    def new_method(self) -> Any:
        return method_entry(self.recipe.method).make(
            self.recipe.method_parameters, random_state=self.random_state, n_jobs=self.n_jobs
        )

    # --- for a model file -----------------------------------------------------------------------

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that was learnt, by name."""
        method = self.method_
        names = method.fitted_arrays
        return {f"method.{name}": np.asarray(getattr(method, name)) for name in names}

    def content(
        self, kind: str, decision: dict[str, float], training: dict[str, Any]
    ) -> ModelContent:
        """What a file holds of a model of this kind that decides so."""
        return ModelContent(
            kind=kind,
            classes=self.classes,
            recipe=self.recipe.to_dict(),
            mpp=self.mpp_,
            n_features=self.method_.n_features_in_,
            weights=vectors_named(self.recipe.vectors).weights(),
            decision=decision,
            training=training | ({"vectors": self.origin_.to_dict()} if self.origin_ else {}),
            atoms=self.notes.to_list(),
            arrays=self.arrays(),
        )

    def learnt(self) -> dict[str, Learnt]:
        """What the arrays beside those of the method must be."""
        return {}

    def rule_arrays(self) -> dict[str, Learnt]:
        """What the arrays of its rule over patches must be; a whole image needs none."""
        return {}

    def restore(self, content: ModelContent, others: Mapping[str, Learnt] | None = None) -> None:
        """The reverse of `content`; `others`: arrays that are not this model's own affair."""
        self.mpp_ = content.mpp
        told = content.training.get("vectors")
        self.origin_ = Origin.from_dict(told) if told else None
        self.recipe.check_method()
        method = method_entry(self.recipe.method).load()(**self.recipe.method_parameters)
        declared = {f"method.{name}": what for name, what in method.fitted_arrays.items()}
        content.check_arrays(declared | self.learnt() | dict(others or {}), self._sizes(method))
        for name in method.fitted_arrays:
            setattr(method, name, content.arrays[f"method.{name}"])
        method.classes_ = np.arange(len(self.classes))
        method.n_features_in_ = content.n_features
        self.method_ = method

    def _sizes(self, method: Any) -> dict[str, int | str]:
        """Numbers in the arrays' shapes that are known before there are arrays."""
        return {}
