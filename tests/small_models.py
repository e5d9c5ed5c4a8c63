"""Small models of every kind, trained on synthetic tissue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from histodict.datasets.manifest import Manifest, read_manifest
from histodict.models import EnsembleClassifier, Model, Plan, RegionDetector, TissueClassifier
from histodict.models.recipe import Recipe
from histodict.synthetic.dataset import write_synthetic_dataset

_DFDL = Recipe(
    "dfdl",
    {"penalty": 0.4, "n_atoms": 6, "n_iter": 2, "n_nonzero": 3},
    patch_px=8,
    patches_per_class=80,
    augment_patches=True,
    stain="reinhard",
    features="centred",
    aggregation="margin",
)
_LCKSVD = replace(_DFDL, method="lcksvd")
_TEXTURES = replace(_DFDL, method="lbp-colour", method_parameters={"kernel": "linear"})
_REGIONS = replace(_DFDL, stain="none", aggregation="proportion", smoothing_radius=1)


def _classifier(recipe: Recipe, images: Manifest) -> Model:
    return TissueClassifier(recipe, random_state=1, n_jobs=1).fit(images)


def _three_classes(images: Manifest) -> Model:
    """Train on the inflamed images in two classes, one for each of a patient's images."""
    records = [
        replace(record, label=f"inflamed {place % 2}") if record.label == "inflamed" else record
        for place, record in enumerate(images.records)
    ]
    return _classifier(_DFDL, replace(images, records=tuple(records)))


def _adapted(images: Manifest) -> Model:
    model = TissueClassifier(_TEXTURES, random_state=1, n_jobs=1).fit(images)
    scores = [model.predict_one(record.path, mpp=record.mpp).score for record in images.records]
    return model.adapt_threshold(scores, force=True)


def _continued(images: Manifest) -> Model:
    first = _classifier(_DFDL, images)
    return TissueClassifier(_DFDL, random_state=1, n_jobs=1).fit(images, start_from=first)


def _ensemble(images: Manifest) -> Model:
    plan = Plan(replace(_DFDL, aggregation="margin-and-codes"), calibration_folds=2, ensemble=True)
    return plan.build_model(random_state=1, n_jobs=1).fit(images)


TRAIN: dict[str, Callable[[Manifest], Model]] = {
    "dfdl": partial(_classifier, _DFDL),
    "surroundings": partial(_classifier, replace(_DFDL, context_scale=2)),
    "components": partial(_classifier, replace(_DFDL, n_components=6, whiten=True)),
    "lcksvd": partial(_classifier, _LCKSVD),
    "textures": partial(_classifier, _TEXTURES),
    "three": _three_classes,
    "adapted": _adapted,
    "continued": _continued,
    "regions": lambda images: RegionDetector(
        _REGIONS, region="inflamed", random_state=1, n_jobs=1
    ).fit(images),
    "calibrated": lambda images: EnsembleClassifier([_DFDL], folds=2, random_state=1, n_jobs=1).fit(
        images
    ),
    "ensemble": _ensemble,
}


class SmallModels:
    """Files of small models, each trained on its first use.

    Attributes
    ----------
    tissue : folder of the 12 training images, of 6 patients, with their manifest
    images : two of them
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.tissue = write_synthetic_dataset(folder / "tissue", 6, 2, size=(160, 120), seed=5)
        self.images = [record.path for record in self._manifest.records[:2]]
        self.model = cache(self._model)
        self.path = cache(self._path)

    @property
    def _manifest(self) -> Manifest:
        return read_manifest(self.tissue / "manifest.csv")

    def _model(self, kind: str) -> Model:
        """Train a model of a kind in `TRAIN`."""
        return TRAIN[kind](self._manifest)

    def _path(self, kind: str) -> Path:
        """Return the file of a model of a kind in `TRAIN`."""
        return self.model(kind).save(self._folder / f"{kind}.histodict")
