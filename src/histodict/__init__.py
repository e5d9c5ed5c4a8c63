"""Interpretable tissue classification from a handful of labelled images.

From images to an answer
    A folder with one sub-folder per class is enough; a CSV or a DataFrame can also say which images
    are of the same patient.

    >>> import histodict
    >>> model = histodict.TissueClassifier(random_state=0).fit("tissue.csv")
    >>> answer = model.predict("new.png")  # or an array, or a picture of Pillow
    >>> answer.label, answer.score, answer.proportions
    >>> answer.patch_map.predicted_classes  # a `PatchMap`: the class of each patch
    >>> answers = model.predict(["new.png", "newer.png"])  # or a folder
    >>> answers.rows()  # with pandas: answers.to_frame()
    >>> model.score("tissue.csv")  # balanced accuracy

    `TissueClassifier` says which class an image is, `RegionDetector` where in it something is.
    `EnsembleClassifier` is the most accurate: several views of the tissue, and how sure one may be.

    >>> finder = histodict.RegionDetector(region="tumour").fit("tissue.csv")
    >>> finder.predict("new.png").regions
    >>> panel = histodict.EnsembleClassifier().fit("tissue.csv")  # Panel(["fast"]): one view
    >>> panel.predict_proba("new.png")

    Outlines drawn in QuPath, ASAP or ImageScope: `with_annotations` joins them to images, and
    `split_by_annotation` makes a part of an image for each class that is outlined in it. A
    `AnnotationFile` says where in new images to look: `predict("new.svs", within=…)`.

    Zarr images and feature files with missing chunks are refused, except inside
    `allow_missing_chunks`.

To keep a model
    >>> model.save("tissue.histodict")
    >>> model = histodict.load("tissue.histodict")

Settings
    By name, beside the preset they change. A `Recipe` holds all that decides one model: the
    patches, the vectors, the method. A `Plan` says what is made of it, as the command line does.

    >>> histodict.TissueClassifier("paper", n_atoms=100, stain="reinhard")
    >>> recipe = histodict.Recipe("odl", {"n_atoms": 20}, stain="reinhard", aggregation="margin")
    >>> histodict.TissueClassifier(recipe).get_params()
    >>> histodict.Plan.named("default").build_model()
    >>> images = histodict.read_manifest("tissue.csv")  # what fit makes of it, to look at

Below: classifiers of patch vectors
    `DFDL`, and what it is compared with: `SRC`, `SHIRC`, `LCKSVD`, `FDDL`, `ODL`, `Nayak` and
    `WNDCHARM`, which takes one vector of a whole image. They are scikit-learn classifiers.

    >>> dfdl = histodict.DFDL(n_atoms=500, random_state=0).fit(X, y)  # X (n_patches, n_features)
    >>> dfdl.predict(X_new)
    >>> dfdl.dictionaries_  # (n_classes, n_atoms, n_features): atoms are patches to look at

What a model has learnt
    Atoms are its building blocks. `atom_facts` says of each who uses it, how well it alone tells
    the classes apart, and what else it tells apart; a list of `AtomFacts`. `why` tells an answer
    by them.

    >>> atoms = histodict.atom_statistics(model, "tissue.csv")
    >>> [(atom.label, atom.auc) for atom in atoms if atom.is_site_confounded]
    >>> model.explain("new.png").summary()

For other programs
    `to_anndata` and `to_spatialdata` give an image's patches, their answers, codes and atoms to
    scanpy, squidpy and whatever else reads such tables: `to_anndata(model, "new.png")`.

The command `histodict` does all this without Python: `histodict --help`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .execution.missing_chunks import allow_missing_chunks
    from .images.annotations.drawing import AnnotationFile
    from .images.annotations.matching import split_by_annotation, with_annotations
    from .images.manifest import read_manifest
    from .methods.dfdl import DFDL
    from .methods.fddl import FDDL
    from .methods.lcksvd import LCKSVD
    from .methods.nayak import Nayak
    from .methods.odl import ODL
    from .methods.shirc import SHIRC
    from .methods.src import SRC
    from .methods.wndcharm import WNDCHARM
    from .patches.patch_map import PatchMap
    from .pipeline import EnsembleClassifier, Plan, RegionDetector, TissueClassifier
    from .pipeline import load_model as load
    from .pipeline.atom_facts import AtomStatistics
    from .recipes import Recipe
    from .reports.atoms_in_use import atom_statistics
    from .spatial.objects import to_anndata, to_spatialdata

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
    "Nayak",
    "PatchMap",
    "Plan",
    "Recipe",
    "RegionDetector",
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

_HOMES = {
    "AtomStatistics": ".pipeline.atom_facts",
    "DFDL": ".methods.dfdl",
    "AnnotationFile": ".images.annotations.drawing",
    "FDDL": ".methods.fddl",
    "LCKSVD": ".methods.lcksvd",
    "Nayak": ".methods.nayak",
    "ODL": ".methods.odl",
    "EnsembleClassifier": ".pipeline",
    "PatchMap": ".patches.patch_map",
    "Plan": ".pipeline",
    "Recipe": ".recipes",
    "RegionDetector": ".pipeline",
    "SHIRC": ".methods.shirc",
    "SRC": ".methods.src",
    "TissueClassifier": ".pipeline",
    "WNDCHARM": ".methods.wndcharm",
    "allow_missing_chunks": ".execution.missing_chunks",
    "atom_statistics": ".reports.atoms_in_use",
    "split_by_annotation": ".images.annotations.matching",
    "load": ".pipeline.saving:load_model",
    "read_manifest": ".images.manifest",
    "to_anndata": ".spatial.objects",
    "to_spatialdata": ".spatial.objects",
    "with_annotations": ".images.annotations.matching",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded when asked for: importing the package does nothing else."""
    if name == "__version__":
        return import_module("importlib.metadata").version("histodict")
    if name in _HOMES:
        home, _, there = _HOMES[name].partition(":")
        return getattr(import_module(home, __name__), there or name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
