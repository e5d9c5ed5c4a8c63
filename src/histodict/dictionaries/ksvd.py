"""K-SVD: greedy coding of all samples alternates with joint updates of atoms and codes.

    min_{D, S}  ‖Y − SD‖²   with unit-norm atoms and ‖s‖₀ ≤ L for every sample

An atom d and its coefficients g in the samples that use it are fitted together to the residual of
these samples without the atom, R = Y − SD + g dᵀ. The exact fit is the leading singular pair of R;
the approximate fit is one step of the power method, d ∝ Rᵀg and then g = Rd. Neither raises the
objective, but the greedy coding in between may.

The power step needs no residual matrix. With f = Sᵀg over the samples that use the atom,
Rᵀg = Yᵀg − Dᵀf + f_j d_j and Rd = Yd − S(Dd) + g⟨d_j, d⟩.

References: Aharon, Elad, Bruckstein, "K-SVD: an algorithm for designing overcomplete dictionaries
for sparse representation", IEEE Transactions on Signal Processing, 2006; Rubinstein, Zibulevsky,
Elad, "Efficient implementation of the K-SVD algorithm using batch orthogonal matching pursuit",
Technion, 2008 (the power step).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import csr_array, vstack

from ..kernels import load_backend, row_blocks
from ..utils.parallel import map_blocks, single_blas_thread
from .atoms import initial_atoms, replace_unused_atoms

# Maximum number of badly coded samples that may replace unused atoms after an iteration.
_N_REPLACEMENT_CANDIDATES = 256


@dataclass(frozen=True)
class KSVDDictionary:
    """Dictionary learned by K-SVD.

    Attributes
    ----------
    atoms : (n_atoms, n_features)
    codes : (n_samples, n_atoms), codes of the samples after the last update of the atoms
    objective : (n_iter,), mean of ‖y − sD‖² after each coding, before the update of the atoms
    """

    atoms: NDArray[Any]
    codes: csr_array
    objective: NDArray[np.float64]


def learn_ksvd(
    Y: NDArray[Any],
    n_atoms: int,
    n_nonzero: int,
    rng: np.random.Generator,
    *,
    n_iter: int = 20,
    exact: bool = False,
    initial: NDArray[Any] | None = None,
    groups: tuple[NDArray[Any], NDArray[Any]] | None = None,
    n_jobs: int | None = None,
    backend: str = "cpu",
    callback: Callable[[int, int, float], None] | None = None,
) -> KSVDDictionary:
    """Learn a dictionary for the rows of Y by K-SVD.

    The pursuit is order-recursive. The published K-SVD selects the atom most correlated with the
    residual, which gives clearly larger residuals for coherent atoms.

    Parameters
    ----------
    Y : (n_samples, n_features), C-contiguous float array
    n_atoms : number of atoms
    n_nonzero : maximum number of atoms per sample
    rng : source of randomness for the initial atoms
    n_iter : number of iterations
    exact : whether to fit an atom by the leading singular pair; a power step is many times faster
    initial : (n_atoms, n_features), unit-norm initial atoms; None for random samples
    groups : (group of each atom (n_atoms,), group of each sample (n_samples,)). Unused and
        duplicate atoms are replaced by samples of the same group that have large residuals. None
        for a single group
    n_jobs : number of threads; None for all cores
    backend : "cpu" or "cuda"
    callback : called with (done, total, objective) after every iteration
    """
    with single_blas_thread():
        D = initial_atoms(Y, n_atoms, rng) if initial is None else initial
    norms = np.einsum("ij,ij->i", Y, Y, dtype=np.float64)
    objective = np.empty(n_iter)
    for iteration in range(n_iter):
        S, errors = _code(Y, D, n_nonzero, n_jobs, backend)
        objective[iteration] = errors.mean()
        with single_blas_thread():
            D, S = update_atoms_and_codes(Y, D, S, exact=exact)
            if iteration < n_iter - 1:
                usage_counts = np.bincount(S.indices[S.data != 0], minlength=n_atoms)
                errors[errors <= 1e-6 * norms] = 0  # coded to within rounding
                D = _replace_unused(D, usage_counts, Y, errors, groups)
        if callback:
            callback(iteration + 1, n_iter, float(objective[iteration]))
    return KSVDDictionary(D, S, objective)


def update_atoms_and_codes(
    Y: NDArray[Any], D: NDArray[Any], S: csr_array, *, exact: bool = False
) -> tuple[NDArray[Any], csr_array]:
    """Update each atom together with its coefficients, one atom after another.

    The codes keep the sparsity pattern of S. An atom is not changed if no sample uses it, or if the
    samples that use it are reconstructed without it. Return the new atoms and codes.

    Parameters
    ----------
    Y : (n_samples, n_features)
    D : (n_atoms, n_features)
    S : (n_samples, n_atoms), codes
    exact : whether to fit an atom by the leading singular pair instead of a power step
    """
    D = D.copy()
    codes = _PaddedCodes(S)
    fit = _fit_by_singular_pair if exact else _fit_by_power_step
    for j in range(len(D)):
        rows, positions = codes.find_samples_using(j)
        if len(rows):
            pair = fit(Y[rows], D, j, codes.atoms[rows], codes.values[rows], codes.flat[positions])
            if pair is not None:
                D[j], codes.flat[positions] = pair
    return D, codes.to_csr(S)


class _PaddedCodes:
    """Codes in zero-padded arrays, in which a subset of samples is selected faster than in CSR.

    `atoms` and `values` (n_samples, maximum number of non-zeros) are atom indices and coefficients,
    and `flat` is a one-dimensional view of `values`.
    """

    def __init__(self, S: csr_array) -> None:
        counts = np.diff(S.indptr)
        self._is_filled = np.arange(counts.max(initial=1)) < counts[:, None]
        self.atoms = np.zeros(self._is_filled.shape, np.intp)
        self.values = np.zeros(self._is_filled.shape, S.dtype)
        self.atoms[self._is_filled] = S.indices
        self.values[self._is_filled] = S.data
        self.flat = self.values.reshape(-1)
        nonzero = np.flatnonzero(self.flat)
        atom_of_value = self.atoms.reshape(-1)[nonzero]
        order = np.argsort(atom_of_value, kind="stable")
        self._positions = nonzero[order]
        self._starts = np.searchsorted(atom_of_value[order], np.arange(S.shape[1] + 1))

    def find_samples_using(self, j: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the samples that use atom j, and the positions of its coefficients in `flat`."""
        positions = self._positions[self._starts[j] : self._starts[j + 1]]
        return positions // self.atoms.shape[1], positions

    def to_csr(self, S: csr_array) -> csr_array:
        """Return the codes as a CSR array with the sparsity pattern of S."""
        return csr_array((self.values[self._is_filled], S.indices, S.indptr), shape=S.shape)


# Atom d (n_features,) and its coefficients g (n_rows,); None if the atom is not to be changed.
Pair = tuple[NDArray[Any], NDArray[Any]] | None


def _fit_by_power_step(
    Y: NDArray[Any],
    D: NDArray[Any],
    j: int,
    atoms: NDArray[np.intp],
    values: NDArray[Any],
    g: NDArray[Any],
) -> Pair:
    """Return the vectors d ∝ Rᵀg and g = Rd for atom j; None if Rᵀg is 0 up to rounding.

    Y (n_rows, n_features) are the samples that use atom j, g (n_rows,) its current coefficients,
    `atoms` and `values` the rows of `_PaddedCodes` for these samples, and D all atoms. R is the
    residual of these samples without atom j.
    """
    g_unit = (g / _norm(g)).astype(g.dtype)  # prevents under- and overflow of squares
    f = np.bincount(atoms.reshape(-1), (values * g_unit[:, None]).reshape(-1), len(D))
    f = f.astype(D.dtype)
    residual_product = g_unit @ Y - f @ D
    d = residual_product + f[j] * D[j]
    norm = _norm(d)
    if norm <= 16 * np.finfo(D.dtype).eps * (_norm(residual_product) + abs(f[j])):
        return None
    d = (d / norm).astype(D.dtype)
    cosines = D @ d
    return d, Y @ d - np.einsum("ij,ij->i", values, cosines[atoms]) + g * cosines[j]


def _fit_by_singular_pair(
    Y: NDArray[Any],
    D: NDArray[Any],
    j: int,
    atoms: NDArray[np.intp],
    values: NDArray[Any],
    g: NDArray[Any],
) -> Pair:
    """Return the leading singular pair d and g of the residual R; see `_fit_by_power_step`.

    It is computed from the smaller of RᵀR and RRᵀ. Return None if it is 0 up to rounding.
    """
    n_samples, n_slots = atoms.shape
    indptr = np.arange(0, atoms.size + 1, n_slots)
    S = csr_array((values.reshape(-1), atoms.reshape(-1), indptr), shape=(n_samples, len(D)))
    R = Y - S @ D + np.outer(g, D[j])
    has_more_rows = n_samples > Y.shape[1]
    gram = R.T @ R if has_more_rows else R @ R.T
    last = len(gram) - 1
    leading = eigh(gram, subset_by_index=[last, last])[1][:, 0]
    d = leading if has_more_rows else leading @ R
    norm = _norm(d)
    if norm <= 16 * np.finfo(D.dtype).eps * _norm(Y):
        return None
    d = (d / (norm if d @ D[j] >= 0 else -norm)).astype(D.dtype)
    return d, R @ d


def _norm(x: NDArray[Any]) -> float:
    """Return the norm ‖x‖, computed in double precision to avoid overflow."""
    return float(np.linalg.norm(x.astype(np.float64, copy=False)))


def _code(
    Y: NDArray[Any], D: NDArray[Any], n_nonzero: int, n_jobs: int | None, backend: str
) -> tuple[csr_array, NDArray[np.float64]]:
    """Return the codes of all samples (n_samples, n_atoms) and their squared residuals."""
    with single_blas_thread():
        coder = load_backend(backend).OMPCoder(D, n_nonzero, 0.0, True)
    blocks = map_blocks(lambda rows: coder.code(Y[rows]), row_blocks(len(Y)), n_jobs)
    codes, errors = zip(*blocks, strict=True)
    return vstack(codes, format="csr"), np.concatenate(errors)


def _replace_unused(
    D: NDArray[Any],
    usage_counts: NDArray[np.intp],
    Y: NDArray[Any],
    errors: NDArray[np.float64],
    groups: tuple[NDArray[Any], NDArray[Any]] | None,
) -> NDArray[Any]:
    """Return D with unused and duplicate atoms replaced by samples Y with large residuals.

    `usage_counts` (n_atoms,) are numbers of samples, `errors` (n_samples,) squared residuals, and
    `groups` as in `learn_ksvd`. Samples with error 0 are not used.
    """
    if groups is None:
        groups = np.zeros(len(D)), np.zeros(len(Y))
    atom_groups, sample_groups = groups
    D = D.copy()
    for group in np.unique(atom_groups):
        in_group = atom_groups == group
        rows = np.flatnonzero((sample_groups == group) & (errors > 0))
        worst = rows[np.argsort(-errors[rows], kind="stable")[:_N_REPLACEMENT_CANDIDATES]]
        D[in_group] = replace_unused_atoms(D[in_group], usage_counts[in_group], Y[worst])
    return D
