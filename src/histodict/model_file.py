"""Models on disk: one `.histodict` file, arrays as safetensors, all else as JSON in its header.

Nothing in the file can run. A file is complete or not there: it is written under another name and
then renamed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .decisions.calibration import Calibration
from .decisions.image_rules import ImageRule
from .decisions.panel import Panel
from .decisions.regions import SizeCurve
from .execution.files import written_whole
from .methods.registry import method_entry
from .networks import is_network, open_network
from .patches.projection import Projection
from .pipeline import RegionDetector, TissueClassifier
from .pipeline.patch_model import PatchModel
from .pipeline.whole_image_model import WholeImageModel
from .recipes import Recipe

Model = TissueClassifier | RegionDetector

SCHEMA = 4
SUFFIX = ".histodict"
_KEY = "histodict"
_KINDS: dict[str, type[Model]] = {
    "tissue-classifier": TissueClassifier,
    "region-detector": RegionDetector,
}


class ModelFileError(ValueError):
    """A file that is not a model this version can read."""


def save_model(model: Model, path: Path | str) -> Path:
    """Write a fitted model; the folder must exist, an old file is replaced."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ModelFileError(f"{path}: the folder {path.parent} does not exist: make it first")
    header, arrays = _contents(model)
    header |= {
        "schema": SCHEMA,
        "versions": {name: version(name) for name in ("histodict", "numpy", "scikit-learn")},
    }
    data = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()},
        metadata={_KEY: json.dumps(header, ensure_ascii=False)},
    )
    with written_whole(path) as partial:
        partial.write_bytes(data)
    return path


def _contents(model: Model) -> tuple[dict[str, Any], dict[str, Any]]:
    """What there is to say of a model, and its arrays; members of a panel stand inside it."""
    method = model.model_.method_
    arrays = {f"method.{name}": np.asarray(getattr(method, name)) for name in method.fitted_arrays}
    header: dict[str, Any] = {
        "kind": next(kind for kind, cls in _KINDS.items() if isinstance(model, cls)),
        "recipe": model.recipe.to_dict(),
        "classes": model.classes_,
        "mpp": model.model_.mpp_,
        "n_features": method.n_features_in_,
        "training": model.training_,
    }
    if isinstance(model.model_, PatchModel) and model.model_.projection_:
        projection = model.model_.projection_
        arrays |= {"projection.mean": projection.mean}
        arrays |= {"projection.components": projection.components}
    if is_network(model.recipe.vectors):
        header["network_digest"] = open_network(model.recipe.vectors).digest
    if isinstance(model, RegionDetector):
        header["least_patches"] = model.least_patches_
        arrays |= {"curve.miss": model.curve_.miss, "curve.alarm": model.curve_.alarm}
        return header, arrays
    if model.rule_ is not None:
        arrays |= {"rule.weights": model.rule_.weights, "rule.bias": model.rule_.bias}
    if model.panel_ is not None:
        header["offset"] = model.panel_.offset
        arrays |= {"panel.scales": model.panel_.scales}
    if model.calibration_ is not None:
        arrays |= {f"calibration.{k}": v for k, v in asdict(model.calibration_).items()}
    header["others"], header["shift"] = [], model.shift_
    for place, other in enumerate(model.others_):
        words, content = _contents(other)
        header["others"].append(words)
        arrays |= {f"other{place}.{name}": array for name, array in content.items()}
    return header, arrays


def read_header(path: Path | str) -> dict[str, Any]:
    """What a model file says of itself."""
    header, _ = _read(Path(path), arrays=False)
    return header


def load_model(path: Path | str, *, n_jobs: int | None = None) -> Model:
    """Read a model; refuses files that are damaged, foreign or of another schema."""
    path = Path(path)
    header, arrays = _read(path, arrays=True)
    try:
        model = _restore(header, arrays, n_jobs)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({error})") from error
    for words in (header, *header.get("others", [])):
        _check_network(path, words)
    return model


def _restore(header: dict[str, Any], arrays: dict[str, Any], n_jobs: int | None) -> Model:
    recipe = Recipe.from_dict(header["recipe"])
    seed = header["training"]["random_state"]
    model = _KINDS[header["kind"]](recipe, random_state=seed, n_jobs=n_jobs)
    model.classes_ = [str(name) for name in header["classes"]]
    model.training_ = header["training"]
    if method_entry(recipe.method).features is None:
        model.model_ = PatchModel(recipe, model.classes_, seed, n_jobs)
        model.model_.projection_ = _restore_projection(arrays)
    else:
        model.model_ = WholeImageModel(recipe, seed, n_jobs)
    model.model_.mpp_ = header["mpp"]
    model.model_.method_ = _restore_method(recipe, header, arrays)
    if isinstance(model, RegionDetector):
        model.region = model.classes_[1]
        model.least_patches_ = int(header["least_patches"])
        model.curve_ = SizeCurve(arrays["curve.miss"], arrays["curve.alarm"])
        return model
    model.rule_, model.panel_ = _restore_rule(recipe, arrays), None
    model.shift_ = float(header["shift"])
    if "panel.scales" in arrays:
        model.panel_ = Panel(arrays["panel.scales"], float(header["offset"]))
    model.calibration_ = _restore_calibration(arrays)
    model.others_ = []
    for place, words in enumerate(header["others"]):
        start = f"other{place}."
        own = {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}
        other = _restore(words, own, n_jobs)
        assert isinstance(other, TissueClassifier)
        model.others_.append(other)
    return model


def _check_network(path: Path, header: dict[str, Any]) -> None:
    """A model is worth nothing on the vectors of other weights than it was trained with."""
    vectors = header["recipe"]["vectors"]
    if not is_network(vectors):
        return
    if open_network(vectors).digest != header.get("network_digest"):
        raise ModelFileError(
            f"{path}: was trained with other weights of {vectors!r} than those here"
        )


def _restore_projection(arrays: dict[str, Any]) -> Projection | None:
    if "projection.mean" not in arrays:
        return None
    return Projection(arrays["projection.mean"], arrays["projection.components"])


def _restore_rule(recipe: Recipe, arrays: dict[str, Any]) -> ImageRule | None:
    if "rule.weights" not in arrays:
        return None
    return ImageRule(recipe.rule, arrays["rule.weights"], arrays["rule.bias"])


def _restore_calibration(arrays: dict[str, Any]) -> Calibration | None:
    names = [field.name for field in fields(Calibration)]
    if f"calibration.{names[0]}" not in arrays:
        return None
    return Calibration(*(arrays[f"calibration.{name}"] for name in names))


def _restore_method(recipe: Recipe, header: dict[str, Any], arrays: dict[str, Any]) -> Any:
    method = method_entry(recipe.method).load()(**recipe.method_parameters)
    for name in method.fitted_arrays:
        setattr(method, name, arrays[f"method.{name}"])
    method.classes_ = np.arange(len(header["classes"]))
    method.n_features_in_ = header["n_features"]
    return method


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
