"""Tests of the combination of several scores into one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from histodict.decision.calibration import ScoreCombination, shrunk_weights
from histodict.metrics.scores import auc


def member_scores(rng, labels, strengths, scales=None):
    """Return scores (n_images, n_members, 1): the truth with independent noise and scale."""
    truth = 2.0 * labels[:, None] - 1
    noisy = np.array(strengths) * truth + rng.standard_normal((len(labels), len(strengths)))
    return (noisy * (1 if scales is None else np.array(scales)))[..., None]


def fit(scores, labels, n_patients=1000):
    """Fit a combination as an ensemble does, with the AUC of the members."""
    columns = scores.mean(axis=2) if scores.shape[2] == 1 else None
    if columns is None:
        orders = [auc(labels, np.nan_to_num(scores[:, m])) for m in range(scores.shape[1])]
    else:
        orders = [auc(labels, np.nan_to_num(column), positive=1) for column in columns.T]
    return ScoreCombination.fit(scores, labels, np.array(orders), n_patients)


def test_scale_of_the_members_does_not_matter(rng):
    labels = rng.integers(0, 2, 60)
    plain = member_scores(np.random.default_rng(1), labels, [1, 0.5, 0.2])
    scaled = member_scores(np.random.default_rng(1), labels, [1, 0.5, 0.2], [1e3, 1, 1e-4])
    (one, first), (two, second) = fit(plain, labels), fit(scaled, labels)
    np.testing.assert_allclose(one.scores(plain), two.scores(scaled), atol=1e-9)
    np.testing.assert_allclose(first.nonconformity_scores, second.nonconformity_scores, atol=1e-6)


def test_independent_members_are_better_combined(rng):
    labels = np.repeat([0, 1], 2000)
    scores = member_scores(rng, labels, [0.6] * 5)
    ensemble, _ = fit(scores, labels)
    right = np.mean((ensemble.scores(scores)[:, 0] > 0) == labels)
    alone = [np.mean((scores[:, m, 0] > 0) == labels) for m in range(5)]
    assert right > max(alone) + 0.1


def test_zero_is_where_classes_are_equally_likely(rng):
    """The offset corrects members whose scores are biased towards one class."""
    labels = np.repeat([0, 1], [300, 100])
    scores = member_scores(rng, labels, [1.0, 1.0]) + 3.0
    ensemble, calibration = fit(scores, labels)
    scores = ensemble.scores(scores)
    np.testing.assert_allclose(calibration.probabilities(np.zeros((1, 1))), 0.5, atol=1e-12)
    shares = [np.mean((scores[labels == c, 0] > 0) == c) for c in (0, 1)]
    assert min(shares) > 0.85


def test_offset_is_shrunk_with_few_patients(rng):
    labels = np.repeat([0, 1], [300, 100])
    scores = member_scores(rng, labels, [1.0, 1.0]) + 3.0
    offsets = [fit(scores, labels, n)[0].offset for n in (0, 3, 12, 10**9)]
    assert offsets[0] == 0 and (np.diff(offsets) < 0).all()
    assert offsets[2] == pytest.approx(offsets[3] / 2, rel=0.01)
    # Whatever the offset, the predicted class is the more probable one.
    ensemble, calibration = fit(scores, labels, 3)
    scores = ensemble.scores(scores)
    probabilities = calibration.probabilities(scores)
    np.testing.assert_array_equal(probabilities[:, 1] > 0.5, scores[:, 0] > 0)


def test_member_without_a_score_is_ignored(rng):
    labels = np.repeat([0, 1], 20)
    scores = member_scores(rng, labels, [1.0, 1.0, 1.0])
    scores[3, 1] = np.nan
    ensemble, _ = fit(scores, labels)
    others = [0, 2]
    values = (
        np.tanh(ensemble.tanh_scale * scores[3, others, 0] / ensemble.scales[others])
        / ensemble.tanh_scale
    )
    expected = np.average(values, weights=ensemble.weights[others]) + ensemble.offset
    assert ensemble.scores(scores)[3, 0] == pytest.approx(expected)


def test_three_classes(rng):
    labels = np.arange(90) % 3
    scores = np.eye(3)[labels][:, None] * 2 + rng.standard_normal((90, 4, 3))
    ensemble, calibration = fit(scores, labels)
    scores = ensemble.scores(scores)
    assert scores.shape == (90, 3) and ensemble.offset == 0
    probabilities = calibration.probabilities(scores)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), scores.argmax(axis=1))
    assert np.mean(probabilities.argmax(axis=1) == labels) > 0.9


def test_constant_members_do_not_matter():
    labels = np.repeat([0, 1], 5)
    scores = np.zeros((10, 2, 1))
    scores[:, 0, 0] = 2.0 * labels - 1
    ensemble, _ = fit(scores, labels)
    assert ((ensemble.scores(scores)[:, 0] > 0) == labels).all()


def test_uninformative_members_get_small_weights_with_many_patients(rng):
    labels = np.repeat([0, 1], 400)
    scores = member_scores(rng, labels, [1.5, 0.0, 0.0, 0.0])
    many, few = (fit(scores, labels, n)[0] for n in (1000, 2))
    assert many.weights[0] > 0.97 and 0.25 < few.weights[0] < 0.5
    right = [np.mean((c.scores(scores)[:, 0] > 0) == labels) for c in (few, many)]
    assert right[1] > right[0] + 0.05
    equal = ScoreCombination.with_equal_weights(scores)
    np.testing.assert_array_equal(equal.weights, 0.25)
    assert equal.offset == 0


def test_weights_are_positive_and_sum_to_one():
    np.testing.assert_allclose(shrunk_weights(np.array([0.8, 0.8, 0.8]), 5), 1 / 3)
    orders = np.array([0.95, 0.7, 0.5, 0.3])
    for n_patients in (0, 1, 6, 100, 10**6):
        weights = shrunk_weights(orders, n_patients)
        assert weights.sum() == pytest.approx(1) and (weights > 0).all()
        assert (np.diff(weights) <= 1e-12).all()
    np.testing.assert_allclose(shrunk_weights(orders, 0), 0.25)
    # Half-way at twelve patients.
    steep = shrunk_weights(orders, 10**9)
    np.testing.assert_allclose(shrunk_weights(orders, 12), (steep + 0.25) / 2, rtol=1e-6)


def test_weights_are_those_of_independent_members(rng):
    """AUC = Φ(d'/√2), and with many patients a member is weighted by its d'²."""
    strengths = np.array([0.3, 0.6, 0.9])
    labels = np.repeat([0, 1], 200_000)
    scores = member_scores(rng, labels, strengths)
    ensemble, _ = fit(scores, labels, 10**9)
    np.testing.assert_allclose(ensemble.weights, strengths**2 / (strengths**2).sum(), atol=0.01)


def test_outlying_member_does_not_overrule_the_others(rng):
    labels = np.repeat([0, 1], 100)
    scores = member_scores(rng, labels, [1.5, 1.5, 1.5])
    ensemble, _ = fit(scores, labels)
    image = np.array([[[3.0], [3.0], [-3.0]]])
    loud = np.array([[[3.0], [3.0], [-1e6]]])
    assert ensemble.scores(image)[0, 0] > 0 and ensemble.scores(loud)[0, 0] > 0
    straight = replace(ensemble, tanh_scale=0.0)
    assert straight.scores(image)[0, 0] > 0 > straight.scores(loud)[0, 0]
    # Near 0 the scores are unchanged, and the order of one member's scores never changes.
    np.testing.assert_allclose(
        ensemble.scores(image / 1e4), straight.scores(image / 1e4), atol=1e-9
    )
    assert (
        np.diff(ensemble.scores(np.linspace(-3, 3, 50)[:, None, None].repeat(3, 1))[:, 0]) > 0
    ).all()


def test_single_member_is_not_compressed(rng):
    labels = np.repeat([0, 1], 50)
    ensemble, _ = fit(member_scores(rng, labels, [1.0]), labels)
    assert ensemble.tanh_scale == 0


def test_only_abstaining_members_give_no_score():
    ensemble = ScoreCombination(np.ones(2), np.array([0.7, 0.3]))
    assert np.isnan(ensemble.scores(np.full((1, 2, 1), np.nan))).all()


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_inverse_tanh_restores_the_score_of_one_member(rng, scale):
    ensemble = ScoreCombination(np.array([2.0]), np.ones(1), 0.7, tanh_scale=scale)
    output = rng.normal(0, 3, (50, 1, 1))
    scores = ensemble.scores(output)
    np.testing.assert_allclose(scores - 0.7, np.tanh(scale * output[:, 0] / 2) / scale)
    np.testing.assert_allclose(ensemble.invert_tanh(scores)[:, 0], output[:, 0, 0] / 2, rtol=1e-6)
    straight = replace(ensemble, tanh_scale=0.0)
    np.testing.assert_allclose(straight.invert_tanh(straight.scores(output)), output[:, 0] / 2)


def test_scores_are_the_sum_of_gradients_times_member_scores(rng):
    ensemble = ScoreCombination(np.array([2.0, 0.5]), np.array([0.7, 0.3]), 0.4, tanh_scale=0.5)
    for output in (rng.normal(size=(2, 3)), np.array([[1.5], [np.nan]]), np.array([[0.0], [2]])):
        factors = ensemble.member_factors(output)
        total = (factors * np.nan_to_num(output)).sum(axis=0) + ensemble.offset
        np.testing.assert_allclose(total, ensemble.scores(output))
