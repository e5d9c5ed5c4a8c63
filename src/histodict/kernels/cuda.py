"""The GPU backend: the algorithms of `cpu` on one block of samples, with torch and triton.

Arrays are of one floating type, finite and of fitting shape, which is not checked here; that
nothing made of them overflows is. Samples may be numpy arrays or tensors on the device (`place`);
what comes back are numpy arrays. See `gpu_device` for the device, and for how blocks share it.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from . import gpu_joint
from .gpu_device import find_device, hold, on_device, place, take
from .inputs import check_range, check_result, check_sums

__all__ = [
    "BLOCK_ROWS",
    "TASK_ROWS",
    "JointCoder",
    "LassoCoder",
    "OMPCoder",
    "class_residuals",
    "code_products",
    "find_device",
    "hold",
    "place",
    "statistics",
    "take",
    "update_atoms",
]

# Enough rows to fill a large device; 37 MiB of samples with 1200 features.
BLOCK_ROWS = 8192
TASK_ROWS = 1024
# One device: several classes at the same time would only wait for each other.
SIDE_BY_SIDE = False
_JOINT_ROWS = 4096  # of a block at a time: plain torch keeps all basis vectors


def _algorithms() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Pursuit, l1 and atom updates, which need triton; the tests put plain torch in their place."""
    try:
        from . import gpu_atoms_triton, gpu_lasso_triton, gpu_omp_triton
    except ModuleNotFoundError as error:
        raise ValueError(
            f"backend='cuda' needs {error.name}, which comes with PyTorch for CUDA on Linux: "
            "install it (pip install triton), or use backend='cpu'"
        ) from error
    return gpu_omp_triton, gpu_lasso_triton, gpu_atoms_triton


def _norms(Y: Tensor) -> Tensor:
    return torch.linalg.vector_norm(Y, dim=-1, dtype=torch.float64)


def _check_range(name: str, norms: Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    """As `check_range`, which wants squares."""
    with np.errstate(over="ignore"):
        squares = norms.cpu().numpy() ** 2
    check_range(name, squares, np.dtype(str(dtype).removeprefix("torch.")), times)


def _padded(D: NDArray) -> Tensor:
    """Atoms, and as many zero ones as make rows of products start at whole 64 bytes."""
    return torch.nn.functional.pad(place(D), (0, 0, 0, -len(D) % 16))


def _nonzero(norms: Tensor) -> Tensor:
    return torch.where(norms > 0, norms, 1)


def _codes(alphas: Tensor, R: Tensor, sample_norms: Tensor, atom_norms: Tensor) -> Tensor:
    """Coefficients of the picked atoms from those of their orthonormal basis, scaled back."""
    codes = torch.linalg.solve_triangular(R.mT, alphas[..., None], upper=True)[..., 0]
    return codes * (sample_norms[:, None] / atom_norms).to(codes.dtype)


def _used(picks: Tensor, sizes: Tensor) -> Tensor:
    return torch.arange(picks.shape[1], device=picks.device) < sizes[:, None]


def _to_csr(atoms: Tensor, codes: Tensor, used: Tensor, n_atoms: int) -> csr_array:
    """Codes from (n, places) tables of atoms and their codes, where `used`."""
    places = torch.nonzero(used.flatten())[:, 0]
    indptr = torch.nn.functional.pad(used.sum(dim=1).cumsum(dim=0), (1, 0)).int()
    arrays = (codes.flatten()[places], atoms.flatten()[places].int(), indptr)
    S = csr_array(tuple(array.cpu().numpy() for array in arrays), shape=(len(atoms), n_atoms))
    check_result("the codes", S.data, S.dtype)
    return S


def _to_dense(S: csr_array, device: torch.device) -> Tensor:
    """Codes as a dense (n, k) tensor."""
    indptr, indices, data = (
        torch.from_numpy(array).to(device) for array in (S.indptr, S.indices, S.data)
    )
    rows = torch.repeat_interleave(indptr.diff(), output_size=len(data))
    dense = torch.zeros(S.shape, dtype=data.dtype, device=device)
    dense[rows, indices.long()] = data
    return dense


class OMPCoder:
    """Greedy pursuit of at most n_nonzero atoms: see `cpu_omp`, `gpu_omp_triton`.

    Works on atoms and samples of unit norm, so that one threshold for rounding fits all; the codes
    are scaled back.
    """

    def __init__(self, D: NDArray, n_nonzero: int, tol: float, order_recursive: bool) -> None:
        self._n_atoms = len(D)
        self._n_nonzero = min(n_nonzero, *D.shape)
        self._tol = tol
        self._order_recursive = order_recursive
        with on_device():
            atoms = _padded(D)
            self._pursue = _algorithms()[0].pursue
            self._norms = _norms(atoms)
            _check_range("D", self._norms, atoms.dtype)
            self._D = (atoms / _nonzero(self._norms)[:, None]).to(atoms.dtype)
            self._G = self._D @ self._D.T

    def code(self, Y: NDArray | Tensor) -> tuple[csr_array, NDArray[np.float64]]:
        """Codes of the block's rows, and their squared residuals."""
        with on_device():
            picks, codes, used, errors = self.code_on_device(place(Y))
            return _to_csr(picks, codes, used, self._n_atoms), errors.cpu().numpy()

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Picks (n, L), their codes, which of them are in use, and squared residuals (n,)."""
        given_norms = _norms(Y)
        _check_range("Y", given_norms, Y.dtype)
        norms = _nonzero(given_norms)
        B = Y @ self._D.T
        B /= norms[:, None].to(B.dtype)
        picks, alphas, R, sizes, left = self._pursue(
            B,
            self._G,
            (given_norms > 0).double(),
            self._tol / norms**2,
            self._n_nonzero,
            self._order_recursive,
        )
        codes = _codes(alphas, R, norms, _nonzero(self._norms)[picks.long()])
        return picks, codes, _used(picks, sizes), left * given_norms**2


class JointCoder:
    """Greedy pursuit of one support of at most n_nonzero atoms for all channels: see `cpu_joint`.

    Works on atoms of unit norm in every channel and samples of unit norm over all channels; the
    codes are scaled back.
    """

    def __init__(self, D: NDArray, n_nonzero: int, tol: float, order_recursive: bool) -> None:
        n_channels, self._n_atoms, n_features = D.shape
        self._n_nonzero = min(n_nonzero, self._n_atoms, n_channels * n_features)
        self._tol = tol
        self._order_recursive = order_recursive
        with on_device():
            atoms = place(D)
            norms = _norms(atoms)
            _check_range("D", norms, atoms.dtype)
            self._norms = _nonzero(norms)
            self._D = (atoms / self._norms[:, :, None]).to(atoms.dtype)
            self._G = self._D @ self._D.mT

    def code(self, Y: NDArray | Tensor) -> tuple[list[csr_array], NDArray[np.float64]]:
        """Codes of the block Y (n_channels, n, n_features) per channel, and squared residuals."""
        with on_device():
            parts = [self._code_part(part) for part in place(Y).split(_JOINT_ROWS, dim=1)]
        codes, errors = zip(*parts, strict=True)
        return [vstack(channel, format="csr") for channel in zip(*codes, strict=True)], (
            np.concatenate(errors)
        )

    def _code_part(self, Y: Tensor) -> tuple[list[csr_array], NDArray[np.float64]]:
        given_norms = torch.linalg.vector_norm(_norms(Y), dim=0)
        _check_range("Y", given_norms, Y.dtype)
        norms = _nonzero(given_norms)
        B = Y @ self._D.mT
        B /= norms[:, None].to(B.dtype)
        picks, alphas, R, sizes, left = gpu_joint.pursue(
            B,
            self._G,
            (given_norms > 0).double(),
            self._tol / norms**2,
            self._n_nonzero,
            self._order_recursive,
        )
        codes = _codes(alphas, R, norms, self._norms[:, picks.long()])
        used = _used(picks, sizes)
        S = [_to_csr(picks, codes_c, used, self._n_atoms) for codes_c in codes]
        return S, (left * given_norms**2).cpu().numpy()


class LassoCoder:
    """Exact l1 codes: see `cpu_lasso`, `gpu_lasso_triton`."""

    def __init__(self, D: NDArray, penalty: float, tol: float) -> None:
        self._n_atoms = len(D)
        self._penalty = penalty
        # Rounding of the products must not push the true gap over the asked one.
        self._tol = max(tol - 256 * float(np.finfo(D.dtype).eps), 0.5 * tol)
        self._capacity = min(D.shape) + 1
        with on_device():
            self._D = _padded(D)
            norms = _norms(self._D)
            self._largest = float(norms.max())
            _check_range("D", norms, self._D.dtype, times=self._largest)
            self._solve = _algorithms()[1].solve
            self._G = self._D @ self._D.T

    def code(self, Y: NDArray | Tensor) -> tuple[csr_array, int]:
        """Codes of the block's rows, and how many of them missed the tolerance."""
        with on_device():
            atoms, codes, n_missed = self.code_on_device(place(Y))
            return _to_csr(atoms, codes, atoms >= 0, self._n_atoms), n_missed

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, int]:
        """Active atoms (n, places), −1 where a place is free, their codes, and the misses."""
        norms = _norms(Y)
        _check_range("Y", norms, Y.dtype, times=self._largest)
        return self._solve(
            Y @ self._D.T,
            norms**2,
            self._G,
            self._penalty,
            self._tol,
            self._capacity,
        )


def statistics(Y: NDArray | Tensor, S: csr_array, weights: NDArray) -> tuple[NDArray, NDArray]:
    """E = Σ w·sᵀy (k, d) and F = Σ w·sᵀs (k, k) over the block's rows."""
    with on_device():
        Y = place(Y)
        dense = _to_dense(S, Y.device)
        weighted = dense * place(weights).to(Y.dtype)[:, None]
        E, F = weighted.T @ Y, weighted.T @ dense
        return E.cpu().numpy(), (0.5 * (F + F.T)).cpu().numpy()


def code_products(S: csr_array) -> NDArray:
    """Σ sᵀs (k, k) over the rows."""
    with on_device():
        dense = _to_dense(S, find_device())
        F = dense.T @ dense
        return (0.5 * (F + F.T)).cpu().numpy()


def class_residuals(
    D: NDArray, Y: NDArray | Tensor, S: csr_array, atom_classes: NDArray, n_classes: int
) -> NDArray[np.float64]:
    """‖y − δ_i(s)D‖ for every row and class."""
    with on_device():
        Y, atoms = place(Y), place(D)
        dense = _to_dense(S, Y.device)
        norms = torch.empty(len(Y), n_classes, dtype=torch.float64, device=Y.device)
        for i in range(n_classes):
            own = torch.from_numpy(np.flatnonzero(atom_classes == i)).to(Y.device)
            norms[:, i] = _norms(torch.addmm(Y, dense[:, own], atoms[own], alpha=-1))
        residuals = norms.cpu().numpy()
    check_result("the residuals", residuals, D.dtype)
    return residuals


def update_atoms(D: NDArray, E: NDArray, F: NDArray, n_sweeps: int, tol: float) -> NDArray:
    """Sweeps over all atoms until none moves by more than tol, n_sweeps at most."""
    with on_device():
        given, E_, F_ = place(D), place(E), place(F)
        scale = _comfortable_scale(E_, F_)
        if scale is None:
            check_sums(E, F)
        elif scale != 1:
            E_, F_ = E_ * scale, F_ * scale
        atoms = given.clone()
        sweep = _algorithms()[2].sweep
        for _ in range(n_sweeps):
            before = atoms.clone()
            sweep(atoms, E_, F_)
            if (atoms - before).abs().max() <= tol:
                break
        # Squares that overflow or vanish make atoms that are not of unit norm.
        off = ~((_norms(atoms) - 1).abs() < 1e-3) & (atoms != given).any(dim=1)
        updated = torch.where(off[:, None], torch.nan, atoms).cpu().numpy()
    check_result("the atoms", updated, D.dtype)
    return updated


def _comfortable_scale(E: Tensor, F: Tensor) -> float | None:
    """1, or a power of two by which the squares of E and F exist; None if these are not finite.

    The atoms that minimise −2·tr(E Dᵀ) + tr(F D Dᵀ) stay the same, to the bit.
    """
    largest = float(torch.maximum(E.abs().max(), F.abs().max()))
    if not np.isfinite(largest):
        return None
    most = int(np.log2(torch.finfo(E.dtype).max)) // 4
    exponent = int(np.frexp(largest)[1])
    return 1.0 if abs(exponent) <= most else 2.0 ** -max(-3 * most, min(3 * most, exponent))
