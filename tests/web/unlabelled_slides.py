"""Unlabelled images with known truth, and a mouse that annotates them in a browser; for tests and
for the images of the documentation."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from histodict.datasets.manifest import read_manifest
from histodict.synthetic.dataset import write_synthetic_dataset

# Preview with pixels only: loading an encoder takes seconds.
WITHOUT_ENCODER = (
    "import histodict.web.api.annotate as api; api.is_encoder_installed = lambda: False"
)


def write_unlabelled_slides(
    folder: Path, size: tuple[int, int], n_patients: int = 8
) -> dict[str, Path]:
    """Write synthetic tissue with inflamed foci as slide-1.jpg, slide-2.jpg, …; masks by name
    elsewhere."""
    annotated = write_synthetic_dataset(folder.with_name("drawn"), n_patients, 1, size=size)
    folder.mkdir()
    masks: dict[str, Path] = {}
    for record in read_manifest(annotated / "regions" / "manifest.csv").records:
        assert record.mask is not None
        if np.asarray(Image.open(record.mask)).any():
            name = f"slide-{len(masks) + 1}.jpg"
            shutil.copy(record.path, folder / name)
            masks[name] = record.mask
    return masks


def deep_inside(region: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the position (x, y) that is farthest from the border of the region."""
    depth = ndimage.distance_transform_edt(np.pad(region, 1))[1:-1, 1:-1]
    y, x = np.unravel_index(int(depth.argmax()), depth.shape)
    return float(x), float(y)


class Hand:
    """A mouse on the viewer, in pixels of the image, which must be centred."""

    def __init__(self, page: Any, size: tuple[int, int]) -> None:
        self.page, self.size = page, size

    def at(self, x: float, y: float) -> tuple[float, float]:
        viewer = self.page.locator("#viewer")
        box, scale = viewer.bounding_box(), float(viewer.get_attribute("data-scale"))
        return (
            box["x"] + box["width"] / 2 + (x - self.size[0] / 2) * scale,
            box["y"] + box["height"] / 2 + (y - self.size[1] / 2) * scale,
        )

    def drag(self, *places: tuple[float, float]) -> None:
        self.page.mouse.move(*self.at(*places[0]))
        self.page.mouse.down()
        for place in places[1:]:
            self.page.mouse.move(*self.at(*place), steps=6)
        self.page.mouse.up()

    def click(self, *places: tuple[float, float]) -> None:
        for place in places:
            self.page.mouse.click(*self.at(*place))


def add_class(page: Any, name: str) -> None:
    page.locator("#class-name").fill(name)
    page.keyboard.press("Enter")
    page.locator(f'.classes li[data-class="{name}"]').wait_for()


def n_shapes(page: Any) -> int:
    return int(page.locator("#viewer").get_attribute("data-shapes"))


def wait_for_shapes(page: Any, count: int) -> None:
    page.locator(f'#viewer[data-shapes="{count}"]').wait_for()
