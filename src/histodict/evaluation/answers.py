"""What a method answered for the images it was tested on, put together over the folds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..images.manifest import Manifest
from .splits import Split


@dataclass(frozen=True)
class Repeat:
    """One repeat of an experiment: every image tested in it, once.

    labels, patients : (n_images,)
    answers : predictions or scores, (n_images,) or (n_images, n_classes), as a metric takes them
    """

    labels: NDArray[Any]
    patients: NDArray[Any]
    predictions: NDArray[Any]

    def __post_init__(self) -> None:
        shapes = [np.shape(x)[:1] for x in (self.labels, self.patients, self.predictions)]
        if shapes[0] == (0,) or len(set(shapes)) > 1 or not shapes[0]:
            raise ValueError(
                "labels, patients and answers must have one entry per image, not shapes "
                f"{[np.shape(x) for x in (self.labels, self.patients, self.predictions)]}"
            )


def collect_repeats(
    manifest: Manifest, splits: Iterable[Split], answers: Iterable[ArrayLike]
) -> list[Repeat]:
    """All answers, repeat by repeat; `answers` has an array per split, in order of `split.test`.

    The folds of a repeat are put together before any metric is computed, because a fold of few
    patients may lack a class. Scores of different folds come from different models: they must
    mean the same, such as probabilities, or distances from the border of the decision.
    """
    splits, answers = list(splits), list(answers)
    if len(splits) != len(answers):
        raise ValueError(f"there are {len(splits)} splits, but answers of {len(answers)}")
    repeats: dict[int, list[tuple[Split, NDArray[Any]]]] = {}
    for split, said in zip(splits, answers, strict=True):
        repeats.setdefault(split.repeat, []).append((split, _per_image(split, said)))
    return [_joined(manifest, parts) for _, parts in sorted(repeats.items())]


def _per_image(split: Split, answers: ArrayLike) -> NDArray[Any]:
    said = np.asarray(answers)
    if said.shape[:1] != (len(split.test),):
        raise ValueError(
            f"split {split.name!r} tests {len(split.test)} images, but its answers have the shape "
            f"{said.shape}"
        )
    return said


def _joined(manifest: Manifest, parts: list[tuple[Split, NDArray[Any]]]) -> Repeat:
    tested = [place for split, _ in parts for place in split.test]
    if len(set(tested)) < len(tested):
        names = [split.name for split, _ in parts]
        raise ValueError(
            f"the splits {names} are one repeat, but test some image twice: gather the answers of "
            "one experiment at a time, such as one n_per_class"
        )
    # Sorted by name: rounding of a sum must not depend on the order of rows.
    names = [manifest.name(manifest.records[place]) for place in tested]
    order = sorted(range(len(tested)), key=names.__getitem__)
    chosen = manifest.select([tested[row] for row in order])
    said = np.concatenate([said for _, said in parts])[order]
    return Repeat(np.array(chosen.labels), np.array(chosen.patients), said)
