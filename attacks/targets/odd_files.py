"""Folders with irregular or damaged entries, given to every command that lists a folder.

Each bad entry is reported, predictions of the good images do not change, no command hangs or ends
with a traceback, and the exit status is not 0 if an image fails.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow.csv
from numpy.random import Generator
from PIL import Image
from typer.testing import CliRunner

from histodict.cli import app
from histodict.utils.text_io import printable

from ..target import Case, InvariantError, Target

_GOOD = {"a/p1/1.png": 1, "a/p2/2.png": 2, "b/p3/3.png": 3, "b/p4/4.png": 4}
_FOLDERS = ("", "a", "a/p1", "b/p3", "b/p5", "c")
_ENDINGS = (".png", ".jpg", ".TIF", ".svs", ".dcm", ".mrxs", ".vms", ".zarr", ".bmp")
_NAMES = ("odd", "-x", "[red]", "a b", "é", "'\"", "%s", "x" * 230, "\x1b[31m", "\udcff\udcfe")
_SETTINGS = ("patch_px=8", "downsample=1", "patches_per_class=100", "n_atoms=6", "n_iter=1")
_COMMANDS = ("predict", "predict", "features", "train", "evaluate", "adapt")
# Expected result of an entry: an image that fails, an image that is predicted, or skipped.
_REFUSED, _PREDICTED, _LEFT_OUT = "refused", "answered", "left out"


def _link(target: str) -> Callable[[Path, Path], None]:
    return lambda path, good: path.symlink_to(target)


def _socket(path: Path, good: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        above = os.open(path.parent, os.O_RDONLY)
        try:  # the path of a socket has at most 107 bytes
            server.bind(f"/proc/self/fd/{above}/s")
            os.rename(path.parent / "s", path)
        finally:
            os.close(above)


def _circle_of_two(path: Path, good: Path) -> None:
    other = path.with_name(".other")
    other.unlink(missing_ok=True)
    other.symlink_to(path.name)
    path.symlink_to(other.name)


def _holding(content: bytes | None) -> Callable[[Path, Path], None]:
    """Return a function that creates a folder with a text file."""

    def make(path: Path, good: Path) -> None:
        path.mkdir()
        if content is not None:
            (path / "readme.txt").write_bytes(content)

    return make


def _folder_of_good(path: Path, good: Path) -> None:
    path.mkdir()
    shutil.copy(good, path / "inside.png")


def _cut(path: Path, good: Path) -> None:
    path.write_bytes(good.read_bytes()[:40])


_ODD: dict[str, Callable[[Path, Path], None]] = {
    "pipe": lambda path, good: os.mkfifo(path),
    "socket": _socket,
    "dangling link": _link("nowhere/at all"),
    "link to itself": lambda path, good: path.symlink_to(path.name),
    "circle of two links": _circle_of_two,
    "link to a device": _link("/dev/zero"),
    "link to a full device": _link("/dev/full"),
    "link through a file": lambda path, good: path.symlink_to(f"{good}/x"),
    "link of a long name": _link("n" * 300),
}
_FILES: dict[str, Callable[[Path, Path], None]] = {
    "empty file": lambda path, good: path.touch(),
    "cut short": _cut,
    "text": lambda path, good: path.write_text("no image") and None,
    "empty folder": _holding(None),
    "folder of text": _holding(b"x"),
}
_LINKS = {
    "link to the folder above": _link(".."),
    "link to its own folder": _link("."),
    "closed folder": _holding(b"x"),
}
_GOOD_ONES: dict[str, Callable[[Path, Path], None]] = {
    "good image": lambda path, good: shutil.copy(good, path) and None,
    "folder of a good image": _folder_of_good,
}
_KINDS = {
    **{name: (make, _REFUSED) for name, make in (_ODD | _FILES).items()},
    **{f"{name}, no image's name": (make, _LEFT_OUT) for name, make in _ODD.items()},
    **{name: (make, _LEFT_OUT) for name, make in _LINKS.items()},
    **{name: (make, _PREDICTED) for name, make in _GOOD_ONES.items()},
}


class OddFiles(Target):
    name = "odd_files"
    smoke_attempts = 12  # each runs a complete command

    def setup(self, folder: Path) -> None:
        self.folder = folder
        self.clean = folder / "clean"
        rng = np.random.default_rng(0)
        for name, seed in _GOOD.items():
            path = self.clean / name
            path.parent.mkdir(parents=True, exist_ok=True)
            colour = (200 - 10 * seed, 60 + 20 * seed, 160)
            noise = rng.integers(-30, 30, (48, 56, 3))
            Image.fromarray(np.clip(noise + colour, 0, 255).astype(np.uint8)).save(path)
        self.model = folder / "m.histodict"
        settings = [part for setting in _SETTINGS for part in ("--set", setting)]
        status, message = self._run(
            "train", self.clean, "--preset", "fast", *settings, "--output", self.model
        )
        if status != 0:
            raise RuntimeError(message)
        self._run("predict", self.model, self.clean, "--output", folder / "expected")
        self.expected = _read_predictions(folder / "expected", self.clean)

    # --- cases ----------------------------------------------------------------------------------

    def case(self, rng: Generator) -> Case:
        command = str(rng.choice(_COMMANDS))
        edits = [self._edit(rng, number) for number in range(int(rng.integers(1, 5)))]
        refused = [edit for edit in edits if _KINDS[edit[0]][1] == _REFUSED]
        if command not in ("predict", "features") and not refused:
            command = "predict"  # training is tested elsewhere
        if command in ("train", "evaluate"):  # commands that read class folders only
            edits = [[kind, folder or "a", name] for kind, folder, name in edits]
        kind = edits[0][0] if len(edits) == 1 else "several"
        return Case(f"{command}: {kind}", f"{command}.json", tuple(edits))

    def _edit(self, rng: Generator, number: int) -> list[Any]:
        """Return [kind, folder, name]; the number makes the names of a case unique."""
        kind = str(rng.choice(list(_KINDS)))
        ending = str(rng.choice(_ENDINGS))
        if _KINDS[kind][1] == _LEFT_OUT:
            ending = ""
        elif kind == "folder of a good image" or (_FILES.get(kind) and ending == ".zarr"):
            ending = ".jpg"
        elif kind == "good image":
            ending = ".png"
        stem = str(rng.choice(_NAMES))
        return [kind, str(rng.choice(_FOLDERS)), f"{stem}{number}{ending}"]

    def build(self, case: Case) -> bytes:
        return json.dumps(case.edits).encode()

    # --- invariants -----------------------------------------------------------------------------

    def attempt(self, data: bytes, base: str) -> str:
        command = base.removesuffix(".json")
        tree, out = self.folder / "case" / "tree", self.folder / "out"
        for old in (tree, out):
            shutil.rmtree(old, ignore_errors=True)
            old.unlink(missing_ok=True)
        shutil.copytree(self.clean, tree)
        made: dict[Path, str] = {}
        closed: set[str] = set()
        for kind, folder, name in json.loads(data):
            path = tree / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            make, becomes = _KINDS[kind]
            make(path, tree / "a/p1/1.png")
            made[path] = becomes
            if kind == "closed folder":
                closed.add(str(path))
        with _closed(closed):
            status, message = self._run(*_arguments(command, self.model, tree, out))
        return self._check(command, tree, out, made, closed, status, message)

    def _run(self, *arguments: object) -> tuple[int, str]:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        error = result.exception
        if error is not None and not isinstance(error, SystemExit):
            raise error
        if "Traceback" in result.output:
            raise InvariantError(result.output)
        return result.exit_code, result.output

    def _check(
        self,
        command: str,
        tree: Path,
        out: Path,
        made: dict[Path, str],
        closed: set[str],
        status: int,
        output: str,
    ) -> str:
        gives_tables = command in ("predict", "features")
        refused = [path for path, becomes in made.items() if becomes == _REFUSED]
        unanswered = [*refused, *map(Path, sorted(closed))]
        wanted = (1 if unanswered else 0) if gives_tables else 2
        if status != wanted:
            raise InvariantError(f"exit status {status}, not {wanted}: {output}")
        reported = " ".join(output.split())
        if gives_tables and unanswered:
            rows = pyarrow.csv.read_csv(out / "failures.csv").to_pylist()
            failed = sorted(row["path"] for row in rows)
            if failed != sorted(printable(str(path)) for path in unanswered):
                raise InvariantError(f"failures.csv names {failed}, not {unanswered}")
        for path, becomes in made.items():
            if becomes != _PREDICTED and " ".join(printable(path.name).split()) not in reported:
                raise InvariantError(f"{path!r} is not named: {output}")
        if command == "predict":
            self._check_predictions(tree, out, made)
        return "answered" if status == 0 else "named"

    def _check_predictions(self, tree: Path, out: Path, made: dict[Path, str]) -> None:
        """Require unchanged predictions of the good images and their copies, and no others."""
        expected = dict(self.expected)
        for path, becomes in made.items():
            if becomes == _PREDICTED:
                copied = path / "inside.png" if path.is_dir() else path
                name = printable(str(copied.relative_to(tree)))
                expected[name] = self.expected["a/p1/1.png"]
        if _read_predictions(out, tree) != expected:
            raise InvariantError(f"predictions {_read_predictions(out, tree)}, not {expected}")
        for file in (out / "geojson").iterdir():
            json.loads(file.read_text("utf-8"))


def _arguments(command: str, model: Path, tree: Path, out: Path) -> list[object]:
    requested: dict[str, list[object]] = {
        "predict": [model, tree, "--jobs", 1],
        "features": [tree, "--encoder", "rgb", "--set", "patch_px=8", "--jobs", 1],
        "train": [tree, "--preset", "fast"],
        "evaluate": [tree, "--preset", "fast"],
        "adapt": [model, tree],
    }
    return [command, *requested[command], "--output", out]


def _read_predictions(out: Path, tree: Path) -> dict[str, tuple[str, float]]:
    """Return label and score by image name."""
    rows = pyarrow.csv.read_csv(out / "predictions.csv").to_pylist()
    above = len(f"{tree}/")
    return {row["path"][above:]: (row["label"], row["score"]) for row in rows}


def _closed(folders: set[str]) -> Any:
    """Simulate unreadable files: root may read everything."""
    real = os.access

    def access(path: Any, mode: int, **more: Any) -> bool:
        return os.fspath(path) not in folders and real(path, mode, **more)

    return mock.patch("os.access", access)


TARGET = OddFiles()
