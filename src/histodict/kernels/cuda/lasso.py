"""Exact l1 coding on a CUDA device: the method of `kernels.cpu.lasso`, one sample per program.

    min_s  ½‖y − sD‖² + λ‖s‖₁

A program holds the correlations of a sample in registers, and its active atoms, signs and codes in
slots, some of which may be free. Scratch memory, which fits into the caches, contains the inverse H
of the active Gram matrix in double precision. Adding or removing an atom changes H by one outer
product, and a step to the minimum for the current signs is one product with it. The step starts
from the current slopes and is repeated until they are λ, so that errors of H do not accumulate.

H has rows and columns for all slots, of which the first `top` have been used. The threads of a
program share a vector over the slots through the scratch memory `weights`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .omp import UNIFORM, count_processors


@triton.jit
def publish(x, weights):
    """Copy x to scratch memory, where every thread of the program can read all of it."""
    tl.debug_barrier()
    tl.store(weights + tl.arange(0, x.shape[0]), x)
    tl.debug_barrier()


@triton.jit
def times_inverse(x, H, weights, used, top, CHUNK: tl.constexpr):
    """Return the product x·H, which is 0 at free slots; x must be 0 there."""
    place = tl.arange(0, x.shape[0])
    publish(x, weights)
    total = x * 0
    for start in range(0, top, CHUNK):
        i = start + tl.arange(0, CHUNK)
        x_i = tl.load(weights + i, mask=i < top, other=0.0)
        inside = (i < top)[:, None] & (place < top)[None, :]
        h = tl.load(H + i[:, None] * x.shape[0] + place[None, :], mask=inside, other=0.0)
        total += tl.sum(x_i[:, None] * h, axis=0)
    return tl.where(used, total, 0.0)


@triton.jit
def add_outer(u, factor, new_row, H, weights, top, CHUNK: tl.constexpr):
    """Add factor·uᵀu to H, whose row and column `new_row` count as 0 before."""
    place = tl.arange(0, u.shape[0])
    publish(u, weights)
    for start in range(0, top, CHUNK):
        i = start + tl.arange(0, CHUNK)
        u_i = tl.load(weights + i, mask=i < top, other=0.0)
        inside = (i < top)[:, None] & (place < top)[None, :]
        entries = H + i[:, None] * u.shape[0] + place[None, :]
        old = tl.load(entries, mask=inside, other=0.0)
        old = tl.where((i == new_row)[:, None] | (place == new_row)[None, :], 0.0, old)
        tl.store(entries, old + factor * u_i[:, None] * u[None, :], mask=inside)
    tl.debug_barrier()


_ATOMS_PER_WARP = 1024
_MAX_WARPS = 16
_WARPS_PER_PROCESSOR = 16
_SCRATCH_BYTES = 2**30
# Numbers of slots to try; codes that need more are computed again with the next number.
_POSITIONS = (32, 128)
_FULL = 2  # status of a code that needs more slots
_FREE, _ACTIVE, _REFUSED = (tl.constexpr(x) for x in (0, 1, 2))


def solve(
    B: Tensor, yy: Tensor, G: Tensor, penalty: float, tol: float, capacity: int
) -> tuple[Tensor, Tensor, int]:
    """Compute the codes of the rows of a block.

    Parameters
    ----------
    B : (n, k), products ⟨y, d_j⟩
    yy : (n,), ‖y‖² in double precision
    G : (k, k), Gram matrix
    penalty : λ
    tol : maximum duality gap relative to the objective
    capacity : maximum number of atoms of a code

    Returns
    -------
    active atoms (n, slots), −1 for a free slot; their codes (n, slots); and the number of rows that
    missed the tolerance. The number of slots is that of the largest code, rounded up
    """
    max_slots = triton.next_power_of_2(capacity)
    steps = [places for places in _POSITIONS if places < max_slots] + [max_slots]
    atoms, s, status = _solve_with(steps[0], B, yy, G, penalty, tol, capacity)
    for places in steps[1:]:
        rows = torch.nonzero(status == _FULL)[:, 0]
        if len(rows) == 0:
            break
        more = _solve_with(places, B[rows], yy[rows], G, penalty, tol, capacity)
        atoms = torch.nn.functional.pad(atoms, (0, places - atoms.shape[1]), value=-1)
        s = torch.nn.functional.pad(s, (0, places - s.shape[1]))
        atoms[rows], s[rows], status[rows] = more
    return atoms, s, int((status > 0).sum())


def _solve_with(
    places: int, B: Tensor, yy: Tensor, G: Tensor, penalty: float, tol: float, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute codes of at most `places` slots, and status: 0 done, 1 missed tolerance, _FULL."""
    n_rows, k = B.shape
    width = triton.next_power_of_2(k)
    n_warps = max(1, min(_MAX_WARPS, width // _ATOMS_PER_WARP))
    n_programs = min(n_rows, _WARPS_PER_PROCESSOR // n_warps * count_processors(B.device))
    n_programs = max(1, min(n_programs, _SCRATCH_BYTES // (8 * places**2)))
    double = {"dtype": torch.float64, "device": B.device}
    atoms = torch.empty(n_rows, places, dtype=torch.int32, device=B.device)
    s = B.new_empty(n_rows, places)
    status = torch.zeros(n_rows, dtype=torch.int32, device=B.device)
    threshold = max(torch.finfo(B.dtype).eps ** 0.7, 1e-9)
    if n_rows:
        _solve[(n_programs,)](
            B,
            yy,
            G,
            torch.tensor([penalty, tol, threshold], **double),
            torch.empty(n_programs, places, places, **double),
            torch.empty(n_programs, places, **double),
            B.new_empty(n_programs, width),
            atoms,
            s,
            status,
            n_rows,
            k,
            min(places, capacity),
            20 * capacity + 100,
            width,
            places,
            max(2, min(16, 4096 // places)),
            num_warps=n_warps,
            **UNIFORM,
        )
    return atoms, s, status


@triton.jit
def _larger(size, atom, c, other_size, other_atom, other_c):
    """Return the larger slope; among equal ones that of the first atom."""
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
    weights,
    slopes,
    atoms_out,
    s_out,
    status,
    n_rows,
    k,
    capacity,
    round_limit,
    ATOMS: tl.constexpr,
    PLACES: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Code rows; H, weights, slopes: scratch memory; constants: λ, tol and smallest pivot."""
    atom = tl.arange(0, ATOMS)
    place = tl.arange(0, PLACES)
    program = tl.program_id(0).to(tl.int64)
    H += program * PLACES * PLACES
    weights += program * PLACES
    slopes += program * ATOMS
    penalty = tl.load(constants)
    tol = tl.load(constants + 1)
    min_pivot = tl.load(constants + 2)

    for row in range(program, n_rows, tl.num_programs(0)):
        b = tl.load(B + row * k + atom, mask=atom < k, other=0.0)
        c = b
        state = tl.where(atom < k, _FREE, _REFUSED)
        active = tl.full([PLACES], -1, tl.int32)
        signs = tl.zeros([PLACES], tl.float64)
        s = tl.zeros([PLACES], tl.float64)
        squared_norm = tl.load(yy + row)
        lowest = squared_norm + 1.0
        n_stalled = 0
        n_rounds = 0
        top = 0  # slots from here on have never been used
        running = True
        while running:
            # Exclude NaN, from an overflow: with it the threads of a program would diverge.
            usable = tl.where((state == _FREE) & (c == c), tl.abs(c), 0.0)
            worst, j, c_j = tl.reduce((usable, atom, c), 0, _larger)
            used = active >= 0
            publish(c, slopes)
            b_active = tl.load(B + row * k + active, mask=used, other=0.0).to(tl.float64)
            c_active = tl.load(slopes + active, mask=used, other=0.0).to(tl.float64)
            y_r = squared_norm - tl.sum(s * b_active)
            l1 = tl.sum(tl.abs(s))
            steepest = tl.maximum(worst.to(tl.float64), tl.max(tl.abs(c_active)))
            s_c = tl.sum(s * c_active)
            gap = _relative_gap(y_r, s_c, l1, steepest, penalty)
            # Computed without c, whose rounding would hide a small decrease of the objective.
            objective = 0.5 * tl.maximum(y_r - penalty * l1, 0.0) + penalty * l1
            n_stalled = tl.where(objective >= lowest, n_stalled + 1, 0)
            lowest = tl.minimum(lowest, objective)
            violated = worst.to(tl.float64) > penalty
            full = violated & (tl.sum(used.to(tl.int32)) == capacity)
            stuck = (n_stalled == 5) | (n_rounds == round_limit)
            running = (gap > tol) & (stuck == 0) & (full == 0)
            if running:
                n_rounds += 1
                if violated:
                    active, signs, s, state, top = _activate(
                        j, c_j, G, k, min_pivot, H, weights, active, signs, s, state, top, CHUNK
                    )
                active, s, state = _descend(
                    penalty, slopes, H, weights, active, signs, s, state, top, CHUNK
                )
                tl.debug_barrier()
                tl.store(atoms_out + row * PLACES + place, active)
                tl.store(s_out + row * PLACES + place, s)
                tl.debug_barrier()
                own = row * PLACES
                c = b - _fit(G, k, atoms_out + own, s_out + own, top, ATOMS)
            else:
                # Include the refused atoms. Either gap is valid: this one, or that of the CPU
                # kernel, which assumes that the slopes of active atoms are λ.
                seen = tl.max(tl.where(state == _ACTIVE, 0.0, tl.abs(c))).to(tl.float64)
                gap = _relative_gap(y_r, s_c, l1, tl.maximum(steepest, seen), penalty)
                gap = tl.minimum(gap, _relative_gap(y_r, penalty * l1, l1, seen, penalty))
                # With this comparison a NaN, from an overflow, counts as missed.
                tl.store(status + row, tl.where(gap <= tol, 0, tl.where(full, 2, 1)))
                tl.store(atoms_out + row * PLACES + place, active)
                tl.store(s_out + row * PLACES + place, s)


@triton.jit
def _relative_gap(y_r, s_c, l1, worst, penalty):
    """Return the relative duality gap; the dual point is the scaled residual r.

    y_r = ⟨y, r⟩; s_c = ⟨s, c⟩, which is λ‖s‖₁ at the optimum for the active signs.
    """
    r_r = tl.maximum(y_r - s_c, 0.0)
    primal = 0.5 * r_r + penalty * l1
    scale = penalty / tl.maximum(worst, penalty)
    gap = primal - scale * y_r + 0.5 * scale * scale * r_r
    return gap / tl.maximum(primal, 1e-300)


@triton.jit
def _activate(j, c_j, G, k, min_pivot, H, weights, active, signs, s, state, top, CHUNK):
    """Add atom j with coefficient 0, or refuse it.

    An atom in the span of the active ones has no pivot. Moving weight to it along the linear
    dependence changes the penalty only; it is moved until an active atom reaches 0 and is removed.
    If none does, the atom is refused.
    """
    atom = tl.arange(0, state.shape[0])
    place = tl.arange(0, active.shape[0])
    norm2 = tl.load(G + j * k + j).to(tl.float64)
    sign = tl.where(c_j > 0, 1.0, -1.0).to(tl.float64)
    start = norm2 * 0
    pending = True
    while pending:
        used = active >= 0
        g = tl.load(G + j * k + active, mask=used, other=0.0).to(tl.float64)
        h = times_inverse(g, H, weights, used, top, CHUNK)
        pivot = norm2 - tl.sum(g * h)
        slope = sign * h
        reach = tl.where(used & (slope * signs > 0), tl.maximum(s / slope, 0.0), float("inf"))
        length, removed = tl.min(reach, 0, return_indices=True)
        fits = pivot > min_pivot * norm2
        pending = (fits == 0) & (length < float("inf"))
        if fits:
            new = tl.min(tl.where(used, place.shape[0], place))
            top = tl.maximum(top, new + 1)
            u = tl.where(place == new, 1.0, -h)
            add_outer(u, 1 / pivot, new, H, weights, top, CHUNK)
            active = tl.where(place == new, j, active)
            signs = tl.where(place == new, sign, signs)
            s = tl.where(place == new, start, s)
            state = tl.where(atom == j, _ACTIVE, state)
        elif pending:
            s -= length * slope
            start += length * sign
            active, s, state = _drop(removed, H, weights, active, s, state, top, CHUNK)
        else:
            state = tl.where(atom == j, _REFUSED, state)
    return active, signs, s, state, top


@triton.jit
def _descend(penalty, slopes, H, weights, active, signs, s, state, top, CHUNK):
    """Minimise over the active atoms with fixed signs; atoms that reach 0 are removed."""
    place = tl.arange(0, active.shape[0])
    used = active >= 0
    c_active = tl.load(slopes + active, mask=used, other=0.0).to(tl.float64)
    slope = tl.where(used, c_active - penalty * signs, 0.0)
    pending = True
    while pending:
        used = active >= 0
        step = times_inverse(slope, H, weights, used, top, CHUNK)
        target = s + step
        reach = tl.where(s == target, 0.0, tl.maximum(s / (s - target), 0.0))
        reach = tl.where(used & (target * signs <= 0), reach, float("inf"))
        length, removed = tl.min(reach, 0, return_indices=True)
        pending = length < float("inf")
        if pending:
            s += length * step
            # The full step removes the slope, so a partial step reduces it proportionally.
            slope = tl.where(place == removed, 0.0, slope * (1 - length))
            active, s, state = _drop(removed, H, weights, active, s, state, top, CHUNK)
        else:
            s = target
    return active, s, state


@triton.jit
def _drop(removed, H, weights, active, s, state, top, CHUNK):
    """Remove one atom from the active set."""
    atom = tl.arange(0, state.shape[0])
    place = tl.arange(0, active.shape[0])
    h = tl.load(H + removed * place.shape[0] + place, mask=active >= 0, other=0.0)
    pivot = tl.sum(tl.where(place == removed, h, 0.0))
    add_outer(h, -1 / pivot, -1, H, weights, top, CHUNK)
    gone = tl.sum(tl.where(place == removed, active, 0))
    state = tl.where(atom == gone, _FREE, state)
    return tl.where(place == removed, -1, active), tl.where(place == removed, 0.0, s), state


@triton.jit
def _fit(G, k, active, s, top, ATOMS: tl.constexpr):
    """Return sG over all atoms, from the rows of G of the active atoms."""
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
