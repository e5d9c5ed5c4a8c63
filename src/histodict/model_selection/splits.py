"""Splits of a manifest into training and test images, and their JSON file.

Images of one patient share stain, scanner and biology. Accuracy on patients of the training set is
too optimistic, so splits are by patient (`unit="patient"`) unless `unit="image"` is requested,
which is recorded in the split.

The file is published with the results, so that others can test on the same images:

    {"format", "schema", "protocol", "manifest", "images", "splits", "digest"}

`images` are names relative to the manifest's root; `train` and `test` of a split are indices into
this list. `manifest` is the digest of the manifest, `digest` that of all other entries.
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
from ..utils.validation import check_type


class SplitError(ValueError):
    """Exception raised if images cannot be split as requested."""


class PatientLeakError(SplitError):
    """Exception raised if a patient is in both the training and the test set."""


@dataclass(frozen=True)
class Split:
    """Training set and test set, as indices of images in the manifest.

    Attributes
    ----------
    name : name for messages, such as "repeat 1, fold 2"
    train : indices of the training images
    test : indices of the test images
    unit : unit that is not divided, "patient" or "image"; `by` in the file
    repeat : index of the repeat; the splits of one repeat are its folds
    n_per_class : number of training images per class in a learning curve; otherwise None
    """

    name: str
    train: list[int]
    test: list[int]
    unit: str = "patient"
    repeat: int = 0
    n_per_class: int | None = None

    def __post_init__(self) -> None:
        if self.unit not in ("patient", "image"):
            raise SplitError(f"unit must be 'patient' or 'image', not {self.unit!r}")
        if not self.train or not self.test:
            side = "test set" if self.train else "training set"
            raise SplitError(f"split {self.name!r}: the {side} is empty")
        if len({*self.train, *self.test}) < len(self.train) + len(self.test):
            raise SplitError(f"split {self.name!r}: an image occurs twice")


@dataclass(frozen=True)
class Splits:
    """Splits of one manifest into training and test sets.

    Attributes
    ----------
    splits : pairs of a training and a test set
    images : names of the images, in the order of the manifest
    manifest : digest of the manifest
    protocol : parameters of the protocol, and its name as `kind`
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
    """Return the paths of the images relative to the manifest's root, in order.

    Parameters
    ----------
    manifest : images

    Returns
    -------
    list of str
    """
    return [manifest.name(record) for record in manifest.records]


def shared_patients(manifest: Manifest, split: Split) -> list[str]:
    """Return the patients in both the training and the test set.

    Parameters
    ----------
    manifest : images
    split : split of these images

    Returns
    -------
    list of str
    """
    sides = ({manifest.records[i].patient for i in side} for side in (split.train, split.test))
    return sorted(set.intersection(*sides))


def is_cross_validated(manifest: Manifest, splits: Iterable[Split]) -> bool:
    """Return whether a test patient of one split is a training patient of another split.

    Parameters
    ----------
    manifest : images
    splits : splits of these images

    Returns
    -------
    bool
    """
    train_patients: dict[frozenset[int], set[str]] = {}  # key: test images of a split
    for split in splits:
        trained = {manifest.records[index].patient for index in split.train}
        train_patients.setdefault(frozenset(split.test), set()).update(trained)
    n_trained = Counter(patient for trained in train_patients.values() for patient in trained)
    return any(
        n_trained[patient] > (patient in trained)
        for test_images, trained in train_patients.items()
        for patient in {manifest.records[index].patient for index in test_images}
    )


def check_patients_disjoint(manifest: Manifest, split: Split) -> None:
    """Raise PatientLeakError if a patient is in both the training and the test set.

    Parameters
    ----------
    manifest : images
    split : split of these images

    Raises
    ------
    PatientLeakError
        If there is such a patient.
    """
    shared = shared_patients(manifest, split)
    if shared:
        others = f" (and {len(shared) - 1} more)" if len(shared) > 1 else ""
        raise PatientLeakError(
            f"split {split.name!r}: patient {shared[0]!r}{others} is in both training and "
            "test set, so the measured accuracy is too high; assign all images of a patient "
            "to one of them"
        )


def required_classes(records: Iterable[ImageRecord]) -> set[str]:
    """Return the classes of which every training set must have images.

    Images with masks show tissue of both classes, so their labels are not counted.

    Parameters
    ----------
    records : labelled images

    Returns
    -------
    set of str
    """
    return {record.label for record in records if not record.has_regions}


def check_splits(manifest: Manifest, splits: Iterable[Split]) -> None:
    """Raise an error if a split is invalid.

    Parameters
    ----------
    manifest : images
    splits : splits of these images

    Raises
    ------
    PatientLeakError
        If a split by patient has a patient in both the training and the test set.
    SplitError
        If a training set lacks a class of the test set, or an index is too large.
    """
    for split in splits:
        if not set(split.train + split.test) <= set(range(len(manifest.records))):
            raise SplitError(
                f"split {split.name!r}: indices exceed the {len(manifest.records)} images"
            )
        if split.unit == "patient":
            check_patients_disjoint(manifest, split)
        trained = {manifest.records[index].label for index in split.train}
        tested = [manifest.records[index] for index in split.test]
        untrained = required_classes(tested) - trained
        if untrained:
            raise SplitError(
                f"split {split.name!r}: the training set has no image of class "
                f"{min(untrained)!r}; add images from other patients or sites, or exclude the "
                "class"
            )


FORMAT = "histodict-splits"
SCHEMA = 1


class SplitFileError(SplitError):
    """Exception raised if a split file is damaged, modified or belongs to other images."""


def save_splits(splits: Splits, path: Path | str) -> Path:
    """Write the splits atomically and return the path; an existing file is replaced.

    Parameters
    ----------
    splits : splits to write
    path : JSON file

    Returns
    -------
    Path
    """
    path = Path(path)
    content = _file_content(splits)
    text = json.dumps(content | {"digest": _digest(content)})
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8")
    return path


def load_splits(path: Path | str, manifest: Manifest) -> Splits:
    """Read splits from a file; the order of the images in `manifest` may differ from the file.

    Parameters
    ----------
    path : JSON file
    manifest : images that were split

    Returns
    -------
    Splits

    Raises
    ------
    SplitFileError
        If the file is damaged or was modified, or the manifest has other names, labels or patients.
    SplitError
        If the splits are invalid; see `check_splits`.
    """
    path = Path(path)
    content = _read_content(path)
    try:
        images = tuple(str(name) for name in content["images"])
        splits = tuple(_parse_split(entry, len(images)) for entry in content["splits"])
        loaded = Splits(splits, images, str(content["manifest"]), dict(content["protocol"]))
        _check_manifest(path, loaded, manifest)
        loaded = _reorder(manifest, loaded)
        check_splits(manifest, loaded)
    except SplitFileError:
        raise
    except SplitError as error:
        raise type(error)(f"{path}: {shorten(error)}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SplitFileError(f"{path}: damaged split file ({shorten(error)})") from error
    return loaded


def splits_digest(splits: Splits) -> str:
    """Return the SHA-256 digest of the splits, which can be reported with results.

    Parameters
    ----------
    splits : splits

    Returns
    -------
    str
    """
    return _digest(_file_content(splits))


def _file_content(splits: Splits) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "schema": SCHEMA,
        "protocol": dict(splits.protocol),
        "manifest": splits.manifest,
        "images": list(splits.images),
        "splits": [_split_entry(split) for split in splits],
    }


def _split_entry(split: Split) -> dict[str, Any]:
    """Return a split as a dictionary with the keys of the file."""
    return {("by" if name == "unit" else name): value for name, value in asdict(split).items()}


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_content(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path, "a split file")
    except ValueError as error:
        raise SplitFileError(str(error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise SplitFileError(f"{path}: not a split file of histodict")
    if content.get("schema") != SCHEMA:
        raise SplitFileError(
            f"{path}: schema {shorten(content.get('schema'))} is not supported, only {SCHEMA}; "
            "create the splits again, or use the version that wrote the file"
        )
    if content.pop("digest", None) != _digest(content):
        raise SplitFileError(
            f"{path}: the checksum does not match, so the file was changed; use the original "
            "or create the splits again"
        )
    return content


def _parse_split(entry: dict[str, Any], n_images: int) -> Split:
    values = {("unit" if name == "by" else name): value for name, value in entry.items()}
    for field in fields(Split):
        if field.name in values:
            check_type(field.name, values[field.name], str(field.type))
    split = Split(**values)
    if not set(split.train + split.test) <= set(range(n_images)):
        raise ValueError(f"split {split.name!r}: indices exceed the {n_images} images")
    return split


def _check_manifest(path: Path, splits: Splits, manifest: Manifest) -> None:
    if splits.manifest == manifest.digest():
        return
    expected, present = (
        {_normalize_name(name) for name in x} for x in (splits.images, image_names(manifest))
    )
    reasons = [
        f"{len(names)} images {relation}, such as {min(names)}"
        for names, relation in (
            (expected - present, "are missing"),
            (present - expected, "are new"),
        )
        if names
    ]
    raise SplitFileError(
        f"{path}: the splits are for other images: "
        + (" and ".join(reasons) or "the names are equal, but labels or patients changed")
    )


def _reorder(manifest: Manifest, splits: Splits) -> Splits:
    """Return the splits with indices into the images of `manifest`."""
    names = image_names(manifest)
    index_of = {_normalize_name(name): index for index, name in enumerate(names)}
    new_indices = [index_of[_normalize_name(name)] for name in splits.images]
    reordered = tuple(
        replace(
            split,
            train=sorted(new_indices[i] for i in split.train),
            test=sorted(new_indices[i] for i in split.test),
        )
        for split in splits
    )
    return replace(splits, splits=reordered, images=tuple(names))


def _normalize_name(name: str) -> str:
    # File systems encode accented letters differently; manifest digests do not.
    return unicodedata.normalize("NFC", name)
