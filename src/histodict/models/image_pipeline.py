"""What stands between a method and an image file: of patches, or of the image as a whole.

Methods that see an image as one vector: features of the whole image, then a classifier.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..annotations.annotation_file import AnnotationFile
from ..datasets.manifest import ImageRecord, Manifest
from ..datasets.survey import common_size
from ..decision.aggregation import Aggregator, PatchStatistics, check_scores
from ..decision.atom_annotations import AtomAnnotations, AtomReference
from ..encoders import get_patch_features
from ..images.memory_image import ImageLike
from ..images.source import ImageError
from ..methods.registry import MEAN_VECTOR, get_method
from ..patches.grid import PatchGrid
from ..patches.patch_map import PatchMap
from ..precomputed.feature_file import FeatureMetadata, common_metadata
from ..utils.array_schema import ArraySpec
from ..utils.cache import ArrayCache
from ..utils.parallel import Executor, map_blocks
from ..utils.progress import Callback, Progress, no_callback
from .model_file import ModelData
from .prepared_image import PreparedImage, no_tissue_message, open_prepared_image, warn_no_tissue
from .recipe import Recipe

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


_MAX_PIXELS = 50_000_000
# Of an image with more pixels, so many squares of tissue stand for all of it.
_N_SQUARES, _SQUARE_PX = 64, 512


class WholeImagePipeline(ImagePipeline):
    """A classifier of image vectors with everything that stands between it and an image file."""

    def fit_images(
        self,
        manifest: Manifest,
        labels: NDArray[np.int64],
        callback: Callback,
        executor: Executor | None,
        start_from: ImagePipeline | None,
    ) -> dict[str, Any]:
        """One vector per image, all of them kept; then the method's own training."""
        if start_from is not None:
            raise ValueError(f"the method {self.recipe.method!r} cannot go on from another model")
        records = manifest.records
        for record in records:
            self._check_whole(record.path, record.region_of_interest)
        self._check_training_files(records)
        X = self._features({r.path: r.mpp for r in records}, None, callback)
        seen = ~np.isnan(X[:, 0])  # the others show only glass
        blank = np.setdiff1d(labels, labels[seen])
        if len(blank):
            name = records[int(np.argmax(labels == blank[0]))].label
            raise ValueError(no_tissue_message(f"any image of class {name!r}", self.recipe))
        warn_no_tissue([record for record, there in zip(records, seen, strict=True) if not there])
        for row in np.flatnonzero(seen):
            check_scores(records[row].path, X[row])
        self.method_ = self.make_method().fit(X[seen], labels[seen], callback=callback)
        return {}

    def score_image(
        self,
        path: ImageLike,
        mpp: float | None = None,
        callback: Callback = no_callback,
        within: AnnotationFile | None = None,
    ) -> ImageScores:
        """The method's decision values; None where there is only glass, if it leaves glass out."""
        self._check_whole(path, within)
        X = self._features({path: mpp}, self.mpp_)
        if np.isnan(X[0, 0]):
            return ImageScores(None)
        check_scores(path, X)
        values = np.asarray(self.method_.decision_function(X), dtype=np.float64)
        check_scores(path, values)
        return ImageScores(np.atleast_1d(values[0]))

    def _check_whole(self, path: ImageLike, within: AnnotationFile | None) -> None:
        if within is not None:
            raise ImageError(
                f"{path}: the method {self.recipe.method!r} looks at the image as a whole, and not "
                f"at what {within.path} outlines: use a method that works on patches"
            )

    def _features(
        self,
        images: dict[ImageLike, float | None],
        trained_mpp: float | None,
        callback: Callback = no_callback,
    ) -> NDArray[np.float64]:
        features = get_method(self.recipe.method).features
        assert features is not None
        if features == MEAN_VECTOR:
            work = partial(
                _mean_vector, self.recipe, trained_mpp, self.cache, self.feature_metadata_
            )
            means: list[NDArray[np.float64]] = []
            callback(Progress("features", 0, len(images)))
            for mean in map_blocks(lambda item: work(*item), images.items(), self.n_jobs):
                means.append(mean)
                callback(Progress("features", len(means), len(images)))
            n_features = max(len(mean) for mean in means)
            X = np.full((len(means), n_features), np.nan)
            for row, mean in zip(X, means, strict=True):
                row[: len(mean)] = mean  # of glass, one NaN
            return X
        from ..image_features import FEATURES, image_features

        recipe = self.recipe
        reduction: list[Any] = [recipe.stain, recipe.downsample]
        if recipe.mpp is not None:
            reduction = [recipe.stain, recipe.mpp, sorted({str(mpp) for mpp in images.values()})]
        if FEATURES[features].of_parts:  # and so a slide is seen in part
            reduction += [recipe.min_tissue_fraction, _N_SQUARES, _SQUARE_PX]
        return image_features(
            list(images),
            features,
            partial(_whole, images, recipe, trained_mpp),
            pixels_key=json.dumps(reduction),
            cache=self.cache,
            n_jobs=self.n_jobs,
            callback=callback,
        )


def _whole(
    images: dict[ImageLike, float | None],
    recipe: Recipe,
    trained_mpp: float | None,
    path: ImageLike,
) -> NDArray[np.uint8]:
    """All pixels of an image, reduced and stain-normalised; of a slide, some of its tissue."""
    from ..image_features import FEATURES

    with open_prepared_image(path, images[path], recipe, trained_mpp) as view:
        width, height = view.content.size
        if width * height <= _MAX_PIXELS * view.downsample**2:
            pixels = view.content.read(0, 0, width, height, view.downsample)
            return view.normalise(pixels[None])[0]
        if not FEATURES[str(get_method(recipe.method).features)].of_parts:
            raise ImageError(
                f"{path}: {width} x {height} pixels are too many for a method that looks at the "
                "image as a whole: use a method that works on patches, or a larger downsample"
            )
        return _mosaic(path, view, recipe.min_tissue_fraction)


def _mosaic(path: ImageLike, view: PreparedImage, least_tissue: float) -> NDArray[np.uint8]:
    """Squares of tissue from all over a slide, one below the other; the same ones each time."""
    grid = PatchGrid.covering(view.content.size, _SQUARE_PX, _SQUARE_PX, view.downsample)
    squares: list[NDArray[np.uint8]] = []
    fullest, most = None, 0.0  # where tissue is so scattered that no square is full of it
    for place in np.random.default_rng(0).permutation(grid.n_rows * grid.n_columns).tolist():
        row, column = divmod(place, grid.n_columns)
        square = grid.read(view.content, slice(row, row + 1), slice(column, column + 1))
        share = float(view.tissue_fraction(square)[0])
        if share >= least_tissue:
            squares.append(view.normalise(square)[0])
        elif share > most:
            fullest, most = square, share
        if len(squares) == _N_SQUARES:
            break
    if squares:
        return np.concatenate(squares)
    if fullest is None:
        raise ImageError(f"{path}: shows no tissue")
    return view.normalise(fullest)[0]


def _mean_vector(
    recipe: Recipe,
    trained_mpp: float | None,
    cache: ArrayCache | None,
    origin: FeatureMetadata | None,
    path: ImageLike,
    mpp: float | None,
) -> NDArray[np.float64]:
    """The mean of the vectors of an image's patches on tissue; NaN where there is none."""
    total, n_patches = np.zeros(1), 0
    with open_prepared_image(path, mpp, recipe, trained_mpp, cache, origin) as view:
        grid = view.grid()
        for chunk in view.chunks(grid):
            _, vectors = view.chunk_features(grid, *chunk)
            if len(vectors):
                total = total + vectors.sum(axis=0, dtype=np.float64)
                n_patches += len(vectors)
    return total / n_patches if n_patches else np.full(1, np.nan)
