"""Tests of fitting a grid to patch corners: exact if they form one, else one cell per patch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from histodict.images.file_types import ImageError
from histodict.patches.grid import PatchGrid, fit_grid
from histodict.precomputed.feature_file import open_features
from tests.precomputed.feature_files import some_vectors, write_clam, write_trident


def fit(path, coords, **metadata):
    vectors = np.zeros((len(coords), 2), np.float32)
    write = write_trident if metadata else write_clam
    with open_features(write(path, vectors, coords, **metadata)) as file:
        return fit_grid(file)


def some_cells(rng, n=12):
    cells = np.stack(np.meshgrid(np.arange(n), np.arange(n)), -1).reshape(-1, 2)
    return cells[rng.permutation(len(cells))[: len(cells) // 2]]


def corners(grid, cells):
    return [grid.corner(row, column) for row, column in cells.tolist()]


@pytest.mark.parametrize("origin", [(0, 0), (37, 401)])
@pytest.mark.parametrize(
    "metadata", [{}, {"level0_width": 7000, "level0_height": 7000}, {"level0_width": None}]
)
def test_grid_corners_are_recovered_exactly(tmp_path, origin, metadata):
    cells = some_cells(np.random.default_rng(0))
    coords = cells * 512 + np.array(origin)
    grid, found = fit(tmp_path / "a.h5", coords, **metadata)
    assert corners(grid, found) == [tuple(at) for at in coords.tolist()]
    assert grid.patch_side == grid.step == 512


def test_overlapping_patches_of_trident(tmp_path):
    """Its first row and column are shifted up and left by the overlap."""
    axis = np.array([n * 512 - 128 * max(n - 1, 0) for n in range(10)])
    coords = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    grid, found = fit(tmp_path / "a.h5", coords, overlap=64)
    assert grid.step == 384 and grid.patch_side == 512
    inner = (coords > 0).all(axis=1)
    assert [corners(grid, found[inner])] == [[tuple(at) for at in coords[inner].tolist()]]
    assert len(np.unique(found, axis=0)) == len(coords)


def test_several_grids_as_cut_by_clam(tmp_path):
    rng = np.random.default_rng(1)
    pieces = [some_cells(rng) * 256 + np.array(at) for at in ((100, 30), (100 + 12 * 256, 511))]
    coords = np.concatenate(pieces)
    grid, found = fit(tmp_path / "a.h5", coords)
    away = np.abs(np.array(corners(grid, found)) - coords).max(axis=1)
    assert grid.step == grid.patch_side == 256 and away.max() <= 256
    assert np.mean(away <= 128) > 0.9
    assert len(np.unique(found, axis=0)) == len(coords)


@pytest.mark.parametrize("coords", [np.eye(50, 2, dtype=np.int64), np.array([[7, 5]])])
def test_patches_at_one_position_have_separate_cells(tmp_path, coords):
    grid, found = fit(tmp_path / "a.h5", coords)
    assert len(np.unique(found, axis=0)) == len(coords)
    assert (found < [grid.n_rows, grid.n_columns]).all()


def test_patches_at_random_positions_stay_near_them(tmp_path):
    coords = np.random.default_rng(2).integers(0, 6000, (600, 2))
    grid, found = fit(tmp_path / "a.h5", coords, overlap=0, level0_height=6000)
    away = np.abs(np.array(corners(grid, found)) - coords).max(axis=1)
    assert away.max() <= 512 and len(np.unique(found, axis=0)) == len(coords)


def test_coords_in_another_unit_are_refused(tmp_path):
    coords = np.array([[0, 0], [1, 0], [80_000_000, 90_000_000]])
    with pytest.raises(ImageError, match="level-0 pixels"):
        fit(tmp_path / "a.h5", coords)


GRID = {"n_rows": 8, "n_columns": 9, "patch_px": 256, "stride_px": 256, "downsample": 2.0}


def test_grid_in_the_file_is_used(tmp_path):
    vectors, coords = some_vectors()
    own = json.dumps({"grid": GRID})
    path = write_trident(tmp_path / "a.h5", vectors, coords, histodict=own)
    with open_features(path) as file:
        grid, _ = fit_grid(file)
    assert grid == PatchGrid(**GRID)


@pytest.mark.parametrize(
    "change",
    [
        {"n_rows": 10**40},
        {"n_rows": 10_000, "n_columns": 10_000},
        {"n_rows": 8.5},
        {"n_columns": -3},
        {"patch_px": True},
        {"stride_px": 0},
        {"downsample": 1e-300},
        {"left": float("inf")},
        {"top": "none"},
        {"chunk_px": None},
        {"more": 1},
    ],
)
def test_invalid_grid_in_the_file_is_refused(tmp_path, change):
    vectors, coords = some_vectors()
    own = json.dumps({"grid": GRID | change}).replace("Infinity", "1e999")
    path = write_trident(tmp_path / "a.h5", vectors, coords, histodict=own)
    text = f"a.h5: the coords do not fit the grid .*({next(iter(change))}|positions)"
    with pytest.raises(ImageError, match=text), open_features(path) as file:
        fit_grid(file)
