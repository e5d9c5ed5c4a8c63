"""Write the page and the figure with the results of `benchmarks.concepts`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .concept_learners import METHODS, N_ATOMS, VARIANTS

Rows = list[dict[str, Any]]
NAME = "concepts-compared"
_SETS = {"ucsb": "UCSB", "glas": "GlaS", "camelyon": "CAMELYON"}
_COLUMNS = {"explained": "explained", "halves": "halves", "accuracy": "accuracy"}
_VARIANT_COLUMNS = {"explained": "explained", "halves": "halves", "other tissue": "other organ"}
OURS = "axis-anchored (`histodict concepts`)"
_FEW = (3, 5, 10)
_PLOTTED = [*METHODS, "axis-anchored, pull 0.5", "axis-anchored, pull 2", "the axes alone"]
_MARKERS = "oo*sssD^vPXhhp"
_INTRODUCTION = """# Comparison of methods that learn concepts without labels

This page compares methods by the similarity of the concepts that they learn from different
patients.
[Concepts without labels](concepts-without-labels.md) has the conclusions. Commands:

```
python -m benchmarks.concepts --output concepts                  # run the experiments
python -m benchmarks.concepts --output concepts --tables docs    # write this page and its figure
```

**Data.** Features of `histodict features` (EfficientNet-Lite0, 1280 numbers, Reinhard stain
normalisation), centred and of unit norm: 120 patches per image of UCSB breast (58 images,
10 groups) and GlaS colon (165 images, 16 patients), and 256 per tile of CAMELYON (32 tiles, 8
groups; patches are labelled by their mask). Patients are split into two halves, and all methods are
trained on at most 4,000 patches of each half. All methods have {n_atoms} atoms, and every patch is
encoded with 8 of them (orthogonal matching pursuit).

**Columns.** Values are means over 1 to 3 splits into halves.

- *explained*: explained variance of the patches of the other half of the patients.
- *halves*: similarity of the atoms of the two halves: mean |cos| of a one-to-one matching. For
  random directions with the covariance of the features, this is {chance}.
- *other organ*: similarity of the atoms learned on this organ and those learned on the other one.
  Only the excess of *halves* over this value is specific to the organ.
- *accuracy*: balanced accuracy on the other half. The classifier is a logistic regression. Its
  features are, for each image, the mean positive part and the mean negative part of the codes.

{spread}.

ODL is online dictionary learning with the l1 penalty λ. The objective of axis-anchored atoms
contains a penalty on their distance from axes of the feature space, with the weight *pull* (default
1); with *the axes alone*, the weight is so large that atoms equal axes. DFDL uses labels. NMF uses
features that are not centred.

![Explained variance and similarity between halves of the patients]({name}.png)
"""


def write_page(folder: Path, rows: Rows) -> None:
    """Write concepts-compared.md and concepts-compared.png."""
    folder.mkdir(parents=True, exist_ok=True)
    introduction = _INTRODUCTION.format(
        n_atoms=N_ATOMS, chance=_range(rows, "chance"), spread=_spread(rows), name=NAME
    )
    variants = {name: _SETS[name] for name in ("ucsb", "glas")}
    compared = ["ODL λ 0.3", OURS, *VARIANTS]
    parts = [
        introduction,
        f"## Methods\n\n{_table(rows, METHODS, _SETS, _COLUMNS)}\n",
        f"## Variants\n\n{_table(rows, compared, variants, _VARIANT_COLUMNS)}\n",
        _few(rows),
    ]
    (folder / f"{NAME}.md").write_text("\n".join(parts), encoding="utf-8")
    _draw(folder / f"{NAME}.png", rows)


def _table(
    rows: Rows, learners: Iterable[str], sets: dict[str, str], columns: dict[str, str]
) -> str:
    """Return a table with one row per method and the columns of every set."""
    shown = {name: title for name, title in sets.items() if any(f["set"] == name for f in rows)}
    heads = ["", *(f"{title}: {text}" for title in shown.values() for text in columns.values())]
    lines = [_line(heads), f"|{'---|' * len(heads)}"]
    for learner in learners:
        cells = [_mean(_of(rows, name, learner), key) for name in shown for key in columns]
        if any(cells):
            lines.append(_line([learner, *cells]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _of(rows: Rows, name: str, learner: str) -> Rows:
    return [row for row in rows if row["set"] == name and row["learner"] == learner]


def _values(rows: Rows, key: str) -> Any:
    values = np.array([row[key] for row in rows if key in row], float)
    return values[~np.isnan(values)]


def _mean(rows: Rows, key: str) -> str:
    values = _values(rows, key)
    return f"{values.mean():.3f}" if len(values) else ""


def _range(rows: Rows, key: str) -> str:
    values = _values(rows, key)
    return f"{values.min():.2f} to {values.max():.2f}"


def _spread(rows: Rows) -> str:
    """Describe the largest deviation of a single split from the mean, by column."""
    columns = _COLUMNS | _VARIANT_COLUMNS
    largest = dict.fromkeys(columns, 0.0)
    for name, learner in {(row["set"], row["learner"]) for row in rows}:
        for key in columns:
            values = _values(_of(rows, name, learner), key)
            if len(values):
                largest[key] = max(largest[key], float(np.abs(values - values.mean()).max()))
    deviations = (f"{value:.2f} (*{columns[key]}*)" for key, value in largest.items())
    return f"Single splits differ from the mean by at most {', '.join(deviations)}"


def _few(rows: Rows) -> str:
    shown = [(name, n) for name in ("ucsb", "glas") for n in _FEW]
    heads = ["logistic regression on", *(f"{_SETS[name]}, {n}" for name, n in shown)]
    lines = ["## Few labels\n", "Balanced accuracy with 3, 5 and 10 labelled images per class."]
    lines += ["", _line(heads), f"|{'---|' * len(heads)}"]
    learners = (OURS, "ODL λ 0.3", "k-means")
    for learner in learners:
        cells = [_mean(_of(rows, name, learner), f"concepts from {n}") for name, n in shown]
        lines.append(_line([f"usage of concepts, {learner}", *cells]))
    plain = [_mean(_of(rows, name, learners[-1]), f"vectors from {n}") for name, n in shown]
    lines.append(_line(["mean feature vector", *plain]))
    return "\n".join(lines) + "\n"


def _draw(file: Path, rows: Rows) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 4.6), sharey=True)
    for axis, name in zip(axes, ("ucsb", "glas"), strict=True):
        for place, learner in enumerate(_PLOTTED):
            found = _of(rows, name, learner)
            if found:
                x, y = (_values(found, key).mean() for key in ("explained", "halves"))
                style = {"marker": _MARKERS[place], "color": f"C{place % 10}", "label": learner}
                axis.plot(x, y, linestyle="none", markersize=10 if learner == OURS else 7, **style)
        axis.set_title(_SETS[name], fontsize=10)
        axis.set_xlabel("explained variance, other half of the patients")
    axes[0].set_ylabel("similarity of the atoms of two halves, |cos|")
    known: dict[str, Any] = {}
    for axis in axes:
        known |= {line.get_label(): line for line in axis.get_legend_handles_labels()[0]}
    names = [name for name in _PLOTTED if name in known]
    labels = [name.replace("`", "") for name in names]
    figure.legend([known[name] for name in names], labels, loc="center right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 0.77, 1))
    figure.savefig(file, dpi=100)
    plt.close(figure)
