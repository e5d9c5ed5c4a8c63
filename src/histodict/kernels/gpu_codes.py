"""Codes on the device: tables of picks, dense, as CSR on the host; norms, and what they leave."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from .inputs import check_range, check_result


def norms_of(Y: Tensor) -> Tensor:
    return torch.linalg.vector_norm(Y, dim=-1, dtype=torch.float64)


def check_norms(name: str, norms: Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    """As `check_range`, which wants squares; one number comes from the device."""
    largest = np.array([norms.max().item() if norms.numel() else 0.0])
    with np.errstate(over="ignore"):
        squares = largest**2
    check_range(name, squares, as_numpy_type(dtype), times)


def as_numpy_type(dtype: torch.dtype) -> np.dtype:
    return np.dtype(str(dtype).removeprefix("torch."))


def nonzero(norms: Tensor) -> Tensor:
    return torch.where(norms > 0, norms, 1)


def codes_of(alphas: Tensor, R: Tensor, sample_norms: Tensor, atom_norms: Tensor) -> Tensor:
    """Coefficients of the picked atoms from those of their orthonormal basis, scaled back."""
    codes = torch.linalg.solve_triangular(R.mT, alphas[..., None], upper=True)[..., 0]
    return codes * (sample_norms[:, None] / atom_norms).to(codes.dtype)


def active_positions(picks: Tensor, sizes: Tensor) -> Tensor:
    return torch.arange(picks.shape[1], device=picks.device) < sizes[:, None]


def to_csr(atoms: Tensor, codes: Tensor, used: Tensor, n_atoms: int) -> csr_array:
    """Codes from (n, places) tables of atoms and their codes, where `used`."""
    places = torch.nonzero(used.flatten())[:, 0]
    indptr = torch.nn.functional.pad(used.sum(dim=1).cumsum(dim=0), (1, 0)).int()
    arrays = (codes.flatten()[places], atoms.flatten()[places].int(), indptr)
    S = csr_array(tuple(array.cpu().numpy() for array in arrays), shape=(len(atoms), n_atoms))
    check_result("the codes", S.data, S.dtype)
    return S


def table_to_dense(atoms: Tensor, codes: Tensor, used: Tensor, n_atoms: int) -> Tensor:
    """Codes (n, k) from (n, places) tables of atoms and their codes, where `used`."""
    dense = codes.new_zeros(len(atoms), n_atoms)
    # Places not in use add a zero to some atom.
    return dense.scatter_add_(1, atoms.long().clamp(min=0), torch.where(used, codes, 0))


def to_dense(S: csr_array, device: torch.device) -> Tensor:
    """Codes as a dense (n, k) tensor."""
    indptr, indices, data = (
        torch.from_numpy(array).to(device) for array in (S.indptr, S.indices, S.data)
    )
    rows = torch.repeat_interleave(indptr.diff(), output_size=len(data))
    dense = torch.zeros(S.shape, dtype=data.dtype, device=device)
    dense[rows, indices.long()] = data
    return dense


def class_norms(D: Tensor, Y: Tensor, S: Tensor, atom_classes: NDArray, n_classes: int) -> Tensor:
    """‖y − δ_i(s)D‖ (n, n_classes) for dense codes S."""
    norms = torch.empty(len(Y), n_classes, dtype=torch.float64, device=Y.device)
    for i in range(n_classes):
        own = torch.from_numpy(np.flatnonzero(atom_classes == i)).to(Y.device)
        norms[:, i] = norms_of(torch.addmm(Y, S[:, own], D[own], alpha=-1))
    return norms


def checked_residuals(norms: Tensor, dtype: torch.dtype) -> NDArray[np.float64]:
    residuals = norms.cpu().numpy()
    check_result("the residuals", residuals, as_numpy_type(dtype))
    return residuals
