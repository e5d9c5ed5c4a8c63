"""What travels between the server and the page, by name: the one place that says what it holds."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

# What became of a correction in a training: it was learnt from; it is what a tested image is
# measured against; nothing, as its patient was kept for testing; its image was left out, or is no
# more.
CorrectionStatus = Literal["learnt", "truth", "unused", "left out", "gone"]
# Hits, misses and false alarms in patches, for regions from 1, 2, … connected patches on.
Overlap = list[list[int]]


class Correction(TypedDict):
    """`box`: left, top, right, bottom of a marked region; None: it is about the image.

    `label`: a class; None: the image is neither learnt from nor tested on.
    """

    id: str
    image: str
    name: str
    label: str | None
    box: list[int] | None


class UsedCorrection(Correction):
    use: CorrectionStatus


class Compared(TypedDict):
    """An image that two models were tested on, against what is held to be true now."""

    image: str
    name: str
    label: str
    label_before: str
    answer: str | None
    answer_before: str | None
    overlap: Overlap | None
    overlap_before: Overlap | None  # None, too, where its mask has changed since


class MapWork(TypedDict):
    """The map of a large image that is not there yet; `state`: of its job, or "unasked"."""

    state: str
    error: str
    job: str | None
    megapixels: float
    share: float  # of the work that is done, from 0 to 1
    seconds_left: float | None


class MapJob(TypedDict):
    """A map in the list of what is going on; `model`: the training whose model draws it."""

    id: str
    name: str
    data: str
    image: str
    model: str
    state: str
    error: str
    share: float


class Range(TypedDict):
    """A 95 % interval by patient."""

    low: float
    high: float


class ClassFigure(TypedDict):
    """Correct test images of a class; `interval` is None with too few patients."""

    name: str
    n_right: int
    n_images: int
    n_patients: int
    interval: Range | None


class Figures(TypedDict):
    """Scores of the test images; `few`: classes with too few patients for an interval.

    `balanced`: interval of the balanced accuracy; `overlap`: those of Dice and IoU, for regions.
    """

    classes: list[ClassFigure]
    balanced: Range | None
    few: list[str]
    overlap: dict[str, Range | None]


class Difference(Range):
    """Increase of the proportion of correct images, with its interval."""

    value: float


class PreviousModel(TypedDict):
    """The model that a training is compared with, on the images that both were tested on.

    `difference`: None with too few patients to tell it from chance.
    """

    id: str
    name: str
    operating_point: dict[str, Any] | None
    images: list[Compared]
    difference: Difference | None
