"""Areas that the overview shows as background are not read, and no tissue is lost."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.datasets.manifest import read_manifest
from histodict.images.source import SlideReader, open_image
from histodict.models import TissueClassifier
from histodict.models.recipe import Recipe
from histodict.patches import grid
from histodict.patches.grid import extract_patches
from histodict.preprocessing.tissue import (
    BackgroundMask,
    TissueThreshold,
    tissue_fraction,
    window_fraction,
)
from histodict.synthetic.dataset import write_synthetic_dataset
from tests.images.files import save_slide

big_slide = pytest.importorskip("benchmarks.big_slide", reason="the benchmarks are not here")

SIDE = 3584
PINK, WHITE = (220, 150, 200), (240, 240, 240)


@pytest.fixture(scope="module")
def slide(tmp_path_factory):
    return big_slide.write_slide(tmp_path_factory.mktemp("slides") / "drawn.tif", SIDE)


@pytest.fixture
def areas(monkeypatch):
    """Level-0 area of every region that is read near full scale."""
    found = []
    read = SlideReader.read

    def counted(self, x, y, width, height, downsample=1.0):
        found.append(width * height if downsample < 3 else 0)
        return read(self, x, y, width, height, downsample)

    monkeypatch.setattr(SlideReader, "read", counted)
    return found


@pytest.mark.parametrize(
    "settings",
    [{"downsample": 2.0, "context_scale": 2, "stain": "reinhard"}, {"downsample": 1.5}],
    ids=["whole", "not whole"],
)
def test_map_equals_that_of_a_completely_read_slide(slide, tmp_path, monkeypatch, areas, settings):
    small = {"n_atoms": 10, "n_iter": 1}
    recipe = Recipe(method_parameters=small, patch_px=16, patches_per_class=200, **settings)
    tissue = write_synthetic_dataset(tmp_path / "tissue", 2, 1, size=(240, 180))
    model = TissueClassifier(recipe).fit(read_manifest(tissue))
    monkeypatch.setattr(grid, "_CHUNK_PX", 256)
    areas.clear()
    prediction = model.predict_one(slide)
    n_read = sum(areas)
    monkeypatch.setattr(SlideReader, "overview_downsample", None)
    areas.clear()
    expected = model.predict_one(slide)
    np.testing.assert_array_equal(
        prediction.patch_map.predicted_classes, expected.patch_map.predicted_classes
    )
    np.testing.assert_array_equal(prediction.patch_map.margins, expected.patch_map.margins)
    assert prediction.scores == expected.scores
    assert n_read < 0.97 * sum(areas)


@pytest.mark.parametrize("spot", [(1000, 1000, 32), (2001, 130, 48), (15, 2010, 40)])
def test_small_spot_of_tissue_is_detected(tmp_path, spot):
    pixels = np.full((2300, 2200, 3), WHITE, np.uint8)
    x, y, side = spot
    pixels[y : y + side, x : x + side] = PINK
    source = open_image(save_slide(tmp_path / "a.tif", pixels, n_levels=5))
    assert source.overview_downsample == pytest.approx(16, rel=0.01)
    background = BackgroundMask(source, source.overview_downsample, TissueThreshold(WHITE))
    places = np.arange(0, 2100, 32)
    possible = background.may_have_tissue(places, places, 32)
    assert possible[np.ix_(abs(places - y) < 32, abs(places - x) < 32)].all()
    assert possible.mean() < 0.15


def test_slide_without_low_level_has_no_overview(tmp_path):
    pixels = np.full((600, 600, 3), WHITE, np.uint8)
    assert (
        open_image(save_slide(tmp_path / "a.tif", pixels, n_levels=3)).overview_downsample is None
    )


def test_patch_of_half_tissue_may_be_tissue(rng):
    """For any colours of background and tissue, their mean exceeds the laxer threshold."""
    threshold = TissueThreshold((235, 235, 235))
    for _ in range(200):
        background = np.clip(rng.normal(235, 4) + rng.normal(0, 2, (16, 8, 3)), 0, 255)
        stained = np.clip(
            rng.uniform((150, 90, 140), (230, 215, 230)) + np.zeros((16, 8, 3)), 0, 255
        )
        block = np.concatenate([background, stained], axis=1).astype(np.uint8)
        if threshold.mask(block).mean() >= 0.5:
            assert threshold.possible_tissue(np.rint(block.mean(axis=(0, 1))).astype(np.uint8))


@pytest.mark.parametrize(("side", "stride"), [(16, 16), (16, 8), (5, 7), (40, 1)])
def test_window_fractions_equal_those_of_patches(rng, side, stride):
    pixels = rng.integers(0, 256, (61, 83, 3)).astype(np.uint8)
    threshold = TissueThreshold()
    shares = window_fraction(pixels, threshold, side, stride)
    np.testing.assert_array_equal(
        shares.ravel(), tissue_fraction(extract_patches(pixels, side, stride), threshold)
    )
