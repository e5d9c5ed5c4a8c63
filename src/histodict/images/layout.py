"""Images in folders, as people lay them out: split / class / patient / slide / image.

Only the class has to be there. What is beside the images is left out by name, never in silence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .folder_images import is_folder_image, is_image_path, is_zarr
from .readers import IN_OWN_FOLDER, READERS
from .records import ManifestError, name_in, some_of

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})
# Folders of pictures that say what is where, and are not to be looked at themselves.
MASKS = frozenset(
    {"mask", "masks", "annotation", "annotations", "ground_truth", "groundtruth", "gt"}
    | {"segmentation", "segmentations"}
)
# Pictures that no reader reads: somebody may think that they are.
OTHER_PICTURES = (".gif", ".webp", ".jp2", ".j2k", ".jpx", ".jxl", ".heic", ".heif", ".avif")
# Kinds of what lies in folders; a closed folder is one that may not be read.
IMAGE, FOLDER, MASKED, CLOSED, OTHER = "image", "folder", "masks", "not readable", "other"


@dataclass(frozen=True)
class Place:
    """An image, and what the folders above it say."""

    path: Path
    label: str
    patient: str | None = None
    slide: str | None = None
    split: str | None = None


@dataclass
class Layout:
    """`left_out`: by folder, the names of what is there and was not taken; `loose`: images that lie
    beside the folders of the classes.
    """

    places: list[Place] = field(default_factory=list)
    left_out: dict[Path, list[str]] = field(default_factory=dict)
    loose: list[Path] = field(default_factory=list)
    empty: list[Path] = field(default_factory=list)


def class_folders(folder: Path) -> Layout:
    """The images of a folder with one sub-folder per class, or with one such folder per split."""
    layout = Layout()
    above = frozenset({folder.resolve()})
    inside = _folders(folder, layout, above)
    splits = _splits_among(folder, inside, above)
    for part in splits:
        for place in _folders(part, layout, above | {part.resolve()}):
            _add_class(layout, place, part.name, above | {part.resolve()})
    if splits:
        layout.empty += [path for path in inside if path not in splits]
        return layout
    for place in inside:
        _add_class(layout, place, None, above)
    return layout


def _splits_among(folder: Path, inside: list[Path], above: frozenset[Path]) -> list[Path]:
    """All that hold images, where these are splits; none, where they are classes."""
    holding = [path for path in inside if any(kind == IMAGE for _, kind in walk(path, above))]
    splits = [path for path in holding if path.name.casefold() in SPLITS]
    others = [path.name for path in holding if path not in splits]
    if splits and others:
        names = some_of([path.name for path in splits])
        raise ManifestError(
            f"{folder}: folders that are splits by their names ({names}) lie beside others with "
            f"images ({some_of(others)}); move these into the splits or elsewhere, or list the "
            "images in a CSV"
        )
    return splits


def _folders(folder: Path, layout: Layout, above: frozenset[Path]) -> list[Path]:
    """Sub-folders that may hold images; those of masks are left out, and images beside them."""
    entries = _entries(folder)
    found = [path for path in entries if _may_hold_images(path) and path.resolve() not in above]
    for path in found:
        if _is_masks(path):
            layout.left_out.setdefault(folder, []).append(f"{path.name}/ (masks)")
    layout.loose += [path for path in entries if is_image_path(path) and _is_picture(path)]
    return [path for path in found if not _is_masks(path)]


def _add_class(layout: Layout, folder: Path, split: str | None, above: frozenset[Path]) -> None:
    n_before = len(layout.places)
    for path, kind in walk(folder, above):
        if kind == IMAGE:
            # class / patient / slide / image
            patient, slide = (*name_in(folder, path).split("/")[:-1], None, None)[:2]
            layout.places.append(Place(path, folder.name, patient, slide, split))
        elif kind != FOLDER:
            name = path.name if kind == OTHER else f"{path.name}/ ({kind})"
            layout.left_out.setdefault(path.parent, []).append(name)
    if len(layout.places) == n_before:
        layout.empty.append(folder)


def images_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """All images below a folder; and what may have been meant there: pictures that no reader reads,
    folders of masks, folders that may not be read.
    """
    images: list[Path] = []
    others: list[Path] = []
    for path, kind in walk(folder):
        if kind == IMAGE:
            images.append(path)
        elif kind in (MASKED, CLOSED) or (kind == OTHER and path.suffix.lower() in OTHER_PICTURES):
            others.append(path)
    return images, others


def walk(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[tuple[Path, str]]:
    """All that lies below a folder, by name, each with its kind; linked folders are entered, too.

    `above`: the true places of folders on the way here. A link to one of them would lead in a
    circle, and to nothing that is not seen anyway.
    """
    yield from _walk(folder, folder.resolve(), above)


def folders_below(folder: Path) -> list[Path]:
    """It and all folders below that may hold images; a new image changes that in which it lies."""
    found = _walk(folder, folder.resolve(), frozenset(), with_files=False)
    return [folder, *(path for path, kind in found if kind == FOLDER)]


def _walk(
    folder: Path, place: Path, above: frozenset[Path], with_files: bool = True
) -> Iterator[tuple[Path, str]]:
    """`place`: the folder's true one. Of most entries their folder has told what they are."""
    above |= {place}
    shown = _shown(folder)
    named = (os.path.splitext(entry.name) for entry in shown)
    own = {stem for stem, ending in named if ending.lower() in IN_OWN_FOLDER}
    for entry in shown:
        is_link = entry.is_symlink()
        if not (with_files or is_link or entry.is_dir()):
            continue
        path = folder / entry.name
        if not (path.is_dir() if is_link else entry.is_dir()):
            is_file = path.is_file() if is_link else entry.is_file()
            yield path, IMAGE if is_file and path.suffix.lower() in READERS else OTHER
        elif is_zarr(path):
            yield path, IMAGE if is_folder_image(path) else OTHER
        elif _is_masks(path):
            yield path, MASKED
        elif not os.access(path, os.R_OK | os.X_OK):
            yield path, CLOSED
        elif entry.name not in own:
            inner = path.resolve() if is_link else place / entry.name
            if inner not in above:
                yield path, FOLDER
                yield from _walk(path, inner, above, with_files)


def _may_hold_images(path: Path) -> bool:
    return path.is_dir() and not is_zarr(path)


def _entries(folder: Path) -> list[Path]:
    return [folder / entry.name for entry in _shown(folder)]


def _shown(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        shown = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(shown, key=lambda entry: entry.name)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in (*READERS, *OTHER_PICTURES)


def _is_masks(path: Path) -> bool:
    return path.name.casefold() in MASKS
