"""A model from a file: of which kinds, and whether a network is the one learnt with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..execution.texts import shorten
from ..model_content import ModelData
from ..model_file import ModelFileError, read_model_data
from ..networks import get_patch_features, needs_no_consent
from ..parameters import hint


def load_model_of_kind(
    kinds: Mapping[str, Any], path: Path, n_jobs: int | None, trust_weights: bool
) -> Any:
    """What the file holds, if it is one of these kinds: classes by their `kind`."""
    content = read_model_data(path)
    if content.kind not in kinds:
        raise ModelFileError(
            f"{path}: holds a {content.kind}, not a {' or '.join(kinds)}; histodict.load reads any"
        )
    if not trust_weights:
        for part in (content, *content.estimators):
            _check_consent(path, part.recipe["features"])
    try:
        model = kinds[content.kind].from_model_data(content, n_jobs)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({shorten(error)})") from error
    for part in (content, *content.estimators):
        _check_weights(path, part)
    return model


def _check_consent(path: Path, vectors: str) -> None:
    if needs_no_consent(vectors):
        return
    family, _, name = vectors.partition(":")
    model, _, file = name.partition("@")
    what = f"open the file {file} as weights of" if file else "fetch the weights of"
    how = hint(python="load it with load(…, trust_weights=True)", cli="say --trust-weights")
    raise ModelFileError(
        f"{path}: to use this model, {family} would {what} {model!r}. If you trust where the model "
        f"is from, {how}"
    )


def _check_weights(path: Path, content: ModelData) -> None:
    """A model is worth nothing on the vectors of other weights than it was trained with."""
    vectors = content.recipe["features"]
    if get_patch_features(vectors).weights() != content.weights:
        raise ModelFileError(
            f"{path}: was trained with other weights of {vectors!r} than those here"
        )
