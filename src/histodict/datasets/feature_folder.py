"""Folders of feature files that are named like their slides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..images.file_types import odd_kind
from ..precomputed.feature_file import FORMATS, check_has_positions, is_feature_file
from ..utils.files import exists
from ..utils.text_io import truncated_list
from .record import ImageRecord, ManifestError, normalize_unicode, slide_stems


class FeatureFolder:
    """Feature files of a folder, by slide name."""

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
            # Includes pipes and dangling links, which are reported when read.
            is_one = is_feature_file(path) and (exists(path) or odd_kind(path))
            if is_one and not path.name.startswith("."):
                files.setdefault(normalize_unicode(path.name[: -len(path.suffix)]), []).append(path)
        return files

    def feature_file_for(self, records: Iterable[ImageRecord]) -> tuple[ImageRecord, ...]:
        """Return records of the feature files of slides; records of missing files have an error.

        The path of a given record is the slide's image, or its name if there is no image.
        """
        pairs = [(record.path, self._of(record)) for record in records]
        slides: dict[Path, list[Path]] = {}
        for slide, record in pairs:
            slides.setdefault(record.path, []).append(slide)
        return tuple(_check_single_slide(record, slides[record.path]) for _, record in pairs)

    def _of(self, record: ImageRecord) -> ImageRecord:
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


def _check_single_slide(record: ImageRecord, slides: list[Path]) -> ImageRecord:
    """Return the record with an error if several slides have its feature file."""
    if len(slides) == 1 or record.error:
        return record
    names = " and ".join(str(slide) for slide in slides)
    error = f"{record.path}: matches several slides ({names}); rename the slides"
    return replace(record, error=error)
