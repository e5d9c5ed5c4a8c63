"""K-SVD: greedy codes of all samples, then every atom together with its own codes.

    min_{D, S}  ‖Y − SD‖²   with unit-norm atoms and ‖s‖₀ ≤ L for every sample

An atom d with codes g of the samples that use it is fitted to what the other atoms leave of these
samples, R = Y − SD + g dᵀ: exactly, by the leading singular pair of R, or by one step of the power
method, d ∝ Rᵀg and then g = Rd. Neither can raise the objective; the greedy coding in between can.

The step needs no residual matrix. With f = Sᵀg over the samples that use the atom,
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

# Badly coded samples, at most, that may take the places of idle atoms after an iteration.
_CANDIDATES = 256


@dataclass(frozen=True)
class KSVDDictionary:
    """Atoms (n_atoms, n_features), and the samples' codes over them as the last update left them.

    objective : (n_iter,), the mean of ‖y − sD‖² after each coding, before the update of the atoms
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
    """A dictionary for the rows of Y, a C-contiguous float array.

    The codes are order-recursive, where K-SVD as published takes the atom most correlated with the
    residual: on coherent atoms that leaves clearly more of the samples.

    Parameters
    ----------
    exact : the singular pair instead of the power step; many times slower
    initial : (n_atoms, n_features), unit-norm atoms to start from instead of random samples
    groups : of the atoms (n_atoms,) and of the samples (n_samples,); an atom that is unused, or
        repeats another, gives way to a badly coded sample, of its own group if there are groups
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
            D, S = update_pairs(Y, D, S, exact=exact)
            if iteration < n_iter - 1:
                uses = np.bincount(S.indices[S.data != 0], minlength=n_atoms)
                errors[errors <= 1e-6 * norms] = 0  # coded to within rounding
                D = _replace_idle(D, uses, Y, errors, groups)
        if callback:
            callback(iteration + 1, n_iter, float(objective[iteration]))
    return KSVDDictionary(D, S, objective)


def update_pairs(
    Y: NDArray[Any], D: NDArray[Any], S: csr_array, *, exact: bool = False
) -> tuple[NDArray[Any], csr_array]:
    """New atoms and codes, one pair (d_j, g_j) after the other; the places of the codes stay.

    An atom that no sample uses, or whose samples the others code completely, stays as it is.
    """
    D = D.copy()
    codes = _Codes(S)
    fit = _singular_pair if exact else _power_step
    for j in range(len(D)):
        rows, places = codes.samples_using(j)
        if len(rows):
            pair = fit(Y[rows], D, j, codes.atoms[rows], codes.values[rows], codes.flat[places])
            if pair is not None:
                D[j], codes.flat[places] = pair
    return D, codes.to_csr(S)


class _Codes:
    """The codes of a sample side by side: `atoms` and `values` (n_samples, most uses), zero-padded.

    A rectangle makes the codes of any set of samples one cheap slice.
    """

    def __init__(self, S: csr_array) -> None:
        counts = np.diff(S.indptr)
        self._filled = np.arange(counts.max(initial=1)) < counts[:, None]
        self.atoms = np.zeros(self._filled.shape, np.intp)
        self.values = np.zeros(self._filled.shape, S.dtype)
        self.atoms[self._filled] = S.indices
        self.values[self._filled] = S.data
        self.flat = self.values.reshape(-1)
        used = np.flatnonzero(self.flat)
        of_atom = self.atoms.reshape(-1)[used]
        order = np.argsort(of_atom, kind="stable")
        self._positions = used[order]
        self._starts = np.searchsorted(of_atom[order], np.arange(S.shape[1] + 1))

    def samples_using(self, j: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The samples that use atom j, and the places of its values in `flat`."""
        places = self._positions[self._starts[j] : self._starts[j + 1]]
        return places // self.atoms.shape[1], places

    def to_csr(self, S: csr_array) -> csr_array:
        """The values in the pattern of S."""
        return csr_array((self.values[self._filled], S.indices, S.indptr), shape=S.shape)


Pair = tuple[NDArray[Any], NDArray[Any]] | None


def _power_step(
    Y: NDArray[Any],
    D: NDArray[Any],
    j: int,
    atoms: NDArray[np.intp],
    values: NDArray[Any],
    g: NDArray[Any],
) -> Pair:
    """d ∝ Rᵀg, then g = Rd; Y, atoms and values are of the samples that use atom j."""
    g_unit = (g / _norm(g)).astype(g.dtype)  # its square would vanish, or overflow, before it does
    f = np.bincount(atoms.reshape(-1), (values * g_unit[:, None]).reshape(-1), len(D))
    f = f.astype(D.dtype)
    rest = g_unit @ Y - f @ D
    d = rest + f[j] * D[j]
    size = _norm(d)
    if size <= 16 * np.finfo(D.dtype).eps * (_norm(rest) + abs(f[j])):
        return None
    d = (d / size).astype(D.dtype)
    cosines = D @ d
    return d, Y @ d - np.einsum("ij,ij->i", values, cosines[atoms]) + g * cosines[j]


def _singular_pair(
    Y: NDArray[Any],
    D: NDArray[Any],
    j: int,
    atoms: NDArray[np.intp],
    values: NDArray[Any],
    g: NDArray[Any],
) -> Pair:
    """The leading singular pair of R, from the smaller of RᵀR and RRᵀ."""
    n_samples, n_uses = atoms.shape
    starts = np.arange(0, atoms.size + 1, n_uses)
    S = csr_array((values.reshape(-1), atoms.reshape(-1), starts), shape=(n_samples, len(D)))
    R = Y - S @ D + np.outer(g, D[j])
    tall = n_samples > Y.shape[1]
    gram = R.T @ R if tall else R @ R.T
    last = len(gram) - 1
    leading = eigh(gram, subset_by_index=[last, last])[1][:, 0]
    d = leading if tall else leading @ R
    size = _norm(d)
    if size <= 16 * np.finfo(D.dtype).eps * _norm(Y):
        return None
    d = (d / (size if d @ D[j] >= 0 else -size)).astype(D.dtype)
    return d, R @ d


def _norm(x: NDArray[Any]) -> float:
    """In double precision, in which the squares of tiny and huge single numbers exist."""
    return float(np.linalg.norm(x.astype(np.float64, copy=False)))


def _code(
    Y: NDArray[Any], D: NDArray[Any], n_nonzero: int, n_jobs: int | None, backend: str
) -> tuple[csr_array, NDArray[np.float64]]:
    """Codes of all samples and their squared residuals."""
    with single_blas_thread():
        coder = load_backend(backend).OMPCoder(D, n_nonzero, 0.0, True)
    blocks = map_blocks(lambda rows: coder.code(Y[rows]), row_blocks(len(Y)), n_jobs)
    codes, errors = zip(*blocks, strict=True)
    return vstack(codes, format="csr"), np.concatenate(errors)


def _replace_idle(
    D: NDArray[Any],
    uses: NDArray[np.intp],
    Y: NDArray[Any],
    errors: NDArray[np.float64],
    groups: tuple[NDArray[Any], NDArray[Any]] | None,
) -> NDArray[Any]:
    """D with idle atoms replaced by the samples with the largest errors, group by group."""
    if groups is None:
        groups = np.zeros(len(D)), np.zeros(len(Y))
    of_atoms, of_samples = groups
    D = D.copy()
    for group in np.unique(of_atoms):
        own = of_atoms == group
        rows = np.flatnonzero((of_samples == group) & (errors > 0))
        worst = rows[np.argsort(-errors[rows], kind="stable")[:_CANDIDATES]]
        D[own] = replace_unused_atoms(D[own], uses[own], Y[worst])
    return D
