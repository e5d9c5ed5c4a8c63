"""Implementations that are compared: for each, a function from a problem to callable cases.

A case takes no arguments and returns codes with one sample per row, dense or sparse. The layout and
precision of a library are converted beforehand, so that the conversion is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np

from histodict.utils.parallel import available_cores

from .problem import Problem

Case = Callable[[], Any]
Cases = dict[str, Case]

# scikit-learn is too slow for all samples; times are scaled up linearly.
_SUBSET = 2_000
_SMALL_SUBSET = 500
# Samples per call of the batched pursuit, whose workspace is n_samples · L · n_atoms.
_TORCH_BATCH = 5_000


def histodict_cases(problem: Problem, n_jobs: int | None = None) -> Cases:
    from histodict.kernels import encode_lasso, encode_omp

    Y, D, both = problem.Y, problem.D, problem.all_atoms
    return {
        "omp": lambda: encode_omp(D, Y, problem.n_nonzero, n_jobs=n_jobs),
        "omp, correlation": lambda: encode_omp(
            D, Y, problem.n_nonzero, selection="correlation", n_jobs=n_jobs
        ),
        "lasso": lambda: encode_lasso(both, Y, problem.penalty, n_jobs=n_jobs),
        "omp product": lambda: Y @ D.T,
        "lasso product": lambda: Y @ both.T,
        **_dfdl_cases(problem, n_jobs),
    }


def _dfdl_cases(problem: Problem, n_jobs: int | None) -> Cases:
    """One iteration of one class, and its atom update alone.

    They call two private functions of DFDL, because no public function runs a single iteration of
    one class.
    """
    from histodict.methods.class_dictionaries import group_blocks, open_arrays
    from histodict.methods.dfdl import DFDL, ClassCoder, _sample_weights, reduce_statistics
    from histodict.utils.parallel import ThreadExecutor

    model = DFDL(len(problem.D), step="published", n_jobs=n_jobs)
    units = group_blocks(open_arrays(problem.Y, problem.labels), len(problem.labels))
    weights = _sample_weights(np.bincount(problem.labels, minlength=2), model.rho)
    coding = ClassCoder(model.backend, {0: (problem.D, problem.n_nonzero)}, weights)

    def sums() -> Any:
        return reduce_statistics(ThreadExecutor(n_jobs).map(coding, units()))[0]

    sums_once = cache(sums)
    return {
        "dfdl": lambda: model._update(problem.D, sums(), replace=True),
        "dfdl update": lambda: model._update(problem.D, sums_once(), replace=True),
    }


def spams_cases(problem: Problem, cholesky: bool) -> Cases:
    import spams

    X = np.asfortranarray(problem.Y.T)
    D, both = np.asfortranarray(problem.D.T), np.asfortranarray(problem.all_atoms.T)
    n_threads = available_cores()

    def lasso() -> Any:
        options = {"lambda1": problem.penalty, "mode": 2, "cholesky": cholesky}
        return spams.lasso(X, both, numThreads=n_threads, **options).T

    return {
        "omp": lambda: spams.omp(X, D, L=problem.n_nonzero, eps=0.0, numThreads=n_threads).T,
        "lasso": lasso,
    }


def sklearn_cases(problem: Problem, lasso: str) -> Cases:
    """`sparse_encode`, whose "omp" is `orthogonal_mp_gram` on every core.

    The first call of a case runs in this process, so that its warnings can be counted; later ones
    use processes that are started here, so that their start is not timed.
    """
    from sklearn.decomposition import sparse_encode

    cores = available_cores()
    sparse_encode(problem.Y[:cores], problem.D, algorithm="omp", n_nonzero_coefs=1, n_jobs=cores)
    n_jobs: dict[str, int] = {}

    def encode(D: Any, algorithm: str, **options: Any) -> Any:
        jobs = n_jobs.get(algorithm, 1)
        n_jobs[algorithm] = cores
        return sparse_encode(problem.Y, D, algorithm=algorithm, n_jobs=jobs, **options)

    return {
        "omp": lambda: encode(problem.D, "omp", n_nonzero_coefs=problem.n_nonzero),
        "lasso": lambda: encode(problem.all_atoms, lasso, alpha=problem.penalty),
    }


def omp_gpu_cases(problem: Problem, algorithm: str, dtype: type[np.floating]) -> Cases:
    import torch
    from orthogonal_matching_pursuit_gpu import run_omp

    Y = torch.from_numpy(problem.Y.astype(dtype))
    D = torch.from_numpy(np.ascontiguousarray(problem.D.T, dtype))
    pursue = partial(
        run_omp,
        n_nonzero_coefs=problem.n_nonzero,
        normalize=False,
        fit_intercept=False,
        alg=algorithm,
    )
    return {"omp": lambda: torch.cat([pursue(D, y) for y in Y.split(_TORCH_BATCH)]).numpy()}


@dataclass(frozen=True)
class Peer:
    """How to start a library with its fastest settings, and its title."""

    title: str
    distribution: str
    cases: Callable[[Problem], Cases]
    covers: tuple[str, ...]
    rows: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


OURS = Peer("histodict", "histodict", histodict_cases, ("omp", "lasso"))
# Its threads and those of OpenBLAS would oversubscribe the cores and be six times slower.
_SPAMS_BEST = {"OPENBLAS_NUM_THREADS": "1"}
SPAMS = (
    Peer(
        "SPAMS",
        "spams-bin",
        partial(spams_cases, cholesky=False),
        ("omp", "lasso"),
        environment=_SPAMS_BEST,
        note="best threading: one per core, one BLAS thread each; lasso with default options",
    ),
    Peer(
        "SPAMS, cholesky",
        "spams-bin",
        partial(spams_cases, cholesky=True),
        ("lasso",),
        environment=_SPAMS_BEST,
        note="the same with cholesky=True, which is more accurate on coherent atoms",
    ),
)
OTHERS = (
    Peer(
        "scikit-learn",
        "scikit-learn",
        partial(sklearn_cases, lasso="lasso_lars"),
        ("omp", "lasso"),
        rows=_SUBSET,
        environment={"PYTHONWARNINGS": "ignore"},
        note="sparse_encode, a process per core: orthogonal_mp_gram, lasso_lars",
    ),
    Peer(
        "scikit-learn, cd",
        "scikit-learn",
        partial(sklearn_cases, lasso="lasso_cd"),
        ("lasso",),
        rows=_SMALL_SUBSET,
        environment={"PYTHONWARNINGS": "ignore"},
        note="sparse_encode, a process per core: lasso_cd",
    ),
    Peer(
        "omp-gpu, v0_blas",
        "orthogonal-matching-pursuit-gpu",
        partial(omp_gpu_cases, algorithm="v0_blas", dtype=np.float64),
        ("omp",),
        note="on the CPU, double precision: its fastest there; correlation rule",
    ),
    Peer(
        "omp-gpu, v0",
        "orthogonal-matching-pursuit-gpu",
        partial(omp_gpu_cases, algorithm="v0", dtype=np.float32),
        ("omp",),
        note="on the CPU, single precision: its default; correlation rule",
    ),
)
BY_TITLE = {peer.title: peer for peer in (OURS, *SPAMS, *OTHERS)}
