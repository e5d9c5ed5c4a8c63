"""Accuracy with parts of the WND-CHARM features: planes and families.

    python -m benchmarks.wndcharm_parts SET [--patient COLUMN] [--cache FOLDER] [--set stain=none]

Per part: balanced accuracy and AUC of `WNDCHARM` with these features, by patient, in the splits of
`histodict evaluate --folds 2 --repeats 5`; and the AUC of three inner folds by patient within each
training half, on which a choice of parts may depend. The last row makes this choice in every
training half.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.image_features import FEATURES
from histodict.image_features.wndcharm import HIGH_CONTRAST, POLYNOMIALS, TEXTURES
from histodict.methods.wndcharm import WNDCHARM
from histodict.model_selection.protocols import k_folds
from histodict.models.image_pipeline import WholeImagePipeline
from histodict.models.recipe import preset
from histodict.utils.cache import ArrayCache

from .wndcharm_oracle import family_of

Part = NDArray[np.bool_]
Fold = tuple[NDArray[np.intp], NDArray[np.intp]]
Figures = NDArray[np.float64]


def parts() -> dict[str, Part]:
    """Return the features of each part by name."""
    names = FEATURES["wndcharm"].names
    planes = np.array([n.rsplit(" of ", 1)[1] if " of " in n[9:] else "shares" for n in names])
    families = np.array([family_of(n) for n in names])
    colour = np.array(["hue" in plane or plane in ("colour", "shares") for plane in planes])
    found = {"all": np.ones(len(names), bool), "grey planes": ~colour, "colour planes": colour}
    found |= {
        f"{family}, grey planes": (families == family) & ~colour
        for family in HIGH_CONTRAST | POLYNOMIALS | TEXTURES
    }
    return found | {f"all of {plane}": planes == plane for plane in dict.fromkeys(planes)}


def inner(fold: Fold, labels: NDArray[np.intp], patients: NDArray[np.str_]) -> Iterable[Fold]:
    """Yield three folds by patient of the training set in which both sides have both classes."""
    train = fold[0]
    folds = StratifiedGroupKFold(3, shuffle=True, random_state=0)
    for a, b in folds.split(train, labels[train], patients[train]):
        if len(set(labels[train[a]])) == len(set(labels[train[b]])) == 2:
            yield train[a], train[b]


def measure(X: NDArray[np.float64], y: NDArray[np.intp], folds: Iterable[Fold]) -> Figures:
    """Return balanced accuracy and AUC of every fold, (folds, 2)."""
    found = []
    for train, test in folds:
        scores = WNDCHARM().fit(X[train], y[train]).decision_function(X[test])
        right = balanced_accuracy_score(y[test], scores > 0)
        found.append((right, roc_auc_score(y[test], scores)))
    return np.array(found)


def row(name: str, n_features: str, outer: Figures, within: Figures) -> None:
    """Print a row of the table: means over the folds; `within` is the AUC of inner folds."""
    figures = [*outer.mean(axis=0), within.mean()]
    print(f"| {name} | {n_features} | {' | '.join(f'{x:.3f}' for x in figures)} |", flush=True)


def vectors(manifest: Manifest, cache: Path | None, changes: list[str]) -> NDArray[np.float64]:
    recipe = preset("fast", "wndcharm")
    for change in changes:
        name, value = change.split("=")
        recipe = recipe.with_changes(**{name: value if name == "stain" else float(value)})
    model = WholeImagePipeline(recipe, manifest.classes, 0, 1)
    model.cache = ArrayCache(cache) if cache else None
    return model._feature_vectors({record.path: record.mpp for record in manifest.records}, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", type=Path, help="folder or table of images")
    parser.add_argument("--patient", help="column of the patient")
    parser.add_argument("--cache", type=Path, help="folder for the features")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="NAME=VALUE")
    requested = parser.parse_args()
    manifest = read_manifest(
        requested.set, {"patient": requested.patient} if requested.patient else None
    )
    X = vectors(manifest, requested.cache, requested.changes)
    y = np.array([manifest.classes.index(label) for label in manifest.labels])
    patients = np.array(manifest.patients)
    splits = k_folds(manifest, 2, n_repeats=5)
    folds = [(np.array(split.train), np.array(split.test)) for split in splits]
    print("| part | numbers | balanced accuracy | AUC | AUC of inner folds |")
    print("|---|---|---|---|---|")
    outer, within = {}, {}
    for name, part in parts().items():
        own = X[:, part]
        outer[name] = measure(own, y, folds)
        insides = [measure(own, y, inner(fold, y, patients))[:, 1].mean() for fold in folds]
        within[name] = np.array(insides)
        row(name, str(part.sum()), outer[name], within[name])
    names, inside = list(within), np.array(list(within.values()))
    chosen = [names[best] for best in inside.argmax(axis=0)]
    best = np.array([outer[name][fold] for fold, name in enumerate(chosen)])
    row("the best of inner folds", "", best, inside.max(axis=0))
    print("chosen:", dict(Counter(chosen)))


if __name__ == "__main__":
    main()
