"""Invariants of kernel results, checked in extended precision so that nothing overflows.

Each bound adds a tolerance for rounding; checks are skipped if rounding errors may exceed the size
of the problem.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .target import InvariantError

_PARTS = ("indptr", "indices", "data")
_Wide = NDArray[np.longdouble]


def require(is_true: Any, message: str) -> None:
    if not np.all(is_true):
        raise InvariantError(message)


def wide(array: Any) -> _Wide:
    dense = array.toarray() if isinstance(array, csr_array) else array
    return np.asarray(dense, np.longdouble)


def _norms(rows: _Wide) -> _Wide:
    return np.sqrt(np.sum(rows * rows, axis=-1))


def check_codes(S: csr_array, shape: tuple[int, int], dtype: Any, most: int | None = None) -> None:
    """Require a valid sparse matrix of finite values with at most `most` entries per row."""
    require(S.shape == shape, f"codes have shape {S.shape}, not {shape}")
    S.check_format(full_check=True)
    require(S.dtype == dtype, f"codes are of type {S.dtype}, not {dtype}")
    require(np.isfinite(S.data), "codes are not finite")
    require(S.has_canonical_format, "an atom appears twice in a code")
    if most is not None:
        require(np.diff(S.indptr) <= most, f"a code has more than {most} atoms")


def check_same(results: list[csr_array]) -> None:
    one = results[0]
    for two in results[1:]:
        same = [np.array_equal(getattr(one, part), getattr(two, part)) for part in _PARTS]
        require(all(same), "the number of threads changes the result")


def check_lasso(D: NDArray, Y: NDArray, S: csr_array, penalty: float, tol: float) -> None:
    """Require a duality gap within tol of the objective."""
    D_, Y_, S_ = wide(D), wide(Y), wide(S)
    R = Y_ - S_ @ D_
    l1 = np.abs(S_).sum(axis=1)
    squares = np.sum(R * R, axis=1)
    primal = squares / 2 + penalty * l1
    worst = np.abs(R @ D_.T).max(axis=1)
    scale = penalty / np.maximum(worst, penalty)
    gap = primal - scale * np.sum(Y_ * R, axis=1) + scale**2 * squares / 2
    eps = 64 * D.shape[1] * np.finfo(D.dtype).eps
    norms, largest = _norms(Y_), _norms(D_).max()
    size = norms + l1 * largest
    rounding = eps * (primal * size * largest / penalty + size**2)
    requested = (rounding < primal) & (primal > 1e-290) & (not _vanishing(D_, D.dtype))
    require(
        (gap <= tol * primal + rounding) | ~requested,
        "the duality gap is above tol, and nothing was said of it",
    )


def _vanishing(D: _Wide, dtype: Any) -> bool:
    """Whether squares of atoms lose digits because they are too small for their type."""
    squares = np.sum(D * D, axis=-1)
    limits = np.finfo(dtype)
    least = np.longdouble(limits.tiny) / np.longdouble(limits.eps)
    return bool(np.any((squares > 0) & (squares < least)))


def check_pursuit(D: Any, Y: Any, S: Any) -> None:
    """Require of one pursuit per channel that no residual is larger than its sample."""
    D_type = D[0].dtype
    D, Y, S = ([wide(channel) for channel in channels] for channels in (D, Y, S))
    limits = np.finfo(D_type)
    left, specified, terms = 0, 0, 0
    for D_c, Y_c, S_c in zip(D, Y, S, strict=True):
        left += np.sum((Y_c - S_c @ D_c) ** 2, axis=1)
        specified += np.sum(Y_c**2, axis=1)
        # Denormal codes have few digits.
        terms += (1000 * limits.eps * np.abs(S_c) + limits.tiny) @ _norms(D_c)
    bound = np.sqrt(specified) * 1.001 + terms + limits.tiny  # a denormal sample counts as zero
    require(np.sqrt(left) <= bound, "a residual is larger than its sample")


def check_against(reference: NDArray, D: Any, S: Any, Y: Any) -> None:
    """Require that the fits of the first rows equal those of the dense codes in `reference`.

    Only checked if the atoms of both are well conditioned: otherwise rounding may decide a
    selection.
    """
    for plain, D_c, S_c, Y_c in zip(reference, D, S, Y, strict=True):
        for s, own, y in zip(plain, S_c.toarray(), Y_c, strict=False):
            used = D_c[(s != 0) | (own != 0)]
            if len(used) and np.linalg.cond(used) < 100:
                near = np.abs((own - s) @ D_c) <= 1e-6 * np.linalg.norm(y)
                require(near, "the fit is not that of the reference")


def check_nested(fewer: csr_array, more: csr_array) -> None:
    """Require that one more allowed atom keeps the atoms selected before."""
    few, many = ((S.indptr, S.indices) for S in (fewer, more))
    for row in range(fewer.shape[0]):
        a, b = (set(i[p[row] : p[row + 1]].tolist()) for p, i in (few, many))
        require(a <= b, "with one more atom allowed, other atoms are selected")


def check_residuals(D: Any, Y: Any, S: csr_array, classes: NDArray, found: NDArray) -> None:
    require(np.isfinite(found) & (found >= 0), "a residual is not a finite norm")
    D_, Y_, S_ = wide(D), wide(Y), wide(S)
    limits = np.finfo(Y.dtype)
    size = _norms(Y_) + np.abs(S_) @ _norms(D_)
    rounding = 64 * D.shape[1] * limits.eps * size + np.sqrt(limits.tiny * D.shape[1]) * 8
    for i in range(found.shape[1]):
        expected = _norms(Y_ - (S_ * (classes == i)) @ D_)
        require(np.abs(found[:, i] - expected) <= rounding, "a residual is not that of its code")


def check_sums(right: NDArray, S: csr_array, w: NDArray, found: NDArray) -> None:
    """Require Σ w·sᵀ·right, or an overflow if terms overflow."""
    limits = np.finfo(right.dtype)
    right_ = wide(right)
    factors = wide(S) * wide(w.astype(right.dtype))[:, None]
    terms = np.abs(factors).T @ np.abs(right_)
    # w·s is computed first, and may underflow although the product would not.
    lost = limits.tiny * (len(right) + np.abs(right_).sum(axis=0))
    near = np.abs(found - factors.T @ right_) <= 64 * len(right) * limits.eps * terms + lost
    require(near | (terms > limits.max / 8), "the sums are not those of the samples")


def check_atoms(D: Any, E: Any, F: Any, new: NDArray) -> None:
    """Require atoms of unit norm or unchanged; from unit atoms on, the objective must not rise."""
    require(np.isfinite(new), "atoms are not finite")
    norms = _norms(wide(new))
    unit = np.abs(norms - 1) < 1e-3
    require(unit | (new == D).all(axis=1), "an atom is neither of unit norm nor unchanged")
    lengths = _norms(wide(D))
    if (np.abs(lengths - 1) < 1e-5).all():
        # Normalised to length one, because otherwise the objective may rise with the lengths.
        nearby = wide(D) / lengths[:, None]
        before, after = (_objective(d, wide(E), wide(F)) for d in (nearby, wide(new)))
        size = _norms(wide(E)).sum() + np.abs(wide(F)).sum()
        rounding = 256 * D.shape[1] * np.finfo(D.dtype).eps * size
        require(after <= before + rounding, "an update of atoms raised their objective")


def _objective(D: _Wide, E: _Wide, F: _Wide) -> np.longdouble:
    return np.sum((F @ D) * D) - 2 * np.sum(E * D)
