from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import MiniBatchDictionaryLearning

from histodict.dictionaries.atoms import initial_atoms
from histodict.dictionaries.ksvd import learn_ksvd, update_atoms_and_codes
from histodict.kernels import encode_omp
from tests.problems import coherent, gaussian, planted, unit_rows


def squared_error(Y, D, S):
    return np.sum((Y - S @ D) ** 2)


def mean_error(D, Y, n_nonzero):
    return squared_error(Y, D, encode_omp(D, Y, n_nonzero)) / len(Y)


def slow_update(Y, D, S, exact):
    """Update every pair from an explicit residual matrix."""
    D, S = D.copy(), S.toarray()
    for j in range(len(D)):
        users = S[:, j] != 0
        if not users.any():
            continue
        others = np.arange(len(D)) != j
        R = Y[users] - S[np.ix_(users, others)] @ D[others]
        d = np.linalg.svd(R, full_matrices=False)[2][0] if exact else R.T @ S[users, j]
        d = d / np.linalg.norm(d)
        D[j] = d if not exact or d @ D[j] >= 0 else -d
        S[users, j] = R @ D[j]
    return D, S


@pytest.mark.parametrize("noise", [0.0, 20.0])
def test_planted_dictionary_is_recovered(rng, noise):
    """At 20 dB the noise has a hundredth of the signal's energy."""
    truth = unit_rows(rng.standard_normal((40, 25)))
    Y = planted(rng, truth, 4000, 3)
    if noise:
        Y += np.std(Y) * 10 ** (-noise / 20) * rng.standard_normal(Y.shape)
    trained = learn_ksvd(Y, 40, 3, rng, n_iter=40).atoms
    closest = np.abs(truth @ trained.T).max(axis=1)
    assert (closest > 0.99).mean() >= 0.9


# 200 samples for 60 atoms: fewer samples per atom than features; 1000 for 10: more.
SIZES = [(60, 200, 40, 5), (10, 1000, 30, 4)]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("problem", [gaussian, coherent])
@pytest.mark.parametrize(("n_atoms", "n_samples", "n_features", "n_nonzero"), SIZES)
def test_update_equals_explicit_residuals_and_singular_vectors(
    rng, problem, exact, n_atoms, n_samples, n_features, n_nonzero
):
    D, Y = problem(rng, n_atoms, n_samples, n_features)
    S = encode_omp(D, Y, n_nonzero)
    before = D.copy(), S.toarray()
    new_D, new_S = update_atoms_and_codes(Y, D, S, exact=exact)
    expected_D, expected_S = slow_update(Y, D, S, exact)
    np.testing.assert_allclose(new_D, expected_D, atol=1e-7)
    np.testing.assert_allclose(new_S.toarray(), expected_S, atol=1e-7)
    np.testing.assert_array_equal(D, before[0])
    np.testing.assert_array_equal(S.toarray(), before[1])


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("problem", [gaussian, coherent])
def test_update_never_increases_the_objective_and_keeps_the_support(rng, problem, exact):
    D, Y = problem(rng, 30, 500, 40)
    S = encode_omp(D, Y, 4)
    errors = [squared_error(Y, D, S)]
    pattern = S.toarray() != 0
    for _ in range(8):
        D, S = update_atoms_and_codes(Y, D, S, exact=exact)
        errors.append(squared_error(Y, D, S))
        np.testing.assert_allclose(np.linalg.norm(D, axis=1), 1)
        assert not S.toarray()[~pattern].any()
    assert errors[1] < 0.95 * errors[0]
    assert np.all(np.diff(errors) <= 1e-12 * errors[0])


def test_single_atom_reaches_the_rank_one_optimum(rng):
    _, Y = gaussian(rng, 1, 300, 20)
    trained = learn_ksvd(Y, 1, 1, rng, n_iter=2, exact=True)
    singular_values = np.linalg.svd(Y, compute_uv=False)
    left = squared_error(Y, trained.atoms, trained.codes)
    assert left == pytest.approx(np.sum(singular_values[1:] ** 2), rel=1e-10)


def test_objective_and_codes_belong_to_the_dictionary(rng):
    D, Y = coherent(rng, 20, 1500, 30)
    trained = learn_ksvd(Y, 20, 4, rng, n_iter=5, initial=D)
    assert trained.objective.shape == (5,)
    assert trained.objective[0] == pytest.approx(mean_error(D, Y, 4), rel=1e-9)
    assert trained.objective[-1] < 0.8 * trained.objective[0]
    left = squared_error(Y, trained.atoms, trained.codes) / len(Y)
    assert left <= trained.objective[-1]
    assert np.diff(trained.codes.indptr).max() <= 4


@pytest.mark.parametrize("algorithm", ["aksvd", "ksvd"])
def test_equals_an_independent_implementation_with_one_atom_per_sample(rng, algorithm):
    """With one atom per sample, order-recursive and classical selection are equal."""
    dictlearn = pytest.importorskip("dictlearn")
    D, Y = gaussian(rng, 12, 400, 15)
    peer = dictlearn.DictionaryLearning(
        12, fit_algorithm=algorithm, n_nonzero_coefs=1, max_iter=6, dict_init=D
    ).fit(Y)
    ours = learn_ksvd(Y, 12, 1, rng, n_iter=6, initial=D, exact=algorithm == "ksvd")
    cosines = np.einsum("ij,ij->i", ours.atoms, peer.components_)
    np.testing.assert_allclose(np.abs(cosines), 1, atol=1e-9)


def test_objective_equals_an_independent_implementation():
    """Local minima of the two differ by up to 2 % on one start, in either direction."""
    ratios = errors_relative_to_dictlearn(gaussian)
    assert abs(np.mean(ratios) - 1) < 0.01


def test_order_recursive_codes_have_a_lower_error_on_coherent_samples():
    assert max(errors_relative_to_dictlearn(coherent)) < 0.95


def errors_relative_to_dictlearn(problem):
    """Return errors relative to published K-SVD with classical greedy codes, from four equal
    starts."""
    dictlearn = pytest.importorskip("dictlearn")
    ratios = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        D, Y = problem(rng, 24, 600, 16)
        peer = dictlearn.DictionaryLearning(24, n_nonzero_coefs=4, max_iter=15, dict_init=D).fit(Y)
        ours = learn_ksvd(Y, 24, 4, rng, n_iter=15, initial=D)
        ratios.append(mean_error(ours.atoms, Y, 4) / mean_error(peer.components_, Y, 4))
    return ratios


# raised by the reference implementation
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_objective_is_lower_than_of_random_samples_and_scikit_learn(rng):
    _, Y = coherent(rng, 1, 1000, 40)
    ours = mean_error(learn_ksvd(Y, 30, 4, rng, n_iter=15).atoms, Y, 4)
    peer = MiniBatchDictionaryLearning(
        30, alpha=0.02, batch_size=256, max_iter=5, fit_algorithm="cd", random_state=0
    ).fit(Y)
    assert ours < 0.9 * mean_error(initial_atoms(Y, 30, np.random.default_rng(0)), Y, 4)
    assert ours <= 1.01 * mean_error(unit_rows(peer.components_), Y, 4)


def test_unused_and_duplicate_atoms_become_used(rng):
    truth = rng.standard_normal((16, 30))
    truth[:, 20:] = 0
    Y = planted(rng, unit_rows(truth), 1500, 2)
    start = rng.standard_normal((16, 30))
    start[:8, :20] = 0  # outside the space of the samples: never used
    start[8:12] = start[12]
    start = unit_rows(start)
    trained = learn_ksvd(Y, 16, 2, rng, n_iter=25, initial=start)
    without = learn_ksvd(Y, 4, 2, rng, n_iter=25, initial=start[12:])
    assert np.bincount(trained.codes.indices, minlength=16).min() > 50
    assert trained.objective[-1] < 0.2 * without.objective[-1]


def test_unused_atoms_are_replaced_by_samples_of_their_own_group(rng):
    Y = np.zeros((200, 20))
    Y[:100, :8] = rng.standard_normal((100, 8))
    Y[100:, 8:16] = rng.standard_normal((100, 8))
    start = np.eye(20)[[16, 17, 18, 19, 16, 17, 18, 19]]  # no sample uses these
    groups = np.repeat([0, 1], 4), np.repeat([0, 1], 100)
    D = learn_ksvd(Y, 8, 1, rng, n_iter=2, initial=start, groups=groups).atoms
    np.testing.assert_allclose(np.linalg.norm(D[:4, :8], axis=1), 1)
    np.testing.assert_allclose(np.linalg.norm(D[4:, 8:16], axis=1), 1)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_bits_for_any_number_of_threads(rng, dtype, exact):
    _, Y = coherent(rng, 1, 3000, 40, dtype)
    one, two = (
        learn_ksvd(Y, 50, 4, np.random.default_rng(3), n_iter=3, exact=exact, n_jobs=n)
        for n in (1, 2)
    )
    assert one.atoms.dtype == one.codes.dtype == dtype
    np.testing.assert_array_equal(one.atoms, two.atoms)
    np.testing.assert_array_equal(one.codes.data, two.codes.data)
    np.testing.assert_array_equal(one.objective, two.objective)


def test_single_precision_is_close_to_double(rng):
    D, Y = gaussian(rng, 20, 800, 30)
    double = learn_ksvd(Y, 20, 3, rng, n_iter=2, initial=D)
    single = learn_ksvd(Y.astype(np.float32), 20, 3, rng, n_iter=2, initial=D.astype(np.float32))
    np.testing.assert_allclose(single.atoms, double.atoms, atol=1e-4)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make_difficult",
    [
        lambda Y: 0 * Y,
        lambda Y: np.concatenate([Y[:100], np.repeat(Y[:1], 200, axis=0)]),
        lambda Y: np.concatenate([Y[:100], 0 * Y[:200]]),
        lambda Y: Y[:, :1] * np.ones((1, 24)),
        lambda Y: Y[:5],
        lambda Y: Y[:1],
        lambda Y: 1e-20 * Y,
        lambda Y: 1e15 * Y,
    ],
    ids=["zero", "repeated", "half zero", "rank one", "few", "one", "tiny", "huge"],
)
def test_difficult_input_gives_finite_results(rng, make_difficult, dtype, exact):
    Y = np.ascontiguousarray(make_difficult(coherent(rng, 1, 300, 24)[1]), dtype)
    trained = learn_ksvd(Y, 30, 6, rng, n_iter=4, exact=exact)
    np.testing.assert_allclose(np.linalg.norm(trained.atoms, axis=1), 1, atol=1e-5)
    assert np.isfinite(trained.codes.data).all()
    assert np.isfinite(trained.objective).all()
    energy = np.sum(Y.astype(float) ** 2)
    assert squared_error(Y.astype(float), trained.atoms, trained.codes) <= 0.05 * energy


def test_callback_is_called_every_iteration(rng):
    _, Y = coherent(rng, 1, 300, 10)
    reported = []
    trained = learn_ksvd(Y, 5, 2, rng, n_iter=3, callback=lambda *step: reported.append(step))
    assert reported == [(i + 1, 3, value) for i, value in enumerate(trained.objective)]
