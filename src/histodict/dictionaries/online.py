"""Online dictionary learning (ODL): l1 codes of mini-batches, atoms from running sums.

    min_{D, S}  Σ ½‖y − sD‖² + penalty·‖s‖₁   with unit-norm atoms

Reference: Mairal, Bach, Ponce, Sapiro, "Online learning for matrix factorization and sparse
coding", JMLR 2010.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from ..execution.local import map_blocks, one_blas_thread
from ..kernels import load_backend
from .atoms import initial_atoms, replace_idle

_BATCH_ROWS = 1024


@dataclass(frozen=True)
class OnlineDictionary:
    """Atoms (n_atoms, n_features), and the mean number of them a sample used in the last epoch."""

    atoms: NDArray
    mean_nonzero: float


def learn_online(
    Y: NDArray,
    n_atoms: int,
    penalty: float,
    rng: np.random.Generator,
    *,
    n_epochs: int = 5,
    n_jobs: int | None = None,
    backend: str = "cpu",
    callback: Callable[[int, int], None] | None = None,
) -> OnlineDictionary:
    """A dictionary for the rows of Y, a C-contiguous float array in random order.

    `callback(done, total)` is called at the start and after every mini-batch.
    """
    with one_blas_thread():
        D = initial_atoms(Y, n_atoms, rng)
    total = count_batches(len(Y), n_epochs)
    done = itertools.count()

    def step() -> None:
        if callback:
            callback(next(done), total)

    step()
    return improve_online(
        D, Y, penalty, n_epochs=n_epochs, n_jobs=n_jobs, backend=backend, step=step
    )


def count_batches(n_samples: int, n_epochs: int) -> int:
    """Mini-batches of a training."""
    return n_epochs * -(-n_samples // _BATCH_ROWS)


def improve_online(
    D: NDArray,
    Y: NDArray,
    penalty: float,
    *,
    n_epochs: int,
    n_jobs: int | None,
    backend: str,
    step: Callable[[], None],
) -> OnlineDictionary:
    """A dictionary for the rows of Y that starts from the unit-norm atoms D.

    `step` is called after every mini-batch.
    """
    module = load_backend(backend)
    n_atoms = len(D)
    samples = module.place(Y, D.dtype)
    E = np.zeros(D.shape)
    F = np.zeros((n_atoms, n_atoms))
    starts = range(0, len(Y), _BATCH_ROWS)
    for epoch in range(n_epochs):
        uses = np.zeros(n_atoms, np.int64)
        worst: list[tuple[float, NDArray]] = []  # squared residuals and samples of this epoch
        for position, start in enumerate(starts):
            batch = samples[start : start + _BATCH_ROWS]
            n_before = epoch * len(starts) + position
            fading = n_before / (n_before + 1)
            E *= fading
            F *= fading
            for S, E_part, F_part, errors, rows in _code(module, D, batch, penalty, n_jobs):
                E += E_part
                F += F_part
                uses += np.bincount(S.indices, minlength=n_atoms)
                worst.extend(zip(errors, rows, strict=True))
            worst = sorted(worst, key=lambda item: -item[0])[:256]
            with one_blas_thread():
                sums = E.astype(D.dtype), F.astype(D.dtype)
                D = module.update_atoms(D, *sums, n_sweeps=1, tol=0.0)
            step()
        if epoch < n_epochs - 1:
            candidates = np.array([row for error, row in worst if error > 0])
            with one_blas_thread():
                D = replace_idle(D, uses, candidates)
    return OnlineDictionary(D, float(uses.sum()) / len(Y))


def _code(
    module: ModuleType, D: NDArray, batch: Any, penalty: float, n_jobs: int | None
) -> Iterator[tuple[csr_array, NDArray, NDArray, NDArray, NDArray]]:
    """Per task: codes, E, F, and the rows with the largest squared residuals, 8 of 256.

    `batch`: samples that the backend placed.
    """
    with one_blas_thread():
        coder = module.LassoCoder(D, penalty, 1e-3)

    def work(start: int) -> tuple[csr_array, NDArray, NDArray, NDArray, NDArray]:
        rows = batch[start : start + module.TASK_ROWS]
        S, _ = coder.code(rows)
        E, F = module.statistics(rows, S, np.ones(len(rows)))
        norms = module.class_residuals(D, rows, S, np.zeros(len(D), np.int64), 1)[:, 0]
        worst = np.argsort(-norms, kind="stable")[: 8 * math.ceil(len(rows) / 256)]
        return S, E, F, norms[worst] ** 2, module.take(rows, worst)

    yield from map_blocks(work, range(0, len(batch), module.TASK_ROWS), n_jobs)
