"""What to compare and how, from the words of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..evaluation.protocols import (
    k_folds,
    learning_curve_splits,
    leave_one_site_out,
    predefined_split,
)
from ..evaluation.split_file import load_splits
from ..evaluation.splits import Splits
from ..images.manifest import Manifest
from ..pipeline.plan import ENSEMBLE_PRESETS, Plan
from ..presets import PRESETS
from .tasks import UNLABELLED

_PRESETS = {*PRESETS, *ENSEMBLE_PRESETS}


def choose_plans(
    names: Sequence[str],
    default_preset: str,
    settings: dict[str, str],
    region: str | None = None,
) -> dict[str, Plan]:
    """Plans by the name they were asked for: METHOD, PRESET, PRESET:METHOD, or any +unlabelled.

    With a `region`, they must be able to find it. A setting that only some of the methods know
    changes those; one that none knows is an error.
    """
    plans = {}
    known: set[str] = set()
    for name in names:
        if region is not None and name.strip().endswith(UNLABELLED):
            raise ValueError(f"{name.strip()}: thresholds are adapted for classes, not for regions")
        first, sign, second = name.strip().removesuffix(UNLABELLED).partition(":")
        words = (first, second or None) if sign or first in _PRESETS else (default_preset, first)
        plan = Plan.named(*words, regions=region is not None)
        own = {key: text for key, text in settings.items() if plan.has_setting(key)}
        known |= set(own)
        plans[name.strip()] = plan.parse_settings(own)
        plans[name.strip()].build_model(region=region)  # refuses what cannot find regions
    unknown = sorted(set(settings) - known)
    if unknown:
        raise ValueError(f"none of the methods has a setting {unknown[0]!r}")
    return plans


def choose_splits(
    manifest: Manifest,
    protocol: str,
    n_folds: int,
    n_repeats: int,
    per_class: Sequence[int],
    by: str,
) -> Splits:
    """The splits of a protocol by name, or those of a file."""
    if protocol == "k-fold":
        return k_folds(manifest, n_folds, n_repeats=n_repeats, by=by)
    if protocol == "hold-out":
        return learning_curve_splits(manifest, per_class, n_repeats=n_repeats, by=by)
    if protocol == "site":
        return leave_one_site_out(manifest)
    if protocol == "predefined":
        return predefined_split(manifest, by=by)
    if protocol.endswith(".json"):
        return load_splits(Path(protocol), manifest)
    raise ValueError(
        f"protocol must be k-fold, hold-out, site, given or a .json file, not {protocol!r}"
    )
