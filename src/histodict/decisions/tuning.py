"""Record of changes to the decision threshold after training, and of the images used for them.

Accuracy on images that were used to choose the threshold does not estimate the accuracy on unseen
patients. The model therefore stores every change, with a fingerprint of each image that was used
or viewed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ..execution.files import sampled_digest
from ..execution.texts import pluralize
from ..parameters import check_choice, check_kind, check_whole_number

Record = dict[str, Any]
NOTE = "tuned on these images; not an estimate for unseen patients"
_MANUAL, _ADAPTED, _REFIT, _ATOMS = "manual", "adapted", "refit", "atoms"
_DESCRIPTIONS = {
    _MANUAL: "moved by hand",
    _ADAPTED: "adapted without labels",
    _REFIT: "decision rule refitted",
    _ATOMS: "atoms enabled or disabled",
}
_CHARACTERS = 16  # of a fingerprint
_KINDS = {
    "source": "str",
    "date": "str",
    "n_images": "int",
    "images": "list[str]",
    "previous": "float | None",
    "value": "float | None",
    "shift": "float | None",
}


def fingerprint(image: Path) -> str:
    """Return a short digest of the content of an image; empty if it cannot be read."""
    return sampled_digest(image)[:_CHARACTERS]


def tuned(training: Mapping[str, Any], source: str, **values: Any) -> dict[str, Any]:
    """Return the record of a training with one more change.

    Parameters
    ----------
    source : "manual", "adapted", "refit" or "atoms"
    values : `previous` and `value`, the operating point before and after; `shift`, the
        decrease of scores by the change; `n_images`; and other entries of the record
    """
    plain = {"n_images": 0, "images": [], "previous": None, "value": None, "shift": None}
    change = {"source": source, "date": date.today().isoformat()} | plain | values
    return {**training, "tuning": [*changes(training), change]}


def with_images(training: Mapping[str, Any], images: Iterable[Path]) -> dict[str, Any]:
    """Return the record of a training with these images added to its last change."""
    if not changes(training):
        raise ValueError("the decision of this model was not changed: there is nothing to record")
    *earlier, last = changes(training)
    found = sorted({fingerprint(path) for path in images} - {""})
    last = last | {"n_images": max(last["n_images"], len(found)), "images": found}
    return {**training, "tuning": [*earlier, last]}


def carried_over(
    training: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of an ensemble after a change of one of its estimators."""
    new = changes(after)[len(changes(before)) :]
    return {**training, "tuning": [*changes(training), *new]} if new else dict(training)


def changes(training: Mapping[str, Any]) -> list[Record]:
    """Return all changes since the training, oldest first."""
    return list(training.get("tuning", []))


def n_tuned_on(training: Mapping[str, Any], images: Iterable[Path]) -> int:
    """Return how many of the images the model was tuned on; missing files do not count."""
    known = {image for change in changes(training) for image in change["images"]}
    return sum(fingerprint(image) in known for image in images) if known else 0


def total_shift(training: Mapping[str, Any]) -> float | None:
    """Return the decrease of scores since training; None if it is not a constant."""
    shifts = [change["shift"] for change in changes(training)]
    return None if None in shifts else float(sum(shifts))


def first_point(training: Mapping[str, Any]) -> float | None:
    """Return the operating point as trained; None if anything else was changed."""
    found = changes(training)
    is_known = bool(found) and {change["source"] for change in found} == {_MANUAL}
    return found[0]["previous"] if is_known else None


def describe_tuning(training: Mapping[str, Any]) -> str:
    """Describe all changes for a model card; empty if there are none."""
    return "; ".join(map(_describe, changes(training)))


def _describe(change: Record) -> str:
    words = _DESCRIPTIONS[change["source"]]
    if change["previous"] is not None and change["value"] is not None:
        words += f" from {change['previous']:.3g} to {change['value']:.3g}"
    elif change["shift"] is not None:
        words += f", scores moved by {-change['shift']:+.3g}"
    n_images = change["n_images"]
    where = "with" if change["source"] == _ADAPTED else "on"
    words += f" {where} {pluralize(n_images, 'image')}" if n_images else ", images not recorded"
    words += f" ({change['date']})"
    return f"{words}: scores on these images are not an estimate for unseen patients"


def check_tuning(found: object) -> None:
    """Raise an error unless `found` is a valid list of changes."""
    if not isinstance(found, list):
        raise ValueError("training: tuning must be a list")
    for change in found:
        check_kind("training: a change of tuning", change, "dict[str, Any]")
        for name, kind in _KINDS.items():
            check_kind(f"tuning: {name}", change.get(name, ...), kind)
        check_choice("tuning: source", change["source"], _DESCRIPTIONS)
        check_whole_number("tuning: n_images", change["n_images"], 0)
