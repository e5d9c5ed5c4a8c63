"""Splits on disk: a JSON file to ship with the results, so that others test on the same images.

    {"format", "schema", "protocol", "manifest", "images", "splits", "digest"}

`images` are names relative to the manifest's root; the places in a split's `train` and `test`
count from 0 in that list. `manifest` is the manifest's digest, `digest` that of all the rest.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ..execution.files import atomic_write
from ..execution.texts import read_json, shorten
from ..images.manifest import Manifest
from ..parameters import check_kind
from .splits import Split, SplitError, Splits, check_splits, image_names

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
