"""Accuracy by the number of bases of each class (k)."""

from __future__ import annotations

from .setting import CLASS_LEARNERS, LEARNERS, Setting
from .sweep import Sweep, SweepOutcome, sweep_plans

NAME = "bases-count"
_SWEEP = Sweep(NAME, "Accuracy by number of bases", "bases per class", "500 bases per class")


def run(setting: Setting) -> SweepOutcome:
    """A method with one dictionary for all classes gets k atoms for each of them."""
    possible = (*CLASS_LEARNERS, "nayak")
    methods = setting.choose(LEARNERS, possible, "bases are what some methods learn")
    plans = {
        (method, k): setting.plan(method, n_atoms=k)
        for method in methods
        for k in setting.sizes.bases
    }
    return sweep_plans(setting, _SWEEP, plans)
