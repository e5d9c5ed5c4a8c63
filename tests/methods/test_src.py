from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.linear_model import Lasso

from histodict.methods.src import SRC
from histodict.utils.parallel import single_blas_thread
from histodict.utils.progress import Progress
from tests.kernels import reference as slow
from tests.problems import coherent, unit_rows


def subspaces(rng, n_per_class=(60, 40, 50), n_features=40, dimension=4, noise=0.05, dtype=float):
    """Return classes that fill subspaces, up to noise; samples of any length and sign."""
    parts = []
    for n in n_per_class:
        basis = np.linalg.qr(rng.standard_normal((n_features, dimension)))[0].T
        clean = unit_rows(rng.standard_normal((n, dimension)) @ basis)
        parts.append(clean + noise * rng.standard_normal((n, n_features)) / np.sqrt(n_features))
    X = np.concatenate(parts) * rng.uniform(0.1, 10, (sum(n_per_class), 1))
    return X.astype(dtype), np.repeat(np.arange(len(n_per_class)), n_per_class)


def halves(rng, X, y):
    order = rng.permutation(len(X))
    train, test = order[: len(X) // 2], order[len(X) // 2 :]
    return X[train], y[train], X[test], y[test]


# --- the mathematics


def test_codes_and_predictions_equal_an_independent_lasso(rng):
    X, y, Z, _ = halves(rng, *subspaces(rng, dimension=12, noise=0.8))
    penalty = 0.05
    model = SRC(None, penalty=penalty).fit(X, y)
    codes, residuals = model.encode(Z)
    D = np.concatenate([unit_rows(X[y == i]) for i in range(3)])
    np.testing.assert_allclose(model.atoms_, D, atol=1e-12)
    # scikit-learn divides the squared error by the number of features.
    lasso = Lasso(penalty / X.shape[1], fit_intercept=False, tol=1e-10, max_iter=100_000)
    S = lasso.fit(D.T, unit_rows(Z).T).coef_
    expected = slow.class_residuals(D, unit_rows(Z), S, model.atom_classes_)
    np.testing.assert_allclose(codes.toarray(), S, atol=0.02)
    np.testing.assert_allclose(residuals, expected, atol=0.01)
    clear = np.diff(np.sort(expected, axis=1)[:, :2]).ravel() > 0.02
    assert clear.mean() > 0.8
    np.testing.assert_array_equal(model.predict(Z)[clear], expected.argmin(axis=1)[clear])


def test_codes_are_optimal(rng):
    X, y, Z, _ = halves(rng, *subspaces(rng))
    model = SRC(None, penalty=0.02).fit(X, y)
    codes = model.encode(Z)[0].toarray()
    assert slow.lasso_gap(model.atoms_, unit_rows(Z), codes, 0.02).max() <= 1e-4


def test_classes_of_different_subspaces_are_recognised(rng):
    X, y, Z, truth = halves(rng, *subspaces(rng, (100, 60, 20)))
    assert SRC(None).fit(X, y).score(Z, truth) > 0.97
    assert SRC(8, random_state=0).fit(X, y).score(Z, truth) > 0.9


def test_scale_and_sign_of_samples_do_not_matter(rng):
    X, y, Z, _ = halves(rng, *subspaces(rng))
    model = SRC(None).fit(X, y)
    codes, residuals = model.encode(Z)
    for factor in (1e-6, 1e6):
        other, same = model.encode(factor * Z)
        np.testing.assert_allclose(same, residuals, atol=1e-9)
        np.testing.assert_allclose(other.toarray(), codes.toarray(), atol=1e-9)
    np.testing.assert_allclose(model.encode(-Z)[1], residuals, atol=1e-9)
    factors = rng.choice([-1, 1], (len(X), 1)) * rng.uniform(0.01, 100, (len(X), 1))
    rescaled = SRC(None).fit(factors * X, y)
    np.testing.assert_allclose(rescaled.class_residuals(Z), residuals, atol=1e-6)


def test_order_of_training_samples_does_not_matter(rng):
    X, y, Z, _ = halves(rng, *subspaces(rng))
    order = rng.permutation(len(X))
    model, other = SRC(None).fit(X, y), SRC(None).fit(X[order], y[order])
    np.testing.assert_allclose(other.class_residuals(Z), model.class_residuals(Z), atol=5e-3)


def test_training_samples_are_classified_correctly(rng):
    X, y = subspaces(rng, noise=0.5)
    model = SRC(None, penalty=0.01).fit(X, y)
    assert model.score(X, y) == 1.0


def test_predictions_equal_dictol(rng, dictol):
    """An independent implementation of the same problem, on classes that overlap."""
    X, y, Z, truth = halves(rng, *subspaces(rng, (120, 80, 100), dimension=14, noise=0.7))
    order = np.argsort(y, kind="stable")  # it expects samples sorted by class, and labels from 1
    theirs = dictol.SRC.SRC(lamb=0.05)
    theirs.fit(unit_rows(X[order]).T, y[order] + 1)
    with single_blas_thread():
        predictions = np.ravel(theirs.predict(unit_rows(Z).T, iterations=200)) - 1
    model = SRC(None, penalty=0.05).fit(X, y)
    assert 0.5 < model.score(Z, truth) < 1
    assert np.mean(model.predict(Z) == predictions) >= 0.97


# --- state


def test_keeps_at_most_n_atoms_different_samples_per_class(rng):
    X, y = subspaces(rng, (30, 5, 12))
    model = SRC(10, random_state=0).fit(X, y)
    np.testing.assert_array_equal(np.bincount(model.atom_classes_), [10, 5, 10])
    assert model.n_codes_ == 25 and model.encode(X)[0].shape == (47, 25)
    for i in range(3):
        atoms = model.atoms_[model.atom_classes_ == i]
        matches = np.isclose(atoms @ unit_rows(X[y == i]).T, 1, atol=1e-12)
        np.testing.assert_array_equal(matches.sum(axis=1), 1)
        assert matches.sum(axis=0).max() == 1


def test_seed_determines_the_selection_for_any_number_of_threads(rng):
    X, y = subspaces(rng, (900, 700), dtype=np.float32)
    one, two = (SRC(50, random_state=3, n_jobs=n).fit(X, y) for n in (1, 2))
    np.testing.assert_array_equal(one.atoms_, two.atoms_)
    np.testing.assert_array_equal(one.class_residuals(X), two.class_residuals(X))
    other = SRC(50, random_state=4).fit(X, y)
    assert not np.array_equal(one.atoms_, other.atoms_)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_that_of_the_samples(rng, dtype):
    X, y = subspaces(rng, dtype=dtype)
    model = SRC().fit(X, y)
    assert model.atoms_.dtype == dtype
    codes, residuals = model.encode(X.astype(np.float64))
    assert codes.dtype == dtype and residuals.dtype == np.float64


def test_fitted_arrays_restore_the_model(rng):
    X, y = subspaces(rng)
    model = SRC(20, penalty=0.2, random_state=0).fit(X, np.array(["a", "b", "c"])[y])
    restored = SRC(20, penalty=0.2)
    restored.classes_, restored.n_features_in_ = model.classes_, model.n_features_in_
    for name in SRC.fitted_arrays:
        setattr(restored, name, getattr(model, name))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))
    np.testing.assert_array_equal(restored.class_residuals(X), model.class_residuals(X))


def test_progress_is_reported(rng):
    X, y = subspaces(rng)
    reported: list[Progress] = []
    SRC().fit(X, y, callback=reported.append)
    assert [(p.stage, p.done, p.total) for p in reported] == [("train", i, 3) for i in range(4)]


# --- difficult input


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zero_constant_and_repeated_samples(rng, dtype):
    tissue, _ = coherent(rng, 60, 1, 30, dtype)
    blank = np.full((40, 30), 1 / np.sqrt(30), dtype)
    X = np.concatenate([tissue[:30], blank, np.zeros((5, 30), dtype), tissue[30:], blank[:10]])
    y = np.repeat([0, 1], [75, 40])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes, residuals = SRC(None, penalty=0.01).fit(X, y).encode(X)
    assert np.isfinite(codes.data).all() and np.isfinite(residuals).all()
    assert residuals[70:75].max() == 0
    assert residuals[:70].max() < 1.2


def test_classes_of_one_sample_and_of_zeros(rng):
    X = np.concatenate([rng.standard_normal((3, 12)), np.zeros((4, 12))])
    y = np.array(["one", "two", "two"] + ["zeros"] * 4)
    model = SRC().fit(X, y)
    np.testing.assert_array_equal(model.predict(X[:3]), y[:3])
    residuals = model.class_residuals(X[:3])
    np.testing.assert_allclose(residuals[:, 2], 1)
    nothing = SRC().fit(np.zeros((4, 6)), [0, 0, 1, 1])
    np.testing.assert_array_equal(nothing.class_residuals(np.ones((1, 6))), [[1, 1]])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_atoms": 0}, "n_atoms"),
        ({"n_atoms": 1.5}, "n_atoms"),
        ({"penalty": 0}, "penalty"),
        ({"penalty": "much"}, "penalty"),
    ],
)
def test_invalid_parameters_are_refused(rng, parameters, message):
    with pytest.raises(ValueError, match=message):
        SRC(**parameters).fit(*subspaces(rng))


def test_one_class_is_refused(rng):
    X, _ = subspaces(rng)
    with pytest.raises(ValueError, match="SRC needs at least two classes"):
        SRC().fit(X, np.ones(len(X)))
