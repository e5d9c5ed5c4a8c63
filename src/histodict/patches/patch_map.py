"""What an image's patches were called: on their grid, in the image, in a file, in colours.

Connected cells of a grid, and their borders as polygons.

Corners are (column, row) of grid cells, whole numbers; where a cell lies in the image is the grid's
affair.
"""

from __future__ import annotations

import json
import warnings
from array import array
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

_TOUCHING = np.ones((3, 3), int)

Ints = NDArray[np.int32]
Polygon = list[Ints]  # the outer ring, then its holes, each (n_corners, 2) and closed


def label_regions(positive: NDArray[np.bool_]) -> tuple[Ints, NDArray[np.int64]]:
    """The number of each patch's region, from 1 (0: none), and the regions' numbers of patches."""
    places, n_regions = ndimage.label(positive, structure=_TOUCHING)
    return places, np.bincount(places.ravel(), minlength=n_regions + 1)[1:]


class RegionBorders:
    """The borders of all regions of a map, walked once.

    A region's cells that touch by a corner alone belong to different polygons. With x to the right
    and y down an outer ring has a positive area, a hole a negative one, as RFC 7946 asks; no ring
    meets itself, and two of a polygon share single corners at most.
    """

    def __init__(self, regions: Ints) -> None:
        """`regions`: (n_rows, n_columns), the number of each cell's region; 0: none."""
        parts, n_parts = ndimage.label(regions)
        region_of_part = np.zeros(n_parts + 1, np.int32)
        region_of_part[parts] = regions
        padded = np.pad(parts, 1)
        del parts  # of a large slide every such array counts
        sides = [_sides_above(np.rot90(padded, turns)) for turns in range(4)]
        del padded
        corners = np.concatenate([side.corners_turned_back(n) for n, side in enumerate(sides)])
        # From the left: so the first ring that is met of a part is the outer one.
        walk, ends = _closed_cycles(_followers(sides), np.lexsort(corners.T[::-1]))
        begins = np.append(0, ends)[:-1]
        part_of_ring = np.concatenate([side.parts for side in sides])[walk[begins]]
        del sides
        self._corners = corners[walk]
        region_of_ring = region_of_part[part_of_ring]
        order = np.lexsort((part_of_ring, region_of_ring))
        self._rings = np.stack([part_of_ring, begins, ends], axis=1)[order]
        n_rings = np.bincount(region_of_ring, minlength=int(regions.max(initial=0)) + 1)
        self._n_before = np.append(0, np.cumsum(n_rings))

    def polygons(self, region: int) -> list[Polygon]:
        """Of a region, by its number."""
        first, last = self._n_before[region : region + 2]
        found: dict[int, Polygon] = {}
        for part, begin, end in self._rings[first:last].tolist():
            found.setdefault(part, []).append(self._corners[begin:end])
        return list(found.values())

    def rings(self, step: float, first: tuple[float, float]) -> list[list[float]]:
        """All rings as x, y, x, y, …, cells `step` wide from the corner `first` on."""
        placed = self._corners * step + np.array(first)
        whole = placed.astype(np.int64)
        is_whole = np.array_equal(whole, placed)  # which is shorter to write down
        flat: list[Any] = (whole if is_whole else placed).ravel().tolist()
        return [flat[2 * begin : 2 * end] for _, begin, end in self._rings.tolist()]


class _Sides(NamedTuple):
    """Straight runs of cell sides with nothing of the cells' part above them, walked to the right.

    shape : of the grid, which was turned to the left so that all borders lie above once
    first, last : places of a run's cells in the flat grid, in its order
    parts : of the cells
    is_left_turn : whether the walk goes on up, along the cell beyond that lies above the last one
    """

    shape: tuple[int, int]
    first: Ints
    last: Ints
    parts: Ints
    is_left_turn: NDArray[np.bool_]

    def corners_turned_back(self, turns: int) -> Ints:
        """(x, y) where the runs begin, in the grid as it was before it was padded and turned."""
        y, x = np.divmod(self.first, self.shape[1])
        height, width = self.shape
        for _ in range(turns):
            x, y = height - y, x
            height, width = width, height
        return np.stack([x, y], axis=1) - np.int32(1)


def _sides_above(grid: Ints) -> _Sides:
    above = np.zeros(grid.shape, bool)
    above[1:] = (grid[1:] != grid[:-1]) & (grid[1:] > 0)
    goes_on = above[:, 1:] & above[:, :-1] & (grid[:, 1:] == grid[:, :-1])
    begins, ends = above.copy(), above
    begins[:, 1:] &= ~goes_on
    ends[:, :-1] &= ~goes_on
    first, last = (np.flatnonzero(each).astype(np.int32) for each in (begins, ends))
    y, x = np.divmod(last, grid.shape[1])
    parts = grid[y, x]
    return _Sides(grid.shape, first, last, parts, grid[y - 1, (x + 1) % grid.shape[1]] == parts)


def _followers(sides: list[_Sides]) -> Ints:
    """The number of the run that follows each, as they are counted through all four turns."""
    counts = np.cumsum([0, *(len(side.first) for side in sides)])
    found = []
    for turns, side in enumerate(sides):
        height, width = side.shape
        y, x = np.divmod(side.last, width)
        right, left = sides[(turns + 1) % 4], sides[(turns - 1) % 4]
        # Down along the same cell; or up along the next one above, which shares a corner with it.
        down = np.searchsorted(right.first, (width - 1 - x) * right.shape[1] + y)
        up = np.searchsorted(left.first, (x + 1) * left.shape[1] + height - y)
        down += counts[(turns + 1) % 4]
        up += counts[(turns - 1) % 4]
        found.append(np.where(side.is_left_turn, up, down).astype(np.int32))
    return np.concatenate(found)


def _closed_cycles(follower: Ints, order: NDArray[np.int64]) -> tuple[Ints, NDArray[np.int64]]:
    """All numbers, cycle after cycle, and where each ends: with the number it began with, again.

    They begin with the number that comes first in the order, which is also theirs.
    """
    following, is_left = follower.data, bytearray(b"\1") * len(follower)
    walk, ends = array("i"), array("q")
    for start in order.data:
        here = start
        while is_left[here]:
            is_left[here] = 0
            walk.append(here)
            here = following[here]
        if not ends or ends[-1] != len(walk):
            walk.append(start)
            ends.append(len(walk))
    return np.frombuffer(walk, np.int32), np.frombuffer(ends, np.int64)


NO_TISSUE = -1  # of a patch that lies on glass
# Distinguishable for colour-blind readers (Okabe and Ito); the first class is healthy, by custom.
COLOURS = np.array(
    [[0, 114, 178], [213, 94, 0], [0, 158, 115], [204, 121, 167], [240, 228, 66], [86, 180, 233]],
    np.float64,
)
_OPACITY = 0.45

Ring = list[tuple[float, float]]
Window = tuple[slice, slice]


class PatchArea(NamedTuple):
    """Connected patches of a class: how many, the means of their margins, and their outline.

    use : per named concept, the share of the patches that use it
    polygons : corners (column, row) of the grid's cells, for `PatchMap.cell_corner`
    """

    n_patches: int
    margins: list[float]
    atom_usage: dict[str, float]
    polygons: list[Polygon]


def class_rgb(place: int) -> tuple[int, int, int]:
    """The colour of the class at a place: everywhere the same, in pictures, pages and QuPath."""
    red, green, blue = COLOURS[place % len(COLOURS)].astype(int).tolist()
    return red, green, blue


def class_css_colour(place: int) -> str:
    """The same, as CSS writes it."""
    return f"rgb{class_rgb(place)}"


@dataclass(frozen=True)
class PatchMap:
    """Per patch of a grid: the winning class's place (BLANK on glass), and each class's margin.

    Attributes
    ----------
    winners : (n_rows, n_columns)
    margins : (n_rows, n_columns, n_classes), of residuals or, in a map that was `centred`, each
        patch's say in the image's scores, of which it is the mean
    classes : their names, in the order of the places
    path, mpp : the image, and µm per level-0 pixel where known
    offset : where its (0, 0) lies in the coordinates of OpenSlide; those of QuPath begin there, too
    left_out : in words, which of its tissue is left out as blurred or the like; empty if none is,
        None if nobody looked
    whole_image : whether all patches count, because hardly any tissue was found
    concepts : by the name that people gave to atoms, which patches use them (n_rows, n_columns)
    size : (width, height) in level-0 pixels to which outlines are clipped, for feature files with a
        known slide size, as tiles of other tools may extend beyond the slide; else None
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

    @property
    def tissue(self) -> NDArray[np.bool_]:
        return self.predicted_classes != NO_TISSUE

    @property
    def n_patches(self) -> int:
        """Patches on tissue."""
        return int(self.tissue.sum())

    @property
    def proportions(self) -> dict[str, float]:
        """The share of the patches that each class won."""
        total = max(1, self.n_patches)
        shares = [
            float((self.predicted_classes == place).sum()) / total
            for place in range(self.n_classes)
        ]
        return dict(zip(self.classes, shares, strict=True))

    @property
    def atom_usage(self) -> dict[str, float]:
        """Of every named concept the share of the patches that use it."""
        total = max(1, self.n_patches)
        return {name: float(used.sum()) / total for name, used in self.concepts.items()}

    @property
    def n_classes(self) -> int:
        return len(self.classes)

    def threshold(self, margin: float) -> PatchMap:
        """Of two classes, the map in which the second wins beyond this margin instead of 0."""
        if margin == 0:
            return self
        beyond = np.where(self.tissue, self.margins[..., 1] - np.float64(margin), 0)
        winners = np.where(self.tissue, beyond > 0, NO_TISSUE).astype(np.int16)
        margins = _held(np.stack([-beyond, beyond], axis=2))
        return replace(self, predicted_classes=winners, margins=margins)

    def centre_on_score(self, parts: NDArray[np.float64], scores: NDArray[np.float64]) -> PatchMap:
        """The map as the image was decided: over tissue, its mean is the image's scores.

        parts : (n_rows, n_columns, n_scores), what each patch adds to the scores, up to a constant
        scores : one for two classes, positive for the second; else one per class
        """
        values = parts + (scores - parts[self.tissue].mean(axis=0))
        if len(scores) == 1:
            values = np.concatenate([-values, values], axis=2)
        # A value of 0 is no more than 0, and so the first class's, as the image's would be.
        winners = np.where(self.tissue, values.argmax(axis=2), NO_TISSUE).astype(np.int16)
        margins = _held(np.where(self.tissue[..., None], values, 0))
        return replace(self, predicted_classes=winners, margins=margins)

    def align_to_image(self, image: Path) -> PatchMap:
        """The map of a feature file over the image that its patches were cut from.

        Refused where that cannot be: its patches lie beyond the image.
        """
        with open_image(image) as source:
            size, offset = source.size, source.offset
        grid, (x, y) = self.grid, (own - at for own, at in zip(self.offset, offset, strict=True))
        moved = replace(grid, left=grid.left + x, top=grid.top + y)
        found = replace(self, grid=moved, path=image, offset=offset, size=size)
        ends = [float(at[self.tissue].max(initial=0)) for at in found.corners()]
        if any(end >= side for end, side in zip(ends, size, strict=True)):
            raise ImageError(
                f"{self.path}: its patches lie beyond the image {image}, which has {size[0]} x "
                f"{size[1]} pixels: are its coords level-0 pixels of this image?"
            )
        return found

    def covering(self, image: Path) -> PatchMap:
        """Laid over the image; as it is where that cannot be, which is said: it takes no answer."""
        try:
            return self.align_to_image(image)
        except (ValueError, OSError) as error:
            warnings.warn(f"{error}; the map is drawn without it", stacklevel=2)
            return self

    # --- in the image ---------------------------------------------------------------------------

    def corners(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Level-0 x and y of all patches' upper left corners, each (n_rows, n_columns)."""
        grid = self.grid
        x, y = np.meshgrid(
            np.arange(grid.n_columns) * grid.step + grid.left,
            np.arange(grid.n_rows) * grid.step + grid.top,
        )
        return x, y

    def patch_ring(self, row: int, column: int) -> Ring:
        """The outline of a patch, closed, in level-0 pixels."""
        left, top = self.grid.corner(row, column)
        side = self.grid.patch_side
        right, bottom = self.clip(left + side, 0, side), self.clip(top + side, 1, side)
        return [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]

    def clip(self, at: float, axis: int, width: float) -> float:
        """Clip the end of a cell of this width (axis 0: x, 1: y) to the slide.

        Only a cell across the border becomes narrower. A cell entirely outside, to which a tile
        between grid cells may be assigned, keeps its shape.
        """
        if self.size is None or not self.size[axis] < at < self.size[axis] + width:
            return at
        return float(self.size[axis])

    def cell_corner(self, corner: tuple[int, int]) -> tuple[float, float]:
        """Level-0 (x, y) of a corner (column, row) of the grid's cells, clipped to the slide."""
        x, y = self.grid.cell_corner(corner)
        return self.clip(x, 0, self.grid.step), self.clip(y, 1, self.grid.step)

    def cell_lines(self) -> tuple[list[float], list[float]]:
        """Level-0 x of the lines between columns of cells, and y of those between rows."""
        grid = self.grid
        return (
            self._lines(0, grid.n_columns, grid.left).tolist(),
            self._lines(1, grid.n_rows, grid.top).tolist(),
        )

    def _lines(self, axis: int, count: int, first: float) -> NDArray[np.float64]:
        lines: NDArray[np.float64] = np.arange(count + 1, dtype=np.float64) * self.grid.step
        lines += self.grid.shift
        lines += first
        if self.size is not None:
            end = self.size[axis]
            lines[(lines > end) & (lines < end + self.grid.step)] = end
        return lines

    def regions(
        self, place: int, least: int = 1, most: int | None = None
    ) -> Iterator[tuple[Window, NDArray[np.bool_], list[list[Ring]]]]:
        """Connected patches of a class, from `least` on, the `most` largest first.

        Of each region the rows and columns that it spans, which of their patches are its own, and
        its polygons in level-0 pixels: per polygon the outer ring and its holes.
        """
        places, sizes = label_regions(self.predicted_classes == place)
        windows = ndimage.find_objects(places)
        borders = RegionBorders(places)
        numbers = [n for n in np.argsort(-sizes, kind="stable").tolist() if sizes[n] >= least]
        for number in numbers[:most]:
            own = places[windows[number]] == number + 1
            polygons = [self._in_image(polygon) for polygon in borders.polygons(number + 1)]
            yield windows[number], own, polygons

    def rings(self, place: int, least: int, most: int) -> list[list[float]]:
        """Of the same regions all rings alike, x, y, x, y, …, to be drawn: thousands at once."""
        places, sizes = label_regions(self.predicted_classes == place)
        is_drawn = np.zeros(len(sizes) + 1, bool)
        is_drawn[1 + np.argsort(-sizes, kind="stable")[:most]] = True
        is_drawn[1:] &= sizes >= least
        borders = RegionBorders(np.where(is_drawn[places], places, 0).astype(np.int32))
        return borders.rings(self.grid.step, self.grid.cell_corner((0, 0)))

    def areas(self, place: int) -> Iterator[PatchArea]:
        """The same connected patches, measured all at once: of a slide there are thousands."""
        places, sizes = label_regions(self.predicted_classes == place)
        borders = RegionBorders(places)
        cells = np.nonzero(places)
        numbers, margins = places[cells] - 1, self.margins[cells]
        sums = [np.bincount(numbers, column, len(sizes)) for column in margins.T]
        means = np.stack(sums, axis=1) / sizes[:, None]
        use = {
            name: np.bincount(numbers, used[cells], len(sizes)) / sizes
            for name, used in self.concepts.items()
        }
        for number in np.argsort(-sizes, kind="stable").tolist():
            own = {name: float(shares[number]) for name, shares in use.items()}
            polygons = borders.polygons(number + 1)
            yield PatchArea(int(sizes[number]), means[number].tolist(), own, polygons)

    def _in_image(self, polygon: Polygon) -> list[Ring]:
        step, first = self.grid.step, np.array(self.grid.cell_corner((0, 0)))
        rings = [ring * step + first for ring in polygon]
        if self.size is not None:
            cut = [(ring > self.size) & (ring < np.array(self.size) + step) for ring in rings]
            rings = [np.where(at, self.size, ring) for at, ring in zip(cut, rings, strict=True)]
        return [list(map(tuple, ring.tolist())) for ring in rings]

    # --- colours --------------------------------------------------------------------------------

    def colours(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Colour (rows, columns, 3), opacity (rows, columns): stronger where it won more clearly"""
        colours = COLOURS[np.where(self.tissue, self.predicted_classes, 0) % len(COLOURS)]
        ordered = np.sort(self.margins, axis=2)
        lead = ordered[..., -1] - ordered[..., -2]  # of the winner, before the next
        typical = np.median(lead[self.tissue]) if self.tissue.any() else 1.0
        strength = np.clip(0.35 + 0.65 * lead / max(2 * typical, 1e-12), 0.35, 1.0)
        return colours, np.where(self.tissue, _OPACITY * strength, 0.0)

    # --- in a file ------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """One .npz file, without pickle. Margins are rounded to half precision.

        winners, margins : as above; side, stride : of patches, in level-0 pixels; facts : JSON;
        concepts : where any is named, of each which patches use it
        """
        facts = {
            "grid": asdict(self.grid),
            "classes": self.classes,
            "path": str(self.path),
            "mpp": self.mpp,
            "offset": self.offset,
            "left_out": self.excluded,
            "size": self.size,
            "concepts": list(self.concepts),
            "whole_image": self.whole_image,
        }
        used: dict[str, Any] = (
            {"concepts": np.stack(list(self.concepts.values()))} if self.concepts else {}
        )
        with atomic_write(path) as partial, partial.open("wb") as file:
            np.savez_compressed(
                file,
                predicted_classes=self.predicted_classes,
                margins=self.margins.astype(np.float16),
                side=self.grid.patch_side,
                stride=self.grid.step,
                facts=json.dumps(facts),
                **used,
            )

    @classmethod
    def load(cls, path: Path) -> PatchMap:
        """Read a patch map; a ValueError names a damaged file."""
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                facts = json.loads(str(arrays["facts"]))
                names = facts["concepts"]
                used = arrays["concepts"].astype(bool) if names else ()
                return cls(
                    PatchGrid(**facts["grid"]),
                    arrays["predicted_classes"],
                    arrays["margins"].astype(np.float32),
                    tuple(facts["classes"]),
                    Path(facts["path"]),
                    facts["mpp"],
                    tuple(facts["offset"]),
                    facts["left_out"],
                    dict(zip(names, used, strict=True)),
                    facts["whole_image"],
                    tuple(facts["size"]) if facts["size"] else None,
                )
        except (FileNotFoundError, PermissionError):
            raise
        except NPZ_ERRORS as error:
            raise ValueError(f"{path}: not a patch map, or a damaged one") from error


def _held(margins: NDArray[np.float64]) -> NDArray[np.float32]:
    """Within what a file of the map can hold: its numbers have half precision."""
    most = float(np.finfo(np.float16).max)
    return margins.clip(-most, most).astype(np.float32)
