"""What the kernels promise of an answer, asked in extended precision so that nothing overflows.

Each bound is the promise and what rounding may add to it; where rounding may add more than the
problem is large, there is nothing to ask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from .target import Find

_PARTS = ("indptr", "indices", "data")
_Wide = NDArray[np.longdouble]


def hold(true: Any, words: str) -> None:
    if not np.all(true):
        raise Find(words)


def wide(array: Any) -> _Wide:
    dense = array.toarray() if isinstance(array, csr_array) else array
    return np.asarray(dense, np.longdouble)


def _norms(rows: _Wide) -> _Wide:
    return np.sqrt(np.sum(rows * rows, axis=-1))


def check_codes(S: csr_array, shape: tuple[int, int], dtype: Any, most: int | None = None) -> None:
    """A sound sparse matrix of finite values with at most so many entries in a row."""
    hold(S.shape == shape, f"codes have shape {S.shape}, not {shape}")
    S.check_format(full_check=True)
    hold(S.dtype == dtype, f"codes are of type {S.dtype}, not {dtype}")
    hold(np.isfinite(S.data), "codes are not finite")
    hold(S.has_canonical_format, "an atom comes twice in a code")
    if most is not None:
        hold(np.diff(S.indptr) <= most, f"a code has more than {most} atoms")


def check_same(answers: list[csr_array]) -> None:
    one = answers[0]
    for two in answers[1:]:
        same = [np.array_equal(getattr(one, part), getattr(two, part)) for part in _PARTS]
        hold(all(same), "other bits with other threads")


def check_lasso(D: NDArray, Y: NDArray, S: csr_array, penalty: float, tol: float) -> None:
    """The duality gap is within tol of the objective."""
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
    hold(
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
    """Channels of one pursuit: no residual is larger than its sample."""
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
    hold(np.sqrt(left) <= bound, "a residual is larger than its sample")


def check_against(reference: NDArray, D: Any, S: Any, Y: Any) -> None:
    """The fits of the first rows of the channels are those of the plain codes in `reference`.

    Asked where the atoms of both are well conditioned: else a pick may hang on rounding.
    """
    for plain, D_c, S_c, Y_c in zip(reference, D, S, Y, strict=True):
        for s, own, y in zip(plain, S_c.toarray(), Y_c, strict=False):
            used = D_c[(s != 0) | (own != 0)]
            if len(used) and np.linalg.cond(used) < 100:
                near = np.abs((own - s) @ D_c) <= 1e-6 * np.linalg.norm(y)
                hold(near, "the fit is not that of the reference")


def check_nested(fewer: csr_array, more: csr_array) -> None:
    """With one more atom allowed, those of before are still picked."""
    few, many = ((S.indptr, S.indices) for S in (fewer, more))
    for row in range(fewer.shape[0]):
        a, b = (set(i[p[row] : p[row + 1]].tolist()) for p, i in (few, many))
        hold(a <= b, "with one more atom allowed, others are picked")


def check_residuals(D: Any, Y: Any, S: csr_array, classes: NDArray, found: NDArray) -> None:
    hold(np.isfinite(found) & (found >= 0), "a residual is not a finite norm")
    D_, Y_, S_ = wide(D), wide(Y), wide(S)
    limits = np.finfo(Y.dtype)
    size = _norms(Y_) + np.abs(S_) @ _norms(D_)
    rounding = 64 * D.shape[1] * limits.eps * size + np.sqrt(limits.tiny * D.shape[1]) * 8
    for i in range(found.shape[1]):
        expected = _norms(Y_ - (S_ * (classes == i)) @ D_)
        hold(np.abs(found[:, i] - expected) <= rounding, "a residual is not that of its code")


def check_sums(right: NDArray, S: csr_array, w: NDArray, found: NDArray) -> None:
    """Σ w·sᵀ·right, or an overflow where terms do overflow."""
    limits = np.finfo(right.dtype)
    right_ = wide(right)
    factors = wide(S) * wide(w.astype(right.dtype))[:, None]
    terms = np.abs(factors).T @ np.abs(right_)
    # w·s comes first, and may vanish though the product would not.
    lost = limits.tiny * (len(right) + np.abs(right_).sum(axis=0))
    near = np.abs(found - factors.T @ right_) <= 64 * len(right) * limits.eps * terms + lost
    hold(near | (terms > limits.max / 8), "the sums are not those of the samples")


def check_atoms(D: Any, E: Any, F: Any, new: NDArray) -> None:
    """Every atom is of unit norm, or as it was; from unit atoms on the objective does not rise."""
    hold(np.isfinite(new), "atoms are not finite")
    norms = _norms(wide(new))
    unit = np.abs(norms - 1) < 1e-3
    hold(unit | (new == D).all(axis=1), "an atom is neither of unit norm nor as it was")
    lengths = _norms(wide(D))
    if (np.abs(lengths - 1) < 1e-5).all():
        nearby = wide(D) / lengths[:, None]  # else it rises by what their lengths are beside one
        before, after = (_objective(d, wide(E), wide(F)) for d in (nearby, wide(new)))
        size = _norms(wide(E)).sum() + np.abs(wide(F)).sum()
        rounding = 256 * D.shape[1] * np.finfo(D.dtype).eps * size
        hold(after <= before + rounding, "an update of atoms raised their objective")


def _objective(D: _Wide, E: _Wide, F: _Wide) -> np.longdouble:
    return np.sum((F @ D) * D) - 2 * np.sum(E * D)
