"""Trained models that an experiment looks into: kept as files, trained where there is none yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from ..compare.cells import Cell
from ..execution.progress import Progress
from ..images.manifest import Manifest
from ..model_file import SUFFIX, load_model, save_model
from ..pipeline import RegionDetector, TissueClassifier
from .setting import Setting

AnyModel = TypeVar("AnyModel", TissueClassifier, RegionDetector)


def trained_classifiers(setting: Setting, cells: Sequence[Cell]) -> list[TissueClassifier]:
    """One model per cell, of the labelled images its split trains on."""

    def new(cell: Cell) -> TissueClassifier:
        return TissueClassifier(
            cell.recipe, random_state=cell.seed, n_jobs=setting.n_jobs, cache=setting.cache
        )

    return _trained(setting, setting.images, cells, new)


def trained_detectors(
    setting: Setting, manifest: Manifest, cells: Sequence[Cell]
) -> list[RegionDetector]:
    """One model per cell, of the masked images its split trains on."""

    def new(cell: Cell) -> RegionDetector:
        return RegionDetector(
            cell.recipe,
            region=setting.dataset.region,
            random_state=cell.seed,
            n_jobs=setting.n_jobs,
            cache=setting.cache,
        )

    return _trained(setting, manifest, cells, new)


def _trained(
    setting: Setting, manifest: Manifest, cells: Sequence[Cell], new: Callable[[Cell], AnyModel]
) -> list[AnyModel]:
    folder = setting.folder / "models"
    folder.mkdir(parents=True, exist_ok=True)
    made: list[AnyModel] = []
    for cell in cells:
        setting.callback(Progress("models", len(made), len(cells)))
        file = (folder / cell.file_name(manifest)).with_suffix(SUFFIX)
        if not file.is_file():
            save_model(new(cell).fit(manifest.select(cell.split.train)), file)
        # Also what was just trained is read back, so that a second run shows the same.
        made.append(cast(AnyModel, load_model(file, n_jobs=setting.n_jobs)))
    setting.callback(Progress("models", len(made), len(cells)))
    return made
