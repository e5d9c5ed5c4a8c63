"""Gain in accuracy from labelling the images that the page suggests, compared with random images.

    python -m benchmarks.suggestions [--sets ucsb-breast lc25000-lung …] [--seeds 40] [--labels 24]
                                     [--at-once 1]

Half of the patients are the pool, the others the test set. At the start, one image per class is
labelled; then one image after the other, or --at-once, chosen at random, by the rule of the page
(uncertainty and novelty), or by one of these criteria. A classifier is trained after each choice
and tested. It is fast, for hundreds of trainings: the nearest class mean of image features (local
binary patterns and colours of images reduced to 320 pixels, standardised, 20 principal components
of the pool). Novelty uses the colour descriptors of the page, from thumbnails.

Prints the balanced accuracy, averaged over all numbers of labels, and the difference to random
images with its 95 % interval over seeds (paired bootstrap). `HISTODICT_DATA` is the folder of the
sets.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.image_features.descriptors import lbp_colour
from histodict.metrics.scores import balanced_accuracy
from histodict.web.annotation.suggestions import colour_descriptor, suggest

from .machine import describe_machine

SETS = {
    "ucsb-breast": {"patient": "group"},
    "lc25000-lung": {"patient": "source_image"},
    "glas-colon": {},
    "lymphoma": {},
}
RULES = "random", "uncertainty and novelty", "uncertainty", "novelty"
_TRAINING_SIDE = 320  # longer side in pixels of images for features
_SIDE = 220  # longer side of a thumbnail
_N_COMPONENTS = 20

Numbers = NDArray[np.float64]
Places = NDArray[np.intp]
Sides = tuple[Places, Places]  # pool and test set


def describe(manifest: Manifest) -> tuple[Numbers, Numbers]:
    """Return features and colour descriptors, each (n_images, …)."""
    vectors, summaries = [], []
    for record in manifest.records:
        with Image.open(record.path) as image:
            picture = image.convert("RGB")
        picture.thumbnail((_TRAINING_SIDE, _TRAINING_SIDE))
        vectors.append(lbp_colour(np.asarray(picture))[0])
        picture.thumbnail((_SIDE, _SIDE))
        summaries.append(colour_descriptor(np.asarray(picture)))
    return np.stack(vectors), np.stack(summaries)


def components(pool: Numbers, vectors: Numbers) -> Numbers:
    mean, spread = pool.mean(axis=0), pool.std(axis=0) + 1e-9
    _, _, axes = np.linalg.svd((pool - mean) / spread, full_matrices=False)
    found: Numbers = (vectors - mean) / spread @ axes[:_N_COMPONENTS].T
    return found


def distances(X: Numbers, y: NDArray[np.intp], queries: Numbers) -> Numbers:
    """Return distances to the mean of each class, (n_queries, n_classes)."""
    means = np.stack([X[y == k].mean(axis=0) for k in range(int(y.max()) + 1)])
    return np.linalg.norm(queries[:, None] - means, axis=2)


def choose(
    rule: str,
    margins: Numbers,
    descriptors: Numbers,
    training: Numbers,
    n: int,
    rng: np.random.Generator,
) -> list[int]:
    """Return positions of n candidates to label."""
    n = min(n, len(margins))
    if rule == "random":
        left = list(range(len(margins)))
        return [left.pop(int(rng.integers(len(left)))) for _ in range(n)]
    if rule == "uncertainty":
        return [int(place) for place in np.argsort(margins, kind="stable")[:n]]
    same = np.zeros(len(margins)) if rule == "novelty" else margins
    return [one.candidate for one in suggest(same, descriptors, training, n)]


@dataclass(frozen=True)
class Task:
    """A data set: features, class indices, colour descriptors."""

    X: Numbers
    y: Places
    descriptors: Numbers

    def curve(self, rule: str, sides: Sides, seed: int, n_labels: int, at_once: int) -> Numbers:
        """Return the balanced accuracy on the test set before each choice of labels."""
        rng, y, summaries = np.random.default_rng(seed), self.y, self.descriptors
        pool, test = sides
        X = components(self.X[pool], self.X)
        known = [int(rng.choice(pool[y[pool] == k])) for k in range(int(y.max()) + 1)]
        found = []
        for _ in range(0, n_labels, at_once):
            called = distances(X[known], y[known], X[test]).argmin(axis=1)
            found.append(balanced_accuracy(y[test].tolist(), called.tolist()))
            left = np.setdiff1d(pool, known)
            if not len(left):
                break
            near = np.sort(distances(X[known], y[known], X[left]), axis=1)
            margins = near[:, 1] - near[:, 0]
            chosen = choose(rule, margins, summaries[left], summaries[known], at_once, rng)
            known += [int(left[place]) for place in chosen]
        return np.array(found)


def halves(manifest: Manifest, y: Places, seed: int) -> Sides:
    """Return images of the pool and of the test set: half of the patients of each class."""
    rng = np.random.default_rng(1000 + seed)
    patients = np.array(manifest.patients)
    stored: set[str] = set()
    for k in range(int(y.max()) + 1):
        names = rng.permutation(np.unique(patients[y == k]))
        stored |= set(names[: len(names) // 2])
    is_test = np.isin(patients, list(stored))
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def interval(differences: Numbers) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    means = differences[rng.integers(0, len(differences), (5000, len(differences)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def measure(name: str, folder: Path, n_seeds: int, n_labels: int, at_once: int) -> None:
    manifest = read_manifest(folder / name, SETS[name])
    y = np.array([manifest.classes.index(label) for label in manifest.labels])
    X, summaries = describe(manifest)
    task, sides = Task(X, y, summaries), [halves(manifest, y, seed) for seed in range(n_seeds)]
    curves = {
        rule: [task.curve(rule, each, s, n_labels, at_once) for s, each in enumerate(sides)]
        for rule in RULES
    }
    n = min(len(one) for each in curves.values() for one in each)
    means = {rule: np.array([one[:n].mean() for one in each]) for rule, each in curves.items()}
    print(f"\n{name}: {len(y)} images, {n_seeds} seeds, {n} times {at_once} labels", flush=True)
    for rule in RULES:
        low, high = interval(means[rule] - means["random"])
        gain = 100 * float((means[rule] - means["random"]).mean())
        last = 100 * np.mean([one[n - 1] for one in curves[rule]])
        reported = f"{100 * means[rule].mean():5.1f} %, at last {last:5.1f} %"
        print(f"  {rule:24s} {reported}, gain {gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Accuracy with suggested and with random labels.")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=40, help="splits of the patients")
    parser.add_argument("--labels", type=int, default=24, help="labels in total")
    parser.add_argument("--at-once", type=int, default=1, help="labels between trainings")
    specified = parser.parse_args()
    for title, value in describe_machine().items():
        print(f"{title:16s} {value}")
    for name in specified.sets:
        measure(
            name,
            Path(os.environ["HISTODICT_DATA"]),
            specified.seeds,
            specified.labels,
            specified.at_once,
        )


if __name__ == "__main__":
    main()
