"""What methods with one dictionary per class begin with: labelled samples, then ODL on each class.

The same seed gives every method the same start, so methods differ by what they make of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ..dictionaries.atoms import initial_atoms
from ..dictionaries.online import OnlineDictionary, continue_online, count_batches
from ..execution.local import single_blas_thread
from ..execution.progress import Callback, Progress
from ..execution.side_by_side import run_concurrently
from ..kernels import load_backend
from .labelled_blocks import draw_samples, open_arrays

# Samples per class, at most, that the dictionaries are learnt from; they are held in memory.
_MAX_SAMPLES = 20_000


def check_labelled(
    estimator: BaseEstimator, X: ArrayLike, y: ArrayLike
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Samples, the sorted classes, and every sample's place among them; at least two classes."""
    samples, targets = validate_data(estimator, X, y, dtype=[np.float64, np.float32])
    check_classification_targets(targets)
    classes, labels = np.unique(targets, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(
            f"{type(estimator).__name__} compares classes, but y has only one class: "
            f"{classes.tolist()}"
        )
    return samples, classes, labels.astype(np.int64)


def make_rng(random_state: Any) -> np.random.Generator:
    """The generator that stands for a `random_state` in scikit-learn's sense."""
    return np.random.default_rng(check_random_state(random_state).randint(2**31, size=4))


def learn_class_dictionaries(
    X: NDArray[Any],
    labels: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    n_atoms: int,
    penalty: float,
    n_epochs: int = 5,
    n_jobs: int | None,
    backend: str,
    stage: str,
    report: Callback,
) -> list[OnlineDictionary]:
    """Online dictionary learning on the samples of each class; labels from 0 without gaps."""
    n_classes = int(labels.max()) + 1
    samples = draw_samples(open_arrays(X, labels)(), labels, n_classes, _MAX_SAMPLES, rng)
    return learn_per_class(
        samples,
        rng,
        n_atoms=n_atoms,
        penalty=penalty,
        n_epochs=n_epochs,
        n_jobs=n_jobs,
        backend=backend,
        stage=stage,
        report=report,
    )


def learn_per_class(
    samples: Sequence[NDArray[Any]],
    rng: np.random.Generator,
    *,
    n_atoms: int,
    penalty: float,
    n_epochs: int = 5,
    n_jobs: int | None,
    backend: str,
    stage: str,
    report: Callback,
) -> list[OnlineDictionary]:
    """Online dictionary learning on each class's samples, which are in random order.

    The classes are learnt side by side: between two mini-batches there is work for one thread only.
    """
    n_threads = load_backend(backend).count_threads(n_jobs)
    n_beside = min(n_threads, len(samples))
    with single_blas_thread():
        starts = [initial_atoms(Y, n_atoms, rng) for Y in samples]
    total = sum(count_batches(len(Y), n_epochs) for Y in samples)
    done = itertools.count()

    def tell() -> None:
        report(Progress(stage, next(done), total))

    def learn(D: NDArray[Any], Y: NDArray[Any], step: Callable[[], None]) -> OnlineDictionary:
        return continue_online(
            D,
            Y,
            penalty,
            n_epochs=n_epochs,
            n_jobs=-(-n_threads // n_beside),
            backend=backend,
            step=step,
        )

    tell()
    tasks = [partial(learn, D, Y) for D, Y in zip(starts, samples, strict=True)]
    return run_concurrently(tasks, tell, n_beside)
