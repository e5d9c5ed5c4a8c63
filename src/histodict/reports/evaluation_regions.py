"""What went wrong where regions were looked for: patches missed and found in vain, by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..compare.evaluation import Evaluation
from ..compare.measures import patch_evaluation
from ..compare.patch_measures import dice
from ..execution.tables import Row
from ..patches.overlay import draw_overlay
from ..patches.patch_map import NO_TISSUE, PatchMap, Ring
from ..patches.pictures import jpeg_data_uri
from ..pipeline.region_truth import region_patch_mask
from .evaluation_errors import DISPLAY_PX, ImageResult

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
    return [_card(done, own, place < _MAX_REGION_IMAGES) for place, own in enumerate(images)]


def _card(done: Evaluation, own: Sequence[RegionResult], with_picture: bool) -> dict[str, Any]:
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
