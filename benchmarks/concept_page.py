"""The page and the figure of what `benchmarks.concepts` measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .concept_learners import IDEAS, N_ATOMS, RIVALS

Facts = list[dict[str, Any]]
_SETS = {
    "ucsb": "UCSB breast (58 images, 10 groups)",
    "glas": "GlaS colon (165 images, 16 patients)",
    "camelyon": "Camelyon tiles (32, in 8 groups; a cell has a label, by its mask)",
}
_COLUMNS = {
    "explained": "explained variance",
    "own encoder": "by own encoder",
    "seeds": "seeds",
    "halves": "patient halves",
    "other tissue": "other tissue",
    "patients per atom": "patients per atom",
    "single atom AUC": "one atom's AUC",
    "accuracy": "head",
    "seconds": "CPU s",
}
_IDEA_COLUMNS = ("explained", "halves", "other tissue", "accuracy")
OURS = "held to axes (`histodict concepts`)"
_FEW = (3, 5, 10)
_DRAWN = [*RIVALS, "held to axes, pull 0.5", "held to axes, pull 2", "the axes alone"]
_MARKERS = "oo*sssD^vPXhhp"
_INTRODUCTION = """# Atoms that other patients would give as well

Made by `python -m benchmarks.concepts`. Cells of EfficientNet-Lite0 as `histodict features`
computes them (1280 numbers, stain by Reinhard), 120 of each image (of a tile of Camelyon 256),
centred and of unit norm; {n_atoms} atoms, 8 of them for a cell, found by pursuit whatever the
method. The patients are parted into halves that share nobody. Everything is done anew in each half,
from the mean of the vectors on, with at most 4,000 cells; all but the matches is measured on the
other half. What follows from it is said in [concepts without labels](concepts-without-labels.md).

- **explained variance**: of cells of patients not learnt from. *By own encoder*: with the method's
  own codes instead of pursuit (k-means and mixtures: the one nearest centre).
- **seeds**, **patient halves**, **other tissue**: matched |cos|, mean over all atoms, one to one:
  of two trainings on the same cells; of the two halves; and with a dictionary of another organ.
  What an atom shares with the other organ tells nothing of this one. Random directions of the same
  covariance match with {chance}.
- **patients per atom**: share of the unseen patients that use an atom in 1 % of their cells or
  more.
- **one atom's AUC**: of the atom that is best on the training half, on the other half.
- **head**: balanced accuracy of one logistic head on mean codes, by sign, trained in the half.
- **CPU s**: of one training, on one core of a busy machine.

NMF learns from the cells as they are, which are not negative; its atoms are held against the
centred cells as directions. DFDL has 64 atoms per class, and knows the labels of its half. The
autoencoder starts from samples, as dictionaries do, and is trained until its error is flat, or for
150 epochs.

A figure is the mean over the partings, with the lowest and the highest where there are several.
"""


def write_page(folder: Path, facts: Facts) -> None:
    """concepts-rivals.md and concepts-rivals.png."""
    folder.mkdir(parents=True, exist_ok=True)
    probability = _spread(facts, "chance", range_only=True)
    parts = [_INTRODUCTION.format(n_atoms=N_ATOMS, chance=probability)]
    parts.append("![Explained variance and match over halves](concepts-rivals.png)\n")
    for name, text in _SETS.items():
        own = [fact for fact in facts if fact["set"] == name]
        if own:
            parts.append(f"## {text}\n\n{_table(own, RIVALS, list(_COLUMNS))}\n")
    parts += [_ideas(facts), _few(facts)]
    (folder / "concepts-rivals.md").write_text("\n".join(parts), encoding="utf-8")
    _draw(folder / "concepts-rivals.png", facts)


def _table(facts: Facts, learners: Sequence[str] | dict[str, Any], columns: list[str]) -> str:
    heads = ["", *(_COLUMNS[column] for column in columns), "partings"]
    lines = [_line(heads), _line(["---"] * len(heads))]
    for learner in learners:
        own = [fact for fact in facts if fact["learner"] == learner]
        if own:
            cells = [_spread(own, column) for column in columns]
            lines.append(_line([learner, *cells, str(len(own))]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(facts: Facts, column: str, *, range_only: bool = False) -> str:
    values = np.array([fact[column] for fact in facts if column in fact], float)
    values = values[~np.isnan(values)]
    if not len(values):
        return ""
    digits = 1 if column == "seconds" else 2 if range_only else 3
    low, high = values.min(), values.max()
    if range_only:
        return f"{low:.{digits}f} to {high:.{digits}f}"
    spread = f" ({low:.{digits}f} to {high:.{digits}f})" if len(values) > 1 else ""
    return f"{values.mean():.{digits}f}{spread}"


def _ideas(facts: Facts) -> str:
    parts = ["## What moves the match\n"]
    for name in ("ucsb", "glas"):
        own = [fact for fact in facts if fact["set"] == name]
        learners = ["ODL λ 0.3", OURS, *IDEAS]
        parts.append(f"{_SETS[name]}\n\n{_table(own, learners, list(_IDEA_COLUMNS))}\n")
    return "\n".join(parts)


def _few(facts: Facts) -> str:
    heads = ["", "head on", *(f"{n} images per class" for n in _FEW)]
    lines = ["## How few labels are enough\n", _line(heads), _line(["---"] * len(heads))]
    for name in ("ucsb", "glas"):
        for learner in (OURS, "ODL λ 0.3", "k-means"):
            own = [f for f in facts if f["set"] == name and f["learner"] == learner]
            if any("concepts from 3" in fact for fact in own):
                cells = [_spread(own, f"concepts from {n}") for n in _FEW]
                lines.append(_line([name, f"usage of concepts: {learner}", *cells]))
                plain = [_spread(own, f"vectors from {n}") for n in _FEW]
        lines.append(_line([name, "mean vector, no concepts", *plain]))
    return "\n".join(lines) + "\n"


def _draw(file: Path, facts: Facts) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(12, 4.6), sharey=True)
    for ensemble, name in zip(axes, ("ucsb", "glas"), strict=True):
        own = [fact for fact in facts if fact["set"] == name]
        for place, learner in enumerate(_DRAWN):
            found = [fact for fact in own if fact["learner"] == learner]
            if found:
                x, y = (np.mean([fact[k] for fact in found]) for k in ("explained", "halves"))
                style = {"marker": _MARKERS[place], "color": f"C{place % 10}", "label": learner}
                ensemble.plot(
                    x, y, linestyle="none", markersize=10 if learner == OURS else 7, **style
                )
        ensemble.axhline(np.mean([fact["chance"] for fact in own]), color="grey", ls=":", lw=1)
        ensemble.axhline(0.8, color="grey", lw=0.5)
        ensemble.set_title(_SETS[name], fontsize=10)
        ensemble.set_xlabel("explained variance, unseen patients")
    axes[0].set_ylabel("matched |cos| over patient halves")
    axes[0].text(0.02, 0.02, "dotted: random directions", transform=axes[0].transAxes, fontsize=7)
    known: dict[str, Any] = {}
    for ensemble in axes:
        known |= {mark.get_label(): mark for mark in ensemble.get_legend_handles_labels()[0]}
    names = [word for word in _DRAWN if word in known]
    text = [word.replace("`", "") for word in names]
    figure.legend([known[word] for word in names], text, loc="center right", fontsize=8)
    figure.tight_layout(rect=(0, 0, 0.77, 1))
    figure.savefig(file, dpi=100)
    plt.close(figure)
