"""Tests of the patch map: its file, regions and colours."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from histodict.export.qupath import area_features, patch_features
from histodict.patches.grid import PatchGrid
from histodict.patches.patch_map import COLOURS, NO_TISSUE, PatchMap, class_css_colour

GRID = PatchGrid(3, 4, 20, 10, 2.5)


@pytest.fixture
def patch_map(rng, tmp_path):
    predicted_classes = rng.integers(-1, 2, (3, 4)).astype(np.int16)
    margins = rng.normal(size=(3, 4, 2)).astype(np.float32)
    return PatchMap(
        GRID, predicted_classes, margins, ("a", "b"), tmp_path / "ä.svs", 0.25, (1000, 800)
    )


def test_file_contains_the_complete_map(patch_map, tmp_path):
    patch_map.save(tmp_path / "maps" / "a.npz")
    found = PatchMap.load(tmp_path / "maps" / "a.npz")
    for name in ("grid", "classes", "path", "mpp", "offset"):
        assert getattr(found, name) == getattr(patch_map, name)
    np.testing.assert_array_equal(found.predicted_classes, patch_map.predicted_classes)
    np.testing.assert_allclose(found.margins, patch_map.margins, rtol=1e-3, atol=1e-4)
    # For other programs: plain arrays and lengths in pixels of the image.
    with np.load(tmp_path / "maps" / "a.npz", allow_pickle=False) as arrays:
        assert (float(arrays["side"]), float(arrays["stride"])) == (50.0, 25.0)


def test_named_concepts_are_stored_and_measured(patch_map, tmp_path, rng):
    used = (rng.random((3, 4)) < 0.5) & patch_map.tissue
    found = replace(patch_map, concepts={"ä, b": used, "none": np.zeros((3, 4), bool)})
    found.save(tmp_path / "a.npz")
    again = PatchMap.load(tmp_path / "a.npz")
    assert list(again.concepts) == ["ä, b", "none"] and patch_map.concept_usage == {}
    np.testing.assert_array_equal(again.concepts["ä, b"], used)
    assert found.concept_usage == {"ä, b": pytest.approx(used.sum() / found.n_patches), "none": 0}
    areas = [area for place in (0, 1) for area in found.areas(place)]
    assert sum(a.n_patches * a.concept_usage["ä, b"] for a in areas) == pytest.approx(used.sum())


def test_path_that_is_not_unicode_is_preserved(patch_map, tmp_path):
    odd = replace(patch_map, path=tmp_path / "gr\udcf6sse.tif")
    odd.save(tmp_path / "a.npz")
    assert PatchMap.load(tmp_path / "a.npz").path == odd.path


def test_margins_far_from_the_threshold_do_not_overflow_in_the_file(patch_map, tmp_path):
    """Files have half precision, whose largest number is 65504."""
    for moved in (
        patch_map.threshold(-1e6),
        patch_map.centre_on_score(patch_map.margins[..., 1:].astype(float), np.array([1e6])),
    ):
        moved.save(tmp_path / "a.npz")
        found = PatchMap.load(tmp_path / "a.npz")
        np.testing.assert_array_equal(found.margins[moved.tissue, 1], 65504)
        np.testing.assert_array_equal(found.predicted_classes, moved.predicted_classes)


def test_proportions_are_relative_to_tissue(patch_map):
    predicted_classes = np.array([[0, 1, 1, NO_TISSUE]] * 3, np.int16)
    found = replace(patch_map, predicted_classes=predicted_classes)
    assert found.n_patches == 9
    assert found.proportions == {"a": pytest.approx(1 / 3), "b": pytest.approx(2 / 3)}
    background = replace(patch_map, predicted_classes=np.full((3, 4), NO_TISSUE, np.int16))
    assert background.n_patches == 0 and background.proportions == {"a": 0, "b": 0}
    assert background.colours()[1].max() == 0


def test_regions_are_sorted_by_size_and_located_at_their_patches(patch_map):
    predicted_classes = np.array([[1, 0, 0, 1], [1, 0, 0, 0], [1, 0, 0, 1]], np.int16)
    found = list(replace(patch_map, predicted_classes=predicted_classes).regions(1))
    assert [int(cells.sum()) for _, cells, _ in found] == [3, 1, 1]
    (window, cells, ((ring,),)), *_ = found
    assert window == (slice(0, 3), slice(0, 1)) and cells.all()
    # A cell is 25 wide and begins 12.5 into its patch of 50.
    assert set(ring) == {(12.5, 12.5), (37.5, 12.5), (37.5, 87.5), (12.5, 87.5)}
    assert (
        len(list(replace(patch_map, predicted_classes=predicted_classes).regions(1, min_patches=2)))
        == 1
    )
    assert (
        len(list(replace(patch_map, predicted_classes=predicted_classes).regions(1, max_regions=2)))
        == 2
    )


def test_colours_are_those_of_the_classes_and_opacity_follows_the_margin(patch_map):
    predicted_classes = np.array([[0, 1, NO_TISSUE, 1]] * 3, np.int16)
    margins = np.zeros((3, 4, 2), np.float32)
    margins[..., 1] = [0.1, 0.2, 0.9, 0.4]
    colours, opacity = replace(
        patch_map, predicted_classes=predicted_classes, margins=margins
    ).colours()
    np.testing.assert_array_equal(colours[0, 1], COLOURS[1])
    assert opacity[0, 2] == 0 and 0 < opacity[0, 0] < opacity[0, 1] < opacity[0, 3]
    assert class_css_colour(1) == "rgb(213, 94, 0)" and class_css_colour(
        len(COLOURS)
    ) == class_css_colour(0)


def test_every_pixel_belongs_to_the_nearest_cell():
    """By brute force: of overlapping patches, the one with the nearest centre, up to the border."""
    places = np.arange(0, 200) + 0.37
    grids = [GRID, PatchGrid(3, 4, 16, 16, 1.0), PatchGrid(3, 4, 16, 24, 3.3)]
    for grid in [*grids, replace(GRID, left=5.0, top=9.5)]:
        for found, count, start in (
            (grid.columns_at(places), grid.n_columns, grid.left),
            (grid.rows_at(places), grid.n_rows, grid.top),
        ):
            centres = start + np.arange(count) * grid.step + grid.patch_side / 2
            nearest = np.abs(places[:, None] - centres).argmin(axis=1)
            np.testing.assert_array_equal(found, nearest)


def test_region_outlines_contain_their_patches(patch_map):
    """Also if the first patch is not in the corner of the image, as in feature files of CLAM."""
    elsewhere = replace(patch_map, grid=replace(patch_map.grid, left=37.0, top=-411.0))
    for found in (patch_map, elsewhere):
        for (rows, columns), _, polygons in found.regions(1):
            corners = np.concatenate([np.array(ring) for polygon in polygons for ring in polygon])
            first = found.grid.cell_corner((columns.start, rows.start))
            last = found.grid.cell_corner((columns.stop, rows.stop))
            np.testing.assert_allclose(corners.min(axis=0), first)
            np.testing.assert_allclose(corners.max(axis=0), last)


def test_invalid_map_is_refused(tmp_path):
    for content in (b"", b"\xff\xd8\xff no map", b"PK\x03\x04 cut"):
        (tmp_path / "a.npz").write_bytes(content)
        with pytest.raises(ValueError, match="not a patch map"):
            PatchMap.load(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", predicted_classes=np.zeros((2, 2)))  # without metadata
    with pytest.raises(ValueError, match="not a patch map"):
        PatchMap.load(tmp_path / "a.npz")


def test_outlines_are_clipped_to_the_slide_if_its_size_is_known(tmp_path):
    """A tile of 512 pixels at y = 2560 ends beyond a slide of 2967 pixels."""
    grid = PatchGrid(6, 5, 256, 256, 2.0)
    predicted_classes = np.ones((6, 5), np.int16)
    margins = np.tile(np.array([-1.0, 1.0], np.float32), (6, 5, 1))
    size = (2220, 2967)
    found = PatchMap(grid, predicted_classes, margins, ("a", "b"), tmp_path / "a.h5", size=size)
    assert np.max(found.patch_ring(5, 4), axis=0).tolist() == [2220, 2967]
    ((_, _, [[ring]]),) = found.regions(1)
    assert set(ring) == {(0, 0), (2220, 0), (2220, 2967), (0, 2967)}
    for kind in (area_features(found), patch_features(found)):
        rings = [json.loads(text)["geometry"]["coordinates"][0] for text in kind]
        assert np.max([np.max(ring, axis=0) for ring in rings], axis=0).tolist() == [2220, 2967]
    found.save(tmp_path / "a.npz")
    assert PatchMap.load(tmp_path / "a.npz").size == size
    unknown = replace(found, size=None)
    assert np.max(unknown.patch_ring(5, 4), axis=0).tolist() == [2560, 3072]


def test_cell_beyond_the_slide_keeps_its_shape(tmp_path):
    """A tile between grid positions is counted in the nearest cell."""
    predicted_classes = np.ones((1, 4), np.int16)
    margins = np.zeros((1, 4, 2), np.float32)
    grid = PatchGrid(1, 4, 100, 100, 1.0)
    found = PatchMap(
        grid, predicted_classes, margins, ("a", "b"), tmp_path / "a.h5", size=(250, 90)
    )
    assert found.patch_ring(0, 2) == [(200, 0), (250, 0), (250, 90), (200, 90), (200, 0)]
    assert np.ptp([x for x, _ in found.patch_ring(0, 3)]) == 100
