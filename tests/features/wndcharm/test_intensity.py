from __future__ import annotations

import numpy as np
import pytest

from histodict.features.wndcharm.intensity import (
    gini,
    intensity_statistics,
    multiscale_histograms,
)
from tests.features.planes import texture


def plane(*values):
    return np.array([values], np.float32)


def test_statistics_by_hand():
    assert intensity_statistics(plane(1, 2, 3, 6)) == {
        "mean": 3,
        "deviation": pytest.approx(np.sqrt(3.5)),
        "median": 2.5,
        "least": 1,
        "greatest": 6,
    }


def test_gini_by_hand():
    assert gini(plane(5, 5, 5)) == {"coefficient": 0}
    assert gini(plane(0, 0, 0, 1))["coefficient"] == pytest.approx(3 / 4)
    assert gini(plane(1, 3))["coefficient"] == pytest.approx(1 / 4)
    assert gini(plane(0, 0)) == {"coefficient": 0}


def test_gini_is_half_the_relative_mean_difference(rng):
    values = texture(rng, (20, 20))
    flat = values.ravel()
    pairs = np.abs(flat[:, None] - flat).mean()
    assert gini(values)["coefficient"] == pytest.approx(pairs / (2 * flat.mean()), rel=1e-5)


def test_histograms_by_hand():
    entries = multiscale_histograms(plane(0, 0, 1, 9))
    assert [entries[f"of 3, bin {i}"] for i in (1, 2, 3)] == [0.75, 0, 0.25]
    assert [entries[f"of 9, bin {i}"] for i in (1, 2, 9)] == [0.5, 0.25, 0.25]
    assert len(entries) == 24
    assert sum(entries.values()) == pytest.approx(4)


def test_histograms_are_numpys(rng):
    values = rng.standard_normal((40, 40)).astype(np.float32)
    entries = multiscale_histograms(values)
    for n_bins in (3, 5, 7, 9):
        known = np.histogram(values, n_bins)[0] / values.size
        ours = [entries[f"of {n_bins}, bin {i}"] for i in range(1, n_bins + 1)]
        np.testing.assert_allclose(ours, known, atol=1 / 1600)


def test_histograms_are_blind_to_brightness_and_contrast(rng):
    values = texture(rng)
    assert multiscale_histograms(values * 2 + 30) == multiscale_histograms(values)
