"""Values so large or small that squares leave the range of floating-point numbers.

Results are finite and correct, or a ValueError is raised.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.exceptions import ConvergenceWarning

from histodict.kernels import class_residuals, encode_joint, encode_lasso, encode_omp, update_atoms
from histodict.kernels.cpu import backend as cpu
from tests.problems import gaussian


def test_lasso_refuses_samples_whose_squares_overflow(rng):
    D, Y = gaussian(rng, 8, 3, 5)
    with pytest.raises(ValueError, match="products of values of Y overflow"):
        encode_lasso(D, Y * 1e154, 0.1)


def test_lasso_with_large_correlations_keeps_masked_atoms_out(rng):
    """Active or refused atoms must not be selected again if |c| exceeds 1e30."""
    for n_atoms, n_features in [(3, 2), (8, 5), (40, 6)]:
        D, Y = gaussian(rng, n_atoms, 30, n_features)
        S = encode_lasso(D, Y * 1e100, 1e98)
        expected = encode_lasso(D, Y, 1e-2)
        np.testing.assert_array_equal(S.indices, expected.indices)
        np.testing.assert_allclose(S.data / 1e100, expected.data, rtol=1e-9)


def test_excluded_atom_is_not_selected_again_if_its_correlation_is_large():
    """d_1 is excluded, as it is nearly −d_0; its large correlation must not keep d_2 out."""
    D, y, scale = np.eye(16), np.zeros((1, 16)), 1e100
    D[1] = 0
    D[1, :2] = -1, 2e-5
    y[0, :3] = 100, 1e6, 5
    with pytest.warns(ConvergenceWarning):
        S = encode_lasso(D, y * scale, scale)
    assert S.indices.tolist() == [0, 2]
    np.testing.assert_allclose(S.data / scale, [99, 4], rtol=1e-9)


@pytest.mark.parametrize("n_atoms", [1, 2, 3, 4, 40])
def test_lasso_coder_of_nan_atoms_does_not_write_out_of_bounds(rng, n_atoms):
    Y = rng.standard_normal((3, 5))
    with pytest.raises(ValueError, match="products of values of D overflow"):
        cpu.LassoCoder(np.full((n_atoms, 5), np.nan), 0.1, 1e-4).code(Y)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pursuit_of_large_samples(rng, dtype):
    D, Y = gaussian(rng, 20, 6, 10, dtype)
    large = dtype(np.finfo(dtype).max ** 0.49)
    S = encode_omp(D, Y, 4)
    np.testing.assert_allclose(encode_omp(D, large * Y, 4).data / large, S.data, rtol=1e-4)
    with pytest.raises(ValueError, match="products of values of Y overflow"):
        encode_omp(D, np.full((1, 10), np.finfo(dtype).max, dtype), 4)
    with pytest.raises(ValueError, match="the codes overflow"):
        encode_omp(D * dtype(np.finfo(dtype).max ** -0.52), large * Y, 4)


def test_joint_pursuit_of_large_samples(rng):
    D, Y = np.stack([np.eye(4)] * 2), rng.standard_normal((2, 3, 4))
    with pytest.raises(ValueError, match="products of values of Y overflow"):
        encode_joint(D, Y * 1e200, 2)
    with pytest.raises(ValueError, match="products of values of D overflow"):
        encode_joint(D * 1e200, Y, 2)


def test_overflowing_residuals_are_refused():
    """Squares overflow in single precision from 1.8e19."""
    D, Y = np.eye(3, dtype=np.float32), np.full((2, 3), 1e20, np.float32)
    with pytest.raises(ValueError, match="the residuals overflow"):
        class_residuals(D, Y, csr_array((2, 3), dtype=np.float32), np.array([0, 1, 1]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_atoms_do_not_depend_on_the_scale_of_the_sums(rng, dtype):
    D, E = gaussian(rng, 12, 12, 7, dtype)
    F = rng.standard_normal((12, 12))
    F = (F @ F.T).astype(dtype)
    new = update_atoms(D, E, F)
    assert np.abs(new - D).max() > 0.1
    for exponent in (0.7, -0.7):
        scale = dtype(2.0 ** int(exponent * np.finfo(dtype).maxexp))
        again = update_atoms(D, E * scale, F * scale)
        np.testing.assert_allclose(again, new, atol=20 * np.finfo(dtype).eps)
    E[:6] = 0
    mixed = update_atoms(D, E * dtype(2.0 ** (0.8 * np.finfo(dtype).maxexp)), F)
    np.testing.assert_allclose(np.linalg.norm(mixed, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("exponent", [0, 70])
def test_atom_with_an_update_of_rounding_errors_is_unchanged(exponent):
    """With one atom and E = 0 the update is (F − F)·d = 0, in single precision only rounding."""
    angles = np.linspace(0.001, 1.5, 40)
    for d in np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32):
        F = np.full((1, 1), 0.7 * 2.0**exponent, np.float32)
        new = update_atoms(d[None], np.zeros((1, 2), np.float32), F)
        np.testing.assert_array_equal(new[0], d)


def test_overflowed_sums_are_refused(rng):
    D, E = gaussian(rng, 4, 4, 5, np.float32)
    E[1, 2] = np.inf
    with pytest.raises(ValueError, match="E and F, overflow in float32"):
        cpu.update_atoms(D, E, np.eye(4, dtype=np.float32), 1, 0.0)
