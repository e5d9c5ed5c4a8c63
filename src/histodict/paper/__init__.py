"""The paper's experiments, by name.

Each takes a `Setting` (a data set, methods, sizes) and gives an `Outcome`: tables, words and a
figure. `complexity` needs no data.
"""

from __future__ import annotations

from collections.abc import Callable

from . import accuracy, bases, codes, complexity, confusion, roc, sweeps
from .outcome import Outcome
from .setting import FULL, QUICK, Choice, NotPossibleError, Setting, Sizes

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

# On a data set, in the order of the paper.
EXPERIMENTS: dict[str, Callable[[Setting], Outcome]] = {
    bases.NAME: bases.run,
    codes.NAME: codes.run,
    accuracy.NAME: accuracy.run,
    confusion.NAME: confusion.run,
    roc.NAME: roc.run,
    sweeps.PATCHES.name: sweeps.training_patches,
    sweeps.IMAGES.name: sweeps.training_images,
    sweeps.BASES.name: sweeps.bases_count,
}
