"""A threshold from scores alone."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from histodict.decisions.unlabelled import better_threshold, middle_of_two_groups


def test_two_means_as_another_library_finds_them(rng):
    for _ in range(20):
        scores = np.concatenate([rng.normal(0, 1, 15), rng.normal(3, 0.5, rng.integers(3, 30))])
        means = KMeans(2, n_init=20, random_state=0).fit(scores[:, None]).cluster_centers_
        assert middle_of_two_groups(scores) == pytest.approx(means.mean(), abs=1e-9)


def test_where_all_scores_lie_moves_the_threshold_by_as_much(rng):
    scores = rng.normal(size=30)
    assert middle_of_two_groups(scores + 5) == pytest.approx(middle_of_two_groups(scores) + 5)
    assert middle_of_two_groups(3 * scores) == pytest.approx(3 * middle_of_two_groups(scores))
    assert better_threshold(scores + 5) == pytest.approx(middle_of_two_groups(scores) / 2 + 2.5)


def test_a_shift_of_other_patients_is_mended_and_one_class_alone_does_little_harm(rng):
    labels = np.repeat([0, 1], 40)
    scores = 4.0 * labels - 2 + rng.normal(0, 0.6, 80)
    shifted = scores + 2.2
    assert np.mean((shifted > 0) == labels) < 0.9
    assert np.mean((shifted > better_threshold(shifted)) == labels) > 0.95
    alone = scores[labels == 1]
    assert np.mean(alone > better_threshold(alone)) > 0.9


def test_a_few_images_say_nothing():
    with pytest.raises(ValueError, match="at least 10"):
        better_threshold(np.arange(9.0))
    assert better_threshold(np.zeros(10)) == 0
