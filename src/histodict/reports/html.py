"""HTML pages, SVG charts and outlined patch images of the reports.

A page is one file without scripts. Its template is named by its path in the package, such as
"synthetic/page.html.j2"; it extends "reports/base.html.j2", and "reports/parts.html.j2" holds
shared parts.

Charts are narrow enough for a phone. Curves differ in colours that colour-blind readers can
distinguish, and in markers or dashes. Equal numbers give equal bytes.
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
from ..models.patch_pipeline import map_with_progress
from ..patches.patch_map import COLOURS, class_css_colour
from ..patches.rendering import jpeg_data_uri
from ..precomputed.feature_file import is_feature_file
from ..utils.files import atomic_write
from ..utils.parallel import ThreadExecutor
from ..utils.progress import Callback, no_callback

_WIDTH = 4.7  # inches
TEXT_COLOUR = "#22303c"
_LIGHT_GREY, _GREY = "#8d99a5", "#5b6b79"
STYLE: Any = {
    "font.size": 10,
    "text.color": TEXT_COLOUR,
    "axes.labelcolor": TEXT_COLOUR,
    "axes.edgecolor": _LIGHT_GREY,
    "xtick.color": TEXT_COLOUR,
    "ytick.color": TEXT_COLOUR,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "text.parse_math": False,  # names may contain a dollar sign
    "svg.fonttype": "none",
}
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))  # keeps the output reproducible


@dataclass(frozen=True)
class ChartEstimate:
    """Value of a chart with its name and confidence interval (`low`, `high`)."""

    name: str
    value: float
    low: float
    high: float


def intervals_svg(
    name: str,
    rows: Sequence[ChartEstimate],
    label: str,
    min_range: tuple[float, float],
    reference_line: tuple[float, str] | None = None,
    first_style: int = 0,
) -> str:
    """Return an SVG chart of estimates with intervals, one row each, in the given order.

    Parameters
    ----------
    name : prefix of the ids in the SVG element
    rows : estimates
    label : label of the axis
    min_range : smallest range of the axis, so that small differences do not look large
    reference_line : position and name of a reference line; None to draw no line
    first_style : index of the first row's style, so that a method looks alike in all charts
    """
    with _chart(0.9 + 0.32 * len(rows)) as (figure, axes):
        if reference_line is not None:
            axes.axvline(reference_line[0], color=_LIGHT_GREY, linestyle=":", linewidth=1.2)
            transform = axes.get_xaxis_transform()  # x in data, y in axes coordinates
            axes.text(
                reference_line[0],
                1.02,
                reference_line[1],
                transform=transform,
                color=_GREY,
                fontsize=9,
                ha="center",
            )
        styles = _styles(first_style + len(rows))[first_style:]
        for y, (row, (colour, marker, _)) in enumerate(zip(rows, styles, strict=True)):
            axes.plot([row.low, row.high], [y, y], color=colour, linewidth=2)
            axes.plot(row.value, y, marker, color=colour, markersize=7)
        axes.set_yticks(range(len(rows)), [row.name for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        low, high = (
            min(min_range[0], *(r.low for r in rows)),
            max(min_range[1], *(r.high for r in rows)),
        )
        axes.set_xlim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        axes.set(xlabel=label, axisbelow=True)
        axes.locator_params(axis="x", nbins=6)  # more tick labels of three decimals overlap
        axes.grid(axis="x", color="#e6eaee")
        return _render_svg(figure, name, _describe_chart(label, rows))


def sizes_svg(
    name: str, curves: Mapping[str, Sequence[ChartEstimate]], label: str, axis_label: str
) -> str:
    """Return an SVG chart of the estimates of each method by training set size.

    Parameters
    ----------
    name : prefix of the ids in the SVG element
    curves : estimates of each method, one per size; the names of the estimates are the sizes
    label : label of the y axis
    axis_label : label of the x axis
    """
    with _chart(3.6) as (figure, axes):
        n_curves = max(len(curves), 2)
        styles = _styles(len(curves))
        for index, ((method, rows), style) in enumerate(zip(curves.items(), styles, strict=True)):
            shift = 0.4 * (index / (n_curves - 1) - 0.5)
            x, values = [step + shift for step in range(len(rows))], [row.value for row in rows]
            errors = [[r.value - r.low for r in rows], [r.high - r.value for r in rows]]
            style_options: Any = dict(zip(("color", "marker", "linestyle"), style, strict=True))
            axes.errorbar(
                x, values, errors, linewidth=1.6, elinewidth=1, label=method, **style_options
            )
        steps = [row.name for row in next(iter(curves.values()))]
        axes.set_xticks(range(len(steps)), steps)
        axes.set(xlabel=axis_label, ylabel=label)
        axes.grid(axis="y", color="#e6eaee")
        every = [row for rows in curves.values() for row in rows]
        return _render_svg(figure, name, f"{label} against {axis_label}; {len(every)} values")


def roc_curves_svg(name: str, curves: Mapping[str, RocCurve]) -> str:
    """Return an SVG chart of ROC curves, with the operating point of each method.

    `name` is the prefix of the ids in the SVG element.
    """
    with _chart(_WIDTH) as (figure, axes):
        axes.plot([0, 1], [0, 1], ":", color=_LIGHT_GREY, linewidth=1, label="chance")
        # Later curves are thinner, which keeps overlapping earlier ones visible.
        relative_sizes = np.linspace(1, 0.5, len(curves))
        for (method, curve), (colour, marker, dash), size in zip(
            curves.items(), _styles(len(curves)), relative_sizes, strict=True
        ):
            style = {"color": colour, "linestyle": dash, "linewidth": 3 * size}
            axes.plot(curve.false_positive_rate, 1 - curve.false_negative_rate, **style)
            false_positive_rate, false_negative_rate = curve.operating_point
            point = false_positive_rate, 1 - false_negative_rate
            axes.plot(*point, marker, color=colour, markersize=12 * size, clip_on=False)
            axes.plot([], [], marker=marker, label=method, **style)  # legend: line and marker
        axes.set(xlabel="false positive rate", ylabel="true positive rate", aspect="equal")
        axes.set(xlim=(-0.01, 1), ylim=(0, 1.01))
        rates = {method: curve.operating_point for method, curve in curves.items()}
        points = (f"{m} {r[0]:.3f}, {1 - r[1]:.3f}" for m, r in rates.items())
        description = "False positive rate and true positive rate at the operating points: "
        return _render_svg(figure, name, description + "; ".join(points))


def calibration_svg(name: str, curves: Mapping[str, CalibrationCurve]) -> str:
    """Return an SVG chart of observed frequency against predicted probability.

    Larger dots stand for more images. `name` is the prefix of the ids in the SVG element.
    """
    with _chart(_WIDTH) as (figure, axes):
        axes.plot([0, 1], [0, 1], ":", color=_LIGHT_GREY, linewidth=1, label="perfect")
        for (method, curve), style in zip(curves.items(), _styles(len(curves)), strict=True):
            colour, marker, dash = style
            axes.plot(curve.probability, curve.observed, color=colour, linestyle=dash, label=method)
            sizes = 20 + 130 * curve.counts / curve.counts.max()
            axes.scatter(curve.probability, curve.observed, sizes, color=colour, marker=marker)
        axes.set(xlabel="predicted probability", ylabel="observed frequency", aspect="equal")
        axes.set(xlim=(0, 1), ylim=(0, 1))
        return _render_svg(figure, name, f"Calibration of {', '.join(curves)}")


# --- helpers of the charts ------------------------------------------------------------------------


@contextmanager
def _chart(height: float) -> Iterator[tuple[Figure, Axes]]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        yield figure, figure.add_subplot()


def _styles(n: int) -> list[tuple[str, str, str]]:
    """Return (colour, marker, dash) of the curves of `n` methods; the first thirty are distinct."""
    # Yellow is hard to see on white.
    colours = [mpl.colors.to_hex(c / 255) for i, c in enumerate(COLOURS) if i != 4]
    kinds = zip(cycle(colours), cycle("osD^vP"), cycle(["-", "--", "-.", ":"]), strict=False)
    return list(islice(kinds, n))


def _add_legend_below(figure: Figure, axes: Axes) -> None:
    """Add a legend of all labelled curves below the axes."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max(map(len, labels), default=0)
    n_columns = 1 if longest > 22 else 2 if longest > 12 else 3
    if labels:
        figure.legend(handles, labels, loc="outside lower center", ncols=n_columns, fontsize=9)


def _describe_chart(label: str, rows: Sequence[ChartEstimate]) -> str:
    values = (f"{r.name} {r.value:.3f} ({r.low:.3f} to {r.high:.3f})" for r in rows)
    return f"{label}: {', '.join(values)}"


def _render_svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as an <svg> element with unique ids and an accessible description."""
    _add_legend_below(figure, figure.axes[0])
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", metadata=NO_METADATA)
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(description)}" ', 1)


@cache
def _environment() -> Environment:
    loader = PackageLoader("histodict", "")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.globals["class_css_colour"] = class_css_colour
    return environment


def write_page(path: Path, template: str, content: dict[str, Any]) -> None:
    """Write a page from a template and its content, with special characters of HTML escaped.

    `template` is the path of the template in the package.
    """
    page = _environment().get_template(template).render(**content)
    with atomic_write(path) as partial:
        partial.write_text(page, encoding="utf-8")


_CONTEXT_SCALE = 4  # width of the displayed square in patch widths
_DISPLAY_PX = 144  # side of a displayed patch image
_OUTSIDE_RGB = np.array((238, 242, 245), np.uint8)  # colour outside the image


def patch_images(
    gallery: PatchSample,
    records: Sequence[ImageRecord],
    patches: Iterable[int],
    *,
    n_jobs: int | None = None,
    callback: Callback = no_callback,
) -> dict[int, str]:
    """Return images of patches as data URIs, by patch index; every source image is opened once.

    The URI is empty for feature files whose image is not available.

    Parameters
    ----------
    gallery : patches and their positions
    records : images of the gallery
    patches : indices of patches in the gallery
    n_jobs : number of threads
    callback : receives the progress
    """
    wanted = np.unique(list(patches)).astype(np.int64)
    image_indices = np.unique(gallery.images[wanted])

    def crop_patches(number: int) -> dict[int, str]:
        record = records[image_indices[number]]
        own_patches = wanted[gallery.images[wanted] == image_indices[number]].tolist()
        if is_feature_file(record.display_image):
            return dict.fromkeys(own_patches, "")
        with open_image(record.display_image, record.mpp) as source:
            offset = _coordinate_offset(record, source)
            return {
                p: jpeg_data_uri(_patch_image(source, gallery, p, offset), quality=85)
                for p in own_patches
            }

    parts = map_with_progress(
        crop_patches, len(image_indices), "crop", callback, ThreadExecutor(n_jobs)
    )
    return {patch: uri for part in parts for patch, uri in part.items()}


def square_around(gallery: PatchSample, patch: int, scale: int) -> tuple[tuple[int, int], int]:
    """Return the square around a patch: upper left corner (x, y) and side in level-0 pixels.

    Parameters
    ----------
    gallery : patches and their positions
    patch : index of the patch in the gallery
    scale : width of the square as a multiple of that of the patch
    """
    side = float(gallery.side[patch])
    wide = round(scale * side)
    x, y = (round(float(at) - (wide - side) / 2) for at in gallery.corners[patch])
    return (x, y), wide


def draw_outline(pixels: NDArray[np.uint8], scale: int, line_width: int = 1) -> NDArray[np.uint8]:
    """Outline the patch in the centre of an image, in black and white.

    Parameters
    ----------
    pixels : square image around the patch
    scale : width of the image as a multiple of that of the patch
    line_width : line width in pixels
    """
    image = Image.fromarray(pixels)
    canvas = ImageDraw.Draw(image)
    low, high = (round(image.width * (1 + sign / scale) / 2) for sign in (-1, 1))
    for colour, edge in (("white", line_width), ("black", 0)):
        box = low - edge, low - edge, high + edge, high + edge
        canvas.rectangle(box, outline=colour, width=line_width)
    return np.asarray(image)


def _coordinate_offset(record: ImageRecord, source: ImageSource) -> tuple[int, int]:
    """Return the offset (x, y) from coordinates of a feature file to those of its image."""
    if record.image is None:
        return 0, 0
    with open_image(record.path) as placeholder:
        return placeholder.offset[0] - source.offset[0], placeholder.offset[1] - source.offset[1]


def _patch_image(
    source: ImageSource, gallery: PatchSample, patch: int, offset: tuple[int, int]
) -> NDArray[np.uint8]:
    (x, y), wide = square_around(gallery, patch, _CONTEXT_SCALE)
    x, y = x + offset[0], y + offset[1]
    pixels = source.read(x, y, wide, wide, max(1.0, wide / _DISPLAY_PX))
    image = Image.fromarray(pixels).resize((_DISPLAY_PX, _DISPLAY_PX), Image.Resampling.BICUBIC)
    columns, rows = (
        start + (np.arange(_DISPLAY_PX) + 0.5) * wide / _DISPLAY_PX for start in (x, y)
    )
    width, height = source.size
    is_inside = np.outer((rows >= 0) & (rows < height), (columns >= 0) & (columns < width))
    shown = np.where(is_inside[..., None], np.asarray(image), _OUTSIDE_RGB)
    return draw_outline(shown, _CONTEXT_SCALE, line_width=2)
