from __future__ import annotations

import numpy as np
import pytest

from histodict import DFDL
from histodict.kernels import class_residuals, encode_lasso, encode_omp
from histodict.methods.odl import ODL
from tests.problems import coherent, planted, unit_rows


def three_classes(rng, n_per_class=200, n_features=30, dtype=float):
    atoms = unit_rows(rng.standard_normal((24, n_features)))
    X = np.concatenate([planted(rng, own, n_per_class, 3, 0.02) for own in np.split(atoms, 3)])
    return unit_rows(X).astype(dtype), np.repeat([0, 1, 2], n_per_class)


def small(**parameters):
    return ODL(**({"n_atoms": 8, "penalty": 0.1, "random_state": 0} | parameters))


def objective(D, Y, penalty):
    S = encode_lasso(D, Y, penalty, tol=1e-8).toarray()
    return 0.5 * np.sum((Y - S @ D) ** 2) + penalty * np.abs(S).sum()


def test_dfdl_starts_from_odl(rng):
    """The first objective of DFDL is that of the dictionaries of ODL, and of no others."""
    X, y = three_classes(rng)
    dfdl = DFDL(8, penalty=0.1, rho=0.1, n_iter=1, random_state=0).fit(X, y)

    def first_objective(D, i):
        def mean_error(Y):
            S = encode_omp(D, Y, int(dfdl.n_nonzero_[i])).toarray()
            return np.mean(np.sum((Y - S @ D) ** 2, axis=1))

        return mean_error(X[y == i]) - 0.1 * mean_error(X[y != i])

    start, other = small().fit(X, y), small(random_state=1).fit(X, y)
    for i in range(3):
        expected = dfdl.objective_[i][0]
        assert first_objective(start.dictionaries_[i], i) == pytest.approx(expected, rel=1e-9)
        assert first_objective(other.dictionaries_[i], i) != pytest.approx(expected, rel=1e-3)


def test_separates_classes_of_different_atoms(rng):
    X, y = three_classes(rng)
    train = rng.permutation(len(X)) < 400
    assert small().fit(X[train], y[train]).score(X[~train], y[~train]) > 0.95


def test_each_dictionary_codes_its_own_class_best(rng):
    X, y = three_classes(rng)
    dictionaries = small().fit(X, y).dictionaries_
    np.testing.assert_allclose(np.linalg.norm(dictionaries, axis=2), 1)
    for i in range(3):
        costs = [objective(D, X[y == i], 0.1) for D in dictionaries]
        assert np.argmin(costs) == i


def test_more_epochs_lower_the_objective(rng):
    X, y = three_classes(rng)
    few, many = small(n_epochs=1).fit(X, y), small(n_epochs=20).fit(X, y)
    for i in range(3):
        first, last = (objective(m.dictionaries_[i], X[y == i], 0.1) for m in (few, many))
        assert last < 0.98 * first


def test_distances_are_residuals_of_the_joint_code(rng):
    X, y = three_classes(rng, dtype=np.float32)
    model = small().fit(X, y)
    S, distances = model.encode(X[:50])
    D = model.dictionaries_.reshape(24, -1)
    assert S.shape == (50, model.n_codes_)
    expected = class_residuals(D, X[:50], S, np.repeat([0, 1, 2], 8))
    np.testing.assert_allclose(distances, expected, rtol=1e-5)
    np.testing.assert_array_equal(model.predict(X[:50]), distances.argmin(axis=1))


def test_agrees_with_an_independent_implementation(rng, dictol):
    """On coherent samples, like tissue, both converge to the same objective."""
    _, X = coherent(rng, 1, 600, 30)
    y = np.repeat([0, 1], [500, 100])
    ours = small(n_epochs=20).fit(X, y).dictionaries_[0]
    peer = dictol.ODL.ODL(k=8, lambd=0.1)
    peer.fit(X[:500].T, iterations=30)
    theirs = objective(np.ascontiguousarray(peer.D.T), X[:500], 0.1)
    assert objective(ours, X[:500], 0.1) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_seed_gives_same_bits_for_any_number_of_threads(rng, dtype):
    X, y = three_classes(rng, n_per_class=1200, dtype=dtype)
    one, two = (small(n_jobs=n, n_epochs=2).fit(X, y) for n in (1, 2))
    assert one.dictionaries_.dtype == dtype
    np.testing.assert_array_equal(one.dictionaries_, two.dictionaries_)


def test_progress_counts_the_mini_batches_of_all_classes(rng):
    X, y = three_classes(rng)
    reported = []
    small(n_epochs=4).fit(X, y, callback=reported.append)
    assert [(p.stage, p.done, p.total) for p in reported] == [("train", i, 12) for i in range(13)]


def test_classes_of_one_sample_and_constant_samples(rng):
    X, y = three_classes(rng)
    selected = np.r_[0:200, 200, 400:600]
    X, y = np.concatenate([X[selected], np.zeros((5, 30))]), np.append(y[selected], [2] * 5)
    model = small().fit(X, y)
    assert np.isfinite(model.dictionaries_).all()
    assert np.isfinite(model.encode(X)[1]).all()
    assert model.predict(X[200:201])[0] == 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_atoms": 0}, "n_atoms"),
        ({"penalty": 0}, "penalty"),
        ({"n_epochs": 0}, "n_epochs"),
        ({"backend": "abacus"}, "backend"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_invalid_parameters_are_refused(rng, parameters, message):
    X, y = three_classes(rng, n_per_class=20)
    with pytest.raises(ValueError, match=message):
        small(**parameters).fit(X, y)


def test_one_class_is_refused(rng):
    X, y = three_classes(rng, n_per_class=20)
    with pytest.raises(ValueError, match="ODL needs at least two classes, but y has only one"):
        small().fit(X[:20], y[:20])
