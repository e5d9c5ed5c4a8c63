"""Tests of variance components with planted variances, and of the confounding test."""

import numpy as np
import pytest

from histodict.metrics.confounding import (
    _false_discovery_rates,
    confounding_test,
    intraclass_correlation,
)


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def nested(rng, share, n_groups, n_units, n_columns=400, n_blocks=2):
    """Return blocks of groups of units with the given share of variance between groups."""
    groups = np.repeat(np.arange(n_blocks * n_groups), n_units)
    added = rng.standard_normal((n_blocks * n_groups, n_columns))[groups]
    own = rng.standard_normal((len(groups), n_columns))
    values = np.sqrt(share) * added + np.sqrt(1 - share) * own
    even = np.sin((values - values.min()) / np.ptp(values) * np.pi / 2) ** 2
    return even, groups // n_groups, groups


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
@pytest.mark.parametrize(("n_groups", "n_units"), [(6, 2), (5, 2), (12, 3)])
def test_planted_share_is_found_and_lies_in_its_interval(rng, share, n_groups, n_units):
    values, blocks, groups = nested(rng, share, n_groups, n_units)
    found = intraclass_correlation(values, blocks, groups, groups)
    assert np.median(found.value) == pytest.approx(share, abs=0.1)
    covered = (found.low <= share) & (share <= found.high)
    assert covered.mean() > 0.87
    assert (found.low > share).mean() < 0.05  # overestimates are rare


def test_differences_between_blocks_do_not_count(rng):
    values, blocks, groups = nested(rng, 0.0, 6, 3)
    moved = np.where(blocks[:, None] == 1, values / 2, values)
    assert np.median(intraclass_correlation(moved, blocks, groups, groups).value) < 0.1


def test_block_with_one_group_changes_nothing(rng):
    values, blocks, groups = nested(rng, 0.5, 4, 3)
    more = [np.concatenate(pair) for pair in ((values, values[:5]), (blocks, [9] * 5))]
    alone = np.full(5, 99)
    one = intraclass_correlation(values, blocks, groups, groups)
    two = intraclass_correlation(more[0], more[1], *[np.concatenate([groups, alone])] * 2)
    np.testing.assert_allclose(one.value, two.value)
    np.testing.assert_allclose(one.low, two.low)


def test_many_groups_are_jackknifed_in_bundles(rng):
    values, blocks, groups = nested(rng, 0.3, 90, 2, n_columns=200)
    found = intraclass_correlation(values, blocks, groups, groups)
    assert ((found.low <= 0.3) & (found.high >= 0.3)).mean() > 0.87


def test_single_unit_groups_and_constant_columns_give_nan(rng):
    values, blocks, groups = nested(rng, 0.5, 4, 1)
    assert np.isnan(intraclass_correlation(values, blocks, groups, groups).value).all()
    values, blocks, groups = nested(rng, 0.5, 4, 2)
    values[:, 3] = 0.0
    found = intraclass_correlation(values, blocks, groups, groups)
    assert np.isnan(found.value[3]) and np.isfinite(np.delete(found.value, 3)).all()
    few = intraclass_correlation(*nested(rng, 0.5, 2, 4), nested(rng, 0.5, 2, 4)[2])
    assert np.isfinite(few.value).all() and np.isnan(few.low).all()
    nobody = np.empty(0, np.int64)
    assert np.isnan(intraclass_correlation(values[:0], nobody, nobody, nobody).value).all()


# --- confounding test -----------------------------------------------------------------------------


def test_share_is_computed_between_groups_within_a_class():
    classes, groups = np.array([0] * 4 + [1] * 4), np.array([0, 0, 1, 1] * 2)
    by_class = classes[:, None] * 0.5
    by_group = groups[:, None] * 1.0
    inside = np.array([0.0, 1, 0, 1, 0, 1, 0, 1])[:, None]
    in_one = by_group * (classes == 1)[:, None]
    values = np.hstack([by_class, by_group, inside, by_group + inside, in_one])
    found = confounding_test([values], classes, groups)
    np.testing.assert_allclose(found.variance_fractions, [0, 1, 0, 0.5, 1], atol=1e-12)
    assert found.n_groups == 2
    swapped = confounding_test([values[:, ::-1], values], classes, groups)
    np.testing.assert_allclose(swapped.variance_fractions, [1, 1, 0, 1, 1], atol=1e-12)


def test_fraction_is_the_maximum_over_three_classes(rng):
    classes, groups = np.repeat([0, 1, 2], 8), np.tile([0, 1], 12)
    values = rng.random((24, 5))
    expected = []
    for index in range(3):
        of_class = values[classes == index]
        means = np.stack([of_class[groups[:8] == group].mean(axis=0) for group in (0, 1)])
        expected.append(means.var(axis=0) / of_class.var(axis=0))
    found = confounding_test([values], classes, groups, n_permutations=9)
    np.testing.assert_allclose(found.variance_fractions, np.max(expected, axis=0))


def test_planted_site_is_found_and_noise_is_not(rng):
    classes, groups = np.repeat([0, 1], 12), np.tile([0, 1], 12)
    values = rng.beta(3, 20, size=(24, 50))
    values[(classes == 1) & (groups == 1), 7] += 0.5
    found = confounding_test([values], classes, groups)
    assert np.flatnonzero(found.adjusted_p_values <= 0.05).tolist() == [7]
    assert found.variance_fractions[7] > 0.5 and found.p_value <= 0.01


def test_weak_effects_are_detected_jointly(rng):
    """One standard deviation in each of 40 features: the strongest alone is not significant."""
    classes, groups = np.repeat([0, 1], 16), np.tile([0, 1], 16)
    alone, together = [], []
    for seed in range(12):
        values = np.random.default_rng(seed).standard_normal((32, 80))
        values[(classes == 1) & (groups == 1), :40] += 1.0
        found = confounding_test([values], classes, groups, n_permutations=199)
        together.append(found.p_value <= 0.02)
        alone.append(found.adjusted_p_values.min() <= 0.02)
    assert np.mean(together) > 0.8 and np.mean(together) > np.mean(alone)


def test_p_value_applies_to_all_features_jointly(rng):
    """Without any site effect 1 in 10 sets has a p-value of 0.1 or less."""
    classes, groups = np.repeat([0, 1], 8), np.tile([0, 1], 8)
    low = [
        confounding_test([rng.random((16, 30))], classes, groups, n_permutations=99).p_value
        for _ in range(60)
    ]
    assert np.mean(np.array(low) <= 0.1) < 0.25


def test_adjusted_p_values_equal_benjamini_hochberg():
    p_values = np.array([0.04, 0.001, 0.03, 0.5])
    np.testing.assert_allclose(_false_discovery_rates(p_values), [0.16 / 3, 0.004, 0.16 / 3, 0.5])


def test_without_two_sites_in_a_class_the_result_is_nan(rng):
    found = confounding_test(
        [rng.random((6, 3))], np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 0, 1, 1, 1])
    )
    assert (
        np.isnan(found.variance_fractions).all()
        and np.isnan(found.adjusted_p_values).all()
        and np.isnan(found.p_value)
    )
