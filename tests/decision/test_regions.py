from __future__ import annotations

import numpy as np
import pytest

from histodict.decision.threshold import (
    LargestRegionSizes,
    RegionSizeCurve,
    fit_margin_threshold,
    measure_largest_regions,
)


def mask_of(*lines):
    return np.array([[character != "." for character in line] for line in lines])


def test_outside_of_a_mask_counts_as_a_negative_image():
    positive = mask_of("##....", "##....", "....##", "......")
    truth = mask_of("#.....", "......", "......", "......")
    everywhere = np.ones_like(truth)
    assert measure_largest_regions(positive, truth, everywhere) == LargestRegionSizes(4, 2)
    assert measure_largest_regions(positive, ~truth, everywhere) == LargestRegionSizes(4, 0)
    assert measure_largest_regions(
        positive, np.zeros_like(truth), everywhere
    ) == LargestRegionSizes(None, 4)
    assert measure_largest_regions(positive, everywhere, everywhere) == LargestRegionSizes(4, None)
    assert measure_largest_regions(np.zeros_like(truth), truth, truth) == LargestRegionSizes(
        0, None
    )


def test_min_patches_is_closest_to_the_origin():
    findings = [
        LargestRegionSizes(found, alarm) for found, alarm in ((9, 2), (12, 3), (5, 0), (4, 6))
    ]
    curve = RegionSizeCurve.from_regions(findings)
    distances = []
    for m in range(1, 21):
        miss = np.mean([f.true_positive_size < m for f in findings])
        alarm = np.mean([f.false_positive_size >= m for f in findings])
        assert (curve.false_negative_rate[m - 1], curve.false_positive_rate[m - 1]) == (miss, alarm)
        distances.append(np.hypot(miss, alarm))
    assert curve.min_patches == int(np.argmin(distances)) + 1 == 4
    assert (np.diff(curve.false_negative_rate) >= 0).all() and (
        np.diff(curve.false_positive_rate) <= 0
    ).all()


def test_fit_without_positives_or_negatives_is_refused():
    with pytest.raises(ValueError, match="without the positive class"):
        RegionSizeCurve.from_regions([LargestRegionSizes(3, None)])
    with pytest.raises(ValueError, match="with the positive class"):
        RegionSizeCurve.from_regions([LargestRegionSizes(None, 3)])


@pytest.mark.parametrize("seed", range(20))
def test_margin_threshold_maximises_youden_index(seed):
    rng = np.random.default_rng(seed)
    # rounded, so that some are equal
    margins = np.round(rng.normal(0, 1, 60), 1).astype(np.float32)
    truth = margins + rng.normal(0.7, 1, 60) > 0

    def youden(cut):
        called = margins > np.float64(cut)
        return called[truth].mean() + (~called)[~truth].mean()

    found = fit_margin_threshold(margins, truth)
    tried = np.concatenate([[-9], np.unique(margins).astype(np.float64) + 0.05, [9]])
    assert youden(found) == pytest.approx(max(map(youden, tried)))
    assert not np.isin(np.float32(found), margins)


def test_planted_threshold_is_found_and_one_class_has_none():
    margins = np.linspace(-1, 1, 201, dtype=np.float32)
    assert fit_margin_threshold(margins, margins > 0.3) == pytest.approx(0.305, abs=1e-6)
    assert fit_margin_threshold(margins, np.ones(201, bool)) == 0
    assert fit_margin_threshold(margins, np.zeros(201, bool)) == 0
