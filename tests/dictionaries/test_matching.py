"""Tests of matched |cosines|: invariant to order, sign and length, and optimal."""

from itertools import permutations

import numpy as np
import pytest

from histodict.dictionaries.atoms import abs_cosines, best_matches, match_atoms


@pytest.fixture
def rng():
    return np.random.default_rng(3)


def test_order_sign_and_length_do_not_matter(rng):
    A = rng.normal(size=(7, 12))
    order = rng.permutation(7)
    scales = rng.choice([-1, 1], 7) * rng.uniform(0.1, 9, 7)
    found = match_atoms(A, (A * scales[:, None])[order])
    np.testing.assert_array_equal(order[found.partners], np.arange(7))
    np.testing.assert_allclose(found.cosines, 1, atol=1e-12)
    assert found.mean == pytest.approx(1)


def test_matching_is_optimal(rng):
    A, B = rng.normal(size=(5, 4)), rng.normal(size=(5, 4))
    C = abs_cosines(A, B)
    best = max(sum(C[i, p] for i, p in enumerate(pairing)) for pairing in permutations(range(5)))
    found = match_atoms(A, B)
    assert found.cosines.sum() == pytest.approx(best)
    assert sorted(found.partners.tolist()) == list(range(5))


def test_atom_without_a_partner_counts_as_zero(rng):
    A = np.eye(6)[:4]
    found = match_atoms(A, A[[2, 0]])
    assert found.partners.tolist() == [1, -1, 0, -1]
    assert found.mean == pytest.approx(0.5)
    more = match_atoms(A[[2, 0]], A)
    assert more.partners.tolist() == [2, 0] and more.mean == pytest.approx(1)


def test_best_matches_may_share_a_partner():
    A = np.array([[1.0, 0.0], [1.0, 0.1]])
    B = np.array([[2.0, 0.1], [0.0, -1.0]])
    assert best_matches(A, B).partners.tolist() == [0, 0]
    assert sorted(match_atoms(A, B).partners.tolist()) == [0, 1]
    assert (best_matches(A, B).cosines >= match_atoms(A, B).cosines - 1e-12).all()
    assert best_matches(A, np.zeros((0, 2))).partners.tolist() == [-1, -1]


def test_zero_atom_has_similarity_zero():
    assert abs_cosines([[0.0, 0.0], [1.0, 0.0]], [[-3.0, 0.0]]).tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("A", "B", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "of 3 and 4 features"),
        (np.ones(3), np.ones((2, 3)), "n_atoms, n_features"),
        (np.full((1, 2), np.nan), np.ones((1, 2)), "NaN"),
    ],
)
def test_invalid_dictionaries_are_refused(A, B, message):
    with pytest.raises(ValueError, match=message):
        match_atoms(A, B)
