from __future__ import annotations

import numpy as np
import pytest
from sklearn.decomposition import MiniBatchDictionaryLearning

from histodict.dictionaries.atoms import initial_atoms
from histodict.dictionaries.online import learn_online
from histodict.kernels import encode_lasso
from tests.problems import coherent, planted, unit_rows


def objective(D, Y, penalty):
    S = encode_lasso(D, Y, penalty).toarray()
    return np.mean(0.5 * np.sum((Y - S @ D) ** 2, axis=1) + penalty * np.abs(S).sum(axis=1))


def test_planted_dictionary_is_recovered(rng):
    truth = unit_rows(rng.standard_normal((30, 40)))
    Y = planted(rng, truth, 4000, 3, noise=0.01)
    trained = learn_online(Y, 40, 0.3, rng, n_epochs=10).atoms
    closest = np.abs(truth @ trained.T).max(axis=1)
    assert closest.min() > 0.97


# raised by scikit-learn
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_objective_is_lower_than_of_random_samples_and_reaches_scikit_learn(rng):
    _, Y = coherent(rng, 1, 3000, 48)
    ours = learn_online(Y, 40, 0.05, rng, n_epochs=5)
    start = objective(initial_atoms(Y, 40, np.random.default_rng(0)), Y, 0.05)
    value = objective(ours.atoms, Y, 0.05)
    peer = MiniBatchDictionaryLearning(
        40, alpha=0.05, batch_size=1024, max_iter=5, fit_algorithm="cd", random_state=0
    ).fit(Y)
    assert value < start
    assert value <= 1.01 * objective(unit_rows(peer.components_), Y, 0.05)


def test_mean_nonzero_is_that_of_the_last_epoch(rng):
    _, Y = coherent(rng, 1, 2000, 30)
    trained = learn_online(Y, 20, 0.05, rng)
    codes = encode_lasso(trained.atoms, Y, 0.05)
    assert trained.mean_nonzero == pytest.approx(codes.nnz / len(Y), rel=0.1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_bits_for_any_number_of_threads(rng, dtype):
    _, Y = coherent(rng, 1, 3000, 40, dtype)
    one, two = (
        learn_online(Y, 50, 0.05, np.random.default_rng(3), n_epochs=2, n_jobs=n) for n in (1, 2)
    )
    assert one.atoms.dtype == dtype
    np.testing.assert_array_equal(one.atoms, two.atoms)


def test_callback_is_called_every_batch(rng):
    _, Y = coherent(rng, 1, 2500, 10)
    reported = []
    learn_online(
        Y, 5, 0.05, rng, n_epochs=2, callback=lambda done, total: reported.append((done, total))
    )
    assert reported == [(i, 6) for i in range(7)]
