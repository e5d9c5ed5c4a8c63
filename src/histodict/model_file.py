"""Model files: a `.histodict` file is a safetensors file with a JSON header.

No other module depends on the file format; `ModelData` holds the content of a file. A file
contains no executable code. It is written under a temporary name and then renamed, so an incomplete
file never exists. Reading verifies a SHA-256 digest of the whole content, then the header
(`validate_header`) and the arrays (`ModelData.check_arrays`).

The header is the JSON of `ModelData` without its arrays, plus `schema`, `versions` and the
digest `sha256`. The arrays of an ensemble's members have the prefix `member0.`, `member1.`, …
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .execution.files import atomic_write
from .execution.texts import parse_json, shorten
from .model_content import ModelData, validate_header
from .parameters import check_kind

SCHEMA = 1
SUFFIX = ".histodict"
# One word alone: safetensors would write two in any order, and the same model as other bytes.
_KEY, _DIGEST = "histodict", "sha256"
_PACKAGES = ("histodict", "numpy", "scikit-learn")


class ModelFileError(ValueError):
    """The file is not a readable model."""


def write_model_data(content: ModelData, path: Path) -> Path:
    """Write a model file; an existing file is replaced, the folder must exist."""
    if not path.parent.is_dir():
        raise ModelFileError(f"{path}: the folder {path.parent} does not exist: make it first")
    versions = {name: version(name) for name in _PACKAGES}
    header = {"schema": SCHEMA, "versions": versions} | content.header()
    data = serialize(header, content.all_arrays())
    with atomic_write(path) as partial:
        partial.write_bytes(data)
    return path


def serialize(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the bytes of a file with this header, these arrays and their digest."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole = {**header, _DIGEST: digest(header, contiguous)}
    return save(contiguous, metadata={_KEY: json.dumps(whole, ensure_ascii=False)})


def digest(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of a header without digest and of the arrays.

    It covers the name, type, shape and bytes of each array.
    """
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n")
    for name in sorted(arrays):
        array = arrays[name]
        facts = [name, array.dtype.str, list(array.shape)]
        total.update(json.dumps(facts).encode() + b"\n" + array.tobytes())
    return total.hexdigest()


def read_model_data(path: Path) -> ModelData:
    """Read a model file.

    Raises
    ------
    ModelFileError : the file is damaged, not a model, or has another schema
    """
    return ModelData.of(*_read(path))


def read_header(path: Path | str) -> dict[str, Any]:
    """Return the header of a model file after verifying its digest."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    text, arrays = _open(path)
    try:
        header = parse_json(text)
        check_kind("the header", header, "dict[str, Any]")
        _check_schema(path, header.get("schema"))
        _check_digest(path, header.pop(_DIGEST, None), header, arrays)
        check_kind("versions", header.get("versions"), "dict[str, Any]")
        validate_header(header)
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({_header_of(error)})") from error
    return header, arrays


def _open(path: Path) -> tuple[str, dict[str, Any]]:
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            names, text = file.keys(), (file.metadata() or {}).get(_KEY)
            arrays = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path}: not a histodict model, or a damaged one ({_header_of(error)})"
        ) from error
    if text is None:
        raise ModelFileError(f"{path}: not a histodict model (another program's safetensors file)")
    return text, arrays


def _check_schema(path: Path, schema: object) -> None:
    check_kind("schema", schema, "int")
    if schema != SCHEMA:
        raise ModelFileError(
            f"{path}: has schema {short(schema)}, this version of histodict reads schema {SCHEMA}: "
            "train the model again, or update histodict if a later version made the file"
        )


def _check_digest(
    path: Path, found: object, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    if found is None:
        raise ModelFileError(f"{path}: a damaged model file (it has no digest)")
    if found != digest(header, arrays):
        raise ModelFileError(
            f"{path}: is damaged, or was changed after it was saved: its digest does not fit. "
            "Get the original, or train the model again"
        )


def _header_of(error: Exception) -> str:
    """Return the message of an error in one line."""
    words = shorten(error)
    return f"there is no {words}" if isinstance(error, KeyError) else words
