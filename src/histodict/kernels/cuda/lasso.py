"""Exact l1 coding on a CUDA device: the method of `kernels.cpu.lasso`, one sample per program.

    min_s  ½‖y − sD‖² + λ‖s‖₁

A program holds the correlations of a sample with all atoms in registers. Its active atoms, signs
and coefficients are in slots, some of which may be free. Scratch memory, which fits into the
caches, contains the inverse H of the Gram matrix of the active atoms, in double precision. Adding
or removing an atom changes H by one outer product. A step to the minimum for the current signs is
one product with H. It starts from the current slopes and is repeated until they are λ, so that
errors of H do not accumulate.

H has rows and columns for all slots. Arguments of several functions:

    active          (n_slots,), index of the atom in each slot; −1 for a free slot
    s, signs        (n_slots,), coefficients and signs of the active atoms
    state           (k,), whether each atom is free, active or excluded
    top             number of slots that have been used so far, from the start
    slopes          scratch memory: correlations of all atoms with the residual
    scratch         memory through which the threads of a program share a vector over slots
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .omp import NO_FP_FUSION, count_processors


@triton.jit
def copy_to_scratch(x, scratch):
    """Copy x to the scratch memory `scratch`, where every thread of the program can read it."""
    tl.debug_barrier()
    tl.store(scratch + tl.arange(0, x.shape[0]), x)
    tl.debug_barrier()


@triton.jit
def times_inverse(x, H, scratch, used, top, CHUNK: tl.constexpr):
    """Return the product x·H over all slots, with 0 in free slots.

    x is 0 in free slots, and `used` is the mask of the other slots.
    """
    slot = tl.arange(0, x.shape[0])
    copy_to_scratch(x, scratch)
    total = x * 0
    for start in range(0, top, CHUNK):
        i = start + tl.arange(0, CHUNK)
        x_i = tl.load(scratch + i, mask=i < top, other=0.0)
        inside = (i < top)[:, None] & (slot < top)[None, :]
        h = tl.load(H + i[:, None] * x.shape[0] + slot[None, :], mask=inside, other=0.0)
        total += tl.sum(x_i[:, None] * h, axis=0)
    return tl.where(used, total, 0.0)


@triton.jit
def add_outer(u, factor, new_row, H, scratch, top, CHUNK: tl.constexpr):
    """Set row and column `new_row` of H to 0 (none for −1), then add factor·uᵀu to H."""
    slot = tl.arange(0, u.shape[0])
    copy_to_scratch(u, scratch)
    for start in range(0, top, CHUNK):
        i = start + tl.arange(0, CHUNK)
        u_i = tl.load(scratch + i, mask=i < top, other=0.0)
        inside = (i < top)[:, None] & (slot < top)[None, :]
        entries = H + i[:, None] * u.shape[0] + slot[None, :]
        old = tl.load(entries, mask=inside, other=0.0)
        old = tl.where((i == new_row)[:, None] | (slot == new_row)[None, :], 0.0, old)
        tl.store(entries, old + factor * u_i[:, None] * u[None, :], mask=inside)
    tl.debug_barrier()


_ATOMS_PER_WARP = 1024
_MAX_WARPS = 16
_WARPS_PER_PROCESSOR = 16
_SCRATCH_BYTES = 2**30
# Numbers of slots; samples whose codes need more are encoded again with the next number.
_SLOT_COUNTS = (32, 128)
_FULL = 2  # status of a sample whose code needs more slots
_FREE, _ACTIVE, _EXCLUDED = (tl.constexpr(x) for x in (0, 1, 2))


def solve(
    B: Tensor, yy: Tensor, G: Tensor, penalty: float, tol: float, capacity: int
) -> tuple[Tensor, Tensor, int]:
    """Encode the samples of a block.

    Parameters
    ----------
    B : (n, k), products ⟨y, d_j⟩ of n samples and k atoms
    yy : (n,), ‖y‖² in double precision
    G : (k, k), Gram matrix
    penalty : λ
    tol : maximum duality gap relative to the objective
    capacity : maximum number of atoms of a code

    Returns
    -------
    atoms, s : (n, n_slots), indices of the active atoms (−1 for a free slot) and coefficients
    n_missed : number of samples that did not converge
    """
    max_slots = triton.next_power_of_2(capacity)
    slot_counts = [n_slots for n_slots in _SLOT_COUNTS if n_slots < max_slots] + [max_slots]
    atoms, s, status = _solve_with(slot_counts[0], B, yy, G, penalty, tol, capacity)
    for n_slots in slot_counts[1:]:
        rows = torch.nonzero(status == _FULL)[:, 0]
        if len(rows) == 0:
            break
        results = _solve_with(n_slots, B[rows], yy[rows], G, penalty, tol, capacity)
        atoms = torch.nn.functional.pad(atoms, (0, n_slots - atoms.shape[1]), value=-1)
        s = torch.nn.functional.pad(s, (0, n_slots - s.shape[1]))
        atoms[rows], s[rows], status[rows] = results
    return atoms, s, int((status > 0).sum())


def _solve_with(
    n_slots: int, B: Tensor, yy: Tensor, G: Tensor, penalty: float, tol: float, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return atoms and coefficients as `solve`, with `n_slots` slots per sample, and the status.

    The status (n,) is 0 for a sample that converged, 1 for one that did not, and _FULL for one
    whose code needs more slots.
    """
    n_rows, k = B.shape
    width = triton.next_power_of_2(k)
    n_warps = max(1, min(_MAX_WARPS, width // _ATOMS_PER_WARP))
    n_programs = min(n_rows, _WARPS_PER_PROCESSOR // n_warps * count_processors(B.device))
    n_programs = max(1, min(n_programs, _SCRATCH_BYTES // (8 * n_slots**2)))
    double = {"dtype": torch.float64, "device": B.device}
    atoms = torch.empty(n_rows, n_slots, dtype=torch.int32, device=B.device)
    s = B.new_empty(n_rows, n_slots)
    status = torch.zeros(n_rows, dtype=torch.int32, device=B.device)
    threshold = max(torch.finfo(B.dtype).eps ** 0.7, 1e-9)
    if n_rows:
        _solve[(n_programs,)](
            B,
            yy,
            G,
            torch.tensor([penalty, tol, threshold], **double),
            torch.empty(n_programs, n_slots, n_slots, **double),
            torch.empty(n_programs, n_slots, **double),
            B.new_empty(n_programs, width),
            atoms,
            s,
            status,
            n_rows,
            k,
            min(n_slots, capacity),
            20 * capacity + 100,
            width,
            n_slots,
            max(2, min(16, 4096 // n_slots)),
            num_warps=n_warps,
            **NO_FP_FUSION,
        )
    return atoms, s, status


@triton.jit
def _larger_correlation(size, atom, c, other_size, other_atom, other_c):
    """Return (size, atom, c) of the atom with the larger |c|; of the first if both are equal."""
    keep = (size > other_size) | ((size == other_size) & (atom < other_atom))
    return (
        tl.where(keep, size, other_size),
        tl.where(keep, atom, other_atom),
        tl.where(keep, c, other_c),
    )


@triton.jit
def _solve(
    B,
    yy,
    G,
    constants,
    H,
    scratch,
    slopes,
    atoms_out,
    s_out,
    status,
    n_rows,
    k,
    capacity,
    round_limit,
    ATOMS: tl.constexpr,
    SLOTS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Encode rows of B; see `solve`. `constants` are λ, tol and the smallest pivot."""
    atom = tl.arange(0, ATOMS)
    slot = tl.arange(0, SLOTS)
    program = tl.program_id(0).to(tl.int64)
    H += program * SLOTS * SLOTS
    scratch += program * SLOTS
    slopes += program * ATOMS
    penalty = tl.load(constants)
    tol = tl.load(constants + 1)
    min_pivot = tl.load(constants + 2)

    for row in range(program, n_rows, tl.num_programs(0)):
        b = tl.load(B + row * k + atom, mask=atom < k, other=0.0)
        c = b
        state = tl.where(atom < k, _FREE, _EXCLUDED)
        active = tl.full([SLOTS], -1, tl.int32)
        signs = tl.zeros([SLOTS], tl.float64)
        s = tl.zeros([SLOTS], tl.float64)
        squared_norm = tl.load(yy + row)
        lowest = squared_norm + 1.0
        n_stalled = 0
        n_rounds = 0
        top = 0  # slots from here on have never been used
        running = True
        while running:
            # Exclude NaN, from an overflow: with it the threads of a program would diverge.
            usable = tl.where((state == _FREE) & (c == c), tl.abs(c), 0.0)
            max_correlation, j, c_j = tl.reduce((usable, atom, c), 0, _larger_correlation)
            used = active >= 0
            copy_to_scratch(c, slopes)
            b_active = tl.load(B + row * k + active, mask=used, other=0.0).to(tl.float64)
            c_active = tl.load(slopes + active, mask=used, other=0.0).to(tl.float64)
            y_r = squared_norm - tl.sum(s * b_active)
            l1 = tl.sum(tl.abs(s))
            max_any = tl.maximum(max_correlation.to(tl.float64), tl.max(tl.abs(c_active)))
            s_c = tl.sum(s * c_active)
            gap = _relative_gap(y_r, s_c, l1, max_any, penalty)
            # Computed without c, whose rounding would hide a small decrease of the objective.
            objective = 0.5 * tl.maximum(y_r - penalty * l1, 0.0) + penalty * l1
            n_stalled = tl.where(objective >= lowest, n_stalled + 1, 0)
            lowest = tl.minimum(lowest, objective)
            violated = max_correlation.to(tl.float64) > penalty
            full = violated & (tl.sum(used.to(tl.int32)) == capacity)
            stuck = (n_stalled == 5) | (n_rounds == round_limit)
            running = (gap > tol) & (stuck == 0) & (full == 0)
            if running:
                n_rounds += 1
                if violated:
                    active, signs, s, state, top = _activate(
                        j, c_j, G, k, min_pivot, H, scratch, active, signs, s, state, top, CHUNK
                    )
                active, s, state = _descend(
                    penalty, slopes, H, scratch, active, signs, s, state, top, CHUNK
                )
                tl.debug_barrier()
                tl.store(atoms_out + row * SLOTS + slot, active)
                tl.store(s_out + row * SLOTS + slot, s)
                tl.debug_barrier()
                offset = row * SLOTS
                c = b - _times_gram(G, k, atoms_out + offset, s_out + offset, top, ATOMS)
            else:
                # Include the excluded atoms. Either gap is valid: this one, or that of the CPU
                # kernel, which assumes that the slopes of active atoms are λ.
                max_inactive = tl.max(tl.where(state == _ACTIVE, 0.0, tl.abs(c))).to(tl.float64)
                gap = _relative_gap(y_r, s_c, l1, tl.maximum(max_any, max_inactive), penalty)
                gap = tl.minimum(gap, _relative_gap(y_r, penalty * l1, l1, max_inactive, penalty))
                # With this comparison a NaN, from an overflow, counts as missed.
                tl.store(status + row, tl.where(gap <= tol, 0, tl.where(full, 2, 1)))
                tl.store(atoms_out + row * SLOTS + slot, active)
                tl.store(s_out + row * SLOTS + slot, s)


@triton.jit
def _relative_gap(y_r, s_c, l1, max_correlation, penalty):
    """Return the duality gap relative to the objective, with dual point r·min(1, λ / max |c|).

    r is the residual, y_r = ⟨y, r⟩, s_c = ⟨s, c⟩, l1 = ‖s‖₁, penalty = λ.
    """
    r_r = tl.maximum(y_r - s_c, 0.0)
    primal = 0.5 * r_r + penalty * l1
    scale = penalty / tl.maximum(max_correlation, penalty)
    gap = primal - scale * y_r + 0.5 * scale * scale * r_r
    return gap / tl.maximum(primal, 1e-300)


@triton.jit
def _activate(j, c_j, G, k, min_pivot, H, scratch, active, signs, s, state, top, CHUNK):
    """Add atom j, whose correlation is c_j, to the active atoms, or exclude it.

    The coefficient of atom j is 0, unless it is in the span of the active atoms. Such an atom would
    make their Gram matrix singular. Moving weight to it along the linear dependence changes only
    the penalty. Weight is moved until the coefficient of an active atom is 0, and this active atom
    is removed. If no coefficient becomes 0, atom j is excluded. Return the new active, signs, s,
    state and top.
    """
    atom = tl.arange(0, state.shape[0])
    slot = tl.arange(0, active.shape[0])
    norm2 = tl.load(G + j * k + j).to(tl.float64)
    sign = tl.where(c_j > 0, 1.0, -1.0).to(tl.float64)
    start = norm2 * 0
    pending = True
    while pending:
        used = active >= 0
        g = tl.load(G + j * k + active, mask=used, other=0.0).to(tl.float64)
        h = times_inverse(g, H, scratch, used, top, CHUNK)
        pivot = norm2 - tl.sum(g * h)
        slope = sign * h
        reach = tl.where(used & (slope * signs > 0), tl.maximum(s / slope, 0.0), float("inf"))
        length, removed = tl.min(reach, 0, return_indices=True)
        fits = pivot > min_pivot * norm2
        pending = (fits == 0) & (length < float("inf"))
        if fits:
            new = tl.min(tl.where(used, slot.shape[0], slot))
            top = tl.maximum(top, new + 1)
            u = tl.where(slot == new, 1.0, -h)
            add_outer(u, 1 / pivot, new, H, scratch, top, CHUNK)
            active = tl.where(slot == new, j, active)
            signs = tl.where(slot == new, sign, signs)
            s = tl.where(slot == new, start, s)
            state = tl.where(atom == j, _ACTIVE, state)
        elif pending:
            s -= length * slope
            start += length * sign
            active, s, state = _drop(removed, H, scratch, active, s, state, top, CHUNK)
        else:
            state = tl.where(atom == j, _EXCLUDED, state)
    return active, signs, s, state, top


@triton.jit
def _descend(penalty, slopes, H, scratch, active, signs, s, state, top, CHUNK):
    """Minimise over the active atoms with fixed signs; return the new active, s and state.

    Atoms whose coefficient becomes 0 are removed.
    """
    slot = tl.arange(0, active.shape[0])
    used = active >= 0
    c_active = tl.load(slopes + active, mask=used, other=0.0).to(tl.float64)
    slope = tl.where(used, c_active - penalty * signs, 0.0)
    pending = True
    while pending:
        used = active >= 0
        step = times_inverse(slope, H, scratch, used, top, CHUNK)
        target = s + step
        reach = tl.where(s == target, 0.0, tl.maximum(s / (s - target), 0.0))
        reach = tl.where(used & (target * signs <= 0), reach, float("inf"))
        length, removed = tl.min(reach, 0, return_indices=True)
        pending = length < float("inf")
        if pending:
            s += length * step
            # The full step removes the slope, so a partial step reduces it proportionally.
            slope = tl.where(slot == removed, 0.0, slope * (1 - length))
            active, s, state = _drop(removed, H, scratch, active, s, state, top, CHUNK)
        else:
            s = target
    return active, s, state


@triton.jit
def _drop(removed, H, scratch, active, s, state, top, CHUNK):
    """Remove the active atom in slot `removed`, and return the new active, s and state."""
    atom = tl.arange(0, state.shape[0])
    slot = tl.arange(0, active.shape[0])
    h = tl.load(H + removed * slot.shape[0] + slot, mask=active >= 0, other=0.0)
    pivot = tl.sum(tl.where(slot == removed, h, 0.0))
    add_outer(h, -1 / pivot, -1, H, scratch, top, CHUNK)
    removed_atom = tl.sum(tl.where(slot == removed, active, 0))
    state = tl.where(atom == removed_atom, _FREE, state)
    return tl.where(slot == removed, -1, active), tl.where(slot == removed, 0.0, s), state


@triton.jit
def _times_gram(G, k, active, s, top, ATOMS: tl.constexpr):
    """Return sG for all atoms; `active` and `s` are pointers to the slots in memory."""
    atom = tl.arange(0, ATOMS)
    total = tl.zeros([ATOMS], G.dtype.element_ty)
    for start in range(0, top, 4):
        i = start + tl.arange(0, 4)
        s_i = tl.load(s + i, mask=i < top, other=0.0)
        a = tl.load(active + i, mask=i < top, other=-1)
        inside = (a >= 0)[:, None] & (atom < k)[None, :]
        g = tl.load(G + a[:, None] * k + atom[None, :], mask=inside, other=0.0)
        total += tl.sum(s_i[:, None] * g, axis=0)
    return total
