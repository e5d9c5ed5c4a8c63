"""Feature vectors of whole images, computed in parallel and cached on disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..images.memory_image import ImageLike, cache_key, estimated_bytes
from ..utils.cache import ArrayCache
from ..utils.parallel import effective_n_jobs, map_processes, single_blas_thread
from ..utils.progress import Callback, Progress, cumulative_shares, no_callback
from .descriptors import Pixels, lbp_colour, luminance_thumbnail, plane_thumbnail
from .wndcharm import wndcharm_features

__all__ = ["FEATURES", "ImageFeatureExtractor", "LoadPixels", "Vector", "extract_image_features"]


@dataclass(frozen=True)
class ImageFeatureExtractor:
    """Function that computes a vector of fixed length from pixels (height, width, 3) uint8.

    Attributes
    ----------
    compute : function that returns the vector and the names of its entries
    version : part of the cache key; must be increased if the vectors of images change
    is_tile_mean : whether the vector of an image is the mean of the vectors of its tiles, except
        for effects at their borders
    """

    compute: Callable[[Pixels], tuple[NDArray[np.float64], list[str]]]
    version: int
    is_tile_mean: bool = False

    def __call__(self, pixels: Pixels) -> NDArray[np.float64]:
        """Return the vector of an image."""
        with single_blas_thread():
            return self.compute(pixels)[0]

    @cached_property
    def names(self) -> list[str]:
        """Names of the vector's entries."""
        return self.compute(np.zeros((1, 1, 3), np.uint8))[1]


FEATURES: dict[str, ImageFeatureExtractor] = {
    "wndcharm": ImageFeatureExtractor(wndcharm_features, version=2),
    "lbp-colour": ImageFeatureExtractor(lbp_colour, version=1, is_tile_mean=True),
    "luminance": ImageFeatureExtractor(luminance_thumbnail, version=1),
    "planes": ImageFeatureExtractor(plane_thumbnail, version=1),
}


LoadPixels = Callable[[ImageLike], Pixels]
Vector = NDArray[np.float64]


def extract_image_features(
    images: Sequence[ImageLike | str],
    name: str,
    load_pixels: LoadPixels,
    *,
    pixels_key: str,
    cache: ArrayCache | None = None,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
) -> Vector:
    """Return the feature vectors of all images, (n_images, n_features).

    Parameters
    ----------
    images : image files, or images in memory
    name : kind of features, a key of `FEATURES`
    load_pixels : function that returns the pixels (height, width, 3) uint8 of an image; it must be
        picklable, for use in other processes
    pixels_key : text that identifies `load_pixels` (scale, stain, …) in the cache key
    cache : cache of the vectors; None disables it
    n_jobs : number of processes; None for all cores
    callback : called with a `Progress` once for all cached images, then after each image that is
        not cached
    """
    if name not in FEATURES:
        raise ValueError(f"features must be one of {sorted(FEATURES)}, not {name!r}")
    sources = [Path(image) if isinstance(image, str) else image for image in images]
    length = len(FEATURES[name].names)
    keys = [_make_cache_key(image, name, pixels_key) if cache else [] for image in sources]
    vectors = [_read_cached_vector(cache, key, length) if cache else None for key in keys]
    missing = [i for i, vector in enumerate(vectors) if vector is None]
    n_cached = len(sources) - len(missing)
    fractions = cumulative_shares([estimated_bytes(sources[i]) for i in missing])
    callback(Progress("features", n_cached, len(sources), work=fractions[0]))
    jobs = [(sources[i], name, load_pixels, cache, keys[i]) for i in missing]
    with closing(_run_jobs(jobs, n_jobs)) as results:
        for n, (i, vector) in enumerate(zip(missing, results, strict=True), start=1):
            vectors[i] = vector
            callback(Progress("features", n_cached + n, len(sources), work=fractions[n]))
    return np.array(vectors, np.float64).reshape(len(sources), length)


def _make_cache_key(image: ImageLike, name: str, pixels_key: str) -> list[Any]:
    """Return a cache key of everything on which the vector of an image depends."""
    return [name, FEATURES[name].version, pixels_key, *cache_key(image)]


def _read_cached_vector(cache: ArrayCache, key: list[Any], length: int) -> Vector | None:
    """Return the cached vector; None if it is missing or invalid.

    A valid vector is finite, and has the expected `length` and dtype.
    """
    vector = cache.read(key)
    if vector is None or vector.shape != (length,) or vector.dtype != np.float64:
        return None
    return vector if np.isfinite(vector).all() else None


_Job = tuple[ImageLike, str, LoadPixels, ArrayCache | None, list[Any]]


def _run_jobs(jobs: list[_Job], n_jobs: int | None) -> Generator[Vector, None, None]:
    """Yield the vector of each job in order; if the generator is closed, wait for running jobs."""
    n_processes = min(effective_n_jobs(n_jobs), len(jobs))
    if n_processes < 2:
        yield from (_compute_vector(*job) for job in jobs)
        return
    from joblib import delayed

    pending = iter(jobs)
    results = map_processes((delayed(_compute_vector)(*job) for job in pending), n_processes)
    try:
        for vector in results:  # noqa: UP028 (`yield from` would close `results` first)
            yield vector
    finally:
        # Abandoned jobs would break joblib's processes; their results are cached.
        deque(pending, maxlen=0)
        deque(results, maxlen=0)


def _compute_vector(
    image: ImageLike, name: str, load_pixels: LoadPixels, cache: ArrayCache | None, key: list[Any]
) -> Vector:
    vector = FEATURES[name](load_pixels(image))
    if cache:
        cache.write(key, vector)
    return vector
