"""The paper's experiments, one file each, by name.

Each takes a `Setting` (a data set, methods, sizes) and gives an `Outcome`: tables, words, and what
its figure is drawn from. `complexity` needs no data.
"""

from __future__ import annotations

from collections.abc import Callable

from . import (
    accuracy,
    bases,
    bases_count,
    codes,
    complexity,
    confusion,
    roc,
    training_images,
    training_patches,
)
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
    training_patches.NAME: training_patches.run,
    training_images.NAME: training_images.run,
    bases_count.NAME: bases_count.run,
}
