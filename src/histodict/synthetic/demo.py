"""The demonstration as one self-contained HTML page.

The demonstration: draw tissue, learn from some patients, answer for others, make a page.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import binary_erosion
from sklearn.metrics import confusion_matrix

from ..datasets.annotated import RegionMask
from ..datasets.manifest import ImageRecord, Manifest, read_manifest
from ..images.pixel_size import PixelSizeOption
from ..images.source import open_image
from ..metrics.scores import RocCurve, balanced_accuracy, roc_curve
from ..models import ImagePrediction, RegionDetector, RegionPrediction, TissueClassifier
from ..models.predictions import region_rings
from ..models.recipe import preset
from ..patches.rendering import atom_mosaics, draw_overlay, jpeg_data_uri
from ..reports.html import roc_curves_svg, write_page
from ..utils.progress import Callback, Progress, no_callback
from .dataset import cached_synthetic_dataset, write_synthetic_dataset

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


_N_IMAGES = 6
_DISPLAY_WIDTH = 640


def write_demo_page(path: Path, result: DemoResult) -> None:
    """Everything in one file: no scripts, nothing fetched."""
    write_page(path, "synthetic/page.html.j2", _content(result))


def _content(result: DemoResult) -> dict[str, Any]:
    model, counts = result.model, result.confusion
    atoms = model.model_.atoms()
    assert atoms is not None
    bases = {
        n: atoms.with_usage_sign[atoms.classes == place] for place, n in enumerate(model.classes_)
    }
    n_patches = sum(answer.n_patches for answer in result.predictions)
    return {
        "title": "histodict demonstration",
        "lead": "Made-up tissue: healthy, and inflamed with many small dark cells. The model "
        "learnt from some patients and answers for others, whose slides are stained differently.",
        "facts": [
            {"name": "balanced accuracy", "value": f"{result.balanced_accuracy:.2f}"},
            {"name": "images of unseen patients", "value": int(counts.sum())},
            {"name": "images to learn from", "value": model.training_info_["n_images"]},
        ],
        "classes": model.classes_,
        "confusion": counts.tolist(),
        "roc": roc_curves_svg("roc", {"the model": _roc(result)}),
        "images": [_image(result, place) for place in _examples(result)],
        "regions": [_regions(result, place) for place in range(len(result.findings))],
        "min_patches": result.detector.min_patches_,
        "atoms": atom_mosaics(bases, model.recipe.patch_px),
        "timing": [
            {"name": stage, "seconds": f"{seconds:.1f}"}
            for stage, seconds in result.seconds.items()
        ],
        "data": f"{n_patches} patches were classified. No patient is in both training and test.",
        "settings": f"Recipe: {model.recipe}. Seed {model.random_state}.",
    }


def _roc(result: DemoResult) -> RocCurve:
    truth, answers = result.predicted
    scores = [answer.score for answer in answers]
    return roc_curve(truth, scores, positive=result.model.classes_[1])


def _examples(result: DemoResult) -> list[int]:
    """Some images of each class in turn, wrong answers first."""
    truth = result.test.labels
    right = [answer.label == label for answer, label in zip(result.predictions, truth, strict=True)]
    by_class: dict[str, list[int]] = {}
    for place in sorted(range(len(right)), key=right.__getitem__):
        by_class.setdefault(truth[place], []).append(place)
    per_class = _N_IMAGES // len(by_class)
    return [place for places in by_class.values() for place in places[:per_class]]


def _image(result: DemoResult, place: int) -> dict[str, Any]:
    record, answer = result.test.records[place], result.predictions[place]
    assert answer.patch_map is not None
    share = round(100 * answer.proportions.get(result.model.classes_[-1], 0.0))
    picture = draw_overlay(answer.patch_map, answer.summary())
    return _display_image(picture, record, answer) | {"share": share}


def _regions(result: DemoResult, place: int) -> dict[str, Any]:
    """An image with what was found in it, and beside it what was planted."""
    record, answer = result.regions.records[place], result.findings[place]
    assert record.mask is not None
    rings = region_rings(answer)
    with open_image(record.path) as source:
        pixels = source.thumbnail(max(source.size))
        mask = RegionMask.read(record.mask, source.size).region
    border = mask & ~binary_erosion(mask, iterations=3)
    planted = np.where(border[..., None], np.uint8(0), pixels)
    found = draw_overlay(answer.patch_map, answer.summary(), rings)
    below = found.shape[0] - planted.shape[0]  # the legend
    planted = np.pad(planted, ((0, below), (0, 0), (0, 0)), constant_values=255)
    area = sum(region.area_um2 or 0 for region in answer.regions) / 1e6
    counted = f"{len(answer.regions)} region{'' if len(answer.regions) == 1 else 's'}"
    words = f"{counted}, {area:.3f} mm²" if rings else "no region"
    return _display_image(np.concatenate([planted, found], axis=1), record, answer) | {
        "found": words
    }


def _display_image(
    pixels: NDArray[np.uint8], record: ImageRecord, answer: ImagePrediction | RegionPrediction
) -> dict[str, Any]:
    """A picture at the page's width, and whether its answer is right."""
    height = round(pixels.shape[0] * _DISPLAY_WIDTH / pixels.shape[1])
    return {
        "uri": jpeg_data_uri(np.asarray(Image.fromarray(pixels).resize((_DISPLAY_WIDTH, height)))),
        "name": record.path.stem,
        "truth": record.label,
        "answer": answer.label or "no tissue",
        "right": answer.label == record.label,
    }
