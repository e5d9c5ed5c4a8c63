"""Experiments of the paper, by name.

Each takes a `Setting` (data set, methods, sizes) and returns an `Outcome`: tables, text and a
figure. `complexity` needs no data.
"""

from __future__ import annotations

from collections.abc import Callable

from . import complexity
from .accuracy import ACCURACY, CONFUSION, run_accuracy, run_confusion
from .codes import ATOMS, CODES, run_atoms, run_codes
from .curves import (
    BASES,
    IMAGES,
    PATCHES,
    ROC,
    bases_count,
    run_roc,
    training_images,
    training_patches,
)
from .setting import FULL, QUICK, Choice, NotPossibleError, Outcome, Setting, Sizes

__all__ = [
    "EXPERIMENTS",
    "FULL",
    "QUICK",
    "Choice",
    "NotPossibleError",
    "Outcome",
    "Setting",
    "Sizes",
    "complexity",
]

# Experiments on a data set, in the order of the paper.
EXPERIMENTS: dict[str, Callable[[Setting], Outcome]] = {
    ATOMS: run_atoms,
    CODES: run_codes,
    ACCURACY: run_accuracy,
    CONFUSION: run_confusion,
    ROC: run_roc,
    PATCHES.name: training_patches,
    IMAGES.name: training_images,
    BASES.name: bases_count,
}
