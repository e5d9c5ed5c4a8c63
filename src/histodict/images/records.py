"""One image and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .annotations.drawing import AnnotationFile


class ManifestError(ValueError):
    """The list of images cannot be used; the message says where and why."""


@dataclass(frozen=True)
class ImageRecord:
    """One image. `label` is empty where only a mask or outlines say what is where.

    mask, drawn : what is where: a picture of the region, or outlines of it
    within : outlines outside of which nothing is looked at
    scanner, batch : scanner; group of images that were prepared or acquired together
    image : where its pixels are, if `path` is a feature file and they are anywhere
    trouble : why there is nothing to be read of it, if that is known before
    """

    path: Path
    label: str
    patient: str
    slide: str | None = None
    site: str | None = None
    mpp: float | None = None
    split: str | None = None
    mask: Path | None = None
    annotations: AnnotationFile | None = None
    region_of_interest: AnnotationFile | None = None
    image: Path | None = None
    error: str = ""
    scanner: str | None = None
    batch: str | None = None

    @property
    def display_image(self) -> Path:
        """What to show of it."""
        return self.image or self.path

    @property
    def files(self) -> list[Path]:
        """The image's, and those that say what is where, or where to look."""
        drawings = [
            drawing.path
            for drawing in (self.annotations, self.region_of_interest)
            if drawing is not None
        ]
        return [self.path, *([self.mask] if self.mask else []), *drawings]

    @property
    def is_mapped(self) -> bool:
        """Whether a mask or outlines say what is where in it."""
        return self.mask is not None or self.annotations is not None
