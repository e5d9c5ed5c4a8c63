"""Record of changes to the decision threshold after training, and of the images used for them.

Accuracy on images that were used to choose the threshold does not estimate the accuracy on unseen
patients. The model therefore stores every change, with a fingerprint of each image that was used
or viewed.

Where a model of two classes draws the line between them.

Regions: connected patches of the class looked for, and how many of them make a finding.

A patch is positive beyond a margin: 0, where its class is the closest, or one that is fitted. A
region is a set of positive patches that touch, by a side or a corner; it counts from m patches on.
m is the value from 1 to 20 whose point (false alarm rate, miss rate) on training images lies
closest to the origin.

Do scores fall into two groups? A test by smoothing, after Silverman (1981).

H0: the scores are of one group. Their density is smoothed more and more; t, the width of smoothing
at which the last valley closes, in standard deviations, is small if valleys are chance and large if
there are two groups. A valley counts if a tenth of the images or more lie on either side of it, so
that a few outliers make no group. H0 is refused if t is larger than for 95 in 100 sets of as many
draws from a normal distribution; heavy tails and skewed groups have smaller t than that.

Where to put the threshold, with the help of images without labels.

A threshold learnt from a handful of images sits well for their patients; the scores of other
patients, stained or scanned in another way, lie higher or lower together. Of many images to be
answered most belong clearly to either class, so their scores fall into two groups, and the middle
between these is a threshold that needs no labels. It holds as far as there are about as many of
each: should nearly all be of one class it cuts through that class. So only half the way is gone,
which gains most of what there is to gain and halves that cost.
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

from ..patches.patch_map import label_regions
from ..utils.files import sampled_digest
from ..utils.text_io import pluralize
from ..utils.validation import check_choice, check_kind, check_whole_number

_ROUNDING = 1e-9  # a model keeps its line as a score, which does not give the same number back


@dataclass(frozen=True)
class DecisionThreshold:
    """An answer is positive, the second class, beyond `value`.

    kind : what is compared with it: "patches" (connected ones), a rule's name, or "score"
    rises : whether larger values speak for the positive class
    reached : whether the value itself is positive already
    """

    kind: str
    value: float
    higher_is_positive: bool = True
    is_inclusive: bool = False

    def is_positive(self, value: float) -> bool:
        """Whether a value is beyond the line; on it, up to rounding, it is if `reached`."""
        if isclose(value, self.value, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            return self.is_inclusive
        return value > self.value if self.higher_is_positive else value < self.value

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


MAX_MIN_PATCHES = 20


def describe_min_size(min_patches: int) -> str:
    """How a detector decides, for a model card."""
    if min_patches == 1:
        return "every patch that is found counts"
    return f"a region counts from {min_patches} connected patches on"


def fit_margin_threshold(margins: NDArray[np.float32], truth: NDArray[np.bool_]) -> float:
    """The margin beyond which a patch is best called positive, of patches that are known (n,).

    It has the highest sum of sensitivity and specificity, and lies midway between two patches';
    0 where there are not both kinds.
    """
    if truth.all() or not truth.any():
        return 0.0
    order = np.argsort(margins, kind="stable")
    ordered, is_true = margins[order].astype(np.float64), truth[order]
    # With the lowest k patches called negative, for k = 0 … n.
    missed = np.concatenate([[0.0], np.cumsum(is_true)]) / is_true.sum()
    refused = np.concatenate([[0.0], np.cumsum(~is_true)]) / (~is_true).sum()
    ends = np.concatenate([ordered[:1] - 1, ordered, ordered[-1:] + 1])
    # Patches of one margin cannot be parted.
    sums = np.where(ends[1:] > ends[:-1], refused - missed, -np.inf)
    k = int(np.argmax(sums))
    return float((ends[k] + ends[k + 1]) / 2)


@dataclass(frozen=True)
class LargestRegion:
    """The largest region of one training image, where there is something and where nothing.

    found : patches of the largest region that meets a true one; None if the image has none
    alarm : patches of the largest region that does not; None if the image is all true region
    """

    found: int | None
    alarm: int | None


def match_regions(
    positive: NDArray[np.bool_], truth: NDArray[np.bool_], tissue: NDArray[np.bool_]
) -> LargestRegion:
    """Regions of an image against the true patches: the outside of a mask is a negative image."""
    places, sizes = label_regions(positive)
    meets = np.zeros(len(sizes) + 1, bool)
    meets[np.unique(places[truth])] = True
    hits, others = sizes[meets[1:]], sizes[~meets[1:]]
    return LargestRegion(
        int(hits.max(initial=0)) if truth.any() else None,
        int(others.max(initial=0)) if (tissue & ~truth).any() else None,
    )


@dataclass(frozen=True)
class SizeCurve:
    """Miss and false alarm rates for m = 1 … 20, and the m chosen."""

    false_negative_rate: NDArray[np.float64]
    false_positive_rate: NDArray[np.float64]

    @classmethod
    def of(cls, findings: Sequence[LargestRegion]) -> SizeCurve:
        found = np.array([f.found for f in findings if f.found is not None])
        alarm = np.array([f.alarm for f in findings if f.alarm is not None])
        for name, values in (("with", found), ("without", alarm)):
            if len(values) == 0:
                raise ValueError(
                    f"no training image has tissue {name} the class looked for: both are needed to "
                    "choose how many connected patches make a region"
                )
        sizes = np.arange(1, MAX_MIN_PATCHES + 1)
        return cls((found < sizes[:, None]).mean(axis=1), (alarm >= sizes[:, None]).mean(axis=1))

    @property
    def min_patches(self) -> int:
        """m, the smallest of those closest to the origin."""
        return int(np.argmin(np.hypot(self.false_negative_rate, self.false_positive_rate))) + 1


Record = dict[str, Any]
NOTE = "tuned on these images; not an estimate for unseen patients"
TRAINED_NOTE = (
    "used to train this model: scores on them do not estimate the accuracy on unseen patients"
)
_MANUAL, _ADAPTED, _REFIT, _ATOMS = "manual", "adapted", "refit", "atoms"
_DESCRIPTIONS = {
    _MANUAL: "moved by hand",
    _ADAPTED: "adapted without labels",
    _REFIT: "decision rule refitted",
    _ATOMS: "atoms enabled or disabled",
}
_CHARACTERS = 16  # of a fingerprint
_KINDS = {
    "source": "str",
    "date": "str",
    "n_images": "int",
    "images": "list[str]",
    "previous": "float | None",
    "value": "float | None",
    "shift": "float | None",
}


def fingerprint(image: Path) -> str:
    """Return a short digest of the content of an image; empty if it cannot be read."""
    return sampled_digest(image)[:_CHARACTERS]


def tuned(training: Mapping[str, Any], source: str, **values: Any) -> dict[str, Any]:
    """Return the record of a training with one more change.

    Parameters
    ----------
    source : "manual", "adapted", "refit" or "atoms"
    values : `previous` and `value`, the operating point before and after; `shift`, the
        decrease of scores by the change; `n_images`; and other entries of the record
    """
    plain = {"n_images": 0, "images": [], "previous": None, "value": None, "shift": None}
    change = {"source": source, "date": date.today().isoformat()} | plain | values
    return {**training, "tuning": [*changes(training), change]}


def with_images(training: Mapping[str, Any], images: Iterable[Path]) -> dict[str, Any]:
    """Return the record of a training with these images added to its last change."""
    if not changes(training):
        raise ValueError("the decision of this model was not changed: there is nothing to record")
    *earlier, last = changes(training)
    found = sorted({fingerprint(path) for path in images} - {""})
    last = last | {"n_images": max(last["n_images"], len(found)), "images": found}
    return {**training, "tuning": [*earlier, last]}


def carried_over(
    training: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of an ensemble after a change of one of its estimators."""
    new = changes(after)[len(changes(before)) :]
    return {**training, "tuning": [*changes(training), *new]} if new else dict(training)


def changes(training: Mapping[str, Any]) -> list[Record]:
    """Return all changes since the training, oldest first."""
    return list(training.get("tuning", []))


def image_fingerprints(images: Iterable[object]) -> list[str]:
    """Return the fingerprints of image files, sorted; images in memory have none."""
    return sorted({fingerprint(path) for path in images if isinstance(path, Path)} - {""})


def n_trained_on(training: Mapping[str, Any], images: Iterable[Path]) -> int:
    """Return how many of the images the model was trained on; missing files do not count."""
    known: set[str] = set()
    while training:
        known |= set(training.get("images", ()))
        training = training.get("started_from", {})
    return sum(fingerprint(image) in known for image in images) if known else 0


def n_tuned_on(training: Mapping[str, Any], images: Iterable[Path]) -> int:
    """Return how many of the images the model was tuned on; missing files do not count."""
    known = {image for change in changes(training) for image in change["images"]}
    return sum(fingerprint(image) in known for image in images) if known else 0


def total_shift(training: Mapping[str, Any]) -> float | None:
    """Return the decrease of scores since training; None if it is not a constant."""
    shifts = [change["shift"] for change in changes(training)]
    return None if None in shifts else float(sum(shifts))


def first_point(training: Mapping[str, Any]) -> float | None:
    """Return the operating point as trained; None if anything else was changed."""
    found = changes(training)
    is_known = bool(found) and {change["source"] for change in found} == {_MANUAL}
    return found[0]["previous"] if is_known else None


def describe_tuning(training: Mapping[str, Any]) -> str:
    """Describe all changes for a model card; empty if there are none."""
    return "; ".join(map(_describe, changes(training)))


def _describe(change: Record) -> str:
    words = _DESCRIPTIONS[change["source"]]
    if change["previous"] is not None and change["value"] is not None:
        words += f" from {change['previous']:.3g} to {change['value']:.3g}"
    elif change["shift"] is not None:
        words += f", scores moved by {-change['shift']:+.3g}"
    n_images = change["n_images"]
    where = "with" if change["source"] == _ADAPTED else "on"
    words += f" {where} {pluralize(n_images, 'image')}" if n_images else ", images not recorded"
    words += f" ({change['date']})"
    return f"{words}: scores on these images are not an estimate for unseen patients"


def check_tuning(found: object) -> None:
    """Raise an error unless `found` is a valid list of changes."""
    if not isinstance(found, list):
        raise ValueError("training: tuning must be a list")
    for change in found:
        check_kind("training: a change of tuning", change, "dict[str, Any]")
        for name, kind in _KINDS.items():
            check_kind(f"tuning: {name}", change.get(name, ...), kind)
        check_choice("tuning: source", change["source"], _DESCRIPTIONS)
        check_whole_number("tuning: n_images", change["n_images"], 0)


ERROR_RATE = 0.05
_MIN_FRACTION = 0.1
_N_DRAWS = 1000
_MAX_IMAGES = 1000  # of a draw: with more, t would be a little smaller yet
_SPAN, _N_BINS = 5.0, 256  # standard deviations to either side of the median
_WIDTHS = np.geomspace(1.5, 0.08, 60)


def is_bimodal(scores: NDArray[np.float64]) -> bool:
    """Whether scores (n_images,) are of two groups, with an error rate of 5 % if they are not."""
    if np.ptp(scores) == 0:
        return False
    width = _closing_widths(_untied(scores)[None])[0]
    return bool(width > _critical(min(len(scores), _MAX_IMAGES)))


def _untied(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sorted; scores that are the same are spread evenly about their place, as far as the next one.

    Shares of few patches are multiples of one number, and what is between them is no valley. Of
    scores with two or three values alone nothing can be told, and they count as one group.
    """
    values, counts = np.unique(scores, return_counts=True)
    gaps = np.diff(values)
    nearest = np.minimum(np.append(gaps[:1], gaps), np.append(gaps, gaps[-1:]))
    nth = np.arange(len(scores)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = np.repeat(np.arange(len(values)), counts)
    share = (2 * nth + 1) / counts[place] - 1  # from -1 to 1, and 0 of one alone
    return np.asarray(values[place] + share * nearest[place])


@lru_cache(maxsize=100)
def _critical(n_images: int) -> float:
    draws = np.random.default_rng(0).normal(size=(_N_DRAWS, n_images))
    return float(np.quantile(_closing_widths(draws), 1 - ERROR_RATE))


def _closing_widths(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """t of each of the sets (n_sets, n_images); 0 where there is no valley at the least width."""
    counts = _histograms(scores)
    found = np.zeros(len(scores))
    for width in _WIDTHS:  # from wide to narrow: the first valley to open closes last
        open_ = found == 0
        if open_.any():
            found[open_] = np.where(_have_valleys(counts[open_] @ _smoother(width)), width, 0)
    return found


def _histograms(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n_sets, n_bins): shares of the images, about the median, in standard deviations."""
    centred = scores - np.median(scores, axis=1, keepdims=True)
    places = (centred / scores.std(axis=1, keepdims=True) / _SPAN + 1) / 2 * _N_BINS
    bins = np.clip(places.astype(np.int64), 0, _N_BINS - 1)
    counts = np.zeros((len(scores), _N_BINS))
    np.add.at(counts, (np.arange(len(scores))[:, None], bins), 1 / scores.shape[1])
    return counts


@lru_cache(maxsize=len(_WIDTHS))
def _smoother(width: float) -> NDArray[np.float64]:
    """(n_bins, n_bins): a normal density of this width about each bin."""
    middles = np.linspace(-_SPAN, _SPAN, _N_BINS)
    return np.exp(-(((middles[:, None] - middles) / width) ** 2) / 2)


def _have_valleys(density: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Of densities (n_sets, n_bins): whether one has a least place between two groups."""
    below = np.cumsum(density, axis=1) / density.sum(axis=1, keepdims=True)
    middle = density[:, 1:-1]
    is_least = (middle <= density[:, :-2]) & (middle < density[:, 2:])
    between = (below[:, 1:-1] >= _MIN_FRACTION) & (below[:, 1:-1] <= 1 - _MIN_FRACTION)
    return np.asarray((is_least & between).any(axis=1))


MIN_IMAGES = 10


def unlabelled_threshold(scores: NDArray[np.float64]) -> float:
    """Of scores (n_images,) whose threshold is 0: half the way to the middle of their groups."""
    if len(scores) < MIN_IMAGES:
        raise ValueError(
            f"{len(scores)} images with tissue are too few to see how their scores lie: give at "
            f"least {MIN_IMAGES}, of both classes"
        )
    return two_means_midpoint(scores) / 2


def two_means_midpoint(scores: NDArray[np.float64]) -> float:
    """2-means in one dimension: the middle of the means of the two groups that lie closest."""
    ordered = np.sort(scores)
    n_left = np.arange(1, len(ordered))
    left = np.cumsum(ordered)[:-1]
    # The least squares within the groups are the most between them.
    between = left**2 / n_left + (ordered.sum() - left) ** 2 / (len(ordered) - n_left)
    cut = int(between.argmax()) + 1
    return float((ordered[:cut].mean() + ordered[cut:].mean()) / 2)


@dataclass(frozen=True)
class ThresholdAdaptation:
    """What another threshold does to the images it was found with; those of glass are left out.

    groups : images below and above the middle between the two groups of scores
    n_moved : images that get another answer than before
    """

    groups: tuple[int, int]
    n_moved: int

    @classmethod
    def of(cls, scores: Sequence[float], threshold: float) -> ThresholdAdaptation:
        """`threshold`: of `unlabelled_threshold`, for scores whose threshold is 0."""
        known = np.array([score for score in scores if not np.isnan(score)])
        n_above = int((known > 2 * threshold).sum())  # half the way was gone
        n_moved = int(((known > 0) != (known > threshold)).sum())
        return cls((len(known) - n_above, n_above), n_moved)

    @property
    def one_is_small(self) -> bool:
        """Whether nearly all images may be of one class, which the threshold then cuts through."""
        return min(self.groups) < sum(self.groups) / 5
