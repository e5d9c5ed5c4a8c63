"""Bias of cross-validated figures and coverage of their intervals, with and without signal.

    python -m benchmarks.null_intervals [--studies N] [--draws N]

Every study has n patients, half of each class, with one to six images each. An image is a vector of
five numbers: the mean of its class (± signal / 2 in the first), a normal number of its patient
(deviation 1) and one of its own (deviation 1). The class with the nearest mean is predicted, with
`k_folds` (5 folds; 2 folds, 5 times) and by leaving one patient out. "permuted": three images per
patient and no signal; the classes of patients are permuted in one fixed set of images.

The truth is the mean accuracy of the trained models at new patients. Prints the means, and the
fractions of 95 % intervals (by patient) that lie below and above the truth, which should be 2.5 %
each: percentiles of the draws, and wider by √2, as `evaluate` reports them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from histodict.datasets.manifest import ImageRecord, Manifest
from histodict.metrics.intervals import CROSS_VALIDATION_WIDENING, BootstrapReplicates
from histodict.model_selection.protocols import k_folds

PATIENTS = (8, 16, 30, 60)
N_FEATURES = 5
N_DESIGNS = 10
SIGNALS = {"none": 0.0, "weak": 1.0, "strong": 3.0}
Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Fit = Callable[[Array, Mask], tuple[Array, float]]


@dataclass(frozen=True)
class Protocol:
    n_folds: int  # 0: one patient at a time
    n_repeats: int


PROTOCOLS = {
    "5 folds": Protocol(5, 1),
    "2 folds x 5": Protocol(2, 5),
    "leave one out": Protocol(0, 1),
}


def nearest_mean(X: Array, positive: Mask) -> tuple[Array, float]:
    """Return weights and offset of a nearest-mean classifier; positive scores: class 1."""
    first, second = X[~positive].mean(axis=0), X[positive].mean(axis=0)
    w = second - first
    return w, float(-(first + second) @ w / 2)


def logistic(X: Array, positive: Mask) -> tuple[Array, float]:
    """Return weights and offset of a logistic regression with balanced classes."""
    model = LogisticRegression(class_weight="balanced").fit(X, positive)
    return model.coef_[0], float(model.intercept_[0])


CLASSIFIERS: dict[str, Fit] = {"nearest mean": nearest_mean, "logistic": logistic}


@dataclass(frozen=True)
class Design:
    """Classes of patients, patients of images, and folds of images per repeat."""

    positive: Mask
    patients: NDArray[np.int64]
    repeats: tuple[NDArray[np.int64], ...]

    @property
    def labels(self) -> Mask:
        return self.positive[self.patients]


@cache
def design_of(name: str, n: int, seed: int, even: bool) -> Design:
    """Return a study with one to six images per patient, or three each."""
    rng, protocol = np.random.default_rng([n, seed]), PROTOCOLS[name]
    positive = np.arange(n) % 2 == 1
    patients = np.repeat(np.arange(n), 3 if even else rng.integers(1, 7, n))
    if not protocol.n_folds:
        return Design(positive, patients, (patients,))
    root = Path("/set")
    records = tuple(
        ImageRecord(root / f"{i:03}.png", "ab"[int(positive[p])], f"{p:03}")
        for i, p in enumerate(patients.tolist())
    )
    n_repeats = min(protocol.n_repeats, 3 if n == 8 else 5)
    splits = k_folds(
        Manifest(records, root=root), protocol.n_folds, n_repeats=n_repeats, random_state=seed
    )
    made = np.zeros((n_repeats, len(records)), np.int64)
    for place, split in enumerate(splits):
        made[split.repeat, split.test] = place
    return Design(positive, patients, tuple(made))


# --- figures and their intervals, for many studies ------------------------------------------------


@dataclass(frozen=True)
class ScoreDraws:
    """Score and its bootstrap draws over patients."""

    value: float
    draws: Array
    n_patients: int

    def ends(self, wider: float) -> tuple[float, float]:
        sample = BootstrapReplicates(self.value, self.draws, self.n_patients, 0)
        return sample.interval(0.95, wider)


def figure_of(design: Design, scores: Array, metric: str) -> Callable[[Array], Array]:
    """Return the score for patients weighted by counts (n_draws, n_patients)."""
    labels, n = design.labels, len(design.positive)
    member = np.zeros((n, len(labels)))
    member[design.patients, np.arange(len(labels))] = 1
    above, below = member[:, labels], member[:, ~labels]
    if metric == "balanced accuracy":
        right = (scores > 0) == labels
        hits = [above @ right[labels], below @ right[~labels]]
        sizes = [above.sum(axis=1), below.sum(axis=1)]
        return lambda w: sum((w @ h) / (w @ s) for h, s in zip(hits, sizes, strict=True)) / 2
    first, second = scores[labels], scores[~labels]
    pairs = (first[:, None] > second) + 0.5 * (first[:, None] == second)
    counts = above @ pairs @ below.T
    return lambda w: ((w @ counts) * w).sum(axis=1) / (w @ above.sum(1)) / (w @ below.sum(1))


def draw_times(rng: np.random.Generator, positive: Mask, n_draws: int) -> Array:
    """Return bootstrap counts of patients, without draws that lack a class."""
    n = len(positive)
    times = rng.multinomial(n, np.full(n, 1 / n), size=3 * n_draws).astype(float)
    both = (times @ positive > 0) & (times @ ~positive > 0)
    return times[both][:n_draws]


# --- studies --------------------------------------------------------------------------------------

METRICS = ("balanced accuracy", "AUC")


def truth_of(w: Array, b: float, signal: float) -> dict[str, float]:
    """Return the true score of a linear model on new patients, whose noise has the variance 2."""
    size = float(np.linalg.norm(w)) or 1.0
    shift, at = w[0] * signal / 2 / size, b / size
    right = norm.cdf((shift + at) / np.sqrt(2)) + norm.cdf((shift - at) / np.sqrt(2))
    area = float(norm.cdf(2 * shift / 2))
    return {"balanced accuracy": float(right / 2), "AUC": area}


def run(
    name: str, fit: Fit, n: int, signal: float, n_studies: int, n_draws: int, *, permuted: bool
) -> list[dict[str, Any]]:
    rng = np.random.default_rng([n, int(signal * 10), permuted])
    found: dict[str, list[ScoreDraws]] = {metric: [] for metric in METRICS}
    truths: dict[str, list[float]] = {metric: [] for metric in METRICS}
    all_times = [draw_times(rng, np.arange(n) % 2 == 1, n_draws) for _ in range(5)]
    X = np.zeros((0, N_FEATURES))
    for study in range(n_studies):
        design = design_of(name, n, study % N_DESIGNS, permuted)
        if permuted:  # three images of each patient: labels of patients, or patients, are permuted
            if study % 50 == 0:
                shared = rng.normal(size=(n, 1, N_FEATURES))
                blocks = shared + rng.normal(size=(n, 3, N_FEATURES))
            X = rng.permutation(blocks).reshape(3 * n, N_FEATURES)
        else:
            X = rng.normal(size=(n, N_FEATURES))[design.patients]
            X = X + rng.normal(size=X.shape)
            X[:, 0] += signal * (design.labels - 0.5)
        figures: dict[str, list[Callable[[Array], Array]]] = {metric: [] for metric in METRICS}
        own: dict[str, list[float]] = {metric: [] for metric in METRICS}
        for folds in design.repeats:
            scores = np.zeros(len(X))
            for fold in np.unique(folds):
                out = folds == fold
                w, b = fit(X[~out], design.labels[~out])
                scores[out] = X[out] @ w + b
                for metric, value in truth_of(w, b, signal).items():
                    own[metric].append(value)
            for metric in METRICS:
                figures[metric].append(figure_of(design, scores, metric))
        times = all_times[study % len(all_times)]
        for metric in METRICS:
            value = np.mean([float(f(np.ones((1, n)))[0]) for f in figures[metric]])
            draws = np.mean([f(times) for f in figures[metric]], axis=0)
            found[metric].append(ScoreDraws(float(value), draws, n))
            truths[metric].append(float(np.mean(own[metric])))
    rows: list[dict[str, Any]] = []
    for metric in METRICS:
        truth = np.array(truths[metric]) if signal else np.full(n_studies, 0.5)
        values = np.array([d.value for d in found[metric]])
        row: dict[str, Any] = {
            "protocol": name,
            "patients": n,
            "figure": metric,
            "truth": truth.mean(),
            "mean": values.mean(),
            "± (standard error)": values.std() / np.sqrt(n_studies),
        }
        for how, wider in (("patients alone", 1.0), ("now", CROSS_VALIDATION_WIDENING)):
            ends = np.array([d.ends(wider) for d in found[metric]])
            row[f"{how}: below"] = (ends[:, 1] < truth).mean()
            row[f"{how}: above"] = (ends[:, 0] > truth).mean()
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=400)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--classifier", default="nearest mean", choices=list(CLASSIFIERS))
    requested = parser.parse_args()
    cases = [(kind, signal, False) for kind, signal in SIGNALS.items()]
    for kind, signal, permuted in [*cases, ("none, permuted", 0.0, True)]:
        print(f"\nSignal: {kind}\n")
        for name in PROTOCOLS:
            for n in PATIENTS:
                fit = CLASSIFIERS[requested.classifier]
                for row in run(
                    name, fit, n, signal, requested.studies, requested.draws, permuted=permuted
                ):
                    if (name, n, row["figure"]) == (next(iter(PROTOCOLS)), PATIENTS[0], METRICS[0]):
                        print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
                    cells = [f"{v:.3f}" if isinstance(v, float) else str(v) for v in row.values()]
                    print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
