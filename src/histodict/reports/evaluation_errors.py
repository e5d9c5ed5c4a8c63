"""What went wrong in an evaluation: confusions, errors by patient, and the images themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from ..compare.evaluation import Evaluation
from ..compare.tasks import EvaluationResult
from ..execution.tables import Row
from ..images.manifest import ImageRecord
from ..images.readers import open_image
from ..patches.overlay import draw_overlay
from ..patches.pictures import jpeg_data_uri
from ..pipeline import NO_TISSUE_LABEL

DISPLAY_PX = 300
# A page of more pictures is slow to open; the others are named.
_MAX_ERROR_IMAGES = 150


@dataclass(frozen=True)
class ImageResult:
    """An answer: the i-th of a result, for the image at this place of the manifest."""

    position: int
    record: ImageRecord
    method: str
    label: str
    result: EvaluationResult
    i: int

    @property
    def is_wrong(self) -> bool:
        return self.label != self.record.label

    @property
    def patient(self) -> str:
        """By which model it was said."""
        task = self.result.task
        return f"{task.method}, {task.split.name}, seed {task.seed}"


def displayed_rows(done: Evaluation) -> list[ImageResult]:
    """Those of the methods in the tables, at the largest training size."""
    methods, size = done.methods, done.shown_size
    return [
        ImageResult(
            place, done.manifest.records[place], task.method, result.predicted.labels[i], result, i
        )
        for result, task in ((result, result.task) for result in done.results)
        if task.method in methods and task.split.n_per_class == size
        for i, place in enumerate(task.split.test)
    ]


# --- confusions ---------------------------------------------------------------------------------


def confusions(done: Evaluation, shown: Sequence[ImageResult]) -> list[dict[str, Any]]:
    """Per method: images by true class and answer, added up over repeats and seeds."""
    counts = Counter((said.method, said.record.label, said.label) for said in shown)
    found = []
    for method in done.methods:
        glass = any((method, truth, NO_TISSUE_LABEL) in counts for truth in done.classes)
        answers = [*done.classes, NO_TISSUE_LABEL] if glass else done.classes
        table = [[counts[method, truth, label] for label in answers] for truth in done.classes]
        found.append({"method": method, "answers": answers, "counts": table})
    return found


def confusion_rows(done: Evaluation, confusions: list[dict[str, Any]]) -> list[Row]:
    return [
        {"method": matrix["method"], "truth": truth, "label": label, "n_answers": n_answers}
        for matrix in confusions
        for truth, counts in zip(done.classes, matrix["counts"], strict=True)
        for label, n_answers in zip(matrix["answers"], counts, strict=True)
    ]


# --- images and patients ------------------------------------------------------------------------


def error_rows(done: Evaluation, shown: Sequence[ImageResult]) -> list[Row]:
    """A row for every method and image that it got wrong at least once."""
    rows = []
    for image in _grouped(shown, lambda said: said.position):
        record = image[0].record
        for method in dict.fromkeys(said.method for said in image if said.is_wrong):
            labels, n_wrong, n_answers = _errors(image, method)
            rows.append(
                {
                    "patient": record.patient,
                    "image": done.manifest.name(record),
                    "truth": record.label,
                    "method": method,
                    "n_answers": n_answers,
                    "n_wrong": n_wrong,
                    "wrong_labels": labels,
                }
            )
    return rows


def patient_errors(done: Evaluation, shown: Sequence[ImageResult]) -> list[dict[str, Any]]:
    """Patients with errors: wrong answers per method, and pictures of the images; most first."""
    patients = _grouped(shown, lambda said: said.record.patient)
    n_cards = count(1)
    found = []
    for own in sorted(patients, key=lambda own: -sum(said.is_wrong for said in own)):
        images = _grouped(own, lambda said: said.position)
        wrong = [image for image in images if any(said.is_wrong for said in image)]
        cards = [_card(done, image, next(n_cards) <= _MAX_ERROR_IMAGES) for image in wrong]
        counts = [_errors(own, method)[1:] for method in done.methods]
        patient = own[0].record.patient
        found.append(
            {"patient": patient, "n_images": len(images), "counts": counts, "images": cards}
        )
    return [row for row in found if row["images"]]


def _grouped(
    shown: Sequence[ImageResult], key: Callable[[ImageResult], object]
) -> list[list[ImageResult]]:
    """The answers by what `key` gives, in the order of the manifest."""
    groups: dict[object, list[ImageResult]] = {}
    for said in sorted(shown, key=lambda said: said.position):
        groups.setdefault(key(said), []).append(said)
    return list(groups.values())


def _errors(shown: Sequence[ImageResult], method: str) -> tuple[str, int, int]:
    """A method's wrong labels, the number of its wrong answers, and of all its answers."""
    own = [said for said in shown if said.method == method]
    wrong = [said.label for said in own if said.is_wrong]
    return ", ".join(sorted(set(wrong))), len(wrong), len(own)


def _card(done: Evaluation, image: Sequence[ImageResult], with_picture: bool) -> dict[str, Any]:
    record = image[0].record
    errors = {method: _errors(image, method) for method in done.methods}
    uri, map_uri, map_of = _images(image) if with_picture else (None, None, None)
    return {
        "name": done.manifest.name(record),
        "truth": record.label,
        "said": [f"{m}: {labels} ({n} of {of})" for m, (labels, n, of) in errors.items() if n],
        "uri": uri,
        "map_uri": map_uri,
        "map_of": map_of,
    }


def _images(image: Sequence[ImageResult]) -> tuple[str, str | None, str | None]:
    """The image; the patch map behind the first wrong answer that has one, and whose it is."""
    record = image[0].record
    with open_image(record.display_image) as source:
        pixels = source.thumbnail(min(DISPLAY_PX, max(source.size)))
        picture = jpeg_data_uri(pixels, quality=82)
    for said in (said for said in image if said.is_wrong):
        patch_map = said.result.predicted.map_of(said.i)
        if patch_map is not None:
            score = max(said.result.predicted.scores[said.i])
            words = f"{said.label}, score {score:+.2f}"
            patch_map = replace(patch_map, path=record.path)
            shown = patch_map.covering(record.image) if record.image else patch_map
            drawn = draw_overlay(shown, words, longest_side=DISPLAY_PX)
            return picture, jpeg_data_uri(drawn, quality=82), said.patient
    return picture, None, None
