from __future__ import annotations

import itertools

import numpy as np
import pytest

from histodict.kernels import encode_joint, encode_omp
from histodict.kernels.cpu import backend as cpu
from tests.kernels import reference
from tests.problems import coherent, gaussian, planted, unit_rows

RULES = ["order-recursive", "correlation"]


def channels(rng, problem, n_channels, n_atoms, n_samples, n_features, dtype=float):
    """Return unrelated D (n_channels, n_atoms, n_features) and Y (n_channels, n_samples,
    n_features)."""
    pairs = [problem(rng, n_atoms, n_samples, n_features, dtype) for _ in range(n_channels)]
    return tuple(np.stack(part) for part in zip(*pairs, strict=True))


def dense(S):
    return np.stack([S_c.toarray() for S_c in S])


def squared_residuals(D, Y, S):
    return np.sum((Y - dense(S) @ D) ** 2, axis=(0, 2))


@pytest.mark.parametrize("selection", RULES)
@pytest.mark.parametrize("problem", [gaussian, coherent])
@pytest.mark.parametrize("n_channels", [1, 2, 3, 5])
def test_equals_the_reference(rng, problem, selection, n_channels):
    D, Y = channels(rng, problem, n_channels, 75, 25, 33)
    S = encode_joint(D, Y, 9, selection=selection)
    expected = reference.encode_joint(D, Y, 9, selection=selection)
    np.testing.assert_allclose(dense(S), expected, atol=1e-7)


@pytest.mark.parametrize("selection", RULES)
def test_single_precision_is_close_to_the_reference(rng, selection):
    D, Y = channels(rng, gaussian, 3, 75, 100, 33, np.float32)
    S = encode_joint(D, Y, 9, selection=selection)
    assert all(S_c.dtype == np.float32 for S_c in S)
    expected = reference.encode_joint(D.astype(float), Y.astype(float), 9, selection=selection)
    same = np.isclose(dense(S), expected, atol=1e-4).all(axis=(0, 2))
    assert same.mean() >= 0.99  # a tie within rounding may be broken differently


@pytest.mark.parametrize("selection", RULES)
@pytest.mark.parametrize("problem", [gaussian, coherent])
def test_equal_channels_give_the_codes_of_plain_pursuit(rng, problem, selection):
    D, Y = problem(rng, 80, 300, 30)
    S = encode_joint(np.stack([D] * 3), np.stack([Y] * 3), 7, selection=selection)
    plain = encode_omp(D, Y, 7, selection=selection)
    for S_c in S:
        np.testing.assert_array_equal(S_c.indptr, plain.indptr)
        np.testing.assert_array_equal(S_c.indices, plain.indices)
        np.testing.assert_allclose(S_c.data, plain.data, atol=1e-9)


def test_equal_channels_give_the_codes_of_plain_pursuit_in_single_precision(rng):
    D, Y = gaussian(rng, 80, 300, 30, np.float32)
    S = encode_joint(np.stack([D] * 3), np.stack([Y] * 3), 7)
    plain = encode_omp(D, Y, 7).toarray()
    for S_c in S:
        assert np.isclose(S_c.toarray(), plain, atol=1e-4).all(axis=1).mean() >= 0.99


@pytest.mark.parametrize("selection", RULES)
def test_order_of_the_channels_does_not_matter(rng, selection):
    D, Y = channels(rng, coherent, 3, 60, 200, 20)
    S = dense(encode_joint(D, Y, 6, selection=selection))
    for order in itertools.permutations(range(3)):
        turned = encode_joint(D[list(order)], Y[list(order)], 6, selection=selection)
        np.testing.assert_allclose(dense(turned), S[list(order)], atol=1e-8)


def test_channels_share_one_support_of_at_most_n_nonzero_atoms(rng):
    D, Y = channels(rng, coherent, 3, 60, 200, 20)
    first, *others = encode_joint(D, Y, 6)
    assert np.diff(first.indptr).max() == 6
    for other in others:
        np.testing.assert_array_equal(other.indptr, first.indptr)
        np.testing.assert_array_equal(other.indices, first.indices)
        assert not np.allclose(other.data, first.data)


def test_residuals_are_orthogonal_to_the_selected_atoms(rng):
    D, Y = channels(rng, coherent, 3, 60, 50, 40)
    S = dense(encode_joint(D, Y, 7))
    products = (Y - S @ D) @ D.transpose(0, 2, 1)
    assert np.abs(products[S != 0]).max() < 1e-9


def test_common_support_is_found_where_single_channels_fail(rng):
    """The same few atoms in three channels, with noise that hides them in any single channel."""
    D = np.stack([unit_rows(rng.standard_normal((120, 40))) for _ in range(3)])
    picks = np.array([rng.choice(120, 4, replace=False) for _ in range(200)])
    truth = np.zeros((3, 200, 120))
    signs = rng.choice([-1, 1], (3, 200, 4))
    truth[:, np.arange(200)[:, None], picks] = signs * rng.uniform(0.5, 1, (3, 200, 4))
    Y = truth @ D + 0.17 * rng.standard_normal((3, 200, 40))

    def found(S_c):
        return np.mean((S_c.toarray() != 0) == (truth[0] != 0), axis=1) == 1

    joint = found(encode_joint(D, Y, 4)[0]).mean()
    alone = max(found(encode_omp(D[c], Y[c], 4)).mean() for c in range(3))
    assert joint > 0.9 and alone < 0.6


def test_order_recursive_selection_is_better_on_coherent_atoms(rng):
    D, Y = channels(rng, coherent, 3, 200, 200, 60)
    greedy = [squared_residuals(D, Y, encode_joint(D, Y, 6, selection=r)).mean() for r in RULES]
    assert greedy[0] < 0.98 * greedy[1]


def test_tol_limits_the_sum_over_channels(rng):
    D, Y = channels(rng, gaussian, 3, 50, 80, 30)
    S = encode_joint(D, Y, 30, tol=6.0)
    assert 3.0 < squared_residuals(D, Y, S).max() <= 6.0
    sizes = np.diff(S[0].indptr)
    for row in np.flatnonzero(sizes > 1)[:10]:
        shorter = encode_joint(D, Y[:, [row]], int(sizes[row]) - 1)
        assert squared_residuals(D, Y[:, [row]], shorter)[0] > 6.0


def test_more_atoms_never_increase_the_error(rng):
    D, Y = channels(rng, coherent, 3, 60, 50, 40, np.float32)
    errors = [squared_residuals(D, Y, encode_joint(D, Y, n)).mean() for n in (1, 2, 4, 8, 16)]
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-12, 1e-2, 1e4, 1e12])
def test_supports_do_not_depend_on_the_norms_of_atoms_and_samples(rng, dtype, scale):
    D, Y = channels(rng, gaussian, 3, 64, 100, 32)
    sizes = np.array([scale, 1.0, 1 / scale])[:, None, None]
    for selection in RULES:
        options = {"n_nonzero": 6, "selection": selection}
        plain = dense(encode_joint(D.astype(dtype), Y.astype(dtype), **options))
        of_atoms = dense(encode_joint((sizes * D).astype(dtype), Y.astype(dtype), **options))
        of_samples = dense(encode_joint(D.astype(dtype), (scale * Y).astype(dtype), **options))
        for other in (of_atoms * sizes, of_samples / scale):
            assert np.isclose(other, plain, atol=1e-3).all(axis=(0, 2)).mean() >= 0.98


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("selection", RULES)
def test_bits_do_not_depend_on_the_number_of_threads(rng, dtype, selection):
    D, Y = channels(rng, coherent, 3, 120, 3000, 24, dtype)
    one, two, three = (encode_joint(D, Y, 8, selection=selection, n_jobs=n) for n in (1, 2, 3))
    for other in (two, three):
        for expected, S_c in zip(one, other, strict=True):
            np.testing.assert_array_equal(expected.indptr, S_c.indptr)
            np.testing.assert_array_equal(expected.indices, S_c.indices)
            np.testing.assert_array_equal(expected.data, S_c.data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("selection", RULES)
def test_atoms_dependent_in_one_channel_are_used_in_the_others(rng, dtype, selection):
    """The first channel spans 3 dimensions, the second 8, the third none."""
    low, high = (rng.standard_normal((50, r)) @ rng.standard_normal((r, 30)) for r in (3, 8))
    D = np.stack([low, high, np.zeros_like(low)]).astype(dtype)
    D[:, 40:45] = D[:, :5]  # repeated atoms
    D[:, 45:48] = 0
    Y = rng.standard_normal((3, 20, 30)).astype(dtype)
    S = encode_joint(D, Y, 30, selection=selection)
    assert all(np.isfinite(S_c.data).all() for S_c in S)
    assert 8 <= np.diff(S[0].indptr).max() <= 11
    assert not S[2].data.any()
    for c in (0, 1):
        projection = Y[c] @ np.linalg.pinv(D[c], rcond=1e-5) @ D[c]
        np.testing.assert_allclose(S[c].toarray() @ D[c], projection, atol=5e-3)


def test_almost_dependent_atom_is_not_selected(rng):
    """Divided by its tiny norm outside the span, its correlation would appear as the largest
    gain."""
    a, b, e = np.linalg.qr(rng.standard_normal((10, 3)))[0].T
    atoms = unit_rows(np.stack([a, a + 1e-4 * b, e]))
    y = (a + 3 * b + 0.7 * e)[None]
    for D, Y in (
        (np.stack([atoms, atoms]), np.stack([y, y])),
        (np.stack([atoms, np.zeros_like(atoms)]), np.stack([y, y])),
    ):
        np.testing.assert_array_equal(encode_joint(D, Y, 2)[0].indices, [1, 2])


def test_dependent_channels_equal_the_reference(rng):
    D, Y = channels(rng, gaussian, 3, 40, 30, 20)
    D[0] = D[0, :, :4] @ rng.standard_normal((4, 20))
    D[1, 7:12] = D[1, :5]
    S = encode_joint(D, Y, 12)
    np.testing.assert_allclose(dense(S), reference.encode_joint(D, Y, 12), atol=1e-6)


@pytest.mark.parametrize("selection", RULES)
def test_nearly_dependent_atoms_are_stable_in_single_precision(rng, selection):
    """Smooth planes: selection prefers atoms that are almost in the span."""
    directions = np.linalg.qr(rng.standard_normal((80, 80)))[0][:60]
    strengths = 20 * 0.7 ** np.arange(60)

    def planes(n):
        mixtures = (rng.standard_normal((3, n, 60)) * strengths) @ directions
        return np.stack([unit_rows(6 + mixture) for mixture in mixtures]).astype(np.float32)

    D, Y = planes(200), planes(400)
    S = encode_joint(D, Y, 30, selection=selection)
    assert all(np.abs(S_c.data).max() < 100 for S_c in S)
    _, reported = cpu.JointCoder(D, 30, 0.0, selection == RULES[0]).code(Y)
    np.testing.assert_allclose(reported, squared_residuals(D, Y, S), atol=1e-4)
    # No atom twice: SciPy would add duplicates, and the pattern would shrink.
    for S_c in S:
        stored = S_c.nnz
        S_c.sum_duplicates()
        assert S_c.nnz == stored


def test_zero_samples_and_zero_channels(rng):
    D, Y = channels(rng, gaussian, 3, 40, 6, 30)
    Y[:, :2] = 0
    Y[1, 2:4] = 0
    S = encode_joint(D, Y, 5)
    np.testing.assert_array_equal(np.diff(S[0].indptr), [0, 0, 5, 5, 5, 5])
    assert not S[1][2:4].data.any() and S[0][2:4].data.all()


def test_more_nonzeros_than_atoms_or_features(rng):
    D, Y = channels(rng, gaussian, 2, 12, 10, 40)
    exact = np.stack([Y[c] @ np.linalg.pinv(D[c]) @ D[c] for c in (0, 1)])
    np.testing.assert_allclose(dense(encode_joint(D, Y, 50)) @ D, exact, atol=1e-8)
    D, Y = channels(rng, gaussian, 2, 40, 10, 12)
    np.testing.assert_allclose(dense(encode_joint(D, Y, 50)) @ D, Y, atol=1e-5)


def test_planted_supports_are_found(rng):
    D = unit_rows(rng.standard_normal((60, 100)))
    Y = planted(rng, D, 50, 4)
    both = encode_joint(np.stack([D, -D]), np.stack([Y, 3 * Y]), 4)
    assert np.abs(Y - both[0].toarray() @ D).max() < 1e-9
    np.testing.assert_allclose(both[1].toarray(), -3 * both[0].toarray(), atol=1e-9)


def test_no_samples(rng):
    D, _ = channels(rng, gaussian, 3, 12, 1, 10)
    assert [S_c.shape for S_c in encode_joint(D, np.zeros((3, 0, 10)), 3)] == [(0, 12)] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_nonzero": 0}, "n_nonzero"),
        ({"tol": -1.0}, "tol"),
        ({"selection": "best"}, "selection"),
        ({"backend": "abacus"}, "backend"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"Y": np.zeros((2, 4, 8))}, "Y has 2 channels, but D has 3"),
        ({"Y": np.zeros((3, 4, 9))}, "Y has 9 features"),
        ({"Y": np.full((3, 4, 8), np.nan)}, "Y contains NaN"),
        ({"Y": np.zeros((4, 8))}, "Y must have three dimensions"),
        ({"D": np.zeros((3, 0, 8))}, "D must have atoms"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    valid = {"D": np.ones((3, 5, 8)), "Y": np.ones((3, 4, 8)), "n_nonzero": 2}
    with pytest.raises(ValueError, match=message):
        encode_joint(**(valid | arguments))
