from __future__ import annotations

import numpy as np
import pytest

from histodict.image_features.wndcharm.histograms import (
    gini,
    intensity_statistics,
    multiscale_histograms,
)
from tests.image_features.planes import texture


def plane(*values):
    return np.array([values], np.float64)


def test_statistics_by_hand():
    assert intensity_statistics(plane(1, 2, 3, 6)) == {
        "mean": 3,
        "median": 2.5,
        "deviation": pytest.approx(np.sqrt(14 / 3)),
        "least": 1,
        "greatest": 6,
    }


def test_gini_by_hand():
    assert gini(plane(5, 5, 5)) == {"coefficient": 0}
    assert gini(plane(1, 3))["coefficient"] == pytest.approx(1 / 2)
    # Values that are not positive are ignored.
    assert gini(plane(0, -2, 1, 3))["coefficient"] == pytest.approx(1 / 2)
    assert gini(plane(0, 0)) == gini(plane(0, 4)) == {"coefficient": 0}


def test_gini_is_half_the_relative_mean_difference_of_pairs(rng):
    values = texture(rng, (20, 20)).astype(np.float64) + 1
    flat = values.ravel()
    pairs = np.abs(flat[:, None] - flat).sum() / (len(flat) * (len(flat) - 1))
    assert gini(values)["coefficient"] == pytest.approx(pairs / (2 * flat.mean()))


def test_histograms_by_hand():
    entries = multiscale_histograms(plane(0, 0, 1, 9))
    assert [entries[f"of 3, bin {i}"] for i in (1, 2, 3)] == pytest.approx([1, 0, 1 / 3])
    assert [entries[f"of 9, bin {i}"] for i in (1, 2, 9)] == pytest.approx([2 / 3, 1 / 3, 1 / 3])
    assert len(entries) == 24


def test_histograms_equal_numpy(rng):
    values = rng.standard_normal((40, 40))
    entries = multiscale_histograms(values)
    fullest = np.histogram(values, 3)[0].max()
    for n_bins in (3, 5, 7, 9):
        ours = [entries[f"of {n_bins}, bin {i}"] for i in range(1, n_bins + 1)]
        np.testing.assert_allclose(ours, np.histogram(values, n_bins)[0] / fullest)


def test_histograms_do_not_depend_on_brightness_and_contrast(rng):
    values = texture(rng).astype(np.float64)
    assert multiscale_histograms(values * 2 + 30) == multiscale_histograms(values)
