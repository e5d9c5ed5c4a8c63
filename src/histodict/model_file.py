"""Models on disk: one `.histodict` file, arrays as safetensors, all else as JSON in its header.

This is the only place that knows the file; `ModelContent` is what it holds. Nothing in the file can
run. A file is complete or not there: it is written under another name and then renamed. A digest
over all of it is looked at whenever it is read, so that a model that is not the one saved never
answers; what the digest cannot tell, the schema must (`check_words`, `check_arrays`).

The header is the JSON of `ModelContent` without its arrays, with `schema`, `versions` and `sha256`
beside it, the digest, which files of schema 5 and before have not; the arrays of a panel's members
carry the prefix `member0.`, `member1.`, …
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from .execution.files import written_whole
from .execution.texts import one_line, parse_json
from .model_content import ModelContent, check_words
from .old_model_files import UPGRADES
from .parameters import check_kind

SCHEMA = 12
SUFFIX = ".histodict"
# One word alone: safetensors would write two in any order, and the same model as other bytes.
_KEY, _DIGEST = "histodict", "sha256"
_PACKAGES = ("histodict", "numpy", "scikit-learn")


class ModelFileError(ValueError):
    """A file that is not a model this version can read."""


def write_content(content: ModelContent, path: Path) -> Path:
    """Write the file; the folder must exist, an old file is replaced."""
    if not path.parent.is_dir():
        raise ModelFileError(f"{path}: the folder {path.parent} does not exist: make it first")
    versions = {name: version(name) for name in _PACKAGES}
    header = {"schema": SCHEMA, "versions": versions} | content.header()
    data = sealed(header, content.all_arrays())
    with written_whole(path) as partial:
        partial.write_bytes(data)
    return path


def sealed(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The bytes of a file of this header and these arrays, with their digest."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    whole = {**header, _DIGEST: digest(header, contiguous)}
    return save(contiguous, metadata={_KEY: json.dumps(whole, ensure_ascii=False)})


def digest(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of a header that has none yet, and of every array's name, type, shape and bytes."""
    total = hashlib.sha256(json.dumps(header, sort_keys=True).encode() + b"\n")
    for name in sorted(arrays):
        array = arrays[name]
        facts = [name, array.dtype.str, list(array.shape)]
        total.update(json.dumps(facts).encode() + b"\n" + array.tobytes())
    return total.hexdigest()


def read_content(path: Path) -> ModelContent:
    """Read a file; refuses what is damaged, foreign, or of a schema that is not known."""
    return ModelContent.of(*_read(path))


def read_header(path: Path | str) -> dict[str, Any]:
    """What a model file says of itself, as the present schema has it; its digest is looked at."""
    return _read(Path(path))[0]


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    text, arrays = _open(path)
    try:
        header = parse_json(text)
        check_kind("the header", header, "dict[str, Any]")
        _check_digest(path, header.pop(_DIGEST, None), header, arrays)
        while (schema := header.get("schema")) != SCHEMA and type(schema) is int:
            if schema not in UPGRADES:
                break
            header, arrays = UPGRADES[schema](header, arrays)
        _check_schema(header)
        check_words(header)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(f"{path}: a damaged model file ({_words_of(error)})") from error
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
            f"{path}: not a histodict model, or a damaged one ({_words_of(error)})"
        ) from error
    if text is None:
        raise ModelFileError(f"{path}: not a histodict model (another program's safetensors file)")
    return text, arrays


def _check_digest(
    path: Path, found: object, header: Mapping[str, Any], arrays: Mapping[str, Any]
) -> None:
    if found is not None:
        if found != digest(header, arrays):
            raise ModelFileError(
                f"{path}: is damaged, or was changed after it was saved: its digest does not fit. "
                "Get the original, or train the model again"
            )
    elif header.get("schema") in (4, 5):
        warnings.warn(
            f"{path}: was saved by an earlier version, without a digest: whether it is whole "
            "cannot be checked. histodict.load(FILE).save(FILE) gives it one",
            stacklevel=5,
        )
    elif header.get("schema") in range(6, SCHEMA + 1):
        raise ModelFileError(f"{path}: a damaged model file (it has no digest)")


def _check_schema(header: dict[str, Any]) -> None:
    versions = header.get("versions")
    if type(header.get("schema")) is not int or header["schema"] != SCHEMA:
        maker = versions.get("histodict") if isinstance(versions, dict) else None
        raise ValueError(
            f"it has schema {short(header.get('schema'))}, this version of histodict reads "
            f"{min(UPGRADES)} to {SCHEMA}: train the model again, or use the version that made it, "
            f"{short(maker or 'unknown')}"
        )
    check_kind("versions", versions, "dict[str, Any]")


def _words_of(error: Exception) -> str:
    """Of an error, in one line."""
    words = one_line(error)
    return f"there is no {words}" if isinstance(error, KeyError) else words
