"""Cost of the threshold of an evaluated two-class model, and possible gain from unlabelled images.

    python -m benchmarks.thresholds EVALUATION [EVALUATION ...]

Reads `predictions.csv` of folders written by `histodict evaluate`. For each method and number of
training images, prints the mean over all splits of the AUC, and of balanced accuracy at the
threshold of the model; in the middle of the two groups of test scores that 2-means finds (without
labels); halfway between these two; and at the best threshold, which needs the labels.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from histodict.decision.threshold import two_means_midpoint
from histodict.metrics.scores import auc

TruthAndScores = tuple[NDArray[np.bool_], NDArray[np.float64]]  # truth and scores of a split


def read_predictions(folder: Path) -> dict[tuple[str, str], list[TruthAndScores]]:
    """Return truth and scores of every split by method and size of the training set."""
    found: dict[tuple[str, str], dict[str, list[tuple[str, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            size = row["split"].partition(", ")[2]
            split = f"{row['split']} seed {row['seed']}"
            found[row["method"], size][split].append((row["truth"], float(row["score"])))
    second = max(truth for splits in found.values() for s in splits.values() for truth, _ in s)
    return {
        key: [
            (np.array([truth == second for truth, _ in rows]), np.array([s for _, s in rows]))
            for rows in splits.values()
        ]
        for key, splits in found.items()
    }


def balanced(truth: NDArray[np.bool_], scores: NDArray[np.float64], threshold: float) -> float:
    above = scores > threshold
    return float((above[truth].mean() + (~above[~truth]).mean()) / 2)


def best(truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> float:
    return max(balanced(truth, scores, cut) for cut in [-np.inf, *scores])


def values(truth: NDArray[np.bool_], scores: NDArray[np.float64]) -> list[float]:
    middle = two_means_midpoint(scores)
    return [
        auc(truth, scores),
        balanced(truth, scores, 0),
        balanced(truth, scores, middle),
        balanced(truth, scores, middle / 2),
        best(truth, scores),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="written by `histodict evaluate`")
    for folder in parser.parse_args().folders:
        print(f"{folder.name}\n")
        print("| method | training | AUC | own threshold | of unlabelled | halfway | best |")
        print("|---|---|---|---|---|---|---|")
        for (method, size), splits in read_predictions(folder).items():
            means = np.mean([values(*split) for split in splits], axis=0)
            print(f"| {method} | {size} | " + " | ".join(f"{v:.3f}" for v in means) + " |")
        print()


if __name__ == "__main__":
    main()
