from __future__ import annotations

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from histodict.kernels import encode_lasso
from tests.kernels import reference
from tests.problems import coherent, gaussian

PENALTIES = [1.0, 0.3, 0.05]


@pytest.mark.parametrize("penalty", PENALTIES)
def test_equals_the_reference(rng, penalty):
    D, Y = gaussian(rng, 50, 4, 40)
    S = encode_lasso(D, Y, penalty, tol=1e-12).toarray()
    np.testing.assert_allclose(S, reference.encode_lasso(D, Y, penalty), atol=1e-6)


@pytest.mark.parametrize("problem", [gaussian, coherent])
@pytest.mark.parametrize("penalty", [*PENALTIES, 0.001])
@pytest.mark.parametrize(
    ("dtype", "tol"), [(np.float32, 1e-4), (np.float64, 1e-4), (np.float64, 1e-10)]
)
def test_duality_gap_is_at_most_tol(rng, problem, penalty, dtype, tol):
    D, Y = problem(rng, 150, 100, 40, dtype)
    S = encode_lasso(D, Y, penalty, tol=tol)
    assert S.dtype == dtype
    gaps = reference.lasso_gap(D.astype(float), Y.astype(float), S.toarray().astype(float), penalty)
    rounding = 8 * np.finfo(dtype).eps * np.linalg.norm(Y, axis=1).max() / penalty
    assert gaps.max() <= tol + rounding


@pytest.mark.parametrize("penalty", PENALTIES)
def test_optimality_conditions_are_satisfied(rng, penalty):
    D, Y = coherent(rng, 90, 60, 40)
    S = encode_lasso(D, Y, penalty, tol=1e-13).toarray()
    slopes = (Y - S @ D) @ D.T
    assert np.abs(slopes).max() <= penalty * (1 + 1e-9)
    np.testing.assert_allclose(slopes[S != 0], penalty * np.sign(S[S != 0]), rtol=1e-8)


def test_identity_gives_soft_thresholding(rng):
    Y = rng.standard_normal((30, 20))
    S = encode_lasso(np.eye(20), Y, 0.4, tol=1e-14).toarray()
    np.testing.assert_allclose(S, np.sign(Y) * np.maximum(np.abs(Y) - 0.4, 0), atol=1e-12)


def test_scaling_sample_and_penalty_scales_the_code(rng):
    D, Y = coherent(rng, 60, 30, 40)
    S = encode_lasso(D, Y, 0.05, tol=1e-13).toarray()
    np.testing.assert_allclose(encode_lasso(D, 7 * Y, 0.35, tol=1e-13).toarray(), 7 * S, atol=1e-8)


def test_large_penalty_gives_zero_codes(rng):
    D, Y = gaussian(rng, 30, 20, 25)
    largest = np.abs(Y @ D.T).max()
    assert encode_lasso(D, Y, largest * 1.0001).nnz == 0
    assert encode_lasso(D, Y, largest * 0.99).nnz > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_do_not_depend_on_the_number_of_threads(rng, dtype):
    D, Y = coherent(rng, 200, 5000, 64, dtype)
    one, two, three = (encode_lasso(D, Y, 0.05, n_jobs=n) for n in (1, 2, 3))
    for other in (two, three):
        np.testing.assert_array_equal(one.indptr, other.indptr)
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.data, other.data)


@pytest.mark.parametrize(("dtype", "tol"), [(np.float32, 1e-4), (np.float64, 1e-9)])
def test_dependent_atoms(rng, dtype, tol):
    base = rng.standard_normal((60, 6)) @ rng.standard_normal((6, 40))
    D = np.concatenate([base, base[:20], -base[:20], 0.5 * base[:9], np.zeros((2, 40))]).astype(
        dtype
    )
    Y = rng.standard_normal((80, 40)).astype(dtype)
    S = encode_lasso(D, Y, 0.3, tol=tol).toarray()
    assert np.isfinite(S).all()
    assert reference.lasso_gap(D.astype(float), Y.astype(float), S, 0.3).max() <= 2 * tol


@pytest.mark.parametrize("n_atoms", [1, 5, 20, 32])
def test_exhausted_atoms_end_the_iteration(rng, n_atoms):
    """All atoms are active and the gap still exceeds tol: no index beyond them may be selected."""
    D, _ = gaussian(rng, n_atoms, 1, 40)
    Y = rng.standard_normal((300, n_atoms)) @ D
    with pytest.warns(ConvergenceWarning):
        S = encode_lasso(D, Y, 1e-4, tol=0.0)
    assert np.isfinite(S.data).all()
    assert S.indices.max() < n_atoms
    assert reference.lasso_gap(D, Y, S.toarray(), 1e-4).max() < 1e-6


def test_violation_by_an_unusable_atom_is_reported():
    D = np.array([[1, 0], [1, 3e-3]])
    D = (D / np.linalg.norm(D, axis=1, keepdims=True)).astype(np.float32)
    Y = np.array([[0.1, 1]], np.float32)
    with pytest.warns(ConvergenceWarning):
        S = encode_lasso(D, Y, 5e-4)
    assert reference.lasso_gap(D, Y, S.toarray(), 5e-4)[0] > 0.1
    S = encode_lasso(D.astype(float), Y.astype(float), 5e-4)
    assert reference.lasso_gap(D, Y, S.toarray(), 5e-4)[0] < 1e-4


def test_zero_and_constant_samples(rng):
    D, _ = coherent(rng, 40, 1, 30, np.float32)
    blank = np.full((1, 30), 1 / np.sqrt(30))
    Y = np.concatenate([np.zeros((2, 30)), np.repeat(blank, 3, axis=0)]).astype(np.float32)
    S = encode_lasso(np.concatenate([D, blank]).astype(np.float32), Y, 0.1)
    assert np.diff(S.indptr)[:2].max() == 0
    np.testing.assert_allclose(S.toarray()[2:, 40], 0.9, atol=1e-3)


def test_tolerance_below_rounding_warns(rng):
    D, Y = coherent(rng, 60, 20, 40, np.float32)
    with pytest.warns(ConvergenceWarning, match="tol="):
        encode_lasso(D, Y, 0.001, tol=0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"penalty": 0.0}, "penalty"),
        ({"penalty": -1.0}, "penalty"),
        ({"penalty": "auto"}, "penalty"),
        ({"tol": -1.0}, "tol"),
        ({"Y": np.zeros((4, 9))}, "Y has 9 features"),
        ({"Y": np.full((4, 8), np.nan)}, "Y contains NaN"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    valid = {"D": np.eye(5, 8), "Y": np.ones((4, 8)), "penalty": 0.1}
    with pytest.raises(ValueError, match=message):
        encode_lasso(**(valid | arguments))
