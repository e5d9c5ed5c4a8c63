"""Measures of a dictionary on patients without influence on its training.

The patients of a set are split into halves. Each half is used for training, from the mean of the
vectors to the classifier of the codes, and tested on the other half.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from histodict.dictionaries.atoms import match_atoms, normalize
from histodict.kernels import encode_omp

from .concept_cells import Cells, halves
from .concept_learners import N_NONZERO, Learner, TrainingVectors

_MOST_CELLS = 4_000  # training vectors of a dictionary
_USED = 0.01  # minimum fraction of a patient's vectors that use an atom
_FEW = (3, 5, 10)
Results = dict[str, Any]
Array = NDArray[Any]


def measure(learn: Learner, cells: Cells, other: Cells, seed: int, few: bool = False) -> Results:
    """Return the measures for one split of the patients.

    other : vectors of another tissue; a match with its atoms is not specific to this tissue
    few : also measure classifiers trained on few labels
    """
    inside = halves(cells, seed)
    parts = [_fewer(cells.select(own), seed) for own in (inside, ~inside)]
    begun = time.process_time()
    trained = [
        learn(TrainingVectors.from_cells(part), np.random.default_rng(seed)) for part in parts
    ]
    seconds = (time.process_time() - begun) / 2
    again = learn(TrainingVectors.from_cells(parts[0]), np.random.default_rng(seed + 1000))[0]
    elsewhere = learn(TrainingVectors.from_cells(_fewer(other, seed)), np.random.default_rng(seed))[
        0
    ]
    D = [np.ascontiguousarray(atoms, dtype=np.float32) for atoms, _ in trained]
    results: Results = {
        "halves": match_atoms(*D).mean,
        "seeds": match_atoms(D[0], again).mean,
        "other tissue": float(np.mean([match_atoms(own, elsewhere).mean for own in D])),
        "chance": match_atoms(
            *(_random(TrainingVectors.from_cells(part).Y, len(D[0])) for part in parts)
        ).mean,
        "atoms": len(D[0]),
        "seconds": seconds,
    }
    sides = [_tested(D[i], trained[i][1], parts[i], parts[1 - i], seed, few) for i in (0, 1)]
    return results | {name: float(np.mean([side[name] for side in sides])) for name in sides[0]}


def _fewer(cells: Cells, seed: int) -> Cells:
    chosen = np.zeros(len(cells.X), bool)
    chosen[np.random.default_rng(seed).permutation(len(cells.X))[:_MOST_CELLS]] = True
    return cells.select(chosen)


def _random(Y: Array, n: int) -> Array:
    """Return random directions with the covariance of the vectors."""
    weights = np.random.default_rng(len(Y)).standard_normal((n, len(Y))).astype(np.float32)
    return normalize(weights @ Y)


def _tested(D: Array, encode: Any, train: Cells, test: Cells, seed: int, few: bool) -> Results:
    """Return the measures on `test` of atoms learnt from `train`."""
    centre = train.X.mean(axis=0)
    Y, Z = TrainingVectors.from_cells(train).Y, TrainingVectors.from_cells(test, centre).Y
    S, T = (encode_omp(D, V, N_NONZERO, n_jobs=1) for V in (Y, Z))
    (F, y), (G, z) = (_usage(S, train), _usage(T, test))
    results = {
        "explained": _explained(Z, T @ D),
        "own encoder": _explained(Z, encode(Z)) if encode else float("nan"),
        "patients per atom": _patients(T, test.patients),
        "single atom AUC": _best_atom(F, y, G, z),
        "accuracy": _head(F, y, G, z),
    }
    if few:
        raw = _means(Y, train.units), _means(Z, test.units)
        for n in _FEW:
            results[f"concepts from {n}"], results[f"vectors from {n}"] = _few(
                n, seed, (F, raw[0]), y, (G, raw[1]), z
            )
    return results


def _explained(Z: Array, rebuilt: Array) -> float:
    return 1 - float(((Z - rebuilt) ** 2).sum() / (Z**2).sum())


def _means(values: Any, units: Array) -> Array:
    """Return the mean of the rows of each unit, (n_units, n_columns)."""
    _, places, counts = np.unique(units, return_inverse=True, return_counts=True)
    shares = csr_array(((1 / counts)[places], (places, np.arange(len(places)))))
    found = shares @ values
    return np.asarray(found.toarray() if hasattr(found, "toarray") else found)


def _usage(S: Any, cells: Cells) -> tuple[Array, Array]:
    """Return the mean weight of each atom by unit and sign, and the labels of the units."""
    signed = [_means(part, cells.units) for part in (S.maximum(0), (-S).maximum(0))]
    _, first = np.unique(cells.units, return_index=True)
    return np.concatenate(signed, axis=1), cells.labels[first]


def _patients(S: Any, patients: Array) -> float:
    """Return the mean fraction of patients that use an atom."""
    used = (S != 0).astype(np.float64)
    return float((_means(used, patients) >= _USED).mean())


def _best_atom(F: Array, y: Array, G: Array, z: Array) -> float:
    """Return the test AUC of the atom with the best training AUC; its signs are added."""
    n, last = F.shape[1] // 2, np.unique(y)[-1]
    own, there = F[:, :n] + F[:, n:], G[:, :n] + G[:, n:]
    found = np.array([roc_auc_score(y == last, column) for column in own.T])
    best = int(np.abs(found - 0.5).argmax())
    value = float(roc_auc_score(z == last, there[:, best]))
    return value if found[best] > 0.5 else 1 - value


def _head(F: Array, y: Array, G: Array, z: Array) -> float:
    logistic = LogisticRegression(C=0.01, class_weight="balanced", max_iter=500)
    model = make_pipeline(StandardScaler(), logistic).fit(F, y)
    return float(balanced_accuracy_score(z, model.predict(G)))


def _few(n: int, seed: int, train: Any, y: Array, test: Any, z: Array) -> list[float]:
    """Return balanced accuracies of usage, and of mean vectors, with n training images per class.

    Each is the better one of two regularisation strengths.
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(10):
        rows = np.concatenate([rng.permutation(np.flatnonzero(y == c))[:n] for c in np.unique(y)])
        pairs = list(zip(train, test, strict=True))
        found.append([[_quick(F[rows], y[rows], G, z, C) for C in (1, 100)] for F, G in pairs])
    return np.mean(found, axis=0).max(axis=1).tolist()


def _quick(F: Array, y: Array, G: Array, z: Array, C: float) -> float:
    """Classify without standardisation: the deviation of six images is mostly noise."""
    centre = F.mean(axis=0)
    size = np.sqrt(((F - centre) ** 2).sum(axis=1).mean())
    options = {"class_weight": "balanced", "solver": "liblinear", "dual": True, "max_iter": 1000}
    model = LogisticRegression(C=C, **options).fit((F - centre) / size, y)
    return float(balanced_accuracy_score(z, model.predict((G - centre) / size)))
