"""A folder of answers, one file per image: what is there stays, and is not done again.

    FOLDER/done/KEY.json    one image's rows, the digests of its files, and what they were made with

A table is written from all of them, so a folder may be filled by any number of runs, as long as
they were made alike: rows of two models or settings in one table could not be told apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import content_digest
from .text_io import read_checked_json, write_checked_json

Content = dict[str, Any]


class ResultsFolder:
    """What lies in a folder, for a run with these settings.

    settings : by name, plain values; the same for all answers in the folder
    table : the name of the table, without its ending
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], table: str) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self.options: dict[str, Any] = {}
        self.finished: dict[str, Content] = {}
        places = self._paths()
        for place in places:
            self._claim(place)
        if not places and (folder / f"{table}.csv").exists():
            raise ValueError(
                f"{folder}: has a {table}.csv, but not the answers that it was made of (done/): "
                "choose another folder (--output), or remove it"
            )

    def _claim(self, place: Path) -> bool:
        """Keep what a file holds, if it is whole; refuses what was made otherwise."""
        try:
            content = read_checked_json(place)
        except (OSError, ValueError):  # who asks for it is told
            return False
        if not isinstance(content, dict) or not {"row", "settings", "options"} <= set(content):
            return False
        self._check(content["settings"], self.settings)
        self.finished[place.stem] = content
        return True

    def begin(self, keys: Collection[str], options: Mapping[str, Any]) -> None:
        """`options`: settings that may change for images that are given again, with these keys."""
        self.options = dict(options)
        for key, content in self.finished.items():
            if key not in keys:
                self._check(content["options"], self.options)

    def _check(self, before: Mapping[str, Any], today: Mapping[str, Any]) -> None:
        """Refuses answers that were made otherwise; the message says what differs."""
        if before == today:
            return
        what = "; ".join(
            f"{name} was {_short(before.get(name))}, is {_short(today.get(name))}"
            for name in dict.fromkeys([*today, *before])
            if before.get(name) != today.get(name)
        )
        raise ValueError(
            f"{self.folder}: holds answers that were made otherwise ({what}): choose another "
            "folder (--output), or remove this one"
        )

    def load_finished(self, key: str, stamp: Content) -> Content | None:
        """The content kept under a key, if it has this stamp and all of its files are whole."""
        place = self._path(key)
        if not place.exists():
            return None
        try:
            content = self.finished[key]
            if content["stamp"] != stamp:
                return None
            for name, digest in content["files"].items():
                if content_digest(self.folder / name) != digest:
                    raise ValueError(f"{name} is another file")
            return content if content["row"] and isinstance(content["regions"], list) else None
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            words = f"{place}: is damaged, and the image is done again ({error})"
            warnings.warn(words, stacklevel=3)
            return None

    def store(self, key: str, content: Content, stamp: Content) -> Content:
        """On disk; files that the image had before and has no longer are removed."""
        made = {"settings": self.settings, "options": self.options, "stamp": stamp}
        content = content | made
        if content == self.finished.get(key):
            return content
        before = self.finished.get(key, {}).get("files", {})
        for name in set(before) - set(content["files"]):
            with suppress(OSError):
                (self.folder / name).unlink()
        write_checked_json(self._path(key), content)
        self.finished[key] = content
        return content

    def previous_results(self, keys: Collection[str]) -> list[Content]:
        """What other runs left, beside these keys, in the order of their paths; also of one that
        fills the folder at the same time.
        """
        for place in self._paths():
            if place.stem in self.finished or place.stem in keys:
                continue
            if self._claim(place):
                self._check(self.finished[place.stem]["options"], self.options)
            else:
                words = f"{place}: is damaged: give its image once more, and it is in the table"
                warnings.warn(words, stacklevel=3)
        others = [content for key, content in self.finished.items() if key not in keys]
        return sorted(others, key=lambda content: str(content["row"]["path"]))

    def _paths(self) -> list[Path]:
        """Files that are whole: what a killed run was writing has a name with a dot before it."""
        found = (self.folder / "done").glob("*.json")
        return sorted(place for place in found if not place.name.startswith("."))

    def _path(self, key: str) -> Path:
        return self.folder / "done" / f"{key}.json"


def _short(value: Any) -> str:
    """A digest is told by its first letters."""
    if value is None:
        return "not given"
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 40 else str(value)
