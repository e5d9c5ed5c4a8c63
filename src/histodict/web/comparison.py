"""What a training made of the user's corrections, and how it compares with the model before.

Two models are compared on the images that both were tested on, against one truth: that of the
later one. A label that was changed in between is no progress of either.
"""

from __future__ import annotations

from typing import Any

from .figures import difference
from .jobs import Job
from .training import request_manifest
from .travel import Before, Compared, Correction, Use, UsedCorrection


def used_corrections(request: dict[str, Any]) -> list[UsedCorrection]:
    """The corrections of a training, each with what became of it."""
    tested = set(request["test_patients"])
    manifest = request_manifest(request)
    images = {manifest.name(r): r for r in manifest.records[: request["n_images"]]}

    def use(correction: Correction) -> Use:
        record, is_region = images.get(correction["name"]), correction["box"] is not None
        if correction["label"] is None:
            return "left out"
        if record is None:
            return "gone"
        if record.patient not in tested:
            return "learnt"
        return "unused" if is_region and record.mask is None else "truth"

    return [c | {"use": use(c)} for c in request["corrections"]]


def model_before(job: Job, results: dict[str, Any] | None, parent: Job) -> Before | None:
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
