"""Tests of the detection of bimodal scores."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import gaussian_kde

from histodict.decision import threshold as two_groups
from histodict.decision.calibration import ScoreCombination
from histodict.decision.threshold import SIGNIFICANCE_LEVEL, is_bimodal

N_SETS = 200


def rate(draw, n_images):
    """Return the rate over all sets at once, which is faster; a few are also tested one by one."""
    rng = np.random.default_rng(7)
    sets = [draw(rng, n_images) for _ in range(N_SETS)]
    differ = [np.ptp(scores) > 0 for scores in sets]
    untied = np.array([two_groups._spread_ties(scores) for scores in sets if np.ptp(scores) > 0])
    widths = two_groups._closing_widths(untied)
    found = np.zeros(N_SETS, bool)
    found[differ] = widths > two_groups._critical_width(n_images)
    assert [is_bimodal(scores) for scores in sets[:10]] == found[:10].tolist()
    return np.mean(found)


@pytest.mark.parametrize("n_images", [10, 20, 40, 80])
@pytest.mark.parametrize(
    "draw",
    [
        lambda rng, n: rng.normal(3, 2, n),
        lambda rng, n: rng.standard_t(4, n),
        lambda rng, n: -rng.gumbel(size=n),
        lambda rng, n: rng.binomial(25, 0.02, n) / 25,
        lambda rng, n: rng.binomial(10, 0.2, n) / 10,
        lambda rng, n: rng.binomial(k := rng.integers(15, 40, n), 0.03) / k,
    ],
    ids=["normal", "heavy tails", "skewed", "few wrong patches", "ten patches", "any number"],
)
def test_unimodal_scores_are_called_bimodal_at_the_stated_rate(draw, n_images):
    allowed = SIGNIFICANCE_LEVEL + 3 * np.sqrt(
        SIGNIFICANCE_LEVEL * (1 - SIGNIFICANCE_LEVEL) / N_SETS
    )
    assert rate(draw, n_images) <= allowed


@pytest.mark.parametrize(("n_images", "least"), [(10, 0.7), (20, 0.9), (40, 0.97), (80, 0.97)])
def test_distant_groups_are_detected(n_images, least):
    def draw(rng, n):
        return rng.normal(size=n) + 5 * (np.arange(n) % 2)

    assert rate(draw, n_images) >= least


def test_two_groups_of_proportions_are_detected():
    def draw(rng, n):
        return rng.binomial(25, np.where(np.arange(n) % 2, 0.02, 0.98)) / 25

    assert rate(draw, 20) >= 0.97


def test_scale_offset_and_sign_do_not_matter(rng):
    scores = np.concatenate([rng.normal(0, 1, 20), rng.normal(6, 1, 20)])
    assert is_bimodal(scores) and is_bimodal(1e-6 * scores - 5)
    assert is_bimodal(-scores)
    assert not is_bimodal(scores[:20])


def test_outliers_and_equal_scores_are_not_bimodal():
    scores = np.concatenate([np.random.default_rng(0).normal(size=40), [30.0]])
    assert not is_bimodal(scores)
    assert not is_bimodal(np.ones(12))


def ensemble_scores(rng, truth, spread):
    """Return scores of four correlated members, combined by an ensemble, and without
    compression."""
    ensemble = ScoreCombination(np.ones(4), np.full(4, 0.25), 0.3, tanh_scale=1.0)
    alike, own = rng.normal(size=(len(truth), 1)), rng.normal(size=(len(truth), 4))
    output = truth[:, None] + spread * (0.9 * alike + 0.44 * own)
    scores = ensemble.scores(output[..., None])[:, 0]
    return scores, ensemble.invert_tanh(scores)


def test_wide_group_of_ensemble_scores_is_unimodal():
    """Compressed scores accumulate at both ends."""
    for bounded, error_rate in ((True, None), (False, 1.6 * SIGNIFICANCE_LEVEL)):

        def draw(rng, n, bounded=bounded):
            scores, uncompressed = ensemble_scores(rng, np.zeros(n), 1.2)
            return scores if bounded else uncompressed

        found = rate(draw, 60)
        assert found > 0.4 if error_rate is None else found <= error_rate


def test_two_groups_of_ensemble_scores_are_detected():
    def draw(rng, n):
        return ensemble_scores(rng, np.where(np.arange(n) % 2, 1.2, -1.2), 0.4)[1]

    assert rate(draw, 40) >= 0.9


# --- statistic ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n_outliers", "distance"), [(0, 0), (2, 8), (4, 20), (6, 45)])
def test_statistic_of_two_points_is_half_their_distance(n_outliers, distance):
    """An equal mixture of two normal densities is bimodal if their means differ by more than 2σ.

    Few outliers change the standard deviation, in units of which t is stated, but form no group.
    """
    outliers = distance * np.where(np.arange(n_outliers) % 2, 1.0, -1.0)
    scores = np.concatenate([np.repeat([-1.0, 1.0], (120 - n_outliers) // 2), outliers])
    expected = 1 / scores.std()
    (width,) = two_groups._closing_widths(scores[None])
    # The widths have ratios of 0.95, and the bins 0.04 standard deviations.
    assert 0.92 * expected < width < 1.03 * expected


def test_smoothed_histogram_is_a_kernel_density(rng):
    """The values at the bin centres are those of SciPy, with outliers in the border bins."""
    sets = rng.gumbel(size=(4, 60))
    sets[2:, 0] = -30, 30
    centred = sets - np.median(sets, axis=1, keepdims=True)
    standardised = np.clip(centred / sets.std(axis=1, keepdims=True), -5, 5)
    counts = two_groups._histograms(sets)
    n_bins = counts.shape[1]
    for scores, found in zip(standardised, counts, strict=True):
        expected = np.histogram(scores, n_bins, (-5, 5))[0] / len(scores)
        np.testing.assert_allclose(found, expected)
        for width in (0.3, 1.0):
            density = gaussian_kde(scores, width / scores.std(ddof=1))
            centres = np.linspace(-5, 5, n_bins)
            smoothed = found @ two_groups._smoothing_matrix(width) / width / np.sqrt(2 * np.pi)
            np.testing.assert_allclose(smoothed, density(centres), atol=0.02)
    assert counts[:, 0].any() and counts[:, -1].any()
