"""Models on disk: one `.histodict` file, arrays as safetensors, all else as JSON in its header.

Nothing in the file can run. A file is complete or not there: it is written under another name and
then renamed.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .decisions.image_rules import ImageRule
from .pipeline import METHODS, TissueClassifier
from .recipes import Recipe

SCHEMA = 1
SUFFIX = ".histodict"
_KEY = "histodict"


class ModelFileError(ValueError):
    """A file that is not a model this version can read."""


def save_model(model: TissueClassifier, path: Path | str) -> Path:
    """Write a fitted model; the folder must exist, an old file is replaced."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ModelFileError(f"{path}: the folder {path.parent} does not exist: make it first")
    arrays = {
        "dictionaries": model.method_.dictionaries_,
        "rule_weights": model.rule_.weights,
        "rule_bias": model.rule_.bias,
    }
    header = {
        "schema": SCHEMA,
        "kind": "tissue-classifier",
        "recipe": model.recipe.to_dict(),
        "classes": model.classes_,
        "mpp": model.mpp_,
        "training": model.training_,
        "versions": {name: version(name) for name in ("histodict", "numpy", "scikit-learn")},
    }
    data = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={_KEY: json.dumps(header, ensure_ascii=False)},
    )
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(data)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path


def read_header(path: Path | str) -> dict[str, Any]:
    """What a model file says of itself."""
    header, _ = _read(Path(path), arrays=False)
    return header


def load_model(path: Path | str, *, n_jobs: int | None = None) -> TissueClassifier:
    """Read a model; refuses files that are damaged, foreign or of another schema."""
    path = Path(path)
    header, arrays = _read(path, arrays=True)
    try:
        recipe = Recipe.from_dict(header["recipe"])
        model = TissueClassifier(
            recipe, random_state=header["training"]["random_state"], n_jobs=n_jobs
        )
        model.classes_ = [str(name) for name in header["classes"]]
        model.mpp_ = header["mpp"]
        model.training_ = header["training"]
        model.rule_ = ImageRule(recipe.rule, arrays["rule_weights"], arrays["rule_bias"])
        method = METHODS[recipe.method](**recipe.method_parameters, n_jobs=n_jobs)
        method.dictionaries_ = arrays["dictionaries"]
        method.classes_ = np.arange(len(model.classes_))
        method.n_features_in_ = arrays["dictionaries"].shape[2]
        model.method_ = method
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({error})") from error
    return model


def _read(path: Path, *, arrays: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            text = (file.metadata() or {}).get(_KEY)
            content = {name: file.get_tensor(name) for name in file.keys()} if arrays else {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelFileError(
            f"{path}: not a histodict model, or a damaged one ({error})"
        ) from error
    if text is None:
        raise ModelFileError(f"{path}: not a histodict model (another program's safetensors file)")
    header: dict[str, Any] = json.loads(text)
    if header.get("schema") != SCHEMA:
        raise ModelFileError(
            f"{path}: has schema {header.get('schema')!r}, this version of histodict reads "
            f"{SCHEMA}: train the model again, or use the version that made it "
            f"({header.get('versions', {}).get('histodict', 'unknown')})"
        )
    return header, content
