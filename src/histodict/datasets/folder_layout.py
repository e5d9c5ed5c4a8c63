"""Images in folders, as people lay them out: split / class / patient / slide / image.

Only the class has to be there. What is beside the images is left out by name, never in silence.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..images.file_types import (
    in_brackets,
    is_closed,
    is_ome_zarr_name,
    is_zarr,
    odd_kind,
    other_parts,
)
from ..images.source import FOLDER_FORMATS, READERS
from ..utils.text_io import relative_name, truncated_list
from .record import ManifestError

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})
# Folders of pictures that say what is where, and are not to be looked at themselves.
MASKS = frozenset(
    {"mask", "masks", "annotation", "annotations", "ground_truth", "groundtruth", "gt"}
    | {"segmentation", "segmentations"}
)
# Pictures that no reader reads: somebody may think that they are.
OTHER_IMAGE_SUFFIXES = (".gif", ".webp", ".jp2", ".j2k", ".jpx", ".jxl", ".heic", ".heif", ".avif")
# Kinds of directory entries; a closed folder is one without read permission. The kind of an entry
# that is not a regular file is its description.
IMAGE, FOLDER, MASKED, CLOSED, OTHER = "image", "folder", "masks", "not readable", "other"
CIRCLE, AGAIN, DEEP = "link to a folder above it", "link, one of too many", "too deep"
_FOLDERS = (MASKED, CLOSED, CIRCLE, AGAIN, DEEP)
_MAX_ENTRIES = 32  # of one folder under different names: links between folders multiply paths
_MAX_DEPTH = 100


class FolderEntry(NamedTuple):
    """Something below a folder; `depth`: 1 for what lies right in it."""

    path: Path
    kind: str
    depth: int
    is_link: bool

    @property
    def described(self) -> str:
        """Name, with the kind in brackets if it is not a normal file or folder."""
        if self.kind == OTHER:
            return self.path.name
        slash = "/" if self.kind in _FOLDERS else ""
        return f"{self.path.name}{slash}{in_brackets(self.kind)}"


@dataclass(frozen=True)
class LocatedImage:
    """An image, and what the folders above it say."""

    path: Path
    label: str
    patient: str | None = None
    slide: str | None = None
    split: str | None = None


@dataclass
class FolderLayout:
    """`left_out`: by folder, the names of what is there and was not taken; `loose`: images that lie
    beside the folders of the classes.
    """

    locations: list[LocatedImage] = field(default_factory=list)
    skipped: dict[Path, list[str]] = field(default_factory=dict)
    unassigned: list[Path] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)


def read_class_folders(folder: Path, below: Sequence[FolderEntry] | None = None) -> FolderLayout:
    """The images of a folder with one sub-folder per class, or with one such folder per split.

    `below`: all that `walk` has found there, if somebody knows it already.
    """
    layout = FolderLayout()
    inside = _folders(folder, walk(folder) if below is None else below, layout)
    splits = _splits_among(folder, inside)
    for part in splits:
        for place, within in _folders(part, inside[part], layout).items():
            _add_class(layout, place, within, part.name)
    if splits:
        layout.empty += [path for path in inside if path not in splits]
        return layout
    for place, within in inside.items():
        _add_class(layout, place, within, None)
    return layout


def _splits_among(folder: Path, inside: dict[Path, list[FolderEntry]]) -> list[Path]:
    """All that hold images, where these are splits; none, where they are classes."""
    holding = [path for path, below in inside.items() if any(e.kind == IMAGE for e in below)]
    splits = [path for path in holding if path.name.casefold() in SPLITS]
    others = [path.name for path in holding if path not in splits]
    if splits and others:
        names = truncated_list([path.name for path in splits])
        raise ManifestError(
            f"{folder}: folders that are splits by their names ({names}) lie beside others with "
            f"images ({truncated_list(others)}); move these into the splits or elsewhere, or list "
            "the "
            "images in a CSV"
        )
    return splits


def _folders(
    folder: Path, below: Iterable[FolderEntry], layout: FolderLayout
) -> dict[Path, list[FolderEntry]]:
    """Sub-folders that may hold images, with all that lies below them; what else lies in the folder
    is left out.
    """
    found: dict[Path, list[FolderEntry]] = {}
    within: list[FolderEntry] = []
    depth = None
    for entry in below:
        depth = entry.depth if depth is None else depth
        if entry.depth > depth:
            within.append(entry)
        elif entry.kind == FOLDER:
            within = found[entry.path] = []
        elif entry.kind == IMAGE or _is_unsupported_image(entry.path):
            layout.unassigned.append(entry.path)
        elif entry.kind != OTHER:
            layout.skipped.setdefault(folder, []).append(entry.described)
    return found


def _add_class(
    layout: FolderLayout, folder: Path, below: Iterable[FolderEntry], split: str | None
) -> None:
    n_before = len(layout.locations)
    for entry in below:
        path, kind = entry.path, entry.kind
        if kind == IMAGE:
            # class / patient / slide / image
            patient, slide = (*relative_name(folder, path).split("/")[:-1], None, None)[:2]
            layout.locations.append(LocatedImage(path, folder.name, patient, slide, split))
        elif kind != FOLDER:
            layout.skipped.setdefault(path.parent, []).append(entry.described)
    if len(layout.locations) == n_before:
        layout.empty.append(folder)


def find_images(
    folder: Path, below: Sequence[FolderEntry] | None = None
) -> tuple[list[Path], list[Path]]:
    """Return all images below a folder, and the entries that were skipped.

    Skipped entries are images of unsupported formats, folders of masks, folders without read
    permission, and pipes and dangling links without the suffix of an image. `below` as for
    `read_class_folders`.
    """
    images: list[Path] = []
    others: list[Path] = []
    for path, kind, *_ in walk(folder) if below is None else below:
        if kind == IMAGE:
            images.append(path)
        elif kind not in (FOLDER, OTHER) or (kind == OTHER and _is_unsupported_image(path)):
            others.append(path)
    return images, others


def walk(folder: Path) -> Iterator[FolderEntry]:
    """All that lies below a folder, by name; linked folders are entered, too.

    A folder precedes its content and is read lazily. An entry with the suffix of an image counts as
    an image, also a dangling link or a pipe: it is refused when it is read, like a damaged file.
    A slide of several files (DICOM, VMS, NDPI sets) is listed once.
    """
    yield from _walk(folder, Path(os.path.realpath(folder)), frozenset(), 1, Counter())


def _walk(
    folder: Path, place: Path, above: frozenset[Path], depth: int, visits: Counter[Path]
) -> Iterator[FolderEntry]:
    """Walk below `folder`, whose resolved path is `place`."""
    above |= {place}
    visits[place] += 1
    try:
        shown = _display_name(folder)
    except OSError:
        if depth == 1:
            raise
        yield FolderEntry(folder, CLOSED, depth - 1, folder.is_symlink())
        return
    own = {stem for _, stem, ending in shown if ending in FOLDER_FORMATS}
    parts = other_parts(folder, [entry.name for entry, *_ in shown])
    for entry, _, ending in shown:
        is_link, path = entry.is_symlink(), folder / entry.name
        if entry.name in parts:
            continue
        if not (os.path.isdir(path) if is_link else entry.is_dir()):
            kind = IMAGE if ending in READERS else odd_kind(path) if _is_odd(entry) else OTHER
            yield FolderEntry(path, kind or OTHER, depth, is_link)
        elif is_zarr(path):
            yield FolderEntry(path, IMAGE if is_ome_zarr_name(path) else OTHER, depth, is_link)
        elif _is_masks(path):
            yield FolderEntry(path, MASKED, depth, is_link)
        elif is_closed(path):
            yield FolderEntry(path, CLOSED, depth, is_link)
        elif entry.name not in own:
            inner = Path(os.path.realpath(place / entry.name)) if is_link else place / entry.name
            barred = _barred(inner, above, depth, visits)
            yield FolderEntry(path, barred or FOLDER, depth, is_link)
            if barred:
                continue
            holds_images = False
            for below in _walk(path, inner, above, depth + 1, visits):
                holds_images |= below.kind == IMAGE
                yield below
            if ending in READERS and not holds_images:  # it has the suffix of an image
                yield FolderEntry(path, IMAGE, depth, is_link)


def _barred(inner: Path, above: frozenset[Path], depth: int, visits: Counter[Path]) -> str:
    """Return why a folder is skipped; empty if it is not."""
    if inner in above:
        return CIRCLE
    if visits[inner] >= _MAX_ENTRIES:
        return AGAIN
    return DEEP if depth >= _MAX_DEPTH else ""


def _is_odd(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() or not entry.is_file(follow_symlinks=False)


def _display_name(folder: Path) -> list[tuple[os.DirEntry[str], str, str]]:
    """What is not hidden, by name; with how that begins and, in small letters, ends."""
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    shown.sort(key=lambda entry: entry.name)
    parts = (os.path.splitext(entry.name) for entry in shown)
    return [
        (entry, stem, ending.lower()) for entry, (stem, ending) in zip(shown, parts, strict=True)
    ]


def _is_unsupported_image(path: Path) -> bool:
    return path.suffix.lower() in OTHER_IMAGE_SUFFIXES


def _is_masks(path: Path) -> bool:
    return path.name.casefold() in MASKS
