"""The inverse H of a growing and shrinking Gram matrix in a program's scratch memory.

It has places (rows and columns) of which the first `top` were ever used. A vector over the places
is shared between the threads of a program through the scratch memory `weights`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def publish(x, weights):
    """x to where every thread of the program can read all of it."""
    tl.debug_barrier()
    tl.store(weights + tl.arange(0, x.shape[0]), x)
    tl.debug_barrier()


@triton.jit
def times_inverse(x, H, weights, used, top, CHUNK: tl.constexpr):
    """x·H; 0 at free places, where x has to be 0."""
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
def add_outer(u, factor, fresh, H, weights, top, CHUNK: tl.constexpr):
    """H += factor·uᵀu, where row and column `fresh` count as 0 before."""
    place = tl.arange(0, u.shape[0])
    publish(u, weights)
    for start in range(0, top, CHUNK):
        i = start + tl.arange(0, CHUNK)
        u_i = tl.load(weights + i, mask=i < top, other=0.0)
        inside = (i < top)[:, None] & (place < top)[None, :]
        entries = H + i[:, None] * u.shape[0] + place[None, :]
        old = tl.load(entries, mask=inside, other=0.0)
        old = tl.where((i == fresh)[:, None] | (place == fresh)[None, :], 0.0, old)
        tl.store(entries, old + factor * u_i[:, None] * u[None, :], mask=inside)
    tl.debug_barrier()
