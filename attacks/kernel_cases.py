"""Fuzz cases of each kernel: how to create, solve and check a problem."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.sparse import csr_array

from tests.kernels import reference

from . import kernel_checks as checks
from .kernel_problems import ROWS, Problem, Settings, make_problem

_FEW = 3  # rows compared with the slow reference


@dataclass(frozen=True)
class Kernel:
    """Functions that create a problem, solve it and check the result and the warnings.

    wrong : settings that may make the input invalid; empty for kernels that do not validate
    """

    make: Callable[[Settings], Any]
    solve: Callable[[Any, Settings], Any]
    check: Callable[[Any, Settings, Any, list[str]], None]
    wrong: tuple[str, ...] = ("hole", "shape")


def _jobs(settings: Settings) -> tuple[int, ...]:
    return (1, 2) if settings.blocks else (1,)


def _selection(settings: Settings) -> str:
    return "correlation" if settings.correlation else "order-recursive"


# --- l1 -----------------------------------------------------------------------------------------


def _solve_lasso(problem: Problem, settings: Settings) -> list[csr_array]:
    from histodict.kernels import encode_lasso

    return [
        encode_lasso(problem.D, problem.Y, settings.penalty, tol=settings.tol, n_jobs=n_jobs)
        for n_jobs in _jobs(settings)
    ]


def _check_lasso(problem: Problem, settings: Settings, result: Any, warned: list[str]) -> None:
    D, Y, S = problem.D, problem.Y, result[0]
    checks.check_codes(S, (len(Y), len(D)), D.dtype)
    checks.check_same(result)
    checks.require(all("ConvergenceWarning" in text for text in warned), f"it warned of {warned}")
    if not warned:
        checks.check_lasso(D, Y, S, settings.penalty, settings.tol)


# --- pursuit ------------------------------------------------------------------------------------


def _solve_omp(problem: Problem, settings: Settings) -> list[csr_array]:
    from histodict.kernels import encode_omp

    calls = [(settings.n_nonzero + 1, 1), *((settings.n_nonzero, jobs) for jobs in _jobs(settings))]
    return [
        encode_omp(problem.D, problem.Y, most, n_jobs=n_jobs, selection=_selection(settings))
        for most, n_jobs in calls
    ]


def _check_omp(problem: Problem, settings: Settings, result: Any, warned: list[str]) -> None:
    D, Y, (more, *same) = problem.D, problem.Y, result
    checks.require(not warned, f"it warned of {warned}")
    checks.check_same(same)
    for S, most in ((same[0], settings.n_nonzero), (more, settings.n_nonzero + 1)):
        checks.check_codes(S, (len(Y), len(D)), D.dtype, min(most, *D.shape))
        checks.check_pursuit([D], [Y], [S])
    checks.check_nested(same[0], more)
    if settings.is_generic:
        how = {"n_nonzero": settings.n_nonzero, "selection": _selection(settings)}
        plain = reference.encode_omp(D, Y[:_FEW], **how)
        checks.check_against(plain[None], [D], [same[0]], [Y])


def _solve_joint(problem: Problem, settings: Settings) -> list[list[csr_array]]:
    from histodict.kernels import encode_joint

    calls = [(settings.n_nonzero + 1, 1), *((settings.n_nonzero, jobs) for jobs in _jobs(settings))]
    return [
        encode_joint(problem.D, problem.Y, most, n_jobs=n_jobs, selection=_selection(settings))
        for most, n_jobs in calls
    ]


def _check_joint(problem: Problem, settings: Settings, result: Any, warned: list[str]) -> None:
    D, Y, (more, *same) = problem.D, problem.Y, result
    checks.require(not warned, f"it warned of {warned}")
    for channel, S_c in enumerate(same[0]):
        checks.check_same([S[channel] for S in same])
        checks.check_codes(S_c, (Y.shape[1], D.shape[1]), D.dtype, settings.n_nonzero)
        checks.require(
            np.array_equal(S_c.indices, same[0][0].indices), "channels of other supports"
        )
    checks.check_pursuit(D, Y, same[0])
    checks.check_nested(same[0][0], more[0])
    if settings.is_generic:
        how = {"n_nonzero": settings.n_nonzero, "selection": _selection(settings)}
        plain = reference.encode_joint(D, Y[:, :_FEW], **how)
        checks.check_against(plain, D, same[0], Y)


# --- residuals and sums -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Coded:
    """Samples with random codes, classes of atoms and sample weights."""

    D: Any
    Y: Any
    S: csr_array
    classes: Any
    weights: Any


def _make_coded(settings: Settings) -> _Coded:
    problem = make_problem(settings)
    rng = np.random.default_rng(settings.seed)
    n_rows = len(problem.Y) if isinstance(problem.Y, np.ndarray) else ROWS
    S = _codes(settings, rng, n_rows, len(problem.D))
    classes = rng.integers(settings.classes, size=len(problem.D))
    return _Coded(problem.D, problem.Y, S, classes, rng.standard_normal(n_rows))


def _codes(settings: Settings, rng: Generator, n_rows: int, n_atoms: int) -> csr_array:
    """Return random codes, or codes that no pursuit returns."""
    if settings.codes == "size":
        return csr_array((n_rows + 1, n_atoms), dtype=settings.dtype)
    dense = rng.standard_normal((n_rows, n_atoms)) * (rng.random((n_rows, n_atoms)) < 0.3)
    dense[0] += 1
    S = csr_array(dense.astype(settings.dtype))
    place = rng.integers(max(S.nnz, 1))
    if settings.codes == "beyond":
        S.indices[place] = n_atoms + rng.integers(1000)
    elif settings.codes == "before":
        S.indices[place] = -1 - rng.integers(1000)
    elif settings.codes == "order":
        S.indptr[rng.integers(1, len(S.indptr))] = S.nnz + 1 + rng.integers(1000)
    elif settings.codes == "nan":
        S.data[place] = np.nan
    return S


def _solve_residuals(problem: _Coded, settings: Settings) -> list[Any]:
    from histodict.kernels import class_residuals

    specified = problem.D, problem.Y, problem.S, problem.classes
    return [class_residuals(*specified, n_jobs=n_jobs) for n_jobs in _jobs(settings)]


def _check_residuals(problem: _Coded, settings: Settings, result: Any, warned: list[str]) -> None:
    checks.require(not warned, f"it warned of {warned}")
    checks.require(np.array_equal(result[0], result[-1]), "threads change the result")
    checks.check_residuals(problem.D, problem.Y, problem.S, problem.classes, result[0])


def _solve_sums(problem: _Coded, settings: Settings) -> tuple[Any, ...]:
    from histodict.kernels.cpu import backend as cpu

    E, F = cpu.weighted_products(problem.Y, problem.S, problem.weights)
    return E, F, cpu.code_products(problem.S)


def _check_sums(problem: _Coded, settings: Settings, result: Any, warned: list[str]) -> None:
    E, F, products = result
    Y, S = problem.Y, problem.S
    checks.check_sums(Y, S, problem.weights, E)
    checks.check_sums(S.toarray(), S, problem.weights, F)
    checks.check_sums(S.toarray(), S, np.ones(len(Y)), products)


# --- atoms --------------------------------------------------------------------------------------


def _make_sums(settings: Settings) -> list[tuple[Any, Any, Any]]:
    """Return D, E and F of a few dictionaries; in total as many atoms as other cases have rows."""
    rng = np.random.default_rng(settings.seed)
    n_atoms = settings.atoms + settings.repeated + settings.near + settings.zero
    sums = []
    for repeat in range(max(1, ROWS // n_atoms)):
        problem = make_problem(replace(settings, seed=settings.seed + repeat, blocks=False))
        D, E = problem.D, problem.Y
        if settings.is_tame and rng.random() < 0.5:
            norms = np.linalg.norm(D.astype(float), axis=1, keepdims=True)
            D = (D / np.where(norms > 0, norms, 1)).astype(D.dtype)
        if isinstance(E, np.ndarray) and not settings.is_wrong:
            E = E[rng.integers(len(E), size=len(D))]
        S = rng.standard_normal((3, len(D))) * rng.choice([1, 1e-3, 1e6])
        F = (S.T * rng.choice([-1, 1], 3)) @ S
        sums.append((D, E, ((F + F.T) / 2).astype(settings.dtype)))
    return sums


def _solve_atoms(problem: Any, settings: Settings) -> list[Any]:
    from histodict.kernels import update_atoms

    return [update_atoms(*sums, n_sweeps=1 + settings.seed % 3) for sums in problem]


def _check_atoms(problem: Any, settings: Settings, result: Any, warned: list[str]) -> None:
    for sums, new in zip(problem, result, strict=True):
        checks.check_atoms(*sums, new)


KERNELS = {
    "lasso": Kernel(make_problem, _solve_lasso, _check_lasso),
    "omp": Kernel(make_problem, _solve_omp, _check_omp),
    "joint": Kernel(lambda s: make_problem(s, with_channels=True), _solve_joint, _check_joint),
    "residuals": Kernel(
        _make_coded, _solve_residuals, _check_residuals, ("hole", "shape", "codes")
    ),
    "sums": Kernel(_make_coded, _solve_sums, _check_sums, wrong=()),
    "atoms": Kernel(_make_sums, _solve_atoms, _check_atoms),
}
