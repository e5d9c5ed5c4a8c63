"""Predictions for an image (its class, or regions) and for many, with plots and table rows."""

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
from .class_labels import TEXT, labels_from_names

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes


_PLOT_PX, _CARD_PX = 1000, 240  # longest side of the image in plots and notebooks


class DisplayMixin:
    """Mixin of predictions: plot, `repr`, and HTML for notebooks."""

    def _short_text(self) -> str:
        """Return the label with the score, for titles and `repr`."""
        raise NotImplementedError

    def plot(self, ax: Axes | None = None) -> Axes:
        """Plot the image with its patch map.

        Parameters
        ----------
        ax : matplotlib axes; None makes a figure

        Returns
        -------
        matplotlib axes
        """
        if ax is None:
            from matplotlib import pyplot

            _, ax = pyplot.subplots()
        ax.imshow(_render_image(self, _PLOT_PX))
        ax.set_title(self._short_text(), parse_math=False)  # class names may contain "$"
        ax.set_axis_off()
        return ax

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(_row_with_path(self)['path'])!r}: {self._short_text()})"

    def _repr_html_(self) -> str:
        """Return HTML with a small image of the patch map, the prediction and the path."""
        from ..patches.rendering import jpeg_data_uri

        image = f'<img alt="" src="{jpeg_data_uri(_render_image(self, _CARD_PX))}">'
        return (
            f'<div style="display:flex; gap:1em; align-items:center">{image}'
            f"<div><b>{escape(self._short_text())}</b><br>{escape(str(_row_with_path(self)['path']))}</div></div>"
        )


def region_rings(prediction: Any) -> list[Ring]:
    """Return the outlines (closed rings) of all detected regions."""
    return [
        ring for region in prediction.regions for polygon in region.polygons for ring in polygon
    ]


def _row_with_path(prediction: Any) -> dict[str, Any]:
    """Return the table row of a prediction, with the image path."""
    return {"path": str(prediction.path)} | prediction.row()


def _render_image(prediction: Any, longest_side: int) -> NDArray[np.uint8]:
    """Return the image, under its patch map if it has one, at most `longest_side` wide and high."""
    if prediction.patch_map is None:
        with open_image(prediction.path) as source:
            return source.thumbnail(min(longest_side, max(source.size)))
    from ..patches.rendering import draw_overlay

    arguments = prediction.patch_map, prediction.summary(), region_rings(prediction)
    return draw_overlay(*arguments, longest_side=longest_side)


_UNKNOWN_PIXEL_SIZE = PixelSize(None, "unknown")
NO_TISSUE_LABEL = "no tissue"  # label in tables of images without tissue
UNCERTAIN_LABEL = "uncertain"  # label if the prediction set has no class, or several


def describe_label(top_label: str, is_uncertain: bool) -> str:
    """Return the most likely class, or "uncertain (best guess: CLASS)" if it is uncertain."""
    return f"{UNCERTAIN_LABEL} (best guess: {top_label})" if is_uncertain else top_label


@dataclass(frozen=True)
class DetectedRegion:
    """Detected region; coordinates are level-0 pixels.

    Attributes
    ----------
    n_patches : number of patches
    score : mean margin of the patches (residual of the other class minus residual of the region
        class) minus the margin threshold
    area_px : area in level-0 pixels
    area_um2 : area in µm²; None if the pixel size is unknown
    box : left, top, right and bottom of the bounding box
    polygons : for each polygon, its outer ring and its holes, as closed rings of (x, y)
    concept_usage : for each named concept, the fraction of the region's patches that use it
    """

    n_patches: int
    score: float
    area_px: float
    area_um2: float | None
    box: tuple[float, float, float, float]
    polygons: list[list[Ring]]
    concept_usage: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class ImagePrediction(DisplayMixin):
    """Predicted class of one image.

    Attributes
    ----------
    path : path or MemoryImage
        The image.
    top_label : str or None
        Most likely class; None if the image has no tissue.
    scores : tuple of float
        With two classes, one number, positive for the second class; with more, one per class.
    proportions : dict
        Fraction of patches per class in `patch_map`; empty for methods of the whole image.
    threshold : float or None
        Threshold of `decision_value`; None if the aggregator does not compare a single number per
        image with a threshold.
    n_patches : int
        Number of patches on tissue.
    patch_map : PatchMap or None
        Classes and margins of the patches. If the aggregator is a mean over patches, the mean over
        tissue is the score. None for methods of the whole image.
    decision_value : float or None
        Number that is compared with `threshold`. If that is None, the score of the model as
        trained, without later changes of its decision threshold.
    probabilities : dict
        Probability per class; empty if the model is not calibrated.
    prediction_set : list of str
        Classes that cannot be excluded at the chosen error rate, if the model is calibrated.
    n_abstaining : int or None
        Number of estimators of an ensemble that gave no score; None for a single model.
    regions : list of DetectedRegion
        Empty list, as only a `RegionDetector` detects regions; see `RegionPrediction`.
    classes : tuple of str
        Class names in the order of the scores.
    decision_text : str
        Reason for the decision, if the map alone does not show it.
    size : PixelSize
        Pixel size, and its source.
    """

    path: ImageLike
    top_label: str | None
    scores: tuple[float, ...]
    proportions: dict[str, float] = field(default_factory=dict)
    threshold: float | None = None
    n_patches: int = 0
    patch_map: PatchMap | None = None
    decision_value: float | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    prediction_set: list[str] = field(default_factory=list)
    n_abstaining: int | None = None
    regions: list[DetectedRegion] = field(default_factory=list)
    classes: tuple[str, ...] = ()
    decision_text: str = ""
    size: PixelSize = _UNKNOWN_PIXEL_SIZE

    COLUMNS: ClassVar[tuple[str, ...]] = ("path", "label", "top_label", "score")

    @property
    def label(self) -> str | None:
        """Predicted class: `top_label`, "uncertain", or None if the image has no tissue."""
        return UNCERTAIN_LABEL if self.top_label and self.is_uncertain else self.top_label

    @property
    def score(self) -> float:
        """Score of the second class if there are two; else the highest score."""
        return max(self.scores)

    @property
    def is_uncertain(self) -> bool:
        """Whether the prediction set is empty or has several classes; False if not calibrated."""
        return bool(self.probabilities) and len(self.prediction_set) != 1

    def summary(self, *, with_score: bool = True) -> str:
        """Return a sentence with prediction, score and reason, for a legend.

        Parameters
        ----------
        with_score : whether to state the score

        Returns
        -------
        str
        """
        if self.top_label is None:
            return no_prediction_reason(self.patch_map)
        label = describe_label(self.top_label, self.is_uncertain)
        details = [self._describe_prediction_set()] if self.is_uncertain else []
        text = ", ".join([label, *details, *[f"score {self.score:+.2f}"] * with_score])
        reason = self.decision_text
        proportions = self.proportions  # empty for methods of the whole image
        if not reason and proportions and proportions[self.top_label] < max(proportions.values()):
            reason = "from fewer patches with larger scores"
        text = f"{text} ({reason})" if reason else text
        return text + _map_notes(self.patch_map)

    def _describe_prediction_set(self) -> str:
        """Return the prediction set as text."""
        return f"prediction set {' or '.join(self.prediction_set) or 'empty'}"

    def _short_text(self) -> str:
        if self.top_label is None:
            return no_prediction_reason(self.patch_map)
        label = describe_label(self.top_label, self.is_uncertain)
        if self.top_label in self.probabilities:
            return f"{label}, {self.probabilities[self.top_label]:.0%}"
        return f"{label}, score {self.score:.3g}"

    def row(self) -> Row:
        """Return the row of the prediction in a table, without the path.

        Returns
        -------
        dict
        """
        row: Row = {
            "label": self.label or NO_TISSUE_LABEL,
            "top_label": self.top_label or NO_TISSUE_LABEL,
            "score": self.score if self.top_label else None,
        }
        if self.threshold is not None:
            row |= {"decision_value": self.decision_value, "threshold": self.threshold}
        if len(self.scores) > 1:
            scores = self.scores if self.top_label else (None,) * len(self.scores)
            row |= {f"score_{n}": s for n, s in zip(self.classes, scores, strict=True)}
        row["n_patches"] = self.n_patches
        row |= _quality_columns(self.patch_map) | _size_columns(self.size)
        if self.n_abstaining is not None:
            row["n_abstaining"] = self.n_abstaining
        if self.probabilities:
            row |= {f"probability_{name}": value for name, value in self.probabilities.items()}
            row["prediction_set"] = " or ".join(self.prediction_set) or "none"
        row |= {f"proportion_{name}": value for name, value in self.proportions.items()}
        return row | _usage_columns(self.patch_map.concept_usage if self.patch_map else {})


@dataclass(frozen=True, repr=False)
class RegionPrediction(DisplayMixin):
    """Detected regions of one image, and the predicted class of the image.

    Attributes
    ----------
    path : path or MemoryImage
        The image.
    label : str or None
        Region class if `score` is at least `min_patches`, else the other class; None if the image
        has no tissue.
    score : int
        Size of the largest connected set of patches of the region class, in patches.
    min_patches : int
        Minimum number of connected patches of a region.
    regions : list of DetectedRegion
        Regions, the largest first.
    patch_map : PatchMap
        Class and margins of each patch.
    size : PixelSize
        Pixel size, and its source.
    """

    path: ImageLike
    label: str | None
    score: int
    min_patches: int
    regions: list[DetectedRegion]
    patch_map: PatchMap
    size: PixelSize = _UNKNOWN_PIXEL_SIZE

    COLUMNS: ClassVar[tuple[str, ...]] = ("path", "label", "top_label", "score")
    REGION_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("path", "region", "label", "n_patches", "score", "area_px", "area_um2"),
    )

    @property
    def top_label(self) -> str | None:
        """Most likely class: always `label`, as region detectors are not calibrated."""
        return self.label

    @property
    def decision_value(self) -> float:
        """Same as `score`, which is compared with the threshold `min_patches`."""
        return self.score

    @property
    def probabilities(self) -> dict[str, float]:
        """Probability per class: empty, as region detectors are not calibrated."""
        return {}

    @property
    def prediction_set(self) -> list[str]:
        """Possible classes of the image: empty, as region detectors are not calibrated."""
        return []

    @property
    def n_patches(self) -> int:
        """Number of patches on tissue."""
        return self.patch_map.n_patches

    @property
    def proportions(self) -> dict[str, float]:
        """Fraction of patches per class."""
        return self.patch_map.proportions

    def summary(self) -> str:
        """Return a sentence with the class of the image and the reason, for a legend.

        Returns
        -------
        str
        """
        if self.label is None:
            return no_prediction_reason(self.patch_map)
        n, s = len(self.regions), "" if len(self.regions) == 1 else "s"
        condition = f"{self.min_patches} or more connected patches"
        text = f"{self.label}: {n} region{s} ({condition}; the largest has {self.score})"
        return text + _map_notes(self.patch_map)

    def _short_text(self) -> str:
        if self.label is None:
            return no_prediction_reason(self.patch_map)
        return f"{self.label}, {pluralize(len(self.regions), 'region')}"

    def row(self) -> Row:
        """Return the row of the prediction in a table, without the path.

        Returns
        -------
        dict
        """
        return {
            "label": self.label or NO_TISSUE_LABEL,
            "top_label": self.label or NO_TISSUE_LABEL,
            "score": self.score,
            "min_patches": self.min_patches,
            "n_patches": self.n_patches,
            "n_regions": len(self.regions),
            "region_area_px": sum(region.area_px for region in self.regions),
            **_quality_columns(self.patch_map),
            **_size_columns(self.size),
            **_usage_columns(self.patch_map.concept_usage),
        }


Prediction = ImagePrediction | RegionPrediction


def no_prediction_reason(patch_map: PatchMap | None) -> str:
    """Return the reason why an image has no prediction.

    It has no tissue, or none that passes the quality filters.
    """
    excluded = patch_map.excluded if patch_map is not None else None
    return f"{NO_TISSUE_LABEL} of sufficient quality: {excluded}" if excluded else NO_TISSUE_LABEL


def _map_notes(patch_map: PatchMap | None) -> str:
    """Return limitations of a patch map as text to append to a sentence; may be empty."""
    if patch_map is None:
        return ""
    notes = ["hardly any tissue found, the whole image was used"] * patch_map.whole_image
    return "".join(f"; {note}" for note in [*notes, *patch_map.notes])


def _quality_columns(patch_map: PatchMap | None) -> Row:
    """Return table columns that describe the tissue detection of an image.

    They are "left_out" (tissue excluded by quality filters), "notes" and "whole_image". Columns
    that do not apply to the image are absent.
    """
    if patch_map is None:
        return {}
    row: Row = {} if patch_map.excluded is None else {"left_out": patch_map.excluded}
    if patch_map.notes:
        row["notes"] = "; ".join(patch_map.notes)
    return row | {"whole_image": True} if patch_map.whole_image else row


def _size_columns(size: PixelSize) -> Row:
    """Return table columns for the pixel size in µm and its source."""
    return {"mpp": size.mpp, "mpp_from": size.origin}


def _usage_columns(usage: Mapping[str, float]) -> Row:
    """Return a table column per named concept: the fraction of patches that use it."""
    return {f"usage_{name}": fraction for name, fraction in usage.items()}


def region_rows(prediction: Prediction) -> list[Row]:
    """Return a table row for each detected region, without the path of the image."""
    if prediction.patch_map is None:
        return []
    return [
        {
            "region": number,
            "label": prediction.patch_map.classes[1],
            "n_patches": region.n_patches,
            "score": region.score,
            "area_px": region.area_px,
            "area_um2": region.area_um2,
            **dict(zip(("left", "top", "right", "bottom"), region.box, strict=True)),
            **_usage_columns(region.concept_usage),
        }
        for number, region in enumerate(prediction.regions, start=1)
    ]


PredictionT = TypeVar("PredictionT", bound=Prediction)
_MAX_CARDS = 12  # number of predictions that a notebook shows
_NO_PANDAS = "a DataFrame needs pandas, which is not installed. Run: pip install pandas"


class Predictions(Sequence[PredictionT], Generic[PredictionT]):
    """Sequence of predictions in the order of the images; a slice is again `Predictions`.

    For NumPy and scikit-learn, it is the array of the most likely classes: `numpy.asarray` returns
    them with the type of the labels that the model was fitted on, and ``==`` compares them
    element-wise.

    Parameters
    ----------
    predictions : iterable of ImagePrediction or RegionPrediction
        The predictions.
    columns : sequence of str
        Columns that come first in the table.
    label_type : str
        Type of the labels that the model was fitted on: str, int, float or bool.

    Attributes
    ----------
    labels : list of str
        Label of each image: class, "uncertain", or "no tissue".
    top_labels : list of str
        Most likely class of each image.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        predictions: Iterable[PredictionT],
        columns: Sequence[str] = (),
        label_type: str = TEXT,
    ) -> None:
        self._predictions = list(predictions)
        self._columns = tuple(columns)
        self._label_type = label_type

    def __len__(self) -> int:
        return len(self._predictions)

    @overload
    def __getitem__(self, index: int) -> PredictionT: ...

    @overload
    def __getitem__(self, index: slice) -> Predictions[PredictionT]: ...

    def __getitem__(self, index: int | slice) -> PredictionT | Predictions[PredictionT]:
        if isinstance(index, slice):
            return Predictions(self._predictions[index], self._columns, self._label_type)
        return self._predictions[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the most likely classes, with the type of the labels that the model was fitted on.

        Raises ValueError for images without tissue, unless labels are text.
        """
        if self._label_type != TEXT:
            for prediction in self:
                if prediction.top_label is None:
                    raise ValueError(
                        f"{prediction.path}: {NO_TISSUE_LABEL} has no label of type "
                        f"{self._label_type}. Use the attribute `top_labels`, or fit the model "
                        "on labels of type str"
                    )
        labels = labels_from_names(self.top_labels, self._label_type)
        return labels if dtype is None else labels.astype(dtype)

    def __eq__(self, other: object) -> Any:
        """Return the element-wise comparison of the most likely classes with other labels."""
        return np.asarray(self) == np.asarray(other)

    def __ne__(self, other: object) -> Any:
        return np.asarray(self) != np.asarray(other)

    @property
    def labels(self) -> list[str]:
        """Label of each image: class, "uncertain", or "no tissue"."""
        return [prediction.label or NO_TISSUE_LABEL for prediction in self]

    @property
    def top_labels(self) -> list[str]:
        """Most likely class of each image, also of uncertain ones; "no tissue" without tissue."""
        return [prediction.top_label or NO_TISSUE_LABEL for prediction in self]

    def rows(self) -> list[Row]:
        """Return one table row per image, as in the table of the command line.

        Returns
        -------
        list of dict
        """
        return [{"path": str(prediction.path)} | prediction.row() for prediction in self]

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas DataFrame with the columns of the command line's table.

        The column `key`, which refers to files of an output folder, is not included.

        Returns
        -------
        pandas.DataFrame
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(_NO_PANDAS) from error
        rows = self.rows()
        return pandas.DataFrame(rows, columns=column_names(rows, self._columns))

    def plot(self, n_columns: int = 4) -> NDArray[np.object_]:
        """Plot every image with its patch map.

        Parameters
        ----------
        n_columns : number of images in a row

        Returns
        -------
        ndarray of shape (n_rows, n_columns)
            Matplotlib axes.
        """
        from matplotlib import pyplot

        n_columns = max(1, min(n_columns, len(self)))
        n_rows = max(1, -(-len(self) // n_columns))
        _, axes = pyplot.subplots(
            n_rows, n_columns, squeeze=False, figsize=(3 * n_columns, 3 * n_rows)
        )
        for ax in axes.flat:
            ax.set_axis_off()
        for prediction, ax in zip(self, axes.flat, strict=False):
            prediction.plot(ax)
        return axes

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {label}" for label, n in Counter(self.labels).most_common())
        return f"<{len(self)} predictions: {counts}>" if self._predictions else "<no predictions>"

    def _repr_html_(self) -> str:
        """Return HTML of the first `_MAX_CARDS` predictions, and the number of remaining ones."""
        cards = "".join(prediction._repr_html_() for prediction in self[:_MAX_CARDS])
        n_more = len(self) - _MAX_CARDS
        return cards + (f"<p>and {n_more} more</p>" if n_more > 0 else "")


def probability_array(predictions: Iterable[Any], classes: Sequence[str]) -> NDArray[np.float64]:
    """Return the probabilities (n_images, n_classes) in the order of `classes`.

    A row is NaN for an image without tissue.
    """
    return np.array(
        [
            [prediction.probabilities.get(name, np.nan) for name in classes]
            for prediction in predictions
        ]
    ).reshape(-1, len(classes))
