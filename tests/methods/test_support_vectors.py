from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from histodict.methods.svm import StandardizedSVM


def blobs(n_classes, n_features=6, spread=4.0):
    X, y = make_blobs([60, 35, 20, 9][:n_classes], n_features, cluster_std=spread, random_state=3)
    return X * np.logspace(-2, 3, n_features) + 5, np.array(["d", "b", "a", "c"])[y]


def sklearn_pipeline(kernel, n_classes, **parameters):
    machine = SVC(kernel=kernel, class_weight="balanced", **parameters)
    if n_classes > 2:
        machine = OneVsRestClassifier(machine)
    return make_pipeline(StandardScaler(), machine)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("n_classes", [2, 3, 4])
@pytest.mark.parametrize("parameters", [{}, {"C": 0.05}, {"C": 30.0, "gamma": 0.4}], ids=str)
def test_scores_and_predictions_equal_scikit_learn(kernel, n_classes, parameters):
    X, y = blobs(n_classes)
    ours = StandardizedSVM(kernel, **parameters).fit(X[::2], y[::2])
    expected = sklearn_pipeline(kernel, n_classes, **parameters).fit(X[::2], y[::2])
    np.testing.assert_allclose(ours.decision_function(X), expected.decision_function(X), atol=1e-8)
    np.testing.assert_array_equal(ours.predict(X), expected.predict(X))
    assert ours.decision_function(X).shape == ((len(X),) if n_classes == 2 else (len(X), n_classes))


def test_positive_score_means_the_second_class():
    X, y = blobs(2, spread=0.5)
    model = StandardizedSVM("linear").fit(X, y)
    np.testing.assert_array_equal(model.decision_function(X) > 0, y == model.classes_[1])


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_fitted_arrays_restore_the_model(kernel, n_classes):
    X, y = blobs(n_classes)
    model = StandardizedSVM(kernel).fit(X, y)
    restored = StandardizedSVM(**model.get_params())
    restored.classes_, restored.n_features_in_ = model.classes_, model.n_features_in_
    for name in model.fitted_arrays:
        array = getattr(model, name)
        assert isinstance(array, np.ndarray)
        assert array.dtype == np.float64
        assert array.ndim >= 1
        setattr(restored, name, array.copy())
    np.testing.assert_array_equal(restored.decision_function(X), model.decision_function(X))
    np.testing.assert_array_equal(restored.predict(X), model.predict(X))


def test_only_support_vectors_are_stored():
    X, y = blobs(2, spread=0.3)
    model = StandardizedSVM("linear").fit(X, y)
    assert 2 <= len(model.support_vectors_) < len(X) / 4
    assert model.dual_coefficients_.shape == (1, len(model.support_vectors_))
    assert (model.dual_coefficients_ != 0).all()


def test_rare_and_common_classes_have_equal_weight(rng):
    X = np.concatenate([rng.normal(0, 1, (200, 1)), rng.normal(1.5, 1, (10, 1))])
    y = np.repeat([0, 1], [200, 10])
    model = StandardizedSVM("linear").fit(X, y)
    recalls = [np.mean(model.predict(X[y == i]) == i) for i in (0, 1)]
    assert min(recalls) > 0.6


def test_scale_of_a_feature_does_not_matter(rng):
    X, y = blobs(3)
    units = np.exp2(rng.integers(-20, 20, X.shape[1]))
    one, other = (StandardizedSVM().fit(Z, y).decision_function(Z) for Z in (X, X * units))
    np.testing.assert_allclose(other, one, atol=1e-9)


@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_constant_features_and_single_samples(rng, kernel):
    X = np.column_stack([rng.standard_normal(5), np.full(5, 7.3), np.zeros(5)])
    for y in (["a", "b", "b", "b", "b"], ["a", "b", "c", "d", "e"]):
        scores = StandardizedSVM(kernel).fit(X, y).decision_function(X)
        assert np.isfinite(scores).all()
    blank = StandardizedSVM(kernel).fit(np.ones((4, 3)), [0, 1, 0, 1])
    assert np.isfinite(blank.decision_function(np.ones((2, 3)))).all()


def test_progress_is_reported_for_every_machine():
    for n_classes, n_machines in ((2, 1), (4, 4)):
        reported = []
        StandardizedSVM().fit(*blobs(n_classes), callback=reported.append)
        expected = [("train", i, n_machines) for i in range(n_machines + 1)]
        assert [(p.stage, p.done, p.total) for p in reported] == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kernel": "poly"}, "kernel"),
        ({"C": 0}, "C must be"),
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": "auto"}, "gamma"),
    ],
)
def test_unknown_parameters_are_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        StandardizedSVM(**parameters).fit(*blobs(2))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="needs at least two classes"):
        StandardizedSVM().fit(np.eye(3), [1, 1, 1])


@parametrize_with_checks([StandardizedSVM(), StandardizedSVM("linear")])
def test_passes_scikit_learn_checks(estimator, check):
    check(estimator)
