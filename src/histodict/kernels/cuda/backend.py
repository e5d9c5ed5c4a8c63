"""The GPU backend: the algorithms of `cpu` on one block of samples, with torch and triton.

Arrays are of one floating type, finite and of fitting shape, which is not checked here; that
nothing made of them overflows is. Samples may be numpy arrays or tensors on the device (`place`);
what comes back are numpy arrays, but for what a learner goes on with: `encode_and_accumulate`
leaves sums on
the device, and atoms given as tensors come back as tensors. See `gpu_device` for the device, and
for how blocks share it.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from ...utils.parallel import count_jobs
from .. import sufficient_statistics as idle_atoms
from ..input_checks import check_result, check_sums
from ..sufficient_statistics import SufficientStatistics
from . import device as gpu_sums
from . import joint_omp as gpu_joint
from .device import (
    active_positions,
    as_numpy_type,
    cache_blocks,
    check_norms,
    checked_residuals,
    class_norms,
    codes_of,
    device_context,
    find_device,
    labels_to_device,
    nonzero,
    norms_of,
    table_to_dense,
    to_csr,
    to_dense,
    to_device,
)

__all__ = [
    "BLOCK_ROWS",
    "FINDS_NAN",
    "TASK_ROWS",
    "JointCoder",
    "LassoCoder",
    "OMPCoder",
    "cache_blocks",
    "class_residuals",
    "count_threads",
    "encode_and_accumulate",
    "find_device",
    "is_finite",
    "labels_to_device",
    "replace_unused_atoms",
    "to_device",
    "update_atoms",
    "zeros",
]

# Enough rows to fill a large device for long: the last of a block's samples leave most of it idle.
# 150 MiB of samples with 1200 features, and as much again for what is made of them.
BLOCK_ROWS = 32_768
TASK_ROWS = 1024
FINDS_NAN = True  # faster on the device than on the host
_JOINT_ROWS = 4096  # of a block at a time: plain torch keeps all basis vectors


def _algorithms() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Pursuit, l1 and atom updates, which need triton; the tests put plain torch in their place."""
    try:
        from . import atom_update as gpu_atoms_triton
        from . import lasso as gpu_lasso_triton
        from . import omp as gpu_omp_triton
    except ModuleNotFoundError as error:
        raise ValueError(
            f"backend='cuda' needs {error.name}, which comes with PyTorch for CUDA on Linux: "
            "install it (pip install triton), or use backend='cpu'"
        ) from error
    return gpu_omp_triton, gpu_lasso_triton, gpu_atoms_triton


def _fetch(array: NDArray | Tensor) -> NDArray:
    """A numpy array of what this backend made."""
    return array.cpu().numpy() if isinstance(array, Tensor) else array


def count_threads(n_jobs: int | None) -> int:
    """Those that feed the device: several would only wait for each other."""
    count_jobs(n_jobs)  # refuses what is no number of threads
    return 1


def is_finite(Y: Tensor) -> bool:
    """Whether placed samples hold no NaN and no infinity."""
    # Zero times a number is zero, times all else it is NaN: one pass, and one number comes back.
    return bool((0 * Y).sum() == 0)


def zeros(shape: tuple[int, ...]) -> Tensor:
    """To add sums to."""
    return torch.zeros(shape, dtype=torch.float64, device=find_device())


def _padded(D: NDArray | Tensor) -> Tensor:
    """Atoms, and as many zero ones as make rows of products start at whole 64 bytes."""
    return torch.nn.functional.pad(to_device(D), (0, 0, 0, -len(D) % 16))


class OMPCoder:
    """Greedy pursuit of at most n_nonzero atoms: see `cpu_omp`, `gpu_omp_triton`.

    Works on atoms and samples of unit norm, so that one threshold for rounding fits all; the codes
    are scaled back.
    """

    def __init__(
        self, D: NDArray | Tensor, n_nonzero: int, tol: float, order_recursive: bool
    ) -> None:
        self._n_atoms = len(D)
        self._n_nonzero = min(n_nonzero, *D.shape)
        self._tol = tol
        self._order_recursive = order_recursive
        with device_context():
            atoms = _padded(D)
            self._pursue = _algorithms()[0].pursue
            self._norms = norms_of(atoms)
            check_norms("D", self._norms, atoms.dtype)
            self._D = (atoms / nonzero(self._norms)[:, None]).to(atoms.dtype)
            self._G = self._D @ self._D.T

    def code(self, Y: NDArray | Tensor) -> tuple[csr_array, NDArray[np.float64]]:
        """Codes of the block's rows, and their squared residuals."""
        with device_context():
            picks, codes, used, errors = self.code_on_device(to_device(Y))
            return to_csr(picks, codes, used, self._n_atoms), errors.cpu().numpy()

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Picks (n, L), their codes, which of them are in use, and squared residuals (n,)."""
        given_norms = norms_of(Y)
        check_norms("Y", given_norms, Y.dtype)
        norms = nonzero(given_norms)
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
        codes = codes_of(alphas, R, norms, nonzero(self._norms)[picks.long()])
        return picks, codes, active_positions(picks, sizes), left * given_norms**2

    def code_dense(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (n, n_atoms) and squared residuals (n,), on the device."""
        picks, codes, used, errors = self.code_on_device(Y)
        return table_to_dense(picks, codes, used, self._n_atoms), errors


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
        with device_context():
            atoms = to_device(D)
            norms = norms_of(atoms)
            check_norms("D", norms, atoms.dtype)
            self._norms = nonzero(norms)
            self._D = (atoms / self._norms[:, :, None]).to(atoms.dtype)
            self._G = self._D @ self._D.mT

    def code(self, Y: NDArray | Tensor) -> tuple[list[csr_array], NDArray[np.float64]]:
        """Codes of the block Y (n_channels, n, n_features) per channel, and squared residuals."""
        with device_context():
            parts = [self._code_part(part) for part in to_device(Y).split(_JOINT_ROWS, dim=1)]
        codes, errors = zip(*parts, strict=True)
        return [vstack(channel, format="csr") for channel in zip(*codes, strict=True)], (
            np.concatenate(errors)
        )

    def _code_part(self, Y: Tensor) -> tuple[list[csr_array], NDArray[np.float64]]:
        given_norms = torch.linalg.vector_norm(norms_of(Y), dim=0)
        check_norms("Y", given_norms, Y.dtype)
        norms = nonzero(given_norms)
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
        codes = codes_of(alphas, R, norms, self._norms[:, picks.long()])
        used = active_positions(picks, sizes)
        S = [to_csr(picks, codes_c, used, self._n_atoms) for codes_c in codes]
        return S, (left * given_norms**2).cpu().numpy()


class LassoCoder:
    """Exact l1 codes: see `cpu_lasso`, `gpu_lasso_triton`."""

    def __init__(self, D: NDArray | Tensor, penalty: float, tol: float) -> None:
        self._n_atoms = len(D)
        self._penalty = penalty
        self._capacity = min(D.shape) + 1
        with device_context():
            self._D = _padded(D)
            # Rounding of the products must not push the true gap over the asked one.
            self._tol = max(tol - 256 * torch.finfo(self._D.dtype).eps, 0.5 * tol)
            norms = norms_of(self._D)
            self._largest = float(norms.max())
            check_norms("D", norms, self._D.dtype, times=self._largest)
            self._solve = _algorithms()[1].solve
            self._G = self._D @ self._D.T

    def code(self, Y: NDArray | Tensor) -> tuple[csr_array, int]:
        """Codes of the block's rows, and how many of them missed the tolerance."""
        with device_context():
            atoms, codes, n_missed = self.code_on_device(to_device(Y))
            return to_csr(atoms, codes, atoms >= 0, self._n_atoms), n_missed

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, int]:
        """Active atoms (n, places), −1 where a place is free, their codes, and the misses."""
        norms = norms_of(Y)
        check_norms("Y", norms, Y.dtype, times=self._largest)
        return self._solve(
            Y @ self._D.T,
            norms**2,
            self._G,
            self._penalty,
            self._tol,
            self._capacity,
        )

    def code_dense(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Codes (n, n_atoms) and squared residuals (n,), on the device."""
        S, _ = self.code_all(Y)
        return S, norms_of(torch.addmm(Y, S, self._D[: self._n_atoms], alpha=-1)) ** 2

    def code_all(self, Y: Tensor) -> tuple[Tensor, int]:
        """Codes (n, n_atoms) on the device, and how many rows missed the tolerance."""
        atoms, codes, n_missed = self.code_on_device(Y)
        return table_to_dense(atoms, codes, atoms >= 0, self._n_atoms), n_missed

    def residuals(
        self, Y: NDArray | Tensor, atom_classes: NDArray, n_classes: int
    ) -> tuple[NDArray[np.float64], int]:
        """‖y − δ_i(s)D‖ for every row and class, and the misses; the codes are not kept."""
        with device_context():
            Y = to_device(Y)
            S, n_missed = self.code_all(Y)
            norms = class_norms(self._D[: self._n_atoms], Y, S, atom_classes, n_classes)
            return checked_residuals(norms, Y.dtype), n_missed


def encode_and_accumulate(
    coder: OMPCoder | LassoCoder,
    Y: NDArray | Tensor,
    labels: NDArray[np.int64] | Tensor,
    own_label: int,
    class_weights: NDArray[np.float64],
    n_worst: int,
    split: bool = False,
) -> SufficientStatistics:
    """As `cpu.encode_and_accumulate`; what it returns stays on the device."""
    with device_context():
        Y = to_device(Y)
        S, errors = coder.code_dense(Y)
        weights = torch.from_numpy(np.ascontiguousarray(class_weights)).to(Y.device)
        return gpu_sums.sum_codes(
            Y, S, errors, labels_to_device(labels), own_label, weights, n_worst, split
        )


def replace_unused_atoms(
    D: NDArray | Tensor, uses: NDArray | Tensor, candidates: NDArray | Tensor
) -> NDArray | Tensor:
    """As `idle_atoms.replace_unused_atoms`, wherever the atoms are."""
    if not isinstance(D, Tensor):
        return idle_atoms.replace_unused_atoms(D, _fetch(uses), _fetch(candidates))
    with device_context():
        return gpu_sums.replace_unused_atoms(D, to_device(uses), to_device(candidates))


def class_residuals(
    D: NDArray, Y: NDArray | Tensor, S: csr_array, atom_classes: NDArray, n_classes: int
) -> NDArray[np.float64]:
    """‖y − δ_i(s)D‖ for every row and class."""
    with device_context():
        Y, atoms = to_device(Y), to_device(D)
        dense = to_dense(S, Y.device)
        return checked_residuals(class_norms(atoms, Y, dense, atom_classes, n_classes), Y.dtype)


def update_atoms(
    D: NDArray | Tensor, E: NDArray | Tensor, F: NDArray | Tensor, n_sweeps: int, tol: float
) -> NDArray | Tensor:
    """Sweeps over all atoms until none moves by more than tol, n_sweeps at most.

    Atoms on the device stay there.
    """
    with device_context():
        given = to_device(D)
        E_, F_ = (to_device(x).to(given.dtype) for x in (E, F))
        scale = _comfortable_scale(E_, F_)
        if scale is None:
            check_sums(_fetch(E_), _fetch(F_))
        elif scale != 1:
            E_, F_ = E_ * scale, F_ * scale
        atoms = given.clone()
        sweep = _algorithms()[2].sweep
        for _ in range(n_sweeps):
            before = atoms.clone()
            sweep(atoms, E_, F_)
            if n_sweeps > 1 and (atoms - before).abs().max() <= tol:
                break
        # Squares that overflow or vanish make atoms that are not of unit norm.
        off = ~((norms_of(atoms) - 1).abs() < 1e-3) & (atoms != given).any(dim=1)
        if off.any():
            check_result("the atoms", np.array([np.nan]), as_numpy_type(atoms.dtype))
        return atoms if isinstance(D, Tensor) else atoms.cpu().numpy()


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
