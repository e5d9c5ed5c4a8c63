"""Tests of the legend below every overlay: class colours and the prediction."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import COLOURS, PatchMap
from histodict.patches.rendering import draw_overlay

CLASSES = ("healthy", "inflamed", "somewhat in between", "ανοιχτό")


def map_of(folder, size):
    """Return a map with all patches of the first class; the last 7 pixels are no complete patch."""
    path = folder / "a.png"
    Image.new("RGB", size, (200, 150, 180)).save(path)
    grid = PatchGrid.from_size(size, 10, 10, 1.0)
    predicted_classes = np.zeros((grid.n_rows, grid.n_columns), np.int16)
    margins = np.zeros((*predicted_classes.shape, len(CLASSES)), np.float32)
    margins[..., 0] = 1
    return PatchMap(grid, predicted_classes, margins, CLASSES, path)


def test_named_concepts_are_in_the_legend(tmp_path):
    plain = map_of(tmp_path, (640, 480))
    named = replace(plain, concepts={"dark nuclei": np.ones(plain.predicted_classes.shape, bool)})
    without_concepts, reported = (draw_overlay(each, "healthy") for each in (plain, named))
    assert (
        reported.shape[0] > without_concepts.shape[0]
        and reported.shape[1] == without_concepts.shape[1]
    )


@pytest.mark.parametrize("size", [(57, 37), (640, 480), (4007, 1207)])
def test_classes_and_prediction_are_below_the_image(tmp_path, size):
    overlay = draw_overlay(map_of(tmp_path, size), "healthy, score -1.20")
    height = round(size[1] * min(1, 1600 / max(size)))
    image, legend = overlay[:height], overlay[height:]
    found = {tuple(pixel) for pixel in legend.reshape(-1, 3).tolist()}
    for colour in COLOURS[: len(CLASSES)]:
        assert tuple(int(v) for v in colour) in found
    side = max(12, min(30, overlay.shape[1] // 48))
    first = (legend == COLOURS[0]).all(axis=2)
    assert first.any(axis=0).sum() == side + 1  # colour squares scale with the image, like the text
    longer = draw_overlay(map_of(tmp_path, size), "healthy, score -1.20 " * 20)
    assert longer.shape[0] > overlay.shape[0] and longer.shape[1] == overlay.shape[1]
    # Nothing is cut off: the last column and row of the legend are blank.
    assert (longer[height:, -1] == 255).all() and (longer[-1] == 255).all()
    wide = min(size[0], image.shape[1])
    assert not (image[:, :wide] == (200, 150, 180)).all(axis=2).any()  # up to the edge
