"""DFDL as a step of a scikit-learn pipeline on existing features, with settings chosen by patient.

The input can be any table of vectors: encoder features, measurements of nuclei, or the rows of an
AnnData table. This example generates vectors: each class has a few directions of its own, all
classes share some others, and every patient has an offset, so that accuracy on training patients is
optimistic.

    python examples/sklearn_pipeline.py
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler

from histodict import DFDL

N_PATIENTS, PER_PATIENT, N_FEATURES = 20, 40, 64


def draw_features(rng: np.random.Generator) -> tuple[NDArray, NDArray, NDArray]:
    """Return vectors of patches (n, N_FEATURES), their labels and their patients."""
    own = rng.standard_normal((2, 5, N_FEATURES))
    shared = rng.standard_normal((5, N_FEATURES))
    X, y, patients = [], [], []
    for patient in range(N_PATIENTS):
        label = patient % 2
        shift = 0.3 * rng.standard_normal(N_FEATURES)
        weights = rng.standard_normal((PER_PATIENT, 10)) * (rng.random((PER_PATIENT, 10)) < 0.4)
        noise = 1.2 * rng.standard_normal((PER_PATIENT, N_FEATURES))
        X.append(weights @ np.concatenate([own[label], shared]) + shift + noise)
        y += [("healthy", "inflamed")[label]] * PER_PATIENT
        patients += [patient] * PER_PATIENT
    return np.concatenate(X).astype(np.float32), np.array(y), np.array(patients)


def search() -> GridSearchCV:
    """Return a grid search over settings of DFDL, with vectors standardised and normalised.

    Folds are by patient and contain patients of both classes.
    """
    steps = make_pipeline(StandardScaler(), Normalizer(), DFDL(n_iter=5, random_state=0))
    choices = {"dfdl__n_atoms": [4, 16], "dfdl__penalty": [0.1, 0.3]}
    by_patient = StratifiedGroupKFold(4)
    return GridSearchCV(steps, choices, cv=by_patient, scoring="balanced_accuracy")


def main() -> tuple[dict[str, object], float]:
    X, y, patients = draw_features(np.random.default_rng(0))
    train, test = next(StratifiedGroupKFold(3).split(X, y, patients))
    found = search().fit(X[train], y[train], groups=patients[train])
    score = found.score(X[test], y[test])
    print(f"Best of {len(found.cv_results_['params'])} settings, by patient: {found.best_params_}")
    print(f"Balanced accuracy of patches of unseen patients: {score:.3f}")
    codes, _ = found.best_estimator_[-1].encode(found.best_estimator_[:-1].transform(X[test]))
    print(f"A patch is coded with {codes.nnz / codes.shape[0]:.1f} of {codes.shape[1]} atoms")
    return found.best_params_, score


if __name__ == "__main__":
    main()
