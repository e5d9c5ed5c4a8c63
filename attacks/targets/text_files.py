"""Texts that users write or edit: recipes, settings, tables of images, splits, batch systems.

Each is accepted, or refused by a ValueError of one line that names the file. A split file carries a
digest: a changed one is accepted only if its digest was recomputed (the file then ends in the
marker), and even then no patient is in both parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from numpy.random import Generator
from PIL import Image

from histodict.cli.image_options import parse_pairs
from histodict.datasets.manifest import read_manifest
from histodict.model_selection.protocols import k_folds
from histodict.model_selection.splits import check_splits, load_splits, save_splits
from histodict.models import Plan
from histodict.utils.dask_executor import _read_settings

from .. import byte_edits, json_edits
from ..target import Case, InvariantError, Target

_MARKER = b"\n \n"
_YAML = b"""system: SLURM
jobs: 20
options: {cores: 8, processes: 8, memory: 32GB, walltime: "04:00:00", queue: normal}
"""
_SETTINGS = b"n_atoms=30\nstain=macenko\nmpp=0.5\nturn_patches=true\nrho=0.1\ncalibration_folds=3\n"
_TERMS = (
    *("null", "None", "NaN", "-Infinity", "[]", "{}", "[" * 5000, "1e999", "9" * 5000, "-1", "0"),
    *("true", "'", '"', "\x00", "\ufeff", "\u2028", "\u0661", "é" * 3, "=", ",", ";", "\t", "\r"),
    *(
        "x" * 4000,
        "y" * 140_000,
        "../" * 50,
        "/etc/passwd",
        "&a [*a, *a]",
        "!!python/name:os.system",
    ),
    *("2001-99-99", "timm:x@/etc/passwd", "*undefined", "- - - -", "? ? ?", "%", "<<: 1", "0.png"),
)
_CODES = ("utf-16", "utf-32", "utf-8-sig", "latin-1", "cp037")


class TextFiles(Target):
    name = "text_files"

    def setup(self, folder: Path) -> None:
        self.folder = folder
        lines = ["path,label,patient,mpp,split"]
        for n in range(8):
            Image.new("RGB", (4, 4)).save(folder / f"{n}.png")
            lines.append(f"{n}.png,{'ab'[n % 2]},p{n // 2},0.5,{'train' if n < 4 else 'test'}")
        table = "\n".join(lines).encode()
        (folder / "whole.csv").write_bytes(table)
        self.manifest = read_manifest(folder / "whole.csv")
        splits = save_splits(k_folds(self.manifest, 2), folder / "whole.json")
        self.files: dict[str, bytes] = {
            "recipe.json": json.dumps(Plan.named("fast").to_dict()).encode(),
            "pixels.json": json.dumps(Plan.named("pixels").to_dict()).encode(),
            "settings.txt": _SETTINGS,
            "images.csv": table,
            "splits.json": splits.read_bytes(),
            "cluster.yaml": _YAML,
        }
        self.read: dict[str, Callable[[Path], None]] = {
            "recipe.json": self._recipe,
            "pixels.json": self._recipe,
            "settings.txt": self._settings,
            "images.csv": self._table,
            "splits.json": self._splits,
            "cluster.yaml": self._cluster,
        }

    # --- cases ----------------------------------------------------------------------------------

    def case(self, rng: Generator) -> Case:
        base = str(rng.choice(sorted(self.files)))
        data = self.files[base]
        kinds = ["bytes", "words", "code"] + ["values", "values"] * base.endswith(".json")
        kind = str(rng.choice(kinds))
        n_edits = int(rng.integers(1, 4))
        if kind == "values":
            edits = [["json", json_edits.json_edit(rng, json.loads(data))] for _ in range(n_edits)]
            edits += [["seal"]] if rng.random() < 0.7 and base == "splits.json" else []
        elif kind == "code":
            edits = [["code", str(rng.choice(_CODES))]]
        elif kind == "words":
            edits = [self._word(rng, len(data)) for _ in range(n_edits)]
        else:
            makers = (byte_edits.flipped, byte_edits.overwritten, byte_edits.inserted)
            makers += (byte_edits.removed, byte_edits.cut)
            edits = [makers[int(rng.integers(5))](rng, len(data)) for _ in range(n_edits)]
        return Case(f"{base}: {kind}", base, tuple(edits))

    def _word(self, rng: Generator, n: int) -> list[Any]:
        word = _TERMS[int(rng.integers(len(_TERMS)))].encode("utf-8", "surrogatepass").hex()
        what = str(rng.choice(["insert", "write", "cell"]))
        return [what, int(rng.integers(n)), word]

    def build(self, case: Case) -> bytes:
        data = self.files[case.base]
        values = [edit[1] for edit in case.edits if edit[0] == "json"]
        if values:
            value = reduce(json_edits.apply_json, values, json.loads(data))
            data = json_edits.dumps(value).encode()
        for edit in case.edits:
            if edit[0] == "seal":
                data = _with_digest(data)
            elif edit[0] == "code":
                data = data.decode().encode(edit[1], "replace")
            elif edit[0] == "cell":
                data = _in_cell(data, edit[1], bytes.fromhex(edit[2]))
            elif edit[0] != "json":
                data = byte_edits.apply_bytes(data, edit)
        return data

    # --- invariants -----------------------------------------------------------------------------

    def attempt(self, data: bytes, base: str) -> str:
        path = self.folder / base
        path.write_bytes(data)
        try:
            self.read[base](path)
        except ValueError as error:
            text = str(error)
            if base == "settings.txt":  # command-line text: there is no file to name
                return "refused"
            if "\n" in text or len(text) > 5000:
                raise InvariantError(f"a refusal of more than a line: {text[:2000]}") from error
            if not text.startswith(str(path)):
                raise InvariantError(
                    f"a refusal that does not name the file: {text[:2000]}"
                ) from error
            return "refused"
        return "taken"

    def _recipe(self, path: Path) -> None:
        model = Plan.named(str(path)).build_model()
        try:
            model.fingerprint()
        except ValueError as error:
            if not isinstance(error.__cause__, ImportError):  # the file is valid
                raise

    def _settings(self, path: Path) -> None:
        lines = path.read_bytes().decode("utf-8", "replace").split("\n")
        Plan.named("fast").parse_settings(
            parse_pairs("--set", [x for x in lines if x.strip()])
        ).build_model()

    def _table(self, path: Path) -> None:
        for record in read_manifest(path).records:
            if not (record.path.is_file() and (record.label or record.mask)):
                raise InvariantError(f"a record without its image or label: {record}")

    def _splits(self, path: Path) -> None:
        splits = load_splits(path, self.manifest)
        check_splits(self.manifest, splits)
        data = path.read_bytes()
        same = _loads(data) == json.loads(self.files["splits.json"])
        if not same and not data.endswith(_MARKER):
            raise InvariantError("splits that were changed after they were written are taken")

    def _cluster(self, path: Path) -> None:
        _read_settings(path)


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _with_digest(data: bytes) -> bytes:
    """Return splits with a valid digest."""
    content = _loads(data)
    if not isinstance(content, dict):
        return data
    content.pop("digest", None)
    text = json.dumps(content, sort_keys=True)
    content["digest"] = hashlib.sha256(text.encode()).hexdigest()
    return json.dumps(content).encode() + _MARKER


def _in_cell(data: bytes, place: int, word: bytes) -> bytes:
    """Put the text in place of the cell or value at a position."""
    ends = b",\n=:{}[]"
    start = max(data.rfind(bytes([end]), 0, place) for end in ends) + 1
    stops = [at for end in ends if (at := data.find(bytes([end]), place)) >= 0]
    return data[:start] + word + data[min(stops, default=len(data)) :]


TARGET = TextFiles()
