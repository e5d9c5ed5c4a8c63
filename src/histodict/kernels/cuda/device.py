"""CUDA device of the GPU backend: data transfer, codes on the device, and statistics.

The device is the first CUDA device, or the one named by the environment variable HISTODICT_DEVICE
("cuda:1"). The value "cpu" is for tests, which replace the Triton kernels by plain PyTorch. One
thread at a time uses the device (`device_context`).

Codes have three forms: dense tensors (n, k) of n samples and k atoms; CSR arrays on the host; and
tables, which are two tensors (n, n_slots) of atom indices and their coefficients, and a mask of the
slots that are used.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from ..input_checks import check_range, check_result
from ..sufficient_statistics import DUPLICATE_COSINE, SufficientStatistics


def row_norms(Y: Tensor) -> Tensor:
    """Return the norms over the last dimension, in double precision."""
    return torch.linalg.vector_norm(Y, dim=-1, dtype=torch.float64)


def check_norms(name: str, norms: Tensor, dtype: torch.dtype, max_factor: float = 1.0) -> None:
    """Raise ValueError if results for rows of these norms would overflow; see `check_range`."""
    largest = np.array([norms.max().item() if norms.numel() else 0.0])
    with np.errstate(over="ignore"):
        squares = largest**2
    check_range(name, squares, as_numpy_type(dtype), max_factor)


def as_numpy_type(dtype: torch.dtype) -> np.dtype:
    """Return the NumPy dtype of a PyTorch dtype."""
    return np.dtype(str(dtype).removeprefix("torch."))


def as_divisors(norms: Tensor) -> Tensor:
    """Return the norms with 0 replaced by 1, for use as divisors."""
    return torch.where(norms > 0, norms, 1)


def codes_from_basis(alphas: Tensor, R: Tensor, sample_norms: Tensor, atom_norms: Tensor) -> Tensor:
    """Return the codes of the selected atoms, from coefficients in their orthonormal basis.

    `alphas` and `R` are results of `kernels.cuda.omp.pursue`. `sample_norms` (n,) and `atom_norms`
    (n, n_slots) are the norms by which the samples and selected atoms were divided before it.
    """
    codes = torch.linalg.solve_triangular(R.mT, alphas[..., None], upper=True)[..., 0]
    return codes * (sample_norms[:, None] / atom_norms).to(codes.dtype)


def valid_entries(selected: Tensor, sizes: Tensor) -> Tensor:
    """Return the mask (n, n_slots) of the used slots of a table: the first sizes[i] slots of row i.

    `selected` (n, n_slots) are the atom indices of the table.
    """
    return torch.arange(selected.shape[1], device=selected.device) < sizes[:, None]


def to_csr(atoms: Tensor, codes: Tensor, is_valid: Tensor, n_atoms: int) -> csr_array:
    """Convert codes from a table to a CSR array (n, n_atoms).

    `atoms` and `codes` (n, n_slots) are atom indices and coefficients, `is_valid` is the mask.
    """
    positions = torch.nonzero(is_valid.flatten())[:, 0]
    indptr = torch.nn.functional.pad(is_valid.sum(dim=1).cumsum(dim=0), (1, 0)).int()
    arrays = (codes.flatten()[positions], atoms.flatten()[positions].int(), indptr)
    S = csr_array(tuple(array.cpu().numpy() for array in arrays), shape=(len(atoms), n_atoms))
    check_result("the codes", S.data, S.dtype)
    return S


def table_to_dense(atoms: Tensor, codes: Tensor, is_valid: Tensor, n_atoms: int) -> Tensor:
    """Convert codes from a table to a dense tensor (n, n_atoms); parameters as in `to_csr`."""
    dense = codes.new_zeros(len(atoms), n_atoms)
    # Unused slots add zero to an arbitrary atom.
    return dense.scatter_add_(1, atoms.long().clamp(min=0), torch.where(is_valid, codes, 0))


def to_dense(S: csr_array, device: torch.device) -> Tensor:
    """Convert codes from a CSR array (n, k) to a dense tensor on the device."""
    indptr, indices, data = (
        torch.from_numpy(array).to(device) for array in (S.indptr, S.indices, S.data)
    )
    rows = torch.repeat_interleave(indptr.diff(), output_size=len(data))
    dense = torch.zeros(S.shape, dtype=data.dtype, device=device)
    dense[rows, indices.long()] = data
    return dense


def class_residual_norms(
    D: Tensor, Y: Tensor, S: Tensor, atom_classes: NDArray, n_classes: int
) -> Tensor:
    """Return the residual norms of the samples with the atoms of each class, (n, n_classes).

    S (n, k) are dense codes, and `atom_classes` (k,) the class indices of the atoms.
    """
    norms = torch.empty(len(Y), n_classes, dtype=torch.float64, device=Y.device)
    for i in range(n_classes):
        own = torch.from_numpy(np.flatnonzero(atom_classes == i)).to(Y.device)
        norms[:, i] = row_norms(torch.addmm(Y, S[:, own], D[own], alpha=-1))
    return norms


def check_residuals(norms: Tensor, dtype: torch.dtype) -> NDArray[np.float64]:
    """Return residuals as a NumPy array; raise ValueError if they have overflowed."""
    residuals = norms.cpu().numpy()
    check_result("the residuals", residuals, as_numpy_type(dtype))
    return residuals


_TORCH_DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_DEVICE_LOCK = threading.RLock()
_THREAD_STATE = threading.local()
# Number of bytes copied to the device at a time, through pinned memory.
_STAGED_BYTES = 2**23


def find_device() -> torch.device:
    """Return the device on which to compute.

    Raises
    ------
    ValueError
        If there is no CUDA device.
    """
    name = os.environ.get("HISTODICT_DEVICE", "cuda")
    if not name.startswith("cuda"):
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ValueError(
            "backend='cuda' found no CUDA device; check the driver and that PyTorch is a "
            "CUDA build (https://pytorch.org/get-started), or use backend='cpu'"
        )
    return torch.device(name)


@contextmanager
def device_context() -> Iterator[None]:
    """Context in which only this thread uses the device, and products do not use TF32."""
    device = find_device()
    on_cuda = device.type == "cuda"
    with _DEVICE_LOCK, torch.cuda.device(device) if on_cuda else nullcontext():
        if on_cuda and not hasattr(_THREAD_STATE, "is_initialized"):
            # The first call of a thread must initialise the device.
            torch.cuda.current_stream().synchronize()
            _THREAD_STATE.is_initialized = True
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def to_device(X: NDArray | Tensor, dtype: np.dtype | torch.dtype | None = None) -> Tensor:
    """Return a NumPy array or a tensor as a tensor on the device; None keeps the dtype of X."""
    device = find_device()
    if not isinstance(X, Tensor):
        # PyTorch warns about read-only arrays, such as memory maps.
        X = torch.from_numpy(np.require(X, requirements=["C_CONTIGUOUS", "WRITEABLE"]))
    if not isinstance(dtype, torch.dtype):
        dtype = X.dtype if dtype is None else _TORCH_DTYPES[np.dtype(dtype)]
    if device.type != "cuda" or X.is_cuda:
        return X.to(device, dtype)
    compute_stream = torch.cuda.current_stream(device)
    with torch.cuda.stream(_copy_stream(device)):  # concurrent with computation
        Y = _copy_staged(X, device, dtype)
        compute_stream.wait_stream(_copy_stream(device))
    Y.record_stream(compute_stream)
    return Y


def _copy_staged(X: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return a copy of X on the device, made in chunks through pinned memory that PyTorch reuses.

    The host fills the memory of one chunk while another is copied.
    """
    Y = torch.empty(X.shape, dtype=dtype, device=device)
    if X.ndim == 0 or X.numel() == 0:
        return Y.copy_(X)
    n_rows = max(1, _STAGED_BYTES // max(1, Y[0].numel() * Y.element_size()))
    for source, target in zip(X.split(n_rows), Y.split(n_rows), strict=True):
        staged = torch.empty(source.shape, dtype=dtype, pin_memory=True)
        target.copy_(staged.copy_(source), non_blocking=True)
    return Y


def labels_to_device(labels: NDArray[np.int64] | Tensor) -> Tensor:
    """Return the labels of samples as a tensor on the device."""
    if isinstance(labels, Tensor):
        return labels
    return torch.from_numpy(np.ascontiguousarray(labels)).to(find_device())


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the CUDA stream for copies to the device, which run concurrently with computation."""
    return torch.cuda.Stream(device)


def cache_blocks(
    open_blocks: Callable[[], Iterator[tuple[NDArray, Any]]],
) -> Callable[[], Iterator[tuple[NDArray | Tensor, Any]]]:
    """Return a function like `open_blocks` that caches the blocks (X, labels) on the device.

    The cache uses at most half of the memory of the device.
    """
    device = find_device()
    cached: list[tuple[Tensor, Any]] = []

    def has_memory_for(X: NDArray) -> bool:
        if device.type != "cuda":
            return True
        free, total = torch.cuda.mem_get_info(device)
        return free - X.nbytes > total / 2

    def blocks() -> Iterator[tuple[NDArray | Tensor, Any]]:
        for position, (X, labels) in enumerate(open_blocks()):
            if position == len(cached) and has_memory_for(X):
                cached.append((to_device(X), labels_to_device(labels)))
            yield cached[position] if position < len(cached) else (X, labels)

    return blocks


class DeviceStatistics(SufficientStatistics):
    """Sufficient statistics whose arrays, and objective, are tensors on the device."""

    def to_double_precision(self) -> SufficientStatistics:
        """Convert E and F to double precision, in place, and return self."""
        self.E, self.F = self.E.double(), self.F.double()
        if self.F_own_class is not None:
            self.F_own_class = self.F_own_class.double()
        return self

    def merge_worst(self, other: SufficientStatistics, n_worst: int) -> None:
        """Add the worst samples of `other`; store only the `n_worst` with the largest residuals."""
        errors = torch.cat([self.worst_errors, other.worst_errors])
        samples = torch.cat([self.worst_samples, other.worst_samples])
        worst = errors.argsort(descending=True, stable=True)[:n_worst]
        self.worst_errors, self.worst_samples = errors[worst], samples[worst]

    def worst_reconstructed(self) -> Any:
        """Return the worst samples whose residual is larger than rounding errors."""
        norms = self.worst_samples.square().sum(dim=1)
        return self.worst_samples[self.worst_errors > 1e-6 * norms]

    def linearize_at(self, D: Tensor, proximal_weight: float) -> SufficientStatistics:
        """Return statistics for the linearised objective; see `SufficientStatistics`."""
        with device_context():
            mu = proximal_weight * self.F_own_class.trace() / len(D)
            gradient = (self.F_own_class - self.F).to(D.dtype) @ D
            return replace(self, E=self.E + gradient + mu * D, F=self.F_own_class)

    def to_host(self) -> SufficientStatistics:
        """Return the statistics with NumPy arrays."""
        arrays = {
            field.name: _to_numpy(getattr(self, field.name))
            for field in fields(self)
            if field.name != "objective"
        }
        return SufficientStatistics(**arrays, objective=float(self.objective))


def _to_numpy(array: Tensor | None) -> Any:
    return None if array is None else array.cpu().numpy()


def compute_statistics(
    Y: Tensor,
    S: Tensor,
    errors: Tensor,
    labels: Tensor,
    own_label: int,
    class_weights: Tensor,
    n_worst: int,
    with_own_class: bool,
) -> DeviceStatistics:
    """Compute the sufficient statistics of a block of samples.

    Parameters
    ----------
    Y : (n, n_features), samples
    S : (n, k), dense codes
    errors : (n,), squared residuals
    labels : (n,), class index of each sample
    own_label, class_weights, n_worst, with_own_class : as in `encode_and_accumulate` of
        `kernels.cpu.backend`
    """
    w = class_weights[labels]
    weighted = S * w[:, None].to(S.dtype)
    own = labels == own_label
    S_own = S * own[:, None]
    usage_counts = (S_own != 0).sum(dim=0)
    # A stable order gives equal errors the same order as on the host; other classes come last.
    own_errors = torch.where(own, errors, -torch.inf)
    worst = own_errors.argsort(descending=True, stable=True)[:n_worst]
    return DeviceStatistics(
        E=weighted.T @ Y,
        F=_symmetrize(weighted.T @ S),
        usage_counts=usage_counts,
        sign_balance=2 * (S_own > 0).sum(dim=0) - usage_counts,
        objective=w @ errors,  # stays a tensor, to avoid waiting for the device
        worst_errors=own_errors[worst],
        worst_samples=Y[worst],
        F_own_class=class_weights[own_label].to(S.dtype) * _symmetrize(S_own.T @ S)
        if with_own_class
        else None,
    )


def _symmetrize(F: Tensor) -> Tensor:
    return 0.5 * (F + F.T)


def replace_unused_atoms(D: Tensor, usage_counts: Tensor, candidates: Tensor) -> Tensor:
    """Return D with unused and duplicate atoms replaced by candidate samples.

    The parameters are those of `kernels.sufficient_statistics.replace_unused_atoms`.
    """
    replaceable = torch.nonzero((usage_counts == 0) | _duplicate_atoms(D))[:, 0]
    if len(replaceable) == 0 or len(candidates) == 0:
        return D
    new_atoms = candidates[candidates.any(dim=1)]
    norms = torch.linalg.vector_norm(new_atoms, dim=1, keepdim=True, dtype=torch.float64)
    new_atoms = (new_atoms / norms).to(D.dtype)
    new_atoms = new_atoms[~_duplicate_atoms(new_atoms)]
    new_atoms = new_atoms[~((new_atoms @ D.T).abs() > DUPLICATE_COSINE).any(dim=1)]
    n_replaced = min(len(replaceable), len(new_atoms))
    D = D.clone()
    D[replaceable[:n_replaced]] = new_atoms[:n_replaced]
    return D


def _duplicate_atoms(D: Tensor) -> Tensor:
    return ((D @ D.T).abs().tril(-1) > DUPLICATE_COSINE).any(dim=1)
