"""CPU backend: sparse coding, statistics and atom updates on one block of samples.

Arrays are C-contiguous, of one float dtype, finite and of matching shapes; this is not checked
here. Overflow of intermediate results is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ...utils.parallel import effective_n_jobs
from ..input_checks import check_range, check_result, check_sums
from ..sufficient_statistics import SufficientStatistics, replace_unused_atoms
from . import atom_update as cpu_atom_update
from . import joint_omp as cpu_joint
from . import lasso as cpu_lasso
from . import omp as cpu_omp
from . import simd

__all__ = [
    "BLOCK_ROWS",
    "CHECKS_NAN",
    "TASK_ROWS",
    "JointCoder",
    "LassoCoder",
    "OMPCoder",
    "cache_blocks",
    "class_residuals",
    "code_products",
    "count_threads",
    "encode_and_accumulate",
    "is_finite",
    "replace_unused_atoms",
    "to_device",
    "update_atoms",
    "weighted_products",
    "zeros",
]

BLOCK_ROWS = 1024
TASK_ROWS = 256  # a mini-batch of 1024 makes four tasks, one for each of up to four threads
CHECKS_NAN = False  # callers check the samples for NaN

OpenBlocks = Callable[[], Iterator[tuple[NDArray, Any]]]


def count_threads(n_jobs: int | None) -> int:
    """Return the number of threads that process blocks; `n_jobs` None uses all cores."""
    return effective_n_jobs(n_jobs)


def cache_blocks(open_blocks: OpenBlocks) -> OpenBlocks:
    """Return the function `open_blocks` unchanged; the GPU backend caches its blocks."""
    return open_blocks


def to_device(X: NDArray, dtype: np.dtype) -> NDArray:
    """Return samples as a C-contiguous array of this dtype; the device is the CPU."""
    return np.ascontiguousarray(X, dtype=dtype)


def is_finite(Y: NDArray) -> bool:
    """Return whether samples contain no NaN and no infinity."""
    return bool(np.isfinite(Y).all())


def zeros(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return an array of zeros of this shape in double precision."""
    return np.zeros(shape)


def _padded_gram(D: NDArray, n_tiles: int) -> NDArray:
    """Return the aligned Gram matrix of the atoms D, with rows padded to n_tiles SIMD vectors."""
    W = simd.width(D.dtype)
    buffer = np.zeros(len(D) * n_tiles * W + W, D.dtype)
    G = simd.aligned(buffer, W).reshape(len(D), n_tiles * W)
    G[:, : len(D)] = D @ D.T
    return G


def _bits_type(dtype: np.dtype) -> type[np.signedinteger[Any]]:
    """Return the signed integer type of the same size as a float dtype."""
    return np.int32 if dtype == np.float32 else np.int64


def _lane_buffer(dtype: np.dtype) -> NDArray:
    """Return scratch memory for the bit patterns of one SIMD vector."""
    return np.empty(simd.width(dtype), _bits_type(dtype))


def _squared_norms(Y: NDArray) -> NDArray[np.float64]:
    norms = np.empty(len(Y))
    cpu_atom_update.squared_norms(Y, norms)
    return norms


def _as_divisors(norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the norms with 0 replaced by 1."""
    return np.where(norms > 0, norms, 1.0)


class _CodeBuffer:
    """Arrays of a CSR matrix with space for `n_nonzero` coefficients per sample."""

    def __init__(self, n_samples: int, n_nonzero: int, dtype: np.dtype) -> None:
        self.indptr = np.zeros(n_samples + 1, np.int64)
        self.indices = np.empty(n_samples * n_nonzero, np.int32)
        self.codes = np.empty(n_samples * n_nonzero, dtype)

    def to_csr(self, n_atoms: int) -> csr_array:
        size = self.indptr[-1]
        arrays = (self.codes[:size].copy(), self.indices[:size].copy(), self.indptr)
        return csr_array(arrays, shape=(len(self.indptr) - 1, n_atoms))


def _scale_back(
    S: csr_array, sample_norms: NDArray[np.float64], atom_norms: NDArray[np.float64]
) -> None:
    """Rescale codes of unit-norm samples and atoms to their original norms, in place."""
    with np.errstate(over="ignore"):
        S.data *= np.repeat(sample_norms, np.diff(S.indptr)) / atom_norms[S.indices]
    check_result("the codes", S.data, S.dtype)


class OMPCoder:
    """Coder by greedy pursuit of at most n_nonzero atoms; see `kernels.cpu.omp`.

    Atoms and samples are scaled to unit norm, so that one rounding threshold suits all. The codes
    are scaled back.
    """

    def __init__(self, D: NDArray, n_nonzero: int, tol: float, order_recursive: bool) -> None:
        dd = _squared_norms(D)
        check_range("D", dd, D.dtype)
        self._norms = np.sqrt(dd)
        self._D = (D / _as_divisors(self._norms)[:, None]).astype(D.dtype)
        self._n_nonzero = min(n_nonzero, *D.shape)
        self._tol = tol
        self._order_recursive = order_recursive
        self._G = _padded_gram(self._D, 2 * -(-len(D) // (2 * simd.width(D.dtype))))

    def code(self, Y: NDArray) -> tuple[csr_array, NDArray[np.float64]]:
        """Return the codes (n, n_atoms) of the samples Y and their squared residuals (n,)."""
        buffer = _CodeBuffer(len(Y), self._n_nonzero, Y.dtype)
        yy = _squared_norms(Y)
        check_range("Y", yy, Y.dtype)
        norms = _as_divisors(np.sqrt(yy))
        B = Y @ self._D.T
        B /= norms[:, None].astype(Y.dtype)
        squared_residuals = (yy > 0).astype(np.float64)
        cpu_omp.pursue(
            B,
            self._G.reshape(-1),
            self._tol / norms**2,
            self._order_recursive,
            simd.width(Y.dtype),
            np.empty(self._G.shape[1], _bits_type(Y.dtype)),
            self._n_nonzero,
            buffer.indptr,
            buffer.indices,
            buffer.codes,
            squared_residuals,
        )
        S = buffer.to_csr(len(self._D))
        _scale_back(S, norms, self._norms)
        return S, squared_residuals * yy

    code_with_errors = code


class JointCoder:
    """Coder by greedy pursuit of one support for all channels; see `kernels.cpu.joint_omp`.

    Atoms are scaled to unit norm in every channel, samples to unit norm over all channels. The
    codes are scaled back.
    """

    def __init__(self, D: NDArray, n_nonzero: int, tol: float, order_recursive: bool) -> None:
        n_channels, n_atoms, n_features = D.shape
        dd = np.stack([_squared_norms(D_c) for D_c in D])
        check_range("D", dd, D.dtype)
        self._norms = _as_divisors(np.sqrt(dd))
        self._D = (D / self._norms[:, :, None]).astype(D.dtype)
        self._n_nonzero = min(n_nonzero, n_atoms, n_channels * n_features)
        self._tol = tol
        self._order_recursive = order_recursive
        n_tiles = -(-n_atoms // simd.width(D.dtype))
        self._G = np.stack([_padded_gram(D_c, n_tiles) for D_c in self._D])

    def code(self, Y: NDArray) -> tuple[list[csr_array], NDArray[np.float64]]:
        """Return the codes (n, n_atoms) of each channel, and squared residuals (n,) over all."""
        Y = np.ascontiguousarray(Y)
        n_channels, n_samples, _ = Y.shape
        yy = np.sum([_squared_norms(Y_c) for Y_c in Y], axis=0)
        check_range("Y", yy, Y.dtype)
        norms = _as_divisors(np.sqrt(yy))
        B = Y @ self._D.transpose(0, 2, 1)
        B /= norms[:, None].astype(Y.dtype)
        buffer = _CodeBuffer(n_samples, self._n_nonzero, Y.dtype)
        codes = np.empty((n_channels, len(buffer.codes)), Y.dtype)
        squared_residuals = (yy > 0).astype(np.float64)
        cpu_joint.pursue(
            B,
            self._G,
            self._tol / norms**2,
            self._order_recursive,
            self._n_nonzero,
            simd.width(Y.dtype),
            buffer.indptr,
            buffer.indices,
            codes,
            squared_residuals,
        )
        S = []
        for channel, atom_norms in enumerate(self._norms):
            buffer.codes = codes[channel]
            S_c = buffer.to_csr(len(atom_norms))
            _scale_back(S_c, norms, atom_norms)
            S.append(S_c)
        return S, squared_residuals * yy


class LassoCoder:
    """Coder by exact l1 minimisation; see `kernels.cpu.lasso`."""

    def __init__(self, D: NDArray, penalty: float, tol: float) -> None:
        dd = _squared_norms(D)
        self._max_norm = float(np.sqrt(dd.max(initial=0)))  # norm of an atom
        check_range("D", dd, D.dtype, max_factor=self._max_norm)
        self._D = D
        self._penalty = penalty
        # Rounding of the products must not raise the true gap above the tolerance.
        self._tol = max(tol - 256 * float(np.finfo(D.dtype).eps), 0.5 * tol)
        # An odd number of vectors per row, so that rows do not compete for the same cache sets.
        self._G = _padded_gram(D, -(-len(D) // simd.width(D.dtype)) | 1)

    def code(self, Y: NDArray) -> tuple[csr_array, int]:
        """Return the codes (n, n_atoms) of the samples Y, and the number of unconverged samples."""
        buffer = _CodeBuffer(len(Y), min(self._D.shape) + 1, Y.dtype)
        yy = _squared_norms(Y)
        check_range("Y", yy, Y.dtype, max_factor=self._max_norm)
        n_unfinished = cpu_lasso.solve(
            Y @ self._D.T,
            yy,
            self._G,
            self._penalty,
            self._tol,
            _lane_buffer(Y.dtype),
            buffer.indptr,
            buffer.indices,
            buffer.codes,
        )
        S = buffer.to_csr(len(self._D))
        check_result("the codes", S.data, S.dtype)
        return S, n_unfinished

    def residuals(
        self, Y: NDArray, atom_classes: NDArray, n_classes: int
    ) -> tuple[NDArray[np.float64], int]:
        """Return residual norms by class (n, n_classes), and the number of unconverged samples."""
        S, n_unfinished = self.code(Y)
        return class_residuals(self._D, Y, S, atom_classes, n_classes), n_unfinished

    def code_with_errors(self, Y: NDArray) -> tuple[csr_array, NDArray[np.float64]]:
        """Return the codes (n, n_atoms) of the samples Y and their squared residuals (n,)."""
        S, _ = self.code(Y)
        one_class = np.zeros(len(self._D), np.int64)
        return S, class_residuals(self._D, Y, S, one_class, 1)[:, 0] ** 2


def encode_and_accumulate(
    coder: OMPCoder | LassoCoder,
    Y: NDArray,
    labels: NDArray[np.int64],
    own_label: int,
    class_weights: NDArray[np.float64],
    n_worst: int,
    with_own_class: bool = False,
) -> SufficientStatistics:
    """Encode the samples of a block and return their sufficient statistics.

    Parameters
    ----------
    coder : coder for the dictionary of one class
    Y : (n, n_features), samples
    labels : (n,), class index of each sample
    own_label : class index of the dictionary
    class_weights : (n_classes,), weight of the samples of each class
    n_worst : number of samples to store: those of the class with the largest residuals
    with_own_class : whether to compute `SufficientStatistics.F_own_class`
    """
    S, errors = coder.code_with_errors(Y)
    w = class_weights[labels]
    E, F = weighted_products(Y, S, w)
    own = np.flatnonzero(labels == own_label)
    own_codes = S if len(own) == len(Y) else S[own]
    usage_counts = np.bincount(own_codes.indices, minlength=len(F))
    positive = np.bincount(own_codes.indices[own_codes.data > 0], minlength=len(F))
    worst = own[np.argsort(-errors[own], kind="stable")[:n_worst]]
    sums = SufficientStatistics(
        E, F, usage_counts, 2 * positive - usage_counts, float(w @ errors), errors[worst], Y[worst]
    )
    if with_own_class:
        sums.F_own_class = float(class_weights[own_label]) * code_products(own_codes)
    return sums


def weighted_products(Y: NDArray, S: csr_array, weights: NDArray) -> tuple[NDArray, NDArray]:
    """Return E = Σ w·sᵀy (k, d) and F = Σ w·sᵀs (k, k) of samples Y, codes S and weights w."""
    n_atoms = S.shape[1]
    E = np.empty((n_atoms, Y.shape[1]), Y.dtype)
    F = np.zeros((n_atoms, n_atoms), Y.dtype)
    cpu_atom_update.accumulate(
        Y, weights.astype(Y.dtype), S.indptr, S.indices, S.data, simd.width(Y.dtype), E, F
    )
    cpu_atom_update.add_transpose(F)
    return E, F


def code_products(S: csr_array) -> NDArray:
    """Return Σ sᵀs (k, k) over the rows s of the codes S (n, k)."""
    F = np.zeros((S.shape[1], S.shape[1]), S.dtype)
    cpu_atom_update.accumulate_products(S.indptr, S.indices, S.data, F)
    cpu_atom_update.add_transpose(F)
    return F


def class_residuals(
    D: NDArray, Y: NDArray, S: csr_array, atom_classes: NDArray, n_classes: int
) -> NDArray[np.float64]:
    """Return the residual norms of the samples with the atoms of each class, (n, n_classes)."""
    norms = np.empty((len(Y), n_classes))
    cpu_atom_update.residual_norms(Y, D, atom_classes, S.indptr, S.indices, S.data, norms)
    check_result("the residuals", norms, Y.dtype)
    return norms


def update_atoms(D: NDArray, E: NDArray, F: NDArray, n_sweeps: int, tol: float) -> NDArray:
    """Minimise −2·tr(E Dᵀ) + tr(F D Dᵀ) over unit-norm atoms, and return the new atoms.

    Stop after n_sweeps sweeps over the atoms, or when no entry changes by more than tol in a sweep.
    """
    D, E, F = D.copy(), E.astype(D.dtype, copy=False), F.astype(D.dtype, copy=False)
    for _ in range(n_sweeps):
        before = D.copy()
        cpu_atom_update.sweep(D, E, F)
        max_change = np.abs(D - before).max()
        if not np.isfinite(max_change):  # any overflow reaches an atom, so this check is free
            check_sums(E, F)
            check_result("the atoms", D, D.dtype)
        if max_change <= tol:
            break
    return D
