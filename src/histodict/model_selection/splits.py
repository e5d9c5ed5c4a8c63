"""What a split is: images to train on and to test on, kept apart by patient.

Two images of one patient share stain, scanner and biology. A method tested on the patients it was
trained on looks better than it is, so `by="patient"` is the default everywhere; `by="image"` has
to be said, and stays written in the split.

Splits on disk: a JSON file to ship with the results, so that others test on the same images.

    {"format", "schema", "protocol", "manifest", "images", "splits", "digest"}

`images` are names relative to the manifest's root; the places in a split's `train` and `test`
count from 0 in that list. `manifest` is the manifest's digest, `digest` that of all the rest.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..datasets.manifest import ImageRecord, Manifest
from ..utils.files import atomic_write
from ..utils.text_io import read_json, shorten
from ..utils.validation import check_kind


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


FORMAT = "histodict-splits"
SCHEMA = 1


class SplitFileError(SplitError):
    """A file of splits that is damaged, changed, or made for other images."""


def save_splits(splits: Splits, path: Path | str) -> Path:
    """Write the file; it is complete or not there. An old one is replaced."""
    path = Path(path)
    content = _content(splits)
    text = json.dumps(content | {"digest": _digest(content)})
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def load_splits(path: Path | str, manifest: Manifest) -> Splits:
    """Read splits of this manifest; its order may differ from the one they were made with.

    Refused: a file changed since it was written, and a manifest with other names, labels or
    patients. Leaks are looked for again.
    """
    path = Path(path)
    content = _read(path)
    try:
        images = tuple(str(name) for name in content["images"])
        splits = tuple(_split(words, len(images)) for words in content["splits"])
        made = Splits(splits, images, str(content["manifest"]), dict(content["protocol"]))
        _check_manifest(path, made, manifest)
        made = _in_order_of(manifest, made)
        check_splits(manifest, made)
    except SplitFileError:
        raise
    except SplitError as error:
        raise type(error)(f"{path}: {shorten(error)}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SplitFileError(f"{path}: a damaged file of splits ({shorten(error)})") from error
    return made


def splits_digest(splits: Splits) -> str:
    """SHA-256 of what a file of these splits would hold: quote it with the results."""
    return _digest(_content(splits))


def _content(splits: Splits) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "protocol": dict(splits.protocol),
        "manifest": splits.manifest,
        "images": list(splits.images),
        "splits": [asdict(split) for split in splits],
    }


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path, "a file of splits")
    except ValueError as error:
        raise SplitFileError(str(error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise SplitFileError(f"{path}: not a file of splits of histodict")
    if content.get("schema") != SCHEMA:
        raise SplitFileError(
            f"{path}: has schema {content.get('schema')!r}, this version reads {SCHEMA}: make the "
            "splits again, or use the version that made them"
        )
    if content.pop("digest", None) != _digest(content):
        raise SplitFileError(
            f"{path}: the file was changed after it was written, its digest does not fit: get the "
            "original, or make the splits again"
        )
    return content


def _split(words: dict[str, Any], n_images: int) -> Split:
    for own in fields(Split):
        if own.name in words:
            check_kind(own.name, words[own.name], str(own.type))
    split = Split(**words)
    if not set(split.train + split.test) <= set(range(n_images)):
        raise ValueError(f"split {split.name!r} has places beyond the {n_images} images")
    return split


def _check_manifest(path: Path, splits: Splits, manifest: Manifest) -> None:
    if splits.manifest == manifest.digest():
        return
    theirs, ours = ({_plain(name) for name in x} for x in (splits.images, image_names(manifest)))
    reasons = [
        f"{len(names)} images {where}, {min(names)} for one"
        for names, where in ((theirs - ours, "are missing here"), (ours - theirs, "are new here"))
        if names
    ]
    raise SplitFileError(
        f"{path}: made for other images than this manifest lists: "
        + (" and ".join(reasons) or "the names are the same, but labels or patients changed")
    )


def _in_order_of(manifest: Manifest, splits: Splits) -> Splits:
    names = image_names(manifest)
    place_of = {_plain(name): place for place, name in enumerate(names)}
    places = [place_of[_plain(name)] for name in splits.images]
    moved = tuple(
        replace(
            split,
            train=sorted(places[i] for i in split.train),
            test=sorted(places[i] for i in split.test),
        )
        for split in splits
    )
    return replace(splits, splits=moved, images=tuple(names))


def _plain(name: str) -> str:
    # File systems differ in how they write an accented letter; the manifest's digest does not.
    return unicodedata.normalize("NFC", name)
