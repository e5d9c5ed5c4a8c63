"""The tables of the study on DFDL's discriminative term: means, and differences to the base.

Balanced accuracy is of the images of a whole repeat, as everywhere in histodict; AUC of a split's
images, because mean margins of two models cannot be pooled. Intervals are 95 %, from draws of
patients that are the same for both methods.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from histodict.evaluation.answers import Repeat
from histodict.evaluation.comparison import paired_bootstrap
from histodict.evaluation.intervals import Metric
from histodict.evaluation.metrics import auc, balanced_accuracy

from .discriminative_tasks import BASE, TERM, VARIANTS

_N_REPLICATES = 1000
Row = dict[str, Any]
Split = tuple[int, int]


def called(labels: NDArray[Any], scores: NDArray[Any]) -> float:
    return balanced_accuracy(labels, (scores > 0).astype(int))


def class_mean(labels: NDArray[Any], values: NDArray[Any]) -> float:
    """Mean over the classes of the mean over their images."""
    return float(np.mean([values[labels == label].mean() for label in np.unique(labels)]))


@dataclass(frozen=True)
class Measure:
    """A column of the tables. `by_split`: one value per split, not per repeat."""

    title: str
    column: str
    metric: Metric
    by_split: bool = False


MEASURES = (
    Measure("balanced accuracy", "score", called),
    Measure("AUC", "joint_margin", auc, by_split=True),
    Measure("patches right", "joint_right", class_mean),
    Measure("AUC, coded alone", "alone_margin", auc, by_split=True),
    Measure("patches right, alone", "alone_right", class_mean),
)


def print_report(results: list[Row]) -> None:
    if not results:
        raise SystemExit("there are no results yet: run without --report first")
    groups: dict[tuple[Any, ...], dict[str, dict[Split, Row]]] = {}
    for row in results:
        key = (row["set"], row["kind"], row["n_atoms"], row["n_per_class"])
        found = groups.setdefault(key, defaultdict(dict))
        found[row["variant"]][row["repeat"], row["fold"]] = row
    for key, variants in groups.items():
        name, kind, n_atoms, n_patches = key
        print(f"\n### {name}, {kind}: {n_atoms} atoms, {n_patches} patches per class\n")
        _print_table(variants, list(TERM), lambda name: BASE)
        _print_table(variants, _with_rounds(VARIANTS), _base_of)


def _with_rounds(names: Iterable[str]) -> list[str]:
    found = []
    for name in names:
        found += [name, f"{name}, again"] if name.startswith("mining") else [name]
    return found


def _base_of(name: str) -> str:
    return VARIANTS[name.removesuffix(", again")]


def _print_table(
    variants: dict[str, dict[Split, Row]], names: list[str], base_of: Callable[[str], str]
) -> None:
    """A row per variant: on the splits that it and its base have in common, in whole repeats."""
    rows = []
    for name in names:
        base = variants.get(base_of(name), {})
        splits = _whole(set(variants.get(name, {})) & set(base))
        if splits:
            rows.append(_cells(name, base_of(name), variants[name], base, splits))
    if not rows:
        return
    titles = ["", "splits", *(m.title for m in MEASURES), "test e own, other", "training e"]
    titles += ["atoms across, within", "iterations"]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    for cells in rows:
        print("| " + " | ".join(cells) + " |")
    print()


def _whole(splits: set[Split]) -> list[Split]:
    """Splits of which both folds are there."""
    return sorted(s for s in splits if (s[0], 0) in splits and (s[0], 1) in splits)


def _cells(
    name: str, base_name: str, ours: dict[Split, Row], base: dict[Split, Row], splits: list[Split]
) -> list[str]:
    cells = [name if base_name == BASE else f"{name} (base: {base_name})", str(len(splits))]
    for measure in MEASURES:
        first, second = (_repeats(rows, splits, measure) for rows in (ours, base))
        if name == base_name:
            value = np.mean([measure.metric(r.labels, r.answers) for r in first])
            cells.append(f"{value:.3f}")
            continue
        found = paired_bootstrap(measure.metric, first, second, n_replicates=_N_REPLICATES)
        mark = "**" if found.low > 0 or found.high < 0 else ""
        shift = f"{found.difference:+.3f} ({found.low:+.3f} to {found.high:+.3f})"
        cells.append(f"{found.first:.3f}, {mark}{shift}{mark}")
    return cells + _facts([ours[split] for split in splits])


def _facts(rows: list[Row]) -> list[str]:
    """Squared residuals of the classes' dictionaries alone, coherence, iterations."""
    tested = [
        np.mean([np.mean(row["images"][f"alone_{side}"]) for row in rows])
        for side in ("own", "other")
    ]
    trained = [np.mean([row[f"train_{side}"] for row in rows]) for side in ("own", "other")]
    cosines = [np.mean([row[side] for row in rows]) for side in ("across", "within")]
    pairs = [f"{a:.3f}, {b:.3f}" for a, b in (tested, trained, cosines)]
    return [*pairs, f"{np.mean([row['n_iter'] for row in rows]):.0f}"]


def _repeats(rows: dict[Split, Row], splits: list[Split], measure: Measure) -> list[Repeat]:
    parts: dict[Any, list[Row]] = defaultdict(list)
    for split in splits:
        parts[split if measure.by_split else split[0]].append(rows[split]["images"])
    return [
        Repeat(
            *(np.concatenate([p[c] for p in found]) for c in ("label", "patient", measure.column))
        )
        for found in parts.values()
    ]
