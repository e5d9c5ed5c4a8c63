"""Trained models that an experiment looks into: kept as files, trained where there is none yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from ..compare.example import trained_model
from ..compare.tasks import Task
from ..execution.progress import Progress
from ..images.manifest import Manifest
from ..pipeline import Model, RegionDetector, TissueClassifier
from .setting import Setting


def trained_classifiers(setting: Setting, tasks: Sequence[Task]) -> list[TissueClassifier]:
    """One model per task, of the labelled images its split trains on."""
    return [cast(TissueClassifier, m) for m in _trained(setting, setting.images, tasks, None)]


def trained_detectors(
    setting: Setting, manifest: Manifest, tasks: Sequence[Task]
) -> list[RegionDetector]:
    """One model per task, of the masked images its split trains on."""
    found = _trained(setting, manifest, tasks, setting.dataset.region)
    return [cast(RegionDetector, model) for model in found]


def _trained(
    setting: Setting, manifest: Manifest, tasks: Sequence[Task], region: str | None
) -> list[Model]:
    made: list[Model] = []
    for task in tasks:
        setting.callback(Progress("models", len(made), len(tasks)))
        folder = setting.folder / "models"
        made.append(trained_model(task, manifest, folder, setting.work, region))
    setting.callback(Progress("models", len(made), len(tasks)))
    return made
