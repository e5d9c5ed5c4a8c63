"""DFDL as a step of scikit-learn, after features that you have: settings chosen by patient.

Any table of vectors will do: cells of an encoder, measurements of nuclei, the rows of an AnnData
table. Here they are drawn: every class leans on a few directions of its own, all share some others,
and every patient is a little off, so that patients that were trained on look easier than they are.

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
    """Vectors (n, N_FEATURES) of patches, what each is, and whose it is."""
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
    """Vectors of the same spread and length, then DFDL.

    No patient is on both sides of a fold, and every fold has patients of both classes.
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
    print(f"A patch is written with {codes.nnz / codes.shape[0]:.1f} of {codes.shape[1]} atoms")
    return found.best_params_, score


if __name__ == "__main__":
    main()
