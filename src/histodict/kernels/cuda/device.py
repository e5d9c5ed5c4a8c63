"""CUDA device of the GPU backend: data transfer, codes on the device, and statistics.

The device is the first CUDA device, or the one named by the environment variable HISTODICT_DEVICE
("cuda:1"). The value "cpu" is for tests, which replace the Triton kernels by plain PyTorch. One
thread at a time uses the device (`device_context`).

Codes have three forms: tables of selected atoms, dense tensors, and CSR arrays on the host.
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
from ..sufficient_statistics import SAME_DIRECTION, SufficientStatistics


def norms_of(Y: Tensor) -> Tensor:
    """Return the norms of the rows in double precision."""
    return torch.linalg.vector_norm(Y, dim=-1, dtype=torch.float64)


def check_norms(name: str, norms: Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    """Check the largest norm with `input_checks.check_range`; transfer one number only."""
    largest = np.array([norms.max().item() if norms.numel() else 0.0])
    with np.errstate(over="ignore"):
        squares = largest**2
    check_range(name, squares, as_numpy_type(dtype), times)


def as_numpy_type(dtype: torch.dtype) -> np.dtype:
    """Return the NumPy dtype of a PyTorch dtype."""
    return np.dtype(str(dtype).removeprefix("torch."))


def nonzero(norms: Tensor) -> Tensor:
    """Return the norms with zeros replaced by 1, as divisors."""
    return torch.where(norms > 0, norms, 1)


def codes_of(alphas: Tensor, R: Tensor, sample_norms: Tensor, atom_norms: Tensor) -> Tensor:
    """Compute the codes of the selected atoms from coefficients in their orthonormal basis.

    Parameters
    ----------
    alphas, R : coefficients and triangular matrices, as returned by `kernels.cuda.omp.pursue`
    sample_norms, atom_norms : norms by which samples and selected atoms were divided
    """
    codes = torch.linalg.solve_triangular(R.mT, alphas[..., None], upper=True)[..., 0]
    return codes * (sample_norms[:, None] / atom_norms).to(codes.dtype)


def active_positions(picks: Tensor, sizes: Tensor) -> Tensor:
    """Return a mask of the valid entries of a table `picks` (n, slots), whose rows have `sizes`."""
    return torch.arange(picks.shape[1], device=picks.device) < sizes[:, None]


def to_csr(atoms: Tensor, codes: Tensor, used: Tensor, n_atoms: int) -> csr_array:
    """Convert (n, slots) tables of atoms and codes, with a mask `used`, to a CSR array."""
    places = torch.nonzero(used.flatten())[:, 0]
    indptr = torch.nn.functional.pad(used.sum(dim=1).cumsum(dim=0), (1, 0)).int()
    arrays = (codes.flatten()[places], atoms.flatten()[places].int(), indptr)
    S = csr_array(tuple(array.cpu().numpy() for array in arrays), shape=(len(atoms), n_atoms))
    check_result("the codes", S.data, S.dtype)
    return S


def table_to_dense(atoms: Tensor, codes: Tensor, used: Tensor, n_atoms: int) -> Tensor:
    """Convert (n, slots) tables of atoms and codes, with a mask `used`, to dense codes (n, k)."""
    dense = codes.new_zeros(len(atoms), n_atoms)
    # Unused slots add zero to an arbitrary atom.
    return dense.scatter_add_(1, atoms.long().clamp(min=0), torch.where(used, codes, 0))


def to_dense(S: csr_array, device: torch.device) -> Tensor:
    """Return codes as a dense (n, k) tensor."""
    indptr, indices, data = (
        torch.from_numpy(array).to(device) for array in (S.indptr, S.indices, S.data)
    )
    rows = torch.repeat_interleave(indptr.diff(), output_size=len(data))
    dense = torch.zeros(S.shape, dtype=data.dtype, device=device)
    dense[rows, indices.long()] = data
    return dense


def class_norms(D: Tensor, Y: Tensor, S: Tensor, atom_classes: NDArray, n_classes: int) -> Tensor:
    """Return ‖y − δ_i(s)D‖ for dense codes S: (n, n_classes)."""
    norms = torch.empty(len(Y), n_classes, dtype=torch.float64, device=Y.device)
    for i in range(n_classes):
        own = torch.from_numpy(np.flatnonzero(atom_classes == i)).to(Y.device)
        norms[:, i] = norms_of(torch.addmm(Y, S[:, own], D[own], alpha=-1))
    return norms


def checked_residuals(norms: Tensor, dtype: torch.dtype) -> NDArray[np.float64]:
    """Return residuals as a NumPy array after a check for overflow."""
    residuals = norms.cpu().numpy()
    check_result("the residuals", residuals, as_numpy_type(dtype))
    return residuals


_TYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_ONE_AT_A_TIME = threading.RLock()
_THREAD = threading.local()
# Number of bytes copied to the device at a time, through pinned memory.
_STAGED_BYTES = 2**23


def find_device() -> torch.device:
    """Return the device to compute on.

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
    """Reserve the device for one thread, with full single-precision matrix products (no TF32)."""
    device = find_device()
    on_cuda = device.type == "cuda"
    with _ONE_AT_A_TIME, torch.cuda.device(device) if on_cuda else nullcontext():
        if on_cuda and not hasattr(_THREAD, "opened"):
            # The first call of a thread must initialise the device.
            torch.cuda.current_stream().synchronize()
            _THREAD.opened = True
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def to_device(X: NDArray | Tensor, dtype: np.dtype | torch.dtype | None = None) -> Tensor:
    """Return X, a NumPy array or a tensor, as a tensor on the device.

    Parameters
    ----------
    X : array or tensor
    dtype : dtype of the result; None keeps that of X
    """
    device = find_device()
    if not isinstance(X, Tensor):
        # PyTorch warns about read-only arrays, such as memory maps.
        X = torch.from_numpy(np.require(X, requirements=["C_CONTIGUOUS", "WRITEABLE"]))
    if not isinstance(dtype, torch.dtype):
        dtype = X.dtype if dtype is None else _TYPES[np.dtype(dtype)]
    if device.type != "cuda" or X.is_cuda:
        return X.to(device, dtype)
    computing = torch.cuda.current_stream(device)
    with torch.cuda.stream(_copying(device)):  # concurrent with computation
        Y = _copy_staged(X, device, dtype)
        computing.wait_stream(_copying(device))
    Y.record_stream(computing)
    return Y


def _copy_staged(X: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Copy X to the device in parts; the host fills pinned memory while other parts are copied.

    PyTorch caches pinned memory and reuses it for the next part once its copy is done.
    """
    Y = torch.empty(X.shape, dtype=dtype, device=device)
    if X.ndim == 0 or X.numel() == 0:
        return Y.copy_(X)
    n_rows = max(1, _STAGED_BYTES // max(1, Y[0].numel() * Y.element_size()))
    for source, part in zip(X.split(n_rows), Y.split(n_rows), strict=True):
        staged = torch.empty(source.shape, dtype=dtype, pin_memory=True)
        part.copy_(staged.copy_(source), non_blocking=True)
    return Y


def labels_to_device(labels: NDArray[np.int64] | Tensor) -> Tensor:
    """Return the labels of samples as a tensor on the device."""
    if isinstance(labels, Tensor):
        return labels
    return torch.from_numpy(np.ascontiguousarray(labels)).to(find_device())


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def cache_blocks(
    open_blocks: Callable[[], Iterator[tuple[NDArray, Any]]],
) -> Callable[[], Iterator[tuple[NDArray | Tensor, Any]]]:
    """Return a function that iterates over the blocks and caches them on the device.

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
    """Sufficient statistics in tensors on the device; `objective` is a tensor, too."""

    def in_double_precision(self) -> SufficientStatistics:
        """Convert E and F to double precision, in place, and return self."""
        self.E, self.F = self.E.double(), self.F.double()
        if self.F_own_class is not None:
            self.F_own_class = self.F_own_class.double()
        return self

    def store_worst(self, other: SufficientStatistics, n_worst: int) -> None:
        """Keep the `n_worst` samples with the largest residuals of both statistics."""
        errors = torch.cat([self.worst_errors, other.worst_errors])
        samples = torch.cat([self.worst_samples, other.worst_samples])
        worst = errors.argsort(descending=True, stable=True)[:n_worst]
        self.worst_errors, self.worst_samples = errors[worst], samples[worst]

    def worst_reconstructed(self) -> Any:
        """Return the worst samples, without those whose residual is within rounding error."""
        norms = self.worst_samples.square().sum(dim=1)
        return self.worst_samples[self.worst_errors > 1e-6 * norms]

    def with_tangent(self, D: Tensor, proximal_weight: float) -> SufficientStatistics:
        """Return the statistics of the linearised problem; see `SufficientStatistics`."""
        with device_context():
            mu = proximal_weight * self.F_own_class.trace() / len(D)
            bent = (self.F_own_class - self.F).to(D.dtype) @ D
            return replace(self, E=self.E + bent + mu * D, F=self.F_own_class)

    def on_host(self) -> SufficientStatistics:
        """Return the statistics as NumPy arrays."""
        arrays = {
            field.name: _to_numpy(getattr(self, field.name))
            for field in fields(self)
            if field.name != "objective"
        }
        return SufficientStatistics(**arrays, objective=float(self.objective))


def _to_numpy(array: Tensor | None) -> Any:
    return None if array is None else array.cpu().numpy()


def sum_codes(
    Y: Tensor,
    S: Tensor,
    errors: Tensor,
    labels: Tensor,
    own_label: int,
    class_weights: Tensor,
    n_worst: int,
    split: bool,
) -> DeviceStatistics:
    """Compute the statistics of a block.

    Parameters
    ----------
    Y : (n, n_features), samples
    S : (n, k), dense codes
    errors : (n,), squared residuals
    labels : (n,), class index of each sample
    own_label, class_weights, n_worst, split : as in `kernels.cpu.backend.encode_and_accumulate`
    """
    w = class_weights[labels]
    weighted = S * w[:, None].to(S.dtype)
    own = labels == own_label
    S_own = S * own[:, None]
    uses = (S_own != 0).sum(dim=0)
    # A stable order gives equal errors the same order as on the host; other classes come last.
    own_errors = torch.where(own, errors, -torch.inf)
    worst = own_errors.argsort(descending=True, stable=True)[:n_worst]
    return DeviceStatistics(
        E=weighted.T @ Y,
        F=_symmetric(weighted.T @ S),
        usage_counts=uses,
        sign_balance=2 * (S_own > 0).sum(dim=0) - uses,
        objective=w @ errors,  # stays a tensor, to avoid waiting for the device
        worst_errors=own_errors[worst],
        worst_samples=Y[worst],
        F_own_class=class_weights[own_label].to(S.dtype) * _symmetric(S_own.T @ S)
        if split
        else None,
    )


def _symmetric(F: Tensor) -> Tensor:
    return 0.5 * (F + F.T)


def replace_unused_atoms(D: Tensor, uses: Tensor, candidates: Tensor) -> Tensor:
    """Replace unused and duplicate atoms, as `sufficient_statistics.replace_unused_atoms`."""
    idle = torch.nonzero((uses == 0) | _repeated(D))[:, 0]
    if len(idle) == 0 or len(candidates) == 0:
        return D
    fresh = candidates[candidates.any(dim=1)]
    norms = torch.linalg.vector_norm(fresh, dim=1, keepdim=True, dtype=torch.float64)
    fresh = (fresh / norms).to(D.dtype)
    fresh = fresh[~_repeated(fresh)]
    fresh = fresh[~((fresh @ D.T).abs() > SAME_DIRECTION).any(dim=1)]
    n_replaced = min(len(idle), len(fresh))
    D = D.clone()
    D[idle[:n_replaced]] = fresh[:n_replaced]
    return D


def _repeated(D: Tensor) -> Tensor:
    return ((D @ D.T).abs().tril(-1) > SAME_DIRECTION).any(dim=1)
