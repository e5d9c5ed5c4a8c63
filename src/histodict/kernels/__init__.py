"""Sparse coding and atom updates on blocks of samples.

All compiled code of the package is in this subpackage. Rows are samples: Y is
(n_samples, n_features), a dictionary D is (n_atoms, n_features), and codes are
`scipy.sparse.csr_array` (n_samples, n_atoms). The l1 problem is ½‖y − sD‖² + penalty·‖s‖₁ here and
everywhere in histodict. The DFDL paper prints it without the ½, but its figures were obtained with
it.

Every function divides its samples into blocks of fixed size, so the result is the same, bit for
bit, for any `n_jobs` (number of threads; None for all cores).

Formulas in this subpackage use y for a sample, d_j for atom j, s for a code, k for the number of
atoms, d for that of features, and n for that of samples in a block. δ_i(s) is s with 0 for all
atoms that do not belong to class i.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, vstack

from ..utils.parallel import map_blocks, single_blas_thread
from ..utils.validation import check_number, check_whole_number, missing_module_message
from .input_checks import as_array, check_channels, check_pair

__all__ = [
    "BLOCK_ROWS",
    "class_residuals",
    "encode_joint",
    "encode_lasso",
    "encode_omp",
    "load_backend",
    "row_blocks",
    "to_numpy",
    "update_atoms",
    "warn_not_converged",
]

BLOCK_ROWS = 1024
_SELECTIONS = ("order-recursive", "correlation")


def load_backend(name: str) -> ModuleType:
    """Return the module that performs the arithmetic on one block of samples.

    Parameters
    ----------
    name : "cpu" or "cuda"

    Returns
    -------
    `kernels.cpu.backend` or `kernels.cuda.backend`

    Raises
    ------
    ImportError
        If PyTorch is not installed, for "cuda".
    ValueError
        If there is no such backend, or no CUDA device.
    """
    if name == "cpu":
        from .cpu import backend as cpu

        return cpu
    if name == "cuda":
        try:
            from .cuda import backend as cuda
        except ModuleNotFoundError as error:
            module = error.name or str(error)
            raise ImportError(missing_module_message(module, "torch", "backend='cuda'")) from error
        cuda.find_device()
        return cuda
    raise ValueError(f"backend must be 'cpu' or 'cuda', not {name!r}")


def to_numpy(array: Any) -> NDArray[Any]:
    """Return an array of any backend as a NumPy array.

    Parameters
    ----------
    array : NumPy array or torch tensor

    Returns
    -------
    ndarray
    """
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def row_blocks(n_rows: int, block_rows: int = BLOCK_ROWS) -> Iterator[slice]:
    """Yield the slice of rows of each block; the last block may be shorter.

    Parameters
    ----------
    n_rows : number of rows
    block_rows : number of rows of a block

    Yields
    ------
    slice
    """
    for start in range(0, n_rows, block_rows):
        yield slice(start, min(start + block_rows, n_rows))


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
    """Compute greedy codes, with at most n_nonzero non-zero entries for every sample.

    The code s of a sample y approximately minimises ‖y − sD‖².

    Parameters
    ----------
    D : (n_atoms, n_features), atoms of any norm
    Y : (n_samples, n_features)
    n_nonzero : maximum number of atoms per sample; fewer if atoms are linearly dependent
    tol : a sample is finished when ‖y − sD‖² ≤ tol
    selection : "order-recursive" selects the atom that lowers the residual most after the fit (OLS,
        called OMP in SPAMS); "correlation" selects the atom most correlated with the residual
        (classical OMP). For coherent atoms, "order-recursive" gives clearly smaller residuals
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"

    Returns
    -------
    csr_array (n_samples, n_atoms)
    """
    D, Y = check_pair(D, Y)
    stop = _check_pursuit(n_nonzero, tol, selection)
    module = load_backend(backend)
    with single_blas_thread():
        coder = module.OMPCoder(D, *stop)
    slices = row_blocks(len(Y), module.BLOCK_ROWS)
    blocks = map_blocks(lambda rows: coder.code(Y[rows])[0], slices, module.count_threads(n_jobs))
    return _stack(blocks, Y, D)


def encode_joint(
    D: ArrayLike,
    Y: ArrayLike,
    n_nonzero: int,
    *,
    tol: float = 0.0,
    selection: str = "order-recursive",
    n_jobs: int | None = None,
    backend: str = "cpu",
) -> list[csr_array]:
    """Compute greedy codes that use the same atoms in all channels of a sample.

    min Σ_c ‖y_c − s_c D_c‖²  over channels c, with at most n_nonzero atoms for which any s_c ≠ 0

    Parameters
    ----------
    D : (n_channels, n_atoms, n_features), atoms of any norm
    Y : (n_channels, n_samples, n_features)
    n_nonzero : maximum number of atoms per sample; fewer if atoms are linearly dependent
    tol : a sample is finished when Σ_c ‖y_c − s_c D_c‖² ≤ tol
    selection : "order-recursive" selects the atom that lowers Σ_c ‖y_c − s_c D_c‖² most after the
        fit; "correlation" selects the atom with the largest sum over the channels of squared
        correlations with the residuals (classical SOMP)
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"

    Returns
    -------
    list of csr_array (n_samples, n_atoms), one per channel. All have the same sparsity pattern; a
    stored zero marks an atom that depends on the others in that channel only.
    """
    D, Y = check_channels(D, Y)
    stop = _check_pursuit(n_nonzero, tol, selection)
    module = load_backend(backend)
    with single_blas_thread():
        coder = module.JointCoder(D, *stop)
    slices = row_blocks(Y.shape[1], module.BLOCK_ROWS)
    blocks = map_blocks(
        lambda rows: coder.code(Y[:, rows])[0], slices, module.count_threads(n_jobs)
    )
    channels = list(zip(*blocks, strict=True)) or [()] * len(Y)
    return [_stack(codes, Y[0], D[0]) for codes in channels]


def encode_lasso(
    D: ArrayLike,
    Y: ArrayLike,
    penalty: float,
    *,
    tol: float = 1e-4,
    n_jobs: int | None = None,
    backend: str = "cpu",
) -> csr_array:
    """Compute exact l1 codes: the minimiser of ½‖y − sD‖² + penalty·‖s‖₁ for every sample.

    Warns with a ConvergenceWarning if samples miss the tolerance.

    Parameters
    ----------
    D : (n_atoms, n_features), atoms of any norm
    Y : (n_samples, n_features)
    penalty : l1 penalty, greater than 0
    tol : maximum duality gap of a sample, relative to its objective. Single precision resolves it
        to about 1e-6·‖y‖/penalty: for a smaller gap, pass arrays in double precision
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"

    Returns
    -------
    csr_array (n_samples, n_atoms)
    """
    D, Y = check_pair(D, Y)
    penalty = check_number("penalty", penalty, exclusive=True)
    tol = check_number("tol", tol)
    module = load_backend(backend)
    with single_blas_thread():
        coder = module.LassoCoder(D, penalty, tol)
    n_unfinished = 0

    def codes() -> Iterator[csr_array]:
        nonlocal n_unfinished
        slices = row_blocks(len(Y), module.BLOCK_ROWS)
        for S, n_missed in map_blocks(
            lambda rows: coder.code(Y[rows]), slices, module.count_threads(n_jobs)
        ):
            n_unfinished += n_missed
            yield S

    S = _stack(codes(), Y, D)
    warn_not_converged(n_unfinished, len(Y), tol)
    return S


def warn_not_converged(n_unfinished: int, n_samples: int, tol: float) -> None:
    """Issue a ConvergenceWarning if samples did not reach the tolerance.

    Parameters
    ----------
    n_unfinished : number of samples that did not reach the tolerance
    n_samples : number of all samples
    tol : tolerance, for the message
    """
    if n_unfinished:
        from sklearn.exceptions import ConvergenceWarning

        warnings.warn(
            f"{n_unfinished} of {n_samples} samples did not reach a relative duality gap of "
            f"tol={tol:g}; use double precision",
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
    """Minimise −2·tr(E Dᵀ) + tr(F D Dᵀ) over unit-norm atoms, one atom at a time.

    Parameters
    ----------
    D : (n_atoms, n_features), initial atoms of unit norm
    E : (n_atoms, n_features), Σ w·sᵀy over samples y with codes s and weights w
    F : (n_atoms, n_atoms), symmetric, Σ w·sᵀs; not necessarily positive semidefinite
    n_sweeps : maximum number of sweeps over all atoms
    tol : stop when no entry changes by more than this in a sweep
    backend : "cpu" or "cuda"

    Returns
    -------
    (n_atoms, n_features), new atoms; D is not modified
    """
    D, E = check_pair(D, E, names=("D", "E"))
    F = as_array("F", F, D.dtype)
    if E.shape != D.shape:
        raise ValueError(f"E must have the shape of D, {D.shape}, not {E.shape}")
    if F.shape != (len(D), len(D)):
        raise ValueError(f"F must have shape ({len(D)}, {len(D)}), not {F.shape}")
    n_sweeps = check_whole_number("n_sweeps", n_sweeps, 1)
    tol = check_number("tol", tol)
    with single_blas_thread():
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
    """Compute the norm of each sample's residual with the atoms of each class only.

    For a sample y with code s and class i, it is ‖y − δ_i(s)D‖, where δ_i(s) is s with 0 for the
    atoms of other classes.

    Parameters
    ----------
    D : (n_atoms, n_features)
    Y : (n_samples, n_features)
    S : (n_samples, n_atoms), sparse codes
    atom_classes : (n_atoms,), class index of each atom, from 0
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"

    Returns
    -------
    (n_samples, n_classes)
    """
    D, Y = check_pair(D, Y)
    S = csr_array(S, dtype=Y.dtype)
    if S.shape != (len(Y), len(D)):
        raise ValueError(f"S must have shape ({len(Y)}, {len(D)}), not {S.shape}")
    S.check_format(full_check=True)
    if not np.isfinite(S.data).all():
        raise ValueError("S contains NaN or infinity")
    classes = np.asarray(atom_classes)
    if classes.shape != (len(D),) or classes.dtype.kind not in "iu" or classes.min() < 0:
        raise ValueError(
            f"atom_classes must contain {len(D)} non-negative integers, one per atom of D"
        )
    n_classes = int(classes.max()) + 1
    module = load_backend(backend)
    blocks = map_blocks(
        lambda rows: module.class_residuals(D, Y[rows], S[rows], classes, n_classes),
        row_blocks(len(Y), module.BLOCK_ROWS),
        module.count_threads(n_jobs),
    )
    return np.concatenate([np.empty((0, n_classes)), *blocks])


def _check_pursuit(n_nonzero: int, tol: float, selection: str) -> tuple[int, float, bool]:
    """Check the parameters; return (n_nonzero, tol, whether the pursuit is order-recursive)."""
    if selection not in _SELECTIONS:
        raise ValueError(f"selection must be one of {_SELECTIONS}, not {selection!r}")
    n_nonzero = check_whole_number("n_nonzero", n_nonzero, 1)
    return n_nonzero, check_number("tol", tol), selection == "order-recursive"


def _stack(blocks: Iterable[csr_array], Y: NDArray, D: NDArray) -> csr_array:
    """Concatenate the codes of all blocks; without blocks, return codes with 0 rows."""
    codes = list(blocks)
    if not codes:
        return csr_array((len(Y), len(D)), dtype=Y.dtype)
    S = vstack(codes, format="csr")
    S.sort_indices()
    return S
