"""Figures of the paper's experiments: ours filled, the published figures hollow beside them.

`draw` takes an outcome to its figure, `save_figure` writes it as SVG, with text as text, and PNG.
The same outcome gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from ..execution.files import written_whole
from ..execution.tables import Row
from ..reports.charts import INK, NO_METADATA
from ..reports.pictures import atom_sheet
from .accuracy import AccuracyOutcome
from .bases import BasesOutcome
from .codes import CodesOutcome, ImageCodes
from .complexity import STEPS, ComplexityOutcome, scientific
from .confusion import ConfusionOutcome
from .look import LOOK, bar, by, grid, panels, rank, style
from .outcome import OURS, Outcome
from .roc import RocOutcome
from .sweep import SweepOutcome

_PNG_DPI = 130
_BORDER = "#cc0000"
_N_ATOMS = 40  # shown of each class


def save_figure(outcome: Outcome, path: Path) -> list[Path]:
    """path.svg and path.png."""
    with mpl.rc_context(LOOK):
        figure = draw(outcome)
        svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
        with written_whole(svg) as partial:
            figure.savefig(partial, format="svg", metadata=NO_METADATA)
        figure.set_layout_engine("none")  # places are found: finding them takes half of the time
        with written_whole(png) as partial:
            figure.savefig(partial, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return [svg, png]


@singledispatch
def draw(outcome: Outcome) -> Figure:
    raise TypeError(f"there is no figure for {type(outcome).__name__}")


# --- pictures -----------------------------------------------------------------------------------


@draw.register
def _bases(outcome: BasesOutcome) -> Figure:
    """A sheet of atoms per method (rows) and class (columns)."""
    n_lines = -(-min(_N_ATOMS, next(iter(outcome.dictionaries.values())).shape[1]) // 10)
    shape = len(outcome.dictionaries), len(outcome.classes)
    figure, axes = grid(*shape, width=3.6, height=0.35 + 0.36 * n_lines)
    for line, (method, D) in zip(axes, outcome.dictionaries.items(), strict=True):
        for place, name, atoms in zip(line, outcome.classes, D, strict=True):
            place.imshow(atom_sheet(atoms, outcome.patch_px, _N_ATOMS), interpolation="nearest")
            place.set_title(f"{method}: {name}")
            place.set_axis_off()
    return figure


@draw.register
def _codes(outcome: CodesOutcome) -> Figure:
    """The images, and below each one its codes by every method, with the class border."""
    methods = list(dict.fromkeys(part.method for part in outcome.codes))
    names = list(outcome.pictures)
    figure, axes = grid(1 + len(methods), len(names), width=3.8, height=2.1)
    for place, (name, picture) in zip(axes[0], outcome.pictures.items(), strict=True):
        place.imshow(picture)
        place.set_title(f"image of {name}")
        place.set_axis_off()
    for part in outcome.codes:
        place = axes[1 + methods.index(part.method), names.index(part.truth)]
        _scatter_codes(place, part, outcome.classes)
    return figure


def _scatter_codes(place: Axes, part: ImageCodes, classes: Sequence[str]) -> None:
    entries: Any = part.codes.tocoo()
    colour, _ = style(part.method)
    place.scatter(entries.col, entries.data, 3, color=colour, linewidths=0, rasterized=True)
    n_codes = part.codes.shape[1]
    for i in range(1, len(classes)):
        place.axvline(i * n_codes / len(classes) - 0.5, color=_BORDER, linewidth=1.2)
    place.set_xlim(-0.5, n_codes - 0.5)
    place.set_title(f"{part.method} on {part.truth}: {part.own_share:.0%} on its own side")
    place.set_xlabel(f"atoms: {' | '.join(classes)}")
    place.set_ylabel("code")


# --- bars and tables ----------------------------------------------------------------------------


@draw.register
def _accuracy(outcome: AccuracyOutcome) -> Figure:
    """A panel of bars per data set."""
    parts = by(outcome.rows, "data")
    n_lines = max(len(rows) for rows in parts.values())
    figure, axes = panels(len(parts), width=3.4, height=2.4)
    for place, (data, unordered) in zip(axes, parts.items(), strict=True):
        rows = sorted(unordered, key=rank)
        for y, row in enumerate(rows):
            ours = row["source"] == OURS
            bar(place, y, row["accuracy"], row["method"], filled=ours)
            if ours:
                ends = [row["low"], row["high"]]
                place.plot(ends, [y, y], color=INK, linewidth=1.2, marker="|")
            place.text(1, y, f"{row['accuracy']:.1f}", va="center", color="white" if ours else INK)
        place.set_yticks(range(len(rows)), [row["method"] for row in rows])
        place.set_ylim(n_lines - 0.4, -0.6)  # bars as thick in all panels
        place.set(xlim=(0, 100), xlabel="overall accuracy, %", title=f"{data} ({_source(rows)})")
    return figure


@draw.register
def _confusion(outcome: ConfusionOutcome) -> Figure:
    """Per data set, the matrices of all methods under each other."""
    parts = by(outcome.rows, "data")
    n_lines = max(len({(r["method"], r["truth"]) for r in rows}) for rows in parts.values())
    figure, axes = panels(len(parts), width=3.6, height=0.8 + 0.22 * n_lines)
    for place, (data, unordered) in zip(axes, parts.items(), strict=True):
        rows = sorted(unordered, key=rank)
        lines = list(dict.fromkeys((row["method"], row["truth"]) for row in rows))
        answers = list(dict.fromkeys(row["answer"] for row in rows))
        cells = {(row["method"], row["truth"], row["answer"]): row for row in rows}
        share = np.array(
            [[cells[(*line, answer)]["percent"] for answer in answers] for line in lines]
        )
        place.imshow(share, cmap="Blues", vmin=0, vmax=130, aspect="auto")
        for (y, x), value in np.ndenumerate(share):
            mark = "" if cells[(*lines[y], answers[x])]["sums_to_100"] else " *"
            colour = "white" if value > 70 else INK  # the cells grow dark
            words = f"{value:.2f}{mark}"
            place.text(x, y, words, ha="center", va="center", fontsize=8, color=colour)
        place.set_xticks(range(len(answers)), answers)
        place.set_yticks(range(len(lines)), [f"{method}: {truth}" for method, truth in lines])
        place.tick_params(labelsize=7, length=0)
        for y in range(len(outcome.classes[data]), len(lines), len(outcome.classes[data])):
            place.axhline(y - 0.5, color=INK, linewidth=0.8)
        place.set_title(f"{data} ({_source(rows)}), %")
    return figure


@draw.register
def _complexity(outcome: ComplexityOutcome) -> Figure:
    """Operations by q, and seconds: published, recorded at the same size, measured at a small."""
    figure, (left, right) = panels(2, width=4.2, height=3.0)
    for row in outcome.rows:
        colour, marker = style(row["method"])
        counts = [row[f"operations q={q}"] for q in STEPS]
        # FDDL's line lies on that of Nayak's, nearly.
        dash = "--" if row["method"] == "FDDL" else "-"
        left.plot(STEPS, counts, dash, color=colour, marker=marker, label=row["method"])
    left.set(xlabel="q, steps of the l1 solver", ylabel="operations", yscale="log")
    left.set_title(f"coding of one iteration\n{outcome.counted_at}", fontsize=7)
    left.set_xticks(STEPS)
    _plain_ticks(left.yaxis)
    left.legend(fontsize=8)
    kinds = ("published seconds", "recorded seconds", "measured seconds")
    for place, row in enumerate(outcome.rows):
        for i, kind in enumerate(kinds):
            if row[kind] is not None:
                bar(right, place + 0.27 * (i - 1), row[kind], row["method"], i > 0, 0.24)
                words = f"{kind.split()[0]} {row[kind]:.3g} s"
                if kind == "recorded seconds":
                    words += f", {row['recorded iterations']} it."
                right.text(row[kind], place + 0.27 * (i - 1), f" {words}", va="center", fontsize=7)
    right.set_yticks(range(len(outcome.rows)), [row["method"] for row in outcome.rows])
    right.invert_yaxis()
    least = min(row["measured seconds"] for row in outcome.rows)
    right.set(xscale="log", xlabel="seconds", xlim=(least / 3, 2e7))
    right.set_title(f"training; measured at\n{outcome.measured_at}", fontsize=7)
    _plain_ticks(right.xaxis)
    return figure


def _plain_ticks(axis: Axis) -> None:
    axis.set_major_formatter(lambda value, _: scientific(value))
    axis.set_minor_formatter(lambda value, _: "")


# --- curves -------------------------------------------------------------------------------------


@draw.register
def _roc(outcome: RocOutcome) -> Figure:
    """A panel of curves per data set of ours, then one of published points for θ and for m."""
    ours = by(outcome.rows, "data")
    published = by([p for p in outcome.points if p["source"] != OURS], "moved")
    figure, axes = panels(len(ours) + len(published), width=3.4, height=3.2)
    for place, (data, rows) in zip(axes, ours.items(), strict=False):
        for method, curve in by(rows, "method").items():
            colour, _ = style(method)
            # Between two points only the worse of them is certain.
            ordered = sorted(curve, key=lambda row: (row["false_alarm"], -row["miss"]))
            place.plot(*_rates(ordered), color=colour, drawstyle="steps-post", linewidth=1.6)
        points = [p for p in outcome.points if p["data"] == data and p["source"] == OURS]
        _scatter_points(place, points)
        place.set_title(f"{data} ({OURS}), {rows[0]['moved']} from {_range(rows)}")
        place.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    for place, (moved, points) in zip(axes[len(ours) :], published.items(), strict=False):
        _scatter_points(place, points, hollow=True)
        for point in points:
            at = (point["false_alarm"], point["miss"])
            name = point["data"].split()[-1]
            place.annotate(name, at, (4, 3), textcoords="offset points", fontsize=6)
        place.set_title(f"published points ({moved})")
        place.set(xlim=(-0.01, 0.42), ylim=(-0.01, 0.42))
    for place in axes:
        place.set(xlabel="false alarm rate", ylabel="miss rate")
        place.legend(fontsize=7)
    return figure


def _scatter_points(place: Axes, points: Sequence[Row], *, hollow: bool = False) -> None:
    for method, own in by(points, "method").items():
        colour, marker = style(method)
        inside = "none" if hollow else colour
        x, y = _rates(own)
        place.scatter(x, y, 40, marker=marker, edgecolors=colour, facecolors=inside, label=method)


@draw.register
def _sweep(outcome: SweepOutcome) -> Figure:
    """Ours as curves, the published accuracies as points on the right."""
    figure = Figure(figsize=(7.6, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 1.3])
    ours = [row for row in outcome.rows if row["source"] == OURS]
    steps = sorted({row[outcome.axis] for row in ours})
    for place, (method, rows) in enumerate(by(ours, "method").items()):
        colour, marker = style(method)
        # Side by side, so that all intervals can be seen.
        x = [row[outcome.axis] + 0.01 * (place - 3) * (steps[-1] - steps[0]) for row in rows]
        y = [row["accuracy"] for row in rows]
        reach = [
            [r["accuracy"] - r["low"] for r in rows],
            [r["high"] - r["accuracy"] for r in rows],
        ]
        left.errorbar(x, y, np.maximum(reach, 0), color=colour, marker=marker, elinewidth=0.7)
        left.plot([], [], color=colour, marker=marker, label=method)
    left.set(xlabel=outcome.axis, ylabel="overall accuracy, %", ylim=(0, 104))
    left.set_xticks(steps)
    left.set_title(f"{ours[0]['data']} ({OURS})" if ours else OURS)
    left.legend(fontsize=7, ncols=2)
    others = [row for row in outcome.rows if row["source"] != OURS]
    names = list(by(others, "data"))
    for row in others:
        colour, marker = style(row["method"])
        at = names.index(row["data"])
        right.scatter(at, row["accuracy"], 34, marker=marker, edgecolors=colour, facecolors="none")
    right.set_xticks(range(len(names)), names, rotation=35, ha="right", fontsize=7)
    right.set_title(f"published, at\n{outcome.published_at}", fontsize=7)
    return figure


# --- rows ----------------------------------------------------------------------------------------


def _source(rows: Sequence[Row]) -> str:
    return str(rows[0]["source"])


def _rates(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    return [row["false_alarm"] for row in rows], [row["miss"] for row in rows]


def _range(rows: Sequence[Row]) -> str:
    values = [row["value"] for row in rows]
    return f"{min(values):g} to {max(values):g}"
