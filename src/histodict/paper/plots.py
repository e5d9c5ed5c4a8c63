"""Shared parts of the figures: one style per method, panels, bars, files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ..reports import html as charts
from ..utils.files import atomic_write
from ..utils.text_io import Row
from .setting import Outcome

_STYLE: Any = charts.STYLE | {"font.size": 9, "axes.titlesize": 9, "svg.hashsalt": "histodict"}
# Style of each method in all figures: markers, and colours for colour-blind readers.
_STYLES = {
    "DFDL": ("#0072b2", "o"),
    "LC-KSVD": ("#d55e00", "s"),
    "FDDL": ("#009e73", "D"),
    "Nayak's": ("#cc79a7", "^"),
    "SRC": ("#7f7f7f", "v"),
    "SHIRC": ("#56b4e9", "P"),
    "WND-CHARM": ("#222222", "X"),
}
_OTHER = ("#8c564b", "*")
_PNG_DPI = 130


def save_figure(outcome: Outcome, path: Path) -> list[Path]:
    """Write path.svg, with text as text, and path.png; the same outcome gives the same bytes."""
    with mpl.rc_context(_STYLE):
        figure = outcome.draw()
        svg, png = path.with_suffix(".svg"), path.with_suffix(".png")
        with atomic_write(svg) as partial:
            figure.savefig(partial, format="svg", metadata=charts.NO_METADATA)
        # The layout is computed already; a layout engine would compute it again, which is slow.
        figure.set_layout_engine(None)
        with atomic_write(png) as partial:
            figure.savefig(partial, format="png", dpi=_PNG_DPI, metadata={"Software": None})
    return [svg, png]


def grid(n_rows: int, n_columns: int, width: float, height: float) -> tuple[Figure, Any]:
    """Return a figure with a grid of axes."""
    layout = ConstrainedLayoutEngine(h_pad=0.1)
    figure = Figure(figsize=(width * n_columns, height * n_rows), layout=layout)
    return figure, figure.subplots(n_rows, n_columns, squeeze=False)


def panels(n_panels: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes in rows of at most three; surplus axes are removed."""
    n_columns = 2 if n_panels == 4 else min(n_panels, 3)
    figure, axes = grid(-(-n_panels // n_columns), n_columns, width, height)
    flat: list[Axes] = list(axes.flat)
    for empty in flat[n_panels:]:
        empty.remove()
    return figure, flat[:n_panels]


def bar(
    place: Axes, y: float, value: float, method: str, filled: bool, height: float = 0.7
) -> None:
    """Draw a horizontal bar in the colour of a method."""
    colour, _ = style(method)
    inside = colour if filled else "none"
    place.barh(y, value, height, facecolor=inside, edgecolor=colour, linewidth=1.4)


def rank(row: Row) -> int:
    """Return the position of a method in panels, equal for rows of one method."""
    return [*_STYLES, row["method"]].index(row["method"])


def style(method: str) -> tuple[str, str]:
    """Return colour and marker of a method."""
    return _STYLES.get(method, _OTHER)


def by(rows: Sequence[Row], column: str) -> dict[str, list[Row]]:
    """Return rows grouped by the value of a column."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        parts.setdefault(row[column], []).append(row)
    return parts
