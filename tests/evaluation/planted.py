"""Evaluations with planted predictions, stored as finished runs where `evaluate` reads them.

Nothing is trained, so every number in the tables and the report is known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from histodict import evaluation
from histodict.datasets.manifest import ImageRecord, Manifest, read_manifest
from histodict.evaluation import Evaluation, measures
from histodict.evaluation.runs import EvaluationTask
from histodict.model_selection.splits import Splits
from histodict.models import Plan
from histodict.models.recipe import Recipe
from histodict.utils.parallel import ExecutionOptions
from histodict.utils.text_io import write_checked_json

# (record, seed, name of the split) to label, scores, probabilities
PlantedPrediction = Callable[[ImageRecord, int, str], tuple[str, list[float], list[float]]]

# Methods of the whole image, for which no example model is trained.
PLANS = {
    "lbp-colour": Plan(Recipe(method="lbp-colour")),
    "paper:wndcharm": Plan(Recipe(method="wndcharm", stain="macenko")),
}


def write_images(
    folder: Path, classes: Sequence[str] = ("benign", "malignant"), n_patients: int = 6
) -> Manifest:
    """Write one small image per patient and class, with pixel sizes; each half of patients has a
    site."""
    lines = ["path,label,patient,site,mpp"]
    folder.mkdir(parents=True)
    for patient in range(n_patients):
        for place, label in enumerate(classes):
            name = f"p{patient}_{place}.png"
            colour = (200 - 20 * place, 90 + 10 * patient, 160)
            Image.new("RGB", (60, 40), colour).save(folder / name)
            site = "north" if patient < n_patients // 2 else "south"
            lines.append(f'{name},"{label}",p{patient},{site},0.5')
    (folder / "manifest.csv").write_text("\n".join(lines), encoding="utf-8")
    return read_manifest(folder)


def evaluate_planted(
    manifest: Manifest,
    splits: Splits,
    folder: Path,
    predictions: dict[str, PlantedPrediction],
    *,
    seeds: Sequence[int] = (0,),
) -> Evaluation:
    """Evaluate planted predictions by method."""
    plans = {name: PLANS[name] for name in predictions}
    (folder / "runs").mkdir(parents=True)
    for method, predict in predictions.items():
        for split in splits:
            for seed in seeds:
                task = EvaluationTask(method, plans[method], split, seed)
                tested = manifest.select(split.test).records
                content = _content([predict(record, seed, split.name) for record in tested])
                key = task.create_run(manifest, ExecutionOptions()).key
                write_checked_json(folder / "runs" / f"{key}.json", content)
    with patch.object(measures, "N_REPLICATES", 100):  # sufficient to compare results
        return evaluation.evaluate(
            manifest, plans, splits, folder, seeds=seeds, execution=ExecutionOptions(n_jobs=1)
        )


def prediction_set(label: str) -> list[str]:
    """Return the prediction set of an image with probabilities."""
    return [label]


def _content(predictions: list[tuple[str, list[float], list[float]]]) -> dict[str, Any]:
    labels, scores, probabilities = (list(column) for column in zip(*predictions, strict=True))
    return {
        "labels": labels,
        "scores": scores,
        "probabilities": probabilities,
        "prediction_sets": [prediction_set(label) if p else [] for label, _, p in predictions],
        "seconds": {"train": 2.0, "test": 0.5 * len(labels)},
        "peak_mib": 123.4,
    }


def wrong_for(*names: str) -> PlantedPrediction:
    """Two classes: correct except for images of these names; scores are ±1 from the threshold."""

    def predict(record: ImageRecord, seed: int, split: str) -> tuple[str, list[float], list[float]]:
        truly = record.path.stem.endswith("_1")
        second = truly != (record.path.stem in names)
        label = {True: "malignant", False: "benign"}[second]
        return label, [1.0 if second else -1.0], []

    return predict


def one_hot(place: int, n: int) -> list[float]:
    return np.eye(n)[place].tolist()
