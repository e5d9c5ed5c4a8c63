"""Reference implementations of the kernels in plain NumPy: slow and simple."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def encode_omp(
    D: NDArray, Y: NDArray, n_nonzero: int, *, tol: float = 0.0, selection: str = "order-recursive"
) -> NDArray:
    """Greedy pursuit with a least-squares fit per candidate; returns dense codes (n_samples,
    n_atoms)."""
    S = np.zeros((len(Y), len(D)))
    for y, s in zip(Y, S, strict=True):
        support: list[int] = []
        residual = y
        while len(support) < n_nonzero and residual @ residual > tol:
            scores = _scores(D, y, residual, support, selection)
            best = int(np.argmax(scores))
            if scores[best] <= 1e-12 * (y @ y):
                break
            support.append(best)
            fit = np.linalg.lstsq(D[support].T, y, rcond=None)[0]
            residual = y - fit @ D[support]
            s[:] = 0
            s[support] = fit
    return S


def _scores(D: NDArray, y: NDArray, residual: NDArray, support: list[int], rule: str) -> NDArray:
    """Return per atom the decrease of the squared residual, or its squared correlation."""
    outside = D
    if support:
        basis = np.linalg.qr(D[support].T)[0]
        outside = D - (D @ basis) @ basis.T
    norms = np.einsum("ij,ij->i", D, D)
    outside_norms = np.einsum("ij,ij->i", outside, outside)
    free = outside_norms > 1e-10 * norms
    divisor = outside_norms if rule == "order-recursive" else norms
    return np.where(free, (D @ residual) ** 2 / np.where(free, divisor, 1.0), 0.0)


def encode_joint(
    D: NDArray, Y: NDArray, n_nonzero: int, *, tol: float = 0.0, selection: str = "order-recursive"
) -> NDArray:
    """Pursuit of one support for all channels; returns codes (n_channels, n_samples, n_atoms)."""
    S = np.zeros((len(D), Y.shape[1], D.shape[1]))
    for row in range(Y.shape[1]):
        y, s = Y[:, row], S[:, row]
        supports: list[list[int]] = [[] for _ in D]
        residual = y.copy()
        for _ in range(n_nonzero):
            if np.sum(residual**2) <= tol:
                break
            state = zip(D, y, residual, supports, strict=True)
            scores = np.sum([_scores(*channel, selection) for channel in state], axis=0)
            best = int(np.argmax(scores))
            if scores[best] <= 1e-12 * np.sum(y**2):
                break
            for c, support in enumerate(supports):
                if np.linalg.matrix_rank(D[c][[*support, best]], 1e-5) > len(support):
                    support.append(best)
                s[c, support] = np.linalg.lstsq(D[c][support].T, y[c], rcond=None)[0]
                residual[c] = y[c] - s[c] @ D[c]
    return S


def encode_lasso(D: NDArray, Y: NDArray, penalty: float, *, n_sweeps: int = 20_000) -> NDArray:
    """Coordinate descent until convergence; returns dense codes (n_samples, n_atoms)."""
    S = np.zeros((len(Y), len(D)))
    norms = np.einsum("ij,ij->i", D, D)
    for y, s in zip(Y, S, strict=True):
        residual = y.astype(float).copy()
        for _ in range(n_sweeps):
            moved = 0.0
            for j in np.flatnonzero(norms):
                correlation = D[j] @ residual + norms[j] * s[j]
                new = np.sign(correlation) * max(abs(correlation) - penalty, 0.0) / norms[j]
                residual += (s[j] - new) * D[j]
                moved = max(moved, abs(new - s[j]))
                s[j] = new
            if moved < 1e-12:
                break
    return S


def lasso_gap(D: NDArray, Y: NDArray, S: NDArray, penalty: float) -> NDArray:
    """Relative duality gap of codes S, per sample: 0 at the minimiser of ½‖y − sD‖² + λ‖s‖₁."""
    R = Y - S @ D
    primal = 0.5 * np.einsum("ij,ij->i", R, R) + penalty * np.abs(S).sum(axis=1)
    worst = np.abs(R @ D.T).max(axis=1)
    dual_point = R * (penalty / np.maximum(worst, penalty))[:, None]
    left = Y - dual_point
    dual = 0.5 * (np.einsum("ij,ij->i", Y, Y) - np.einsum("ij,ij->i", left, left))
    return (primal - dual) / np.maximum(primal, np.finfo(float).tiny)


def convexify(F: NDArray) -> NDArray:
    """F̂ = F − λ_min(F)·I, positive semidefinite: equation (newProb) of the paper."""
    return F - np.linalg.eigvalsh(F)[0] * np.eye(len(F))


def update_atoms(D: NDArray, E: NDArray, F: NDArray, n_sweeps: int = 1) -> NDArray:
    """The paper's coordinate updates on F̂: u_j = (e_j − F̂_j D)/F̂_jj + d_j, then normalised.

    The division is left out: it does not change the direction, and F̂_jj may be 0. An atom whose u_j
    is rounding stays.
    """
    D = D.copy()
    F_hat = convexify(F)
    for _ in range(n_sweeps):
        for j in range(len(D)):
            u = E[j] - F_hat[j] @ D + F_hat[j, j] * D[j]
            size = np.linalg.norm(E[j]) + np.linalg.norm(F_hat[j])
            if np.linalg.norm(u) > 1e-13 * size:
                D[j] = u / np.linalg.norm(u)
    return D


def class_residuals(D: NDArray, Y: NDArray, S: NDArray, atom_classes: NDArray) -> NDArray:
    """Return ‖y − δ_i(s)D‖ for every sample and class."""
    return np.stack(
        [
            np.linalg.norm(Y - (S * (atom_classes == i)) @ D, axis=1)
            for i in range(int(atom_classes.max()) + 1)
        ],
        axis=1,
    )
