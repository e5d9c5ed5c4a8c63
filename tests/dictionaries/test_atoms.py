from __future__ import annotations

import numpy as np
import pytest

from histodict.dictionaries.atoms import (
    canonicalize,
    duplicate_atoms,
    initial_atoms,
    normalize,
    replace_unused_atoms,
)
from tests.problems import gaussian, unit_rows


def test_initial_atoms_are_samples_when_there_are_enough(rng):
    _, Y = gaussian(rng, 1, 100, 20)
    D = initial_atoms(Y, 30, rng)
    np.testing.assert_allclose((D @ normalize(Y).T).max(axis=1), 1)
    assert not duplicate_atoms(D).any()


@pytest.mark.parametrize(
    "Y",
    [
        np.zeros((5, 12)),
        np.ones((50, 12)),
        np.eye(3, 12),
        np.random.default_rng(1).standard_normal((4, 12)),
    ],
    ids=["zero", "constant", "few", "fewer than atoms"],
)
def test_initial_atoms_are_distinct_unit_vectors(rng, Y):
    D = initial_atoms(Y, 20, rng)
    np.testing.assert_allclose(np.linalg.norm(D, axis=1), 1)
    assert duplicate_atoms(D).sum() == 0


def test_duplicate_atoms_are_found_up_to_sign(rng):
    D, _ = gaussian(rng, 6, 1, 20)
    assert duplicate_atoms(np.stack([D[0], D[1], -D[0], D[1], D[2]])).tolist() == [
        False,
        False,
        True,
        True,
        False,
    ]


def test_unused_atoms_are_replaced_by_new_directions(rng):
    D, _ = gaussian(rng, 6, 1, 20)
    D[4] = -D[1]
    uses = np.array([5, 4, 0, 3, 2, 1])
    candidates = np.stack([np.zeros(20), 3 * D[0], 2 * np.eye(20)[0], np.eye(20)[1]])
    new = replace_unused_atoms(D, uses, candidates)
    np.testing.assert_array_equal(new[[0, 1, 3, 5]], D[[0, 1, 3, 5]])
    np.testing.assert_allclose(new[[2, 4]], np.eye(20)[:2])


def test_single_candidate_replaces_an_unused_atom(rng):
    D, Y = gaussian(rng, 3, 1, 20)
    new = replace_unused_atoms(D, np.array([2, 0, 0]), Y)
    np.testing.assert_allclose(new, np.stack([D[0], normalize(Y)[0], D[2]]))


def test_nothing_is_replaced_without_need_or_candidates(rng):
    D, Y = gaussian(rng, 6, 4, 20)
    np.testing.assert_array_equal(replace_unused_atoms(D, np.ones(6), Y), D)
    np.testing.assert_array_equal(replace_unused_atoms(D, np.zeros(6), Y[:0]), D)
    np.testing.assert_array_equal(replace_unused_atoms(D, np.zeros(6), D[:3]), D)


def test_canonical_order_does_not_depend_on_order_and_sign(rng):
    D = unit_rows(rng.standard_normal((10, 7)))
    uses = rng.permutation(10)
    code_sums = rng.integers(-3, 4, 10)
    shuffle = rng.permutation(10)
    signs = rng.choice([-1, 1], 10)
    once = canonicalize(D, uses, code_sums)
    flipped = (D * signs[:, None])[shuffle]
    again = canonicalize(flipped, uses[shuffle], (code_sums * signs)[shuffle])
    np.testing.assert_array_equal(once, again)
    most_used = np.argmax(uses)
    assert once[0] @ D[most_used] == pytest.approx(
        np.sign(code_sums[most_used]) or once[0] @ D[most_used]
    )
