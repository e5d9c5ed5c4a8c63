"""Effect of the discriminative term of DFDL: accuracy of patches and images with and without ρ.

    python -m benchmarks.discriminative --output discriminative --jobs 16
    python -m benchmarks.discriminative --output discriminative --tables

Two folds by patient, repeated `--repeats` times; 200 atoms and 2,000 patches per class. All
variants are trained on the same patches from the same initial dictionaries, and are compared with ρ
= 0, paired by patient. The kind `pixels` is the preset `fast`, `cells` is `embeddings`, each with
its aggregator. The label of a patch is that of its image. `HISTODICT_DATA` is the folder of the
sets. Finished results are files in the output folder and are not computed again. Takes about half a
CPU hour.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from histodict.metrics.scores import balanced_accuracy
from histodict.models.recipe import Recipe, preset

from . import report
from . import result_store as store
from .cached_patches import max_sampled, read_patches, train_and_test
from .machine import describe_machine
from .result_store import Done, Results

_RHO = "\N{GREEK SMALL LETTER RHO}"
PRESETS = {"pixels": "fast", "cells": "embeddings"}
# By name: the step and ρ. Without ρ, both steps are identical.
VARIANTS: dict[str, dict[str, Any]] = {
    f"{_RHO} = 0": {"rho": 0.0},
    **{f"published {rho}": {"step": "published", "rho": rho} for rho in (0.001, 0.1, 0.3, 0.6)},
    **{f"tangent {rho}": {"step": "tangent", "rho": rho} for rho in (0.1, 0.3, 0.6)},
}
WITHOUT = next(iter(VARIANTS))
N_ATOMS, PATCHES_PER_CLASS = 200, 2000


@dataclass(frozen=True)
class Half:
    """All variants on one split of a set, trained on the same patches."""

    set: str
    kind: str
    place: int
    n_repeats: int

    @property
    def name(self) -> str:
        return f"{self.set}-{self.kind}-{self.place}"

    @property
    def cost(self) -> float:
        return (2.0 if self.set == "glas" else 1.0) * (1.5 if self.kind == "pixels" else 1.0)

    def work(self) -> Results:
        manifest = store.manifest_of(self.set)
        split = store.two_folds(manifest, self.n_repeats)[self.place]
        recipes = {name: recipe_of(self.kind, changes) for name, changes in VARIANTS.items()}
        n_synthetic = max_sampled(manifest, [split], PATCHES_PER_CLASS)
        seen = read_patches(manifest, recipes[WITHOUT], n_synthetic)
        return {
            name: train_and_test(recipe, seen, manifest, split, PATCHES_PER_CLASS)
            for name, recipe in recipes.items()
        }


def recipe_of(kind: str, changes: dict[str, Any]) -> Recipe:
    return preset(PRESETS[kind]).replace_settings({"n_atoms": N_ATOMS, **changes})


def share_right(labels: NDArray[Any], patches: NDArray[Any]) -> float:
    """Return the fraction of correct patches from rows (number correct, number of patches)."""
    return float(patches[:, 0].sum() / patches[:, 1].sum())


Column = tuple[str, str]  # set, kind


def by_variant(pieces: Sequence[Half], done: Done) -> dict[Column, dict[str, dict[int, Results]]]:
    """Return the finished results by set and kind, variant and split."""
    found: dict[Column, dict[str, dict[int, Results]]] = {}
    for piece in pieces:
        own = found.setdefault((piece.set, piece.kind), {name: {} for name in VARIANTS})
        for name, results in done.found.get(piece.name, {}).items():
            own[name][piece.place] = results
    return found


def print_tables(found: dict[Column, dict[str, dict[int, Results]]]) -> None:
    heads = [f"step, {_RHO}", *(f"{name}, {kind}" for name, kind in found)]
    for title, metric, kind in (
        (
            f"Share of patches that are right, and how much more than with {WITHOUT}",
            share_right,
            "patches",
        ),
        ("Balanced accuracy of images, likewise", balanced_accuracy, "labels"),
    ):
        print(f"\n{title}:")
        rows = []
        for name in VARIANTS:
            row = [name]
            for own in found.values():
                if name == WITHOUT:
                    row.append(store.mean_shown(metric, list(own[name].values()), kind))
                else:
                    row.append(store.difference_shown(metric, own[name], own[WITHOUT], kind))
            rows.append(row)
        store.print_table(heads, rows)
    print(f"\nAtoms: {N_ATOMS} per class; training patches: {PATCHES_PER_CLASS} per class.")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", default="ucsb,glas")
    parser.add_argument("--kinds", default=",".join(PRESETS))
    parser.add_argument("--repeats", type=int, default=2, help="repetitions of the two folds")
    store.add_options(parser)
    options = parser.parse_args()
    pieces = [
        Half(name, kind, place, options.repeats)
        for kind in options.kinds.split(",")
        for name in options.sets.split(",")
        for place in range(2 * options.repeats)
    ]
    report.print_machine(describe_machine())
    done = store.run_or_load(pieces, options)
    print_tables(by_variant(pieces, done))
    sys.exit(done.report_status())


if __name__ == "__main__":
    main()
