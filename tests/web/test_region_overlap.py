"""Overlap of predicted and true regions compared with counts per patch."""

import numpy as np
import pytest
from PIL import Image

from histodict.datasets.manifest import ImageRecord
from histodict.evaluation.measures import PatchEvaluation, dice
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import NO_TISSUE, PatchMap
from histodict.web.maps import count_overlap, mask_outlines, pooled_overlap


@pytest.fixture
def masked(tmp_path):
    """An image of 120 x 80 pixels whose mask is a rectangle of 40 x 30."""
    Image.fromarray(np.full((80, 120, 3), 200, np.uint8)).save(tmp_path / "image.png")
    mask = np.zeros((80, 120), np.uint8)
    mask[20:50, 30:70] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    return ImageRecord(tmp_path / "image.png", "tumour", "p", mask=tmp_path / "mask.png")


@pytest.fixture
def found(masked, rng):
    grid = PatchGrid(8, 12, patch_px=10, stride_px=10, downsample=1.0)
    margins = rng.normal(size=(8, 12, 2)).astype(np.float32)
    predicted_classes = (margins[..., 1] > margins[..., 0]).astype(np.int16)
    predicted_classes[0] = NO_TISSUE
    return PatchMap(grid, predicted_classes, margins, ("rest", "tumour"), masked.path)


def test_counts_equal_the_region_detector_for_every_size(masked, found):
    counts = count_overlap(masked, found)
    for least, own in enumerate(counts, 1):
        table = PatchEvaluation.from_map(masked, found, least).confusion_counts()
        assert own == table[:3].tolist()
        shares = pooled_overlap([counts], least)
        assert (shares and shares.dice) == pytest.approx(dice(table))
        if shares:
            assert shares.iou == pytest.approx(shares.dice / (2 - shares.dice))


def test_images_are_pooled_only_if_all_are_known():
    one, other = [[2, 1, 1]], [[0, 0, 3]]
    shares = pooled_overlap([one, other], 1)
    assert (shares.dice, shares.iou) == (4 / 9, 2 / 7)
    assert pooled_overlap([one, None], 1) is None and pooled_overlap([one], 2) is None
    assert pooled_overlap([], 1) is None and pooled_overlap([[[0, 0, 0]]], 1) is None


@pytest.mark.parametrize("times", [1, 10])
def test_rings_surround_the_mask_at_any_size(masked, times, tmp_path):
    """Also if the mask is smaller than its image."""
    size = 120 * times, 80 * times
    Image.fromarray(np.full((size[1], size[0], 3), 200, np.uint8)).save(masked.path)
    (ring,) = mask_outlines(masked, size)
    x, y = np.array(ring).reshape(-1, 2).T
    area = abs(np.sum(x[:-1] * y[1:] - x[1:] * y[:-1])) / 2
    assert area == pytest.approx(40 * 30 * times**2, rel=0.02)
    assert (x.min(), x.max()) == pytest.approx((30 * times, 70 * times), abs=4)
    assert (y.min(), y.max()) == pytest.approx((20 * times, 50 * times), abs=4)
