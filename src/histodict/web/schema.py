"""Types of the JSON objects exchanged between the server and the page."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

Json = dict[str, Any]  # JSON object
# Effect of a correction on a training: "learnt", used for training; "truth", true label of a test
# image; "unused", as its patient is a test patient; "left out", excluded; "gone", file missing.
CorrectionStatus = Literal["learnt", "truth", "unused", "left out", "gone"]
# Row k - 1: [hits, misses, false alarms] in patches, for regions of at least k connected patches.
OverlapCounts = list[list[int]]


class Correction(TypedDict):
    """Correction of an image by the user.

    Attributes
    ----------
    id : id of the correction
    image, name : id and name of the image
    label : correct class; None excludes the image from training and testing
    box : left, top, right, bottom of a rectangle in level-0 pixels; None for the whole image
    """

    id: str
    image: str
    name: str
    label: str | None
    box: list[int] | None


class UsedCorrection(Correction):
    """Correction with its effect `use` on a training."""

    use: CorrectionStatus


class ComparedImage(TypedDict):
    """Test image: id, name, true label, predicted label and overlap of detected and true regions.

    `answer` is the predicted label. Fields that end in `_before` are those of the parent model.
    """

    image: str
    name: str
    label: str
    label_before: str
    answer: str | None
    answer_before: str | None
    overlap: OverlapCounts | None
    overlap_before: OverlapCounts | None  # None also if the models had different masks


class MapState(TypedDict):
    """State of the patch map of a large image, which a job computes on request.

    `state` is the state of this job, or "not_requested" if there is no job.
    """

    state: str
    error: str
    job: str | None
    megapixels: float
    fraction_done: float
    seconds_left: float | None


class MapJob(TypedDict):
    """Job that computes a patch map.

    `data` is the id of the dataset, `image` that of the image and `model` that of the training job.
    """

    id: str
    name: str
    data: str
    image: str
    model: str
    state: str
    error: str
    fraction_done: float


class Interval(TypedDict):
    """95 % confidence interval with patients, not images, as independent units."""

    low: float
    high: float


class ClassScore(TypedDict):
    """Number of correctly predicted test images of a class.

    `interval` is the confidence interval of the fraction of correct predictions; None if there are
    too few patients.
    """

    name: str
    n_right: int
    n_images: int
    n_patients: int
    interval: Interval | None


class ScoreSummary(TypedDict):
    """Scores of the test images.

    Attributes
    ----------
    classes : counts and interval of each class that has test images
    balanced : confidence interval of the balanced accuracy; None if a class has too few patients
    few_patients : warning about classes with few patients; empty if there are none
    overlap : confidence intervals of "Dice" and "IoU" for models that find regions; otherwise empty
    """

    classes: list[ClassScore]
    balanced: Interval | None
    few_patients: str
    overlap: dict[str, Interval | None]


class AccuracyDifference(Interval):
    """Increase in accuracy from the parent model to this model, with its interval."""

    value: float


class ParentComparison(TypedDict):
    """Comparison of a model with its parent model on the images that both were tested on.

    `id`, `name` and `operating_point` (decision threshold) are those of the parent model.
    `difference` is None if there are too few patients for an interval.
    """

    id: str
    name: str
    operating_point: Json | None
    images: list[ComparedImage]
    difference: AccuracyDifference | None
