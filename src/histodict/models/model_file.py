"""Content of fitted models, its validation, and model files.

A `.histodict` file is a safetensors file with a JSON header. No other module depends on the
file format; `ModelData` holds the content of a file. A file contains no executable code. It is
written under a temporary name and then renamed, so an incomplete file never exists. Reading
verifies a SHA-256 digest of the whole content, then the header (`validate_header`) and the
arrays (`ModelData.check_arrays`).

The header is the JSON of `ModelData` without its arrays, plus `schema`, `versions` and the
digest `sha256`. The arrays of an ensemble's members have the prefix `member0.`, `member1.`, …
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..decision.aggregation import count_scores
from ..decision.atom_annotations import check_atom_annotations
from ..decision.threshold import check_tuning
from ..encoders import get_patch_features, needs_no_consent
from ..images.file_types import check_not_special
from ..utils.array_schema import ArraySpec, Sizes, validate_arrays
from ..utils.files import atomic_write
from ..utils.text_io import parse_json, shorten
from ..utils.validation import check_choice, check_number, check_type, check_whole_number, hint
from .class_labels import LABEL_TYPES, labels_from_names

# Names of the parameters of the decision, which are numbers, by the kind of model.
DECISION_PARAMETERS = {
    "tissue-classifier": ("shift",),
    "region-detector": ("min_patches", "margin_threshold"),
    "ensemble": ("shift", "offset", "tanh_scale"),
}
# Arrays of a model, in addition to "method.NAME" of its method (`fitted_arrays`) and "rule.NAME" of
# its aggregator (`array_schema`). Dimensions: "classes"; "scores", 1 for two classes, else the
# number of classes; "inputs", the length of a feature vector; "features", its length after the
# projection; "codes", the length of a code; "estimators", the number of estimators of an ensemble.
ARRAY_SPECS = {
    "projection.mean": ArraySpec("inputs"),
    "projection.components": ArraySpec("features, inputs"),
    # Reference of each class per atom, from training patches: see `AtomMeans`.
    "class_reference.usage": ArraySpec("classes, codes", "fractions from 0 to 1"),
    "class_reference.codes": ArraySpec("classes, codes"),
    "class_reference.mean_codes": ArraySpec("classes, codes"),
    "class_reference.margins": ArraySpec("classes, classes, codes"),
    "class_reference.class_votes": ArraySpec("classes, classes, codes"),
    # Error rates of image labels for a minimum region size of 1 … 20 patches.
    "region_size.false_negative_rate": ArraySpec("20", "fractions from 0 to 1"),
    "region_size.false_positive_rate": ArraySpec("20", "fractions from 0 to 1"),
    # Divisors of the scores of the estimators.
    "combination.scales": ArraySpec("estimators", "positive numbers"),
    "combination.weights": ArraySpec("estimators", "positive numbers"),
    "calibration.slopes": ArraySpec("scores, classes"),
    "calibration.offsets": ArraySpec("classes"),
    # Nonconformity scores of the calibration images.
    "calibration.nonconformity_scores": ArraySpec("images", "fractions from 0 to 1"),
}


def array_specs(*prefixes: str) -> dict[str, ArraySpec]:
    """Return the entries of ARRAY_SPECS whose name is PREFIX.NAME for one of the prefixes."""
    return {name: s for name, s in ARRAY_SPECS.items() if name.partition(".")[0] in prefixes}


@dataclass(frozen=True)
class ModelData:
    """Content of a fitted model, as stored in a model file.

    Attributes
    ----------
    kind : "tissue-classifier", "region-detector" or "ensemble"
    classes : class names; if there are two, positive scores indicate the second
    recipe : settings of the model; for an ensemble, the settings of its first estimator
    mpp : median pixel size (µm) of the training images; None if it is unknown or not used
    n_features : length of the vectors that the method receives
    weights : digest of the encoder's weights; empty for pixel features
    decision_parameters : parameters of the decision by name, see DECISION_PARAMETERS
    training_info : record of the training
    estimators : content of each estimator of an ensemble
    atom_annotations : labels and states of atoms, see `decision.atom_annotations`
    arrays : fitted arrays by name, see ARRAY_SPECS
    """

    kind: str
    classes: list[str]
    recipe: dict[str, Any]
    mpp: float | None
    n_features: int
    weights: str
    decision_parameters: dict[str, float]
    training_info: dict[str, Any]
    estimators: list[ModelData] = field(default_factory=list)
    atom_annotations: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """Return all fields except `arrays`; "estimators" has the headers of the estimators."""
        fields = {name: getattr(self, name) for name in _HEADER_FIELDS}
        return fields | {"estimators": [member.header() for member in self.estimators]}

    def all_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name; arrays of estimator i have the prefix "member{i}."."""
        arrays = dict(self.arrays)
        for index, member in enumerate(self.estimators):
            member_arrays = member.all_arrays()
            arrays |= {f"member{index}.{name}": array for name, array in member_arrays.items()}
        return arrays

    @classmethod
    def from_header(
        cls, header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
    ) -> ModelData:
        """Create the content from the results of `header` and `all_arrays`."""
        own_arrays: dict[str, NDArray[Any]] = {}
        by_member: dict[str, dict[str, NDArray[Any]]] = {
            f"member{index}": {} for index in range(len(header["estimators"]))
        }
        for name, array in arrays.items():
            prefix, _, rest = name.partition(".")
            if prefix in by_member:
                by_member[prefix][rest] = array
            else:
                own_arrays[name] = array
        pairs = zip(header["estimators"], by_member.values(), strict=True)
        members = [
            cls.from_header(member_header, member_arrays) for member_header, member_arrays in pairs
        ]
        return cls(
            **{name: header[name] for name in _HEADER_FIELDS}, estimators=members, arrays=own_arrays
        )

    def check_arrays(self, declared: Mapping[str, ArraySpec], sizes: Sizes) -> None:
        """Raise ValueError if an array is missing, unknown or does not match its specification.

        Parameters
        ----------
        declared : specification of each array by name
        sizes : array dimensions by name, in addition to those that follow from other fields of the
            content, such as the number of classes
        """
        known: dict[str, int | str] = {
            "classes": len(self.classes),
            "scores": count_scores(len(self.classes)),
            "features": self.n_features,
            "estimators": len(self.estimators),
        }
        for name in set(known) & set(sizes):
            if known[name] != sizes[name]:
                actual = short(known[name])
                raise ValueError(f"the file has {actual} {name}, the recipe implies {sizes[name]}")
        validate_arrays(declared, self.arrays, known | dict(sizes))


# --- header -------------------------------------------------------------------------------------

# Types of the header's fields.
_HEADER_FIELDS = {
    "kind": "str",
    "classes": "list[str]",
    "recipe": "dict[str, Any]",
    "mpp": "float | None",
    "n_features": "int",
    "weights": "str",
    "decision_parameters": "dict[str, Any]",
    "training_info": "dict[str, Any]",
    "atom_annotations": "list[Any]",
}
# Fields of an ensemble that must equal those of its first member.
_SHARED_WITH_FIRST_MEMBER = ("recipe", "mpp", "n_features", "weights")
_RECIPE_FIELDS = {"method": "str", "method_parameters": "dict[str, Any]", "features": "str"}
# Types of the required and of the optional fields of the training record.
_TRAINING_FIELDS = {
    "manifest_digest": "str",
    "n_images": "int",
    "n_patients": "int",
    "random_state": "int | None",
}
_OPTIONAL_TRAINING_FIELDS = {
    "images": "list[str]",
    "n_patches": "int",
    "folds": "int",
    "started_from": "dict[str, Any]",
    "left_out": "list[str]",
    "confounders": "list[str]",
    "label_type": "str",
    "has_patients": "bool",
    "tuning": "list[Any]",
    "estimators": "list[Any]",
}


def validate_header(header: Mapping[str, Any]) -> None:
    """Raise ValueError if fields of a header are missing, unknown, of wrong type or inconsistent.

    The settings of the recipe are checked when the model is created.
    """
    fields = {*_HEADER_FIELDS, "estimators"}
    for name in sorted(fields ^ (set(header) - {"schema", "versions"})):
        raise ValueError(f"{short(name)} is {'missing' if name in fields else 'not a known field'}")
    _check_fields("", header, _HEADER_FIELDS)
    check_choice("kind", header["kind"], DECISION_PARAMETERS)
    _check_classes(header["classes"])
    if header["mpp"] is not None:
        check_number("mpp", header["mpp"], exclusive=True)
    check_whole_number("n_features", header["n_features"], 1)
    _check_fields("recipe: ", header["recipe"], _RECIPE_FIELDS)
    _check_decision(header["kind"], header["decision_parameters"])
    _check_training(header["training_info"])
    if "label_type" in header["training_info"]:
        check_choice("label_type", header["training_info"]["label_type"], LABEL_TYPES)
        labels_from_names(header["classes"], header["training_info"]["label_type"])
    check_atom_annotations(header["atom_annotations"])
    if header["kind"] == "region-detector" and len(header["classes"]) != 2:
        raise ValueError("a region-detector has two classes")
    _check_members(header)


def _check_fields(location: str, values: Mapping[str, Any], types: Mapping[str, str]) -> None:
    for name, type_name in types.items():
        if name not in values:
            raise ValueError(f"{location}{name} is missing")
        check_type(f"{location}{name}", values[name], type_name)


def _check_classes(classes: list[str]) -> None:
    if not all(map(_is_text, classes)) or not len(set(classes)) == len(classes) >= 2:
        raise ValueError(f"classes must be two different names or more, not {short(classes)}")


def _is_text(name: str) -> bool:
    """Return whether a name is not blank and is valid Unicode, without lone surrogates."""
    return bool(name.strip()) and name == name.encode("utf-8", "replace").decode()


def _check_decision(kind: str, decision: Mapping[str, Any]) -> None:
    names = DECISION_PARAMETERS[kind]
    if set(decision) != set(names):
        raise ValueError(f"a {kind} has the decision parameters {names}, not {short(decision)}")
    for name, value in decision.items():
        check_type(name, value, "float")
        check_number(name, value, low=-float("inf"))
    if "min_patches" in decision:
        check_whole_number("min_patches", decision["min_patches"], 1)


def _check_training(training: Mapping[str, Any]) -> None:
    _check_fields("training_info: ", training, _TRAINING_FIELDS)
    known = {name: kind for name, kind in _OPTIONAL_TRAINING_FIELDS.items() if name in training}
    _check_fields("training_info: ", training, known)
    check_tuning(training.get("tuning", []))
    for member in training.get("estimators", []):
        check_type("training_info: an estimator", member, "dict[str, Any]")
        types = {"unseen": "float | None", "recipe": "dict[str, Any]"}
        # A member that could not be trained has no weight.
        _check_fields(
            "a member's ", member, types if "failure" in member else types | {"weight": "float"}
        )
        _check_fields("a member's recipe: ", member["recipe"], _RECIPE_FIELDS)


def _check_members(header: Mapping[str, Any]) -> None:
    members = header["estimators"]
    if not isinstance(members, list) or bool(members) != (header["kind"] == "ensemble"):
        raise ValueError("only an ensemble has estimators, a list of models")
    for member in members:
        check_type("a member", member, "dict[str, Any]")
        if member.get("kind") != "tissue-classifier" or member.get("classes") != header["classes"]:
            raise ValueError(
                "the estimators of an ensemble must be tissue-classifiers of its classes"
            )
        validate_header(member)
    for name in _SHARED_WITH_FIRST_MEMBER if members else ():
        if header[name] != members[0][name]:
            raise ValueError(f"{name} of an ensemble must be that of its first estimator")


SCHEMA = 2
MODEL_SUFFIX = ".histodict"
# A single metadata key, as the order of several is undefined and files would not be reproducible.
_HEADER_KEY, _DIGEST_KEY = "histodict", "sha256"
_N_LENGTH_BYTES = 8  # a safetensors file begins with the length of its header, which is JSON
_PACKAGES = ("histodict", "numpy", "scikit-learn")


class ModelFileError(ValueError):
    """Error for a file that is not a readable model."""


def write_model_data(content: ModelData, path: Path) -> Path:
    """Write a model file and return its path.

    An existing file is replaced; missing folders are created.
    """
    versions = {name: version(name) for name in _PACKAGES}
    header = {"schema": SCHEMA, "versions": versions} | content.header()
    data = serialize(header, content.all_arrays())
    with atomic_write(path) as partial:
        partial.write_bytes(data)
    return path


def serialize(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a model file, with the SHA-256 digest in the header."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    full_header = {**header, _DIGEST_KEY: digest(header, contiguous)}
    return save(contiguous, metadata={_HEADER_KEY: json.dumps(full_header, ensure_ascii=False)})


def digest(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 digest of a model file as hexadecimal text.

    It covers the header without its entry "sha256", and the name, type, shape and bytes of each
    array.
    """
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n")
    for name in sorted(arrays):
        array = arrays[name]
        metadata = [name, array.dtype.str, list(array.shape)]
        total.update(json.dumps(metadata).encode() + b"\n" + array.tobytes())
    return total.hexdigest()


def read_model_data(path: Path) -> ModelData:
    """Read a model file.

    Raises
    ------
    ModelFileError
        If the file is damaged, not a model, or has another schema.
    """
    return ModelData.from_header(*_read_verified(path))


def read_header(path: Path | str) -> dict[str, Any]:
    """Return the header of a model file after verifying its digest."""
    return _read_verified(Path(path))[0]


def _read_verified(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the validated header and the arrays of a model file."""
    text, arrays = _read_safetensors(path)
    try:
        header = parse_json(text)
        check_type("the header", header, "dict[str, Any]")
        _check_schema(path, header.get("schema"))
        _check_digest(path, header.pop(_DIGEST_KEY, None), header, arrays)
        check_type("versions", header.get("versions"), "dict[str, Any]")
        validate_header(header)
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({_one_line(error)})") from error
    return header, arrays


def _read_safetensors(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the JSON text of the header, and the arrays; raise ModelFileError if unreadable."""
    check_not_special(path, ModelFileError)
    if not path.is_file():
        raise ModelFileError(f"{path}: file not found")
    with path.open("rb") as file:
        if file.read(_N_LENGTH_BYTES + 1)[_N_LENGTH_BYTES:] != b"{":
            raise ModelFileError(
                f"{path}: not a model file. A model file is written by `histodict train` or "
                "`model.save`"
            )
    try:
        with safe_open(path, framework="numpy") as file:
            names, text = file.keys(), (file.metadata() or {}).get(_HEADER_KEY)
            arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({_one_line(error)})") from error
    if text is None:
        raise ModelFileError(f"{path}: not a histodict model (another program's safetensors file)")
    return text, arrays


def _check_schema(path: Path, schema: object) -> None:
    check_type("schema", schema, "int")
    if schema != SCHEMA:
        raise ModelFileError(
            f"{path}: has schema {short(schema)}, this version of histodict reads schema {SCHEMA}: "
            "train the model again, or update histodict if a later version made the file"
        )


def _check_digest(
    path: Path, stored_digest: object, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    if stored_digest is None:
        raise ModelFileError(f"{path}: a damaged model file (it has no digest)")
    if stored_digest != digest(header, arrays):
        raise ModelFileError(
            f"{path}: is damaged, or was changed after it was saved (its digest is wrong). Get "
            "the original file, or train the model again"
        )


def _one_line(error: Exception) -> str:
    """Return the message of an error as a single line."""
    message = shorten(error)
    return f"there is no {message}" if isinstance(error, KeyError) else message


def load_model_of_kind(
    kinds: Mapping[str, Any], path: Path, n_jobs: int | None, trust_weights: bool
) -> Any:
    """Read a model; raise ModelFileError if it is not of one of these kinds.

    Parameters
    ----------
    kinds : accepted model classes by their attribute `kind`
    path : model file
    n_jobs : number of threads; None uses all cores
    trust_weights : whether to download or open the encoder weights that the file names
    """
    content = read_model_data(path)
    if content.kind not in kinds:
        raise ModelFileError(
            f"{path}: contains a {content.kind}, not a {' or '.join(kinds)}. histodict.load "
            "reads models of all kinds"
        )
    if not trust_weights:
        for data in (content, *content.estimators):
            _check_consent(path, data.recipe["features"])
    try:
        model = kinds[content.kind].from_model_data(content, n_jobs)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({shorten(error)})") from error
    for data in (content, *content.estimators):
        _check_weights(path, data)
    return model


def _check_consent(path: Path, features: str) -> None:
    """Raise ModelFileError if loading the weights of `features` requires permission of the user."""
    if needs_no_consent(features):
        return
    family, _, name = features.partition(":")
    model, _, file = name.partition("@")
    action = f"open the file {file} as weights of" if file else "fetch the weights of"
    remedy = hint(python="load it with load(…, trust_weights=True)", cli="give --trust-weights")
    raise ModelFileError(
        f"{path}: this model needs the permission to {action} {model!r} with {family}. If you "
        f"trust the source of the model, {remedy}"
    )


def _check_weights(path: Path, content: ModelData) -> None:
    """Raise ModelFileError if installed encoder weights are not those used in training."""
    features = content.recipe["features"]
    if get_patch_features(features).weights_digest() != content.weights:
        raise ModelFileError(
            f"{path}: the model was trained with other weights of {features!r} than the "
            "installed ones. Install the weights used in training, or train the model again"
        )
