"""Model files: a file that differs from the saved model must never give a prediction.

Bases are tiny models of all kinds. The bytes, the header or the arrays of a file are damaged. Some
files with a changed header or arrays get a new digest (their headers end in a marker), so that only
the schema can detect the change: such a file is refused, or its predictions are finite.
"""

from __future__ import annotations

import json
import struct
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image
from safetensors.numpy import save

from histodict import TissueClassifier
from histodict.datasets.manifest import read_manifest
from histodict.models import load_model, save_model
from histodict.models.model_file import (
    ModelData,
    ModelFileError,
    digest,
    read_header,
    read_model_data,
)
from histodict.models.recipe import Recipe
from histodict.reports.model_card import describe_members, describe_model
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.small_models import TRAIN

from .. import byte_edits, json_edits
from ..target import Case, InvariantError, Target

_KINDS = ("dfdl", "three", "regions", "calibrated", "lcksvd", "textures", "components", "adapted")
_METHODS = ("odl", "fddl", "nayak", "src", "shirc", "nearest-mean", "nearest-patches")
_WHOLE = ("mean-logistic", "src-image")
_HEADER_END = "  \n"  # end of the header; JSON ignores it
_DAMAGE = ("nan", "inf", "huge", "scale", "zero", "turn", "repeat", "fewer", "type", "drop", "copy")
_TYPES = ("float16", "float32", "float64", "int64", "int8", "bool")
_BYTES = {
    "bits flipped": byte_edits.flipped,
    "runs overwritten": byte_edits.overwritten,
    "bytes inserted": byte_edits.inserted,
    "bytes removed": byte_edits.removed,
    "cut short": byte_edits.cut,
}


class Models(Target):
    name = "models"

    def setup(self, folder: Path) -> None:
        folder = Path(tempfile.mkdtemp(dir=folder))  # the folder may be left by a process that died
        self.path = folder / "model.histodict"
        self.image = folder / "tissue.png"
        warnings.simplefilter("ignore")
        manifest = read_manifest(
            write_synthetic_dataset(folder / "set", 6, 2, size=(96, 64), seed=3)
        )
        with Image.open(manifest.records[0].path) as picture:
            picture.crop((0, 0, 48, 40)).save(self.image)
        self.files = {f"{name}.histodict": _made(folder, name, manifest) for name in _NAMES}
        self.bases = sorted(self.files)
        self.contents = {base: self._content(base) for base in self.bases}
        self.expected = {base: self._predict(base) for base in self.bases}

    def _content(self, base: str) -> ModelData:
        self.path.write_bytes(self.files[base])
        return read_model_data(self.path)

    def _predict(self, base: str) -> list[Any]:
        self.path.write_bytes(self.files[base])
        return self._predictions(load_model(self.path, n_jobs=1))

    # --- cases ----------------------------------------------------------------------------------

    def case(self, rng: Generator) -> Case:
        base = str(rng.choice(self.bases))
        if rng.random() < 0.4:
            kind = str(rng.choice([*_BYTES, "spliced"]))
            edits = self._byte_edits(rng, kind, len(self.files[base]))
        else:
            kind, edits = self._content_edits(rng, base)
        return Case(kind, base, tuple(edits))

    def _byte_edits(self, rng: Generator, kind: str, n: int) -> list[Any]:
        if kind == "spliced":
            other = str(rng.choice(self.bases))
            return [["splice", int(rng.integers(n)), other]]
        return [_BYTES[kind](rng, n) for _ in range(int(rng.integers(1, 4)))]

    def _content_edits(self, rng: Generator, base: str) -> tuple[str, list[Any]]:
        header, arrays = _parts(self.files[base])[1:]
        in_header = rng.random() < 0.5
        edits: list[Any] = []
        for _ in range(int(rng.integers(1, 3))):
            if in_header:
                edits.append(["json", json_edits.json_edit(rng, header)])
            else:
                name, what = str(rng.choice(sorted(arrays))), str(rng.choice(_DAMAGE))
                edits.append(["array", name, what, int(rng.integers(10**6))])
        seal = bool(rng.random() < 0.75)
        kind = ("words" if in_header else "arrays") + (" changed, resealed" if seal else " changed")
        return kind, [*edits, *([["seal"]] if seal else [])]

    # --- the file -------------------------------------------------------------------------------

    def build(self, case: Case) -> bytes:
        data = self.files[case.base]
        if any(edit[0] in ("json", "array", "seal") for edit in case.edits):
            return _rebuilt(data, case.edits)
        for edit in case.edits:
            if edit[0] == "splice":
                data = data[: edit[1]] + self.files[edit[2]][edit[1] :]
            else:
                data = byte_edits.apply_bytes(data, edit)
        return data

    def attempt(self, data: bytes, base: str) -> str:
        # Spliced where both are equal, the result is the other model, complete.
        base = next((name for name, whole in self.files.items() if whole == data), base)
        self.path.write_bytes(data)
        self._info()
        try:
            content = read_model_data(self.path)
            model = load_model(self.path, n_jobs=1)
        except ModelFileError as error:
            return self._refused(str(error), self.path)
        if _same(content, self.contents[base]):
            if self._predictions(model) != self.expected[base]:
                raise InvariantError("the same content gives another prediction")
            return "the same, answered"
        if not _parts(data)[0].endswith(_HEADER_END):
            raise InvariantError("a model that was not saved is loaded without an error")
        return self._consistent(model)

    def _info(self) -> None:
        """Print the model like `info`: a card, or one line of error."""
        try:
            header = read_header(self.path)
            describe_model(header)
            describe_members(header)
        except ValueError as error:
            self._refused(str(error), None)

    def _consistent(self, model: Any) -> str:
        try:
            label, numbers = self._predictions(model)
        except ValueError as error:
            return f"{self._refused(str(error), None)} at answer"
        if label is not None and label not in model.classes_:
            raise InvariantError(f"the predicted label is {label!r}")
        if label is not None and not np.isfinite(numbers).all():
            raise InvariantError(f"predicted numbers are {numbers}")
        return "consistent, answered"

    def _refused(self, message: str, path: Path | None) -> str:
        if "\n" in message or len(message) > 1000:
            raise InvariantError(f"an error of more than a line: {message}")
        if path is not None and not message.startswith(f"{path}: "):
            raise InvariantError(f"an error that does not name the file: {message}")
        return "refused"

    def _predictions(self, model: Any) -> list[Any]:
        response = model.predict_one(self.image, mpp=0.5)
        scores = [response.score] if model.finds_regions else list(response.scores)
        probabilities = [] if model.finds_regions else list(response.probabilities.values())
        margins = [] if response.patch_map is None else response.patch_map.margins.ravel().tolist()
        value = response.decision_value or 0.0
        return [response.top_label, [*scores, *probabilities, *margins, value]]


_NAMES = (*_KINDS, *_METHODS, *_WHOLE)


def _made(folder: Path, name: str, manifest: Any) -> bytes:
    """Return the bytes of a model file."""
    if name in _KINDS:
        model = TRAIN[name](manifest)
    else:
        parameters = {k: v for k, v in _SMALL.items() if Recipe(name).has_setting(k)}
        if name.endswith("-image"):
            parameters = {"n_atoms": None}
        recipe = Recipe(name, parameters, patch_px=8, patches_per_class=60, features="centred")
        model = TissueClassifier(recipe, n_jobs=1).fit(manifest)
    return save_model(model, folder / f"{name}.histodict").read_bytes()


_SMALL = {"n_atoms": 6, "n_iter": 2, "n_epochs": 1, "n_coding_steps": 3, "max_patches": 20}


def _parts(data: bytes) -> tuple[str, Any, dict[str, Any]]:
    """Return the header of a model file as text and as JSON, and its arrays."""
    (n,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + n])
    text = header.pop("__metadata__")["histodict"]
    types = {"F32": np.float32, "F64": np.float64, "I64": np.int64}
    arrays = {}
    for name, spec in header.items():
        start, stop = spec["data_offsets"]
        raw = data[8 + n + start : 8 + n + stop]
        dtype = types.get(spec["dtype"])
        if dtype is not None:
            arrays[name] = np.frombuffer(raw, dtype).reshape(spec["shape"])
    return text, json.loads(text), arrays


def _rebuilt(data: bytes, edits: tuple[Any, ...]) -> bytes:
    _, header, arrays = _parts(data)
    for edit in edits:
        if edit[0] == "json":
            header = json_edits.apply_json(header, edit[1])
        elif edit[0] == "array" and edit[1] in arrays:
            arrays = _damage_array(arrays, *edit[1:])
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json_edits.dumps(header)
    if ["seal"] in edits:
        text = _resealed(text, arrays)
    return save(arrays, metadata={"histodict": text})


def _resealed(text: str, arrays: dict[str, Any]) -> str:
    """Return the header with a valid digest and the marker; unchanged if it has no digest."""
    try:
        header = json.loads(text)
    except RecursionError:
        return text
    if not isinstance(header, dict):
        return text
    header.pop("sha256", None)
    return json.dumps(header | {"sha256": digest(header, arrays)}) + _HEADER_END


def _damage_array(arrays: dict[str, Any], name: str, what: str, number: int) -> dict[str, Any]:
    array = arrays[name]
    values = {"nan": np.nan, "inf": np.inf, "huge": 1e30, "zero": 0}
    if what == "drop" or not array.size:
        return {key: a for key, a in arrays.items() if key != name}
    if what == "copy":
        return arrays | {f"{name}{number % 3}": array}
    if what in values:
        new = array.copy()
        with np.errstate(all="ignore"):
            new.flat[number % new.size] = values[what] if new.dtype.kind == "f" else -1
    elif what == "type":
        with np.errstate(all="ignore"):
            new = array.astype(_TYPES[number % len(_TYPES)])
    else:
        most = 2 + 10**6 // array.nbytes  # keeps a stored failure small
        new = {
            "scale": lambda: array * array.dtype.type([2, -1, 100, 3][number % 4]),
            "turn": lambda: array.T,
            "repeat": lambda: np.concatenate([array] * min(2 + number % 1000, most)),
            "fewer": lambda: array[: number % (len(array) + 1)],
        }[what]()
    return arrays | {name: new}


def _same(one: ModelData, other: ModelData) -> bool:
    mine, theirs = one.all_arrays(), other.all_arrays()
    return (
        json.dumps(one.header()) == json.dumps(other.header())
        and set(mine) == set(theirs)
        and all(
            mine[k].dtype == theirs[k].dtype
            and mine[k].shape == theirs[k].shape
            and mine[k].tobytes() == theirs[k].tobytes()
            for k in mine
        )
    )


TARGET = Models()
