"""What stands for a whole image: the step from pixels to one vector, exchangeable by name.

Features of many images: each computed once, kept on disk, on all cores.
"""

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
from ..utils.parallel import count_jobs, map_processes, single_blas_thread
from ..utils.progress import Callback, Progress, cumulative_shares, no_callback
from .descriptors import Pixels, lbp_colour, luminance_thumbnail, plane_thumbnail
from .wndcharm import wndcharm_features

__all__ = ["FEATURES", "ImageFeatureExtractor", "LoadPixels", "Vector", "image_features"]


@dataclass(frozen=True)
class ImageFeatureExtractor:
    """Pixels (height, width, 3) uint8 to a vector whose length does not depend on the image.

    `version` goes up whenever an image gets other numbers than before. `of_parts`: the vector of
    an image is the mean of those of its parts, but for their borders.
    """

    compute: Callable[[Pixels], tuple[NDArray[np.float64], list[str]]]
    version: int
    of_parts: bool = False

    def __call__(self, pixels: Pixels) -> NDArray[np.float64]:
        with single_blas_thread():
            return self.compute(pixels)[0]

    @cached_property
    def names(self) -> list[str]:
        """What the entries of the vector are."""
        return self.compute(np.zeros((1, 1, 3), np.uint8))[1]


FEATURES: dict[str, ImageFeatureExtractor] = {
    "wndcharm": ImageFeatureExtractor(wndcharm_features, version=2),
    "lbp-colour": ImageFeatureExtractor(lbp_colour, version=1, of_parts=True),
    "luminance": ImageFeatureExtractor(luminance_thumbnail, version=1),
    "planes": ImageFeatureExtractor(plane_thumbnail, version=1),
}


LoadPixels = Callable[[ImageLike], Pixels]
Vector = NDArray[np.float64]


def image_features(
    paths: Sequence[ImageLike | str],
    name: str,
    load_pixels: LoadPixels,
    *,
    pixels_key: str,
    cache: ArrayCache | None = None,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
) -> Vector:
    """The features of every image: (n_images, n_features).

    Parameters
    ----------
    paths : image files
    name : which features, of `FEATURES`
    load_pixels : path to pixels (height, width, 3) uint8; with several jobs it is sent to other
        processes: up to 40 % of the work holds Python's lock, where threads wait for each other
    pixels_key : says what load_pixels does (scale, stain, …); other words, other files
    cache : keeps the vectors; None keeps nothing
    n_jobs : processes; None for all cores
    callback : hears of "features": once of all images that were there, then of every other one
    """
    if name not in FEATURES:
        raise ValueError(f"features must be one of {sorted(FEATURES)}, not {name!r}")
    images = [Path(path) if isinstance(path, str) else path for path in paths]
    length = len(FEATURES[name].names)
    keys = [_key(image, name, pixels_key) if cache else [] for image in images]
    vectors = [_read(cache, key, length) if cache else None for key in keys]
    missing = [i for i, vector in enumerate(vectors) if vector is None]
    n_there = len(images) - len(missing)
    share = cumulative_shares([estimated_bytes(images[i]) for i in missing])
    callback(Progress("features", n_there, len(images), work=share[0]))
    jobs = [(images[i], name, load_pixels, cache, keys[i]) for i in missing]
    with closing(_run(jobs, n_jobs)) as results:
        for n, (i, vector) in enumerate(zip(missing, results, strict=True), start=1):
            vectors[i] = vector
            callback(Progress("features", n_there + n, len(images), work=share[n]))
    return np.array(vectors, np.float64).reshape(len(images), length)


def _key(image: ImageLike, name: str, pixels_key: str) -> list[Any]:
    """All that decides an image's vector."""
    return [name, FEATURES[name].version, pixels_key, *cache_key(image)]


def _read(cache: ArrayCache, key: list[Any], length: int) -> Vector | None:
    """What the cache holds, if it is a vector of this length."""
    vector = cache.read(key)
    if vector is None or vector.shape != (length,) or vector.dtype != np.float64:
        return None
    return vector if np.isfinite(vector).all() else None


_Job = tuple[ImageLike, str, LoadPixels, ArrayCache | None, list[Any]]


def _run(jobs: list[_Job], n_jobs: int | None) -> Generator[Vector, None, None]:
    """One vector per job, in order; closed early, it ends what is under way and starts no more."""
    n_processes = min(count_jobs(n_jobs), len(jobs))
    if n_processes < 2:
        yield from (_compute(*job) for job in jobs)
        return
    from joblib import delayed

    waiting = iter(jobs)
    results = map_processes((delayed(_compute)(*job) for job in waiting), n_processes)
    try:
        for vector in results:  # noqa: UP028 (`yield from` would close `results` first)
            yield vector
    finally:
        # Work that is dropped breaks joblib's processes: let it end, it is kept in the cache.
        deque(waiting, maxlen=0)
        deque(results, maxlen=0)


def _compute(
    image: ImageLike, name: str, load_pixels: LoadPixels, cache: ArrayCache | None, key: list[Any]
) -> Vector:
    vector = FEATURES[name](load_pixels(image))
    if cache:
        cache.write(key, vector)
    return vector
