"""Methods that see an image as one vector: features of the whole image, then a classifier."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import check_scores
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.local import map_blocks
from ..execution.progress import Callback, Progress, no_callback
from ..images.annotations.drawing import AnnotationFile
from ..images.feature_file import FeatureMetadata
from ..images.in_memory import ImageLike
from ..images.manifest import Manifest
from ..images.readers import ImageError
from ..methods.registry import MEAN_VECTOR, get_method
from ..patches.grid import PatchGrid
from ..recipes import Recipe
from .image_model import ImagePipeline, ImageScores
from .opening import open_prepared_image
from .view import PreparedImage, no_tissue_message, warn_no_tissue

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
        from ..features import FEATURES  # brings the image libraries
        from ..features.cache import image_features

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
    from ..features import FEATURES  # brings the image libraries

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
