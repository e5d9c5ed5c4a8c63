"""What a split is: images to train on and to test on, kept apart by patient.

Two images of one patient share stain, scanner and biology. A method tested on the patients it was
trained on looks better than it is, so `by="patient"` is the default everywhere; `by="image"` has
to be said, and stays written in the split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..images.manifest import ImageRecord, Manifest


class SplitError(ValueError):
    """The images cannot be split as asked; the message says why and what can be done."""


class PatientLeakError(SplitError):
    """A patient is on both sides of a split."""


@dataclass(frozen=True)
class Split:
    """Places of the images to train on and to test on, in the manifest.

    by : what is kept apart, "patient" or "image"
    repeat : splits with the same number are the folds of one repeat
    n_per_class : training images per class, where their number was asked for
    """

    name: str
    train: list[int]
    test: list[int]
    by: str = "patient"
    repeat: int = 0
    n_per_class: int | None = None

    def __post_init__(self) -> None:
        if self.by not in ("patient", "image"):
            raise SplitError(f"by must be 'patient' or 'image', not {self.by!r}")
        if not self.train or not self.test:
            side = "test on" if self.train else "train on"
            raise SplitError(f"split {self.name!r}: there is no image to {side}")
        if len({*self.train, *self.test}) < len(self.train) + len(self.test):
            raise SplitError(f"split {self.name!r}: an image occurs twice")


@dataclass(frozen=True)
class Splits:
    """Splits of one manifest, and how they were made.

    images : the manifest's names, in its order; a split's places point here
    manifest : the manifest's digest
    protocol : what was asked for
    """

    splits: tuple[Split, ...]
    images: tuple[str, ...]
    manifest: str
    protocol: Mapping[str, Any]

    def __iter__(self) -> Iterator[Split]:
        return iter(self.splits)

    def __len__(self) -> int:
        return len(self.splits)


def image_names(manifest: Manifest) -> list[str]:
    """Paths relative to the manifest's root, in its order."""
    return [manifest.name(record) for record in manifest.records]


def shared_patients(manifest: Manifest, split: Split) -> list[str]:
    """Patients on both sides."""
    sides = ({manifest.records[i].patient for i in side} for side in (split.train, split.test))
    return sorted(set.intersection(*sides))


def cross_validated(manifest: Manifest, splits: Iterable[Split]) -> bool:
    """Return whether a test patient of one split is a training patient of another."""
    trained_beside: dict[frozenset[int], set[str]] = {}  # by the test images of a split
    for split in splits:
        trained = {manifest.records[place].patient for place in split.train}
        trained_beside.setdefault(frozenset(split.test), set()).update(trained)
    n_trained = Counter(patient for trained in trained_beside.values() for patient in trained)
    return any(
        n_trained[patient] > (patient in trained)
        for places, trained in trained_beside.items()
        for patient in {manifest.records[place].patient for place in places}
    )


def check_patients_disjoint(manifest: Manifest, split: Split) -> None:
    """Raise PatientLeakError if a patient is on both sides."""
    shared = shared_patients(manifest, split)
    if shared:
        others = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
        raise PatientLeakError(
            f"split {split.name!r}: patient {shared[0]!r}{others} is on both sides. What is "
            "measured so is too good; move all images of a patient to one side"
        )


def required_classes(records: Iterable[ImageRecord]) -> set[str]:
    """The classes of which images are needed to know them.

    One with a mask shows what is region and what is not by itself, and may be the only one.
    """
    return {record.label for record in records if not record.is_mapped}


def check_splits(manifest: Manifest, splits: Iterable[Split]) -> None:
    """Each split by patient keeps patients apart, and trains on every class that it tests."""
    for split in splits:
        if not set(split.train + split.test) <= set(range(len(manifest.records))):
            raise SplitError(
                f"split {split.name!r}: it has places beyond the {len(manifest.records)} images"
            )
        if split.by == "patient":
            check_patients_disjoint(manifest, split)
        trained = {manifest.records[place].label for place in split.train}
        tested = [manifest.records[place] for place in split.test]
        untrained = required_classes(tested) - trained
        if untrained:
            raise SplitError(
                f"split {split.name!r}: no image of class {min(untrained)!r} is left to train on; "
                "add images of it from other patients or sites, or leave the class out"
            )
