from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from histodict.dictionaries.fista import FistaCodes
from histodict.methods.nayak import EncoderStatistics, Nayak, coding_matrices
from tests.gradients import finite_differences
from tests.problems import planted, unit_rows


def classes_of_own_atoms(rng, sizes=(200, 200), n_features=30, n_shared=3, dtype=float):
    """Return samples whose atoms have random signs, so that class means are uninformative."""
    shared = unit_rows(rng.standard_normal((n_shared, n_features)))
    X = []
    for size in sizes:
        own = unit_rows(rng.standard_normal((5, n_features)))
        X.append(planted(rng, np.concatenate([shared, own]), size, 3, 0.02))
    y = np.repeat(np.arange(len(sizes)), sizes)
    return unit_rows(np.concatenate(X)).astype(dtype), y


def small(**parameters):
    defaults = {"n_atoms": 16, "n_iter": 5, "random_state": 0, "n_jobs": 1}
    return Nayak(**(defaults | parameters))


def smooth_part(Y, S, D, W, ridge):
    """Return the objective without the l1 term, term by term."""
    fit, prediction = np.sum((Y - S @ D) ** 2), np.sum((S - Y @ W) ** 2)
    return 0.5 * (fit + prediction + ridge * np.sum(W**2))


@pytest.fixture
def problem(rng):
    Y, S = rng.standard_normal((9, 6)), rng.standard_normal((9, 5))
    return Y, S, unit_rows(rng.standard_normal((5, 6))), rng.standard_normal((6, 5))


def test_gradient_of_the_codes(problem):
    Y, S, D, W = problem
    H, P = coding_matrices(D, W, 1.0)
    expected = finite_differences(lambda T: smooth_part(Y, T, D, W, 0.0), S)
    np.testing.assert_allclose(S @ H - Y @ P, expected, atol=1e-7)


def test_gradient_of_the_atoms(problem):
    Y, S, D, W = problem
    expected = finite_differences(lambda T: smooth_part(Y, S, T, W, 0.0), D)
    np.testing.assert_allclose((S.T @ S) @ D - S.T @ Y, expected, atol=1e-7)


def test_gradient_vanishes_at_the_encoder(problem):
    Y, S, D, _ = problem
    samples = EncoderStatistics.from_samples(Y, 1)
    W = samples.fit_encoder(S.T @ Y)
    gradient = finite_differences(lambda T: smooth_part(Y, S, D, T, samples.ridge), W)
    np.testing.assert_allclose(gradient, 0, atol=1e-7)
    assert samples.ridge > 0


def test_objective_is_the_stated_one(problem):
    Y, S, D, W = problem
    samples = EncoderStatistics.from_samples(Y, 1)
    expected = smooth_part(Y, S, D, W, samples.ridge)
    assert samples.objective(D, W, S.T @ Y, S.T @ S) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("n_coding_steps", [1, 5, 30])
def test_objective_never_increases(rng, n_coding_steps):
    X, y = classes_of_own_atoms(rng)
    model = small(n_coding_steps=n_coding_steps, n_iter=15).fit(X, y)
    assert len(model.objective_) == 15
    assert (np.diff(model.objective_) <= 1e-10 * model.objective_[0]).all()
    assert model.objective_[-1] < 0.99 * model.objective_[0]


def test_exact_codes_are_the_minimisers(rng):
    X, y = classes_of_own_atoms(rng)
    model = small(encoder="exact", penalty=0.05).fit(X, y)
    S = model.encode(X)[0].toarray()
    H, P = coding_matrices(model.dictionary_, model.encoder_, 1.0)
    gradient = S @ H - X @ P
    used = S != 0
    assert used.any()
    assert not used.all()
    np.testing.assert_allclose(gradient[used], -0.05 * np.sign(S[used]), atol=1e-6)
    assert np.abs(gradient[~used]).max() < 0.06
    # Training converges to the same codes with enough steps.
    codes = FistaCodes([len(X)], 16, X.dtype, 1)
    model.set_params(n_coding_steps=300)._code(codes, X, model.dictionary_, model.encoder_, 1.0)
    np.testing.assert_allclose(codes.S, S, atol=2e-2)


def test_fast_codes_are_one_product_and_approximate_exact_ones(rng):
    X, y = classes_of_own_atoms(rng, (600, 600))
    model = small(n_iter=20).fit(X[::2], y[::2])
    fast = model.encode(X[1::2])[0].toarray()
    np.testing.assert_allclose(fast, X[1::2] @ model.encoder_)
    exact = model.set_params(encoder="exact").encode(X[1::2])[0].toarray()
    assert np.sum((fast - exact) ** 2) < 0.3 * np.sum(exact**2)


def test_recovers_the_atoms_of_all_classes(rng):
    atoms = unit_rows(rng.standard_normal((10, 30)))
    X = np.concatenate([planted(rng, own, 1000, 2, 0.01) for own in np.split(atoms, 2)])
    model = small(n_atoms=20, n_iter=30, penalty=0.05).fit(X, np.repeat([0, 1], 1000))
    np.testing.assert_allclose(np.linalg.norm(model.dictionary_, axis=1), 1)
    assert (np.abs(atoms @ model.dictionary_.T).max(axis=1) > 0.95).mean() >= 0.8


@pytest.mark.parametrize("encoder", ["fast", "exact"])
@pytest.mark.parametrize("sizes", [(300, 300), (200, 200, 200)])
def test_separates_classes(rng, sizes, encoder):
    X, y = classes_of_own_atoms(rng, sizes)
    train = np.arange(len(X)) % 2 == 0
    model = small(n_atoms=25, encoder=encoder, svm_cost=1.0).fit(X[train], y[train])
    assert model.score(X[~train], y[~train]) > 0.9


def test_codes_do_not_depend_on_the_labels(rng):
    X, y = classes_of_own_atoms(rng)
    one, other = small().fit(X, y), small().fit(X, rng.permutation(y))
    np.testing.assert_array_equal(one.dictionary_, other.dictionary_)
    np.testing.assert_array_equal(one.encoder_, other.encoder_)
    assert not np.array_equal(one.svm_weights_, other.svm_weights_)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_distances_are_negative_scores_of_the_codes(rng, n_classes):
    X, y = classes_of_own_atoms(rng, (80,) * n_classes)
    model = small().fit(X, y)
    S, distances = model.encode(X)
    parts = np.hstack([np.maximum(S.toarray(), 0), np.maximum(-S.toarray(), 0)])
    scores = parts @ model.svm_weights_.T + model.svm_bias_
    assert S.shape == (len(X), model.n_codes_)
    assert distances.shape == (len(X), n_classes)
    if n_classes == 2:
        np.testing.assert_allclose(model.decision_function(X), scores[:, 0])
        np.testing.assert_array_equal(model.predict(X), (scores[:, 0] > 0).astype(int))
        np.testing.assert_allclose(model.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores[:, 0])))
    else:
        np.testing.assert_allclose(distances, -scores)


def test_rare_and_common_classes_have_equal_weight(rng):
    X, y = classes_of_own_atoms(rng, (900, 60), n_shared=6)
    model = small(n_atoms=25, svm_cost=0.001).fit(X[::2], y[::2])
    found = model.predict(X[1::2]) == y[1::2]
    assert min(np.mean(found[y[1::2] == i]) for i in (0, 1)) > 0.65


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_seed_gives_same_bits_for_any_number_of_threads(rng, dtype):
    X, y = classes_of_own_atoms(rng, (1100, 300), dtype=dtype)
    one, two = (small(n_jobs=n, n_iter=2).fit(X, y) for n in (1, 2))
    assert one.dictionary_.dtype == one.encoder_.dtype == dtype
    for name in Nayak.fitted_arrays:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(one.encode(X)[1], two.encode(X)[1])
    other = small(random_state=1, n_iter=2).fit(X, y)
    assert not np.array_equal(one.dictionary_, other.dictionary_)


@pytest.mark.parametrize("encoder", ["fast", "exact"])
def test_fitted_arrays_restore_the_model(rng, encoder):
    X, y = classes_of_own_atoms(rng, (60, 40))
    model = small(encoder=encoder).fit(X, y)
    again = small(encoder=encoder)
    again.classes_, again.n_features_in_ = model.classes_, model.n_features_in_
    for name in Nayak.fitted_arrays:
        setattr(again, name, getattr(model, name))
    np.testing.assert_array_equal(again.encode(X)[1], model.encode(X)[1])


def test_progress_is_reported_and_an_exception_stops(rng):
    X, y = classes_of_own_atoms(rng)
    reported = []
    model = small(n_iter=2).fit(X, y, callback=reported.append)
    stages = [(p.stage, p.done, p.total) for p in reported]
    assert stages == [("initialise", i, 5) for i in range(6)] + [("train", i, 2) for i in range(3)]
    assert [p.objective[0] for p in reported[7:]] == model.objective_.tolist()

    def cancel(progress):
        raise KeyboardInterrupt

    before = model.dictionary_.copy()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[::-1], y, callback=cancel)
    np.testing.assert_array_equal(model.dictionary_, before)


BLANK = np.full((100, 30), 1 / np.sqrt(30))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make_difficult",
    [
        lambda X: np.concatenate([BLANK, X[100:-100], BLANK]),
        lambda X: np.concatenate([BLANK, BLANK, X[200:]]),
        lambda X: np.repeat(X[::50], 50, axis=0),
        lambda X: 0 * X,
        lambda X: X[:, :1] * np.ones((1, 30)),
        lambda X: 1e-20 * X,
        lambda X: 1e15 * X,
    ],
    ids=["half blank", "a class all blank", "repeated", "all zero", "rank one", "tiny", "huge"],
)
def test_difficult_input_gives_finite_results(rng, make_difficult, dtype):
    X, y = classes_of_own_atoms(rng)
    X = make_difficult(X).astype(dtype)
    model = small(n_atoms=40).fit(X, y)
    for name in Nayak.fitted_arrays:
        assert np.isfinite(getattr(model, name)).all(), name
    np.testing.assert_allclose(np.linalg.norm(model.dictionary_, axis=1), 1, atol=1e-5)
    with warnings.catch_warnings():
        # raised for huge samples and their penalty
        warnings.simplefilter("ignore", ConvergenceWarning)
        for encoder in ("fast", "exact"):
            assert np.isfinite(model.set_params(encoder=encoder).encode(X)[1]).all()


def test_classes_of_one_sample_and_fewer_samples_than_features(rng):
    X, y = classes_of_own_atoms(rng, (10, 1, 1))
    model = small(n_atoms=30, svm_cost=100.0).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_atoms": 0}, "n_atoms"),
        ({"penalty": 0}, "penalty"),
        ({"n_iter": 0}, "n_iter"),
        ({"n_coding_steps": 1.5}, "n_coding_steps"),
        ({"encoder": "slow"}, "encoder"),
        ({"svm_cost": 0}, "svm_cost"),
        ({"backend": "abacus"}, "backend"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_invalid_parameters_are_refused(rng, parameters, message):
    X, y = classes_of_own_atoms(rng, (20, 20))
    with pytest.raises(ValueError, match=message):
        small(**parameters).fit(X, y)


def test_one_class_is_refused(rng):
    X, y = classes_of_own_atoms(rng, (20, 20))
    with pytest.raises(ValueError, match="Nayak needs at least two classes, but y has only one"):
        small().fit(X[:20], y[:20])
