from __future__ import annotations

import numpy as np
import pytest

from histodict.dictionaries.fista import FistaCodes
from histodict.kernels import encode_lasso
from tests.problems import coherent, gaussian


def lasso_by_fista(D, Y, penalty, n_steps, n_jobs=1, sizes=None):
    codes = FistaCodes(sizes or [len(Y)], len(D), Y.dtype, n_jobs)
    codes.improve(D @ D.T, lambda block: Y[block.rows] @ D.T, penalty, n_steps)
    return codes


def lasso_value(D, Y, S, penalty):
    return 0.5 * np.sum((Y - S @ D) ** 2) + penalty * np.abs(S).sum()


def coupled_value(H, B, C, S, sizes, penalty):
    """Return the objective defined at the top of this file, term by term."""
    value = 0.5 * np.sum(S * (S @ H)) - np.sum(B * S) + penalty * np.abs(S).sum()
    means = [part.mean(axis=0) for part in np.split(S, np.cumsum(sizes)[:-1])]
    for i, m_i in enumerate(means):
        for j, m_j in enumerate(means):
            value += 0.5 * sizes[i] * C[i, j] * (m_i @ m_j)
    return value


def make_coupling(sizes, weight):
    shares = np.tile(np.array(sizes) / sum(sizes), (len(sizes), 1))
    return weight * (shares - 2 * np.eye(len(sizes)))


def plain_fista(H, B, C, sizes, penalty, n_steps):
    """Run textbook FISTA with restarts on all rows at once."""
    L, labels = np.linalg.eigvalsh(H)[-1], np.repeat(np.arange(len(sizes)), sizes)
    S, Z, t = np.zeros_like(B), np.zeros_like(B), 1.0
    for _ in range(n_steps):
        means = np.stack([Z[labels == i].mean(axis=0) for i in range(len(sizes))])
        U = Z - (Z @ H - B + (C @ means)[labels]) / L
        new = np.sign(U) * np.maximum(np.abs(U) - penalty / L, 0)
        t_new = (1 + np.sqrt(1 + 4 * t * t)) / 2
        factor = (t - 1) / t_new
        if np.sum((Z - new) * (new - S)) > 0:
            factor, t_new = 0.0, 1.0
        S, Z, t = new, new + factor * (new - S), t_new
    return S


@pytest.mark.parametrize("n_steps", [1, 2, 3, 60])
def test_steps_equal_the_plain_algorithm(rng, n_steps):
    sizes = [7, 3, 12]
    D, Y = coherent(rng, 8, sum(sizes), 10)
    H, B, C = D @ D.T + 2 * 0.3 * np.eye(8), Y @ D.T, make_coupling(sizes, 0.3)
    codes = FistaCodes(sizes, 8, Y.dtype, 2)
    codes.improve(H, lambda block: B[block.rows], 0.05, n_steps, C)
    expected = plain_fista(H, B, C, sizes, 0.05, n_steps)
    assert np.abs(expected).max() > 0.01
    np.testing.assert_allclose(codes.S, expected, atol=1e-10)


def test_restarts_keep_the_convergence_rate(rng):
    """Where curvature is bounded below, steps without restart oscillate about the minimiser."""
    D, Y = gaussian(rng, 20, 30, 25)
    best = lasso_value(D, Y, encode_lasso(D, Y, 0.1, tol=1e-13).toarray(), 0.1)
    found = lasso_value(D, Y, lasso_by_fista(D, Y, 0.1, 200).S, 0.1)
    assert found - best < 1e-11 * best


@pytest.mark.parametrize("problem", [gaussian, coherent])
def test_converges_to_the_exact_lasso(rng, problem):
    D, Y = problem(rng, 20, 50, 15)
    exact = encode_lasso(D, Y, 0.1, tol=1e-10).toarray()
    codes = lasso_by_fista(D, Y, 0.1, 2000)
    best = lasso_value(D, Y, exact, 0.1)
    assert lasso_value(D, Y, codes.S, 0.1) == pytest.approx(best, rel=1e-6)


def test_momentum_saves_many_steps(rng):
    D, Y = coherent(rng, 30, 40, 20)
    best = lasso_value(D, Y, encode_lasso(D, Y, 0.02, tol=1e-10).toarray(), 0.02)
    accelerated = lasso_value(D, Y, lasso_by_fista(D, Y, 0.02, 100).S, 0.02) - best
    plain = FistaCodes([len(Y)], len(D), Y.dtype, 1)
    for _ in range(100):  # momentum restarts with every call
        plain.improve(D @ D.T, lambda block: Y[block.rows] @ D.T, 0.02, 1)
    assert accelerated < 0.2 * (lasso_value(D, Y, plain.S, 0.02) - best)


def test_coupled_groups_reach_the_minimiser(rng):
    """The problem is convex: at the minimiser no small change of S lowers the value."""
    sizes = [7, 3, 12]
    D, Y = gaussian(rng, 8, sum(sizes), 10)
    H, B, C = D @ D.T + 2 * 0.3 * np.eye(8), Y @ D.T, make_coupling(sizes, 0.3)
    codes = FistaCodes(sizes, 8, Y.dtype, 1)
    codes.improve(H, lambda block: B[block.rows], 0.1, 3000, C)
    labels = np.repeat(np.arange(3), sizes)
    gradient = codes.S @ H - B + (C @ codes.means)[labels]
    used = codes.S != 0
    np.testing.assert_allclose(gradient[used], -0.1 * np.sign(codes.S[used]), atol=1e-6)
    assert np.abs(gradient[~used]).max() <= 0.1 + 1e-6
    assert used.any()
    assert not used.all()
    value = coupled_value(H, B, C, codes.S, sizes, 0.1)
    for _ in range(20):
        other = codes.S + 0.01 * rng.standard_normal(codes.S.shape)
        assert coupled_value(H, B, C, other, sizes, 0.1) > value


def test_single_step_never_increases_the_objective(rng):
    """1/L is a safe step although groups are coupled: one step never increases the objective."""
    sizes = [5, 9]
    D, Y = coherent(rng, 12, 14, 10)
    H, B, C = D @ D.T + 2 * np.eye(12), Y @ D.T, make_coupling(sizes, 1.0)
    codes = FistaCodes(sizes, 12, Y.dtype, 1)
    for _ in range(10):
        codes.S[:] = rng.standard_normal(codes.S.shape)
        before = coupled_value(H, B, C, codes.S, sizes, 0.1)
        codes.improve(H, lambda block: B[block.rows], 0.1, 1, C)
        assert coupled_value(H, B, C, codes.S, sizes, 0.1) < before


def test_repeated_calls_continue(rng):
    D, Y = coherent(rng, 20, 30, 15)
    codes = lasso_by_fista(D, Y, 0.05, 20)
    values = [lasso_value(D, Y, codes.S, 0.05)]
    for _ in range(5):
        codes.improve(D @ D.T, lambda block: Y[block.rows] @ D.T, 0.05, 20)
        values.append(lasso_value(D, Y, codes.S, 0.05))
    assert (np.diff(values) <= 1e-12 * values[0]).all()
    assert values[-1] < values[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_bits_for_any_number_of_threads(rng, dtype):
    D, Y = coherent(rng, 30, 2500, 20, dtype)
    one, two = (lasso_by_fista(D, Y, 0.05, 20, n, [100, 2400]) for n in (1, 2))
    assert one.S.dtype == dtype
    np.testing.assert_array_equal(one.S, two.S)
    for a, b in zip(one.compute_sums(Y), two.compute_sums(Y), strict=True):
        np.testing.assert_array_equal(a, b)


def test_sums_and_means(rng):
    sizes = [1030, 1, 500]
    _, Y = gaussian(rng, 6, sum(sizes), 5)
    codes = FistaCodes(sizes, 6, Y.dtype, 2)
    codes.S[:] = rng.standard_normal(codes.S.shape)
    E, F, l1 = codes.compute_sums(Y)
    np.testing.assert_allclose(E, codes.S.T @ Y)
    np.testing.assert_allclose(F, codes.S.T @ codes.S)
    assert l1 == pytest.approx(np.abs(codes.S).sum())
    before = codes.S.copy()
    weighted, _, _ = codes.compute_sums(Y, lambda S, group: S * (group + 1))
    factors = np.repeat([1, 2, 3], sizes)[:, None]
    np.testing.assert_allclose(weighted, (factors * codes.S).T @ Y)
    np.testing.assert_array_equal(codes.S, before)
    expected = [part.mean(axis=0) for part in np.split(codes.S, [1030, 1031])]
    np.testing.assert_allclose(codes.means, expected)
