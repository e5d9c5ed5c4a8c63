"""Charts of an evaluation as SVG text, for a page or a file of their own.

They are drawn narrow, so that their words can be read on a phone, in colours that colour-blind
readers tell apart, with a marker or dash for whoever sees none. The same numbers give the same
bytes.

HTML pages in one style, each in one file: no scripts, nothing fetched.

A template is named by its path in the package, such as "synthetic/page.html.j2". It extends
"reports/base.html.j2"; "reports/parts.html.j2" holds shared parts.

Patches of a gallery cut from their images, in their surroundings and outlined.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..datasets.manifest import ImageRecord
from ..explain.patch_sample import PatchSample
from ..images.source import ImageSource, open_image
from ..metrics.scores import CalibrationCurve, RocCurve
from ..models.patch_pipeline import map_images
from ..patches.patch_map import COLOURS, class_css_colour
from ..patches.rendering import jpeg_data_uri
from ..precomputed.feature_file import is_feature_file
from ..utils.files import atomic_write
from ..utils.parallel import Threads
from ..utils.progress import Callback, no_callback

_WIDTH = 4.7  # inches
INK = "#22303c"
_SOFT, _GREY = "#8d99a5", "#5b6b79"
STYLE: Any = {
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": _SOFT,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.parse_math": False,  # a name may hold a dollar sign
    "svg.fonttype": "none",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # the same bytes every day


@dataclass(frozen=True)
class ChartEstimate:
    """A named value with its interval."""

    name: str
    value: float
    low: float
    high: float


def intervals_svg(
    name: str,
    rows: Sequence[ChartEstimate],
    label: str,
    ends: tuple[float, float],
    line: tuple[float, str] | None = None,
    first_style: int = 0,
) -> str:
    """One row per estimate, in the order given; `line`: where to draw one, and its name.

    The axis shows `ends` and what lies beyond, so that a tiny spread does not look large.
    `first_style`: that of the first row, so that a method looks alike in all charts.
    """
    with _chart(0.9 + 0.32 * len(rows)) as (figure, axes):
        if line is not None:
            axes.axvline(line[0], color=_SOFT, linestyle=":", linewidth=1.2)
            over = axes.get_xaxis_transform()  # x in data, y in parts of the axes
            axes.text(line[0], 1.02, line[1], transform=over, color=_GREY, fontsize=9, ha="center")
        styles = _styles(first_style + len(rows))[first_style:]
        for place, (row, (colour, marker, _)) in enumerate(zip(rows, styles, strict=True)):
            axes.plot([row.low, row.high], [place, place], color=colour, linewidth=2)
            axes.plot(row.value, place, marker, color=colour, markersize=7)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        low, high = min(ends[0], *(r.low for r in rows)), max(ends[1], *(r.high for r in rows))
        axes.set_xlim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        axes.set(xlabel=label, axisbelow=True)
        axes.grid(axis="x", color="#e6eaee")
        return _svg(figure, name, _text(label, rows))


def sizes_svg(
    name: str, curves: Mapping[str, Sequence[ChartEstimate]], label: str, axis_label: str
) -> str:
    """A curve per method over steps named alike in all of them, side by side at every step."""
    with _chart(3.6) as (figure, axes):
        n_curves = max(len(curves), 2)
        styles = _styles(len(curves))
        for place, ((method, rows), style) in enumerate(zip(curves.items(), styles, strict=True)):
            shift = 0.4 * (place / (n_curves - 1) - 0.5)
            x, values = [step + shift for step in range(len(rows))], [row.value for row in rows]
            reach = [[r.value - r.low for r in rows], [r.high - r.value for r in rows]]
            line: Any = dict(zip(("color", "marker", "linestyle"), style, strict=True))
            axes.errorbar(x, values, reach, linewidth=1.6, elinewidth=1, label=method, **line)
        steps = [row.name for row in next(iter(curves.values()))]
        axes.set_xticks(range(len(steps)), steps)
        axes.set(xlabel=axis_label, ylabel=label)
        axes.grid(axis="y", color="#e6eaee")
        every = [row for rows in curves.values() for row in rows]
        return _svg(figure, name, f"{label} against {axis_label}; {len(every)} values")


def roc_curves_svg(name: str, curves: Mapping[str, RocCurve]) -> str:
    """Misses against false alarms, with the point at which each method works."""
    with _chart(_WIDTH) as (figure, axes):
        axes.plot([0, 1], [1, 0], ":", color=_SOFT, linewidth=1, label="chance")
        slimmer = np.linspace(1, 0.5, len(curves))  # a later one leaves the one beneath in sight
        for (method, curve), (colour, marker, dash), size in zip(
            curves.items(), _styles(len(curves)), slimmer, strict=True
        ):
            line = {"color": colour, "linestyle": dash, "linewidth": 3 * size}
            axes.plot(curve.false_positive_rate, curve.false_negative_rate, **line)
            axes.plot(*curve.operating, marker, color=colour, markersize=12 * size, clip_on=False)
            axes.plot([], [], marker=marker, label=method, **line)  # both, for the legend
        axes.set(xlabel="false alarm rate", ylabel="miss rate", aspect="equal")
        axes.set(xlim=(-0.01, 1), ylim=(-0.01, 1))
        points = (f"{m} {c.operating[0]:.3f}, {c.operating[1]:.3f}" for m, c in curves.items())
        words = "False alarm rate and miss rate at the operating points: "
        return _svg(figure, name, words + "; ".join(points))


def calibration_svg(name: str, curves: Mapping[str, CalibrationCurve]) -> str:
    """How often it was so against the probability that was said; larger dots: more images."""
    with _chart(_WIDTH) as (figure, axes):
        axes.plot([0, 1], [0, 1], ":", color=_SOFT, linewidth=1, label="perfect")
        for (method, curve), style in zip(curves.items(), _styles(len(curves)), strict=True):
            colour, marker, dash = style
            axes.plot(curve.probability, curve.observed, color=colour, linestyle=dash, label=method)
            sizes = 20 + 130 * curve.counts / curve.counts.max()
            axes.scatter(curve.probability, curve.observed, sizes, color=colour, marker=marker)
        axes.set(xlabel="probability said", ylabel="share that was so", aspect="equal")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        return _svg(figure, name, f"Calibration of {', '.join(curves)}")


# --- what they share ----------------------------------------------------------------------------


@contextmanager
def _chart(height: float) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure, figure.add_subplot()


def _styles(n: int) -> list[tuple[str, str, str]]:
    """Colour, marker and dash of n methods; no two alike among the first thirty."""
    # Yellow is hard to see on white.
    colours = [mpl.colors.to_hex(c / 255) for i, c in enumerate(COLOURS) if i != 4]
    kinds = zip(cycle(colours), cycle("osD^vP"), cycle(["-", "--", "-.", ":"]), strict=False)
    return list(islice(kinds, n))


def _legend_below(figure: Figure, axes: Axes) -> None:
    """Of what has a label, if anything has."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    n_columns = 1 if longest > 22 else 2 if longest > 12 else 3
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=n_columns, fontsize=9)


def _text(label: str, rows: Sequence[ChartEstimate]) -> str:
    values = (f"{r.name} {r.value:.3f} ({r.low:.3f} to {r.high:.3f})" for r in rows)
    return f"{label}: {', '.join(values)}"


def _svg(figure: Figure, name: str, words: str) -> str:
    """The figure as an <svg> element whose ids are its own, with words for who cannot see it."""
    _legend_below(figure, figure.axes[0])
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=NO_METADATA)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(words)}" ', 1)


@cache
def _environment() -> Environment:
    loader = PackageLoader("histodict", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.globals["class_css_colour"] = class_css_colour
    return environment


def write_page(path: Path, template: str, content: dict[str, Any]) -> None:
    """Fill a template; text is escaped."""
    page = _environment().get_template(template).render(**content)
    with atomic_write(path) as partial:
        partial.write_text(page, encoding="utf-8")


_TIMES = 4  # a patch is shown in a square so many times as wide
_DISPLAY_PX = 144


def patch_images(
    gallery: PatchSample,
    records: Sequence[ImageRecord],
    patches: Iterable[int],
    *,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
) -> dict[int, str]:
    """The pictures of these patches as data URIs; every image is opened once.

    Of a feature file whose image is not there they are empty.
    """
    wanted = np.unique(list(patches)).astype(np.int64)
    places = np.unique(gallery.images[wanted])

    def work(number: int) -> dict[int, str]:
        record = records[places[number]]
        own = wanted[gallery.images[wanted] == places[number]].tolist()
        if is_feature_file(record.display_image):
            return dict.fromkeys(own, "")
        with open_image(record.display_image, record.mpp) as source:
            at = _moved_by(record, source)
            return {p: jpeg_data_uri(_patch_image(source, gallery, p, at), quality=85) for p in own}

    found = map_images(work, len(places), "cut-outs", callback, Threads(n_jobs))
    return {patch: uri for part in found for patch, uri in part.items()}


def square_around(gallery: PatchSample, patch: int, times: int) -> tuple[tuple[int, int], int]:
    """Corner and side, in level-0 pixels, of a square so many times as wide as the patch."""
    side = float(gallery.side[patch])
    wide = round(times * side)
    x, y = (round(float(at) - (wide - side) / 2) for at in gallery.corners[patch])
    return (x, y), wide


def draw_outline(pixels: NDArray[np.uint8], times: int, thick: int = 1) -> NDArray[np.uint8]:
    """With an outline of its middle, the patch: dark within light, to be seen on any tissue."""
    drawn = Image.fromarray(pixels)
    pen = ImageDraw.Draw(drawn)
    low, high = (round(drawn.width * (1 + sign / times) / 2) for sign in (-1, 1))
    for colour, edge in (("white", thick), ("black", 0)):
        box = low - edge, low - edge, high + edge, high + edge
        pen.rectangle(box, outline=colour, width=thick)
    return np.asarray(drawn)


def _moved_by(record: ImageRecord, source: ImageSource) -> tuple[int, int]:
    """From places in a feature file to those in the image, of which slides leave out a margin."""
    if record.image is None:
        return 0, 0
    with open_image(record.path) as sheet:
        return sheet.offset[0] - source.offset[0], sheet.offset[1] - source.offset[1]


def _patch_image(
    source: ImageSource, gallery: PatchSample, patch: int, moved_by: tuple[int, int]
) -> NDArray[np.uint8]:
    (x, y), wide = square_around(gallery, patch, _TIMES)
    x, y = x + moved_by[0], y + moved_by[1]
    pixels = source.read(x, y, wide, wide, max(1.0, wide / _DISPLAY_PX))
    shown = Image.fromarray(pixels).resize((_DISPLAY_PX, _DISPLAY_PX), Image.Resampling.BICUBIC)
    return draw_outline(np.asarray(shown), _TIMES, thick=2)
