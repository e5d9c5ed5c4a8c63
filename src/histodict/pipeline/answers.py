"""What a model says of one image: a class, or regions; each knows its row in a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from ..execution.tables import Row
from ..images.pixel_size import PixelSize
from ..patches.patch_map import PatchMap, Ring

_UNKNOWN = PixelSize(None, "unknown")
NO_TISSUE = "no tissue"  # the label, in tables, of an image of glass


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
    polygons: list[list[Ring]]


@dataclass(frozen=True)
class ImageAnswer:
    """The answer for one image; `label` is None where there is only glass.

    scores : one number for two classes, positive for the second; else one per class
    value : what θ is compared with or, without θ, the score as it was before θ was moved
    probabilities, candidates : where the model is calibrated, of each class, and the classes that
        cannot be ruled out; more or fewer than one means an uncertain answer
    n_silent : members of a panel that could not judge this image; None without a panel
    size : of its pixels, and who says so
    A method that looks at the image as a whole leaves no proportions, threshold or map.
    """

    path: Path
    label: str | None
    scores: tuple[float, ...]
    proportions: dict[str, float] = field(default_factory=dict)
    threshold: float | None = None
    n_patches: int = 0
    patch_map: PatchMap | None = None
    value: float | None = None
    probabilities: dict[str, float] = field(default_factory=dict)
    candidates: list[str] = field(default_factory=list)
    n_silent: int | None = None
    regions: list[Region] = field(default_factory=list)
    size: PixelSize = _UNKNOWN

    COLUMNS: ClassVar[tuple[str, ...]] = ("path", "label", "score", "threshold", "n_patches")

    @property
    def score(self) -> float:
        """For two classes, positive for the second; for more, the highest."""
        return max(self.scores)

    def row(self) -> Row:
        row: Row = {
            "label": self.label or NO_TISSUE,
            "score": self.score if self.label else None,
            "threshold": self.threshold,
            "n_patches": self.n_patches,
        } | _size_columns(self.size)
        if self.n_silent is not None:
            row["n_silent"] = self.n_silent
        if self.probabilities:
            row |= {f"probability_{name}": value for name, value in self.probabilities.items()}
            row["candidates"] = " or ".join(self.candidates) or "none"
        return row | {f"proportion_{name}": value for name, value in self.proportions.items()}


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
    regions: list[Region]
    patch_map: PatchMap
    size: PixelSize = _UNKNOWN

    COLUMNS: ClassVar[tuple[str, ...]] = ("path", "label", "score")
    REGION_COLUMNS: ClassVar[tuple[str, ...]] = (
        *("path", "region", "label", "n_patches", "score", "area_px", "area_um2"),
    )

    @property
    def value(self) -> float:
        return self.score

    @property
    def n_patches(self) -> int:
        return self.patch_map.n_patches

    @property
    def proportions(self) -> dict[str, float]:
        return self.patch_map.proportions

    def row(self) -> Row:
        return {
            "label": self.label or NO_TISSUE,
            "score": self.score,
            "least_patches": self.least_patches,
            "n_patches": self.n_patches,
            "n_regions": len(self.regions),
            "region_area_px": sum(region.area_px for region in self.regions),
        } | _size_columns(self.size)


Answer = ImageAnswer | RegionAnswer


def _size_columns(size: PixelSize) -> Row:
    """µm per pixel that the answer rests on, and who says so."""
    return {"mpp": size.mpp, "mpp_from": size.origin}


def region_rows(answer: Answer) -> list[Row]:
    """A line per region, without the path."""
    if answer.patch_map is None:
        return []
    return [
        {
            "region": number,
            "label": answer.patch_map.classes[1],
            "n_patches": region.n_patches,
            "score": region.score,
            "area_px": region.area_px,
            "area_um2": region.area_um2,
            **dict(zip(("left", "top", "right", "bottom"), region.box, strict=True)),
        }
        for number, region in enumerate(answer.regions, start=1)
    ]


def outlines(answer: Answer) -> list[Ring]:
    """All rings around an answer's regions."""
    return [ring for region in answer.regions for polygon in region.polygons for ring in polygon]
