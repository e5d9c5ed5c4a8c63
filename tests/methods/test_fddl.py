from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from histodict.dictionaries.fista import FistaCodes
from histodict.kernels import class_residuals, encode_lasso
from histodict.methods.fddl import (
    FDDL,
    class_blocks,
    class_mean_coupling,
    code_curvature,
    double_own_class_columns,
)
from histodict.methods.odl import ODL
from tests.gradients import finite_differences
from tests.kernels import reference as slow
from tests.problems import planted, unit_rows


def classes_with_shared_atoms(rng, sizes=(150, 150), n_features=30, n_shared=6, dtype=float):
    """Return sorted classes with eight own atoms each, and some shared ones."""
    shared = unit_rows(rng.standard_normal((n_shared, n_features)))
    X = []
    for size in sizes:
        own = unit_rows(rng.standard_normal((8, n_features)))
        X.append(planted(rng, np.concatenate([shared, own]), size, 3, 0.02))
    y = np.repeat(np.arange(len(sizes)), sizes)
    return unit_rows(np.concatenate(X)).astype(dtype), y


def small(**parameters):
    defaults = {"n_atoms": 8, "n_iter": 5, "n_coding_steps": 20, "random_state": 0, "n_jobs": 1}
    return FDDL(**(defaults | parameters))


def smooth_part(Y, labels, S, D, n_classes, weight):
    """Return half the published objective without the l1 term, term by term."""
    k = len(D) // n_classes
    parts = [slice(i * k, (i + 1) * k) for i in range(n_classes)]
    m = S.mean(axis=0)
    fit = scatter = 0.0
    for i, own in enumerate(parts):
        Y_i, S_i = Y[labels == i], S[labels == i]
        m_i = S_i.mean(axis=0)
        fit += np.sum((Y_i - S_i @ D) ** 2) + np.sum((Y_i - S_i[:, own] @ D[own]) ** 2)
        fit += sum(np.sum((S_i[:, p] @ D[p]) ** 2) for j, p in enumerate(parts) if j != i)
        scatter += np.sum((S_i - m_i) ** 2) - len(S_i) * np.sum((m_i - m) ** 2)
    return 0.5 * fit + 0.5 * weight * (scatter + np.sum(S**2))


def gradient_of_codes(Y, labels, S, D, n_classes, weight):
    """Return the gradient as FDDL computes it, for all samples at once."""
    k = len(D) // n_classes
    sizes = np.bincount(labels)
    B = np.concatenate(
        [double_own_class_columns(Y[labels == i] @ D.T, i, k) for i in range(n_classes)]
    )
    means = np.stack([S[labels == i].mean(axis=0) for i in range(n_classes)])
    return (
        S @ code_curvature(D, n_classes, weight)
        - B
        + (class_mean_coupling(sizes, weight) @ means)[labels]
    )


@pytest.fixture
def problem(rng):
    """Three classes of different sizes, random codes and atoms."""
    labels = np.repeat([0, 1, 2], [4, 1, 6])
    return {
        "Y": rng.standard_normal((11, 7)),
        "labels": labels,
        "S": rng.standard_normal((11, 6)),
        "D": unit_rows(rng.standard_normal((6, 7))),
    }


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_gradient_of_the_codes(problem, weight):
    Y, labels, S, D = problem.values()
    expected = finite_differences(lambda T: smooth_part(Y, labels, T, D, 3, weight), S)
    found = gradient_of_codes(Y, labels, S, D, 3, weight)
    np.testing.assert_allclose(found, expected, atol=1e-7)


def test_gradient_of_the_atoms(problem):
    Y, labels, S, D = problem.values()
    codes = FistaCodes([4, 1, 6], 6, S.dtype, 1)
    codes.S[:] = S
    E, F, _ = small(n_atoms=2)._compute_statistics(codes, Y, D)
    expected = finite_differences(lambda T: smooth_part(Y, labels, S, T, 3, 0.5), D)
    np.testing.assert_allclose(F @ D - E, expected, atol=1e-7)


def test_objective_is_the_published_one(problem):
    Y, labels, S, D = problem.values()
    codes = FistaCodes([4, 1, 6], 6, S.dtype, 1)
    codes.S[:] = S
    model = small(n_atoms=2, penalty=0.3, fisher_weight=0.7)
    expected = smooth_part(Y, labels, S, D, 3, 0.7) + 0.3 * np.abs(S).sum()
    assert model._compute_statistics(codes, Y, D)[2] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weight", [0.0, 0.05, 5.0])
def test_problem_of_the_codes_is_convex_and_its_step_is_safe(problem, weight):
    """The Hessian over all samples and classes lies between 0 and the largest eigenvalue."""
    Y, labels, S, D = problem.values()
    zero = gradient_of_codes(Y, labels, 0 * S, D, 3, weight)
    columns = []
    for index in np.ndindex(*S.shape):
        unit = np.zeros_like(S)
        unit[index] = 1
        columns.append((gradient_of_codes(Y, labels, unit, D, 3, weight) - zero).ravel())
    hessian = np.array(columns)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-12)
    eigenvalues = np.linalg.eigvalsh(hessian)
    assert eigenvalues[0] > -1e-10
    assert eigenvalues[-1] <= np.linalg.eigvalsh(code_curvature(D, 3, weight))[-1] + 1e-10


def test_codes_without_fisher_criterion_are_lasso_codes(rng):
    """Samples are then coded independently, over D and its class parts."""
    X, y = classes_with_shared_atoms(rng)
    D = ODL(4, random_state=0).fit(X, y).dictionaries_.reshape(8, -1)
    codes = FistaCodes([150, 150], 8, X.dtype, 1)
    small(n_atoms=4, fisher_weight=0.0, n_coding_steps=500)._code(codes, X, D)
    zero = np.zeros_like(D[:4])
    apart = np.block([[D[:4], D[:4], zero], [D[4:], zero, D[4:]]])
    nothing = np.zeros_like(X[:150])
    targets = np.block([[X[:150], X[:150], nothing], [X[150:], nothing, X[150:]]])
    expected = encode_lasso(apart, targets, 0.1, tol=1e-9).toarray()
    np.testing.assert_allclose(codes.S, expected, atol=1e-5)


@pytest.mark.parametrize("n_coding_steps", [1, 5, 30])
def test_objective_never_increases(rng, n_coding_steps):
    X, y = classes_with_shared_atoms(rng, (150, 80, 20))
    model = small(fisher_weight=0.1, n_coding_steps=n_coding_steps, n_iter=15).fit(X, y)
    assert len(model.objective_) == 16
    assert (np.diff(model.objective_) <= 1e-10 * model.objective_[0]).all()
    assert model.objective_[-1] < 0.98 * model.objective_[0]


def test_fisher_criterion_reduces_scatter_within_classes(rng):
    """The share of the scatter within classes decreases with its weight."""
    X, y = classes_with_shared_atoms(rng)
    X = np.abs(X)  # a common direction, so that class means of codes are not 0

    def share_within(weight):
        model = small(fisher_weight=weight, n_coding_steps=100)
        codes = FistaCodes([150, 150], 16, X.dtype, 1)
        D = ODL(8, random_state=0).fit(X, y).dictionaries_.reshape(16, -1)
        model._train(D, X, codes, lambda progress: None)
        within = sum(np.sum((part - part.mean(axis=0)) ** 2) for part in np.split(codes.S, 2))
        return within / np.sum((codes.S - codes.S.mean(axis=0)) ** 2)

    none, some, much = (share_within(weight) for weight in (0.0, 0.3, 3.0))
    assert much < some < none


def test_agrees_with_an_independent_implementation(rng, dictol):
    """From the same initial dictionary: the same objective and the same predictions."""
    X, y = classes_with_shared_atoms(rng, (200, 200))
    train = np.arange(400) % 4 == 0
    start = ODL(8, random_state=0).fit(X[train], y[train]).dictionaries_.reshape(16, -1)
    peer = dictol.LRSDL.LRSDL(lambd=0.1, lambd2=0.05, k=8, k0=0)

    def initialise():
        peer.D = start.T.copy()
        peer._updateXX0()

    peer._initialize = initialise
    peer.fit(X[train].T, y[train] + 1, iterations=20)
    ours = small(
        fisher_weight=0.05, n_iter=20, n_coding_steps=100, decision="local", mean_weight=0.0
    ).fit(X[train], y[train])
    assert ours.objective_[0] > 1.01 * ours.objective_[-1]
    assert ours.objective_[-1] == pytest.approx(peer.loss(), rel=1e-3)
    peers = (
        smooth_part(X[train], y[train], peer.X.T, peer.D.T, 2, 0.05) + 0.1 * np.abs(peer.X).sum()
    )
    assert ours.objective_[-1] == pytest.approx(peers, rel=1e-3)
    theirs = peer.predict(X[~train].T) - 1
    assert np.mean(ours.predict(X[~train]) == theirs) > 0.98
    assert np.mean(theirs == y[~train]) > 0.8


@pytest.mark.parametrize("decision", ["global", "local"])
def test_separates_classes(rng, decision):
    X, y = classes_with_shared_atoms(rng, (250, 250, 250), n_shared=3)
    train = np.arange(len(X)) % 2 == 0
    model = small(decision=decision, n_atoms=11).fit(X[train], y[train])
    assert model.score(X[~train], y[~train]) > 0.85


def test_global_distance(rng):
    X, y = classes_with_shared_atoms(rng, (60, 40))
    model = small(mean_weight=0.7).fit(X, y)
    S, distances = model.encode(X)
    D = model.dictionaries_.reshape(16, -1)
    residuals = class_residuals(D, X, S, np.repeat([0, 1], 8))
    to_means = np.stack([np.sum((S.toarray() - m) ** 2, axis=1) for m in model.code_means_], 1)
    np.testing.assert_allclose(distances**2, residuals**2 + 0.7 * to_means)
    without = model.set_params(mean_weight=0.0).encode(X)[1]
    np.testing.assert_allclose(without, residuals)


def test_local_distance_is_the_minimum_of_the_class_problem(rng):
    X, y = classes_with_shared_atoms(rng, (60, 40), n_features=12)
    model = small(n_atoms=4, decision="local", mean_weight=0.5).fit(X, y)
    S, distances = model.encode(X[:8])
    assert S.shape == (8, model.n_codes_)
    for i, D in enumerate(model.dictionaries_):
        m = model.code_means_[i, 4 * i : 4 * (i + 1)]
        wide, root = np.hstack([D, np.sqrt(0.5) * np.eye(4)]), np.sqrt(0.5)
        best = slow.encode_lasso(wide, np.hstack([X[:8], np.tile(root * m, (8, 1))]), 0.1)
        value = np.sum((X[:8] - best @ D) ** 2, 1) + 0.5 * np.sum((best - m) ** 2, 1)
        expected = value + 2 * 0.1 * np.abs(best).sum(axis=1)
        np.testing.assert_allclose(distances[:, i] ** 2, expected, rtol=1e-3)
        np.testing.assert_allclose(S[:, 4 * i : 4 * (i + 1)].toarray(), best, atol=2e-2)


def test_mean_codes_match_the_dictionaries(rng):
    """For any order and sign of the atoms, m_i is the mean code of class i over them."""
    X, y = classes_with_shared_atoms(rng, (80, 120))
    model = small(n_iter=3, n_coding_steps=500).fit(np.abs(X), y)
    codes = FistaCodes([80, 120], 16, X.dtype, 1)
    model._code(codes, np.abs(X), model.dictionaries_.reshape(16, -1))
    np.testing.assert_allclose(model.code_means_, codes.means, atol=1e-4)
    assert np.abs(codes.means).max() > 0.1
    for i, rows in enumerate((slice(80), slice(80, 200))):
        own = codes.S[rows, 8 * i : 8 * (i + 1)]
        assert (np.diff(np.count_nonzero(np.abs(own) > 1e-4, axis=0)) <= 1).all()
        assert ((own > 1e-4).sum(axis=0) >= (own < -1e-4).sum(axis=0)).all()


def test_class_blocks():
    M = np.arange(16.0).reshape(4, 4)
    expected = M * np.kron(np.eye(2), np.ones((2, 2)))
    np.testing.assert_array_equal(class_blocks(M, 2), expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_seed_gives_same_bits_for_any_number_of_threads(rng, dtype):
    X, y = classes_with_shared_atoms(rng, (1100, 300), dtype=dtype)
    one, two = (small(n_jobs=n, n_iter=2).fit(X, y) for n in (1, 2))
    assert one.dictionaries_.dtype == dtype
    for name in FDDL.fitted_arrays:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    np.testing.assert_array_equal(one.encode(X)[1], two.encode(X)[1])
    other = small(random_state=1, n_iter=2).fit(X, y)
    assert not np.array_equal(one.dictionaries_, other.dictionaries_)


@pytest.mark.parametrize("decision", ["global", "local"])
def test_fitted_arrays_restore_the_model(rng, decision):
    X, y = classes_with_shared_atoms(rng, (60, 40))
    model = small(decision=decision).fit(X, y)
    again = small(decision=decision)
    again.classes_, again.n_features_in_ = model.classes_, model.n_features_in_
    for name in FDDL.fitted_arrays:
        setattr(again, name, getattr(model, name))
    np.testing.assert_array_equal(again.encode(X)[1], model.encode(X)[1])


def test_progress_is_reported_and_an_exception_stops(rng):
    X, y = classes_with_shared_atoms(rng)
    reported = []
    model = small(n_iter=2).fit(X, y, callback=reported.append)
    stages = [(p.stage, p.done, p.total) for p in reported]
    assert stages == [("initialise", i, 10) for i in range(11)] + [
        ("train", i, 3) for i in range(4)
    ]
    assert [p.objective[0] for p in reported[12:]] == model.objective_.tolist()

    def cancel(progress):
        raise KeyboardInterrupt

    before = model.dictionaries_.copy()
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[::-1], y, callback=cancel)
    np.testing.assert_array_equal(model.dictionaries_, before)


BLANK = np.full((75, 30), 1 / np.sqrt(30))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "make_difficult",
    [
        lambda X: np.concatenate([BLANK, X[75:-75], BLANK]),
        lambda X: np.concatenate([BLANK, BLANK, X[150:]]),
        lambda X: np.repeat(X[::50], 50, axis=0),
        lambda X: 0 * X,
        lambda X: X[:, :1] * np.ones((1, 30)),
        lambda X: 1e-20 * X,
        lambda X: 1e15 * X,
    ],
    ids=["half blank", "a class all blank", "repeated", "all zero", "rank one", "tiny", "huge"],
)
def test_difficult_input_gives_finite_results(rng, make_difficult, dtype):
    X, y = classes_with_shared_atoms(rng)
    X = make_difficult(X).astype(dtype)
    model = small(n_atoms=20).fit(X, y)
    assert np.isfinite(model.objective_).all()
    np.testing.assert_allclose(np.linalg.norm(model.dictionaries_, axis=2), 1, atol=1e-5)
    with warnings.catch_warnings():
        # raised for huge samples and their penalty
        warnings.simplefilter("ignore", ConvergenceWarning)
        for decision in ("global", "local"):
            assert np.isfinite(model.set_params(decision=decision).encode(X)[1]).all()


def test_classes_of_one_sample(rng):
    X, y = classes_with_shared_atoms(rng, (40, 1, 1))
    model = small(n_atoms=6).fit(X, y)
    np.testing.assert_array_equal(model.predict(X[40:]), [1, 2])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_atoms": 0}, "n_atoms"),
        ({"penalty": 0}, "penalty"),
        ({"fisher_weight": -1}, "fisher_weight"),
        ({"n_iter": 0}, "n_iter"),
        ({"n_coding_steps": 1.5}, "n_coding_steps"),
        ({"mean_weight": -0.1}, "mean_weight"),
        ({"decision": "nearest"}, "decision"),
        ({"backend": "abacus"}, "backend"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
)
def test_invalid_parameters_are_refused(rng, parameters, message):
    X, y = classes_with_shared_atoms(rng, (20, 20))
    with pytest.raises(ValueError, match=message):
        small(**parameters).fit(X, y)


def test_one_class_is_refused(rng):
    X, y = classes_with_shared_atoms(rng, (20, 20))
    with pytest.raises(ValueError, match="FDDL needs at least two classes, but y has only one"):
        small().fit(X[:20], y[:20])
