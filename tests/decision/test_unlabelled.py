"""Tests of thresholds from unlabelled scores."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from histodict.decision.calibration import ScoreCombination
from histodict.decision.threshold import (
    ThresholdAdaptation,
    adapted_threshold,
    is_bimodal,
    two_means_midpoint,
)
from histodict.models import EnsembleClassifier
from histodict.models.recipe import preset


def test_two_means_equals_scikit_learn(rng):
    for _ in range(20):
        scores = np.concatenate([rng.normal(0, 1, 15), rng.normal(3, 0.5, rng.integers(3, 30))])
        means = KMeans(2, n_init=20, random_state=0).fit(scores[:, None]).cluster_centers_
        assert two_means_midpoint(scores) == pytest.approx(means.mean(), abs=1e-9)


def test_two_means_follows_shift_and_scale(rng):
    scores = rng.normal(size=30)
    assert two_means_midpoint(scores + 5) == pytest.approx(two_means_midpoint(scores) + 5)
    assert two_means_midpoint(3 * scores) == pytest.approx(3 * two_means_midpoint(scores))
    assert adapted_threshold(scores + 5) == pytest.approx(two_means_midpoint(scores) / 2 + 2.5)


def test_shift_of_all_scores_is_corrected(rng):
    labels = np.repeat([0, 1], 40)
    scores = 4.0 * labels - 2 + rng.normal(0, 0.6, 80)
    shifted = scores + 2.2
    assert np.mean((shifted > 0) == labels) < 0.9
    assert np.mean((shifted > adapted_threshold(shifted)) == labels) > 0.95
    alone = scores[labels == 1]
    assert np.mean(alone > adapted_threshold(alone)) > 0.9


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="at least 10"):
        adapted_threshold(np.arange(9.0))
    assert adapted_threshold(np.zeros(10)) == 0


def test_adaptation_counts_changed_images_and_groups(rng):
    scores = np.concatenate([rng.normal(-1, 0.3, 20), rng.normal(2, 0.3, 30)])
    moved = ThresholdAdaptation.from_scores(
        [*scores, np.nan], adapted_threshold(scores)
    )  # one image is background
    assert moved.groups == (20, 30) and not moved.has_small_group
    threshold = adapted_threshold(scores)
    between = (scores > 0) & (scores <= threshold)
    assert moved.n_moved == between.sum()
    assert ThresholdAdaptation.from_scores([-1.0, 0.4, 0.6, 3.0], 0.5) == ThresholdAdaptation(
        (3, 1), 1
    )
    assert ThresholdAdaptation.from_scores([-1.0, -0.4, 0.6], -0.5) == ThresholdAdaptation(
        (1, 2), 1
    )


def test_small_group_is_reported():
    assert ThresholdAdaptation.from_scores([0.0] * 9 + [2.0, 2.0], 0.5).has_small_group
    assert not ThresholdAdaptation.from_scores([0.0] * 8 + [2.0, 2.0], 0.5).has_small_group


def test_one_group_of_bounded_ensemble_scores_is_not_two_groups(rng):
    """The tanh of an ensemble moves many scores of one group to both ends of the range."""
    ensemble = EnsembleClassifier(preset("fast"))
    ensemble.class_names_, ensemble.threshold_shift_ = ["a", "b"], 0.0
    ensemble.combination_ = ScoreCombination(np.ones(1), np.ones(1), tanh_scale=1.0)
    scores = np.tanh(rng.normal(0, 3, 80))
    assert is_bimodal(scores)
    with pytest.raises(ValueError, match="do not form two groups"):
        ensemble.adapt_threshold(scores)
