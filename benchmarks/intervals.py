"""Coverage of confidence intervals in simulated studies with a known truth.

    python -m benchmarks.intervals [--studies N] [--replicates N]

A study has some patients with 2 to 12 images each. The score of an image is ±0.75 by its class,
plus a normal value of its patient (standard deviation 1) and one of its own (0.7). "One class": all
images of a patient have the same label; "both": each image has its own. The truth is the value over
20,000 patients. A 95 % interval should contain it in 95 % of the studies, and the difference of two
equally good methods should have p < 0.05 in 5 % of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histodict.metrics.intervals import Metric, PatientBootstrap, paired_bootstrap
from histodict.metrics.scores import auc, balanced_accuracy
from histodict.model_selection.protocols import Repeat

_PATIENTS = (10, 16, 30)
_N_ALL = 20_000


def study(rng: np.random.Generator, n_patients: int, labels_of: Callable[..., Any]) -> Repeat:
    patients = np.repeat(np.arange(n_patients), rng.integers(2, 13, n_patients))
    labels = labels_of(rng, patients)
    scores = 1.5 * labels - 0.75 + rng.normal(size=n_patients)[patients]
    return Repeat(labels, patients, scores + rng.normal(0, 0.7, len(labels)))


LABELS: dict[str, Callable[[np.random.Generator, NDArray[Any]], NDArray[Any]]] = {
    "one class": lambda rng, patients: patients % 2,
    "both": lambda rng, patients: rng.integers(2, size=len(patients)),
}


def called(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    return balanced_accuracy(labels, (scores > 0).astype(int))


def contains_truth(metric: Metric, repeat: Repeat, truth: float, n_replicates: int) -> list[bool]:
    """Return whether the percentile interval, and that of histodict, contain the truth."""

    def statistic(_: int, rows: NDArray[np.int64]) -> float:
        return metric(repeat.labels[rows], repeat.predictions[rows])

    sample = PatientBootstrap([repeat]).draw_replicates(statistic, n_replicates, 0)
    ends = np.quantile(sample.values, [0.025, 0.975]), sample.interval(0.95)
    return [bool(low <= truth <= high) for low, high in ends]


def by_image(repeat: Repeat) -> Repeat:
    return Repeat(repeat.labels, np.arange(len(repeat.labels)), repeat.predictions)


def equal_methods(rng: np.random.Generator, repeat: Repeat) -> tuple[list[Repeat], list[Repeat]]:
    """Return results of two equally good methods with errors for different patients."""
    shifts = rng.normal(size=(2, repeat.patients.max() + 1))
    first, second = (
        Repeat(repeat.labels, repeat.patients, repeat.predictions + shift[repeat.patients])
        for shift in shifts
    )
    return [first], [second]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--studies", type=int, default=300, help="studies per design")
    parser.add_argument("--replicates", type=int, default=400, help="bootstrap draws")
    options = parser.parse_args()
    print("| design | metric | patients | percentiles | histodict | by image | p < 0.05 |")
    print("|---" * 7 + "|")
    for design, labels_of in LABELS.items():
        for metric in (called, auc):
            rng = np.random.default_rng(0)
            everyone = study(rng, _N_ALL, labels_of)
            truth = metric(everyone.labels, everyone.predictions)
            for n_patients in _PATIENTS:
                hits, alarms = [], []
                for _ in range(options.studies):
                    repeat = study(rng, n_patients, labels_of)
                    n = options.replicates
                    of_images = contains_truth(metric, by_image(repeat), truth, n)[:1]
                    hits.append(contains_truth(metric, repeat, truth, n) + of_images)
                    pair = equal_methods(rng, repeat)
                    result = paired_bootstrap(metric, *pair, n_replicates=options.replicates)
                    alarms.append(result.p_value < 0.05)
                shares = " | ".join(f"{share:.3f}" for share in np.mean(hits, axis=0))
                name = "AUC" if metric is auc else "balanced accuracy"
                print(f"| {design} | {name} | {n_patients} | {shares} | {np.mean(alarms):.3f} |")


if __name__ == "__main__":
    main()
