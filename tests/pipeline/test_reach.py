"""How far a slide is done: by its tissue, whatever of the glass is passed over."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.patches.grid import PatchGrid
from histodict.pipeline.reach import Reach


def told(size, tissue, chunks=lambda grid: list(grid.chunks())):
    grid, heard = PatchGrid.over(size, 20, 10, 2.0), []
    reach = Reach(size, lambda: tissue, grid, heard.append)
    for rows, columns in chunks(grid):
        reach.add(rows, columns)
    reach.end()
    return heard


def test_the_share_of_tissue_that_is_done():
    tissue = np.zeros((100, 200), bool)
    tissue[50:] = True  # the lower half of 20,000 x 10,000 pixels
    heard = told((20_000, 10_000), tissue)
    work = np.array([progress.work for progress in heard])
    assert {progress.total for progress in heard} == {100}  # megapixels of tissue
    assert work[0] == 0 and work[-1] == 1 and heard[-1].done == 100
    n_half = len(work) // 2
    assert work[n_half - 10] < 0.1 and (np.diff(work) >= 0).all()
    assert work[n_half + n_half // 2] == pytest.approx(0.5, abs=0.1)


def test_chunks_of_glass_that_are_passed_over_change_nothing():
    tissue = np.zeros((100, 200), bool)
    tissue[50:] = True
    lower = told((20_000, 10_000), tissue, lambda g: [c for c in g.chunks() if c[0].stop > 250])
    assert lower[-2].work == pytest.approx(1, abs=0.02)


def test_of_a_small_image_or_of_glass_nothing_is_told():
    assert told((2_000, 1_000), np.ones((100, 200), bool)) == []
    assert told((20_000, 10_000), np.zeros((100, 200), bool)) == []
