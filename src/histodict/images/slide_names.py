"""What a slide is called by the files that belong to it, of features or of outlines."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from pathlib import Path

from .feature_file import FORMATS, is_feature_file
from .readers import READERS

# Suffixes that are no part of a slide's name; a name may have dots of its own, as those of TCGA do.
_OF_IMAGES = (*(f".ome{kind}" for kind in (".tif", ".tiff", ".zarr")), *READERS)


def normalize_unicode(name: str) -> str:
    """A letter with its accent may be one sign or two, which nobody sees: here it is one."""
    return unicodedata.normalize("NFC", name)


def slide_stems(name: str) -> Iterator[str]:
    """What a slide may be called: its file without its ending, or just so."""
    for ending in (*_OF_IMAGES, *FORMATS):
        if name.lower().endswith(ending) and len(name) > len(ending):
            yield normalize_unicode(name[: -len(ending)])
    yield normalize_unicode(name)


def annotation_stems(path: Path) -> list[str]:
    """What files of outlines for an image are called; those for a feature file, like its slide."""
    names = [*slide_stems(path.name), normalize_unicode(path.stem)]
    if is_feature_file(path):
        names += [f"{normalize_unicode(path.stem)}{ending}" for ending in _OF_IMAGES]
    return list(dict.fromkeys(names))
