"""Features of many images: each computed once, kept on disk, on all cores.

One `.npy` file per image, named after all that decides its numbers: the file (place, size, time of
change), what was done to its pixels, and the features with their version. A file is complete or not
there; one that cannot be read is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..execution.local import count_jobs
from ..execution.progress import Callback, Progress, ignore
from . import FEATURES
from .pixels import Pixels

LoadPixels = Callable[[Path], Pixels]
Vector = NDArray[np.float64]


def image_features(
    paths: Sequence[Path | str],
    name: str,
    load_pixels: LoadPixels,
    *,
    pixels_key: str,
    cache_folder: Path | str | None = None,
    n_jobs: int | None = None,
    callback: Callback = ignore,
) -> Vector:
    """The features of every image: (n_images, n_features).

    Parameters
    ----------
    paths : image files
    name : which features, of `FEATURES`
    load_pixels : path to pixels (height, width, 3) uint8; with several jobs it is sent to other
        processes: up to 40 % of the work holds Python's lock, where threads wait for each other
    pixels_key : says what load_pixels does (scale, stain, …); other words, other files
    cache_folder : made if it is not there; None keeps nothing
    n_jobs : processes; None for all cores
    callback : gets a `Progress` of the stage "features": once for all images that were there, then
        after every image
    """
    if name not in FEATURES:
        raise ValueError(f"features must be one of {sorted(FEATURES)}, not {name!r}")
    images = [Path(path) for path in paths]
    length = len(FEATURES[name].names)
    files = [_cache_file(image, name, pixels_key, cache_folder) for image in images]
    vectors = [_read(file, length) for file in files]
    missing = [i for i, vector in enumerate(vectors) if vector is None]
    done = len(images) - len(missing)
    if done:
        callback(Progress("features", done, len(images)))
    jobs = [(images[i], name, load_pixels, files[i]) for i in missing]
    with closing(_run(jobs, n_jobs)) as results:
        for i, vector in zip(missing, results, strict=True):
            vectors[i] = vector
            done += 1
            callback(Progress("features", done, len(images)))
    found = [vector for vector in vectors if vector is not None]
    return np.stack(found) if found else np.empty((0, length))


_Job = tuple[Path, str, LoadPixels, Path | None]


def _run(jobs: list[_Job], n_jobs: int | None) -> Generator[Vector, None, None]:
    """One vector per job, in order; closed early, it ends what is under way and starts no more."""
    n_processes = min(count_jobs(n_jobs), len(jobs))
    if n_processes < 2:
        yield from (_compute(*job) for job in jobs)
        return
    # Of the ways to start processes, joblib's alone needs no `if __name__ == "__main__":` in the
    # user's script.
    from joblib import Parallel, delayed

    waiting = iter(jobs)
    parallel = Parallel(n_processes, backend="loky", return_as="generator", batch_size=1)
    results = parallel(delayed(_compute)(*job) for job in waiting)
    try:
        for vector in results:  # noqa: UP028 (`yield from` would close `results` first)
            yield vector
    finally:
        # Work that is dropped breaks joblib's processes: let it end, it is kept in the cache.
        deque(waiting, maxlen=0)
        deque(results, maxlen=0)


def _compute(image: Path, name: str, load_pixels: LoadPixels, file: Path | None) -> Vector:
    vector = FEATURES[name](load_pixels(image))
    if file is not None:
        _write(file, vector)
    return vector


def _cache_file(image: Path, name: str, pixels_key: str, folder: Path | str | None) -> Path | None:
    if folder is None:
        return None
    state = image.stat()
    place = str(image.resolve())
    decided_by = [place, state.st_size, state.st_mtime_ns, pixels_key, FEATURES[name].version]
    digest = hashlib.sha256(json.dumps(decided_by).encode()).hexdigest()
    return Path(folder) / f"{name}-{digest[:32]}.npy"


def _read(file: Path | None, length: int) -> Vector | None:
    """What the file holds, if it holds a vector of this length."""
    if file is None or not file.is_file():
        return None
    try:
        vector = np.load(file, allow_pickle=False)
    except (ValueError, OSError, EOFError):
        return None
    whole = vector.shape == (length,) and vector.dtype == np.float64 and np.isfinite(vector).all()
    return vector if whole else None


def _write(file: Path, vector: Vector) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.{uuid.uuid4().hex}.partial")
    try:
        with partial.open("wb") as stream:
            np.save(stream, vector, allow_pickle=False)
        os.replace(partial, file)
    finally:
        partial.unlink(missing_ok=True)
