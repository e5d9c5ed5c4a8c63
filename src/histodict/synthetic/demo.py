"""Demonstration: train on synthetic tissue, predict other patients, and write an HTML page."""

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
from ..metrics.intervals import mean_interval, proportion_interval
from ..metrics.scores import RocCurve, balanced_accuracy, roc_curve
from ..models import ImagePrediction, RegionDetector, RegionPrediction, TissueClassifier
from ..models.predictions import region_rings
from ..models.recipe import preset
from ..patches.rendering import atom_mosaics, draw_overlay, jpeg_data_uri
from ..reports.html import roc_curves_svg, write_page
from ..reports.model_card import describe_settings
from ..utils.progress import Callback, Progress, no_callback
from .dataset import cached_synthetic_dataset, write_synthetic_dataset

# The default preset, reduced to take a minute and a half on two cores.
DEMO_RECIPE = preset("fast").parse_settings(
    {"n_atoms": "120", "n_iter": "12", "downsample": "1", "patches_per_class": "4000"}
)
REGION_RECIPE = DEMO_RECIPE.parse_settings({"smoothing_radius": "2", "penalty": "0.2"})
_DATASET_OPTIONS: dict[str, Any] = {"n_patients": 8, "images_per_patient": 4}
_N_TEST_PATIENTS = 4


@dataclass(frozen=True)
class DemoResult:
    """Models and predictions of the demonstration.

    Attributes
    ----------
    model : trained classifier
    test : test images
    predictions : predictions of the test images by `model`
    detector : trained region detector
    regions : images with masks of regions
    region_predictions : predictions of `regions` by `detector`
    seconds : duration of each stage in seconds, by name
    """

    model: TissueClassifier
    test: Manifest
    predictions: list[ImagePrediction]
    detector: RegionDetector
    regions: Manifest
    region_predictions: list[RegionPrediction]
    seconds: dict[str, float]

    @property
    def n_patients(self) -> int:
        """Number of patients of the test images with tissue."""
        return len(set(self.predictions_with_tissue[0].patients))

    @property
    def predictions_with_tissue(self) -> tuple[Manifest, list[ImagePrediction]]:
        """Test images with tissue, and their predictions."""
        indices = [
            index
            for index, prediction in enumerate(self.predictions)
            if prediction.top_label is not None
        ]
        return self.test.select(indices), [self.predictions[index] for index in indices]

    @property
    def confusion(self) -> NDArray[np.int64]:
        """Number of images by true class (rows) and predicted class (columns)."""
        test, predictions = self.predictions_with_tissue
        predicted = [prediction.top_label for prediction in predictions]
        counts: NDArray[np.int64] = confusion_matrix(
            test.labels, predicted, labels=self.model.class_names_
        )
        return counts

    @property
    def balanced_accuracy(self) -> float:
        """Balanced accuracy on the test images."""
        test, predictions = self.predictions_with_tissue
        return balanced_accuracy(
            test.labels, np.array([prediction.top_label for prediction in predictions])
        )


def write_demo_images(folder: Path, *, seed: int = 0) -> Path:
    """Write the images of the demonstration to a new folder.

    Parameters
    ----------
    folder : new or empty folder
    seed : random seed

    Returns
    -------
    Path
        The folder, as an absolute path.
    """
    return write_synthetic_dataset(folder, **_DATASET_OPTIONS, seed=seed)


def run_demo(folder: Path, *, seed: int = 0, callback: Callback = no_callback) -> DemoResult:
    """Run the demonstration in a folder: train on half of the patients, predict the others.

    Parameters
    ----------
    folder : folder in which the synthetic set is written to data-SEED, unless it exists
    seed : random seed
    callback : function that is called with the progress

    Returns
    -------
    DemoResult
    """
    seconds: dict[str, float] = {}

    def timed(stage: str, function: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = function()
        seconds[stage] = time.perf_counter() - started
        return result

    data = folder / f"data-{seed}"
    callback(Progress("draw", 0, 1))
    timed(
        "generating images", lambda: cached_synthetic_dataset(data, **_DATASET_OPTIONS, seed=seed)
    )
    callback(Progress("draw", 1, 1))
    manifest = read_manifest(data / "manifest.csv")
    test_patients = set(sorted(set(manifest.patients))[-_N_TEST_PATIENTS:])
    is_test = np.array([patient in test_patients for patient in manifest.patients])
    train, test = (
        manifest.select(np.flatnonzero(selected).tolist()) for selected in (~is_test, is_test)
    )
    model = TissueClassifier(DEMO_RECIPE, random_state=seed)
    timed("training", lambda: model.fit(train, callback=callback))
    predictions = timed("predicting", lambda: _predict_all(test, model.predict_one, callback))
    detector = RegionDetector(REGION_RECIPE, region="inflamed", random_state=seed)
    timed("training the region detector", lambda: detector.fit(train, callback=callback))
    regions = read_manifest(data / "regions" / "manifest.csv")
    region_predictions = timed(
        "detecting regions", lambda: _predict_all(regions, detector.predict_one, callback)
    )
    return DemoResult(model, test, predictions, detector, regions, region_predictions, seconds)


def _predict_all(manifest: Manifest, predict: Callable[..., Any], callback: Callback) -> list[Any]:
    predictions: list[Any] = []
    callback(Progress("predict", 0, len(manifest.records)))
    for record in manifest.records:
        predictions.append(predict(record.path, mpp=PixelSizeOption(table=record.mpp)))
        callback(Progress("predict", len(predictions), len(manifest.records)))
    return predictions


_N_EXAMPLE_IMAGES = 6
_DISPLAY_WIDTH = 640


def write_demo_page(path: Path, result: DemoResult) -> None:
    """Write a self-contained HTML page of the result, without scripts or external resources.

    Parameters
    ----------
    path : HTML file
    result : result of `run_demo`
    """
    write_page(path, "synthetic/page.html.j2", _page_values(result))


def _page_values(result: DemoResult) -> dict[str, Any]:
    model, counts = result.model, result.confusion
    atoms = model.model_.atoms()
    assert atoms is not None
    bases = {
        n: atoms.signed_atoms[atoms.classes == index] for index, n in enumerate(model.class_names_)
    }
    n_patches = sum(prediction.n_patches for prediction in result.predictions)
    return {
        "title": "histodict demonstration",
        "lead": (
            "Synthetic tissue: healthy, and inflamed with many small dark cells. The model was "
            "trained on some patients and tested on others. The colours of the stain differ "
            "between patients, as they do between laboratories."
        ),
        "facts": [
            {"name": "balanced accuracy", "value": f"{result.balanced_accuracy:.2f}"},
            {"name": "95 % interval by patient", "value": _accuracy_interval(result)},
            {"name": "test images", "value": int(counts.sum())},
            {"name": "unseen patients", "value": result.n_patients},
            {"name": "training images", "value": model.training_info_["n_images"]},
        ],
        "classes": model.class_names_,
        "confusion": counts.tolist(),
        "roc": roc_curves_svg("roc", {"model": _roc_curve(result)}),
        "images": [_image_values(result, index) for index in _example_indices(result)],
        "regions": [
            _region_values(result, index) for index in range(len(result.region_predictions))
        ],
        "min_patches": result.detector.min_patches_,
        "atoms": atom_mosaics(bases, model.recipe.patch_px),
        "timing": [
            {"name": stage, "seconds": f"{seconds:.1f}"}
            for stage, seconds in result.seconds.items()
        ],
        "data": f"{n_patches} patches were classified. Training and test patients are disjoint.",
        "settings": [
            *describe_settings(model.recipe, model.model_.mpp_),
            ("Seed", str(model.random_state)),
        ],
    }


def _accuracy_interval(result: DemoResult) -> str:
    """Return the 95 % interval, by patient, of the balanced accuracy as text."""
    test, predictions = result.predictions_with_tissue
    labels, patients = np.array(test.labels), np.array(test.patients)
    is_right = labels == [prediction.top_label for prediction in predictions]
    masks = [labels == name for name in result.model.class_names_]
    limits = mean_interval([proportion_interval(is_right[mask], patients[mask]) for mask in masks])
    return "not available" if limits is None else f"{limits[0]:.2f} to {limits[1]:.2f}"


def _roc_curve(result: DemoResult) -> RocCurve:
    test, predictions = result.predictions_with_tissue
    scores = [prediction.score for prediction in predictions]
    return roc_curve(test.labels, scores, positive=result.model.class_names_[1])


def _example_indices(result: DemoResult) -> list[int]:
    """Return the indices of equally many test images per true class, wrong predictions first."""
    truth = result.test.labels
    is_correct = [
        prediction.top_label == label
        for prediction, label in zip(result.predictions, truth, strict=True)
    ]
    by_class: dict[str, list[int]] = {}
    for index in sorted(range(len(is_correct)), key=is_correct.__getitem__):
        by_class.setdefault(truth[index], []).append(index)
    per_class = _N_EXAMPLE_IMAGES // len(by_class)
    return [index for indices in by_class.values() for index in indices[:per_class]]


def _image_values(result: DemoResult, index: int) -> dict[str, Any]:
    record, prediction = result.test.records[index], result.predictions[index]
    assert prediction.patch_map is not None
    percentage = round(100 * prediction.proportions.get(result.model.class_names_[-1], 0.0))
    overlay = draw_overlay(prediction.patch_map, prediction.summary())
    return _resized_image_values(overlay, record, prediction) | {"share": percentage}


def _region_values(result: DemoResult, index: int) -> dict[str, Any]:
    """Return template values of an image: true regions on the left, predicted ones on the right."""
    record, prediction = result.regions.records[index], result.region_predictions[index]
    assert record.mask is not None
    rings = region_rings(prediction)
    with open_image(record.path) as source:
        pixels = source.thumbnail(max(source.size))
        mask = RegionMask.read(record.mask, source.size).region
    border = mask & ~binary_erosion(mask, iterations=3)
    truth = np.where(border[..., None], np.uint8(0), pixels)
    overlay = draw_overlay(prediction.patch_map, "", rings)
    overlay = overlay[: truth.shape[0], : truth.shape[1]]  # without the legend: it is too small
    area = sum(region.area_um2 or 0 for region in prediction.regions) / 1e6
    count = f"{len(prediction.regions)} region{'' if len(prediction.regions) == 1 else 's'}"
    summary = f"{count}, {area:.3f} mm²" if rings else "no region"
    return _resized_image_values(np.concatenate([truth, overlay], axis=1), record, prediction) | {
        "found": summary
    }


def _resized_image_values(
    pixels: NDArray[np.uint8], record: ImageRecord, prediction: ImagePrediction | RegionPrediction
) -> dict[str, Any]:
    """Return template values of an image: resized pixels, true and predicted class."""
    height = round(pixels.shape[0] * _DISPLAY_WIDTH / pixels.shape[1])
    return {
        "uri": jpeg_data_uri(np.asarray(Image.fromarray(pixels).resize((_DISPLAY_WIDTH, height)))),
        "name": record.path.stem,
        "truth": record.label,
        "predicted": prediction.top_label or "no tissue",
        "right": prediction.top_label == record.label,
    }
