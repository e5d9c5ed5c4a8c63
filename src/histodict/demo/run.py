"""The demonstration: draw tissue, learn from some patients, answer for others, make a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix

from ..evaluation.metrics import balanced_accuracy
from ..execution.progress import Callback, Progress, no_callback
from ..images.manifest import Manifest, read_manifest
from ..images.pixel_size import PixelSizeOption
from ..pipeline import ImagePrediction, RegionDetector, RegionPrediction, TissueClassifier
from ..presets import preset
from .sets import cached_synthetic_dataset, write_synthetic_dataset

# The default preset, small enough for a minute and a half on two cores.
DEMO_RECIPE = preset("fast").parse_settings(
    {"n_atoms": "120", "n_iter": "12", "downsample": "1", "patches_per_class": "4000"}
)
REGION_RECIPE = DEMO_RECIPE.parse_settings({"smoothing_radius": "2", "penalty": "0.2"})
_IMAGE_FOLDER: dict[str, Any] = {"n_patients": 8, "images_per_patient": 4}
_N_TEST_PATIENTS = 4


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration found; `seconds` per stage."""

    model: TissueClassifier
    test: Manifest
    predictions: list[ImagePrediction]
    detector: RegionDetector
    regions: Manifest
    findings: list[RegionPrediction]
    seconds: dict[str, float]

    @property
    def predicted(self) -> tuple[list[str], list[ImagePrediction]]:
        """True classes and answers of the test images; one of glass alone is left out."""
        kept = [place for place, answer in enumerate(self.predictions) if answer.label is not None]
        return self.test.select(kept).labels, [self.predictions[place] for place in kept]

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Images by true class (rows) and answer (columns)."""
        truth, answers = self.predicted
        said = [answer.label for answer in answers]
        counts: NDArray[np.int64] = confusion_matrix(truth, said, labels=self.model.classes_)
        return counts

    @property
    def balanced_accuracy(self) -> float:
        truth, answers = self.predicted
        return balanced_accuracy(truth, np.array([a.label for a in answers]))


def draw_demo(folder: Path, *, seed: int = 0) -> Path:
    """The demonstration's images in a folder of their own; one that holds files is refused."""
    return write_synthetic_dataset(folder, **_IMAGE_FOLDER, seed=seed)


def run_demo(folder: Path, *, seed: int = 0, callback: Callback = no_callback) -> DemoResult:
    """Draw the set into folder/data (once), train on half of the patients, answer for the rest."""
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        seconds[stage] = time.perf_counter() - started
        return result

    data = folder / f"data-{seed}"
    callback(Progress("draw", 0, 1))
    timed("drawing the images", lambda: cached_synthetic_dataset(data, **_IMAGE_FOLDER, seed=seed))
    callback(Progress("draw", 1, 1))
    manifest = read_manifest(data / "manifest.csv")
    held_out = set(sorted(set(manifest.patients))[-_N_TEST_PATIENTS:])
    places = np.array([patient in held_out for patient in manifest.patients])
    train, test = (manifest.select(np.flatnonzero(p).tolist()) for p in (~places, places))
    model = TissueClassifier(DEMO_RECIPE, random_state=seed)
    timed("training", lambda: model.fit(train, callback=callback))
    answers = timed("answering", lambda: _predict_all(test, model.predict_one, callback))
    detector = RegionDetector(REGION_RECIPE, region="inflamed", random_state=seed)
    timed("learning regions", lambda: detector.fit(train, callback=callback))
    regions = read_manifest(data / "regions" / "manifest.csv")
    findings = timed(
        "finding regions", lambda: _predict_all(regions, detector.predict_one, callback)
    )
    return DemoResult(model, test, answers, detector, regions, findings, seconds)


def _predict_all(manifest: Manifest, answer: Callable[..., Any], callback: Callback) -> list[Any]:
    answers: list[Any] = []
    callback(Progress("answer", 0, len(manifest.records)))
    for record in manifest.records:
        answers.append(answer(record.path, mpp=PixelSizeOption(table=record.mpp)))
        callback(Progress("answer", len(answers), len(manifest.records)))
    return answers
