"""Sparse coding and atom updates on blocks of samples; the one place with compiled code.

Rows are samples: Y is (n_samples, n_features), a dictionary D is (n_atoms, n_features), codes are
`scipy.sparse.csr_array` (n_samples, n_atoms). The l1 problem is ½‖y − sD‖² + penalty·‖s‖₁ here and
everywhere in histodict (the paper prints it without the ½; its published figures come from the ½).

Every function cuts its samples into blocks of fixed size, so the result is the same, bit for bit,
for any `n_jobs` (number of threads; None: all cores).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse, vstack

from ..execution.local import map_blocks, one_blas_thread
from ..parameters import check_number, check_whole_number

__all__ = [
    "BLOCK_ROWS",
    "class_residuals",
    "encode_lasso",
    "encode_omp",
    "load_backend",
    "row_blocks",
    "update_atoms",
    "warn_unfinished",
]

BLOCK_ROWS = 1024
_SELECTIONS = ("order-recursive", "correlation")


def load_backend(name: str) -> ModuleType:
    """The module that does the arithmetic inside a block: `histodict.kernels.cpu`."""
    if name == "cpu":
        from . import cpu

        return cpu
    raise ValueError(f"backend={name!r} is not available: use 'cpu'")


def row_blocks(n_rows: int) -> Iterator[slice]:
    """Slices of BLOCK_ROWS rows, the last one shorter."""
    for start in range(0, n_rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, n_rows))


def encode_omp(
    D: ArrayLike,
    Y: ArrayLike,
    n_nonzero: int,
    *,
    tol: float = 0.0,
    selection: str = "order-recursive",
    n_jobs: int | None = None,
    backend: str = "cpu",
) -> csr_array:
    """Greedy codes: min ‖y − sD‖² with at most n_nonzero non-zero entries in s.

    Parameters
    ----------
    D : (n_atoms, n_features), atoms of any norm
    Y : (n_samples, n_features)
    n_nonzero : most atoms per sample; fewer where atoms are linearly dependent
    tol : stop a sample once ‖y − sD‖² ≤ tol
    selection : "order-recursive" takes the atom that lowers the residual most after the fit (OLS,
        what SPAMS calls OMP), "correlation" the one most correlated with the residual (classical
        OMP). On coherent atoms the first gives clearly smaller residuals.

    Returns
    -------
    csr_array (n_samples, n_atoms)
    """
    D, Y = _check_pair(D, Y)
    n_nonzero = check_whole_number("n_nonzero", n_nonzero, 1)
    tol = check_number("tol", tol)
    if selection not in _SELECTIONS:
        raise ValueError(f"selection must be one of {_SELECTIONS}, not {selection!r}")
    module = load_backend(backend)
    with one_blas_thread():
        coder = module.OMPCoder(D, n_nonzero, tol, selection == "order-recursive")
    blocks = map_blocks(lambda rows: coder.code(Y[rows])[0], row_blocks(len(Y)), n_jobs)
    return _stack(blocks, Y, D)


def encode_lasso(
    D: ArrayLike,
    Y: ArrayLike,
    penalty: float,
    *,
    tol: float = 1e-4,
    n_jobs: int | None = None,
    backend: str = "cpu",
) -> csr_array:
    """Exact l1 codes: the minimiser of ½‖y − sD‖² + penalty·‖s‖₁ for every sample.

    Parameters
    ----------
    D : (n_atoms, n_features), atoms of any norm
    Y : (n_samples, n_features)
    penalty : λ > 0
    tol : largest duality gap of a sample, relative to its objective. Single precision resolves
        it to about 1e-6·‖y‖/penalty: for less, give arrays in double precision.

    Returns
    -------
    csr_array (n_samples, n_atoms)
    """
    D, Y = _check_pair(D, Y)
    penalty = check_number("penalty", penalty, above=True)
    tol = check_number("tol", tol)
    module = load_backend(backend)
    with one_blas_thread():
        coder = module.LassoCoder(D, penalty, tol)
    n_unfinished = 0

    def codes() -> Iterator[csr_array]:
        nonlocal n_unfinished
        for S, missed in map_blocks(lambda rows: coder.code(Y[rows]), row_blocks(len(Y)), n_jobs):
            n_unfinished += missed
            yield S

    S = _stack(codes(), Y, D)
    warn_unfinished(n_unfinished, len(Y), tol)
    return S


def warn_unfinished(n_unfinished: int, n_samples: int, tol: float) -> None:
    """Say so if samples are coded less exactly than asked for."""
    if n_unfinished:
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(
            f"{n_unfinished} of {n_samples} samples did not reach a relative duality gap of "
            f"tol={tol:g}; try double precision",
            ConvergenceWarning,
            stacklevel=3,
        )


def update_atoms(
    D: ArrayLike,
    E: ArrayLike,
    F: ArrayLike,
    *,
    n_sweeps: int = 1,
    tol: float = 0.0,
    backend: str = "cpu",
) -> NDArray:
    """Unit-norm atoms that lower −2·tr(E Dᵀ) + tr(F D Dᵀ), one at a time.

    Parameters
    ----------
    D : (n_atoms, n_features), unit-norm atoms to start from
    E : (n_atoms, n_features), Σ w·sᵀy over the samples
    F : (n_atoms, n_atoms), symmetric, Σ w·sᵀs; it need not be positive semidefinite
    n_sweeps, tol : sweeps over all atoms, at most, and the largest change of an entry at which to
        stop before

    Returns
    -------
    (n_atoms, n_features): the new atoms; D is left alone
    """
    D, E = _check_pair(D, E, names=("D", "E"))
    F = _as_matrix("F", F, D.dtype)
    if E.shape != D.shape:
        raise ValueError(f"E has shape {E.shape}, it must have D's shape {D.shape}")
    if F.shape != (len(D), len(D)):
        raise ValueError(f"F has shape {F.shape}, it must be ({len(D)}, {len(D)})")
    n_sweeps = check_whole_number("n_sweeps", n_sweeps, 1)
    tol = check_number("tol", tol)
    with one_blas_thread():
        return load_backend(backend).update_atoms(D, E, F, n_sweeps, tol)


def class_residuals(
    D: ArrayLike,
    Y: ArrayLike,
    S: csr_array,
    atom_classes: ArrayLike,
    *,
    n_jobs: int | None = None,
    backend: str = "cpu",
) -> NDArray[np.float64]:
    """r_i(y) = ‖y − δ_i(s)D‖: what is left of y after the atoms of class i alone.

    Parameters
    ----------
    D : (n_atoms, n_features)
    Y : (n_samples, n_features)
    S : sparse codes (n_samples, n_atoms)
    atom_classes : (n_atoms,) whole numbers from 0: the class each atom belongs to

    Returns
    -------
    (n_samples, n_classes)
    """
    D, Y = _check_pair(D, Y)
    S = csr_array(S, dtype=Y.dtype)
    if S.shape != (len(Y), len(D)):
        raise ValueError(f"S has shape {S.shape}, it must be ({len(Y)}, {len(D)})")
    S.check_format(full_check=True)
    if not np.isfinite(S.data).all():
        raise ValueError("S contains NaN or infinity")
    classes = np.asarray(atom_classes)
    if classes.shape != (len(D),) or classes.dtype.kind not in "iu" or classes.min() < 0:
        raise ValueError(f"atom_classes must be {len(D)} whole numbers from 0, one per atom of D")
    n_classes = int(classes.max()) + 1
    module = load_backend(backend)
    blocks = map_blocks(
        lambda rows: module.class_residuals(D, Y[rows], S[rows], classes, n_classes),
        row_blocks(len(Y)),
        n_jobs,
    )
    return np.concatenate([np.empty((0, n_classes)), *blocks])


def _stack(blocks: Iterator[csr_array], Y: NDArray, D: NDArray) -> csr_array:
    parts = list(blocks)
    if not parts:
        return csr_array((len(Y), len(D)), dtype=Y.dtype)
    S = vstack(parts, format="csr")
    S.sort_indices()
    return S


def _check_pair(
    D: ArrayLike, Y: ArrayLike, names: tuple[str, str] = ("D", "Y")
) -> tuple[NDArray, NDArray]:
    """Both as C-contiguous arrays of one floating type, with equal numbers of features."""
    single = all(getattr(array, "dtype", None) == np.float32 for array in (D, Y))
    dtype = np.dtype(np.float32 if single else np.float64)
    D, Y = (_as_matrix(name, array, dtype) for name, array in zip(names, (D, Y), strict=True))
    if 0 in D.shape:
        raise ValueError(f"{names[0]} has shape {D.shape}: it needs atoms and features")
    if D.shape[1] != Y.shape[1]:
        raise ValueError(
            f"{names[1]} has {Y.shape[1]} features (columns) but {names[0]} has {D.shape[1]}"
        )
    return D, Y


def _as_matrix(name: str, array: ArrayLike, dtype: np.dtype) -> NDArray:
    if issparse(array):
        raise TypeError(f"{name} must be a dense array; a sparse one was given")
    matrix = np.ascontiguousarray(array, dtype=dtype)
    if matrix.ndim != 2:
        raise ValueError(f"{name} must have two dimensions, it has {matrix.ndim}")
    if not np.isfinite(matrix).all():
        raise ValueError(f"{name} contains NaN or infinity")
    return matrix
