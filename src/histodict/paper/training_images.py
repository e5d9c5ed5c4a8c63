"""Accuracy by the number of training images of each class.

Half of the patients are tested; the other half gives training sets that grow, each part of the
next.
"""

from __future__ import annotations

import numpy as np

from ..evaluation.protocols import hold_outs
from ..images.manifest import Manifest
from ..methods.registry import METHODS
from .setting import COMPARED, NotPossibleError, Setting
from .sweep import Sweep, SweepOutcome, outcome, sweep_row

NAME = "training-images"
_SWEEP = Sweep(
    NAME,
    "Accuracy by number of training images",
    "training images per class",
    "10 (IBL) or 40 (ADL) images",
)


def run(setting: Setting) -> SweepOutcome:
    methods = setting.choose(COMPARED, tuple(METHODS), "every method can be compared")
    plans = {method: setting.plan(method) for method in methods}
    n_repeats = setting.choice.n_repeats
    sizes = training_sizes(setting.images, n_repeats, setting.sizes.n_image_sizes)
    splits = hold_outs(setting.images, sizes, n_repeats=n_repeats)
    evaluation = setting.run(plans, splits)
    rows = [
        sweep_row(setting, evaluation, _SWEEP, method, size)
        for method in evaluation.methods
        for size in sizes
    ]
    return outcome(setting, _SWEEP, rows, evaluation)


def training_sizes(manifest: Manifest, n_repeats: int, n_sizes: int) -> list[int]:
    """Evenly up to as many as every training half has of every class, and from 2 on."""
    most = len(manifest.records)
    for split in hold_outs(manifest, [1], n_repeats=n_repeats):
        tested = set(split.test)
        labels = [label for i, label in enumerate(manifest.labels) if i not in tested]
        most = min(most, *(labels.count(name) for name in manifest.classes))
    if most < 2:
        raise NotPossibleError("the training half of the patients has one image of some class only")
    return np.unique(np.linspace(2, most, n_sizes).round().astype(int)).tolist()
