"""GPU backend: the algorithms of `kernels.cpu.backend` with PyTorch and Triton.

Arrays are of one float dtype, finite and of matching shapes; this is not checked here. Overflow of
intermediate results is checked. Samples are NumPy arrays or tensors on the device (`to_device`).
Results are NumPy arrays, except data that a training continues with: `encode_and_accumulate`
returns statistics on the device, and atoms passed as tensors are returned as tensors. See
`kernels.cuda.device` for the device and its use by one thread at a time.
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

# Large blocks, because the last samples of a block leave most of a large device idle. A block with
# 1200 features takes 150 MiB, and as much again for intermediate results.
BLOCK_ROWS = 32_768
TASK_ROWS = 1024
FINDS_NAN = True  # faster on the device than on the host
_JOINT_ROWS = 4096  # rows of a block at a time, because PyTorch stores all basis vectors


def _algorithms() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Return the Triton modules for pursuit, l1 coding and atom updates; tests replace them."""
    try:
        from . import atom_update as gpu_atoms_triton
        from . import lasso as gpu_lasso_triton
        from . import omp as gpu_omp_triton
    except ModuleNotFoundError as error:
        raise ValueError(
            f"backend='cuda' needs {error.name}, which is part of PyTorch with CUDA on Linux; "
            "run pip install triton, or use backend='cpu'"
        ) from error
    return gpu_omp_triton, gpu_lasso_triton, gpu_atoms_triton


def _fetch(array: NDArray | Tensor) -> NDArray:
    """Return an array of this backend as a NumPy array."""
    return array.cpu().numpy() if isinstance(array, Tensor) else array


def count_threads(n_jobs: int | None) -> int:
    """Return 1: a single thread feeds the device; `n_jobs` is only checked."""
    count_jobs(n_jobs)  # raises an error if it is invalid
    return 1


def is_finite(Y: Tensor) -> bool:
    """Return whether samples on the device contain no NaN and no infinity."""
    # 0 times NaN or infinity is NaN: this takes one pass and transfers one number.
    return bool((0 * Y).sum() == 0)


def zeros(shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of zeros on the device in double precision."""
    return torch.zeros(shape, dtype=torch.float64, device=find_device())


def _padded(D: NDArray | Tensor) -> Tensor:
    """Pad the atoms with zero atoms so that rows of products are aligned to 64 bytes."""
    return torch.nn.functional.pad(to_device(D), (0, 0, 0, -len(D) % 16))


class OMPCoder:
    """Greedy pursuit of at most n_nonzero atoms; see `kernels.cpu.omp` and `kernels.cuda.omp`.

    Atoms and samples are scaled to unit norm, so that one rounding threshold suits all. The codes
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
        """Return the codes of the rows of a block, and their squared residuals."""
        with device_context():
            picks, codes, used, errors = self.code_on_device(to_device(Y))
            return to_csr(picks, codes, used, self._n_atoms), errors.cpu().numpy()

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return selected atoms (n, L), codes, a mask of valid entries, and squared residuals."""
        sample_norms = norms_of(Y)
        check_norms("Y", sample_norms, Y.dtype)
        norms = nonzero(sample_norms)
        B = Y @ self._D.T
        B /= norms[:, None].to(B.dtype)
        picks, alphas, R, sizes, left = self._pursue(
            B,
            self._G,
            (sample_norms > 0).double(),
            self._tol / norms**2,
            self._n_nonzero,
            self._order_recursive,
        )
        codes = codes_of(alphas, R, norms, nonzero(self._norms)[picks.long()])
        return picks, codes, active_positions(picks, sizes), left * sample_norms**2

    def code_dense(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (n, n_atoms) and squared residuals (n,), on the device."""
        picks, codes, used, errors = self.code_on_device(Y)
        return table_to_dense(picks, codes, used, self._n_atoms), errors


class JointCoder:
    """Greedy pursuit of one support for all channels; see `kernels.cpu.joint_omp`.

    Atoms are scaled to unit norm in every channel, samples to unit norm over all channels. The
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
        """Return the codes of Y (n_channels, n, n_features) per channel, and squared residuals."""
        with device_context():
            parts = [self._code_part(part) for part in to_device(Y).split(_JOINT_ROWS, dim=1)]
        codes, errors = zip(*parts, strict=True)
        return [vstack(channel, format="csr") for channel in zip(*codes, strict=True)], (
            np.concatenate(errors)
        )

    def _code_part(self, Y: Tensor) -> tuple[list[csr_array], NDArray[np.float64]]:
        sample_norms = torch.linalg.vector_norm(norms_of(Y), dim=0)
        check_norms("Y", sample_norms, Y.dtype)
        norms = nonzero(sample_norms)
        B = Y @ self._D.mT
        B /= norms[:, None].to(B.dtype)
        picks, alphas, R, sizes, left = gpu_joint.pursue(
            B,
            self._G,
            (sample_norms > 0).double(),
            self._tol / norms**2,
            self._n_nonzero,
            self._order_recursive,
        )
        codes = codes_of(alphas, R, norms, self._norms[:, picks.long()])
        used = active_positions(picks, sizes)
        S = [to_csr(picks, codes_c, used, self._n_atoms) for codes_c in codes]
        return S, (left * sample_norms**2).cpu().numpy()


class LassoCoder:
    """Exact l1 codes; see `kernels.cpu.lasso` and `kernels.cuda.lasso`."""

    def __init__(self, D: NDArray | Tensor, penalty: float, tol: float) -> None:
        self._n_atoms = len(D)
        self._penalty = penalty
        self._capacity = min(D.shape) + 1
        with device_context():
            self._D = _padded(D)
            # Rounding of the products must not raise the true gap above the tolerance.
            self._tol = max(tol - 256 * torch.finfo(self._D.dtype).eps, 0.5 * tol)
            norms = norms_of(self._D)
            self._largest = float(norms.max())
            check_norms("D", norms, self._D.dtype, times=self._largest)
            self._solve = _algorithms()[1].solve
            self._G = self._D @ self._D.T

    def code(self, Y: NDArray | Tensor) -> tuple[csr_array, int]:
        """Return the codes of the rows, and the number of rows that missed the tolerance."""
        with device_context():
            atoms, codes, n_missed = self.code_on_device(to_device(Y))
            return to_csr(atoms, codes, atoms >= 0, self._n_atoms), n_missed

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return active atoms (n, slots), their codes, and how many rows missed the tolerance.

        A free slot has the atom −1.
        """
        norms = norms_of(Y)
        check_norms("Y", norms, Y.dtype, times=self._largest)
        return self._solve(
            Y @ self._D.T, norms**2, self._G, self._penalty, self._tol, self._capacity
        )

    def code_dense(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (n, n_atoms) and squared residuals (n,), on the device."""
        S, _ = self.code_all(Y)
        return S, norms_of(torch.addmm(Y, S, self._D[: self._n_atoms], alpha=-1)) ** 2

    def code_all(self, Y: Tensor) -> tuple[Tensor, int]:
        """Return codes (n, n_atoms) on the device, and how many rows missed the tolerance."""
        atoms, codes, n_missed = self.code_on_device(Y)
        return table_to_dense(atoms, codes, atoms >= 0, self._n_atoms), n_missed

    def residuals(
        self, Y: NDArray | Tensor, atom_classes: NDArray, n_classes: int
    ) -> tuple[NDArray[np.float64], int]:
        """Return class residuals ‖y − δ_i(s)D‖, and how many rows missed the tolerance."""
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
    """Code the rows of a block and return their sufficient statistics, on the device.

    For the parameters see `kernels.cpu.backend.encode_and_accumulate`.
    """
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
    """Replace unused and duplicate atoms by candidates; D may be an array or a tensor.

    For the parameters see `kernels.sufficient_statistics.replace_unused_atoms`.
    """
    if not isinstance(D, Tensor):
        return idle_atoms.replace_unused_atoms(D, _fetch(uses), _fetch(candidates))
    with device_context():
        return gpu_sums.replace_unused_atoms(D, to_device(uses), to_device(candidates))


def class_residuals(
    D: NDArray, Y: NDArray | Tensor, S: csr_array, atom_classes: NDArray, n_classes: int
) -> NDArray[np.float64]:
    """Return ‖y − δ_i(s)D‖ for all rows and classes: (n, n_classes)."""
    with device_context():
        Y, atoms = to_device(Y), to_device(D)
        dense = to_dense(S, Y.device)
        return checked_residuals(class_norms(atoms, Y, dense, atom_classes, n_classes), Y.dtype)


def update_atoms(
    D: NDArray | Tensor, E: NDArray | Tensor, F: NDArray | Tensor, n_sweeps: int, tol: float
) -> NDArray | Tensor:
    """Sweep over all atoms until no entry changes by more than tol, at most n_sweeps times.

    Atoms passed as a tensor are returned as a tensor.
    """
    with device_context():
        initial = to_device(D)
        E_, F_ = (to_device(x).to(initial.dtype) for x in (E, F))
        scale = _comfortable_scale(E_, F_)
        if scale is None:
            check_sums(_fetch(E_), _fetch(F_))
        elif scale != 1:
            E_, F_ = E_ * scale, F_ * scale
        atoms = initial.clone()
        sweep = _algorithms()[2].sweep
        for _ in range(n_sweeps):
            before = atoms.clone()
            sweep(atoms, E_, F_)
            if n_sweeps > 1 and (atoms - before).abs().max() <= tol:
                break
        # Overflow or underflow of squares gives atoms that do not have unit norm.
        off = ~((norms_of(atoms) - 1).abs() < 1e-3) & (atoms != initial).any(dim=1)
        if off.any():
            check_result("the atoms", np.array([np.nan]), as_numpy_type(atoms.dtype))
        return atoms if isinstance(D, Tensor) else atoms.cpu().numpy()


def _comfortable_scale(E: Tensor, F: Tensor) -> float | None:
    """Return 1, or a power of two that prevents overflow of squares of E and F; None if infinite.

    The scale does not change the minimiser of −2·tr(E Dᵀ) + tr(F D Dᵀ), bit for bit.
    """
    largest = float(torch.maximum(E.abs().max(), F.abs().max()))
    if not np.isfinite(largest):
        return None
    most = int(np.log2(torch.finfo(E.dtype).max)) // 4
    exponent = int(np.frexp(largest)[1])
    return 1.0 if abs(exponent) <= most else 2.0 ** -max(-3 * most, min(3 * most, exponent))
