"""Decision thresholds of regions and images, their adaptation, and the record of changes.

Regions: a patch is positive if its margin exceeds a threshold, which is 0 or fitted. A region is a
set of positive patches connected by a side or a corner; regions of fewer than m patches are
ignored. m is the value from 1 to 20 whose point (false positive rate, false negative rate) on
training images lies closest to the origin.

Bimodality: `is_bimodal` tests the null hypothesis that scores form one group (Silverman, 1981). The
density is smoothed with increasing width. The statistic t, the width in standard deviations at
which the last local minimum (valley) vanishes, is large if there are two groups. A minimum counts
if at least a tenth of the images lies on either side, so that outliers form no group. The
hypothesis is rejected if t exceeds the 95 % quantile of samples of equal size from a normal
distribution; heavy tails and skewed distributions have smaller t.

Adaptation: other patients, stains or scanners shift scores by a common offset. If the scores of
many new images form two groups, the midpoint between them is a threshold that needs no labels. The
midpoint is biased if the classes are unbalanced. The threshold is therefore moved only half the
distance from 0 to the midpoint, which preserves most of the gain and halves the bias.

Record of changes: accuracy on images that were used to choose the threshold does not estimate the
accuracy on unseen patients. The training record of a model (`training_info_`) therefore contains
every change, with a fingerprint of each image that was used or viewed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import lru_cache
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..patches.region_borders import label_regions
from ..utils.files import sampled_digest
from ..utils.text_io import pluralize
from ..utils.validation import check_choice, check_type, check_whole_number

_TOLERANCE = 1e-9  # for rounding: models store the threshold as a score, not as a feature value


@dataclass(frozen=True)
class DecisionThreshold:
    """Decision threshold for the prediction of the second class.

    Attributes
    ----------
    kind : quantity that is compared: "patches" (size of a region in patches), "score" (score of an
        image), or the name of an aggregator (its feature)
    value : threshold
    higher_is_positive : whether larger values are positive
    is_inclusive : whether a value equal to the threshold is positive
    """

    kind: str
    value: float
    higher_is_positive: bool = True
    is_inclusive: bool = False

    def is_positive(self, value: float) -> bool:
        """Return whether a value is positive, up to rounding."""
        if isclose(value, self.value, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            return self.is_inclusive
        return value > self.value if self.higher_is_positive else value < self.value

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)


MAX_MIN_PATCHES = 20  # maximum of the fitted minimum size of a region


def describe_min_size(min_patches: int) -> str:
    """Describe the minimum size of a region for a model card."""
    if min_patches == 1:
        return "connected positive patches form a region; there is no minimum size"
    return f"a region has at least {min_patches} connected patches"


def fit_margin_threshold(margins: NDArray[np.float32], truth: NDArray[np.bool_]) -> float:
    """Return the margin threshold with the largest sum of sensitivity and specificity.

    The threshold is the midpoint between two margins, or 0 if all patches are of one class.

    Parameters
    ----------
    margins : (n,), margin of each patch
    truth : (n,), whether the patch is positive
    """
    if truth.all() or not truth.any():
        return 0.0
    order = np.argsort(margins, kind="stable")
    ordered, is_true = margins[order].astype(np.float64), truth[order]
    # Rates if the lowest k patches are negative, for k = 0 … n.
    false_negative_rate = np.concatenate([[0.0], np.cumsum(is_true)]) / is_true.sum()
    true_negative_rate = np.concatenate([[0.0], np.cumsum(~is_true)]) / (~is_true).sum()
    bounds = np.concatenate([ordered[:1] - 1, ordered, ordered[-1:] + 1])
    # No threshold separates patches of equal margin.
    sums = np.where(bounds[1:] > bounds[:-1], true_negative_rate - false_negative_rate, -np.inf)
    k = int(np.argmax(sums))
    return float((bounds[k] + bounds[k + 1]) / 2)


@dataclass(frozen=True)
class LargestRegionSizes:
    """Sizes of the largest true and false positive regions of a training image, in patches.

    Attributes
    ----------
    true_positive_size : size of the largest predicted region that overlaps a true region; None if
        the image has no true region
    false_positive_size : size of the largest predicted region that overlaps no true region; None if
        all tissue is in true regions
    """

    true_positive_size: int | None
    false_positive_size: int | None


def measure_largest_regions(
    positive: NDArray[np.bool_], truth: NDArray[np.bool_], tissue: NDArray[np.bool_]
) -> LargestRegionSizes:
    """Return the sizes of the largest true and false positive regions of an image.

    Parameters
    ----------
    positive : (n_rows, n_columns), whether each patch is predicted as region
    truth : (n_rows, n_columns), whether each patch is part of a true region
    tissue : (n_rows, n_columns), whether each patch is tissue
    """
    region_labels, sizes = label_regions(positive)
    is_hit = np.zeros(len(sizes) + 1, bool)
    is_hit[np.unique(region_labels[truth])] = True
    hits, others = sizes[is_hit[1:]], sizes[~is_hit[1:]]
    return LargestRegionSizes(
        int(hits.max(initial=0)) if truth.any() else None,
        int(others.max(initial=0)) if (tissue & ~truth).any() else None,
    )


@dataclass(frozen=True)
class RegionSizeCurve:
    """False negative and false positive rates, (20,), for minimum region sizes from 1 to 20."""

    false_negative_rate: NDArray[np.float64]
    false_positive_rate: NDArray[np.float64]

    @classmethod
    def from_regions(cls, regions: Sequence[LargestRegionSizes]) -> RegionSizeCurve:
        """Compute the rates from the largest regions of each training image.

        Raise ValueError unless there are images with tissue inside and outside of true regions.
        """
        hits = np.array([r.true_positive_size for r in regions if r.true_positive_size is not None])
        false_alarms = np.array(
            [r.false_positive_size for r in regions if r.false_positive_size is not None]
        )
        for name, values in (("with", hits), ("without", false_alarms)):
            if len(values) == 0:
                raise ValueError(
                    f"no training image with tissue {name} the positive class; the minimum "
                    "number of patches of a region needs images with and without it"
                )
        sizes = np.arange(1, MAX_MIN_PATCHES + 1)
        return cls(
            (hits < sizes[:, None]).mean(axis=1), (false_alarms >= sizes[:, None]).mean(axis=1)
        )

    @property
    def min_patches(self) -> int:
        """Minimum region size whose two rates are closest to (0, 0); the smallest of several."""
        return int(np.argmin(np.hypot(self.false_negative_rate, self.false_positive_rate))) + 1


ChangeRecord = dict[str, Any]
TUNED_IMAGES_NOTE = "tuned on these images; not an estimate for unseen patients"
TRAINED_IMAGES_NOTE = (
    "used to train this model; scores on them are not an estimate for unseen patients"
)
_MANUAL, _ADAPTED, _REFIT, _ATOMS = "manual", "adapted", "refit", "atoms"
_DESCRIPTIONS = {
    _MANUAL: "set manually",
    _ADAPTED: "adapted without labels",
    _REFIT: "decision rule refitted",
    _ATOMS: "atoms were enabled or disabled",
}
_FINGERPRINT_LENGTH = 16  # hexadecimal digits
_FIELD_TYPES = {
    "source": "str",
    "date": "str",
    "n_images": "int",
    "images": "list[str]",
    "previous": "float | None",
    "value": "float | None",
    "shift": "float | None",
}


def fingerprint(image: Path) -> str:
    """Return a short digest of the content of an image file; empty if it cannot be read."""
    return sampled_digest(image)[:_FINGERPRINT_LENGTH]


def add_change(training: Mapping[str, Any], source: str, **entries: Any) -> dict[str, Any]:
    """Return a training record with one more change of the decision.

    Parameters
    ----------
    training : training record of the model
    source : "manual", "adapted", "refit" or "atoms"
    entries : further entries of the change: `previous` and `value`, the threshold before and after;
        `shift`, the amount that the change subtracts from scores; `n_images` and `images`
    """
    defaults = {"n_images": 0, "images": [], "previous": None, "value": None, "shift": None}
    change = {"source": source, "date": date.today().isoformat()} | defaults | entries
    return {**training, "tuning": [*list_changes(training), change]}


def add_tuning_images(training: Mapping[str, Any], images: Iterable[Path]) -> dict[str, Any]:
    """Return a training record whose last change lists the fingerprints of these images.

    They replace the images that the change listed before. Raise ValueError if the record contains
    no change of the decision.
    """
    if not list_changes(training):
        raise ValueError(
            "the decision rule of this model was not changed, so there is nothing to record"
        )
    *earlier, last = list_changes(training)
    fingerprints = sorted({fingerprint(path) for path in images} - {""})
    last = last | {"n_images": max(last["n_images"], len(fingerprints)), "images": fingerprints}
    return {**training, "tuning": [*earlier, last]}


def add_member_changes(
    training: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the training record of an ensemble with the new changes of a member added.

    Parameters
    ----------
    training : training record of the ensemble
    before : earlier training record of the member
    after : later training record of the member; changes that only this has are added
    """
    new = list_changes(after)[len(list_changes(before)) :]
    return {**training, "tuning": [*list_changes(training), *new]} if new else dict(training)


def list_changes(training: Mapping[str, Any]) -> list[ChangeRecord]:
    """Return all changes of the decision in a training record, oldest first."""
    return list(training.get("tuning", []))


def image_fingerprints(images: Iterable[object]) -> list[str]:
    """Return the sorted fingerprints of image files; in-memory images are omitted."""
    return sorted({fingerprint(path) for path in images if isinstance(path, Path)} - {""})


def count_training_images(training: Mapping[str, Any], images: Iterable[Path]) -> int:
    """Return how many of these images the model was trained on; missing files do not count."""
    known: set[str] = set()
    while training:
        known |= set(training.get("images", ()))
        training = training.get("started_from", {})
    return sum(fingerprint(image) in known for image in images) if known else 0


def count_tuning_images(training: Mapping[str, Any], images: Iterable[Path]) -> int:
    """Return how many of these images the decision was tuned on; missing files do not count."""
    known = {image for change in list_changes(training) for image in change["images"]}
    return sum(fingerprint(image) in known for image in images) if known else 0


def total_shift(training: Mapping[str, Any]) -> float | None:
    """Return the sum of the amounts that changes subtract from scores.

    Return None if a change does not subtract the same amount from all scores.
    """
    shifts = [change["shift"] for change in list_changes(training)]
    return None if None in shifts else float(sum(shifts))


def original_threshold(training: Mapping[str, Any]) -> float | None:
    """Return the threshold before manual changes.

    Return None if there are no changes, or if some are not manual.
    """
    record = list_changes(training)
    is_known = bool(record) and {change["source"] for change in record} == {_MANUAL}
    return record[0]["previous"] if is_known else None


def describe_tuning(training: Mapping[str, Any]) -> str:
    """Describe the changes of the decision for a model card; "" if there are none."""
    return "; ".join(map(_describe, list_changes(training)))


def _describe(change: ChangeRecord) -> str:
    text = _DESCRIPTIONS[change["source"]]
    if change["previous"] is not None and change["value"] is not None:
        text += f" from {change['previous']:.3g} to {change['value']:.3g}"
    effect = ""
    if change["shift"] is not None and (change["previous"] is None or change["value"] is None):
        effect = f", which {describe_shift(change['shift'])}"
    prepositions = {_ADAPTED: " to", _ATOMS: ", and the predictions compared on"}
    if n_images := change["n_images"]:
        preposition = prepositions.get(change["source"], " on")
        text += f"{preposition} {pluralize(n_images, 'image')}{effect}"
    else:
        text += f"{effect}, images not recorded"
    text += f" ({change['date']})"
    return f"{text}; scores on these images are not an estimate for unseen patients"


def describe_shift(shift: float) -> str:
    """Describe the effect of a change that subtracts `shift` from all scores, as a predicate."""
    if shift == 0:
        return "does not change the scores"
    return f"{'lowers' if shift > 0 else 'raises'} all scores by {abs(shift):.3g}"


def check_tuning(changes: object) -> None:
    """Raise ValueError unless `changes` is a valid list of changes of the decision."""
    if not isinstance(changes, list):
        raise ValueError("training: tuning must be a list")
    for change in changes:
        check_type("training: tuning entry", change, "dict[str, Any]")
        for name, kind in _FIELD_TYPES.items():
            check_type(f"tuning: {name}", change.get(name, ...), kind)
        check_choice("tuning: source", change["source"], _DESCRIPTIONS)
        check_whole_number("tuning: n_images", change["n_images"], 0)


SIGNIFICANCE_LEVEL = 0.05
_MIN_GROUP_FRACTION = 0.1
_N_SIMULATIONS = 1000  # samples of a normal distribution
_MAX_IMAGES = 1000  # maximum size of a simulated sample; t is slightly smaller for larger samples
_HISTOGRAM_RANGE, _N_BINS = 5.0, 256  # standard deviations to either side of the median
_SMOOTHING_WIDTHS = np.geomspace(1.5, 0.08, 60)


def is_bimodal(scores: NDArray[np.float64]) -> bool:
    """Return whether scores (n_images,) form two groups, tested at the 5 % level."""
    if np.ptp(scores) == 0:
        return False
    width = _closing_widths(_spread_ties(scores)[None])[0]
    return bool(width > _critical_width(min(len(scores), _MAX_IMAGES)))


def _spread_ties(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sorted scores, with tied scores spread evenly around their value.

    Fractions computed from few patches take few distinct values, and a gap between two of these
    values is not evidence of two groups. Scores with two or three distinct values form one group.
    """
    values, counts = np.unique(scores, return_counts=True)
    gaps = np.diff(values)
    nearest = np.minimum(np.append(gaps[:1], gaps), np.append(gaps, gaps[-1:]))
    rank_in_tie = np.arange(len(scores)) - np.repeat(np.cumsum(counts) - counts, counts)
    value_index = np.repeat(np.arange(len(values)), counts)
    offset = (2 * rank_in_tie + 1) / counts[value_index] - 1  # from -1 to 1; 0 for a unique score
    return np.asarray(values[value_index] + offset * nearest[value_index])


@lru_cache(maxsize=100)
def _critical_width(n_images: int) -> float:
    """Return the 95 % quantile of t (`_closing_widths`) for samples from a normal distribution.

    `n_images` is the size of the samples.
    """
    samples = np.random.default_rng(0).normal(size=(_N_SIMULATIONS, n_images))
    return float(np.quantile(_closing_widths(samples), 1 - SIGNIFICANCE_LEVEL))


def _closing_widths(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the statistic t, (n_sets,), of sets of scores (n_sets, n_images).

    t is the largest smoothing width at which the density has a valley, in standard deviations of
    the scores; 0 if the density has no valley at any width.
    """
    counts = _histograms(scores)
    widths = np.zeros(len(scores))
    for width in _SMOOTHING_WIDTHS:  # decreasing, so the first valley found is the last to close
        is_unresolved = widths == 0
        if is_unresolved.any():
            widths[is_unresolved] = np.where(
                _has_valley(counts[is_unresolved] @ _smoothing_matrix(width)), width, 0
            )
    return widths


def _histograms(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return histograms (n_sets, n_bins) of scores, centred at the median and standardised."""
    centred = scores - np.median(scores, axis=1, keepdims=True)
    positions = (centred / scores.std(axis=1, keepdims=True) / _HISTOGRAM_RANGE + 1) / 2 * _N_BINS
    bins = np.clip(positions.astype(np.int64), 0, _N_BINS - 1)
    counts = np.zeros((len(scores), _N_BINS))
    np.add.at(counts, (np.arange(len(scores))[:, None], bins), 1 / scores.shape[1])
    return counts


@lru_cache(maxsize=len(_SMOOTHING_WIDTHS))
def _smoothing_matrix(width: float) -> NDArray[np.float64]:
    """Return the matrix (n_bins, n_bins) of a Gaussian filter.

    `width` is its standard deviation, in standard deviations of the scores.
    """
    centres = np.linspace(-_HISTOGRAM_RANGE, _HISTOGRAM_RANGE, _N_BINS)
    return np.exp(-(((centres[:, None] - centres) / width) ** 2) / 2)


def _has_valley(density: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return whether each density (n_sets, n_bins) has a valley between two groups."""
    cumulative = np.cumsum(density, axis=1) / density.sum(axis=1, keepdims=True)
    inner = density[:, 1:-1]
    is_minimum = (inner <= density[:, :-2]) & (inner < density[:, 2:])
    separates_groups = (cumulative[:, 1:-1] >= _MIN_GROUP_FRACTION) & (
        cumulative[:, 1:-1] <= 1 - _MIN_GROUP_FRACTION
    )
    return np.asarray((is_minimum & separates_groups).any(axis=1))


MIN_IMAGES = 10  # minimum number of images for an adaptation


def adapted_threshold(scores: NDArray[np.float64]) -> float:
    """Return half the midpoint between the two groups of scores (n_images,), as threshold."""
    if len(scores) < MIN_IMAGES:
        raise ValueError(
            f"{pluralize(len(scores), 'image')} with tissue {'is' if len(scores) == 1 else 'are'} "
            "too few to adapt the threshold; use at least "
            f"{MIN_IMAGES}, of both classes"
        )
    return two_means_midpoint(scores) / 2


def two_means_midpoint(scores: NDArray[np.float64]) -> float:
    """Return the midpoint between the two cluster means of one-dimensional 2-means."""
    ordered = np.sort(scores)
    n_left = np.arange(1, len(ordered))
    left = np.cumsum(ordered)[:-1]
    # Minimising the squares within the groups maximises those between them.
    between = left**2 / n_left + (ordered.sum() - left) ** 2 / (len(ordered) - n_left)
    cut = int(between.argmax()) + 1
    return float((ordered[:cut].mean() + ordered[cut:].mean()) / 2)


@dataclass(frozen=True)
class ThresholdAdaptation:
    """Effect of an adapted threshold on the images from which it was computed.

    Attributes
    ----------
    groups : numbers of images below and above the midpoint of the two groups
    n_moved : number of images whose prediction changes; images without tissue are not counted
    """

    groups: tuple[int, int]
    n_moved: int

    @classmethod
    def from_scores(cls, scores: Sequence[float], threshold: float) -> ThresholdAdaptation:
        """Return the effect of a threshold from `adapted_threshold` on scores.

        Scores that are NaN, of images without tissue, are ignored.
        """
        known = np.array([score for score in scores if not np.isnan(score)])
        n_above = int((known > 2 * threshold).sum())  # the threshold is half the midpoint
        n_moved = int(((known > 0) != (known > threshold)).sum())
        return cls((len(known) - n_above, n_above), n_moved)

    @property
    def has_small_group(self) -> bool:
        """Whether one group is so small that all images may belong to one class."""
        return min(self.groups) < sum(self.groups) / 5
