"""Patch maps: predicted classes and margins of the patches of an image, with their regions."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from ..images.file_types import ImageError
from ..images.memory_image import ImageLike
from ..images.source import open_image
from ..utils.files import NPZ_ERRORS, atomic_write
from .grid import PatchGrid
from .region_borders import Polygon, RegionBorders, label_regions

NO_TISSUE = -1  # class of background patches
# Distinguishable for colour-blind readers (Okabe and Ito); the first is usually healthy.
COLOURS = np.array(
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [240, 228, 66], [86, 180, 233]],
    np.float64,
)
_OPACITY = 0.45

Ring = list[tuple[float, float]]
Window = tuple[slice, slice]


class PatchArea(NamedTuple):
    """Region of connected patches of one class.

    Attributes
    ----------
    n_patches : number of patches
    margins : mean margin of the patches for each class
    concept_usage : fraction of the patches that use each named concept
    polygons : outlines, whose vertices are corners (column, row) of grid cells; see
        `PatchMap.cell_corner` for the conversion to image coordinates
    """

    n_patches: int
    margins: list[float]
    concept_usage: dict[str, float]
    polygons: list[Polygon]


def class_rgb(class_index: int) -> tuple[int, int, int]:
    """Return the RGB colour of a class, which is the same in images, HTML pages and QuPath."""
    red, green, blue = COLOURS[class_index % len(COLOURS)].astype(int).tolist()
    return red, green, blue


def class_css_colour(class_index: int) -> str:
    """Return the colour of a class in CSS notation."""
    return f"rgb{class_rgb(class_index)}"


@dataclass(frozen=True)
class PatchMap:
    """Predicted class and class margins of each patch of a grid.

    Attributes
    ----------
    grid : positions of the patches
    predicted_classes : (n_rows, n_columns), class index; NO_TISSUE on background
    margins : (n_rows, n_columns, n_classes), mean residual of the other classes minus the residual
        of a class; after `centre_on_score`, contributions of the patches to the image's scores
    classes : class names by index
    path : image file or array
    mpp : µm per level-0 pixel; None if unknown
    offset : (x, y) of the image's upper left pixel in level-0 coordinates of OpenSlide and QuPath
    excluded : description of the tissue that quality filters exclude; empty if nothing is excluded,
        None without filters
    concepts : for each named concept, the mask (n_rows, n_columns) of the patches that use it
    whole_image : whether all patches count as tissue because hardly any tissue was found
    size : (width, height) in level-0 pixels to which outlines are clipped, for feature files of a
        known slide size, whose patches may extend beyond the slide; otherwise None
    notes : limitations of the prediction, such as stain normalisation that was not possible
    """

    grid: PatchGrid
    predicted_classes: NDArray[np.int16]
    margins: NDArray[np.float32]
    classes: tuple[str, ...]
    path: ImageLike
    mpp: float | None = None
    offset: tuple[int, int] = (0, 0)
    excluded: str | None = None
    concepts: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    whole_image: bool = False
    size: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()

    @property
    def tissue(self) -> NDArray[np.bool_]:
        """Mask of the patches on tissue."""
        return self.predicted_classes != NO_TISSUE

    @property
    def n_patches(self) -> int:
        """Number of patches on tissue."""
        return int(self.tissue.sum())

    @property
    def proportions(self) -> dict[str, float]:
        """Fraction of the tissue patches predicted as each class."""
        total = max(1, self.n_patches)
        fractions = [
            float((self.predicted_classes == index).sum()) / total
            for index in range(self.n_classes)
        ]
        return dict(zip(self.classes, fractions, strict=True))

    @property
    def concept_usage(self) -> dict[str, float]:
        """Fraction of the tissue patches that use each named concept."""
        total = max(1, self.n_patches)
        return {name: float(used.sum()) / total for name, used in self.concepts.items()}

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    def threshold(self, margin: float) -> PatchMap:
        """Return the map of two classes, predicted anew with another margin threshold than 0.

        Parameters
        ----------
        margin : margin of the second class above which a patch is predicted as this class

        Returns
        -------
        PatchMap
        """
        if margin == 0:
            return self
        beyond = np.where(self.tissue, self.margins[..., 1] - np.float64(margin), 0)
        predicted = np.where(self.tissue, beyond > 0, NO_TISSUE).astype(np.int16)
        margins = _clip_to_half(np.stack([-beyond, beyond], axis=2))
        return replace(self, predicted_classes=predicted, margins=margins)

    def centre_on_score(
        self, contributions: NDArray[np.float64], scores: NDArray[np.float64]
    ) -> PatchMap:
        """Return the map with margins replaced by contributions to the scores of the image.

        The contributions are shifted so that their mean over tissue is equal to the scores.

        Parameters
        ----------
        contributions : (n_rows, n_columns, n_scores), contribution of each patch to each score, up
            to a constant
        scores : (n_scores,), scores of the image: one for two classes, which is positive for the
            second class; one per class for more

        Returns
        -------
        PatchMap
        """
        values = contributions + (scores - contributions[self.tissue].mean(axis=0))
        if len(scores) == 1:
            values = np.concatenate([-values, values], axis=2)
        # A value of 0 means the first class, as for the score of an image.
        predicted = np.where(self.tissue, values.argmax(axis=2), NO_TISSUE).astype(np.int16)
        margins = _clip_to_half(np.where(self.tissue[..., None], values, 0))
        return replace(self, predicted_classes=predicted, margins=margins)

    def align_to_image(self, image: Path) -> PatchMap:
        """Return the map of a feature file in the coordinates of the original image.

        Parameters
        ----------
        image : original image

        Returns
        -------
        PatchMap

        Raises
        ------
        ImageError
            If patches extend beyond the image.
        """
        with open_image(image) as source:
            size, offset = source.size, source.offset
        grid, (x, y) = self.grid, (old - new for old, new in zip(self.offset, offset, strict=True))
        moved = replace(grid, left=grid.left + x, top=grid.top + y)
        aligned = replace(self, grid=moved, path=image, offset=offset, size=size)
        ends = [float(new[self.tissue].max(initial=0)) for new in aligned.corners()]
        if any(end >= side for end, side in zip(ends, size, strict=True)):
            raise ImageError(
                f"{self.path}: the patches extend beyond the image {image} ({size[0]} x "
                f"{size[1]} pixels); coords must be level-0 pixels of this image"
            )
        return aligned

    def align_if_possible(self, image: Path) -> PatchMap:
        """Return the map aligned to the image; if that fails, warn and return the map unchanged.

        Parameters
        ----------
        image : original image

        Returns
        -------
        PatchMap
        """
        try:
            return self.align_to_image(image)
        except (ValueError, OSError) as error:
            warnings.warn(f"{error}; the map is rendered without the image", stacklevel=2)
            return self

    # --- image coordinates ----------------------------------------------------------------------

    def corners(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return level-0 coordinates of the upper left corners of all patches.

        Returns
        -------
        x, y : ndarray of shape (n_rows, n_columns)
        """
        grid = self.grid
        x, y = np.meshgrid(
            np.arange(grid.n_columns) * grid.step + grid.left,
            np.arange(grid.n_rows) * grid.step + grid.top,
        )
        return x, y

    def patch_ring(self, row: int, column: int) -> Ring:
        """Return the closed outline of a patch in level-0 pixels.

        Parameters
        ----------
        row, column : position on the grid

        Returns
        -------
        list of tuple
            Corners (x, y); the last is the first.
        """
        left, top = self.grid.corner(row, column)
        side = self.grid.patch_side
        right, bottom = self.clip(left + side, 0, side), self.clip(top + side, 1, side)
        return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]

    def clip(self, end: float, axis: int, width: float) -> float:
        """Clip the right or lower end of a grid cell to the slide.

        Only cells that cross the border become narrower. Cells entirely outside the slide, to which
        patches of a feature file may have been assigned, are unchanged.

        Parameters
        ----------
        end : level-0 coordinate of the end
        axis : 0 for x, 1 for y
        width : width of the cell in level-0 pixels

        Returns
        -------
        float
            Level-0 coordinate of the clipped end.
        """
        if self.size is None or not self.size[axis] < end < self.size[axis] + width:
            return end
        return float(self.size[axis])

    def cell_corner(self, corner: tuple[int, int]) -> tuple[float, float]:
        """Return the level-0 position of a corner of a grid cell, clipped to the slide.

        Parameters
        ----------
        corner : (column, row)

        Returns
        -------
        tuple of float
            Position (x, y).
        """
        x, y = self.grid.cell_corner(corner)
        return self.clip(x, 0, self.grid.step), self.clip(y, 1, self.grid.step)

    def cell_lines(self) -> tuple[list[float], list[float]]:
        """Return the level-0 positions of the lines between grid cells.

        Returns
        -------
        x : list of float
            Lines between columns.
        y : list of float
            Lines between rows.
        """
        grid = self.grid
        return (
            self._cell_lines_along(0, grid.n_columns, grid.left).tolist(),
            self._cell_lines_along(1, grid.n_rows, grid.top).tolist(),
        )

    def _cell_lines_along(self, axis: int, count: int, first: float) -> NDArray[np.float64]:
        lines: NDArray[np.float64] = np.arange(count + 1, dtype=np.float64) * self.grid.step
        lines += self.grid.shift
        lines += first
        if self.size is not None:
            end = self.size[axis]
            lines[(lines > end) & (lines < end + self.grid.step)] = end
        return lines

    def regions(
        self, class_index: int, min_patches: int = 1, max_regions: int | None = None
    ) -> Iterator[tuple[Window, NDArray[np.bool_], list[list[Ring]]]]:
        """Yield the regions (connected patches) of a class, the largest first.

        Parameters
        ----------
        class_index : index of the class
        min_patches : minimum number of patches of a region
        max_regions : maximum number of regions; None for all

        Yields
        ------
        window : tuple of slice
            Rows and columns that the region spans.
        mask : ndarray of bool
            Patches of the region in this window.
        polygons : list of list of Ring
            Each polygon is an outer ring, followed by the rings of its holes, in level-0 pixels.
        """
        labels, sizes = label_regions(self.predicted_classes == class_index)
        windows = ndimage.find_objects(labels)
        borders = RegionBorders(labels)
        numbers = [n for n in np.argsort(-sizes, kind="stable").tolist() if sizes[n] >= min_patches]
        for number in numbers[:max_regions]:
            is_member = labels[windows[number]] == number + 1
            polygons = [self._to_level0(polygon) for polygon in borders.polygons(number + 1)]
            yield windows[number], is_member, polygons

    def rings(self, class_index: int, min_patches: int, max_regions: int) -> list[list[float]]:
        """Return the outlines of the regions of a class, for fast drawing.

        Parameters
        ----------
        class_index : index of the class
        min_patches : minimum number of patches of a region
        max_regions : maximum number of regions, the largest first

        Returns
        -------
        list of list of float
            Each ring as x, y, x, y, … in level-0 pixels.
        """
        labels, sizes = label_regions(self.predicted_classes == class_index)
        is_selected = np.zeros(len(sizes) + 1, bool)
        is_selected[1 + np.argsort(-sizes, kind="stable")[:max_regions]] = True
        is_selected[1:] &= sizes >= min_patches
        borders = RegionBorders(np.where(is_selected[labels], labels, 0).astype(np.int32))
        return borders.rings(self.grid.step, self.grid.cell_corner((0, 0)))

    def areas(self, class_index: int) -> Iterator[PatchArea]:
        """Yield the regions of a class with their size, margins and polygons, the largest first.

        Parameters
        ----------
        class_index : index of the class

        Yields
        ------
        PatchArea
        """
        labels, sizes = label_regions(self.predicted_classes == class_index)
        borders = RegionBorders(labels)
        cells = np.nonzero(labels)
        numbers, margins = labels[cells] - 1, self.margins[cells]
        sums = [np.bincount(numbers, column, len(sizes)) for column in margins.T]
        means = np.stack(sums, axis=1) / sizes[:, None]
        usage = {
            name: np.bincount(numbers, used[cells], len(sizes)) / sizes
            for name, used in self.concepts.items()
        }
        for number in np.argsort(-sizes, kind="stable").tolist():
            concept_usage = {name: float(fractions[number]) for name, fractions in usage.items()}
            polygons = borders.polygons(number + 1)
            yield PatchArea(int(sizes[number]), means[number].tolist(), concept_usage, polygons)

    def _to_level0(self, polygon: Polygon) -> list[Ring]:
        step, first = self.grid.step, np.array(self.grid.cell_corner((0, 0)))
        rings = [ring * step + first for ring in polygon]
        if self.size is not None:
            is_beyond = [(ring > self.size) & (ring < np.array(self.size) + step) for ring in rings]
            rings = [
                np.where(at, self.size, ring) for at, ring in zip(is_beyond, rings, strict=True)
            ]
        return [list(map(tuple, ring.tolist())) for ring in rings]

    # --- colours --------------------------------------------------------------------------------

    def colours(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the colours of the predicted classes, and opacities.

        The opacity increases with the margin of the predicted class over the runner-up class.

        Returns
        -------
        colours : ndarray of shape (n_rows, n_columns, 3)
            RGB from 0 to 255.
        opacities : ndarray of shape (n_rows, n_columns)
            0 on background.
        """
        colours = COLOURS[np.where(self.tissue, self.predicted_classes, 0) % len(COLOURS)]
        ordered = np.sort(self.margins, axis=2)
        lead = ordered[..., -1] - ordered[..., -2]  # of the predicted class before the next
        median_lead = np.median(lead[self.tissue]) if self.tissue.any() else 1.0
        strength = np.clip(0.35 + 0.65 * lead / max(2 * median_lead, 1e-12), 0.35, 1.0)
        return colours, np.where(self.tissue, _OPACITY * strength, 0.0)

    # --- files ----------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Save the map to an .npz file without pickle; margins are rounded to half precision.

        Its arrays are `predicted_classes` and `margins`, `side` and `stride` of the patches in
        level-0 pixels, `facts` (metadata as JSON) and, if there are concepts, `concepts`, the masks
        of the patches that use each concept.

        Parameters
        ----------
        path : file to write
        """
        metadata = {
            "grid": asdict(self.grid),
            "classes": self.classes,
            "path": str(self.path),
            "mpp": self.mpp,
            "offset": self.offset,
            "left_out": self.excluded,
            "size": self.size,
            "concepts": list(self.concepts),
            "whole_image": self.whole_image,
            "notes": self.notes,
        }
        concept_arrays: dict[str, Any] = (
            {"concepts": np.stack(list(self.concepts.values()))} if self.concepts else {}
        )
        with atomic_write(path) as partial, partial.open("wb") as file:
            np.savez_compressed(
                file,
                predicted_classes=self.predicted_classes,
                margins=self.margins.astype(np.float16),
                side=self.grid.patch_side,
                stride=self.grid.step,
                facts=json.dumps(metadata),
                **concept_arrays,
            )

    @classmethod
    def load(cls, path: Path) -> PatchMap:
        """Read a patch map.

        Parameters
        ----------
        path : .npz file

        Returns
        -------
        PatchMap

        Raises
        ------
        ValueError
            If the file is damaged.
        """
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                metadata = json.loads(str(arrays["facts"]))
                names = metadata["concepts"]
                used = arrays["concepts"].astype(bool) if names else ()
                return cls(
                    PatchGrid(**metadata["grid"]),
                    arrays["predicted_classes"],
                    arrays["margins"].astype(np.float32),
                    tuple(metadata["classes"]),
                    Path(metadata["path"]),
                    metadata["mpp"],
                    tuple(metadata["offset"]),
                    metadata["left_out"],
                    dict(zip(names, used, strict=True)),
                    metadata["whole_image"],
                    tuple(metadata["size"]) if metadata["size"] else None,
                    tuple(map(str, metadata["notes"])),
                )
        except (FileNotFoundError, PermissionError):
            raise
        except NPZ_ERRORS as error:
            raise ValueError(f"{path}: not a patch map, or damaged") from error


def _clip_to_half(margins: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return margins clipped to the range of half precision, the type of margins in files."""
    limit = float(np.finfo(np.float16).max)
    return margins.clip(-limit, limit).astype(np.float32)
