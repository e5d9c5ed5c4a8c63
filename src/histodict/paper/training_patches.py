"""Accuracy by the number of training patches of each class."""

from __future__ import annotations

from .setting import LEARNERS, ON_PATCHES, Setting
from .sweep import Sweep, SweepOutcome, sweep_plans

NAME = "training-patches"
_SWEEP = Sweep(
    NAME, "Accuracy by number of training patches", "patches per class", "10,000 patches per class"
)


def run(setting: Setting) -> SweepOutcome:
    methods = setting.choose(LEARNERS, ON_PATCHES, "patches are what some methods learn from")
    plans = {
        (method, n): setting.plan(method, patches_per_class=n)
        for method in methods
        for n in setting.sizes.patches
    }
    return sweep_plans(setting, _SWEEP, plans)
