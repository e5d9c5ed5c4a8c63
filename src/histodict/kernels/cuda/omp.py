"""Greedy pursuit on a CUDA device: the recursion of `kernels.cpu.omp`, one sample per program.

A program holds c, the correlations of a sample with the atoms, and `outside` (n in
`kernels.cpu.omp`), the squared norms of the atoms outside the span of the selected ones, in
registers. V, the products v_i of the basis with the atoms, is in scratch memory of the program,
which fits into the caches. The Gram matrix is in the second-level cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# With a fused multiply-add at the start of a sum over threads, the threads get results that differ
# by rounding. Threads that take different branches then wait for each other forever.
NO_FP_FUSION = {"enable_fp_fusion": False}
_ATOMS_PER_WARP = 128
_MAX_WARPS = 16
_WARPS_PER_PROCESSOR = 24
_CHUNK = 8  # basis vectors that are loaded from the cache together


def pursue(
    B: Tensor, G: Tensor, squared_norms: Tensor, tols: Tensor, n_nonzero: int, order_recursive: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Select and orthogonalise atoms for each sample; atoms and samples have norm 1 or 0.

    Parameters
    ----------
    B : (n, k), products ⟨y, d_j⟩ of n samples and k atoms
    G : (k, k), Gram matrix
    squared_norms : (n,), ‖y‖², 1 or 0
    tols : (n,), squared residuals at which a sample is finished
    n_nonzero : maximum number of atoms per sample (L)
    order_recursive : whether to select the atom with the largest ⟨r, d⟩²/p, where r is the residual
        and p the squared norm of atom d outside the span of the selected atoms; otherwise the atom
        with the largest ⟨r, d⟩²

    Returns
    -------
    selected : (n, L), indices of the selected atoms
    alphas : (n, L), coefficients in the orthonormal basis
    R : (n, L, L), lower triangles that map the basis to the selected atoms; rows of unused slots
        are those of the identity matrix
    sizes : (n,), number of selected atoms
    remaining : (n,), squared residuals
    """
    n_rows, k = B.shape
    epsilon = torch.finfo(B.dtype).eps
    width = triton.next_power_of_2(k)
    n_warps = max(1, min(_MAX_WARPS, width // _ATOMS_PER_WARP))
    n_programs = min(n_rows, _WARPS_PER_PROCESSOR // n_warps * count_processors(B.device))
    V = B.new_empty(n_programs, n_nonzero, width)
    R = torch.eye(n_nonzero, dtype=B.dtype, device=B.device).repeat(n_rows, 1, 1)
    alphas = B.new_zeros(n_rows, n_nonzero)
    selected = torch.zeros(n_rows, n_nonzero, dtype=torch.int32, device=B.device)
    sizes = torch.zeros(n_rows, dtype=torch.int32, device=B.device)
    remaining = squared_norms.clone()
    if n_rows:
        _pursue[(n_programs,)](
            B,
            G,
            tols,
            V,
            selected,
            alphas,
            R,
            sizes,
            remaining,
            n_rows,
            k,
            n_nonzero,
            epsilon**0.5,
            max(epsilon, 1e-12),
            order_recursive,
            width,
            triton.next_power_of_2(n_nonzero),
            _CHUNK,
            num_warps=n_warps,
            **NO_FP_FUSION,
        )
    return selected, alphas, R, sizes, remaining.clamp(min=0)


def count_processors(device: torch.device) -> int:
    """Return the number of multiprocessors of a CUDA device; 1 for the Triton interpreter."""
    if device.type != "cuda":
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def _larger_score(score, atom, c, other_score, other_atom, other_c):
    """Return (score, atom, c) of the atom with the larger score; of the first if both are equal."""
    keep = (score > other_score) | ((score == other_score) & (atom < other_atom))
    return (
        tl.where(keep, score, other_score),
        tl.where(keep, atom, other_atom),
        tl.where(keep, c, other_c),
    )


@triton.jit
def _pursue(
    B,
    G,
    tols,
    V,
    selected,
    alphas,
    R,
    sizes,
    squared_residuals,
    n_rows,
    k,
    n_nonzero,
    min_pivot,
    noise_fraction,
    ORDER_RECURSIVE: tl.constexpr,
    ATOMS: tl.constexpr,
    STEPS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Encode rows of B; see `pursue`.

    Decreases of the squared residual below noise_fraction·‖y‖² are regarded as rounding errors.
    """
    atom = tl.arange(0, ATOMS)
    step = tl.arange(0, STEPS)
    program = tl.program_id(0).to(tl.int64)
    V += program * n_nonzero * ATOMS
    for row in range(program, n_rows, tl.num_programs(0)):
        first = row * n_nonzero
        c = tl.load(B + row * k + atom, mask=atom < k, other=0.0)
        outside = tl.full([ATOMS], 1.0, c.dtype)
        remaining = tl.load(squared_residuals + row)
        tol = tl.load(tols + row)
        noise = remaining * noise_fraction  # a smaller decrease of the residual may be rounding
        size = 0
        running = remaining > tol
        while running:
            divisor = outside if ORDER_RECURSIVE else 1.0
            # Exclude NaN, from an overflow: with it the threads of a program would diverge.
            scores = tl.where((outside > min_pivot) & (c == c), c * c / divisor, 0.0)
            best, s, c_s = tl.reduce((scores, atom, c), 0, _larger_score)
            running = best.to(tl.float64) > noise
            if running:
                r = tl.load(V + step * ATOMS + s, mask=step < size, other=0.0)
                pivot = tl.load(G + s * k + s) - tl.sum(r * r)
                if pivot > min_pivot:
                    nu = tl.sqrt(pivot)
                    alpha = c_s / nu
                    v = tl.load(G + s * k + atom, mask=atom < k, other=0.0)
                    v = (v - _project_on_span(V, s, size, atom, ATOMS, CHUNK)) / nu
                    tl.store(V + size * ATOMS + atom, v)
                    r = tl.where(step == size, nu, r)
                    tl.store(R + (first + size) * n_nonzero + step, r, mask=step < n_nonzero)
                    tl.store(selected + first + size, s)
                    tl.store(alphas + first + size, alpha)
                    c = tl.fma(-v, alpha, c)
                    outside = tl.fma(-v, v, outside)
                    remaining -= alpha.to(tl.float64) * alpha.to(tl.float64)
                    size += 1
                    tl.debug_barrier()
                # Selected, or already in the span: exclude it.
                outside = tl.where(atom == s, 0.0, outside)
                running = (size < n_nonzero) & (remaining > tol)
        tl.store(sizes + row, size)
        tl.store(squared_residuals + row, remaining)
        tl.debug_barrier()


@triton.jit
def _project_on_span(V, s, size, atom, ATOMS: tl.constexpr, CHUNK: tl.constexpr):
    """Return Σ_i v_i[s] v_i, the products of all atoms with atom s projected on the span."""
    total = tl.zeros([ATOMS], V.dtype.element_ty)
    for start in range(0, size, CHUNK):
        i = start + tl.arange(0, CHUNK)
        r = tl.load(V + i * ATOMS + s, mask=i < size, other=0.0)
        v = tl.load(V + i[:, None] * ATOMS + atom[None, :], mask=(i < size)[:, None], other=0.0)
        total += tl.sum(r[:, None] * v, axis=0)
    return total
