"""Models to files and back, whatever their kind."""

from __future__ import annotations

from pathlib import Path

from .keeping import load_model_of_kind
from .panel import EnsembleClassifier
from .plan import Model
from .region_detector import RegionDetector
from .tissue_classifier import TissueClassifier

_KINDS = {kind.kind: kind for kind in (TissueClassifier, RegionDetector, EnsembleClassifier)}


def save_model(model: Model, path: Path | str) -> Path:
    """`model.save(path)`."""
    return model.save(path)


def load_model(
    path: Path | str, *, n_jobs: int | None = None, trust_weights: bool = False
) -> Model:
    """Read a model; refuses files that are damaged, foreign or of a schema that is not known.

    A model of network vectors names a network, and so what is fetched or opened to use it. Weights
    that an installed package brings, that the program registered, or that are in use here already
    are taken; any others only if you trust where the model is from, and say so.
    """
    model: Model = load_model_of_kind(_KINDS, Path(path), n_jobs, trust_weights)
    return model
