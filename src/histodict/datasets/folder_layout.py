"""Directory layout of image sets: split / class / patient / slide / image.

Only class folders are required. Other files and folders are reported as skipped.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from ..images.file_types import (
    find_redundant_files,
    is_ome_zarr,
    is_unreadable_folder,
    is_zarr,
    special_file_kind,
    with_brackets,
)
from ..images.source import FOLDER_FORMATS, READERS
from ..precomputed.feature_file import FORMATS, check_has_positions, is_feature_file
from ..utils.files import exists
from ..utils.text_io import pluralize, relative_name, truncated_list
from .record import ImageRecord, ManifestError, normalize_unicode, slide_stems

# Names of folders that contain a split instead of a class.
SPLIT_FOLDER_NAMES = frozenset(
    {"train", "training", "test", "testing", "val", "valid", "validation"}
)
# Names of folders that contain masks or annotations instead of images.
MASK_FOLDER_NAMES = frozenset(
    {"mask", "masks", "annotation", "annotations", "ground_truth", "groundtruth", "gt"}
    | {"segmentation", "segmentations"}
)
# Image formats that no reader supports; they are reported as skipped.
OTHER_IMAGE_SUFFIXES = (".gif", ".webp", ".jp2", ".j2k", ".jpx", ".jxl", ".heic", ".heif", ".avif")
# Kinds of directory entries, which are shown for skipped entries. The kind of a special file, such
# as a pipe, is its description.
IMAGE, FOLDER, MASK_FOLDER, UNREADABLE, OTHER = "image", "folder", "masks", "not readable", "other"
LINK_CYCLE, TOO_MANY_LINKS, TOO_DEEP = (
    "link to a folder above it",
    "too many links",
    "nested too deeply",
)
_SKIPPED_FOLDER_KINDS = (MASK_FOLDER, UNREADABLE, LINK_CYCLE, TOO_MANY_LINKS, TOO_DEEP)
_MAX_VISITS = 32  # maximum per folder, as links between folders multiply the paths to it
_MAX_DEPTH = 100


class FolderEntry(NamedTuple):
    """Entry of a directory tree.

    Attributes
    ----------
    path : path of the entry
    kind : one of the constants of this module from `IMAGE` to `TOO_DEEP`, or the description of a
        special file
    depth : 1 for the entries of the root folder, 2 for those of its sub-folders, …
    is_link : whether the entry is a symbolic link
    """

    path: Path
    kind: str
    depth: int
    is_link: bool

    @property
    def description(self) -> str:
        """Name of the entry, with the kind in brackets if it is not a regular file."""
        if self.kind == OTHER:
            return self.path.name
        slash = "/" if self.kind in _SKIPPED_FOLDER_KINDS else ""
        return f"{self.path.name}{slash}{with_brackets(self.kind)}"


@dataclass(frozen=True)
class LocatedImage:
    """Image with the metadata that the names of its parent folders state."""

    path: Path
    label: str
    patient: str | None = None
    slide: str | None = None
    split: str | None = None


@dataclass
class FolderLayout:
    """Content of a folder of images.

    Attributes
    ----------
    images : images in the class folders
    skipped : names of skipped entries, by folder
    unassigned : images outside the class folders
    empty_folders : sub-folders without images
    """

    images: list[LocatedImage] = field(default_factory=list)
    skipped: dict[Path, list[str]] = field(default_factory=dict)
    unassigned: list[Path] = field(default_factory=list)
    empty_folders: list[Path] = field(default_factory=list)

    def describe_unassigned(self) -> str:
        """Return an error message about images outside class folders; "" if there are none."""
        if not self.unassigned:
            return ""
        return (
            f"contains {pluralize(len(self.unassigned), 'image')} but no sub-folder per class; if "
            "this is the folder of one class, give the folder above it, or list the images in a "
            "CSV file with the columns path and label"
        )


def read_class_folders(folder: Path, entries: Sequence[FolderEntry] | None = None) -> FolderLayout:
    """Return the images of a folder with one sub-folder per class, or per split and class.

    `entries` is the result of `walk(folder)`; None to compute it.
    """
    layout = FolderLayout()
    subfolders = _entries_by_subfolder(folder, walk(folder) if entries is None else entries, layout)
    splits = _find_splits(folder, subfolders)
    for part in splits:
        for class_folder, entries in _entries_by_subfolder(part, subfolders[part], layout).items():
            _add_class(layout, class_folder, entries, part.name)
    if splits:
        layout.empty_folders += [path for path in subfolders if path not in splits]
        return layout
    for class_folder, entries in subfolders.items():
        _add_class(layout, class_folder, entries, None)
    return layout


def _find_splits(folder: Path, subfolders: dict[Path, list[FolderEntry]]) -> list[Path]:
    """Return the sub-folders that are splits; an empty list if the sub-folders are classes."""
    with_images = [
        path for path, entries in subfolders.items() if any(e.kind == IMAGE for e in entries)
    ]
    splits = [path for path in with_images if path.name.casefold() in SPLIT_FOLDER_NAMES]
    others = [path.name for path in with_images if path not in splits]
    if splits and others:
        names = truncated_list([path.name for path in splits])
        raise ManifestError(
            f"{folder}: sub-folders named like splits ({names}) are mixed with other folders "
            f"of images ({truncated_list(others)}); move the latter into the splits or "
            "elsewhere, or list the images in a CSV file"
        )
    return splits


def _entries_by_subfolder(
    folder: Path, all_entries: Iterable[FolderEntry], layout: FolderLayout
) -> dict[Path, list[FolderEntry]]:
    """Return the entries in each sub-folder of a folder; add the files of the folder to `layout`.

    Entries at any depth belong to the direct sub-folder that contains them.
    """
    found: dict[Path, list[FolderEntry]] = {}
    entries: list[FolderEntry] = []
    depth = None
    for entry in all_entries:
        depth = entry.depth if depth is None else depth
        if entry.depth > depth:
            entries.append(entry)
        elif entry.kind == FOLDER:
            entries = found[entry.path] = []
        elif entry.kind == IMAGE or _is_unsupported_image(entry.path):
            layout.unassigned.append(entry.path)
        elif entry.kind != OTHER:
            layout.skipped.setdefault(folder, []).append(entry.description)
    return found


def _add_class(
    layout: FolderLayout, folder: Path, entries: Iterable[FolderEntry], split: str | None
) -> None:
    """Add the images among the entries of a class folder to `layout`."""
    n_before = len(layout.images)
    for entry in entries:
        path, kind = entry.path, entry.kind
        if kind == IMAGE:
            # class / patient / slide / image
            patient, slide = (*relative_name(folder, path).split("/")[:-1], None, None)[:2]
            layout.images.append(LocatedImage(path, folder.name, patient, slide, split))
        elif kind != FOLDER:
            layout.skipped.setdefault(path.parent, []).append(entry.description)
    if len(layout.images) == n_before:
        layout.empty_folders.append(folder)


def find_images(
    folder: Path, entries: Sequence[FolderEntry] | None = None
) -> tuple[list[Path], list[Path]]:
    """Return all images in a folder and its sub-folders, and the skipped entries.

    Skipped entries are images of unsupported formats, special files, and folders that `walk` does
    not enter. `entries` is the result of `walk(folder)`; None to compute it.
    """
    images: list[Path] = []
    others: list[Path] = []
    for path, kind, *_ in walk(folder) if entries is None else entries:
        if kind == IMAGE:
            images.append(path)
        elif kind not in (FOLDER, OTHER) or (kind == OTHER and _is_unsupported_image(path)):
            others.append(path)
    return images, others


def walk(folder: Path) -> Iterator[FolderEntry]:
    """Yield all entries of a folder and its sub-folders, sorted by name; links are followed.

    A folder precedes its content. An entry with the suffix of an image counts as an image, even if
    it is a dangling link or a pipe, which are reported when read. A slide of several files (DICOM,
    VMS, NDPI sets) is listed once.
    """
    yield from _walk(folder, Path(os.path.realpath(folder)), frozenset(), 1, Counter())


def _walk(
    folder: Path, real_path: Path, ancestors: frozenset[Path], depth: int, visits: Counter[Path]
) -> Iterator[FolderEntry]:
    """Yield the entries of a folder and its sub-folders.

    Parameters
    ----------
    folder : path of the folder
    real_path : path of the folder without links
    ancestors : paths without links of the folders that contain the folder
    depth : depth of the folder's entries, see `FolderEntry`
    visits : number of visits of each folder, by path without links; updated
    """
    ancestors |= {real_path}
    visits[real_path] += 1
    try:
        visible = _visible_entries(folder)
    except OSError:
        if depth == 1:
            raise
        yield FolderEntry(folder, UNREADABLE, depth - 1, folder.is_symlink())
        return
    slide_folders = {stem for _, stem, ending in visible if ending in FOLDER_FORMATS}
    parts = find_redundant_files(folder, [entry.name for entry, *_ in visible])
    for entry, _, ending in visible:
        is_link, path = entry.is_symlink(), folder / entry.name
        if entry.name in parts:
            continue
        if not (os.path.isdir(path) if is_link else entry.is_dir()):
            kind = (
                IMAGE
                if ending in READERS
                else special_file_kind(path)
                if _may_be_special_file(entry)
                else OTHER
            )
            yield FolderEntry(path, kind or OTHER, depth, is_link)
        elif is_zarr(path):
            yield FolderEntry(path, IMAGE if is_ome_zarr(path) else OTHER, depth, is_link)
        elif _is_mask_folder(path):
            yield FolderEntry(path, MASK_FOLDER, depth, is_link)
        elif is_unreadable_folder(path):
            yield FolderEntry(path, UNREADABLE, depth, is_link)
        elif entry.name not in slide_folders:
            inner = (
                Path(os.path.realpath(real_path / entry.name))
                if is_link
                else real_path / entry.name
            )
            reason = _skip_reason(inner, ancestors, depth, visits)
            yield FolderEntry(path, reason or FOLDER, depth, is_link)
            if reason:
                continue
            contains_images = False
            for inner_entry in _walk(path, inner, ancestors, depth + 1, visits):
                contains_images |= inner_entry.kind == IMAGE
                yield inner_entry
            if ending in READERS and not contains_images:  # a folder named like an image
                yield FolderEntry(path, IMAGE, depth, is_link)


def _skip_reason(
    real_path: Path, ancestors: frozenset[Path], depth: int, visits: Counter[Path]
) -> str:
    """Return the reason why `walk` does not enter a folder; "" if it does."""
    if real_path in ancestors:
        return LINK_CYCLE
    if visits[real_path] >= _MAX_VISITS:
        return TOO_MANY_LINKS
    return TOO_DEEP if depth >= _MAX_DEPTH else ""


def _may_be_special_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() or not entry.is_file(follow_symlinks=False)


def _visible_entries(folder: Path) -> list[tuple[os.DirEntry[str], str, str]]:
    """Return (entry, stem, lower-case suffix) of the visible entries, sorted by name."""
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    visible.sort(key=lambda entry: entry.name)
    parts = (os.path.splitext(entry.name) for entry in visible)
    return [
        (entry, stem, suffix.lower()) for entry, (stem, suffix) in zip(visible, parts, strict=True)
    ]


def _is_unsupported_image(path: Path) -> bool:
    return path.suffix.lower() in OTHER_IMAGE_SUFFIXES


def _is_mask_folder(path: Path) -> bool:
    return path.name.casefold() in MASK_FOLDER_NAMES


class FeatureFolder:
    """Folder of feature files, which are found by slide name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise ManifestError(f"{folder}: folder of feature files not found")
        if not self._files:
            for path in sorted(folder.iterdir()):
                check_has_positions(path)
            below = sorted({path.parent for path in folder.rglob("*") if is_feature_file(path)})
            hint = (
                f"; feature files were found in {truncated_list([str(path) for path in below])}"
                if below
                else ""
            )
            raise ManifestError(
                f"{folder}: the folder contains no feature files ({' '.join(FORMATS)}){hint}"
            )

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        files: dict[str, list[Path]] = {}
        for path in sorted(self.folder.iterdir()):
            # Special files such as pipes are included, and reported when read.
            is_one = is_feature_file(path) and (exists(path) or special_file_kind(path))
            if is_one and not path.name.startswith("."):
                files.setdefault(normalize_unicode(path.name[: -len(path.suffix)]), []).append(path)
        return files

    def replace_by_feature_files(self, records: Iterable[ImageRecord]) -> tuple[ImageRecord, ...]:
        """Return the records with `path` replaced by the feature file of the slide.

        In `records`, `path` is the image of the slide or, if there is no image, the slide name. A
        record without a feature file gets an `error`.
        """
        pairs = [(record.path, self._with_feature_file(record)) for record in records]
        slides: dict[Path, list[Path]] = {}
        for slide, record in pairs:
            slides.setdefault(record.path, []).append(slide)
        return tuple(_add_ambiguity_error(record, slides[record.path]) for _, record in pairs)

    def _with_feature_file(self, record: ImageRecord) -> ImageRecord:
        slide = record.path
        names = list(slide_stems(slide.name))
        files = next((self._files[name] for name in names if name in self._files), [])
        if not files:
            example = next(iter(self._files.values()))[0].name
            error = (
                f"{slide}: no feature file of this slide in {self.folder}; expected a name "
                f"such as {names[0]}.h5 (the folder has {example})"
            )
            files = [self.folder / f"{names[0]}.h5"]
        elif len(files) > 1:
            names_of_files = ", ".join(path.name for path in files)
            error = (
                f"{slide}: has several feature files in {self.folder} ({names_of_files}); keep one"
            )
        else:
            error = ""
        image = slide if exists(slide) and not is_feature_file(slide) else None
        annotations = record.annotations and replace(record.annotations, image=image)
        return replace(record, path=files[0], image=image, annotations=annotations, error=error)


def _add_ambiguity_error(record: ImageRecord, slides: list[Path]) -> ImageRecord:
    """Return the record, with an error if several `slides` match its feature file."""
    if len(slides) == 1 or record.error:
        return record
    names = " and ".join(str(slide) for slide in slides)
    error = f"{record.path}: matches several slides ({names}); rename the slides"
    return replace(record, error=error)
