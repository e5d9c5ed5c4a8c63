"""Images of a training that cannot be read: found before it learns, and left out if the user wants.

A job's folder then holds
    bad-images.json   [{"name", "reason"}]
    skip-bad          there if the work shall go on without them
"""

from __future__ import annotations

from typing import Any

from ..execution.progress import Callback
from ..execution.sealed import write_sealed
from ..execution.texts import counted
from ..images.manifest import Manifest, Record
from ..images.survey import survey
from .jobs import Job
from .workspace import damage, read_json

Bad = list[dict[str, Any]]


def in_words(manifest: Manifest, record: Record, reason: str) -> dict[str, str]:
    """An image by its name in the set, and why it, or its mask, cannot be read."""
    reason = reason.removeprefix(f"{record.path}: ")
    if record.mask is not None:
        reason = reason.replace(str(record.mask), f"mask {record.mask.name}")
    return {"name": manifest.name(record), "reason": reason}


def look_for_bad(job: Job, manifest: Manifest, callback: Callback) -> None:
    """Reads every image once; refuses bad ones unless the user goes on without them."""
    found = survey(manifest.records, None, callback).bad
    bad = [in_words(manifest, record, reason) for record, reason in found]
    write_sealed(job.folder / "bad-images.json", bad)
    if bad and not goes_on_without(job):
        raise ValueError(refusal(len(bad), len(manifest.records)))


def refusal(n_bad: int, n_images: int) -> str:
    return f"{n_bad} of {counted(n_images, 'image')} cannot be read: mend them, or go on without"


def go_on_without(job: Job) -> None:
    (job.folder / "skip-bad").touch()


def goes_on_without(job: Job) -> bool:
    return (job.folder / "skip-bad").exists()


def bad_images(job: Job) -> Bad:
    """As far as they are known."""
    path = job.folder / "bad-images.json"
    found: Bad = list(read_json(path, list)) if path.exists() else []
    if not all(isinstance(bad, dict) and {*bad} >= {"name", "reason"} for bad in found):
        raise damage(path, "an image has no name or no reason")
    return found


def left_out(job: Job) -> frozenset[str]:
    """Names of the images that the training does without."""
    found = bad_images(job) if goes_on_without(job) else []
    return frozenset(bad["name"] for bad in found)
