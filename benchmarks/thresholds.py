"""What the threshold of an evaluated two-class model costs, and what unlabelled images could save.

    python -m benchmarks.thresholds EVALUATION [EVALUATION ...]

Reads `predictions.csv` of folders that `histodict evaluate` wrote, and prints per method and
number of training images the mean over all splits of: the AUC; balanced accuracy at the model's own
threshold; at the middle between the two groups of test scores that 2-means finds (no labels used);
halfway between these two; and at the best threshold there is, which needs the answers.
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

TruthAndScores = tuple[NDArray[np.bool_], NDArray[np.float64]]  # of a split: truth, scores


def read_predictions(folder: Path) -> dict[tuple[str, str], list[TruthAndScores]]:
    """By method and size of the training set, the answers of every split."""
    found: dict[tuple[str, str], dict[str, list[tuple[str, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    with (folder / "predictions.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            size = row["split"].partition(", ")[2]
            split = f"{row['split']} seed {row['seed']}"
            found[row["method"], size][split].append((row["truth"], float(row["score_0"])))
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
