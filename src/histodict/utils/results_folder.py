"""Folder of predictions with one file per image; finished images are not repeated.

    FOLDER/done/KEY.json    table rows and digests of output files of an image; settings of the run

Tables contain the rows of all these files, so several runs may write to the same folder. All runs
must have the same model and settings, as the tables do not list them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from .files import content_digest
from .text_io import read_checked_json, write_checked_json

Content = dict[str, Any]  # keys: row, regions, files, settings, options, fingerprint


class ResultsFolder:
    """Results of a run in a folder, with one JSON file per image.

    Parameters
    ----------
    folder : folder of the results
    settings : JSON values by name, which must be the same for all runs in the folder
    table : file name of the table of predictions, without suffix
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], table: str) -> None:
        self.folder = folder
        self.settings = dict(settings)
        self.options: dict[str, Any] = {}
        self.finished: dict[str, Content] = {}
        paths = self._result_paths()
        for path in paths:
            self._load(path)
        if not paths and (folder / f"{table}.csv").exists():
            raise ValueError(
                f"{folder}: contains {table}.csv, but no records of finished images (done/); "
                "choose another folder (--output) or delete this one"
            )

    def _load(self, path: Path) -> bool:
        """Load a result file and return True; return False if it is damaged.

        Raise ValueError if its settings are not those of this run.
        """
        try:
            content = read_checked_json(path)
        except (OSError, ValueError):  # reported when its image is predicted
            return False
        if not isinstance(content, dict) or not {"row", "settings", "options"} <= set(content):
            return False
        self._check_equal(content["settings"], self.settings)
        self.finished[path.stem] = content
        return True

    def begin(self, keys: Collection[str], options: Mapping[str, Any]) -> None:
        """Start a run; raise ValueError if stored results of other images have other options.

        Parameters
        ----------
        keys : keys of the images of this run, whose stored results may have other options
        options : options of the run by name, which must be equal for all images in the folder
        """
        self.options = dict(options)
        for key, content in self.finished.items():
            if key not in keys:
                self._check_equal(content["options"], self.options)

    def _check_equal(self, stored: Mapping[str, Any], current: Mapping[str, Any]) -> None:
        """Raise ValueError, describing the differences, unless `stored` and `current` are equal."""
        if stored == current:
            return
        changes = "; ".join(
            f"{name} was {_shorten(stored.get(name))} and is now {_shorten(current.get(name))}"
            for name in dict.fromkeys([*current, *stored])
            if stored.get(name) != current.get(name) and name != "model"
        )
        origin = "run" if stored.get("model") == current.get("model") else "model"
        raise ValueError(
            f"{self.folder}: contains results of another {origin}"
            f"{f' ({changes})' if changes else ''}; choose another "
            "folder (--output) or delete this one"
        )

    def load_finished(self, key: str, fingerprint: Content) -> Content | None:
        """Return the stored result of an image; None if it is missing, damaged or outdated.

        Parameters
        ----------
        key : key of the image
        fingerprint : values that identify the inputs; a result with other values is outdated
        """
        path = self._result_path(key)
        if not path.exists():
            return None
        try:
            content = self.finished[key]
            if content["fingerprint"] != fingerprint:
                return None
            for name, digest in content["files"].items():
                if content_digest(self.folder / name) != digest:
                    raise ValueError(f"{name} has changed")
            return content if content["row"] and isinstance(content["regions"], list) else None
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"{path}: the record is damaged; the image is processed again ({error})"
            warnings.warn(message, stacklevel=3)
            return None

    def store(self, key: str, content: Content, fingerprint: Content) -> Content:
        """Store and return the result of an image, and remove its outdated output files.

        Parameters
        ----------
        key : key of the image
        content : table rows (`row`, `regions`) and digests of the output files (`files`)
        fingerprint : values that identify the inputs
        """
        run = {"settings": self.settings, "options": self.options, "fingerprint": fingerprint}
        content = content | run
        if content == self.finished.get(key):
            return content
        previous_files = self.finished.get(key, {}).get("files", {})
        for name in set(previous_files) - set(content["files"]):
            with suppress(OSError):
                (self.folder / name).unlink()
        write_checked_json(self._result_path(key), content)
        self.finished[key] = content
        return content

    def previous_results(self, excluded_keys: Collection[str]) -> list[Content]:
        """Return the stored results of images whose keys are not excluded, sorted by path.

        Results that other runs have written since the start are included.
        """
        for path in self._result_paths():
            if path.stem in self.finished or path.stem in excluded_keys:
                continue
            if self._load(path):
                self._check_equal(self.finished[path.stem]["options"], self.options)
            else:
                message = (
                    f"{path}: the record is damaged and the table lacks its image; process the "
                    "image again"
                )
                warnings.warn(message, stacklevel=3)
        others = [content for key, content in self.finished.items() if key not in excluded_keys]
        return sorted(others, key=lambda content: str(content["row"]["path"]))

    def _result_paths(self) -> list[Path]:
        """Return the paths of complete result files; names of partial files begin with a dot."""
        paths = (self.folder / "done").glob("*.json")
        return sorted(path for path in paths if not path.name.startswith("."))

    def _result_path(self, key: str) -> Path:
        return self.folder / "done" / f"{key}.json"


def _shorten(value: Any) -> str:
    """Format a value for a message; digests are truncated."""
    if value is None:
        return "not set"
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 40 else str(value)
