"""What methods with one dictionary per class begin with: labelled samples, then ODL on each class.

The same seed gives every method the same start, so methods differ by what they make of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ..dictionaries.online import OnlineDictionary, learn_online
from ..execution.progress import Callback, Progress
from .labelled_blocks import draw_samples, open_arrays

# Samples per class, at most, that the dictionaries are learnt from; they are held in memory.
_MOST_SAMPLES = 20_000


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
    samples = draw_samples(open_arrays(X, labels)(), labels, n_classes, _MOST_SAMPLES, rng)
    learnt = []
    for i, Y in enumerate(samples):

        def tell(done: int, total: int, before: int = i) -> None:
            if done or not before:  # the next class begins where the last one ended
                report(Progress(stage, before * total + done, n_classes * total))

        learnt.append(
            learn_online(
                Y,
                n_atoms,
                penalty,
                rng,
                n_epochs=n_epochs,
                n_jobs=n_jobs,
                backend=backend,
                callback=tell,
            )
        )
    return learnt
