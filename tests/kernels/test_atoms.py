from __future__ import annotations

import itertools

import numpy as np
import pytest

from histodict.kernels import encode_omp, update_atoms
from histodict.kernels.cpu import backend as cpu
from tests.kernels import reference
from tests.problems import coherent, gaussian, unit_rows


def dfdl_sums(rng, n_atoms=70, n_features=50, rho=0.5):
    """Return E and F of a class against others; with the default rho F is indefinite."""
    D, Y = gaussian(rng, n_atoms, 300, n_features)
    S = encode_omp(D, Y, 6).toarray()
    w = np.where(np.arange(300) < 100, 1 / 100, -rho / 200)
    return D, (S * w[:, None]).T @ Y, (S * w[:, None]).T @ S


def objective(D, E, F):
    return -2 * np.sum(E * D) + np.sum((F @ D) * D)


def test_equals_the_update_of_the_paper_on_the_convexified_problem(rng):
    D, E, F = dfdl_sums(rng)
    assert np.linalg.eigvalsh(F)[0] < 0
    for n_sweeps in (1, 3):
        expected = reference.update_atoms(D, E, F, n_sweeps)
        np.testing.assert_allclose(update_atoms(D, E, F, n_sweeps=n_sweeps), expected, atol=1e-10)


def test_convexified_matrix_is_positive_semidefinite_and_shifts_the_objective(rng):
    D, E, F = dfdl_sums(rng)
    F_hat = reference.convexify(F)
    assert np.linalg.eigvalsh(F_hat)[0] > -1e-12
    other = unit_rows(rng.standard_normal(D.shape))
    shift = objective(D, E, F_hat) - objective(D, E, F)
    assert objective(other, E, F_hat) - objective(other, E, F) == pytest.approx(shift)


@pytest.mark.parametrize(("dtype", "slack"), [(np.float64, 1e-13), (np.float32, 1e-6)])
def test_objective_never_increases_and_atoms_stay_unit(rng, dtype, slack):
    D, E, F = (a.astype(dtype) for a in dfdl_sums(rng))
    values = [objective(D, E, F)]
    for _ in range(8):
        D = update_atoms(D, E, F)
        np.testing.assert_allclose(np.linalg.norm(D, axis=1), 1, atol=100 * slack + 1e-12)
        values.append(objective(D, E, F))
    assert all(b <= a + slack for a, b in itertools.pairwise(values))
    assert values[-1] < values[0] - 0.01


def test_each_atom_is_the_best_unit_vector_for_fixed_others(rng):
    D, E, F = dfdl_sums(rng)
    D = update_atoms(D, E, F, n_sweeps=500, tol=1e-14)
    best = objective(D, E, F)
    for _ in range(200):
        j = rng.integers(len(D))
        other = D.copy()
        other[j] = unit_rows(D[[j]] + 0.1 * rng.standard_normal((1, D.shape[1])))[0]
        assert objective(other, E, F) >= best - 1e-12


def test_unused_atoms_are_unchanged(rng):
    D, E, F = dfdl_sums(rng)
    E[[3, 40]] = 0
    F[[3, 40]] = 0
    F[:, [3, 40]] = 0
    np.testing.assert_array_equal(update_atoms(D, E, F)[[3, 40]], D[[3, 40]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_features", [7, 32, 77])
def test_sums_of_a_block(rng, dtype, n_features):
    D, Y = coherent(rng, 45, 700, n_features, dtype)
    S = encode_omp(D, Y, 5)
    w = rng.standard_normal(700)
    E, F = cpu.weighted_products(Y, S, w)
    dense = S.toarray().astype(float)
    tolerance = 1e-10 if dtype == np.float64 else 1e-3
    np.testing.assert_allclose(E, (dense * w[:, None]).T @ Y, atol=tolerance)
    np.testing.assert_allclose(F, (dense * w[:, None]).T @ dense, atol=tolerance)
    np.testing.assert_allclose(cpu.code_products(S), dense.T @ dense, rtol=1e-4, atol=tolerance)
    np.testing.assert_array_equal(cpu.code_products(S[:0]), np.zeros((45, 45)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"E": np.zeros((4, 8))}, "E must have the shape of D"),
        ({"F": np.zeros((4, 4))}, "F must have shape"),
        ({"F": np.full((5, 5), np.nan)}, "F contains NaN"),
        ({"n_sweeps": 0}, "n_sweeps"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    valid = {"D": np.eye(5, 8), "E": np.ones((5, 8)), "F": np.eye(5)}
    with pytest.raises(ValueError, match=message):
        update_atoms(**(valid | arguments))
