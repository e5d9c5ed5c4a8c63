"""How good regions are, patch by patch: of the patches on tissue, those of which half or more lies
in the true region against those in regions that were found.

Patches are counted image by image, so that patients can be drawn: whatever is measured follows from
sums of these counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation.answers import Repeat
from ..evaluation.intervals import Metric, UndefinedMetricError
from ..evaluation.metrics import RocCurve
from ..images.manifest import ImageRecord
from ..patches.outlines import label_regions
from ..patches.patch_map import PatchMap
from ..pipeline.region_truth import labelled_patch_mask, map_in_region, region_patch_mask

_N_BINS = 1000  # of patches' margins: their AUC is then right to three digits, however many
_N_TABLE = 4  # hits, misses, false alarms, rest
KINDS = "outside of regions", "inside of regions"


@dataclass(frozen=True)
class PatchEvaluation:
    """The patches of an image that are tissue: margins, truth and whether found, each (n,)."""

    margins: NDArray[np.float32]
    truth: NDArray[np.bool_]
    found: NDArray[np.bool_]

    @classmethod
    def of(cls, record: ImageRecord, patch_map: PatchMap, least: int) -> PatchEvaluation:
        """Against the record's mask or label; a region counts from `least` connected patches on."""
        tissue = labelled_patch_mask(record, patch_map)
        places, sizes = label_regions(patch_map.predicted_classes == 1)
        counts = np.concatenate([[False], sizes >= least])[places]
        truth = region_patch_mask(record, patch_map)
        return cls(patch_map.margins[..., 1][tissue], truth[tissue], counts[tissue])

    def table(self) -> NDArray[np.int64]:
        """Hits, misses, false alarms, rest."""
        kinds = [(t, f) for t in (self.truth, ~self.truth) for f in (self.found, ~self.found)]
        return np.array([int((truth & found).sum()) for truth, found in kinds])


def outlined_tables(record: ImageRecord, patch_map: PatchMap) -> dict[str, NDArray[np.int64]]:
    """Per class hits, misses, false alarms, rest, of patches on tissue that lie in an outline of
    any of the classes: of the others it is not known what they are.
    """
    truths = [map_in_region(record, name, patch_map) for name in patch_map.classes]
    known = np.any(truths, axis=0) & patch_map.tissue
    return {
        name: PatchEvaluation(
            patch_map.margins[..., place][known],
            truth[known],
            patch_map.predicted_classes[known] == place,
        ).table()
        for place, (name, truth) in enumerate(zip(patch_map.classes, truths, strict=True))
    }


def patch_counts(images: Sequence[PatchEvaluation]) -> NDArray[np.int64]:
    """(n_images, n): hits, misses, false alarms, rest; then patches by margin, in bins of about as
    many each, of the region and of the rest.
    """
    if not images:
        return np.zeros((0, _N_TABLE + 2), np.int64)
    margins = np.concatenate([judged.margins for judged in images])
    shares = np.linspace(0, 1, _N_BINS + 1)[1:-1]
    edges = np.unique(np.quantile(margins, shares)) if len(margins) else np.zeros(0)
    return np.array([_counts(judged, edges) for judged in images])


def _counts(judged: PatchEvaluation, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    bins = np.searchsorted(edges, judged.margins, side="right")
    kinds = judged.truth, ~judged.truth
    by_margin = [np.bincount(bins[kind], minlength=len(edges) + 1) for kind in kinds]
    return np.concatenate([judged.table(), *by_margin])


def dice(table: NDArray[np.int64]) -> float | None:
    """Of hits, misses, false alarms, rest; None where no region is and none was found."""
    try:
        return PATCH_METRICS["Dice"](np.empty(0), table[None])
    except UndefinedMetricError:
        return None


def split_inside_outside(repeat: Repeat) -> Repeat:
    """A repeat of counts with a row for the patches inside of an image's regions and one for those
    outside, as far as there are any, labelled as such: draws of patients then have both.
    """
    n_bins = (repeat.predictions.shape[1] - _N_TABLE) // 2
    # The columns that count patches of the region.
    inside = np.repeat([True, False, True, False], [2, 2, n_bins, n_bins])
    counts = np.concatenate([repeat.predictions * ~inside, repeat.predictions * inside])
    labels = np.repeat(KINDS, len(repeat.predictions))
    some = counts.any(axis=1)
    return Repeat(labels[some], np.tile(repeat.patients, 2)[some], counts[some])


def patch_roc(counts: NDArray[np.int64]) -> RocCurve:
    """Of patches over all margins (bins of them), and where it works: in regions that count."""
    hits, misses, alarms, rest = counts[:, :_N_TABLE].sum(axis=0).tolist()
    inside, outside = np.split(counts[:, _N_TABLE:].sum(axis=0), 2)
    miss, below = (np.cumsum([0, *kind]) / max(1, kind.sum()) for kind in (inside, outside))
    operating = alarms / max(1, alarms + rest), misses / max(1, hits + misses)
    return RocCurve(1 - below, miss, operating)


def _fraction(
    part: tuple[int, ...], whole: tuple[int, ...], labels: NDArray[Any], counts: NDArray[np.int64]
) -> float:
    """A sum of hits, misses, false alarms and rest, each taken so many times, over another."""
    total = counts[:, :_N_TABLE].sum(axis=0)
    if not total @ whole:
        raise UndefinedMetricError("there are no patches of which to tell")
    return float(total @ part / (total @ whole))


def _binned_auc(labels: NDArray[Any], counts: NDArray[np.int64]) -> float:
    inside, outside = np.split(counts[:, _N_TABLE:].sum(axis=0), 2)
    if not inside.sum() or not outside.sum():
        raise UndefinedMetricError("AUC needs patches inside and outside of regions")
    below = np.cumsum(outside) - outside
    return float((inside * (below + outside / 2)).sum() / (inside.sum() * outside.sum()))


# Of counts (n_images, n) as above; the first is what methods are compared by.
PATCH_METRICS: dict[str, Metric] = {
    "AUC": _binned_auc,
    "Dice": partial(_fraction, (2, 0, 0, 0), (2, 1, 1, 0)),
    "sensitivity": partial(_fraction, (1, 0, 0, 0), (1, 1, 0, 0)),
    "specificity": partial(_fraction, (0, 0, 0, 1), (0, 0, 1, 1)),
}
# Of a class with its outlines, from the same counts.
OVERLAPS: dict[str, Metric] = {
    "Dice": PATCH_METRICS["Dice"],
    "IoU": partial(_fraction, (1, 0, 0, 0), (1, 1, 1, 0)),
}
