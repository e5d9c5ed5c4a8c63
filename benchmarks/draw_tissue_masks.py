"""Generate the masks in `tissue_masks/` from the recipe of each image, and overlays.

    HISTODICT_DATA=… python -m benchmarks.draw_tissue_masks --overlays FOLDER [--only PART]

`tissue_masks/recipes.json` holds the manual choices for each image: tissue is darker than
`threshold` in one `channel`. Holes of fewer pixels than `largest_hole`, and specks, are ignored;
with `holes_are_tissue` (mucin in goblet cells), holes are tissue. Corrections, in image pixels,
apply to a polygon or everywhere: another threshold, or an area to ignore.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from .tissue_images import (
    BACKGROUND,
    IGNORED,
    MASKS,
    SETS,
    TISSUE,
    Mask,
    Pixels,
    Truth,
    images_of,
    overlay,
    read_pixels,
)

_LONGER_SIDE = 256
_BLUR = 0.6
_SMALLEST_SPECK = 8
_PALETTE = [255, 255, 255, 200, 60, 140, 128, 128, 128]


def draw_mask(pixels: Pixels, recipe: dict[str, Any]) -> Truth:
    """Return the mask of an image from its recipe."""
    image = Image.fromarray(pixels)
    scale = min(1, _LONGER_SIDE / max(image.size))
    size = (round(image.width * scale), round(image.height * scale))
    small = np.asarray(image.resize(size, Image.Resampling.BOX), float)
    light = small[..., ("red", "green", "blue").index(recipe["channel"])]
    light = ndimage.gaussian_filter(light, _BLUR)

    def inside(correction: dict[str, Any]) -> Mask:
        if "polygon" not in correction:
            return np.ones(light.shape, bool)
        canvas = Image.new("1", size)
        corners = [(x * scale, y * scale) for x, y in correction["polygon"]]
        ImageDraw.Draw(canvas).polygon(corners, fill=1)
        return np.array(canvas)

    tissue = light < recipe["threshold"]
    corrections = recipe.get("corrections", [])
    for correction in corrections:
        if correction["do"] == "threshold":
            tissue = np.where(inside(correction), light < correction["threshold"], tissue)
    holes = _regions_under(~tissue, recipe["largest_hole"])
    tissue |= holes
    specks = _regions_under(tissue, _SMALLEST_SPECK)
    tissue &= ~specks
    open_ = specks if recipe.get("holes_are_tissue") else specks | holes
    open_ |= ndimage.binary_dilation(tissue) ^ ndimage.binary_erosion(tissue, border_value=1)
    for correction in corrections:
        if correction["do"] == "leave open":
            open_ |= inside(correction)
        elif correction["do"] == "leave openings open":
            open_ |= inside(correction) & ~tissue
    return np.where(open_, IGNORED, np.where(tissue, TISSUE, BACKGROUND)).astype(np.uint8)


def _regions_under(mask: Mask, n_pixels: int) -> Mask:
    """The connected regions of fewer than n_pixels."""
    names, _ = ndimage.label(mask)
    return mask & (np.bincount(names.ravel())[names] < n_pixels)


def write_mask(file: Path, mask: Truth) -> None:
    """Write a mask as a PNG of 2 bits per pixel."""
    image = Image.fromarray(mask).convert("P")
    image.putdata(mask.ravel().tolist())
    image.putpalette(_PALETTE)
    image.save(file, bits=2, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="part of the name of a mask")
    parser.add_argument("--overlays", type=Path, help="folder for image and mask side by side")
    arguments = parser.parse_args()
    recipes = json.loads((MASKS / "recipes.json").read_text(encoding="utf-8"))
    if arguments.overlays:
        arguments.overlays.mkdir(parents=True, exist_ok=True)
    for name in SETS:
        for key, path in images_of(Path(os.environ["HISTODICT_DATA"]) / name).items():
            stem = f"{name}__{key}"
            if stem in recipes and arguments.only in stem:
                pixels = read_pixels(path)
                mask = draw_mask(pixels, recipes[stem])
                write_mask(MASKS / f"{stem}.png", mask)
                if arguments.overlays:
                    overlay(pixels, [mask], 3).save(arguments.overlays / f"{stem}.png")


if __name__ == "__main__":
    main()
