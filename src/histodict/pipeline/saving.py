"""Models to files and back: which kinds there are, and whether a network is the one learnt with."""

from __future__ import annotations

from pathlib import Path

from ..model_file import ModelContent, ModelFileError, read_content, write_content
from ..networks import vectors_named
from .panel import Panel
from .plan import Model
from .region_detector import RegionDetector
from .tissue_classifier import TissueClassifier

_KINDS: dict[str, type[Model]] = {
    kind.kind: kind for kind in (TissueClassifier, RegionDetector, Panel)
}


def save_model(model: Model, path: Path | str) -> Path:
    """Write a fitted model; the folder must exist, an old file is replaced."""
    return write_content(model.content(), Path(path))


def load_model(path: Path | str, *, n_jobs: int | None = None) -> Model:
    """Read a model; refuses files that are damaged, foreign or of a schema that is not known."""
    path = Path(path)
    content = read_content(path)
    try:
        model = _KINDS[content.kind].of_content(content, n_jobs)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelFileError(f"{path}: a damaged model file ({error})") from error
    for part in (content, *content.members):
        _check_weights(path, part)
    return model


def _check_weights(path: Path, content: ModelContent) -> None:
    """A model is worth nothing on the vectors of other weights than it was trained with."""
    vectors = content.recipe["vectors"]
    if vectors_named(vectors).weights() != content.weights:
        raise ModelFileError(
            f"{path}: was trained with other weights of {vectors!r} than those here"
        )
