"""What went wrong in an evaluation: confusions, errors by patient, and the images themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.metrics import confusion_matrix

from ..compare.evaluation import Evaluation
from ..compare.tasks import Result
from ..execution.tables import Row
from ..images.manifest import Record
from ..images.readers import open_image
from ..pipeline import NO_TISSUE
from .overlay import draw_overlay
from .pictures import image_uri

_SHOWN_PX = 300
# A page of more pictures is slow to open; the others are named.
_MOST_PICTURES = 150


@dataclass
class Errors:
    """Of one image: by method, how many answers there were and the wrong ones among them."""

    place: int
    n_answers: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    seen: list[tuple[Result, int]] = field(default_factory=list)

    @property
    def n_wrong(self) -> int:
        return sum(len(labels) for labels in self.wrong.values())


def shown_results(done: Evaluation) -> Iterator[Result]:
    """Those of the methods in the tables, at the largest training size."""
    for result in done.results:
        split = result.task.split
        if result.task.method in done.methods and split.n_per_class == done.shown_size:
            yield result


# --- confusions ---------------------------------------------------------------------------------


def confusions(done: Evaluation) -> list[dict[str, Any]]:
    """Per method: images by true class and answer, added up over repeats and seeds."""
    found = []
    for method in done.methods:
        own = [result for result in shown_results(done) if result.task.method == method]
        truth = [label for r in own for label in done.manifest.select(r.task.split.test).labels]
        said = [label for result in own for label in result.answered.labels]
        answers = [*done.classes, NO_TISSUE] if NO_TISSUE in said else done.classes
        names = list(dict.fromkeys([*done.classes, NO_TISSUE]))
        counts = confusion_matrix(truth, said, labels=names)[: len(done.classes), : len(answers)]
        found.append({"method": method, "answers": answers, "counts": counts.tolist()})
    return found


def confusion_rows(done: Evaluation) -> list[Row]:
    return [
        {"method": matrix["method"], "truth": truth, "label": label, "n_answers": count}
        for matrix in confusions(done)
        for truth, counts in zip(done.classes, matrix["counts"], strict=True)
        for label, count in zip(matrix["answers"], counts, strict=True)
    ]


# --- images and patients ------------------------------------------------------------------------


def image_errors(done: Evaluation) -> list[Errors]:
    """Of every tested image, in the order of the manifest."""
    found: dict[int, Errors] = {}
    for result in shown_results(done):
        method, tested = result.task.method, result.task.split.test
        for i, (place, label) in enumerate(zip(tested, result.answered.labels, strict=True)):
            errors = found.setdefault(place, Errors(place))
            errors.n_answers[method] += 1
            if label != done.manifest.records[place].label:
                errors.wrong.setdefault(method, []).append(label)
                errors.seen.append((result, i))
    return [found[place] for place in sorted(found)]


def error_rows(done: Evaluation, images: Sequence[Errors]) -> list[Row]:
    """A row for every method and image that it got wrong at least once."""
    rows = []
    for errors in images:
        record = done.manifest.records[errors.place]
        for method, labels in errors.wrong.items():
            rows.append(
                {
                    "patient": record.patient,
                    "image": done.manifest.name(record),
                    "truth": record.label,
                    "method": method,
                    "n_answers": errors.n_answers[method],
                    "n_wrong": len(labels),
                    "wrong_labels": ", ".join(sorted(set(labels))),
                }
            )
    return rows


def patient_errors(done: Evaluation, images: Sequence[Errors]) -> list[dict[str, Any]]:
    """Patients with errors: wrong answers per method, and pictures of the images; most first."""
    by_patient: dict[str, list[Errors]] = {}
    for errors in images:
        by_patient.setdefault(done.manifest.records[errors.place].patient, []).append(errors)
    wrong = {name: own for name, own in by_patient.items() if any(e.n_wrong for e in own)}
    in_order = sorted(wrong, key=lambda name: -sum(errors.n_wrong for errors in wrong[name]))
    n_pictures = 0
    found = []
    for name in in_order:
        cards = []
        for errors in (errors for errors in wrong[name] if errors.n_wrong):
            cards.append(_card(done, errors, with_picture=n_pictures < _MOST_PICTURES))
            n_pictures += 1
        counts = [_wrong_of(wrong[name], method) for method in done.methods]
        found.append(
            {"patient": name, "n_images": len(wrong[name]), "counts": counts, "images": cards}
        )
    return found


def _wrong_of(images: Sequence[Errors], method: str) -> tuple[int, int]:
    """A method's wrong answers, and all its answers."""
    wrong = sum(len(errors.wrong.get(method, [])) for errors in images)
    return wrong, sum(errors.n_answers[method] for errors in images)


def _card(done: Evaluation, errors: Errors, *, with_picture: bool) -> dict[str, Any]:
    record, order = done.manifest.records[errors.place], done.methods.index
    said = [
        f"{method}: {', '.join(sorted(set(labels)))} ({len(labels)} of {errors.n_answers[method]})"
        for method, labels in sorted(errors.wrong.items(), key=lambda item: order(item[0]))
    ]
    uri, map_uri, map_of = _pictures(record, errors) if with_picture else (None, None, None)
    return {
        "name": done.manifest.name(record),
        "truth": record.label,
        "said": said,
        "uri": uri,
        "map_uri": map_uri,
        "map_of": map_of,
    }


def _pictures(record: Record, errors: Errors) -> tuple[str, str | None, str | None]:
    """The image; the patch map behind the first wrong answer that has one, and whose it is."""
    with open_image(record.path) as source:
        picture = _uri(source.thumbnail(min(_SHOWN_PX, max(source.size))))
    for result, i in errors.seen:
        patch_map = result.answered.map_of(i)
        if patch_map is not None:
            task = result.task
            whose = f"{task.method}, {task.split.name}, seed {task.seed}"
            return picture, _uri(draw_overlay(replace(patch_map, path=record.path))), whose
    return picture, None, None


def _uri(pixels: NDArray[np.uint8]) -> str:
    picture = Image.fromarray(pixels)
    picture.thumbnail((_SHOWN_PX, _SHOWN_PX))
    return image_uri(np.asarray(picture), quality=82)
