"""A folder of feature files, of which each has the name of its slide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..execution.files import is_there
from .feature_file import FORMATS, is_feature_file
from .readers import READERS
from .records import ManifestError, Record, some_of

# Suffixes that are no part of a slide's name; a name may have dots of its own, as those of TCGA do.
_ENDINGS = (*(f".ome{kind}" for kind in (".tif", ".tiff", ".zarr")), *READERS, *FORMATS)


class FeatureFolder:
    """The feature files in a folder, by the names of their slides."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.is_dir():
            raise ManifestError(f"{folder}: there is no such folder of feature files")
        if not self._files:
            below = sorted({path.parent for path in folder.rglob("*") if is_feature_file(path)})
            hint = f"; some are in {some_of([str(path) for path in below])}" if below else ""
            raise ManifestError(
                f"{folder}: there are no feature files in this folder ({' '.join(FORMATS)}){hint}"
            )

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self.folder.iterdir()):
            if is_feature_file(path) and is_there(path) and not path.name.startswith("."):
                found.setdefault(path.name[: -len(path.suffix)], []).append(path)
        return found

    def standing_for(self, records: Iterable[Record]) -> tuple[Record, ...]:
        """The same slides, by their feature files; who has none, or a doubtful one, is in trouble.

        A record's path is the slide's image, or its name where there is no image.
        """
        taken: dict[Path, Path] = {}
        made = [self._of(record) for record in records]
        for place, (slide, record) in enumerate(made):
            first = taken.setdefault(record.path, slide)
            if first != slide and not record.trouble:
                words = f"{slide}: its feature file {record.path} is also that of {first}"
                made[place] = slide, replace(record, trouble=words)
        return tuple(record for _, record in made)

    def _of(self, record: Record) -> tuple[Path, Record]:
        slide = record.path
        found = self._named(slide.name)
        if not found:
            words = f"{slide}: there is no feature file of this slide in {self.folder}"
            found = [self.folder / f"{next(iter(_stems(slide.name)))}.h5"]
        elif len(found) > 1:
            names = ", ".join(path.name for path in found)
            words = f"{slide}: has several feature files in {self.folder} ({names}): keep one"
        else:
            words = ""
        image = slide if is_there(slide) and not is_feature_file(slide) else None
        return slide, replace(record, path=found[0], image=image, trouble=words)

    def _named(self, name: str) -> list[Path]:
        return next((self._files[stem] for stem in _stems(name) if stem in self._files), [])


def _stems(name: str) -> Iterator[str]:
    """What a slide may be called in the folder: without its ending, or just so."""
    for ending in _ENDINGS:
        if name.lower().endswith(ending) and len(name) > len(ending):
            yield name[: -len(ending)]
    yield name
