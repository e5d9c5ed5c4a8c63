"""GPU backend: the functions of `kernels.cpu.backend` with PyTorch and Triton.

Arrays are of one float dtype, finite and of matching shapes; this is not checked here. Overflow of
intermediate results is checked. Samples are NumPy arrays or tensors on the device (`to_device`).
Results are NumPy arrays, except data that a training continues with: `encode_and_accumulate`
returns statistics on the device, and functions return atoms as tensors if they get tensors. See
`kernels.cuda.device` for the device and its use by one thread at a time.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from ...utils.parallel import effective_n_jobs
from .. import sufficient_statistics as host_statistics
from .. import to_numpy
from ..input_checks import check_result, check_sums
from ..sufficient_statistics import SufficientStatistics
from . import device as gpu_device
from . import joint_omp as gpu_joint
from .device import (
    as_divisors,
    as_numpy_type,
    cache_blocks,
    check_norms,
    check_residuals,
    class_residual_norms,
    codes_from_basis,
    device_context,
    find_device,
    labels_to_device,
    row_norms,
    table_to_dense,
    to_csr,
    to_dense,
    to_device,
    valid_entries,
)

__all__ = [
    "BLOCK_ROWS",
    "CHECKS_NAN",
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
CHECKS_NAN = True  # faster on the device than on the host
_JOINT_ROWS = 4096  # rows of a block at a time, because PyTorch stores all basis vectors


def _load_kernels() -> tuple[ModuleType, ModuleType, ModuleType]:
    """Import the Triton modules for pursuit, l1 coding and atom updates; tests replace them."""
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


def count_threads(n_jobs: int | None) -> int:
    """Return 1, as a single thread submits all work to the device; `n_jobs` is only checked."""
    effective_n_jobs(n_jobs)  # raises an error if it is invalid
    return 1


def is_finite(Y: Tensor) -> bool:
    """Return whether samples on the device contain no NaN and no infinity."""
    # 0 times NaN or infinity is NaN: this takes one pass and transfers one number.
    return bool((0 * Y).sum() == 0)


def zeros(shape: tuple[int, ...]) -> Tensor:
    """Return a tensor of zeros on the device in double precision."""
    return torch.zeros(shape, dtype=torch.float64, device=find_device())


def _pad_atoms(D: NDArray | Tensor) -> Tensor:
    """Append zero atoms to the atoms D, so that their number is a multiple of 16.

    Rows of products with the atoms are then aligned to 64 bytes.
    """
    return torch.nn.functional.pad(to_device(D), (0, 0, 0, -len(D) % 16))


class OMPCoder:
    """Coder by greedy pursuit of at most n_nonzero atoms; see `kernels.cuda.omp`.

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
            atoms = _pad_atoms(D)
            self._pursue = _load_kernels()[0].pursue
            self._norms = row_norms(atoms)
            check_norms("D", self._norms, atoms.dtype)
            self._D = (atoms / as_divisors(self._norms)[:, None]).to(atoms.dtype)
            self._G = self._D @ self._D.T

    def code(self, Y: NDArray | Tensor) -> tuple[csr_array, NDArray[np.float64]]:
        """Return the codes (n, n_atoms) of the samples Y and their squared residuals (n,)."""
        with device_context():
            selected, codes, is_valid, errors = self.code_on_device(to_device(Y))
            return to_csr(selected, codes, is_valid, self._n_atoms), errors.cpu().numpy()

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return codes as tensors on the device, where L is `n_nonzero`.

        Returns
        -------
        atoms : (n, L), indices of the atoms of each code
        codes : (n, L), coefficients of these atoms
        is_valid : (n, L), mask of the slots that are used
        squared_residuals : (n,)
        """
        sample_norms = row_norms(Y)
        check_norms("Y", sample_norms, Y.dtype)
        norms = as_divisors(sample_norms)
        B = Y @ self._D.T
        B /= norms[:, None].to(B.dtype)
        selected, alphas, R, sizes, remaining = self._pursue(
            B,
            self._G,
            (sample_norms > 0).double(),
            self._tol / norms**2,
            self._n_nonzero,
            self._order_recursive,
        )
        codes = codes_from_basis(alphas, R, norms, as_divisors(self._norms)[selected.long()])
        return selected, codes, valid_entries(selected, sizes), remaining * sample_norms**2

    def code_dense(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (n, n_atoms) and squared residuals (n,) as tensors on the device."""
        selected, codes, is_valid, errors = self.code_on_device(Y)
        return table_to_dense(selected, codes, is_valid, self._n_atoms), errors


class JointCoder:
    """Coder by greedy pursuit of one support for all channels; see `kernels.cpu.joint_omp`.

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
            norms = row_norms(atoms)
            check_norms("D", norms, atoms.dtype)
            self._norms = as_divisors(norms)
            self._D = (atoms / self._norms[:, :, None]).to(atoms.dtype)
            self._G = self._D @ self._D.mT

    def code(self, Y: NDArray | Tensor) -> tuple[list[csr_array], NDArray[np.float64]]:
        """Encode samples Y (n_channels, n, n_features).

        Return the codes (n, n_atoms) of each channel, and squared residuals (n,) over all channels.
        """
        with device_context():
            parts = [self._code_rows(part) for part in to_device(Y).split(_JOINT_ROWS, dim=1)]
        codes, errors = zip(*parts, strict=True)
        return [vstack(channel, format="csr") for channel in zip(*codes, strict=True)], (
            np.concatenate(errors)
        )

    def _code_rows(self, Y: Tensor) -> tuple[list[csr_array], NDArray[np.float64]]:
        sample_norms = torch.linalg.vector_norm(row_norms(Y), dim=0)
        check_norms("Y", sample_norms, Y.dtype)
        norms = as_divisors(sample_norms)
        B = Y @ self._D.mT
        B /= norms[:, None].to(B.dtype)
        selected, alphas, R, sizes, remaining = gpu_joint.pursue(
            B,
            self._G,
            (sample_norms > 0).double(),
            self._tol / norms**2,
            self._n_nonzero,
            self._order_recursive,
        )
        codes = codes_from_basis(alphas, R, norms, self._norms[:, selected.long()])
        is_valid = valid_entries(selected, sizes)
        S = [to_csr(selected, codes_c, is_valid, self._n_atoms) for codes_c in codes]
        return S, (remaining * sample_norms**2).cpu().numpy()


class LassoCoder:
    """Coder by exact l1 minimisation; see `kernels.cuda.lasso`."""

    def __init__(self, D: NDArray | Tensor, penalty: float, tol: float) -> None:
        self._n_atoms = len(D)
        self._penalty = penalty
        self._capacity = min(D.shape) + 1
        with device_context():
            self._D = _pad_atoms(D)
            # Rounding of the products must not raise the true gap above the tolerance.
            self._tol = max(tol - 256 * torch.finfo(self._D.dtype).eps, 0.5 * tol)
            norms = row_norms(self._D)
            self._max_norm = float(norms.max())
            check_norms("D", norms, self._D.dtype, max_factor=self._max_norm)
            self._solve = _load_kernels()[1].solve
            self._G = self._D @ self._D.T

    def code(self, Y: NDArray | Tensor) -> tuple[csr_array, int]:
        """Return the codes (n, n_atoms) of the samples Y, and the number of unconverged samples."""
        with device_context():
            atoms, codes, n_missed = self.code_on_device(to_device(Y))
            return to_csr(atoms, codes, atoms >= 0, self._n_atoms), n_missed

    def code_on_device(self, Y: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return atom indices and codes (n, n_slots each), and the number of unconverged samples.

        The index of a free slot is −1. n_slots is the number of atoms of the largest code, rounded
        up.
        """
        norms = row_norms(Y)
        check_norms("Y", norms, Y.dtype, max_factor=self._max_norm)
        return self._solve(
            Y @ self._D.T, norms**2, self._G, self._penalty, self._tol, self._capacity
        )

    def code_dense(self, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (n, n_atoms) and squared residuals (n,) as tensors on the device."""
        S, _ = self.solve_dense(Y)
        return S, row_norms(torch.addmm(Y, S, self._D[: self._n_atoms], alpha=-1)) ** 2

    def solve_dense(self, Y: Tensor) -> tuple[Tensor, int]:
        """Return codes (n, n_atoms) on the device, and the number of unconverged samples."""
        atoms, codes, n_missed = self.code_on_device(Y)
        return table_to_dense(atoms, codes, atoms >= 0, self._n_atoms), n_missed

    def residuals(
        self, Y: NDArray | Tensor, atom_classes: NDArray, n_classes: int
    ) -> tuple[NDArray[np.float64], int]:
        """Return residual norms by class (n, n_classes), and the number of unconverged samples."""
        with device_context():
            Y = to_device(Y)
            S, n_missed = self.solve_dense(Y)
            norms = class_residual_norms(self._D[: self._n_atoms], Y, S, atom_classes, n_classes)
            return check_residuals(norms, Y.dtype), n_missed


def encode_and_accumulate(
    coder: OMPCoder | LassoCoder,
    Y: NDArray | Tensor,
    labels: NDArray[np.int64] | Tensor,
    own_label: int,
    class_weights: NDArray[np.float64],
    n_worst: int,
    with_own_class: bool = False,
) -> SufficientStatistics:
    """Encode the samples of a block and return their sufficient statistics on the device.

    The parameters are those of `kernels.cpu.backend.encode_and_accumulate`.
    """
    with device_context():
        Y = to_device(Y)
        S, errors = coder.code_dense(Y)
        weights = torch.from_numpy(np.ascontiguousarray(class_weights)).to(Y.device)
        return gpu_device.compute_statistics(
            Y, S, errors, labels_to_device(labels), own_label, weights, n_worst, with_own_class
        )


def replace_unused_atoms(
    D: NDArray | Tensor, usage_counts: NDArray | Tensor, candidates: NDArray | Tensor
) -> NDArray | Tensor:
    """Return D with unused and duplicate atoms replaced: an array if D is an array, else a tensor.

    The parameters are those of `kernels.sufficient_statistics.replace_unused_atoms`.
    """
    if not isinstance(D, Tensor):
        return host_statistics.replace_unused_atoms(D, to_numpy(usage_counts), to_numpy(candidates))
    with device_context():
        return gpu_device.replace_unused_atoms(D, to_device(usage_counts), to_device(candidates))


def class_residuals(
    D: NDArray, Y: NDArray | Tensor, S: csr_array, atom_classes: NDArray, n_classes: int
) -> NDArray[np.float64]:
    """Return the residual norms of the samples with the atoms of each class, (n, n_classes)."""
    with device_context():
        Y, atoms = to_device(Y), to_device(D)
        dense = to_dense(S, Y.device)
        return check_residuals(
            class_residual_norms(atoms, Y, dense, atom_classes, n_classes), Y.dtype
        )


def update_atoms(
    D: NDArray | Tensor, E: NDArray | Tensor, F: NDArray | Tensor, n_sweeps: int, tol: float
) -> NDArray | Tensor:
    """Minimise −2·tr(E Dᵀ) + tr(F D Dᵀ) over unit-norm atoms, in `n_sweeps` sweeps or fewer.

    Return the new atoms, as an array if D is an array, else as a tensor.
    """
    with device_context():
        initial = to_device(D)
        E_, F_ = (to_device(x).to(initial.dtype) for x in (E, F))
        scale = _overflow_safe_scale(E_, F_)
        if scale is None:
            check_sums(to_numpy(E_), to_numpy(F_))
        elif scale != 1:
            E_, F_ = E_ * scale, F_ * scale
        atoms = initial.clone()
        sweep = _load_kernels()[2].sweep
        for _ in range(n_sweeps):
            before = atoms.clone()
            sweep(atoms, E_, F_)
            if n_sweeps > 1 and (atoms - before).abs().max() <= tol:
                break
        # Overflow or underflow of squares gives atoms that do not have unit norm.
        wrong_norm = ~((row_norms(atoms) - 1).abs() < 1e-3) & (atoms != initial).any(dim=1)
        if wrong_norm.any():
            check_result("the atoms", np.array([np.nan]), as_numpy_type(atoms.dtype))
        return atoms if isinstance(D, Tensor) else atoms.cpu().numpy()


def _overflow_safe_scale(E: Tensor, F: Tensor) -> float | None:
    """Return a power of two by which to multiply E and F so that no square overflows.

    It is 1 for most data, and does not change the minimiser, bit for bit. Return None if E or F is
    not finite.
    """
    largest = float(torch.maximum(E.abs().max(), F.abs().max()))
    if not np.isfinite(largest):
        return None
    max_exponent = int(np.log2(torch.finfo(E.dtype).max)) // 4
    exponent = int(np.frexp(largest)[1])
    return (
        1.0
        if abs(exponent) <= max_exponent
        else 2.0 ** -max(-3 * max_exponent, min(3 * max_exponent, exponent))
    )
