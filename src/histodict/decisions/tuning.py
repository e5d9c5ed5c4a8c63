"""Record of changes to a trained model's decision: by what they were made, and on which images.

A figure of accuracy that is computed on images which chose the threshold does not estimate how good
the model is on unseen patients. So each such change is kept with the model, with a fingerprint of
every image that was used or looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from ..execution.files import sampled_digest
from ..execution.texts import counted
from ..parameters import check_choice, check_kind, check_whole_number

Record = dict[str, Any]
NOTE = "tuned on these images; not an estimate for unseen patients"
_MANUAL, _ADAPTED, _REFIT, _ATOMS = "manual", "adapted", "refit", "atoms"
_DESCRIPTIONS = {
    _MANUAL: "moved by hand",
    _ADAPTED: "adapted without labels",
    _REFIT: "decision rule refitted",
    _ATOMS: "atoms switched on or off",
}
_LETTERS = 16  # of a fingerprint
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
    """Short digest by which an image is recognised; empty if it cannot be read."""
    return sampled_digest(image)[:_LETTERS]


def tuned(training: Mapping[str, Any], source: str, **values: Any) -> dict[str, Any]:
    """Return the record of a training with one more change.

    Parameters
    ----------
    source : "manual", "adapted", "refit" or "atoms"
    values : `previous` and `value`, the operating point before and after; `shift`, by how much the
        change lowers scores; `n_images`; and others for the record
    """
    plain = {"n_images": 0, "images": [], "previous": None, "value": None, "shift": None}
    change = {"source": source, "date": date.today().isoformat()} | plain | values
    return {**training, "tuning": [*changes(training), change]}


def with_images(training: Mapping[str, Any], images: Iterable[Path]) -> dict[str, Any]:
    """Return the record of a training whose last change names these images."""
    if not changes(training):
        raise ValueError("the decision of this model was not changed: there is nothing to record")
    *earlier, last = changes(training)
    found = sorted({fingerprint(path) for path in images} - {""})
    last = last | {"n_images": max(last["n_images"], len(found)), "images": found}
    return {**training, "tuning": [*earlier, last]}


def carried_over(
    training: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of a panel after a change of one of its members."""
    new = changes(after)[len(changes(before)) :]
    return {**training, "tuning": [*changes(training), *new]} if new else dict(training)


def changes(training: Mapping[str, Any]) -> list[Record]:
    """All changes since the training, in their order."""
    return list(training.get("tuning", []))


def n_tuned_on(training: Mapping[str, Any], images: Iterable[Path]) -> int:
    """How many images are among those that the model was tuned on; none of those that are gone."""
    known = {image for change in changes(training) for image in change["images"]}
    return sum(fingerprint(image) in known for image in images) if known else 0


def total_shift(training: Mapping[str, Any]) -> float | None:
    """By how much scores are lower than as trained; None if the old scores cannot be restored."""
    shifts = [change["shift"] for change in changes(training)]
    return None if None in shifts else float(sum(shifts))


def first_point(training: Mapping[str, Any]) -> float | None:
    """The operating point as trained; None if other things than the point were changed."""
    found = changes(training)
    is_known = bool(found) and {change["source"] for change in found} == {_MANUAL}
    return found[0]["previous"] if is_known else None


def describe_tuning(training: Mapping[str, Any]) -> str:
    """All changes in words, for a model card; empty if there are none."""
    return "; ".join(map(_describe, changes(training)))


def _describe(change: Record) -> str:
    words = _DESCRIPTIONS[change["source"]]
    if change["previous"] is not None and change["value"] is not None:
        words += f" from {change['previous']:.3g} to {change['value']:.3g}"
    elif change["shift"] is not None:
        words += f", scores moved by {-change['shift']:+.3g}"
    n_images = change["n_images"]
    where = "with" if change["source"] == _ADAPTED else "on"
    words += f" {where} {counted(n_images, 'image')}" if n_images else ", images not recorded"
    words += f" ({change['date']})" if change["date"] else ""
    return f"{words}: figures on these images are not an estimate for unseen patients"


def check_tuning(found: object) -> None:
    """Refuse what cannot be a list of changes."""
    if not isinstance(found, list):
        raise ValueError("training: tuning must be a list")
    for change in found:
        check_kind("training: a change of tuning", change, "dict[str, Any]")
        for name, kind in _KINDS.items():
            check_kind(f"tuning: {name}", change.get(name, ...), kind)
        check_choice("tuning: source", change["source"], _DESCRIPTIONS)
        check_whole_number("tuning: n_images", change["n_images"], 0)
