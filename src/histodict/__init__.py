"""Interpretable tissue classification from a handful of labelled images.

Models
    TissueClassifier, RegionDetector, EnsembleClassifier, Recipe, Plan, load

    >>> import histodict
    >>> model = histodict.TissueClassifier(random_state=0).fit("tissue.csv")
    >>> prediction = model.predict("new.png")
    >>> prediction.label, prediction.score
    >>> model.save("tissue.histodict")
    >>> model = histodict.load("tissue.histodict")

Data
    read_manifest, Manifest, with_annotations, split_by_annotation, AnnotationFile,
    PixelSizeOption, allow_missing_chunks

Results
    ImagePrediction, RegionPrediction, Predictions, PatchMap, Explanation

    >>> model.explain("new.png").summary()

Explanation of a model
    atom_statistics, AtomStatistics

    >>> atoms = histodict.atom_statistics(model, "tissue.csv")
    >>> [(atom.label, atom.auc) for atom in atoms if atom.is_site_confounded]

Methods on feature vectors (scikit-learn classifiers)
    DFDL, ODL, SRC, SHIRC, LCKSVD, FDDL, Nayak, WNDCHARM

    >>> dfdl = histodict.DFDL(n_atoms=500, random_state=0).fit(X, y)
    >>> dfdl.dictionaries_  # (n_classes, n_atoms, n_features)

Export
    to_anndata, to_spatialdata

Public sub-packages
    kernels, metrics, model_selection, encoders, synthetic

The reference is docs/api-reference.md; names that are not listed there are private. The command
line offers the same functions: `histodict --help`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .annotations.annotation_file import AnnotationFile
    from .datasets.annotated import split_by_annotation, with_annotations
    from .datasets.manifest import Manifest, read_manifest
    from .explain.atom_statistics import AtomStatistics, atom_statistics
    from .explain.explanation import Explanation
    from .export.anndata import to_anndata, to_spatialdata
    from .images.pixel_size import PixelSizeOption
    from .methods.dfdl import DFDL
    from .methods.fddl import FDDL
    from .methods.lcksvd import LCKSVD
    from .methods.nayak import Nayak
    from .methods.odl import ODL
    from .methods.shirc import SHIRC
    from .methods.src import SRC
    from .methods.wndcharm import WNDCHARM
    from .models import (
        EnsembleClassifier,
        ImagePrediction,
        Plan,
        Predictions,
        RegionDetector,
        RegionPrediction,
        TissueClassifier,
    )
    from .models import load_model as load
    from .models.recipe import Recipe
    from .patches.patch_map import PatchMap
    from .utils.missing_chunks import allow_missing_chunks

    __version__: str

__all__ = [
    "DFDL",
    "FDDL",
    "LCKSVD",
    "ODL",
    "SHIRC",
    "SRC",
    "WNDCHARM",
    "AnnotationFile",
    "AtomStatistics",
    "EnsembleClassifier",
    "Explanation",
    "ImagePrediction",
    "Manifest",
    "Nayak",
    "PatchMap",
    "PixelSizeOption",
    "Plan",
    "Predictions",
    "Recipe",
    "RegionDetector",
    "RegionPrediction",
    "TissueClassifier",
    "__version__",
    "allow_missing_chunks",
    "atom_statistics",
    "load",
    "read_manifest",
    "split_by_annotation",
    "to_anndata",
    "to_spatialdata",
    "with_annotations",
]

# Module of each public name; after a colon, its name in that module if it is different.
_MODULES = {
    "AnnotationFile": ".annotations.annotation_file",
    "AtomStatistics": ".explain.atom_statistics",
    "DFDL": ".methods.dfdl",
    "EnsembleClassifier": ".models",
    "Explanation": ".explain.explanation",
    "FDDL": ".methods.fddl",
    "ImagePrediction": ".models",
    "LCKSVD": ".methods.lcksvd",
    "Manifest": ".datasets.manifest",
    "Nayak": ".methods.nayak",
    "ODL": ".methods.odl",
    "PatchMap": ".patches.patch_map",
    "PixelSizeOption": ".images.pixel_size",
    "Plan": ".models",
    "Predictions": ".models",
    "Recipe": ".models.recipe",
    "RegionDetector": ".models",
    "RegionPrediction": ".models",
    "SHIRC": ".methods.shirc",
    "SRC": ".methods.src",
    "TissueClassifier": ".models",
    "WNDCHARM": ".methods.wndcharm",
    "allow_missing_chunks": ".utils.missing_chunks",
    "atom_statistics": ".explain.atom_statistics",
    "load": ".models:load_model",
    "read_manifest": ".datasets.manifest",
    "split_by_annotation": ".datasets.annotated",
    "to_anndata": ".export.anndata",
    "to_spatialdata": ".export.anndata",
    "with_annotations": ".datasets.annotated",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing the package is fast."""
    if name == "__version__":
        return import_module("importlib.metadata").version("histodict")
    if name in _MODULES:
        module, _, attribute = _MODULES[name].partition(":")
        return getattr(import_module(module, __name__), attribute or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
