"""Models on disk: one `.histodict` file, arrays as safetensors, all else as JSON in its header.

This is the only place that knows the file; `ModelContent` is its schema, and what models give and
take. Nothing in the file can run. A file is complete or not there: it is written under another name
and then renamed.

The header is the JSON of `ModelContent` without its arrays, with `schema` and `versions` beside it;
the arrays of a panel's members carry the prefix `member0.`, `member1.`, …
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .execution.files import written_whole
from .old_model_files import UPGRADES

SCHEMA = 5
SUFFIX = ".histodict"
_KEY = "histodict"
_PACKAGES = ("histodict", "numpy", "scikit-learn")
# What the arrays of a model are; c classes, s scores (1 for two classes, else c), m members.
ARRAYS = {
    "method.NAME": "what the method learnt; its class names these in `fitted_arrays`",
    "projection.mean": "(n_features,) of the vectors before they are projected",
    "projection.components": "(n_components, n_features)",
    "rule.NAME": "what the rule over patches learnt; see its class. A linear one: weights, bias",
    "curve.miss": "(20,) of a region detector, for m = 1 … 20",
    "curve.alarm": "(20,)",
    "combination.scales": "(m,) of a panel: what its members' scores are divided by",
    "calibration.slopes": "(s, c)",
    "calibration.offsets": "(c,)",
    "calibration.misfits": "(n_images,) of the images that it was calibrated on",
}


class ModelFileError(ValueError):
    """A file that is not a model this version can read."""


@dataclass(frozen=True)
class ModelContent:
    """All there is of a fitted model.

    kind : "tissue-classifier", "region-detector" or "panel"
    classes : names in the order of scores; with two, the second scores positive
    recipe : the settings of the model; of a panel, those of its first member
    mpp : pixel size of the training images, where all have the same
    n_features : length of a vector as the method sees it
    weights : digest of the network behind the vectors; empty for vectors of pixels
    decision : numbers that an answer depends on beside the arrays
        tissue-classifier: shift; region-detector: least_patches; panel: shift, offset
    training : what is known of the training, for the record
    members : of a panel, each like this
    arrays : by name, see ARRAYS
    """

    kind: str
    classes: list[str]
    recipe: dict[str, Any]
    mpp: float | None
    n_features: int
    weights: str
    decision: dict[str, float]
    training: dict[str, Any]
    members: list[ModelContent] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        words = {name: getattr(self, name) for name in _WORDS}
        return words | {"members": [member.header() for member in self.members]}

    def all_arrays(self) -> dict[str, NDArray[Any]]:
        found = dict(self.arrays)
        for place, member in enumerate(self.members):
            own = member.all_arrays()
            found |= {f"member{place}.{name}": array for name, array in own.items()}
        return found

    @classmethod
    def of(cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> ModelContent:
        members = []
        for place, words in enumerate(header["members"]):
            start = f"member{place}."
            own = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
            members.append(cls.of(words, own))
        own = {k: v for k, v in arrays.items() if not k.startswith("member")}
        return cls(**{name: header[name] for name in _WORDS}, members=members, arrays=own)


_WORDS = ("kind", "classes", "recipe", "mpp", "n_features", "weights", "decision", "training")


def write_content(content: ModelContent, path: Path) -> Path:
    """Write the file; the folder must exist, an old file is replaced."""
    if not path.parent.is_dir():
        raise ModelFileError(f"{path}: the folder {path.parent} does not exist: make it first")
    versions = {name: version(name) for name in _PACKAGES}
    header = {"schema": SCHEMA, "versions": versions} | content.header()
    arrays = {name: np.ascontiguousarray(a) for name, a in content.all_arrays().items()}
    data = save(arrays, metadata={_KEY: json.dumps(header, ensure_ascii=False)})
    with written_whole(path) as partial:
        partial.write_bytes(data)
    return path


def read_content(path: Path) -> ModelContent:
    """Read a file; refuses what is damaged, foreign, or of a schema that is not known."""
    header, arrays = _read(path, with_arrays=True)
    try:
        return ModelContent.of(header, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({error!r})") from error


def read_header(path: Path | str) -> dict[str, Any]:
    """What a model file says of itself, as the present schema has it."""
    return _read(Path(path), with_arrays=False)[0]


def _read(path: Path, *, with_arrays: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_KEY)
            names = list(file.keys())
            arrays: dict[str, Any] = {
                name: file.get_tensor(name) if with_arrays else None for name in names
            }
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            f"{path}: not a histodict model, or a damaged one ({error})"
        ) from error
    if text is None:
        raise ModelFileError(f"{path}: not a histodict model (another program's safetensors file)")
    header: dict[str, Any] = json.loads(text)
    try:
        while header.get("schema") in UPGRADES:
            header, arrays = UPGRADES[header["schema"]](header, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({error!r})") from error
    if header.get("schema") != SCHEMA:
        raise ModelFileError(
            f"{path}: has schema {header.get('schema')!r}, this version of histodict reads "
            f"{min(UPGRADES)} to {SCHEMA}: train the model again, or use the version that made it "
            f"({header.get('versions', {}).get('histodict', 'unknown')})"
        )
    return header, arrays
