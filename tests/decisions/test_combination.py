"""Several scores as one."""

from __future__ import annotations

import numpy as np
import pytest

from histodict.decisions.combination import Combination


def said(rng, labels, strengths, scales=None):
    """Scores (n_images, n_members, 1): the truth with noise of its own, in units of its own."""
    truth = 2.0 * labels[:, None] - 1
    noisy = np.array(strengths) * truth + rng.standard_normal((len(labels), len(strengths)))
    return (noisy * (1 if scales is None else np.array(scales)))[..., None]


def test_units_of_the_members_do_not_matter(rng):
    labels = rng.integers(0, 2, 60)
    plain = said(np.random.default_rng(1), labels, [1, 0.5, 0.2])
    scaled = said(np.random.default_rng(1), labels, [1, 0.5, 0.2], [1e3, 1, 1e-4])
    (one, first), (two, second) = Combination.fit(plain, labels), Combination.fit(scaled, labels)
    np.testing.assert_allclose(one.scores(plain), two.scores(scaled), atol=1e-9)
    np.testing.assert_allclose(first.misfits, second.misfits, atol=1e-6)


def test_independent_members_together_beat_each_of_them(rng):
    labels = np.repeat([0, 1], 2000)
    parts = said(rng, labels, [0.6] * 5)
    panel, _ = Combination.fit(parts, labels)
    right = np.mean((panel.scores(parts)[:, 0] > 0) == labels)
    alone = [np.mean((parts[:, m, 0] > 0) == labels) for m in range(5)]
    assert right > max(alone) + 0.1


def test_zero_is_where_unseen_patients_are_equally_likely(rng):
    """Members that lean to one class, as rules of training images may, are put right."""
    labels = np.repeat([0, 1], [300, 100])
    parts = said(rng, labels, [1.0, 1.0]) + 3.0
    panel, calibration = Combination.fit(parts, labels)
    scores = panel.scores(parts)
    np.testing.assert_allclose(calibration.probabilities(np.zeros((1, 1))), 0.5, atol=1e-4)
    shares = [np.mean((scores[labels == c, 0] > 0) == c) for c in (0, 1)]
    assert min(shares) > 0.85


def test_a_member_that_saw_nothing_has_no_say(rng):
    labels = np.repeat([0, 1], 20)
    parts = said(rng, labels, [1.0, 1.0, 1.0])
    parts[3, 1] = np.nan
    panel, _ = Combination.fit(parts, labels)
    others = panel.scales[[0, 2]]
    expected = (parts[3, [0, 2], 0] / others).mean() + panel.offset
    assert panel.scores(parts)[3, 0] == pytest.approx(expected)


def test_three_classes(rng):
    labels = np.arange(90) % 3
    parts = np.eye(3)[labels][:, None] * 2 + rng.standard_normal((90, 4, 3))
    panel, calibration = Combination.fit(parts, labels)
    scores = panel.scores(parts)
    assert scores.shape == (90, 3) and panel.offset == 0
    chances = calibration.probabilities(scores)
    np.testing.assert_array_equal(chances.argmax(axis=1), scores.argmax(axis=1))
    assert np.mean(chances.argmax(axis=1) == labels) > 0.9


def test_members_that_always_say_zero_do_no_harm():
    labels = np.repeat([0, 1], 5)
    parts = np.zeros((10, 2, 1))
    parts[:, 0, 0] = 2.0 * labels - 1
    panel, _ = Combination.fit(parts, labels)
    assert ((panel.scores(parts)[:, 0] > 0) == labels).all()
