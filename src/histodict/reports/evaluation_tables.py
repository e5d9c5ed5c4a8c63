"""What was tested and how, in words, from what an evaluation knows of its data and splits.

What went wrong in an evaluation: confusions, errors by patient, and the images themselves.

What went wrong where regions were looked for: patches missed and found in vain, by image.
"""

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
from ..evaluation.measures import dice, patch_evaluation
from ..evaluation.runs import UNLABELLED, EvaluationResult
from ..images.pixel_size import PixelSizeOption
from ..images.source import open_image
from ..model_selection.splits import shared_patients
from ..models import NO_TISSUE_LABEL, Plan
from ..models.recipe import Recipe
from ..models.region_detector import region_patch_mask
from ..patches.patch_map import NO_TISSUE, PatchMap, Ring
from ..patches.rendering import draw_overlay, jpeg_data_uri
from ..utils.text_io import Row, pluralize

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


NOT_RECORDED = "not recorded"
SummaryRow = tuple[str, str]


# --- phrases ------------------------------------------------------------------------------------


def span(values: Iterable[int]) -> str:
    low, *_, high = sorted([*values] * 2)
    return str(low) if low == high else f"{low} to {high}"


def join_names(named: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in named.items())


def format_interval(row: Row) -> str:
    """A value with its interval, as everywhere in the report."""
    return f"{row['value']:.3f} ({row['low']:.3f} to {row['high']:.3f})"


def describe_plan(plan: Plan) -> str:
    """A plan's settings on one line."""
    words = recipe_text(plan.recipe)
    others = plan.recipes[1:]
    if others:
        views = [f"{o.method} ({o.stain}, {pixel_size_text(o)})" for o in others]
        words += f"; decides together with {len(others)} other views: {', '.join(views)}"
    return words


def recipe_text(recipe: Recipe) -> str:
    """A recipe's settings on one line; those of the patches only where there are patches."""
    parameters = join_names(recipe.method_parameters)
    parts = [
        parameters or "no parameters",
        pixel_size_text(recipe),
        f"stain correction {recipe.stain}",
    ]
    if get_patch_features(recipe.features).is_precomputed:
        parts[1:] = ["vectors of feature files"]
        parts += [f"rule {recipe.aggregation}"] if recipe.is_patch_level else []
    elif recipe.is_patch_level:
        patches = f"patches of {recipe.patch_px} px every {recipe.grid_stride_px} px"
        if recipe.context_scale > 1:
            patches += f" with {recipe.context_scale} times as wide surroundings"
        if recipe.quality_filters != "none":
            patches += f" without {recipe.quality_filters.replace(',', ', ')}"
        if recipe.smoothing_radius:
            patches += (
                f", each judged with those {pluralize(recipe.smoothing_radius, 'step')} around"
            )
        parts += [patches, f"vectors {recipe.features}", f"rule {recipe.aggregation}"]
        parts += [f"{recipe.patches_per_class} patches per class"]
    return "; ".join(parts)


def pixel_size_text(recipe: Recipe) -> str:
    """The size at which images are looked at."""
    if recipe.mpp:
        return f"{recipe.mpp:g} µm per pixel"
    return f"reduced {recipe.downsample:g} times" if recipe.downsample > 1 else "full size"


def selection_text(done: Evaluation) -> list[str]:
    """Return warnings about optimistic scores of methods tested on the same images."""
    found = []
    n_methods = len(done.methods)
    if n_methods > 1:
        found.append(
            f"The score of the best of these {n_methods} methods is too optimistic if these scores "
            "are used to choose it: test the chosen method on further patients."
        )
    adapted = [name for name in done.methods if name.endswith(UNLABELLED)]
    if adapted:
        found.append(
            f"The threshold of {' and '.join(adapted)} was adapted to the test images, without "
            "their labels: it needs that many unlabelled images of every new hospital."
        )
    return found


# --- data and protocol --------------------------------------------------------------------------


def data_summary(done: Evaluation) -> list[SummaryRow]:
    records = done.manifest.records
    per_patient = [done.manifest.patients.count(name) for name in set(done.manifest.patients)]
    sites = sorted({record.site for record in records if record.site})
    found = [PixelSizeOption(table=record.mpp).at(record.path).mpp for record in records]
    scales = sorted({mpp for mpp in found if mpp})
    n_unscaled = found.count(None)
    sizes = ", ".join(f"{mpp:g} µm" for mpp in scales)
    if n_unscaled and scales:
        sizes += f"; {NOT_RECORDED} for {pluralize(n_unscaled, 'image')}"
    return [
        ("Images", f"{len(records)}"),
        ("Patients", f"{len(per_patient)}, with {span(per_patient)} images each"),
        ("Classes", ", ".join(done.classes)),
        *([("Class to be found", done.classes[1])] if len(done.classes) == 2 else []),
        ("Sites", f"{len(sites)}: {', '.join(sites)}" if sites else NOT_RECORDED),
        ("Pixel size", sizes or NOT_RECORDED),
    ]


def class_rows(done: Evaluation) -> list[dict[str, Any]]:
    """Images, patients and sites of each class."""
    rows = []
    for name in done.classes:
        own = [record for record in done.manifest.records if record.label == name]
        sites = {record.site for record in own if record.site}
        patients = {record.patient for record in own}
        rows.append(
            {"name": name, "images": len(own), "patients": len(patients), "sites": len(sites)}
        )
    return rows


def tested_images(done: Evaluation) -> list[ImageRecord]:
    places = sorted({place for split in done.splits for place in split.test})
    return [done.manifest.records[place] for place in places]


def tested_patients(done: Evaluation) -> set[str]:
    return {record.patient for record in tested_images(done)}


def split_by_image(done: Evaluation) -> bool:
    return any(split.by == "image" for split in done.splits)


def n_shared_patients(done: Evaluation) -> int:
    """Patients that were trained on and tested in one and the same split."""
    shared = (shared_patients(done.manifest, split) for split in done.splits)
    return len(set().union(*shared))


def protocol_summary(done: Evaluation) -> list[SummaryRow]:
    apart = "patients: no patient is on both sides of a split"
    n_splits, n_seeds, n_methods = len(done.splits), len(done.seeds), len(done.plans)
    return [
        ("Kept apart", "images only, NOT patients" if split_by_image(done) else apart),
        ("Protocol", _protocol_text(done)),
        ("Trained on", f"{side_text(done, 'train')} each time"),
        ("Tested on", f"{side_text(done, 'test')} each time"),
        (
            "Trainings",
            f"{n_splits * n_seeds * n_methods}: {pluralize(n_splits, 'split')}, "
            f"{pluralize(n_seeds, 'seed')}, {pluralize(n_methods, 'method')}",
        ),
    ]


def _protocol_text(done: Evaluation) -> str:
    protocol = done.splits.protocol
    repeats = pluralize(len({split.repeat for split in done.splits}), "repeat")
    sizes = ", ".join(str(size) for size in done.sizes())
    words = {
        "k-fold": f"{protocol.get('n_folds')} folds, so that every image is tested once; {repeats}",
        "hold-out": f"one half to test on, {sizes} images per class of the other to learn from; "
        f"{repeats}",
        "leave one site out": "one site to test on, all others to learn from, each in turn",
        "predefined": "the split that came with the data",
    }
    kind = str(protocol.get("kind", NOT_RECORDED))
    return f"{kind}: {words[kind]}" if kind in words else kind


def side_text(done: Evaluation, side: str) -> str:
    """Of "train" or "test"."""
    places = [split.train if side == "train" else split.test for split in done.splits]
    n_patients = [len({done.manifest.records[i].patient for i in own}) for own in places]
    return f"{span(map(len, places))} images of {span(n_patients)} patients"


_MAX_REGION_IMAGES = 24  # the worst images; the table has all


@dataclass(frozen=True)
class RegionResult:
    """An answer, and its patches (4,): hits, misses, false alarms, rest."""

    predicted: ImageResult
    table: NDArray[np.int64]

    @property
    def n_wrong(self) -> int:
        return int(self.table[1] + self.table[2])


def region_results(shown: Sequence[ImageResult]) -> list[RegionResult]:
    return [RegionResult(s, patch_evaluation(s.result, s.i, s.record).table()) for s in shown]


def patch_confusions(done: Evaluation, answers: Sequence[RegionResult]) -> list[dict[str, Any]]:
    """Per method: patches by true class and answer, added up over repeats and seeds."""
    found = []
    for method in done.methods:
        hits, misses, alarms, rest = _total(answers, method).tolist()
        counts = [[rest, alarms], [misses, hits]]
        found.append({"method": method, "answers": done.classes, "counts": counts})
    return found


def patch_error_rows(done: Evaluation, answers: Sequence[RegionResult]) -> list[Row]:
    """A row for every image and method: its patches, over repeats and seeds."""
    rows = []
    for own in _by_image(answers):
        record = own[0].predicted.record
        for method in done.methods:
            hits, misses, alarms, rest = (total := _total(own, method)).tolist()
            rows.append(
                {
                    "patient": record.patient,
                    "image": done.manifest.name(record),
                    "truth": record.label,
                    "method": method,
                    "n_patches": hits + misses + alarms + rest,
                    "misses": misses,
                    "false_alarms": alarms,
                    "Dice": dice(total),
                }
            )
    return rows


def image_errors(done: Evaluation, answers: Sequence[RegionResult]) -> list[dict[str, Any]]:
    """Every image, the ones with most wrong patches first, and pictures of the worst."""
    images = sorted(_by_image(answers), key=lambda own: -sum(one.n_wrong for one in own))
    return [_region_card(done, own, place < _MAX_REGION_IMAGES) for place, own in enumerate(images)]


def _region_card(
    done: Evaluation, own: Sequence[RegionResult], with_picture: bool
) -> dict[str, Any]:
    record = own[0].predicted.record
    totals = {method: _total(own, method) for method in done.methods}
    return {
        "name": done.manifest.name(record),
        "patient": record.patient,
        "said": {method: _text(total) for method, total in totals.items()},
        "uri": _image(own[0].predicted) if with_picture else None,
        "map_of": own[0].predicted.patient,
    }


def _text(total: NDArray[np.int64]) -> str:
    value = dice(total)
    share = "no region, none found" if value is None else f"Dice {value:.3f}"
    return f"{share}; {total[1]} patches missed, {total[2]} in vain, of {total.sum()}"


def _image(said: ImageResult) -> str:
    """The map, with the true region outlined patch by patch."""
    found = said.result.predicted.map_of(said.i)
    assert found is not None  # its patches were counted
    patch_map = replace(found, path=said.record.path)
    words = f"{said.label}; outlined: the true region"
    rings = _true_rings(said, patch_map)
    drawn = draw_overlay(patch_map, words, rings, longest_side=DISPLAY_PX)
    return jpeg_data_uri(drawn, quality=82)


def _true_rings(said: ImageResult, patch_map: PatchMap) -> list[Ring]:
    truth = region_patch_mask(said.record, patch_map)
    winners = np.where(patch_map.predicted_classes == NO_TISSUE, NO_TISSUE, truth).astype(np.int16)
    found = replace(patch_map, predicted_classes=winners).regions(1, 1)
    return [ring for _, _, polygons in found for polygon in polygons for ring in polygon]


def _total(answers: Sequence[RegionResult], method: str) -> NDArray[np.int64]:
    tables = [one.table for one in answers if one.predicted.method == method]
    total: NDArray[np.int64] = np.sum(tables, axis=0)
    return total


def _by_image(answers: Sequence[RegionResult]) -> list[list[RegionResult]]:
    """In the order of the manifest; the first method's answers first."""
    groups: dict[int, list[RegionResult]] = {}
    for one in sorted(answers, key=lambda one: one.predicted.position):
        groups.setdefault(one.predicted.position, []).append(one)
    return list(groups.values())
