"""Which files may be read: those under the folders that the server was started with."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..images.folder_images import is_image_path, is_zarr
from ..images.readers import READERS
from ..model_file import SUFFIX

_MOST_ENTRIES = 500


class ForbiddenFileError(PermissionError):
    """A file outside the folders, whatever its name or the links on the way to it say."""


class DataFolders:
    """Folders with all that lies below them; a link that leads out of them is outside."""

    def __init__(self, folders: Sequence[Path], hidden: Sequence[Path] = ()) -> None:
        """`hidden`: what may lie below them and is no data, such as other users' work."""
        self.folders = [folder.resolve() for folder in folders]
        self._hidden = [folder.resolve() for folder in hidden]
        for folder in self.folders:
            if not folder.is_dir():
                raise ValueError(f"{folder}: there is no such folder")

    def check(self, path: Path) -> Path:
        """The file's true place, if that is inside."""
        found = Path(os.path.realpath(path))
        if not self._is_inside(found):
            raise ForbiddenFileError(f"{path.name}: lies outside the data folders")
        return found

    def check_of_many(
        self, is_link: Callable[[str], bool] = os.path.islink
    ) -> Callable[[Path], None]:
        """`check` for thousands of files, now: where a folder lies is looked up once.

        `is_link`: of a file, where somebody knows it already.
        """

        @cache
        def true_place(folder: str) -> str:
            above, name = os.path.split(folder)
            if name in ("", os.pardir) or os.path.islink(folder):
                return os.path.realpath(folder)
            return os.path.join(true_place(above), name)

        is_inside = cache(lambda folder: self._is_inside(Path(true_place(folder))))

        def check(path: Path) -> None:
            text = str(path)
            if is_link(text) or not is_inside(os.path.dirname(text)):
                self.check(path)

        return check

    def _is_inside(self, path: Path) -> bool:
        is_hidden = any(path.is_relative_to(folder) for folder in self._hidden)
        return not is_hidden and any(path.is_relative_to(folder) for folder in self.folders)

    def find(self, place: int, inside: str) -> Path:
        """A file or folder below the folder at `place`."""
        if not 0 <= place < len(self.folders) or "\0" in inside:
            raise ForbiddenFileError("there is no such data folder")
        found = self.check(self.folders[place] / inside)
        if not found.exists():
            raise FileNotFoundError(f"{inside}: there is no such file or folder")
        return found

    def locate(self, path: Path) -> tuple[int, str]:
        """The reverse of `find`."""
        for place, folder in enumerate(self.folders):
            if path.is_relative_to(folder):
                return place, path.relative_to(folder).as_posix()
        raise ForbiddenFileError(f"{path.name}: lies outside the data folders")

    def listing(self, place: int, inside: str) -> dict[str, Any]:
        """Sub-folders, tables and models that may be chosen, and how many images lie here."""
        folder = self.find(place, inside)
        if not folder.is_dir():
            raise FileNotFoundError(f"{inside}: is not a folder")
        shown = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
        entries = [path for path in shown if self._is_inside(Path(os.path.realpath(path)))]
        return {
            "place": place,
            "inside": "" if folder == self.folders[place] else inside.strip("/"),
            "name": folder.name,
            "folders": [p.name for p in entries if _is_folder(p)][:_MOST_ENTRIES],
            "tables": [p.name for p in entries if p.suffix.lower() == ".csv"][:_MOST_ENTRIES],
            "models": [p.name for p in entries if p.suffix.lower() == SUFFIX][:_MOST_ENTRIES],
            "n_images": sum(is_image_path(p) and p.suffix.lower() in READERS for p in entries),
        }


def _is_folder(path: Path) -> bool:
    return os.path.isdir(path) and not is_zarr(path)
