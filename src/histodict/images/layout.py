"""Images in folders, as people lay them out: split / class / patient / slide / image.

Only the class has to be there. What is beside the images is left out by name, never in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .readers import READERS

SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})
# Folders of pictures that say what is where, and are not to be looked at themselves.
MASKS = frozenset(
    {"mask", "masks", "annotation", "annotations", "ground_truth", "groundtruth", "gt"}
    | {"segmentation", "segmentations"}
)
# Pictures that no reader reads: somebody may think that they are.
OTHER_PICTURES = (".gif", ".webp", ".jp2", ".j2k", ".jpx", ".jxl", ".heic", ".heif", ".avif")


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
    inside = _folders(folder, layout)
    if inside and all(path.name.casefold() in SPLITS for path in inside):
        for part in inside:
            for place in _folders(part, layout):
                _add_class(layout, place, part.name)
        return layout
    for place in inside:
        _add_class(layout, place, None)
    return layout


def _folders(folder: Path, layout: Layout) -> list[Path]:
    """Sub-folders that may hold images; those of masks are left out, and images beside them."""
    entries = _entries(folder)
    found = [path for path in entries if path.is_dir()]
    for path in found:
        if _is_masks(path):
            layout.left_out.setdefault(folder, []).append(f"{path.name}/ (masks)")
    layout.loose += [path for path in entries if path.is_file() and _is_picture(path)]
    return [path for path in found if not _is_masks(path)]


def _add_class(layout: Layout, folder: Path, split: str | None) -> None:
    n_before = len(layout.places)
    for path in _images(folder, layout):
        # class / patient / slide / image
        above = path.relative_to(folder).parts[:-1]
        patient, slide = (*above, None, None)[:2]
        layout.places.append(Place(path, folder.name, patient, slide, split))
    if len(layout.places) == n_before:
        layout.empty.append(folder)


def _images(folder: Path, layout: Layout) -> Iterator[Path]:
    """All images below a folder, by name."""
    entries = _entries(folder)
    images = [path for path in entries if path.is_file() and path.suffix.lower() in READERS]
    # A slide may come with a folder of its own name that holds its data.
    companions = {path.with_suffix("") for path in images}
    for path in entries:
        if path in images:
            yield path
        elif path.is_dir() and path not in companions and not _is_masks(path):
            yield from _images(path, layout)
        elif path not in companions:
            name = f"{path.name}/ (masks)" if path.is_dir() else path.name
            layout.left_out.setdefault(folder, []).append(name)


def images_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """All images below a folder; and the pictures there that no reader reads, and masks' folders"""
    images: list[Path] = []
    others: list[Path] = []
    for path in sorted(folder.rglob("*")):
        *above, name = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in (*above, name))
        if hidden or any(part.casefold() in MASKS for part in above):
            continue
        if (path.is_dir() and _is_masks(path)) or path.suffix.lower() in OTHER_PICTURES:
            others.append(path)
        elif path.is_file() and path.suffix.lower() in READERS:
            images.append(path)
    return images, others


def _entries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in (*READERS, *OTHER_PICTURES)


def _is_masks(path: Path) -> bool:
    return path.name.casefold() in MASKS
