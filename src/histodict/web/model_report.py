"""Reports on a model: one self-contained HTML page, and the comparison with the previous model.

Two models are compared on the images that both were tested on, against the labels of the later one,
so that a label changed in between does not count as progress.

Scores of the test images with intervals by patient, and tests of differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.manifest import ImageRecord, Manifest
from ..decision.threshold import NOTE, describe_tuning
from ..evaluation.measures import OVERLAPS
from ..explain.patch_sample import PatchSample
from ..images.pixel_size import PixelSize, size_warnings
from ..metrics.intervals import (
    MIN_PATIENTS,
    Metric,
    Proportion,
    bootstrap_interval,
    mean_interval,
    paired_bootstrap,
    proportion,
)
from ..metrics.scores import balanced_accuracy, roc_curve, sensitivity, specificity
from ..model_selection.protocols import Repeat
from ..models import Model
from ..models.predictions import Prediction, region_rings
from ..patches.rendering import atom_mosaics, draw_overlay, jpeg_data_uri
from ..reports.atoms_page import AtomReportData, atom_rows
from ..reports.evaluation_tables import SummaryRow
from ..reports.html import write_page
from ..reports.model_card import describe_model
from ..utils.text_io import pluralize
from .jobs import Job
from .maps import apply_threshold, compute_or_load, pooled_overlap, stored_map
from .patch_explanation import NO_TISSUE_FOUND
from .schema import (
    ClassFigure,
    Compared,
    Correction,
    CorrectionStatus,
    Difference,
    Figures,
    PreviousModel,
    Range,
    UsedCorrection,
)
from .training import request_manifest

Rows = Sequence[Mapping[str, Any]]


def figures(classes: Sequence[str], rows: Rows, least: float | None = None) -> Figures:
    """Of rows with an answer.

    Parameters
    ----------
    least : minimum number of connected patches of a region, for models that find regions
    """
    shares = {name: share for name in classes if (share := _fraction(name, rows))}
    known = [shares[name] for name in classes if name in shares]
    # Images of unknown classes count in the mean; their predictions are always wrong.
    is_whole = {row["label"] for row in rows} == set(classes)
    balanced = mean_interval(known) if is_whole else None
    return {
        "classes": [_described(name, share) for name, share in shares.items()],
        "balanced": None if balanced is None else _range(*balanced),
        "few": [name for name, share in shares.items() if share.n_patients < MIN_PATIENTS],
        "overlap": {} if least is None else _overlaps(rows, least),
    }


def _fraction(name: str, rows: Rows) -> Proportion | None:
    """Return the proportion of correctly classified images of a class."""
    own = [row for row in rows if row["label"] == name]
    if not own:
        return None
    return proportion([row["answer"] == name for row in own], [row["patient"] for row in own])


def _described(name: str, share: Proportion) -> ClassFigure:
    low, high = share.low, share.high
    return {
        "name": name,
        "n_right": share.n_right,
        "n_images": share.n_images,
        "n_patients": share.n_patients,
        "interval": None if low is None or high is None else _range(low, high),
    }


def _range(low: float, high: float) -> Range:
    return {"low": low, "high": high}


def _overlaps(rows: Rows, least: float) -> dict[str, Range | None]:
    """Return intervals of pooled Dice and IoU, for regions of at least `least` patches."""
    place, known = round(least) - 1, [row.get("overlap") for row in rows]
    patients = np.array([str(row["patient"]) for row in rows])
    if not known or any(one is None or not 0 <= place < len(one) for one in known):
        return {}
    tables = np.array([[*one[place], 0] for one in known if one])
    repeat = Repeat(np.full(len(tables), "image"), patients, tables)
    return {name: _bootstrap(metric, repeat) for name, metric in OVERLAPS.items()}


def _bootstrap(metric: Metric, repeat: Repeat) -> Range | None:
    if len(set(repeat.patients)) < MIN_PATIENTS:
        return None
    try:
        found = bootstrap_interval(metric, [repeat])
    except ValueError:  # the metric is undefined on these patients or on nearly all draws
        return None
    return _range(found.low, found.high)


def describe_range(found: Range | None) -> str:
    """Describe an interval, or its absence."""
    if found is None:
        return "no interval can be given"
    return f"95 % interval by patient {found['low']:.2f} to {found['high']:.2f}"


# --- two models on the same images --------------------------------------------------------------


def difference(rows: Sequence[Compared], patients: Sequence[str]) -> Difference | None:
    """Return the increase of the proportion of correct images; None with too few patients."""
    if len(set(patients)) < MIN_PATIENTS:
        return None
    owners, images = np.array(patients), np.full(len(rows), "image")
    now, before = (
        Repeat(images, owners, np.array([row[key] == row["label"] for row in rows]))
        for key in ("answer", "answer_before")
    )
    found = paired_bootstrap(lambda _, is_right: float(np.mean(is_right)), [now], [before])
    return {"value": found.difference, "low": found.low, "high": found.high}


_N_EXAMPLES = 6
_UNTESTED = "nobody: how good it is, is not known"
_USAGE: dict[CorrectionStatus, str] = {
    "learnt": "learnt from",
    "truth": "of what tested images truly are",
    "unused": "not learnt from, as the patient was kept for testing",
    "left out": "leaving images out",
    "gone": "of images that are gone",
}
_N_ATOMS = 8  # of each class, shown with the patches that use them


def model_card(
    model: Model,
    header: Mapping[str, Any],
    request: dict[str, Any],
    results: Mapping[str, Any] | None,
) -> list[SummaryRow]:
    """What the file says of the model, and what the page knows: who was tested, what corrected."""
    rows = results["images"] if results else []
    n_tested = len({row["patient"] for row in rows if row["answer"] is not None})
    card = dict(describe_model(header)) | {
        "Decision": model.describe_decision(),
        "Changed after training": describe_tuning(model.training_info_),
        "Tested on": pluralize(n_tested, "other patient") if n_tested else _UNTESTED,
        "Corrections": _corrected(applied_corrections(request)),
    }
    if request["n_shapes"]:
        n_images = request_manifest(request).n_images
        card["Drawn by the user"] = (
            f"{pluralize(request['n_shapes'], 'shape')} on {pluralize(n_images, 'image')}, and "
            "nothing "
            "else of them was learnt from or tested"
        )
    return [(name, words) for name, words in card.items() if words]


def _corrected(corrections: Sequence[UsedCorrection]) -> str:
    """How many there were, and which of them were not learnt from."""
    n_of = Counter(c["use"] for c in corrections)
    words = [f"{n_of[use]} {what}" for use, what in _USAGE.items() if n_of[use]]
    return f"{len(corrections)} by the user: {', '.join(words)}" if words else "none"


@dataclass(frozen=True)
class StoredPredictions:
    """The tested images by id, and where the answers for them are kept.

    mpp : µm per pixel where neither a table nor the file says it
    model : whose answers they are, before its line was moved
    """

    records: Mapping[str, ImageRecord]
    maps: Path
    mpp: float | None
    model: Model

    def prediction(self, image: str, moved: Model) -> Prediction:
        """With its map, as the model says whose line was moved."""
        record = self.records[image]
        facts = compute_or_load(self.model, record, self.maps, self.mpp)
        return apply_threshold(moved, facts, stored_map(self.maps, record, self.mpp), record.path)


def size_text(model: Model, rows: list[dict[str, Any]]) -> list[str]:
    """In a line, where pixel sizes of tested images were taken for granted."""
    # Images without an answer have none.
    sizes = [PixelSize(row["mpp"], row["mpp_from"]) for row in rows if "mpp_from" in row]
    return size_warnings(sizes, model.model_.mpp_, model.recipe.mpp)


def write_report(
    path: Path,
    model: Model,
    card: list[Any],
    results: Mapping[str, Any],
    kept: StoredPredictions,
    users: list[dict[str, Any]],
    *,
    untuned: Mapping[str, Any] | None = None,
    selection: str = "",
) -> None:
    """`results`: as of the model, whose line may have been moved. `users`: of `top_atom_patches`.
    `untuned`: if it was moved on the test images, the results as trained. `selection`: a warning.
    """
    rows = _predicted(results)
    counts = confusion_table(model.classes_, rows) if rows else []
    content = {
        "title": f"Model report: {' / '.join(model.classes_)}",
        "facts": _figures(model, _predicted(untuned or results)),
        "tuned": [] if untuned is None else _figures(model, rows, is_tuned=True),
        "tuned_note": NOTE,
        "selection": selection,
        "few": _short_text(figures(model.classes_, rows)),
        "classes": model.classes_,
        "card": card,
        "truths": [truth for truth, _ in counts],
        "confusion": [line for _, line in counts],
        "roc": _roc(model, rows, results["operating_point"]),
        "patients": patient_errors(rows),
        "atoms": _atom_mosaics(model),
        "atom_classes": users,
        "examples": _examples(model, rows, kept),
        "warnings": size_text(model, rows),
        "failed": [
            (row["name"], row.get("failure", NO_TISSUE_FOUND))
            for row in results["images"]
            if row["answer"] is None
        ],
    }
    write_page(path, "web/report.html.j2", content)


def selection_summary(n_models: int) -> str:
    """Return a warning about choosing the best of several models; empty for a single one."""
    if n_models < 2:
        return ""
    return (
        f"{n_models} models were tested on these patients. The score of the best one is too "
        "optimistic if these scores are used to choose it: test it on further patients"
    )


def _figures(
    model: Model, rows: list[dict[str, Any]], *, is_tuned: bool = False
) -> list[dict[str, Any]]:
    """Return scores with intervals by patient.

    For two classes they include sensitivity and specificity, for regions the overlap with the
    true regions.

    is_tuned : whether the operating point was chosen on these images
    """
    classes = model.classes_
    labels, answers = ([row[key] for row in rows] for key in ("label", "answer"))
    missing = [name for name in classes if name not in labels]
    point = (
        model.decision_threshold.value if model.finds_regions and model.decision_threshold else None
    )
    found = figures(classes, rows, point)
    told: dict[str, Any] = {}
    if point is not None and rows:
        told |= _overlap_figures(model, rows, found, point)
    if rows and missing:
        told["balanced accuracy: no image was " + " or ".join(missing)] = "not known"
    elif rows:
        words = f"balanced accuracy; {describe_range(found['balanced'])}"
        told[words] = f"{balanced_accuracy(labels, answers):.2f}"
    else:
        told["balanced accuracy"] = "not measured"
    if len(classes) == 2 and set(classes) <= set(labels):
        others, own = (describe_range(one["interval"]) for one in found["classes"])
        share = sensitivity(labels, answers, positive=classes[1])
        told[f"sensitivity: of {classes[1]} found; {own}"] = f"{share:.2f}"
        share = specificity(labels, answers, positive=classes[1])
        told[f"specificity: of the others not called {classes[1]}; {others}"] = f"{share:.2f}"
    n_patients = pluralize(len({row["patient"] for row in rows}), "patient")
    words = f"images of {n_patients} it never saw" if rows else "images of patients it never saw"
    told[f"images of {n_patients}: {NOTE}" if is_tuned else words] = len(rows)
    return [{"name": name, "value": value} for name, value in told.items()]


def _predicted(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [row for row in results["images"] if row["answer"] is not None]


def _short_text(found: Figures) -> str:
    """Return a warning about classes with too few patients; empty if there are none."""
    few = [one for one in found["classes"] if one["name"] in found["few"]]
    if not few:
        return ""
    counts = " and ".join(
        f"{pluralize(one['n_patients'], 'patient')} with {one['name']}" for one in few
    )
    return (
        f"Tested on only {counts}: too few to estimate the accuracy on other patients or to give "
        f"an interval. Test on at least {MIN_PATIENTS} patients of each class"
    )


def _overlap_figures(
    model: Model, rows: list[dict[str, Any]], found: Figures, point: float
) -> dict[str, str]:
    shares = pooled_overlap([row.get("overlap") for row in rows], point)
    if shares is None:
        return {}
    words = f"overlap with the true regions of {model.classes_[1]}, by patches"
    ranges = {name: describe_range(found["overlap"].get(name)) for name in ("Dice", "IoU")}
    return {
        f"Dice: {words}; {ranges['Dice']}": f"{shares.dice:.2f}",
        f"IoU: {words}; {ranges['IoU']}": f"{shares.iou:.2f}",
    }


def confusion_table(
    classes: Sequence[str], rows: list[dict[str, Any]]
) -> list[tuple[str, list[int]]]:
    """Per true label how often each class was answered.

    Labels that are no class of the model follow: nothing can be right about them, and they count.
    """
    counts = Counter((row["label"], row["answer"]) for row in rows)
    others = sorted({row["label"] for row in rows} - set(classes))
    return [
        (truth or "no label", [counts[truth, answer] for answer in classes])
        for truth in (*classes, *others)
    ]


def patient_errors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per patient how many images there were, and which answers were wrong; most wrong first."""
    n_images = Counter(row["patient"] for row in rows)
    wrong: dict[str, list[str]] = {patient: [] for patient in sorted(n_images)}
    for row in rows:
        if row["answer"] != row["label"]:
            wrong[row["patient"]].append(row["name"])
    lines = sorted(wrong.items(), key=lambda line: -len(line[1]))
    return [{"patient": p, "n_images": n_images[p], "wrong": names} for p, names in lines]


def _roc(model: Model, rows: list[dict[str, Any]], point: Mapping[str, Any] | None) -> str:
    from ..reports.html import roc_curves_svg

    truth = np.array([row["label"] == model.classes_[-1] for row in rows])
    if point is None or len(set(truth.tolist())) < 2:
        return ""
    values = np.array([row["value"] for row in rows], np.float64)
    sign = 1.0 if point.get("higher_is_positive", True) else -1.0
    # Connected patches count from m on, the other values only above their threshold.
    threshold = point["value"] - 0.5 if point["kind"] == "patches" else point["value"]
    curve = roc_curve(truth, sign * values, positive=True, threshold=sign * threshold)
    return roc_curves_svg("roc", {"the model": curve})


def _atom_mosaics(model: Model) -> list[dict[str, str]]:
    atoms = model.model_.atoms()
    if atoms is None or atoms.patch_px is None:
        return []
    bases = {name: atoms.D[atoms.classes == i] for i, name in enumerate(model.classes_)}
    return atom_mosaics(bases, atoms.patch_px)


def top_atom_patches(
    model: Model, gallery: PatchSample | None, learn: Manifest
) -> list[dict[str, Any]]:
    """The atoms that most patches use, with the training patches in which they weigh most."""
    if gallery is None or model.model_.atoms() is None:
        return []
    found = AtomReportData.of(model, gallery, learn.records, _N_ATOMS)
    return atom_rows(found, learn.records, [training_name(learn, r) for r in learn.records])


def training_name(learn: Manifest, record: ImageRecord) -> str:
    """An image's name; a rectangle that the user marked lies elsewhere and has none."""
    return learn.name(record) if record.path.is_relative_to(learn.root) else "a marked region"


def _examples(
    model: Model, rows: list[dict[str, Any]], kept: StoredPredictions
) -> list[dict[str, Any]]:
    """Images with their maps, wrong answers first."""
    shown: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: row["answer"] == row["label"]):
        if row["grid"] is None or row["image"] not in kept.records or len(shown) == _N_EXAMPLES:
            continue
        answer = kept.prediction(row["image"], model)
        assert answer.patch_map is not None
        picture = draw_overlay(answer.patch_map, answer.summary(), region_rings(answer))
        shown.append(row | {"uri": jpeg_data_uri(picture), "right": row["answer"] == row["label"]})
    return shown


# --- comparison with the previous model -----------------------------------------------------------


def applied_corrections(request: dict[str, Any]) -> list[UsedCorrection]:
    """The corrections of a training, each with what became of it."""
    tested = set(request["test_patients"])
    manifest = request_manifest(request)
    images = {manifest.name(r): r for r in manifest.records[: request["n_images"]]}

    def use(correction: Correction) -> CorrectionStatus:
        record, is_region = images.get(correction["name"]), correction["box"] is not None
        if correction["label"] is None:
            return "left out"
        if record is None:
            return "gone"
        if record.patient not in tested:
            return "learnt"
        return "unused" if is_region and record.mask is None else "truth"

    return [c | {"use": use(c)} for c in request["corrections"]]


def model_before(job: Job, results: dict[str, Any] | None, parent: Job) -> PreviousModel | None:
    """None where there is nothing to compare."""
    earlier = parent.results()
    if results is None or earlier is None:
        return None
    masks, masks_then = _masks(job), _masks(parent)
    then = {row["image"]: row for row in earlier["images"]}
    both = [row for row in results["images"] if row["image"] in then]
    rows = [
        _compared(row, then[row["image"]], masks.get(row["name"]) == masks_then.get(row["name"]))
        for row in both
    ]
    return {
        "id": parent.id,
        "name": parent.name,
        "operating_point": earlier["operating_point"],
        "images": rows,
        "difference": difference(rows, [row["patient"] for row in both]),
    }


def _compared(row: dict[str, Any], then: dict[str, Any], same_mask: bool) -> Compared:
    return {
        "image": row["image"],
        "name": row["name"],
        "label": row["label"],
        "label_before": then["label"],
        "answer": row["answer"],
        "answer_before": then["answer"],
        "overlap": row.get("overlap"),
        "overlap_before": then.get("overlap") if same_mask else None,
    }


def _masks(job: Job) -> dict[str, str | None]:
    manifest = request_manifest(job.request)
    images = manifest.records[: job.request["n_images"]]
    return {manifest.name(r): str(r.mask) if r.mask else None for r in images}
