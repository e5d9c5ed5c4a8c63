from __future__ import annotations

import itertools

import numpy as np
import pytest

from histodict.kernels import encode_omp
from histodict.kernels.cpu import backend as cpu
from tests.kernels import reference
from tests.problems import coherent, gaussian, planted, unit_rows

RULES = ["order-recursive", "correlation"]


def squared_residuals(D, Y, S):
    return np.sum((Y - S.toarray() @ D) ** 2, axis=1)


@pytest.mark.parametrize("selection", RULES)
@pytest.mark.parametrize("problem", [gaussian, coherent])
def test_equals_the_reference(rng, problem, selection):
    D, Y = problem(rng, 75, 40, 33)
    S = encode_omp(D, Y, 9, selection=selection)
    expected = reference.encode_omp(D, Y, 9, selection=selection)
    np.testing.assert_allclose(S.toarray(), expected, atol=1e-7)


@pytest.mark.parametrize("selection", RULES)
def test_single_precision_is_close_to_the_reference(rng, selection):
    D, Y = gaussian(rng, 75, 200, 33, np.float32)
    S = encode_omp(D, Y, 9, selection=selection)
    assert S.dtype == np.float32
    expected = reference.encode_omp(D.astype(float), Y.astype(float), 9, selection=selection)
    same = np.isclose(S.toarray(), expected, atol=1e-4).all(axis=1)
    assert same.mean() >= 0.99  # a tie within rounding may be broken differently


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scale", [1e-15, 1e-6, 1e-2, 1.0, 1e2, 1e6, 1e15])
def test_supports_do_not_depend_on_the_norms_of_atoms_and_samples(rng, dtype, scale):
    D, Y = gaussian(rng, 64, 100, 32)
    for selection in RULES:
        plain = encode_omp(D.astype(dtype), Y.astype(dtype), 6, selection=selection).toarray()
        for d, y in ((scale, 1.0), (1.0, scale)):
            other = encode_omp((d * D).astype(dtype), (y * Y).astype(dtype), 6, selection=selection)
            same = np.isclose(other.toarray() * d / y, plain, atol=1e-3).all(axis=1)
            assert same.mean() >= 0.98


def test_residual_is_orthogonal_to_the_selected_atoms(rng):
    D, Y = coherent(rng, 60, 50, 40)
    S = encode_omp(D, Y, 7).toarray()
    products = (Y - S @ D) @ D.T
    assert np.abs(products[S != 0]).max() < 1e-9


def test_order_recursive_selection_is_better_on_coherent_atoms(rng):
    D, Y = coherent(rng, 200, 200, 60)
    greedy = [squared_residuals(D, Y, encode_omp(D, Y, 6, selection=r)).mean() for r in RULES]
    assert greedy[0] < 0.98 * greedy[1]


def test_planted_supports_are_found(rng):
    D = unit_rows(rng.standard_normal((60, 100)))
    Y = planted(rng, D, 50, 4)
    S = encode_omp(D, Y, 4)
    assert squared_residuals(D, Y, S).max() < 1e-20


def test_tol_stops_each_sample(rng):
    D, Y = gaussian(rng, 50, 80, 30)
    S = encode_omp(D, Y, 30, tol=2.0)
    errors = squared_residuals(D, Y, S)
    assert errors.max() <= 2.0
    shorter = encode_omp(D, Y, 1, tol=2.0)
    assert np.diff(S.indptr).max() > 1 and np.diff(shorter.indptr).max() == 1


def test_more_atoms_never_increase_the_error(rng):
    D, Y = coherent(rng, 60, 50, 40, np.float32)
    errors = [squared_residuals(D, Y, encode_omp(D, Y, n)).mean() for n in (1, 2, 4, 8, 16)]
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("selection", RULES)
def test_bits_do_not_depend_on_the_number_of_threads(rng, dtype, selection):
    D, Y = coherent(rng, 120, 5000, 64, dtype)
    one, two, three = (encode_omp(D, Y, 8, selection=selection, n_jobs=n) for n in (1, 2, 3))
    for other in (two, three):
        np.testing.assert_array_equal(one.indptr, other.indptr)
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_array_equal(one.data, other.data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("selection", RULES)
def test_dependent_atoms(rng, dtype, selection):
    low_rank = rng.standard_normal((70, 5)) @ rng.standard_normal((5, 40))
    D = np.concatenate([low_rank, low_rank[:9], -low_rank[:9], np.zeros((2, 40))]).astype(dtype)
    Y = np.concatenate([rng.standard_normal((30, 40)), low_rank[:5]]).astype(dtype)
    S = encode_omp(D, Y, 20, selection=selection)
    assert np.isfinite(S.data).all()
    assert np.diff(S.indptr).max() <= 5
    projection = Y @ np.linalg.pinv(low_rank) @ low_rank
    np.testing.assert_allclose(S.toarray() @ D, projection, atol=2e-3)


def test_nearly_dependent_atoms_are_stable_in_single_precision(rng):
    """Smooth patches: selection prefers atoms that are almost in the span."""
    directions = np.linalg.qr(rng.standard_normal((80, 80)))[0][:60]
    strengths = 20 * 0.7 ** np.arange(60)

    def patches(n):
        mixtures = (rng.standard_normal((n, 60)) * strengths) @ directions
        return unit_rows(6 + mixtures).astype(np.float32)

    D, Y = patches(200), patches(1500)
    S = encode_omp(D, Y, 30)
    assert squared_residuals(D, Y, S).max() < 1e-4
    assert np.abs(S.data).max() < 100
    _, reported = cpu.OMPCoder(D, 30, 0.0, True).code(Y)
    np.testing.assert_allclose(reported, squared_residuals(D, Y, S), atol=2e-5)


def test_zero_constant_and_repeated_samples(rng):
    D, _ = coherent(rng, 40, 1, 30, np.float32)
    blank = np.full((1, 30), 1 / np.sqrt(30))
    Y = np.concatenate([np.zeros((3, 30)), np.repeat(blank, 5, axis=0), D[:4]]).astype(np.float32)
    D = np.concatenate([D, blank]).astype(np.float32)
    S = encode_omp(D, Y, 10)
    assert np.diff(S.indptr)[:3].max() == 0
    np.testing.assert_array_equal(S.indices[S.indptr[3] : S.indptr[8]], [40] * 5)
    assert squared_residuals(D, Y, S).max() < 1e-6


def test_more_nonzeros_than_atoms_or_features(rng):
    D, Y = gaussian(rng, 12, 10, 40)
    exact = Y @ np.linalg.pinv(D) @ D
    np.testing.assert_allclose(encode_omp(D, Y, 50).toarray() @ D, exact, atol=1e-8)
    D, Y = gaussian(rng, 40, 10, 12)
    np.testing.assert_allclose(encode_omp(D, Y, 50).toarray() @ D, Y, atol=1e-5)


def test_no_samples(rng):
    D, _ = gaussian(rng, 12, 1, 10)
    assert encode_omp(D, np.zeros((0, 10)), 3).shape == (0, 12)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_nonzero": 0}, "n_nonzero"),
        ({"n_nonzero": 2.5}, "n_nonzero"),
        ({"tol": -1.0}, "tol"),
        ({"tol": np.nan}, "tol"),
        ({"selection": "best"}, "selection"),
        ({"backend": "abacus"}, "backend"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"Y": np.zeros((4, 9))}, "Y has 9 features"),
        ({"Y": np.full((4, 8), np.nan)}, "Y contains NaN"),
        ({"D": np.full((5, 8), np.inf)}, "D contains NaN or infinity"),
        ({"Y": np.zeros(8)}, "Y must have two dimensions"),
        ({"D": np.zeros((0, 8))}, "D must have atoms"),
    ],
)
def test_invalid_arguments_are_refused(arguments, message):
    valid = {"D": np.eye(5, 8), "Y": np.ones((4, 8)), "n_nonzero": 2}
    with pytest.raises(ValueError, match=message):
        encode_omp(**(valid | arguments))
