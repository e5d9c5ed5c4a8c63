"""Tests of the timed cases of the kernel benchmarks."""

from __future__ import annotations

import numpy as np
import pytest

from tests.optional_modules import import_lazily

peers = import_lazily("benchmarks.peers", "the benchmarks are not here")
problems = import_lazily("benchmarks.problem", "the benchmarks are not here")


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    Y = rng.normal(size=(120, 24)).astype(np.float32)
    D = rng.normal(size=(2, 10, 24)).astype(np.float32)
    D /= np.linalg.norm(D, axis=2, keepdims=True)
    return problems.Problem(Y, np.arange(120) % 2, D, n_nonzero=3)


def test_every_case_of_histodict_runs(problem):
    cases = peers.histodict_cases(problem)
    shapes = {name: case().shape for name, case in cases.items()}
    assert shapes == {
        "omp": (120, 10),
        "omp, correlation": (120, 10),
        "lasso": (120, 20),
        "omp product": (120, 10),
        "lasso product": (120, 20),
        "dfdl": (10, 24),
        "dfdl update": (10, 24),
    }


def test_timed_iteration_is_that_of_a_training(problem):
    """A first iteration of DFDL from the same atoms gives the same new ones."""
    from histodict import DFDL

    model = DFDL(10, step="published", n_nonzero=3, n_iter=1, warm_start=True, n_jobs=1)
    model.fit(problem.Y, problem.labels)
    model.dictionaries_ = problem.dictionaries.copy()
    model.fit(problem.Y, problem.labels)
    new = peers.histodict_cases(problem)["dfdl"]()
    cosines = np.abs(model.dictionaries_[0] @ new.T)
    np.testing.assert_allclose(cosines.max(axis=1), 1, atol=1e-5)
