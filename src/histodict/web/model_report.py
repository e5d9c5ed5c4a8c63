"""Reports on a model: scores with intervals by patient, HTML report, comparison with the parent.

A row is the JSON object of a test image in the results of a job: image, label, prediction. Two
models are compared on the images that both were tested on, with the labels of the later model, so
that corrected labels do not count as an improvement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.manifest import ImageRecord, Manifest
from ..decision.threshold import TUNED_IMAGES_NOTE, describe_tuning
from ..evaluation.measures import OVERLAP_METRICS
from ..explain.patch_sample import PatchSample
from ..images.pixel_size import PixelSize, size_warnings
from ..metrics.intervals import (
    MIN_PATIENTS,
    Metric,
    Proportion,
    bootstrap_interval,
    few_patients_warning,
    mean_interval,
    paired_bootstrap,
    proportion_interval,
)
from ..metrics.scores import balanced_accuracy, roc_curve, sensitivity, specificity
from ..model_selection.protocols import Repeat
from ..models import Model
from ..models.predictions import Prediction, describe_label, region_rings
from ..patches.rendering import atom_mosaics, draw_overlay, jpeg_data_uri
from ..reports.atoms_page import AtomReportData, atom_rows
from ..reports.evaluation_tables import SummaryRow
from ..reports.html import write_page
from ..reports.model_card import describe_model
from ..utils.text_io import pluralize
from .jobs import Job
from .maps import apply_threshold, load_map, load_or_compute, pooled_overlap
from .patch_explanation import NO_TISSUE_MESSAGE
from .schema import (
    AccuracyDifference,
    ClassScore,
    ComparedImage,
    Correction,
    CorrectionStatus,
    Interval,
    Json,
    ParentComparison,
    ScoreSummary,
    UsedCorrection,
)
from .training import manifest_from_request

Rows = Sequence[Mapping[str, Any]]  # test images with their predictions


def summarize_scores(
    classes: Sequence[str], rows: Rows, min_patches: float | None = None
) -> ScoreSummary:
    """Return the scores of a model on test images, with intervals by patient.

    Parameters
    ----------
    classes : classes of the model
    rows : rows of the test images that have a prediction
    min_patches : minimum number of connected patches of a region, for models that find regions
    """
    proportions = {name: p for name in classes if (p := _class_proportion(name, rows))}
    known = [proportions[name] for name in classes if name in proportions]
    of_classes = [row for row in rows if row["label"] in classes]
    # Images of unknown classes count in the mean; their predictions are always wrong.
    has_all_classes = {row["label"] for row in rows} == set(classes)
    balanced = mean_interval(known) if has_all_classes else None
    return {
        "classes": [_class_score(name, fraction) for name, fraction in proportions.items()],
        "balanced": None if balanced is None else _make_interval(*balanced),
        "few_patients": few_patients_warning(
            (row["label"] for row in of_classes), (row["patient"] for row in of_classes)
        ),
        "overlap": {} if min_patches is None else _overlap_intervals(rows, min_patches),
    }


def _class_proportion(name: str, rows: Rows) -> Proportion | None:
    """Return the proportion of correctly predicted images of a class; None without images."""
    class_rows = [row for row in rows if row["label"] == name]
    if not class_rows:
        return None
    return proportion_interval(
        [r["answer"] == name for r in class_rows], [r["patient"] for r in class_rows]
    )


def _class_score(name: str, fraction: Proportion) -> ClassScore:
    low, high = fraction.low, fraction.high
    return {
        "name": name,
        "n_right": fraction.n_correct,
        "n_images": fraction.n_images,
        "n_patients": fraction.n_patients,
        "interval": None if low is None or high is None else _make_interval(low, high),
    }


def _make_interval(low: float, high: float) -> Interval:
    return {"low": low, "high": high}


def _overlap_intervals(rows: Rows, min_patches: float) -> dict[str, Interval | None]:
    """Return the intervals of Dice and IoU, by name, for regions of at least `min_patches` patches.

    The dictionary is empty if the overlap of an image is unknown.
    """
    index, overlaps = round(min_patches) - 1, [row.get("overlap") for row in rows]
    patients = np.array([str(row["patient"]) for row in rows])
    if not overlaps or any(counts is None or not 0 <= index < len(counts) for counts in overlaps):
        return {}
    tables = np.array([[*counts[index], 0] for counts in overlaps if counts])
    repeat = Repeat(np.full(len(tables), "image"), patients, tables)
    return {name: _bootstrap_interval(metric, repeat) for name, metric in OVERLAP_METRICS.items()}


def _bootstrap_interval(metric: Metric, repeat: Repeat) -> Interval | None:
    if len(set(repeat.patients)) < MIN_PATIENTS:
        return None
    try:
        interval = bootstrap_interval(metric, [repeat])
    except ValueError:  # the metric is undefined on these patients or on nearly all draws
        return None
    return _make_interval(interval.low, interval.high)


def describe_interval(interval: Interval | None) -> str:
    """Format a confidence interval, or the reason why there is none."""
    if interval is None:
        return "no interval, too few patients"
    return f"95 % interval by patient {interval['low']:.2f} to {interval['high']:.2f}"


# --- two models on the same images ----------------------------------------------------------------


def accuracy_difference(
    rows: Sequence[ComparedImage], patients: Sequence[str]
) -> AccuracyDifference | None:
    """Return the increase in accuracy from the parent model, with its interval.

    Return None if there are too few patients.

    Parameters
    ----------
    rows : test images with the predictions of both models
    patients : patient of each image
    """
    if len(set(patients)) < MIN_PATIENTS:
        return None
    patient_of_image, images = np.array(patients), np.full(len(rows), "image")
    now, before = (
        Repeat(images, patient_of_image, np.array([row[key] == row["label"] for row in rows]))
        for key in ("answer", "answer_before")
    )
    comparison = paired_bootstrap(lambda _, is_right: float(np.mean(is_right)), [now], [before])
    return {"value": comparison.difference, "low": comparison.low, "high": comparison.high}


_N_EXAMPLES = 6  # images with maps in the report
_UNTESTED = "none: the accuracy is unknown"
_STATUS_LABELS: dict[CorrectionStatus, str] = {
    "learnt": "used for training",
    "truth": "used as true labels of test images",
    "unused": "not used, as the patient is in the test set",
    "left out": "excluded images",
    "gone": "of missing images",
}
_MAX_SHOWN_ATOMS = 8  # of each class, shown with the patches that use them


def model_card(
    model: Model, header: Mapping[str, Any], request: Json, results: Mapping[str, Any] | None
) -> list[SummaryRow]:
    """Return (name, value) pairs that describe a model.

    Parameters
    ----------
    model : model at its current threshold
    header : header of the model file
    request : training request of the model
    results : results of the test images; None if there are none
    """
    rows = results["images"] if results else []
    n_tested = len({row["patient"] for row in rows if row["answer"] is not None})
    card = dict(describe_model(header)) | {
        "Decision": model.describe_decision(),
        "Changed after training": describe_tuning(model.training_info_),
        "Test set": pluralize(n_tested, "other patient") if n_tested else _UNTESTED,
        "Corrections": _corrections_text(applied_corrections(request)),
    }
    if request["n_shapes"]:
        n_images = manifest_from_request(request).n_images
        card["Annotations"] = (
            f"{pluralize(request['n_shapes'], 'shape')} on {pluralize(n_images, 'image')}; only "
            "annotated tissue was used for training and test"
        )
    return [(name, value) for name, value in card.items() if value]


def _corrections_text(corrections: Sequence[UsedCorrection]) -> str:
    """Describe the number of corrections for each effect on the training."""
    counts = Counter(c["use"] for c in corrections)
    parts = [
        f"{counts[status]} {label}" for status, label in _STATUS_LABELS.items() if counts[status]
    ]
    return f"{len(corrections)} by the user: {', '.join(parts)}" if parts else "none"


@dataclass(frozen=True)
class StoredPredictions:
    """Test images of a model and the folder of their stored predictions.

    Attributes
    ----------
    records : test images by id
    folder : folder of stored predictions
    mpp : µm per pixel if neither a table nor the file gives it
    model : model of the predictions, at its trained threshold
    """

    records: Mapping[str, ImageRecord]
    folder: Path
    mpp: float | None
    model: Model

    def load(self, image: str, changed_model: Model) -> Prediction:
        """Return the prediction of an image (id), with map, at the threshold of `changed_model`.

        It is computed if it is not stored.
        """
        record = self.records[image]
        stored = load_or_compute(self.model, record, self.folder, self.mpp)
        patch_map = load_map(self.folder, record, self.mpp)
        return apply_threshold(changed_model, stored, patch_map, record.path)


def pixel_size_warnings(model: Model, rows: list[Json]) -> list[str]:
    """Return warnings about pixel sizes of test images that are unknown or differ from training."""
    # Images without a prediction have no pixel size.
    sizes = [PixelSize(row["mpp"], row["mpp_from"]) for row in rows if "mpp_from" in row]
    return size_warnings(sizes, model.model_.mpp_, model.recipe.mpp)


def write_report(
    path: Path,
    model: Model,
    card: list[Any],
    results: Mapping[str, Any],
    stored_predictions: StoredPredictions,
    atom_patches: list[Json],
    *,
    untuned_results: Mapping[str, Any] | None = None,
    selection_note: str = "",
) -> None:
    """Write the HTML report of a model.

    Parameters
    ----------
    path : file to write
    model : model at its current threshold
    card : rows of the model card
    results : results at the current threshold
    stored_predictions : stored predictions of the test images
    atom_patches : patches of the most used atoms, from `top_atom_patches`
    untuned_results : results at the trained threshold, if the threshold was then chosen on the test
        images; otherwise None
    selection_note : warning from `selection_warning`
    """
    rows = rows_with_prediction(results)
    counts = confusion_table(model.class_names_, rows) if rows else []
    content = {
        "title": f"Model report: {' / '.join(model.class_names_)}",
        "facts": _score_rows(model, rows_with_prediction(untuned_results or results)),
        "tuned": [] if untuned_results is None else _score_rows(model, rows, is_tuned=True),
        "tuned_note": TUNED_IMAGES_NOTE,
        "selection": selection_note,
        "few": summarize_scores(model.class_names_, rows)["few_patients"],
        "classes": model.class_names_,
        "card": card,
        "truths": [truth for truth, _ in counts],
        "confusion": [counts_of_truth for _, counts_of_truth in counts],
        "roc": _roc_svg(model, rows, results["operating_point"]),
        "patients": patient_errors(rows),
        "atoms": _atom_mosaics(model),
        "atom_classes": atom_patches,
        "is_pair": model.recipe.context_scale > 1,
        "examples": _example_images(model, rows, stored_predictions),
        "warnings": pixel_size_warnings(model, rows),
        "failed": [
            (row["name"], row.get("failure", NO_TISSUE_MESSAGE))
            for row in results["images"]
            if row["answer"] is None
        ],
    }
    write_page(path, "web/report.html.j2", content)


def selection_warning(n_models: int) -> str:
    """Return a warning if several models were tested on the same patients; empty otherwise."""
    if n_models < 2:
        return ""
    return (
        f"{n_models} models were tested on these patients. If the best one is chosen by these "
        "scores, its score is too optimistic. Test it on further patients"
    )


def _score_rows(model: Model, rows: list[Json], *, is_tuned: bool = False) -> list[Json]:
    """Return scores with intervals by patient, as objects with "name" and "value".

    Sensitivity and specificity are included for two classes, Dice and IoU for models that find
    regions. If `is_tuned`, a note says that the threshold was chosen on these images.
    """
    classes = model.class_names_
    labels, predictions = ([row[key] for row in rows] for key in ("label", "answer"))
    missing = [name for name in classes if name not in labels]
    min_patches = (
        model.decision_threshold.value if model.finds_regions and model.decision_threshold else None
    )
    intervals = summarize_scores(classes, rows, min_patches)
    scores: Json = {}
    if min_patches is not None and rows:
        scores |= _overlap_score_rows(model, rows, intervals, min_patches)
    if rows and missing:
        scores["balanced accuracy: no test image of class " + " or ".join(missing)] = "not known"
    elif rows:
        name = f"balanced accuracy; {describe_interval(intervals['balanced'])}"
        scores[name] = f"{balanced_accuracy(labels, predictions):.2f}"
    else:
        scores["balanced accuracy"] = "not measured"
    if len(classes) == 2 and set(classes) <= set(labels):
        other_interval, positive_interval = (
            describe_interval(figure["interval"]) for figure in intervals["classes"]
        )
        value = sensitivity(labels, predictions, positive=classes[1])
        scores[f"sensitivity for {classes[1]}; {positive_interval}"] = f"{value:.2f}"
        value = specificity(labels, predictions, positive=classes[1])
        scores[f"specificity for {classes[1]}; {other_interval}"] = f"{value:.2f}"
    n_patients = pluralize(len({row["patient"] for row in rows}), "patient")
    name = f"images of {n_patients} not used for training" if rows else "images of unseen patients"
    scores[f"images of {n_patients}: {TUNED_IMAGES_NOTE}" if is_tuned else name] = len(rows)
    return [{"name": name, "value": value} for name, value in scores.items()]


def rows_with_prediction(results: Mapping[str, Any]) -> list[Json]:
    """Return the rows of the test images that have a prediction."""
    return [row for row in results["images"] if row["answer"] is not None]


def _overlap_score_rows(
    model: Model, rows: list[Json], scores: ScoreSummary, min_patches: float
) -> dict[str, str]:
    fractions = pooled_overlap([row.get("overlap") for row in rows], min_patches)
    if fractions is None:
        return {}
    label = f"overlap with the true regions of {model.class_names_[1]}, by patches"
    ranges = {name: describe_interval(scores["overlap"].get(name)) for name in ("Dice", "IoU")}
    return {
        f"Dice: {label}; {ranges['Dice']}": f"{fractions.dice:.2f}",
        f"IoU: {label}; {ranges['IoU']}": f"{fractions.iou:.2f}",
    }


def confusion_table(classes: Sequence[str], rows: list[Json]) -> list[tuple[str, list[int]]]:
    """Return (true label, number of predictions of each class) for each true label.

    Labels that are not classes of the model come last.
    """
    counts = Counter((row["label"], row["answer"]) for row in rows)
    others = sorted({row["label"] for row in rows} - set(classes))
    return [
        (truth or "no label", [counts[truth, predicted] for predicted in classes])
        for truth in (*classes, *others)
    ]


def patient_errors(rows: list[Json]) -> list[Json]:
    """Return the number of images and the names of those predicted wrongly for each patient.

    Patients with most errors come first.
    """
    n_images = Counter(row["patient"] for row in rows)
    wrong: dict[str, list[str]] = {patient: [] for patient in sorted(n_images)}
    for row in rows:
        if row["answer"] != row["label"]:
            wrong[row["patient"]].append(row["name"])
    entries = sorted(wrong.items(), key=lambda entry: -len(entry[1]))
    return [{"patient": p, "n_images": n_images[p], "wrong": names} for p, names in entries]


def _roc_svg(model: Model, rows: list[Json], operating_point: Mapping[str, Any] | None) -> str:
    from ..reports.html import roc_curves_svg

    is_positive = np.array([row["label"] == model.class_names_[-1] for row in rows])
    if operating_point is None or len(set(is_positive.tolist())) < 2:
        return ""
    values = np.array([row["value"] for row in rows], np.float64)
    sign = 1.0 if operating_point.get("higher_is_positive", True) else -1.0
    # Regions count from the threshold on, the other values only above it.
    threshold = operating_point["value"] - 0.5 * (operating_point["kind"] == "patches")
    curve = roc_curve(is_positive, sign * values, positive=True, threshold=sign * threshold)
    return roc_curves_svg("roc", {"the model": curve})


def _atom_mosaics(model: Model) -> list[dict[str, str]]:
    atoms = model.model_.atoms()
    if atoms is None or atoms.patch_px is None:
        return []
    bases = {name: atoms.D[atoms.classes == i] for i, name in enumerate(model.class_names_)}
    return atom_mosaics(bases, atoms.patch_px)


def top_atom_patches(
    model: Model, gallery: PatchSample | None, training_images: Manifest
) -> list[Json]:
    """Return the most used atoms, with the training patches in which their weight is largest."""
    if gallery is None or model.model_.atoms() is None:
        return []
    found = AtomReportData.from_model(model, gallery, training_images.records, _MAX_SHOWN_ATOMS)
    return atom_rows(
        found,
        training_images.records,
        [training_image_name(training_images, r) for r in training_images.records],
    )


def training_image_name(training_images: Manifest, record: ImageRecord) -> str:
    """Return the displayed name of a training image; all cropped rectangles have the same name."""
    return (
        training_images.name(record)
        if record.path.is_relative_to(training_images.root)
        else "an annotated region"
    )


def _example_images(
    model: Model, rows: list[Json], stored_predictions: StoredPredictions
) -> list[Json]:
    """Return a few rows with their maps as images (data URIs), wrong predictions first."""
    shown: list[Json] = []
    for row in sorted(rows, key=lambda row: row["answer"] == row["label"]):
        if (
            row["grid"] is None
            or row["image"] not in stored_predictions.records
            or len(shown) == _N_EXAMPLES
        ):
            continue
        prediction = stored_predictions.load(row["image"], model)
        assert prediction.patch_map is not None
        overlay = draw_overlay(prediction.patch_map, prediction.summary(), region_rings(prediction))
        shown.append(
            row
            | {
                "uri": jpeg_data_uri(overlay),
                "right": row["answer"] == row["label"],
                "answer": describe_label(row["answer"], prediction.label != prediction.top_label),
            }
        )
    return shown


# --- comparison with the previous model -----------------------------------------------------------


def applied_corrections(request: Json) -> list[UsedCorrection]:
    """Return the corrections in a training request, each with its effect on the training."""
    tested = set(request["test_patients"])
    manifest = manifest_from_request(request)
    images = {manifest.name(r): r for r in manifest.records[: request["n_images"]]}

    def status_of(correction: Correction) -> CorrectionStatus:
        record, is_region = images.get(correction["name"]), correction["box"] is not None
        if correction["label"] is None:
            return "left out"
        if record is None:
            return "gone"
        if record.patient not in tested:
            return "learnt"
        return "unused" if is_region and record.mask is None else "truth"

    return [c | {"use": status_of(c)} for c in request["corrections"]]


def compare_with_parent(job: Job, results: Json | None, parent: Job) -> ParentComparison | None:
    """Return the comparison of a training with its parent; None if either has no results."""
    parent_results = parent.results()
    if results is None or parent_results is None:
        return None
    masks, parent_masks = _mask_paths(job), _mask_paths(parent)
    parent_rows = {row["image"]: row for row in parent_results["images"]}
    common = [row for row in results["images"] if row["image"] in parent_rows]
    rows = [
        _compare_rows(
            row, parent_rows[row["image"]], masks.get(row["name"]) == parent_masks.get(row["name"])
        )
        for row in common
    ]
    return {
        "id": parent.id,
        "name": parent.name,
        "operating_point": parent_results["operating_point"],
        "images": rows,
        "difference": accuracy_difference(rows, [row["patient"] for row in common]),
    }


def _compare_rows(row: Json, parent_row: Json, has_same_mask: bool) -> ComparedImage:
    return {
        "image": row["image"],
        "name": row["name"],
        "label": row["label"],
        "label_before": parent_row["label"],
        "answer": row["answer"],
        "answer_before": parent_row["answer"],
        "overlap": row.get("overlap"),
        "overlap_before": parent_row.get("overlap") if has_same_mask else None,
    }


def _mask_paths(job: Job) -> dict[str, str | None]:
    manifest = manifest_from_request(job.request)
    images = manifest.records[: job.request["n_images"]]
    return {manifest.name(r): str(r.mask) if r.mask else None for r in images}
