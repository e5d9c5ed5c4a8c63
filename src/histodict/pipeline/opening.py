"""An image, or the feature file that stands for one, opened as a recipe sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..execution.array_cache import ArrayCache
from ..images.annotations.drawing import AnnotationFile
from ..images.feature_file import FeatureMetadata, is_feature_file, open_features
from ..images.in_memory import ImageLike, cache_key, stable_cache_key
from ..images.readers import open_image
from ..recipes import Recipe
from .given_view import PrecomputedImage
from .view import PreparedImage


@contextmanager
def open_prepared_image(
    path: ImageLike,
    mpp: float | None,
    recipe: Recipe,
    trained_mpp: float | None = None,
    cache: ArrayCache | None = None,
    trained: FeatureMetadata | None = None,
    within: AnnotationFile | None = None,
) -> Iterator[PreparedImage]:
    """The image at `path`; mpp overrides its pixel size, trained_mpp is what it must match.

    `trained`: of a feature file, how the vectors were made that it must match. `within`: outlines
    outside of which nothing is looked at.
    """
    if isinstance(path, Path) and is_feature_file(path):
        with open_features(path) as file:
            yield PrecomputedImage(file, recipe, mpp, trained, within)
        return
    # First: it may be replaced while it is open.
    key = cache_key(path) if cache else stable_cache_key(path)
    with open_image(path, mpp) as source:
        yield PreparedImage(source, recipe, trained_mpp, cache, key, within)
