"""Tests of the tissue masks and of the benchmark of tissue detection."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.optional_modules import import_lazily

tissue = import_lazily("benchmarks.tissue", "the benchmarks are not here")
images = import_lazily("benchmarks.tissue_images", "the benchmarks are not here")
rules = import_lazily("benchmarks.tissue_rules", "the benchmarks are not here")
draw = import_lazily("benchmarks.draw_tissue_masks", "the benchmarks are not here")

B, T, I = images.BACKGROUND, images.TISSUE, images.IGNORED  # noqa: E741


def test_every_mask_is_small_and_has_a_recipe():
    files = sorted(images.MASKS.glob("*.png"))
    recipes = json.loads((images.MASKS / "recipes.json").read_text(encoding="utf-8"))
    assert len(files) >= 40
    assert [file.stem for file in files] == sorted(recipes)
    assert {file.stem.partition("__")[0] for file in files} == set(images.SETS)
    assert sum(file.stat().st_size for file in images.MASKS.iterdir()) < 300_000
    for file in files:
        mask = images.read_mask(file)
        assert max(mask.shape) <= 256 and set(np.unique(mask)) <= {B, T, I}
        assert (mask == T).mean() > 0.2


def test_iou_excludes_ignored_pixels():
    truth = np.array([[T, T, B, B], [T, T, I, I]])
    found = truth == T
    assert tissue.iou(found, truth) == 1
    found[:, 2] = True  # one pixel of background, one ignored
    assert tissue.iou(found, truth) == pytest.approx(4 / 5)
    found[:, 0] = False
    assert tissue.iou(found, truth) == pytest.approx(2 / 5)
    assert tissue.iou(~(truth == T), truth) == 0
    assert tissue.iou(np.ones((2, 2), bool), np.array([[B, B], [I, I]])) is None


def test_mask_is_compared_at_the_size_of_the_truth():
    full = np.zeros((4, 8), bool)
    full[:2, :2] = True  # a complete square
    full[0, 2:4] = True  # half
    full[0, 4] = True  # a quarter
    truth = np.zeros((2, 4), np.uint8)
    assert tissue.at_size_of(full, truth).tolist() == [[True, True, False, False], [False] * 4]


def test_gains_are_clipped_and_keep_other_channels():
    pixels = np.array([[[250, 100, 10]]], np.uint8)
    assert tissue.shifted(pixels, (1.2, 1, 0.8)).tolist() == [[[255, 100, 8]]]


def test_image_is_rejected_without_a_patch_of_half_tissue():
    mask = np.zeros((60, 70), bool)
    mask[10:20, 30:50] = True  # half of a patch on the grid
    assert tissue.has_patch(mask)
    mask[10, 30] = False
    assert not tissue.has_patch(mask)


def test_summaries_of_planted_scores():
    def scores(values):
        return [
            tissue.Score("set", str(i), tissue.AS_IT_IS, "rule", True, value, value, None, None)
            for i, value in enumerate(values)
        ]

    values = [summary(scores([0.4, 0.6, 0.8, 1.0])) for summary in tissue.SUMMARIES.values()]
    assert values == ["0.700", "0.430", "0.500", "1 of 4", "-", "-"]


def test_synthetic_images_are_reproducible_with_known_content():
    edges = {"healthy, edge", "fat", "pen, blue", "dark frame"}
    full = {"haematoxylin alone, full", "mucin"}
    background = {images.EMPTY, f"{images.EMPTY}, dust"}
    cases = {case.name: case for case in images.synthetic_cases(edges | full | background)}
    assert set(cases) == edges | full | background
    (again,) = images.synthetic_cases(["fat"])
    assert np.array_equal(again.pixels, cases["fat"].pixels)
    for name, case in cases.items():
        assert (case.is_empty, case.is_full) == (name in background, name in full)
        assert case.pixels.shape[:2] == tuple(2 * n for n in case.truth.shape)
    for name in ("pen, blue", "dark frame", f"{images.EMPTY}, dust"):
        assert (cases[name].truth == images.UNUSABLE).any()
    assert (cases["fat"].truth == I).mean() > 0.1


@pytest.mark.parametrize("name", rules.RULES)
def test_every_method_finds_a_strongly_stained_square_on_white(name):
    rng = np.random.default_rng(0)
    pixels = np.full((240, 320, 3), 242.0)
    pixels[60:180, 80:240] = (150, 70, 150)
    pixels = (pixels + rng.normal(0, 2, pixels.shape)).astype(np.uint8)
    truth = np.zeros((120, 160), np.uint8)
    truth[30:90, 40:120] = T
    assert tissue.iou(tissue.at_size_of(rules.RULES[name](pixels), truth), truth) > 0.85


def test_recipe_draws_openings_borders_and_corrections():
    pixels = np.full((100, 120, 3), 240, np.uint8)
    pixels[:, :60] = 120
    pixels[40:43, 20:23] = 240  # a hole of 9 px
    pixels[70:90, 20:40] = 240  # a lumen
    polygon = [[15, 65], [45, 65], [45, 95], [15, 95]]
    recipe = {"channel": "green", "threshold": 200, "largest_hole": 30}
    mask = draw.draw_mask(pixels, recipe)
    assert (mask[41, 21], mask[80, 30], mask[20, 20], mask[20, 100]) == (I, B, T, B)
    assert set(mask[20, 58:62]) == {T, I, B}
    recipe["corrections"] = [{"do": "leave openings open", "polygon": polygon}]
    assert draw.draw_mask(pixels, recipe)[80, 30] == I
    recipe["corrections"] = [{"do": "threshold", "polygon": polygon, "threshold": 250}]
    assert draw.draw_mask(pixels, recipe)[80, 30] == T
    recipe["corrections"] = [{"do": "leave open"}]
    assert (draw.draw_mask(pixels, recipe) == I).all()
