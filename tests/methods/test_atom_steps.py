from __future__ import annotations

import numpy as np
import pytest

from histodict import DFDL
from histodict.kernels import encode_omp
from histodict.methods.dfdl import (
    ClassCoder,
    PublishedStep,
    SufficientStatistics,
    TangentStep,
    _sample_weights,
)
from tests.gradients import finite_differences
from tests.problems import planted, unit_rows

N_NONZERO = 3


def classes(rng, sizes=(400, 400), n_features=25, n_shared=10, noise=0.05):
    """Return classes with own and many shared atoms: atoms of one class also code the others."""
    shared = unit_rows(rng.standard_normal((n_shared, n_features)))
    own = unit_rows(rng.standard_normal((6 * len(sizes), n_features)))
    X = [
        planted(rng, np.concatenate([shared, atoms]), n, N_NONZERO, noise)
        for n, atoms in zip(sizes, np.split(own, len(sizes)), strict=True)
    ]
    return unit_rows(np.concatenate(X)), np.repeat(np.arange(len(sizes)), sizes)


def trained(start, X, y, **parameters):
    """Train DFDL from the given dictionaries (n_classes, n_atoms, n_features)."""
    options = {"n_nonzero": N_NONZERO, "n_iter": 12, "tol": 0.0, "random_state": 0} | parameters
    model = DFDL(start.shape[1], warm_start=True, **options)
    model.classes_, model.n_features_in_ = np.arange(len(start)), X.shape[1]
    model.dictionaries_, model.n_nonzero_ = start, np.full(len(start), N_NONZERO)
    return model.fit(X, y)


def samples_as_atoms(rng, X, y, n_atoms=12):
    return np.stack([X[rng.choice(np.flatnonzero(y == i), n_atoms)] for i in np.unique(y)])


def errors_of(D, X):
    """Return squared residuals of the best greedy codes."""
    return np.sum((X - encode_omp(D, X, N_NONZERO).toarray() @ D) ** 2, axis=1)


def sums_of(D, X, y, rho):
    """Return the statistics of a pass with the dictionary of class 0."""
    weights = _sample_weights(np.bincount(y), rho)
    return ClassCoder("cpu", {0: (D, N_NONZERO)}, weights, with_own_class=True)([(X, y)])[0]


def quadratic(D, E, F):
    return -2 * np.sum(E * D) + np.sum(F * (D @ D.T))


def step_at(D, sums, pull=0.0):
    step = TangentStep(D)
    step.sums, step.proximal_weight = sums, pull
    return step


# --- the surrogate -------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(60, 40), (50, 20, 40)])
def test_slope_at_the_current_atoms_is_that_of_the_objective(rng, sizes):
    """Finite differences of the true objective: every sample is coded again for every D."""
    X, y = classes(rng, sizes, n_features=8)
    D = unit_rows(rng.standard_normal((6, 8)))
    rho = 0.7
    w = _sample_weights(np.bincount(y), rho)[0][y]
    surrogate = step_at(D, sums_of(D, X, y, rho)).linearized_statistics()
    slope = -2 * surrogate.E + 2 * surrogate.F @ D
    expected = finite_differences(lambda D: float(w @ errors_of(D, X)), D, 1e-6)
    np.testing.assert_allclose(slope, expected, atol=1e-7)
    assert np.abs(expected).max() > 0.01


def test_surrogate_bounds_the_objective_of_fixed_codes_and_touches_it(rng):
    X, y = classes(rng)
    D = samples_as_atoms(rng, X, y)[0]
    sums = sums_of(D, X, y, 0.8)
    surrogate = step_at(D, sums).linearized_statistics()

    def excess(at):
        return quadratic(at, surrogate.E, surrogate.F) - quadratic(at, sums.E, sums.F)

    others = [unit_rows(D + size * rng.standard_normal(D.shape)) for size in (0.01, 0.1, 1, 1)]
    assert all(excess(at) > excess(D) for at in others)
    F_bar = sums.F - sums.F_own_class
    for at in others:  # the bound is loose by the term that F̄ adds along the way from D
        assert excess(at) - excess(D) == pytest.approx(-np.sum(F_bar * ((at - D) @ (at - D).T)))


def test_surrogate_with_large_pull_bounds_the_true_objective(rng):
    X, y = classes(rng)
    D = samples_as_atoms(rng, X, y)[0]
    w = _sample_weights(np.bincount(y), 1.0)[0][y]
    sums = sums_of(D, X, y, 1.0)
    surrogate = step_at(D, sums, pull=32.0).linearized_statistics()
    for size in (0.01, 0.1, 1):
        at = unit_rows(D + size * rng.standard_normal(D.shape))
        change = w @ (errors_of(at, X) - errors_of(D, X))
        bound = quadratic(at, surrogate.E, surrogate.F) - quadratic(D, surrogate.E, surrogate.F)
        assert change < bound


def test_own_class_statistics_are_those_of_the_own_samples(rng):
    X, y = classes(rng, (150, 90, 70))
    order = rng.permutation(len(X))
    X, y = X[order], y[order]
    D = samples_as_atoms(rng, X, y)[0]
    weights = _sample_weights(np.bincount(y), 0.5)
    coding = ClassCoder("cpu", {0: (D, N_NONZERO)}, weights, with_own_class=True)
    found = coding([(X[i : i + 100], y[i : i + 100]) for i in range(0, len(X), 100)])[0]
    S = encode_omp(D, X[y == 0], N_NONZERO).toarray()
    np.testing.assert_allclose(found.F_own_class, S.T @ S / 150, atol=1e-12)
    assert ClassCoder("cpu", {0: (D, N_NONZERO)}, weights)([(X, y)])[0].F_own_class is None


# --- descent -------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(400, 400), (300, 100, 250)])
@pytest.mark.parametrize("rho", [0.1, 0.6, 1.0])
def test_objective_never_increases_unlike_with_the_published_step(rng, rho, sizes):
    X, y = classes(rng, sizes, n_shared=0)
    start = samples_as_atoms(rng, X, y, 24)
    tangent = trained(start, X, y, rho=rho, n_iter=20)
    published = trained(start, X, y, rho=rho, n_iter=20, step="published")
    for ours, theirs in zip(tangent.objective_, published.objective_, strict=True):
        assert ours[0] == theirs[0]
        assert (np.diff(ours) <= 0).all()
        assert ours[-1] < ours[0] - 0.01
        assert (np.diff(theirs) > 0).any()
        assert ours[-1] < theirs[-1]


@pytest.mark.parametrize("n_iter", [1, 2, 9])
def test_last_objective_is_that_of_the_dictionaries(rng, n_iter):
    """Every step is checked."""
    X, y = classes(rng, (300, 100, 250))
    model = trained(samples_as_atoms(rng, X, y), X, y, rho=0.8, n_iter=n_iter)
    weights = _sample_weights(np.bincount(y), 0.8)
    for i, D in enumerate(model.dictionaries_):
        expected = weights[i][y] @ errors_of(D, X)
        assert model.objective_[i][-1] == pytest.approx(expected, rel=1e-9)


def sums_with(objective, D):
    k = len(D)
    uses = np.ones(k, np.int64)
    F = np.eye(k)
    return SufficientStatistics(0 * D, F, uses, uses, objective, np.zeros(0), D[:0], F_own_class=F)


def test_increasing_step_is_rejected_and_the_next_one_shorter(rng):
    D = unit_rows(rng.standard_normal((4, 5)))
    calls = []

    def update(D, sums, *, replace):
        calls.append((D, replace, sums.E[0] @ D[0]))  # E holds the pull alone
        return unit_rows(D + 1.0)

    step = TangentStep(D)
    for objective in (3.0, 2.0, 2.5, 2.2, 1.9):
        step.step(sums_with(objective, D), update, is_last=False)
    assert step.objective == [3.0, 2.0, 2.0, 2.0, 1.9]
    assert [replace for _, replace, _ in calls] == [True, True, False, False, True]
    pulls = [pull for *_, pull in calls]
    assert pulls[:2] == [0, 0] and 0 < pulls[2] < pulls[3] and 0 < pulls[4] < pulls[3]
    starts = [start for start, *_ in calls]
    assert starts[1] is starts[2] is starts[3]
    np.testing.assert_allclose(starts[4], unit_rows(starts[1] + 1))
    step.step(sums_with(2.0, D), update, is_last=True)
    assert len(calls) == 5 and step.objective[-1] == 1.9


def flatness_after(objectives, D, tol):
    step = TangentStep(D)
    for objective in objectives:
        step.step(sums_with(objective, D), lambda D, sums, replace: D, is_last=False)
    return step.has_converged(tol)


def test_class_has_converged_after_two_flat_steps(rng):
    """Rejected steps count too: with greedy codes even the shortest step may increase the
    objective."""
    D = unit_rows(rng.standard_normal((4, 5)))
    assert not flatness_after((3.0, 2.0, 2.5, 2.4, 2.3), D, 1e-4)
    assert not flatness_after((3.0, 2.0, 2.00001), D, 1e-4)
    assert not flatness_after((3.0, 2.0, 2.00001, 2.1), D, 1e-4)
    for last in (2.00001, 1.99999):
        assert flatness_after((3.0, 2.0, 2.00001, last), D, 1e-4)
        assert not flatness_after((3.0, 2.0, 2.00001, last), D, 0.0)


def test_pull_stays_finite(rng):
    D = unit_rows(rng.standard_normal((4, 5))).astype(np.float32)
    step = TangentStep(D)
    for objective in (1.0, *[2.0] * 300):
        step.step(sums_with(objective, D), lambda D, sums, replace: D, is_last=False)
    assert np.isfinite(step.linearized_statistics().E.astype(np.float32)).all()


def test_published_step_accepts_every_step(rng):
    D = unit_rows(rng.standard_normal((4, 5)))
    step = PublishedStep(D)
    for objective in (1.0, 2.0):
        step.step(sums_with(objective, D), lambda D, sums, replace: D + 1, is_last=False)
    assert step.objective == [1.0, 2.0]
    np.testing.assert_allclose(step.atoms, D + 2)


# --- limits and invariances ----------------------------------------------------------------------


def test_both_steps_give_the_same_bits_without_other_classes(rng):
    X, y = classes(rng)
    start = samples_as_atoms(rng, X, y)
    plain, published = (trained(start, X, y, rho=0.0, step=s) for s in ("tangent", "published"))
    np.testing.assert_array_equal(plain.dictionaries_, published.dictionaries_)
    np.testing.assert_array_equal(plain.objective_, published.objective_)


def test_small_weight_gives_the_published_steps(rng):
    X, y = classes(rng, (1200, 900), noise=0.3)
    start = samples_as_atoms(rng, X, y, 8)
    tangent = trained(start, X, y, rho=1e-12, n_iter=5)
    published = trained(start, X, y, rho=0.0, n_iter=5, step="published")
    for ours, theirs in zip(tangent.objective_, published.objective_, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
        assert theirs[-1] < theirs[0]


@pytest.mark.parametrize("step", ["tangent", "published"])
@pytest.mark.parametrize("sizes", [(400, 300), (400, 150, 250)])
def test_doubling_a_class_changes_nothing(rng, sizes, step):
    """ρ has the same meaning for any balance of the classes."""
    X, y = classes(rng, sizes)
    start = samples_as_atoms(rng, X, y, 10)
    once = trained(start, X, y, rho=0.4, step=step, n_iter=4)
    twice = np.r_[np.arange(len(X)), np.flatnonzero(y == 1)]
    again = trained(start, X[twice], y[twice], rho=0.4, step=step, n_iter=4)
    np.testing.assert_allclose(again.objective_, once.objective_, rtol=1e-9)
    np.testing.assert_allclose(again.dictionaries_, once.dictionaries_, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scale_of_the_samples_changes_nothing(rng, dtype):
    X, y = classes(rng)
    X = X.astype(dtype)
    start = samples_as_atoms(rng, X, y)
    once, scaled = (trained(start, c * X, y, rho=0.6) for c in (1, 8))
    np.testing.assert_array_equal(scaled.dictionaries_, once.dictionaries_)
    np.testing.assert_array_equal(scaled.objective_, 64 * np.array(once.objective_))


# --- behaviour -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_bits_for_any_number_of_threads_and_for_blocks(rng, dtype):
    X, y = classes(rng, (1500, 1300))
    order = rng.permutation(len(X))
    X, y = X[order].astype(dtype), y[order]
    options = {"rho": 0.6, "penalty": 0.1, "n_iter": 8, "tol": 0.0, "random_state": 0}
    one, two = (DFDL(15, n_jobs=n, **options).fit(X, y) for n in (1, 2))
    parts = [(X[i : i + 1024], y[i : i + 1024]) for i in range(0, len(X), 1024)]
    blocks = DFDL(15, **options).fit_blocks(parts)
    assert one.dictionaries_.dtype == dtype
    for model in (two, blocks):
        np.testing.assert_array_equal(model.dictionaries_, one.dictionaries_)
        np.testing.assert_array_equal(model.objective_, one.objective_)


def test_warm_start_continues_the_first_training(rng):
    X, y = classes(rng)
    model = DFDL(12, rho=0.6, n_iter=6, tol=0.0, random_state=0, warm_start=True).fit(X, y)
    before = [values[-1] for values in model.objective_]
    model.fit(X, y)
    for values, end in zip(model.objective_, before, strict=True):
        assert values[0] == pytest.approx(end, rel=1e-9)
        assert values[-1] < end


def test_warm_start_on_samples_of_fewer_classes(rng):
    """A missing class has weight zero, and its dictionary is unchanged."""
    X, y = classes(rng, (200, 150, 180))
    model = DFDL(12, rho=0.5, n_iter=4, random_state=0, warm_start=True).fit(X, y)
    before = model.dictionaries_.copy()
    there = y != 1
    model.fit(X[there], y[there])
    weights = _sample_weights(np.bincount(y[there], minlength=3), 0.5)
    assert weights[0, 2] == pytest.approx(-0.5 / 180)
    np.testing.assert_array_equal(np.abs(model.dictionaries_[1]), np.abs(before[1]))
    assert np.isfinite(model.dictionaries_).all()


@pytest.mark.parametrize("rho", [0.3, 1.0])
def test_unused_atoms_become_used_without_increasing_the_objective(rng, rho):
    X, y = classes(rng)
    start = samples_as_atoms(rng, X, y)
    start[:, 6:] = start[:, :6]  # half of the atoms repeat the others
    model = trained(start, X, y, rho=rho, n_iter=15)
    for D, values in zip(model.dictionaries_, model.objective_, strict=True):
        assert (np.diff(values) <= 0).all()
        assert np.abs(np.tril(D @ D.T, -1)).max() < 0.999


def test_unknown_step_is_refused(rng):
    X, y = classes(rng, (20, 20))
    with pytest.raises(ValueError, match=r"step must be one of published, tangent, not 'newton'"):
        DFDL(4, step="newton").fit(X, y)
