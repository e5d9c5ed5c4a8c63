"""Where the GPU backend computes: the device, samples on it, and one thread at a time.

The device is the first CUDA device, or the one that the environment variable HISTODICT_DEVICE names
("cuda:1"). "cpu" is for the tests, which put plain torch in the place of triton's kernels.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_TYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}
_ONE_AT_A_TIME = threading.RLock()
_THREAD = threading.local()
# Copied to the device at a time, through memory that it can read by itself.
_STAGED_BYTES = 2**23


def find_device() -> torch.device:
    """The device to compute on; refuses with what to do if there is none."""
    name = os.environ.get("HISTODICT_DEVICE", "cuda")
    if not name.startswith("cuda"):
        return torch.device(name)
    if not torch.cuda.is_available():
        raise ValueError(
            "backend='cuda' finds no CUDA device: check the driver and that PyTorch is a CUDA "
            "build (https://pytorch.org/get-started), or use backend='cpu'"
        )
    return torch.device(name)


@contextmanager
def device_context() -> Iterator[None]:
    """The device for one thread, with matrix products in full single precision (no TF32)."""
    device = find_device()
    on_cuda = device.type == "cuda"
    with _ONE_AT_A_TIME, torch.cuda.device(device) if on_cuda else nullcontext():
        if on_cuda and not hasattr(_THREAD, "opened"):
            # A thread's first call has to be one that opens the device.
            torch.cuda.current_stream().synchronize()
            _THREAD.opened = True
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(before)


def to_device(X: NDArray | Tensor, dtype: np.dtype | torch.dtype | None = None) -> Tensor:
    """X, a numpy array or a tensor, on the device; a dtype of None keeps its own."""
    device = find_device()
    if not isinstance(X, Tensor):
        # torch warns of arrays that it may not write to, such as memory maps.
        X = torch.from_numpy(np.require(X, requirements=["C_CONTIGUOUS", "WRITEABLE"]))
    if not isinstance(dtype, torch.dtype):
        dtype = X.dtype if dtype is None else _TYPES[np.dtype(dtype)]
    if device.type != "cuda" or X.is_cuda:
        return X.to(device, dtype)
    computing = torch.cuda.current_stream(device)
    with torch.cuda.stream(_copying(device)):  # beside what is computed
        Y = _copy_staged(X, device, dtype)
        computing.wait_stream(_copying(device))
    Y.record_stream(computing)
    return Y


def _copy_staged(X: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """X on the device, by parts that the host moves to pinned memory while others are under way.

    torch keeps pinned memory for the next part, and hands it out once its copy is done.
    """
    Y = torch.empty(X.shape, dtype=dtype, device=device)
    if X.ndim == 0 or X.numel() == 0:
        return Y.copy_(X)
    n_rows = max(1, _STAGED_BYTES // max(1, Y[0].numel() * Y.element_size()))
    for given, part in zip(X.split(n_rows), Y.split(n_rows), strict=True):
        staged = torch.empty(given.shape, dtype=dtype, pin_memory=True)
        part.copy_(staged.copy_(given), non_blocking=True)
    return Y


def labels_to_device(labels: NDArray[np.int64] | Tensor) -> Tensor:
    """Labels of samples on the device."""
    if isinstance(labels, Tensor):
        return labels
    return torch.from_numpy(np.ascontiguousarray(labels)).to(find_device())


@cache
def _copying(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def cache_blocks(
    open_blocks: Callable[[], Iterator[tuple[NDArray, Any]]],
) -> Callable[[], Iterator[tuple[NDArray | Tensor, Any]]]:
    """The same blocks; what was read once stays on the device, as far as half its memory goes."""
    device = find_device()
    kept: list[tuple[Tensor, Any]] = []

    def has_room(X: NDArray) -> bool:
        if device.type != "cuda":
            return True
        free, total = torch.cuda.mem_get_info(device)
        return free - X.nbytes > total / 2

    def blocks() -> Iterator[tuple[NDArray | Tensor, Any]]:
        for position, (X, labels) in enumerate(open_blocks()):
            if position == len(kept) and has_room(X):
                kept.append((to_device(X), labels_to_device(labels)))
            yield kept[position] if position < len(kept) else (X, labels)

    return blocks
