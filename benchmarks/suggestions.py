"""Does it help to label what the page suggests, instead of any image?

    python -m benchmarks.suggestions [--sets ucsb-breast lc25000-lung …] [--seeds 40] [--labels 24]

Half of the patients are the pool, the others the test. One image of each class is labelled at the
start, then one after another, chosen by: chance; the page's rule, doubt × novelty; either alone.
After every label a classifier is learnt anew and tested. It is a cheap one, that hundreds of
trainings can be done: a class's mean of image vectors (local binary patterns and colours, of images
reduced to 320 pixels, standardised, 20 principal components of the pool), the nearest one wins.
Looks, for novelty, are those of the page, from thumbnails.

Told is the balanced accuracy, averaged over all numbers of labels, beside that by chance, with the
95 % interval of the difference over seeds (paired, bootstrap). `HISTODICT_DATA` names the folder of
the sets.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from histodict.evaluation.metrics import balanced_accuracy
from histodict.features.lbp_colour import lbp_colour
from histodict.images.manifest import Manifest, read_manifest
from histodict.web.suggestions import appearance, suggest

from .machine import machine_facts

SETS = {
    "ucsb-breast": {"patient": "group"},
    "lc25000-lung": {"patient": "source_image"},
    "glas-colon": {},
    "lymphoma": {},
}
RULES = "chance", "doubt and novelty", "doubt", "novelty"
_LEARNT_SIDE = 320  # pixels along the longer side of what is learnt from
_SIDE = 220  # of a thumbnail
_N_COMPONENTS = 20

Numbers = NDArray[np.float64]


def describe(manifest: Manifest) -> tuple[Numbers, Numbers]:
    """Vectors to learn from, and looks; each (n_images, …)."""
    vectors, looks = [], []
    for record in manifest.records:
        with Image.open(record.path) as image:
            picture = image.convert("RGB")
        picture.thumbnail((_LEARNT_SIDE, _LEARNT_SIDE))
        vectors.append(lbp_colour(np.asarray(picture))[0])
        picture.thumbnail((_SIDE, _SIDE))
        looks.append(appearance(np.asarray(picture)))
    return np.stack(vectors), np.stack(looks)


def components(pool: Numbers, vectors: Numbers) -> Numbers:
    mean, spread = pool.mean(axis=0), pool.std(axis=0) + 1e-9
    _, _, axes = np.linalg.svd((pool - mean) / spread, full_matrices=False)
    found: Numbers = (vectors - mean) / spread @ axes[:_N_COMPONENTS].T
    return found


def distances(X: Numbers, y: NDArray[np.intp], asked: Numbers) -> Numbers:
    """To the mean of each class: (n_asked, n_classes)."""
    means = np.stack([X[y == k].mean(axis=0) for k in range(int(y.max()) + 1)])
    return np.linalg.norm(asked[:, None] - means, axis=2)


def choose(rule: str, leads: Numbers, looks: Numbers, learnt: Numbers, rng: object) -> int:
    if rule == "chance":
        return int(rng.integers(len(leads)))  # type: ignore[attr-defined]
    if rule == "doubt":
        return int(np.argmin(leads))
    same = np.zeros(len(leads)) if rule == "novelty" else leads
    return suggest(same, looks, learnt, 1)[0].place


def curve(
    rule: str,
    X: Numbers,
    y: NDArray[np.intp],
    looks: Numbers,
    seed: int,
    sides: tuple[NDArray[np.intp], NDArray[np.intp]],
    n_labels: int,
) -> Numbers:
    """Balanced accuracy on the test side after each label."""
    rng = np.random.default_rng(seed)
    pool, test = sides
    X = components(X[pool], X)
    known = [int(rng.choice(pool[y[pool] == k])) for k in range(int(y.max()) + 1)]
    found = []
    for _ in range(n_labels):
        called = distances(X[known], y[known], X[test]).argmin(axis=1)
        found.append(balanced_accuracy(y[test].tolist(), called.tolist()))
        left = np.array([place for place in pool if place not in known])
        if not len(left):
            break
        near = np.sort(distances(X[known], y[known], X[left]), axis=1)
        known.append(
            int(left[choose(rule, near[:, 1] - near[:, 0], looks[left], looks[known], rng)])
        )
    return np.array(found)


def halves(
    manifest: Manifest, y: NDArray[np.intp], seed: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Images of the pool and of the test: patients of each class in halves."""
    rng = np.random.default_rng(1000 + seed)
    patients = np.array(manifest.patients)
    kept: set[str] = set()
    for k in range(int(y.max()) + 1):
        names = rng.permutation(np.unique(patients[y == k]))
        kept |= set(names[: len(names) // 2])
    is_test = np.isin(patients, list(kept))
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def interval(differences: Numbers) -> tuple[float, float]:
    rng = np.random.default_rng(0)
    means = differences[rng.integers(0, len(differences), (5000, len(differences)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def measure(name: str, folder: Path, n_seeds: int, n_labels: int) -> None:
    manifest = read_manifest(folder / name, SETS[name])
    y = np.array([manifest.classes.index(label) for label in manifest.labels])
    X, looks = describe(manifest)
    curves = {
        rule: [
            curve(rule, X, y, looks, s, halves(manifest, y, s), n_labels) for s in range(n_seeds)
        ]
        for rule in RULES
    }
    n = min(len(one) for each in curves.values() for one in each)
    means = {rule: np.array([one[:n].mean() for one in each]) for rule, each in curves.items()}
    print(f"\n{name}: {len(y)} images, {n_seeds} seeds, {n} labels", flush=True)
    for rule in RULES:
        at = np.mean([one[min(9, n - 1)] for one in curves[rule]])
        low, high = interval(means[rule] - means["chance"])
        gain = 100 * float((means[rule] - means["chance"]).mean())
        told = f"{100 * means[rule].mean():5.1f} %, after ten more labels {100 * at:5.1f} %"
        print(f"  {rule:18s} {told}, gain {gain:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Labels by suggestion and by chance.")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--labels", type=int, default=24)
    given = parser.parse_args()
    for fact, value in machine_facts().items():
        print(f"{fact:16s} {value}")
    for name in given.sets:
        measure(name, Path(os.environ["HISTODICT_DATA"]), given.seeds, given.labels)


if __name__ == "__main__":
    main()
