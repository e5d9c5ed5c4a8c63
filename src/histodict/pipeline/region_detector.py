"""Where in the image is it? Regions of one class of tissue, from masks or from crops of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..decisions.image_rules import Evidence
from ..decisions.regions import Corner, Findings, SizeCurve, compare, label_regions, polygons
from ..execution.array_cache import ArrayCache
from ..execution.executor import Executor
from ..execution.progress import Callback, ignore
from ..images.manifest import Manifest, Record
from ..images.masks import RegionMask
from ..images.readers import open_image
from ..methods.registry import method_entry
from ..recipes import Recipe, preset
from .patch_model import BLANK, HALF, PatchMap, PatchModel, PatchSource


@dataclass(frozen=True)
class Region:
    """One region: its size, how clear it is, and its outline in level-0 pixels.

    score : mean margin of its patches, the residual of the other class less its own
    area_um2 : None where the pixel size is not known
    polygons : per polygon its outer ring and its holes, closed rings of (x, y)
    """

    n_patches: int
    score: float
    area_px: float
    area_um2: float | None
    box: tuple[float, float, float, float]
    polygons: list[list[list[tuple[float, float]]]]


@dataclass(frozen=True)
class RegionAnswer:
    """The regions of one image, largest first, and the call they make; None: only glass.

    score : patches of the largest set of connected positive patches; the call is positive from
        `least_patches` (m) on
    """

    path: Path
    label: str | None
    score: int
    least_patches: int
    n_patches: int
    regions: list[Region]
    patch_map: PatchMap


class RegionDetector:
    """Finds regions of one class of tissue in images.

    It learns from images with masks (a `mask` column in the manifest; an image without a mask cell
    counts as all of its class), or from crops: images labelled by class, of which those of the
    positive class show the region and nothing else.

    Parameters
    ----------
    recipe : a `Recipe`, or the name of a preset
    method : the method to take in the preset, one that works on patches
    region : the name of what is looked for: the positive class's label, or any name for masks;
        with two classes and no masks, None takes the second
    random_state : seed
    n_jobs : threads; None for all cores
    cache : folder for what is costly to compute of an image; None keeps nothing

    Attributes
    ----------
    classes_ : [other, region]
    least_patches_ : m, connected patches from which a region counts
    curve_ : miss and false alarm rates of the training images for m = 1 … 20
    model_ : the patch model
    training_ : what is known of the training, for the record
    """

    classes_: list[str]
    least_patches_: int
    curve_: SizeCurve
    model_: PatchModel
    training_: dict[str, Any]

    def __init__(
        self,
        recipe: Recipe | str = "regions",
        *,
        method: str | None = None,
        region: str | None = None,
        random_state: int = 0,
        n_jobs: int | None = None,
        cache: Path | str | None = None,
    ) -> None:
        self.recipe = preset(recipe, method) if isinstance(recipe, str) else recipe
        self.region = region
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.cache = ArrayCache(cache) if cache else None
        if self.recipe.candidates > 1 or self.recipe.calibration_folds > 1:
            raise ValueError(
                "settings are tuned, and answers calibrated, for classes, not for regions: choose "
                "another preset, and leave calibration_folds alone"
            )
        if method_entry(self.recipe.method).features is not None:
            raise ValueError(
                f"the method {self.recipe.method!r} looks at the image as a whole and cannot say "
                "where something is: choose one that works on patches"
            )

    def fit(
        self,
        manifest: Manifest,
        *,
        callback: Callback = ignore,
        executor: Executor | None = None,
        start_from: RegionDetector | None = None,
    ) -> RegionDetector:
        """Train on patches inside and outside the regions, then choose m on the same images.

        `executor` reads the images and codes their patches; None: threads. `start_from`: a model
        of the same recipe and classes; its dictionaries are gone on from (a warm start).
        """
        self.classes_ = _choose_classes(manifest, self.region)
        records = manifest.records
        sources = [s for record in records for s in _sources(record, self.classes_[1])]
        model = PatchModel(self.recipe, self.classes_, self.random_state, self.n_jobs, self.cache)
        start = model.start(start_from.model_) if start_from else None
        n_patches = model.fit(sources, callback, executor, start)

        def look(place: int, patch_map: PatchMap, evidence: Evidence) -> Findings:
            tissue = patch_map.winners != BLANK
            truth = true_patches(records[place], patch_map, self.classes_[1])
            return compare(patch_map.winners == 1, truth & tissue, tissue)

        self.curve_ = SizeCurve.of(model.judge_all(records, look, callback, executor))
        self.least_patches_ = self.curve_.least_patches
        self.model_ = model
        self.training_ = {
            "manifest_digest": manifest.digest(),
            "n_images": len(records),
            "n_patients": len(set(manifest.patients)),
            "random_state": self.random_state,
            "n_patches": n_patches,
        }
        if start_from is not None:
            self.training_["started_from"] = start_from.training_
        return self

    def detect(self, path: Path | str, *, mpp: float | None = None) -> RegionAnswer:
        """The regions of an image or slide; mpp overrides its pixel size."""
        path = Path(path)
        patch_map, evidence = self.model_.judge(path, mpp)
        with open_image(path, mpp) as source:
            known_mpp = source.mpp
        places, sizes = label_regions(patch_map.winners == 1)
        largest = int(sizes.max(initial=0))
        numbers = np.argsort(-sizes, kind="stable") + 1
        regions = [
            _region(patch_map, places == number, known_mpp)
            for number in numbers
            if sizes[number - 1] >= self.least_patches_
        ]
        label = self.classes_[int(largest >= self.least_patches_)] if evidence.n_patches else None
        return RegionAnswer(
            path, label, largest, self.least_patches_, evidence.n_patches, regions, patch_map
        )


def true_patches(record: Record, patch_map: PatchMap, region: str) -> NDArray[np.bool_]:
    """Which patches of the map are region by the record's mask, or by its label without one."""
    grid = patch_map.grid
    if record.mask is None:
        return np.full((grid.n_rows, grid.n_columns), record.label == region)
    with open_image(record.path, record.mpp) as source:
        mask = RegionMask.read(record.mask, source.size)
    step = grid.stride_px * grid.downsample
    x, y = np.meshgrid(np.arange(grid.n_columns) * step, np.arange(grid.n_rows) * step)
    return mask.share(x, y, grid.patch_side) >= HALF


def _choose_classes(manifest: Manifest, region: str | None) -> list[str]:
    """[other, region] from the labels; where only masks tell, from the region's name."""
    labels = manifest.classes
    if any(record.mask for record in manifest.records):
        name = region or "region"
        return [f"no {name}", name]
    if len(labels) != 2:
        raise ValueError(
            "to learn regions, give images with masks (a column 'mask'), or crops of two classes; "
            f"there are no masks, and the classes are {labels}"
        )
    if region is None:
        return labels
    if region not in labels:
        raise ValueError(f"the region {region!r} is not among the classes {labels}")
    return [next(label for label in labels if label != region), region]


def _sources(record: Record, region: str) -> list[PatchSource]:
    if record.mask is None:
        return [PatchSource(record, int(record.label == region))]
    return [PatchSource(record, int(inside), inside) for inside in (False, True)]


def _region(patch_map: PatchMap, cells: NDArray[np.bool_], mpp: float | None) -> Region:
    grid = patch_map.grid
    step = grid.stride_px * grid.downsample
    # Overlapping patches are drawn as the cells they are nearest to.
    shift = (grid.patch_side - step) / 2

    def place(corner: Corner) -> tuple[float, float]:
        return corner[0] * step + shift, corner[1] * step + shift

    rows, columns = np.nonzero(cells)
    area = float(cells.sum()) * step**2
    return Region(
        n_patches=int(cells.sum()),
        score=float(patch_map.margins[..., 1][cells].mean()),
        area_px=area,
        area_um2=area * mpp**2 if mpp else None,
        box=(
            *place((int(columns.min()), int(rows.min()))),
            *place((int(columns.max()) + 1, int(rows.max()) + 1)),
        ),
        polygons=[
            [[place(corner) for corner in ring] for ring in polygon] for polygon in polygons(cells)
        ],
    )
