"""Tables and descriptions of an evaluation: data, protocol, confusion matrices and errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets.manifest import ImageRecord
from ..encoders import get_patch_features
from ..evaluation import Evaluation
from ..evaluation.measures import dice, evaluate_patches
from ..evaluation.runs import UNLABELLED_SUFFIX, EvaluationResult
from ..images.pixel_size import PixelSizeOption
from ..images.source import open_image
from ..model_selection.splits import shared_patients
from ..models import NO_TISSUE_LABEL, Plan
from ..models.inputs import region_patch_mask
from ..models.predictions import describe_label
from ..models.recipe import Recipe
from ..patches.patch_map import NO_TISSUE, PatchMap, Ring
from ..patches.rendering import draw_overlay, jpeg_data_uri
from ..utils.text_io import Row, pluralize

DISPLAY_PX = 300  # longer side of displayed images
# Pages with more images open slowly; further images are listed by name.
_MAX_ERROR_IMAGES = 150


@dataclass(frozen=True)
class ImageResult:
    """Prediction of one image by one trained model.

    Attributes
    ----------
    position : position of the image in the manifest
    record : image
    method : name of the method
    label : predicted class
    result : result of the run
    run_index : index of the image among the test images of the run
    """

    position: int
    record: ImageRecord
    method: str
    label: str
    result: EvaluationResult
    run_index: int

    @property
    def is_wrong(self) -> bool:
        """Whether the predicted class differs from the true one."""
        return self.label != self.record.label

    @property
    def label_text(self) -> str:
        """Predicted class, or "uncertain (best guess: CLASS)"."""
        predicted = self.result.predictions
        is_uncertain = (
            bool(predicted.probabilities[self.run_index])
            and len(predicted.prediction_sets[self.run_index]) != 1
        )
        return describe_label(self.label, is_uncertain)

    @property
    def model_name(self) -> str:
        """Method, split and seed of the model that made the prediction."""
        task = self.result.task
        return f"{task.method}, {task.split.name}, seed {task.seed}"


def select_displayed_results(evaluation: Evaluation) -> list[ImageResult]:
    """Return the test predictions at the largest training set size, of methods without failures."""
    methods, size = evaluation.methods, evaluation.shown_size
    return [
        ImageResult(
            position,
            evaluation.manifest.records[position],
            task.method,
            result.predictions.labels[i],
            result,
            i,
        )
        for result, task in ((result, result.task) for result in evaluation.results)
        if task.method in methods and task.split.n_per_class == size
        for i, position in enumerate(task.split.test)
    ]


# --- confusion matrices -------------------------------------------------------------------------


def confusion_matrices(
    evaluation: Evaluation, predictions: Sequence[ImageResult]
) -> list[dict[str, Any]]:
    """Return a confusion matrix of the images per method, summed over repeats and seeds.

    Each matrix is a dict with the keys "method", "predicted_classes" (names of the columns) and
    "counts", a list of rows by true class.
    """
    counts = Counter((each.method, each.record.label, each.label) for each in predictions)
    matrices = []
    for method in evaluation.methods:
        has_background = any(
            (method, truth, NO_TISSUE_LABEL) in counts for truth in evaluation.classes
        )
        labels = [*evaluation.classes, NO_TISSUE_LABEL] if has_background else evaluation.classes
        table = [[counts[method, truth, label] for label in labels] for truth in evaluation.classes]
        matrices.append({"method": method, "predicted_classes": labels, "counts": table})
    return matrices


def confusion_rows(evaluation: Evaluation, matrices: list[dict[str, Any]]) -> list[Row]:
    """Return a table row for each method, true class and predicted class."""
    return [
        {"method": matrix["method"], "truth": truth, "label": label, "n_predictions": n_predictions}
        for matrix in matrices
        for truth, counts in zip(evaluation.classes, matrix["counts"], strict=True)
        for label, n_predictions in zip(matrix["predicted_classes"], counts, strict=True)
    ]


# --- images and patients ------------------------------------------------------------------------


def error_rows(evaluation: Evaluation, predictions: Sequence[ImageResult]) -> list[Row]:
    """Return a table row for each image and each method that misclassified it at least once."""
    rows = []
    for results in _group_predictions(predictions, lambda result: result.position):
        record = results[0].record
        for method in dict.fromkeys(result.method for result in results if result.is_wrong):
            labels, n_wrong, n_predictions = _count_errors(results, method)
            rows.append(
                {
                    "patient": record.patient,
                    "image": evaluation.manifest.name(record),
                    "truth": record.label,
                    "method": method,
                    "n_predictions": n_predictions,
                    "n_wrong": n_wrong,
                    "wrong_labels": labels,
                }
            )
    return rows


def patient_errors(
    evaluation: Evaluation, predictions: Sequence[ImageResult]
) -> list[dict[str, Any]]:
    """Return template values of the patients with errors, most errors first.

    "counts" has the numbers of errors and of predictions for each method, and "images" the template
    values of each misclassified image.
    """
    patients = _group_predictions(predictions, lambda result: result.record.patient)
    n_cards = count(1)
    rows = []
    for results in sorted(
        patients, key=lambda results: -sum(result.is_wrong for result in results)
    ):
        images = _group_predictions(results, lambda result: result.position)
        wrong = [image for image in images if any(result.is_wrong for result in image)]
        cards = [
            _image_values(evaluation, image, next(n_cards) <= _MAX_ERROR_IMAGES) for image in wrong
        ]
        counts = [_count_errors(results, method)[1:] for method in evaluation.methods]
        patient = results[0].record.patient
        rows.append(
            {"patient": patient, "n_images": len(images), "counts": counts, "images": cards}
        )
    return [row for row in rows if row["images"]]


def _group_predictions(
    predictions: Sequence[ImageResult], key: Callable[[ImageResult], object]
) -> list[list[ImageResult]]:
    """Group the predictions by `key`, in the order of the manifest."""
    groups: dict[object, list[ImageResult]] = {}
    for result in sorted(predictions, key=lambda result: result.position):
        groups.setdefault(key(result), []).append(result)
    return list(groups.values())


def _count_errors(predictions: Sequence[ImageResult], method: str) -> tuple[str, int, int]:
    """Return the wrong labels of a method as text, and its numbers of errors and predictions."""
    of_method = [result for result in predictions if result.method == method]
    wrong = [result.label_text for result in of_method if result.is_wrong]
    return ", ".join(sorted(set(wrong))), len(wrong), len(of_method)


def _image_values(
    evaluation: Evaluation, predictions: Sequence[ImageResult], with_image: bool
) -> dict[str, Any]:
    record = predictions[0].record
    errors = {method: _count_errors(predictions, method) for method in evaluation.methods}
    uri, map_uri, map_of = _draw_image_and_map(predictions) if with_image else (None, None, None)
    return {
        "name": evaluation.manifest.name(record),
        "truth": record.label,
        "predictions": [
            f"{method}: {labels} (wrong in {n} of {pluralize(of, 'prediction')})"
            for method, (labels, n, of) in errors.items()
            if n
        ],
        "uri": uri,
        "map_uri": map_uri,
        "map_of": map_of,
    }


def _draw_image_and_map(predictions: Sequence[ImageResult]) -> tuple[str, str | None, str | None]:
    """Return data URIs of an image and of its patch map, and the name of the model of the map.

    The map comes from the first wrong prediction that has a map. If there is none, the URI of the
    map and the name of the model are None.
    """
    record = predictions[0].record
    with open_image(record.display_image) as source:
        pixels = source.thumbnail(min(DISPLAY_PX, max(source.size)))
        uri = jpeg_data_uri(pixels, quality=82)
    for result in (result for result in predictions if result.is_wrong):
        patch_map = result.result.predictions.load_map(result.run_index)
        if patch_map is not None:
            score = max(result.result.predictions.scores[result.run_index])
            caption = f"{result.label_text}, score {score:+.2f}"
            patch_map = replace(patch_map, path=record.path)
            shown = patch_map.align_if_possible(record.image) if record.image else patch_map
            overlay = draw_overlay(shown, caption, longest_side=DISPLAY_PX)
            return uri, jpeg_data_uri(overlay, quality=82), result.model_name
    return uri, None, None


NOT_RECORDED = "not recorded"
SummaryRow = tuple[str, str]  # heading and text


# --- phrases ------------------------------------------------------------------------------------


def format_range(values: Iterable[int], noun: str) -> str:
    """Format the range of the values with their noun, such as "3 to 5 images"."""
    low, *_, high = sorted([*values] * 2)
    return pluralize(high, noun) if low == high else f"{low} to {high} {noun}s"


def join_items(values_by_name: Mapping[str, Any]) -> str:
    """Format a mapping as "name value, name value"."""
    return ", ".join(f"{name} {value}" for name, value in values_by_name.items())


def format_interval(row: Row) -> str:
    """Format the numbers "value", "low" and "high" of a row as a value with its interval."""
    return f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def describe_plan(plan: Plan) -> str:
    """Describe the settings of a plan on one line."""
    text = describe_recipe(plan.recipe)
    others = plan.recipes[1:]
    if others:
        members = [f"{o.method} (stain correction {o.stain}, {describe_scale(o)})" for o in others]
        models = pluralize(len(others), "other base model")
        text += f"; ensemble with {models}: {', '.join(members)}"
    return text


def describe_recipe(recipe: Recipe) -> str:
    """Describe the settings of a recipe on one line; patch settings only if it uses patches."""
    parameters = join_items(recipe.method_parameters)
    parts = [
        parameters or "no parameters",
        describe_scale(recipe),
        f"stain correction {recipe.stain}",
    ]
    if get_patch_features(recipe.features).is_precomputed:
        parts[1:] = ["vectors from feature files"]
        parts += [f"aggregation={recipe.aggregation}"] if recipe.is_patch_level else []
    elif recipe.is_patch_level:
        patches = f"patches of {recipe.patch_px} px every {recipe.grid_stride_px} px"
        if recipe.context_scale > 1:
            patches += f" with surroundings {recipe.context_scale} times as wide"
        if recipe.quality_filters != "none":
            patches += f" without {recipe.quality_filters.replace(',', ', ')}"
        if recipe.smoothing_radius:
            distance = pluralize(recipe.smoothing_radius, "grid step")
            patches += f", margins averaged over neighbours up to {distance} away"
        parts += [patches, f"vectors {recipe.features}", f"aggregation={recipe.aggregation}"]
        parts += [f"at most about {recipe.patches_per_class} training patches per class"]
    return "; ".join(parts)


def describe_scale(recipe: Recipe) -> str:
    """Describe the scale at which images are analysed."""
    if recipe.mpp:
        return f"{recipe.mpp:g} µm per pixel"
    if recipe.downsample <= 1:
        return "full resolution"
    return f"width and height reduced by a factor of {recipe.downsample:g}"


def selection_warnings(evaluation: Evaluation) -> list[str]:
    """Return warnings about optimistic scores of the best method and of adapted thresholds."""
    warnings = []
    n_methods = len(evaluation.methods)
    if n_methods > 1:
        warnings.append(
            f"If the best of {n_methods} methods is chosen by these scores, its score is too "
            "optimistic. Test it on further patients."
        )
    adapted = [name for name in evaluation.methods if name.endswith(UNLABELLED_SUFFIX)]
    if adapted:
        warnings.append(
            f"The threshold of {' and '.join(adapted)} was adapted to the test images without "
            "their labels. In use, it needs the same number of unlabelled images from each new "
            "hospital."
        )
    return warnings


# --- data and protocol --------------------------------------------------------------------------


def data_summary(evaluation: Evaluation) -> list[SummaryRow]:
    """Return (heading, text) rows on the images, patients, classes, sites and pixel sizes."""
    records = evaluation.manifest.records
    patients = "unknown"
    if not has_unknown_patients(evaluation):
        per_patient = Counter(evaluation.manifest.patients)
        n_images = format_range(per_patient.values(), "image")
        patients = f"{len(per_patient)}, with {n_images} each"
    sites = sorted({record.site for record in records if record.site})
    pixel_sizes = [PixelSizeOption(table=record.mpp).resolve(record.path).mpp for record in records]
    scales = sorted({mpp for mpp in pixel_sizes if mpp})
    n_unscaled = pixel_sizes.count(None)
    sizes = ", ".join(f"{mpp:g} µm" for mpp in scales)
    if n_unscaled and scales:
        sizes += f"; {NOT_RECORDED} for {pluralize(n_unscaled, 'image')}"
    return [
        ("Images", f"{len(records)}"),
        ("Patients", patients),
        ("Classes", ", ".join(evaluation.classes)),
        *([("Positive class", evaluation.classes[1])] if len(evaluation.classes) == 2 else []),
        ("Sites", f"{len(sites)}: {', '.join(sites)}" if sites else NOT_RECORDED),
        ("Pixel size", sizes or NOT_RECORDED),
    ]


def class_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the numbers of images, patients and sites of each class.

    The number of patients is "unknown" if an image of the evaluation has no patient.
    """
    rows: list[dict[str, Any]] = []
    for name in evaluation.classes:
        records = [record for record in evaluation.manifest.records if record.label == name]
        sites = {record.site for record in records if record.site}
        n_patients = len({record.patient for record in records})
        patients = "unknown" if has_unknown_patients(evaluation) else n_patients
        rows.append(
            {"name": name, "images": len(records), "patients": patients, "sites": len(sites)}
        )
    return rows


def has_unknown_patients(evaluation: Evaluation) -> bool:
    """Return whether an image has no patient, so that it counts as a separate patient."""
    return not all(record.has_patient for record in evaluation.manifest.records)


def tested_images(evaluation: Evaluation) -> list[ImageRecord]:
    """Return the images that were tested at least once."""
    positions = sorted({position for split in evaluation.splits for position in split.test})
    return [evaluation.manifest.records[position] for position in positions]


def tested_patients(evaluation: Evaluation) -> set[str]:
    """Return the patients that were tested at least once."""
    return {record.patient for record in tested_images(evaluation)}


def describe_tested_patients(evaluation: Evaluation) -> str:
    """Return a text such as "6 patients", or "unknown patients" if an image has no patient."""
    if has_unknown_patients(evaluation):
        return "unknown patients"
    return pluralize(len(tested_patients(evaluation)), "patient")


def is_split_by_image(evaluation: Evaluation) -> bool:
    """Return whether a split is by image, so that training and test set may share patients."""
    return any(split.unit == "image" for split in evaluation.splits)


def count_shared_patients(evaluation: Evaluation) -> int:
    """Count the patients who are in both the training set and the test set of a split."""
    shared = (shared_patients(evaluation.manifest, split) for split in evaluation.splits)
    return len(set().union(*shared))


def protocol_summary(evaluation: Evaluation) -> list[SummaryRow]:
    """Return (heading, text) rows on the protocol and the sizes of training and test sets."""
    unit = "patients; no patient is in both training and test set"
    if is_split_by_image(evaluation):
        unit = "images, NOT patients"
    elif has_unknown_patients(evaluation):
        unit = "patients; images without a patient count as separate patients"
    n_splits, n_seeds, n_methods = (
        len(evaluation.splits),
        len(evaluation.seeds),
        len(evaluation.plans),
    )
    return [
        ("Split by", unit),
        ("Protocol", _protocol_text(evaluation)),
        ("Training sets", f"each with {describe_set_sizes(evaluation, 'train')}"),
        ("Test sets", f"each with {describe_set_sizes(evaluation, 'test')}"),
        (
            "Trainings",
            f"{n_splits * n_seeds * n_methods}: {pluralize(n_splits, 'split')}, "
            f"{pluralize(n_seeds, 'seed')}, {pluralize(n_methods, 'method')}",
        ),
    ]


def _protocol_text(evaluation: Evaluation) -> str:
    protocol = evaluation.splits.protocol
    repeats = pluralize(len({split.repeat for split in evaluation.splits}), "repeat")
    sizes = ", ".join(str(size) for size in evaluation.sizes())
    descriptions = {
        "k-fold": f"{protocol.get('n_folds')} folds; every image is tested once; {repeats}",
        "hold-out": f"one half for testing, {sizes} images per class of the "
        f"other half for training; {repeats}",
        "leave-one-site-out": "each site in turn is the test set, all others are the training set",
        "predefined": "the split in the image table",
    }
    kind = str(protocol.get("kind", NOT_RECORDED))
    return f"{kind}: {descriptions[kind]}" if kind in descriptions else kind


def describe_set_sizes(evaluation: Evaluation, subset: str) -> str:
    """Describe the numbers of images and patients in the training or test sets.

    `subset` is "train" or "test".
    """
    positions = [split.train if subset == "train" else split.test for split in evaluation.splits]
    images = format_range(map(len, positions), "image")
    if has_unknown_patients(evaluation):
        return f"{images} of unknown patients"
    n_patients = [
        len({evaluation.manifest.records[i].patient for i in indices}) for indices in positions
    ]
    return f"{images} of {format_range(n_patients, 'patient')}"


_MAX_REGION_IMAGES = 24  # images shown with a patch map; the table has all images


@dataclass(frozen=True)
class RegionResult:
    """Prediction of one image, with the confusion counts of its patches.

    Attributes
    ----------
    prediction : prediction of the image
    counts : (4,), number of patches: true positives, false negatives, false positives, true
        negatives
    """

    prediction: ImageResult
    counts: NDArray[np.int64]

    @property
    def n_wrong(self) -> int:
        """Number of false negative and false positive patches."""
        return int(self.counts[1] + self.counts[2])


def region_results(predictions: Sequence[ImageResult]) -> list[RegionResult]:
    """Return the predictions with the confusion counts of their patches."""
    return [
        RegionResult(p, evaluate_patches(p.result, p.run_index, p.record).confusion_counts())
        for p in predictions
    ]


def patch_confusion_matrices(
    evaluation: Evaluation, results: Sequence[RegionResult]
) -> list[dict[str, Any]]:
    """Return a confusion matrix of the patches per method, as in `confusion_matrices`."""
    matrices = []
    for method in evaluation.methods:
        hits, misses, alarms, rest = _sum_counts(results, method).tolist()
        counts = [[rest, alarms], [misses, hits]]
        matrices.append(
            {"method": method, "predicted_classes": evaluation.classes, "counts": counts}
        )
    return matrices


def patch_error_rows(evaluation: Evaluation, results: Sequence[RegionResult]) -> list[Row]:
    """Return a table row per image and method with patch counts, summed over repeats and seeds."""
    rows = []
    for of_image in _group_by_image(results):
        record = of_image[0].prediction.record
        for method in evaluation.methods:
            hits, misses, alarms, rest = (total := _sum_counts(of_image, method)).tolist()
            rows.append(
                {
                    "patient": record.patient,
                    "image": evaluation.manifest.name(record),
                    "truth": record.label,
                    "method": method,
                    "n_patches": hits + misses + alarms + rest,
                    "misses": misses,
                    "false_alarms": alarms,
                    "Dice": dice(total),
                }
            )
    return rows


def image_errors(evaluation: Evaluation, results: Sequence[RegionResult]) -> list[dict[str, Any]]:
    """Return template values of all images, sorted by decreasing number of wrong patches.

    Only the first images include their patch map.
    """
    images = sorted(
        _group_by_image(results), key=lambda of_image: -sum(result.n_wrong for result in of_image)
    )
    return [
        _region_image_values(evaluation, of_image, rank < _MAX_REGION_IMAGES)
        for rank, of_image in enumerate(images)
    ]


def _region_image_values(
    evaluation: Evaluation, results: Sequence[RegionResult], with_image: bool
) -> dict[str, Any]:
    record = results[0].prediction.record
    totals = {method: _sum_counts(results, method) for method in evaluation.methods}
    return {
        "name": evaluation.manifest.name(record),
        "patient": record.patient,
        "predictions": {method: _describe_counts(total) for method, total in totals.items()},
        "uri": _draw_region_map(results[0].prediction) if with_image else None,
        "map_of": results[0].prediction.model_name,
    }


def _describe_counts(counts: NDArray[np.int64]) -> str:
    value = dice(counts)
    agreement = "no region, none found" if value is None else f"Dice {value:.3f}"
    return (
        f"{agreement}; {counts[1]} missed and {counts[2]} false positive patches of {counts.sum()}"
    )


def _draw_region_map(result: ImageResult) -> str:
    """Return the patch map, with outlines of the patches in the true region, as a data URI."""
    stored_map = result.result.predictions.load_map(result.run_index)
    assert stored_map is not None  # its patches were counted
    patch_map = replace(stored_map, path=result.record.path)
    caption = f"{result.label}; outline: true region"
    rings = _outline_true_regions(result, patch_map)
    overlay = draw_overlay(patch_map, caption, rings, longest_side=DISPLAY_PX)
    return jpeg_data_uri(overlay, quality=82)


def _outline_true_regions(result: ImageResult, patch_map: PatchMap) -> list[Ring]:
    truth = region_patch_mask(result.record, patch_map)
    classes = np.where(patch_map.predicted_classes == NO_TISSUE, NO_TISSUE, truth).astype(np.int16)
    regions = replace(patch_map, predicted_classes=classes).regions(1, 1)
    return [ring for _, _, polygons in regions for polygon in polygons for ring in polygon]


def _sum_counts(results: Sequence[RegionResult], method: str) -> NDArray[np.int64]:
    tables = [result.counts for result in results if result.prediction.method == method]
    total: NDArray[np.int64] = np.sum(tables, axis=0)
    return total


def _group_by_image(results: Sequence[RegionResult]) -> list[list[RegionResult]]:
    """Group the results by image, in the order of the manifest.

    The order of the results of one image does not change.
    """
    groups: dict[int, list[RegionResult]] = {}
    for result in sorted(results, key=lambda result: result.prediction.position):
        groups.setdefault(result.prediction.position, []).append(result)
    return list(groups.values())
