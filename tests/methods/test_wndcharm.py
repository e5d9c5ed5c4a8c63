from __future__ import annotations

import numpy as np
import pytest
from sklearn.feature_selection import f_classif
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from histodict.methods.wndcharm import WNDCHARM, fisher_scores, log_similarities


def few_useful(rng, n_per_class=30, n_classes=2, n_features=60, n_useful=6):
    """Return samples whose class means differ in the first features; scales differ in all."""
    y = np.repeat(np.arange(n_classes), n_per_class)
    X = rng.standard_normal((len(y), n_features))
    X[:, :n_useful] += 1.5 * rng.standard_normal((n_classes, n_useful))[y]
    return X * np.exp(rng.normal(0, 3, n_features)) + 4, y


def standardised(X):
    return (X - X.mean(axis=0)) / X.std(axis=0)


def between(train, samples):
    """Scale to 0 at the smallest and 1 at the largest training value, and clip."""
    unit = (samples - train.min(axis=0)) / (train.max(axis=0) - train.min(axis=0))
    return np.clip(unit, 0, 1)


# --- Fisher scores ------------------------------------------------------------------------------


def test_fisher_scores_by_hand():
    Z = standardised(np.array([[0.0, 1], [2, 1.5], [6, 0.5], [8, 1]]))
    means = np.array([Z[:2].mean(axis=0), Z[2:].mean(axis=0)])
    between = ((means - means.mean(axis=0)) ** 2).sum(axis=0)
    within = (Z[:2].var(axis=0) + Z[2:].var(axis=0)) / 2
    np.testing.assert_allclose(fisher_scores(Z, np.array([0, 0, 1, 1])), between / within)
    # The first feature has means 1 and 7 and variances 1 and 1, in any unit.
    assert fisher_scores(Z, np.array([0, 0, 1, 1]))[0] == pytest.approx(18)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_fisher_scores_order_features_like_analysis_of_variance(rng, n_classes):
    X, y = few_useful(rng, n_classes=n_classes)
    ours = fisher_scores(standardised(X), y)
    np.testing.assert_array_equal(np.argsort(ours), np.argsort(f_classif(X, y)[0]))


def test_constant_features_score_0_and_perfect_ones_are_finite():
    Z = np.array([[0.0, -1], [0, -1], [0, 1], [0, 1]])
    scores = fisher_scores(Z, np.array([0, 0, 1, 1]))
    assert scores[0] == 0
    assert 100 < scores[1] < np.inf


# --- selection ----------------------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["svm", "neighbours"])
def test_selects_the_useful_features_and_separates_the_classes(rng, decision):
    X, y = few_useful(rng, n_per_class=100, n_classes=3, n_useful=9)
    model = WNDCHARM(0.1, decision=decision).fit(X[::2], y[::2])
    assert len(model.selected_) == 6
    assert set(model.selected_) <= set(range(9))
    assert (np.diff(model.weights_) <= 0).all()
    assert model.weights_[0] == 1
    assert model.score(X[1::2], y[1::2]) > 0.85


@pytest.mark.parametrize(("share", "n_selected"), [(1.0, 60), (0.15, 9), (0.001, 1)])
def test_selects_the_requested_share(rng, share, n_selected):
    X, y = few_useful(rng)
    assert WNDCHARM(share).fit(X, y).selected_.shape == (n_selected,)


@pytest.mark.parametrize("decision", ["svm", "neighbours"])
def test_scale_of_a_feature_does_not_matter(rng, decision):
    X, y = few_useful(rng)
    units = np.exp2(rng.integers(-20, 20, X.shape[1]))
    scores = [WNDCHARM(decision=decision).fit(Z, y).decision_function(Z) for Z in (X, X * units)]
    np.testing.assert_allclose(scores[1], scores[0], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("decision", ["svm", "neighbours"])
def test_values_beyond_the_training_range_are_clipped(rng, decision):
    X, y = few_useful(rng)
    model = WNDCHARM(0.3, decision=decision).fit(X, y)
    far = X[:5] + 1e6 * np.ptp(X, axis=0)
    ends = np.broadcast_to(X.max(axis=0), far.shape)
    np.testing.assert_allclose(model.decision_function(far), model.decision_function(ends))


# --- decisions ----------------------------------------------------------------------------------


def naive_similarity(x, training):
    total = 0.0
    for t in training:
        distance = 0.0
        for a, b in zip(x, t, strict=True):
            distance += (a - b) ** 2
        total += distance**-5
    return total / len(training)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_neighbours_equal_a_naive_loop(rng, n_classes):
    X, y = few_useful(rng, n_per_class=12, n_classes=n_classes)
    train, test = X[::2], X[1::2]
    model = WNDCHARM(0.2, decision="neighbours").fit(train, y[::2])
    w = fisher_scores(standardised(train), y[::2])
    best = np.argsort(-w)[:12]
    w = w[best] / w.max()
    training, new = (between(train, samples)[:, best] * w for samples in (train, test))
    rho = np.array(
        [[naive_similarity(x, training[y[::2] == i]) for i in range(n_classes)] for x in new]
    )
    np.testing.assert_allclose(
        model.predict_proba(test), rho / rho.sum(axis=1, keepdims=True), rtol=1e-6, atol=1e-12
    )
    np.testing.assert_array_equal(model.predict(test), rho.argmax(axis=1))
    scores = np.log(rho)
    if n_classes == 2:
        scores = scores[:, 1] - scores[:, 0]
    np.testing.assert_allclose(model.decision_function(test), scores, rtol=1e-7)


def test_similarity_is_a_mean_over_the_class():
    training = np.array([[0.0], [2], [2], [2]])
    ours = log_similarities(np.array([[1.0]]), training, np.array([0, 1, 1, 1]))
    np.testing.assert_allclose(ours, [[0, 0]], atol=1e-12)


def test_training_samples_are_classified_correctly(rng):
    X, y = few_useful(rng, n_classes=3)
    shuffled = rng.permutation(y)
    model = WNDCHARM(1.0, decision="neighbours").fit(X, shuffled)
    assert np.isfinite(model.decision_function(X)).all()
    np.testing.assert_array_equal(model.predict(X), shuffled)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_machines_use_the_selected_features_unchanged(rng, kernel):
    X, y = few_useful(rng)
    model = WNDCHARM(0.5, kernel=kernel, C=0.3).fit(X, y)
    w = fisher_scores(standardised(X), y)
    best = np.argsort(-w)[:30]
    stored = between(X, X)[:, best]
    training = SVC(kernel=kernel, C=0.3, class_weight="balanced").fit(stored, y)
    np.testing.assert_allclose(
        model.decision_function(X), training.decision_function(stored), atol=1e-7
    )


def test_feature_that_varies_by_rounding_is_ignored(rng):
    X, y = few_useful(rng)
    X[:, -1] = 1 / 3
    noisy = X.copy()
    noisy[::2, -1] = np.nextafter(1 / 3, 1)
    scores = [WNDCHARM(1.0).fit(Z, y).decision_function(X) for Z in (X, noisy)]
    np.testing.assert_array_equal(*scores)


def test_machines_have_no_probabilities(rng):
    model = WNDCHARM().fit(*few_useful(rng))
    assert not hasattr(model, "predict_proba")


# --- state, small and degenerate data, invalid parameters
# ------------------------------------------


@pytest.mark.parametrize("decision", ["svm", "neighbours"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_fitted_arrays_restore_the_model(rng, decision, n_classes):
    X, y = few_useful(rng, n_classes=n_classes)
    model = WNDCHARM(decision=decision).fit(X, y)
    restored = WNDCHARM(**model.get_params())
    restored.classes_, restored.n_features_in_ = model.classes_, model.n_features_in_
    for name in restored.fitted_arrays:
        array = getattr(model, name)
        assert isinstance(array, np.ndarray)
        assert array.ndim >= 1
        setattr(restored, name, array.copy())
    np.testing.assert_array_equal(restored.decision_function(X), model.decision_function(X))


@pytest.mark.parametrize("decision", ["svm", "neighbours"])
@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.eye(4), [0, 1, 2, 3]),  # single samples
        (np.eye(4), [0, 1, 1, 1]),
        (np.ones((4, 5)), [0, 0, 1, 1]),  # constants only
        (np.ones((4, 5)) / 3 + 1e-17, [0, 0, 1, 1]),
        (np.repeat(np.eye(2), 3, axis=0), [0, 1, 0, 1, 0, 1]),  # the same samples in both classes
    ],
)
def test_degenerate_samples_give_finite_scores(decision, X, y):
    model = WNDCHARM(decision=decision).fit(X, y)
    assert np.isfinite(model.decision_function(X)).all()
    assert np.isfinite(model.decision_function(X + 3)).all()
    assert set(model.predict(X)) <= set(y)


def test_classes_of_single_samples_are_recognised():
    X = np.diag([1.0, 2, 3, 4])
    model = WNDCHARM(1.0, decision="neighbours").fit(X, ["a", "b", "c", "d"])
    assert model.predict(X + 0.01).tolist() == ["a", "b", "c", "d"]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"selected_fraction": 0}, "selected_fraction"),
        ({"selected_fraction": 1.1}, "at most 1"),
        ({"decision": "forest"}, "decision"),
        ({"kernel": "poly"}, "kernel"),
        ({"C": -1}, "C must be"),
    ],
)
def test_unknown_parameters_are_refused(rng, parameters, message):
    with pytest.raises(ValueError, match=message):
        WNDCHARM(**parameters).fit(*few_useful(rng))


@parametrize_with_checks([WNDCHARM(1.0), WNDCHARM(1.0, decision="neighbours")])
def test_passes_scikit_learn_checks(estimator, check):
    check(estimator)
