"""Types of the JSON objects exchanged between the server and the page."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

# Effect of a correction on a training: used for training; used as the true label of a test image;
# not used, as its patient is a test patient; image excluded; image missing.
CorrectionStatus = Literal["learnt", "truth", "unused", "left out", "gone"]
# Hits, misses and false alarms in patches, for regions of at least 1, 2, … connected patches.
Overlap = list[list[int]]


class Correction(TypedDict):
    """Correction by the user.

    Attributes
    ----------
    id : id of the correction
    image, name : id and name of the image
    label : class; None excludes the image from training and testing
    box : left, top, right, bottom of a marked rectangle; None for the whole image
    """

    id: str
    image: str
    name: str
    label: str | None
    box: list[int] | None


class UsedCorrection(Correction):
    """Correction with its effect on a training."""

    use: CorrectionStatus


class ComparedImage(TypedDict):
    """Predictions of two models for a test image, with the current true label."""

    image: str
    name: str
    label: str
    label_before: str
    answer: str | None
    answer_before: str | None
    overlap: Overlap | None
    overlap_before: Overlap | None  # None also if the mask has changed since


class MapWork(TypedDict):
    """State of the map of a large image that is not computed yet.

    `state` is the state of the job, or "unasked" without a job.
    """

    state: str
    error: str
    job: str | None
    megapixels: float
    fraction_done: float  # of the work
    seconds_left: float | None


class MapJob(TypedDict):
    """Job that computes a map; `model` is the id of the training."""

    id: str
    name: str
    data: str
    image: str
    model: str
    state: str
    error: str
    fraction_done: float


class Range(TypedDict):
    """95 % confidence interval by patient."""

    low: float
    high: float


class ClassScore(TypedDict):
    """Number of correct test images of a class; `interval` is None for too few patients."""

    name: str
    n_right: int
    n_images: int
    n_patients: int
    interval: Range | None


class ScoreSummary(TypedDict):
    """Scores of the test images.

    Attributes
    ----------
    classes : counts and intervals per class
    balanced : interval of the balanced accuracy
    few_patients : warning about classes with few patients; empty if there are none
    overlap : intervals of Dice and IoU, for models that find regions
    """

    classes: list[ClassScore]
    balanced: Range | None
    few_patients: str
    overlap: dict[str, Range | None]


class Difference(Range):
    """Increase in accuracy, with its interval."""

    value: float


class PreviousModel(TypedDict):
    """Comparison of a training with its parent, on the images that both were tested on.

    `difference` is None if there are too few patients for an interval.
    """

    id: str
    name: str
    operating_point: dict[str, Any] | None
    images: list[ComparedImage]
    difference: Difference | None
