"""Models to files and back: which kinds there are, and whether a network is the one learnt with."""

from __future__ import annotations

from pathlib import Path

from ..execution.texts import one_line
from ..model_content import ModelContent
from ..model_file import ModelFileError, read_content, write_content
from ..networks import is_asked_for, vectors_named
from .panel import Panel
from .plan import Model
from .region_detector import RegionDetector
from .tissue_classifier import TissueClassifier

_KINDS: dict[str, type[Model]] = {
    kind.kind: kind for kind in (TissueClassifier, RegionDetector, Panel)
}


def save_model(model: Model, path: Path | str) -> Path:
    """Write a fitted model; the folder must exist, an old file is replaced.

    Refuses what could not be read again, such as a dictionary that is not of finite numbers.
    """
    content = model.content()
    try:
        _KINDS[content.kind].of_content(content, None)
    except ValueError as error:
        raise ValueError(f"{path}: this model is not saved, as it is broken: {error}") from error
    return write_content(content, Path(path))


def load_model(
    path: Path | str, *, n_jobs: int | None = None, trust_weights: bool = False
) -> Model:
    """Read a model; refuses files that are damaged, foreign or of a schema that is not known.

    A model of network vectors names a network, and so what is fetched or opened to use it. Weights
    that an installed package brings, that the program registered, or that are in use here already
    are taken; any others only if you trust where the model is from, and say so.
    """
    path = Path(path)
    content = read_content(path)
    if not trust_weights:
        for part in (content, *content.members):
            _check_consent(path, part.recipe["vectors"])
    try:
        model = _KINDS[content.kind].of_content(content, n_jobs)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({one_line(error)})") from error
    for part in (content, *content.members):
        _check_weights(path, part)
    return model


def _check_consent(path: Path, vectors: str) -> None:
    if is_asked_for(vectors):
        return
    family, _, name = vectors.partition(":")
    model, _, file = name.partition("@")
    what = f"open the file {file} as weights of" if file else "fetch the weights of"
    raise ModelFileError(
        f"{path}: to use this model, {family} would {what} {model!r}. If you trust where the model "
        "is from, say --trust-weights, in Python load(…, trust_weights=True)"
    )


def _check_weights(path: Path, content: ModelContent) -> None:
    """A model is worth nothing on the vectors of other weights than it was trained with."""
    vectors = content.recipe["vectors"]
    if vectors_named(vectors).weights() != content.weights:
        raise ModelFileError(
            f"{path}: was trained with other weights of {vectors!r} than those here"
        )
