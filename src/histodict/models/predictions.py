"""What a model says of one image: a class, or regions; each knows its row in a table.

An answer as people look at it: a line of text, a picture on axes, a card in a notebook.

The answers for many images, as one thing: a sequence, a table, a sheet of pictures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..images.memory_image import ImageLike
from ..images.pixel_size import PixelSize
from ..images.source import open_image
from ..patches.patch_map import PatchMap, Ring
from ..utils.text_io import Row, column_names, pluralize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
if TYPE_CHECKING:
    import pandas

_PLOT_PX, _CARD_PX = 1000, 240


class DisplayMixin:
    """What every answer can do to be looked at."""

    def _short(self) -> str:
        """The label and what is most worth knowing beside it."""
        raise NotImplementedError

    def plot(self, ax: Axes | None = None) -> Axes:
        """The image with its patch map over it, on matplotlib's `ax` or on new axes; the axes."""
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots()
        ax.imshow(_image(self, _PLOT_PX))
        ax.set_title(self._short(), parse_math=False)  # a class may be called "$5"
        ax.set_axis_off()
        return ax

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(_caption(self)['path'])!r}: {self._short()})"

    def _repr_html_(self) -> str:
        """A small overlay beside what is said; nothing in it is taken for HTML."""
        from ..patches.rendering import jpeg_data_uri

        picture = f'<img alt="" src="{jpeg_data_uri(_image(self, _CARD_PX))}">'
        return (
            f'<div style="display:flex; gap:1em; align-items:center">{picture}'
            f"<div><b>{escape(self._short())}</b><br>{escape(str(_caption(self)['path']))}</div></div>"
        )


def region_rings(answer: Any) -> list[Ring]:
    """All rings around an answer's regions."""
    return [ring for region in answer.regions for polygon in region.polygons for ring in polygon]


def _caption(answer: Any) -> dict[str, Any]:
    """The answer's row of a table, with its path."""
    return {"path": str(answer.path)} | answer.row()


def _image(answer: Any, longest_side: int) -> NDArray[np.uint8]:
    """The overlay, no longer than this; of a method without a map, the image itself."""
    if answer.patch_map is None:
        with open_image(answer.path) as source:
            return source.thumbnail(min(longest_side, max(source.size)))
    from ..patches.rendering import draw_overlay

    found = answer.patch_map, answer.summary(), region_rings(answer)
    return draw_overlay(*found, longest_side=longest_side)


_UNKNOWN = PixelSize(None, "unknown")
NO_TISSUE_LABEL = "no tissue"  # the label, in tables, of an image of glass


@dataclass(frozen=True)
class DetectedRegion:
    """One region: its size, how clear it is, and its outline in level-0 pixels.

    score : mean margin of its patches, the residual of the other class less its own
    area_um2 : None where the pixel size is not known
    polygons : per polygon its outer ring and its holes, closed rings of (x, y)
    use : per named concept, the share of its patches that use it
    """

    n_patches: int
    score: float
    area_px: float
    area_um2: float | None
    box: tuple[float, float, float, float]
    polygons: list[list[Ring]]
    atom_usage: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class ImagePrediction(DisplayMixin):
    """The answer for one image; `label` is None where there is only glass.

    scores : one number for two classes, positive for the second; else one per class
    value : what θ (`threshold`) is compared with, in its unit; without θ, the score as it was
        before the line was moved, which no table shows
    probabilities, candidates : where the model is calibrated, of each class, and the classes that
        cannot be ruled out; more or fewer than one means an uncertain answer
    n_abstaining : estimators of an ensemble without a score for this image; None for one model
    patch_map, proportions : as the image was decided: where the rule is a mean over patches, the
        map's mean over tissue is the image's scores; else the class that was closest won a patch
    classes : in the order of the scores
    grounds : how the answer came about, where the map alone does not tell
    size : of its pixels, and who says so
    A method that looks at the image as a whole leaves no proportions, threshold or map.
    """

    path: ImageLike
    label: str | None
    scores: tuple[float, ...]
    proportions: dict[str, float] = field(default_factory=dict)
    threshold: float | None = None
    n_patches: int = 0
    patch_map: PatchMap | None = None
    value: float | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    prediction_set: list[str] = field(default_factory=list)
    n_abstaining: int | None = None
    regions: list[DetectedRegion] = field(default_factory=list)
    classes: tuple[str, ...] = ()
    decision_text: str = ""
    size: PixelSize = _UNKNOWN

    COLUMNS: ClassVar[tuple[str, ...]] = ("path", "label", "score")

    @property
    def score(self) -> float:
        """For two classes, positive for the second; for more, the highest."""
        return max(self.scores)

    @property
    def is_uncertain(self) -> bool:
        """Whether it is known how sure the model is, and more or fewer than one class is left."""
        return bool(self.probabilities) and len(self.prediction_set) != 1

    def summary(self) -> str:
        """The answer with its score and how it came about, for a legend."""
        if self.label is None:
            return no_prediction_reason(self.patch_map)
        said = f"{self.label}, score {self.score:+.2f}"
        if self.is_uncertain:
            said += f", uncertain: {' or '.join(self.prediction_set) or 'like no class'}"
        grounds = self.decision_text
        shares = self.proportions  # none, of a method that looks at the image as a whole
        if not grounds and shares and shares[self.label] < max(shares.values()):
            grounds = "fewer patches, but clearer ones"
        said = f"{said} ({grounds})" if grounds else said
        return said + _whole_image_note(self.patch_map)

    def _short(self) -> str:
        if self.label is None:
            return no_prediction_reason(self.patch_map)
        if self.label in self.probabilities:
            return f"{self.label}, {self.probabilities[self.label]:.0%} sure"
        return f"{self.label}, score {self.score:.3g}"

    def row(self) -> Row:
        row: Row = {
            "label": self.label or NO_TISSUE_LABEL,
            "score": self.score if self.label else None,
        }
        if self.threshold is not None:
            row |= {"decision_value": self.value, "threshold": self.threshold}
        if len(self.scores) > 1:
            scores = self.scores if self.label else (None,) * len(self.scores)
            row |= {f"score_{n}": s for n, s in zip(self.classes, scores, strict=True)}
        row["n_patches"] = self.n_patches
        row |= _quality_column(self.patch_map) | _size_columns(self.size)
        if self.n_abstaining is not None:
            row["n_abstaining"] = self.n_abstaining
        if self.probabilities:
            row |= {f"probability_{name}": value for name, value in self.probabilities.items()}
            row["prediction_set"] = " or ".join(self.prediction_set) or "none"
            row["uncertain"] = self.is_uncertain
        row |= {f"proportion_{name}": value for name, value in self.proportions.items()}
        return row | _usage_columns(self.patch_map.atom_usage if self.patch_map else {})


@dataclass(frozen=True, repr=False)
class RegionPrediction(DisplayMixin):
    """The regions of one image, largest first, and the call they make; None: only glass.

    score : patches of the largest set of connected positive patches; the call is positive from
        `min_patches` (m) on
    """

    path: ImageLike
    label: str | None
    score: int
    min_patches: int
    regions: list[DetectedRegion]
    patch_map: PatchMap
    size: PixelSize = _UNKNOWN

    COLUMNS: ClassVar[tuple[str, ...]] = ("path", "label", "score")
    REGION_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("path", "region", "label", "n_patches", "score", "area_px", "area_um2"),
    )

    @property
    def value(self) -> float:
        return self.score

    @property
    def probabilities(self) -> dict[str, float]:
        """How sure the model is, is not known of regions."""
        return {}

    @property
    def prediction_set(self) -> list[str]:
        return []

    @property
    def n_patches(self) -> int:
        return self.patch_map.n_patches

    @property
    def proportions(self) -> dict[str, float]:
        return self.patch_map.proportions

    def summary(self) -> str:
        """The call and how it came about, for a legend."""
        if self.label is None:
            return no_prediction_reason(self.patch_map)
        n, s = len(self.regions), "" if len(self.regions) == 1 else "s"
        least = f"from {self.min_patches} connected patches on"
        said = f"{self.label}: {n} region{s} ({least}; the largest has {self.score})"
        return said + _whole_image_note(self.patch_map)

    def _short(self) -> str:
        if self.label is None:
            return no_prediction_reason(self.patch_map)
        return f"{self.label}, {pluralize(len(self.regions), 'region')}"

    def row(self) -> Row:
        return {
            "label": self.label or NO_TISSUE_LABEL,
            "score": self.score,
            "min_patches": self.min_patches,
            "n_patches": self.n_patches,
            "n_regions": len(self.regions),
            "region_area_px": sum(region.area_px for region in self.regions),
            **_quality_column(self.patch_map),
            **_size_columns(self.size),
            **_usage_columns(self.patch_map.atom_usage),
        }


Prediction = ImagePrediction | RegionPrediction


def no_prediction_reason(patch_map: PatchMap | None) -> str:
    """Why there is no answer: no tissue, or none that is good enough."""
    left_out = patch_map.excluded if patch_map is not None else None
    return f"{NO_TISSUE_LABEL} that can be judged: {left_out}" if left_out else NO_TISSUE_LABEL


def _whole_image_note(patch_map: PatchMap | None) -> str:
    used_whole = patch_map is not None and patch_map.whole_image
    return "; hardly any tissue was found, the whole image was used" if used_whole else ""


def _quality_column(patch_map: PatchMap | None) -> Row:
    """Return columns for excluded tissue and for the use of all patches."""
    if patch_map is None:
        return {}
    row: Row = {} if patch_map.excluded is None else {"left_out": patch_map.excluded}
    return row | {"whole_image": True} if patch_map.whole_image else row


def _size_columns(size: PixelSize) -> Row:
    """µm per pixel that the answer rests on, and who says so."""
    return {"mpp": size.mpp, "mpp_from": size.origin}


def _usage_columns(use: Mapping[str, float]) -> Row:
    """Of every named concept the share of the patches that use it."""
    return {f"usage_{name}": share for name, share in use.items()}


def region_rows(answer: Prediction) -> list[Row]:
    """A line per region, without the path."""
    if answer.patch_map is None:
        return []
    return [
        {
            "region": number,
            "label": answer.patch_map.classes[1],
            "n_patches": region.n_patches,
            "score": region.score,
            "area_px": region.area_px,
            "area_um2": region.area_um2,
            **dict(zip(("left", "top", "right", "bottom"), region.box, strict=True)),
            **_usage_columns(region.atom_usage),
        }
        for number, region in enumerate(answer.regions, start=1)
    ]


A = TypeVar("A", bound=Prediction)
_ON_CARD = 12
_NO_PANDAS = "a DataFrame is made with pandas, which is not installed: pip install pandas"


class Predictions(Sequence[A], Generic[A]):
    """Answers in the order of the images; a slice of them is `Answers` again.

    columns : of the table, those that come first
    """

    def __init__(self, answers: Iterable[A], columns: Sequence[str] = ()) -> None:
        self._predictions = list(answers)
        self._columns = tuple(columns)

    def __len__(self) -> int:
        return len(self._predictions)

    @overload
    def __getitem__(self, place: int) -> A: ...

    @overload
    def __getitem__(self, place: slice) -> Predictions[A]: ...

    def __getitem__(self, place: int | slice) -> A | Predictions[A]:
        if isinstance(place, slice):
            return Predictions(self._predictions[place], self._columns)
        return self._predictions[place]

    @property
    def labels(self) -> list[str]:
        """Of every image; "no tissue" where there is only glass."""
        return [answer.label or NO_TISSUE_LABEL for answer in self]

    def rows(self) -> list[Row]:
        """One per image, as in the table of the command line."""
        return [{"path": str(answer.path)} | answer.row() for answer in self]

    def to_frame(self) -> pandas.DataFrame:
        """A pandas DataFrame with the columns of the command line's table.

        Without `key`, which names files of its folder.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(_NO_PANDAS) from error
        rows = self.rows()
        return pandas.DataFrame(rows, columns=column_names(rows, self._columns))

    def plot(self, n_columns: int = 4) -> NDArray[np.object_]:
        """Every image with its patch map; matplotlib's axes (n_rows, n_columns)."""
        from matplotlib import pyplot

        n_columns = max(1, min(n_columns, len(self)))
        n_rows = max(1, -(-len(self) // n_columns))
        _, axes = pyplot.subplots(
            n_rows, n_columns, squeeze=False, figsize=(3 * n_columns, 3 * n_rows)
        )
        for ax in axes.flat:
            ax.set_axis_off()
        for answer, ax in zip(self, axes.flat, strict=False):
            answer.plot(ax)
        return axes

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {label}" for label, n in Counter(self.labels).most_common())
        return f"<{len(self)} answers: {counts}>" if self._predictions else "<no answers>"

    def _repr_html_(self) -> str:
        """The first of them as cards, and how many more there are."""
        cards = "".join(answer._repr_html_() for answer in self[:_ON_CARD])
        left = len(self) - _ON_CARD
        return cards + (f"<p>and {left} more</p>" if left > 0 else "")


def probabilities(answers: Iterable[Any], classes: Sequence[str]) -> NDArray[np.float64]:
    """(n_images, n_classes), NaN on glass."""
    return np.array(
        [[answer.probabilities.get(name, np.nan) for name in classes] for answer in answers]
    ).reshape(-1, len(classes))
